# SPDX-License-Identifier: Apache-2.0
"""Making a sink from a URL, and the memory sink's view of its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks import Ack, Verdict, WireBatch, open_sink, register_sink, sink_kinds, sink_type
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.null import NullSink
from tests.support.accumulator import Accumulator
from tests.support.arenas import drain


def wire_of(accumulator: Accumulator) -> Iterator[WireBatch]:
    """Yield every drained batch as a sender would deliver it, and complete it at the next step."""
    for batch in drain(accumulator):
        wire = WireBatch.of(batch, (batch.topic, batch.partition), batch.buffers)
        yield wire
        for view in wire.buffers:
            view.release()
        accumulator.complete(batch, BatchResult.SUCCEEDED)


def verdicts(sink: MemorySink, wires: Sequence[WireBatch]) -> list[tuple[Verdict, int]]:
    return [(ack.verdict, ack.base_offset) for ack in sink.write(wires)]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("events", "'events' names no sink: write the kind and a colon first, as in log:events"),
        ("memroy:", "memroy: is not a kind of sink, did you mean memory:?"),
        ("carrier-pigeon:home", "carrier-pigeon: is not a kind of sink, there are "),
        ("null:somewhere", "null: has no place: leave 'somewhere' out"),
        ("memory:somewhere", "memory: has no place"),
    ],
)
def test_what_names_no_sink_is_refused_with_advice(url: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        open_sink(url)
    assert sentence in str(caught.value)


def test_options_of_a_sink_are_its_own() -> None:
    sink = open_sink("memory:", partitions=3)
    assert isinstance(sink, MemorySink)
    assert sink.partition_count("any") == 3
    with pytest.raises(InvalidArgumentError, match="partitons"):
        open_sink("memory:", partitons=3)
    with pytest.raises(InvalidArgumentError, match="partitions is 0"):
        open_sink("null:", partitions=0)


def test_a_kind_of_ones_own_is_registered_once() -> None:
    class OwnSink(NullSink):
        """A kind of sink that only this test uses."""

    register_sink("own-kind", OwnSink)
    assert isinstance(open_sink("own-kind:"), OwnSink)
    assert open_sink("own-kind:").name == "own-kind:"
    assert "own-kind" in sink_kinds()
    assert sink_type("own-kind") is OwnSink
    with pytest.raises(InvalidArgumentError, match="exists already"):
        register_sink("own-kind", OwnSink)
    with pytest.raises(InvalidArgumentError, match="letters, digits and dashes"):
        register_sink("no:colon", OwnSink)


def test_two_memory_sinks_are_two_places() -> None:
    assert MemorySink().identity != MemorySink().identity
    assert NullSink().identity == NullSink().identity


def test_a_memory_sink_keeps_records_in_the_order_of_their_offsets(sender: Accumulator) -> None:
    sink = MemorySink()
    for round_number in range(2):
        for number in range(3):
            sender.append("topic", 0, 1000 + number, b"key", b"%d" % (3 * round_number + number), [("h", b"v")])
        for wire in wire_of(sender):
            assert verdicts(sink, [wire]) == [(Verdict.DELIVERED, 3 * round_number)]
    assert sink.topic_partitions() == [("topic", 0)]
    assert sink.values("topic") == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert sink.records("topic")[4] == (4, 1001, b"key", b"4", [("h", b"v")])
    assert sink.wire_batches("topic", 1) == []


def test_a_memory_sink_drops_duplicates_and_refuses_gaps(sender: Accumulator) -> None:
    sink = MemorySink()
    sender.set_producer_id(7, 0)
    offsets = []
    for number in range(3):
        sender.append("topic", 0, 1000, None, b"%d" % number)
        for wire in wire_of(sender):
            if number != 1:
                ack = sink.write([wire])[0]
                offsets.append((ack.verdict, ack.base_offset))
                again: Ack = sink.write([wire])[0]
                assert (again.verdict, again.base_offset) == (ack.verdict, ack.base_offset)
    assert offsets == [(Verdict.DELIVERED, 0), (Verdict.OUT_OF_SEQUENCE, -1)]
    assert sink.values("topic") == [b"0"]
    sender.set_producer_id(7, 1)
    sender.append("topic", 0, 1000, None, b"new epoch")
    for wire in wire_of(sender):
        assert verdicts(sink, [wire]) == [(Verdict.DELIVERED, 1)]


def test_a_null_sink_counts_offsets(sender: Accumulator) -> None:
    sink = NullSink()
    for expected in (0, 2):
        sender.append("topic", 0, 1000, None, b"a")
        sender.append("topic", 0, 1000, None, b"b")
        for wire in wire_of(sender):
            assert sink.write([wire])[0].base_offset == expected
