# SPDX-License-Identifier: Apache-2.0
"""Shipping a log: bytes, order, positions, deaths, damage, rejections."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum._native import crc32c, decode_batch
from shmaccum.common.format.batch_header import CRC_START, HEADER_SIZE, read_header
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    InvalidArgumentError,
    LogBusyError,
    LogError,
    NotALogError,
    OffsetOutOfRangeError,
    OtherSinkError,
)
from shmaccum.log.files import LogDirectory, LogReader, index_file, log_watch, segment_view
from shmaccum.log.files.shipping_positions import DEAD_SIZE_MIN, PositionsFile, ShippedPosition, ShippedTo, read_shipped
from shmaccum.sender.shipping import Shipper, log_stream
from shmaccum.sender.shipping.host import RateLimit
from shmaccum.sender.shipping.log_stream import LogStream, resumed
from shmaccum.sender.shipping.shipper import forget
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Ack, Verdict, WireBatch
from tests.support.processes import WATCHDOG_S, run_in_child, wait_until
from tests.support.segment_log import START_MS, TOPIC, batch_of, log_files, make_batch, make_batches, offsets, open_log
from tests.support.system_calls import dies_at_system_call

PLACE = TopicPartition(TOPIC, 0)


class ScriptedSink(MemorySink):
    """A sink whose verdicts a test decides. By default, it accepts every batch.

    Attributes:
        script: called with a batch; returns a verdict, or None to accept the batch.
        attempts: base sequences of all batches that arrived.
    """

    def __init__(self, script: Callable[[WireBatch], Verdict | None] = lambda wire: None) -> None:  # noqa: ARG005
        super().__init__(partitions=4)
        self.script = script
        self.attempts: list[int] = []

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        acks: list[Ack] = []
        for wire in batches:
            self.attempts.append(wire.base_sequence)
            verdict = self.script(wire)
            acks += [Ack(wire, verdict, message="rejected by the script")] if verdict else super().write([wire])
        return acks


def values(count: int, first: int = 0) -> list[bytes | None]:
    """The values of `make_batches`."""
    return [b"%08d" % number + b"." * 100 for number in range(3 * first, 3 * count)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with 20 batches of 3 records in partition 0."""
    with open_log(tmp_path / "log") as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(20)))
    return tmp_path / "log"


def append(log: Path, first: int, end: int) -> None:
    with open_log(log) as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(end - first, first=first)))


def ship(log: Path, sink: MemorySink, **options: Any) -> Any:
    return Shipper(log, sink, retry_backoff_ms=1, retry_backoff_max_ms=1, **options).run(follow=False)


# --- bytes


def test_batches_arrive_as_they_are_but_for_the_header(log: Path) -> None:
    sink = MemorySink()
    progress = ship(log, sink)
    sources = list(LogReader(log).partition(TOPIC, 0).batches())
    arrived = sink.wire_batches(TOPIC)
    assert [wire[HEADER_SIZE:] for wire in arrived] == [bytes(source.view[HEADER_SIZE:]) for source in sources]
    headers = [read_header(wire) for wire in arrived]
    assert all(header.crc == crc32c(wire[CRC_START:]) for header, wire in zip(headers, arrived, strict=True))
    assert [header.base_sequence for header in headers] == [source.base_offset for source in sources]
    assert {(header.base_offset, header.leader_epoch, header.producer_id) for header in headers} == {(0, -1, 0)}
    kept = ("attributes", "base_timestamp_ms", "max_timestamp_ms", "record_count", "last_offset_delta")
    for name in kept:
        assert [getattr(header, name) for header in headers] == [getattr(source.header, name) for source in sources]
    assert (progress.record_count, progress.left_record_count, progress.left_byte_count) == (60, 0, 0)
    assert progress.byte_count == sum(source.size for source in sources)


def test_compressed_batches_are_not_decoded(tmp_path: Path) -> None:
    batch = make_batch([b"x" * 1000] * 5, codec=1)
    with open_log(tmp_path / "log") as directory:
        offsets(directory.partition(TOPIC, 0).append([batch]))
    sink = MemorySink()
    ship(tmp_path / "log", sink)
    assert [wire[HEADER_SIZE:] for wire in sink.wire_batches(TOPIC)] == [batch.wire[HEADER_SIZE:]]


def test_progress_is_of_the_partitions_known_when_it_is_asked(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the command asks, and the shipper may find another partition meanwhile."""
    with Shipper(log, MemorySink()) as shipper:
        shipper.run(follow=False)
        (stream,) = shipper.streams
        found = LogReader(log).partition(TOPIC, 0)

        def find_another() -> int:
            shipper.streams.append(SimpleNamespace(place=TopicPartition("found", 0)))  # type: ignore[arg-type]
            return found.log_end_offset

        monkeypatch.setattr(stream, "log_end_offset", find_another)
        assert shipper.progress().left_record_count == 0
        del shipper.streams[1:]


# --- positions


def test_a_later_shipper_continues_after_the_former_one(log: Path) -> None:
    sink = MemorySink()
    ship(log, sink)
    append(log, 20, 23)
    again = ship(log, sink)
    assert again.record_count == 9
    assert sink.values(TOPIC) == values(23)
    assert len({read_header(wire).producer_id for wire in sink.wire_batches(TOPIC)}) == 1


def test_a_log_is_followed_while_it_is_written_and_rolled(log: Path) -> None:
    sink = MemorySink(partitions=2)
    shipper = Shipper(log, sink)
    thread = threading.Thread(target=shipper.run)
    thread.start()
    try:
        with open_log(log, segment_bytes="1KiB") as directory:
            for first in range(20, 60):
                offsets(directory.partition(TOPIC, 0).append(make_batches(1, first=first)))
            directory.create_topic("hops")
            offsets(directory.partition("hops", 0).append([make_batch([b"late"])]))
            wait_until(lambda: len(sink.values(TOPIC)) == 180, "the topic is shipped")
            wait_until(lambda: sink.values("hops") == [b"late"], "the new topic is shipped")
        assert len(log_files(log)) > 5
    finally:
        shipper.stop()
        thread.join(WATCHDOG_S)
    assert sink.values(TOPIC) == values(60)
    assert read_shipped(str(log)).positions[PLACE].offset == 180


@pytest.mark.parametrize("start", [0, 30, 45, 57])
def test_the_bytes_that_are_left_are_those_of_the_segments_from_the_position_on(tmp_path: Path, start: int) -> None:
    log = tmp_path / "segments"
    with open_log(log, segment_bytes="1KiB") as directory:
        for first in range(20):
            offsets(directory.partition(TOPIC, 0).append(make_batches(1, first=first)))
    sizes = {int(file.stem): file.stat().st_size for file in log_files(log)}
    assert len(sizes) > 5
    present = max(base for base in sizes if base <= start)
    with Shipper(log, MemorySink(), start=start) as shipper:
        assert shipper.open()
        progress = shipper.progress()
    assert progress.left_record_count == 60 - start
    assert progress.left_byte_count == sum(size for base, size in sizes.items() if base >= present)


def test_the_index_of_a_segment_may_be_truncated_while_the_bytes_that_are_left_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of a mapping past the end of its file would kill the process. numpy reads the mapping itself."""
    log = tmp_path / "indexed"
    with open_log(log, index_interval_bytes=0) as directory:
        for first in range(20):
            offsets(directory.partition(TOPIC, 0).append(make_batches(1, first=first)))
    (index,) = log.rglob("*.index")
    ascends = index_file.ascends

    def ascends_after_a_truncation(column: Sequence[int]) -> bool:
        os.truncate(index, 0)
        return ascends(column)

    def count_left() -> int:
        with Shipper(log, MemorySink(), start=30) as shipper, monkeypatch.context() as patch:
            assert shipper.open()
            patch.setattr(index_file, "LARGE_COUNT", 1)
            patch.setattr(segment_view, "ascends", ascends_after_a_truncation)
            (stream,) = shipper.streams
            return stream.left_size()

    batch_size = log_files(log)[0].stat().st_size // 20
    assert int(run_in_child(count_left)) == 11 * batch_size, "from the batch before the position on"
    assert index.stat().st_size == 0


def test_start_latest_ships_what_comes_later(log: Path) -> None:
    sink = MemorySink()
    assert ship(log, sink, start="latest").record_count == 0
    append(log, 20, 22)
    with open_log(log) as directory:
        directory.create_topic("hops")
        offsets(directory.partition("hops", 0).append([make_batch([b"new"])]))
    ship(log, sink, start="latest")
    assert sink.values(TOPIC) == values(22, first=20)
    assert sink.values("hops") == [b"new"], "a topic of later has no position, and goes from its start"


@pytest.mark.parametrize(
    ("start", "first_of_0", "first_of_1"),
    [
        ("31", 10, 10),
        (31, 10, 10),
        ({f"{TOPIC}:1": 31}, 0, 10),
        ("-7", 17, 17),
        (f"s@{START_MS + 12_001}", 12, 12),
        ("s@9999999999999", 20, 20),
        ({TOPIC: "6"}, 2, 2),
        ({f"{TOPIC}:1": "59"}, 0, 19),
        ({f"{TOPIC}:1": "earliest", TOPIC: "latest"}, 20, 0),
        ({f"{TOPIC}:1": "9", "": "end"}, 20, 3),
        ({"": "60"}, 20, 20),
    ],
)
def test_a_log_is_shipped_from_an_offset_or_a_time(
    tmp_path: Path, start: str | int | dict[str, str | int], first_of_0: int, first_of_1: int
) -> None:
    """The batch with the record is sent whole, and its first sequence is 0."""
    with open_log(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 2)
        for partition in range(2):
            offsets(directory.partition(TOPIC, partition).append(make_batches(20)))
    sink = MemorySink(partitions=2)
    ship(tmp_path / "log", sink, start=start)
    for partition, first in enumerate((first_of_0, first_of_1)):
        assert sink.values(TOPIC, partition) == values(20, first=first)
        assert [read_header(wire).base_sequence for wire in sink.wire_batches(TOPIC, partition)[:1]] in ([], [0])
    append(tmp_path / "log", 20, 21)
    ship(tmp_path / "log", sink, start=start)
    assert sink.values(TOPIC) == values(21, first=first_of_0)


@pytest.mark.parametrize(
    ("start", "error", "sentence"),
    [
        ("61", OffsetOutOfRangeError, "does not exist yet"),
        ({"hops": "1"}, InvalidArgumentError, "start names hops"),
        ({f"{TOPIC}:7": "1"}, InvalidArgumentError, "TOPIC:PARTITION"),
    ],
)
def test_a_start_that_the_log_does_not_have_is_refused_and_nothing_is_noted(
    log: Path, start: str | dict[str, str], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        ship(log, MemorySink(), start=start)
    assert read_shipped(str(log)).shipped_to is None


def test_topics_are_chosen_and_renamed(log: Path) -> None:
    with open_log(log) as directory:
        directory.create_topic("hops")
        offsets(directory.partition("hops", 0).append([make_batch([b"a"])]))
    sink = MemorySink()
    ship(log, sink, topics=[TOPIC], rename={TOPIC: "site.flights"})
    assert sink.topic_partitions() == [("site.flights", 0)]
    assert sink.values("site.flights") == values(20)


def test_two_topics_never_mix_at_the_place(log: Path) -> None:
    with open_log(log) as directory:
        directory.create_topic("hops")
        offsets(directory.partition("hops", 0).append([make_batch([b"a"])]))
    sink = MemorySink()
    progress = ship(log, sink, rename={"hops": TOPIC})
    assert list(progress.refusals) == [TopicPartition("hops", 0)] or list(progress.refusals) == [PLACE]
    assert len(sink.values(TOPIC)) in {1, 60}


def test_another_place_is_refused_until_the_positions_are_forgotten(log: Path) -> None:
    ship(log, MemorySink())
    other = MemorySink()
    with pytest.raises(OtherSinkError, match="--forget"):
        ship(log, other)
    assert forget(str(log))
    assert not forget(str(log))
    ship(log, other)
    assert other.values(TOPIC) == values(20)


def test_a_second_shipper_is_refused(log: Path) -> None:
    with Shipper(log, MemorySink()) as first:
        assert first.open()
        with pytest.raises(LogBusyError, match=f"pid {os.getpid()}"):
            Shipper(log, MemorySink()).open()
        with pytest.raises(LogBusyError):
            forget(str(log))
    with Shipper(log, first.sink) as second:
        assert second.open()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"start": "somewhere"}, "s@MS"),
        ({"start": {"flights": "first"}}, "s@MS"),
        ({"rename": {"a": "c", "b": "c"}}, "two topics one name"),
        ({"topics": ["a"], "rename": {"b": "c"}}, "leaves out"),
        ({"to": "null:"}, "does not recognise"),
        ({"to": "kafka:localhost:9092", "sink_options": {"compression_type": "zstd"}}, "as they are"),
        ({"rate_limit": 0}, "at least"),
        ({"retry_backoff_ms": "1min"}, "longer"),
    ],
)
def test_what_makes_no_sense_is_refused_with_advice(log: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        Shipper(log, **{"to": MemorySink(), **arguments})


def test_a_directory_that_is_no_log_of_ours_is_refused(tmp_path: Path, log: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALogError, match="name the directory"):
        Shipper(tmp_path / "empty", MemorySink())
    with pytest.raises(InvalidArgumentError, match="itself"):
        Shipper(log, f"log:{log}")


# --- deaths


def test_a_shipper_that_dies_at_any_system_call_sends_nothing_twice(log: Path, tmp_path: Path) -> None:
    """Kill before about every 75th system call. The next shipper continues where the previous one died."""
    seed = random.randrange(10**6)
    print("seed", seed)
    steps = random.Random(seed)
    copy = tmp_path / "copy"

    def prepare() -> Callable[[], object]:
        return lambda: Shipper(log, f"log:{copy}").run(follow=False)

    death_count = number = 0
    while True:
        number += steps.randint(30, 120)
        shutil.rmtree(log / ".shipping", ignore_errors=True)
        shutil.rmtree(copy, ignore_errors=True)
        if not dies_at_system_call(prepare, number):
            break
        death_count += 1
        Shipper(log, f"log:{copy}").run(follow=False)
        records = [record.value for record in LogReader(copy).partition(TOPIC, 0).records()]
        assert records == values(20), f"killed before system call {number}"
        assert read_shipped(str(log)).positions[PLACE].offset == 60
    assert death_count > 3


def test_acks_that_were_not_recorded_are_asked_for_again_and_dropped(log: Path) -> None:
    sink = MemorySink()
    shipper = Shipper(log, sink)
    assert shipper.open()
    shipper._read()
    shipper._send()
    assert len(sink.wire_batches(TOPIC)) == 1  # the first of an epoch is sent alone
    shipper.close()  # without reading the acks
    sink.poll(0, -1)  # these acks are never read
    assert read_shipped(str(log)).positions[PLACE].offset == 0
    ship(log, sink)
    assert sink.values(TOPIC) == values(20)


def test_no_more_batches_go_than_the_place_remembers_while_positions_cannot_be_written(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = MemorySink()
    with Shipper(log, sink) as shipper:
        assert shipper.open()
        with monkeypatch.context() as patch:

            def fail(_descriptor: int) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patch.setattr(os, "fdatasync", fail)
            for _ in range(10):
                shipper.run_once(0)
            assert len(sink.wire_batches(TOPIC)) == sink.limits.in_flight_max
            assert read_shipped(str(log)).positions[PLACE].offset == 0
        shipper.run(follow=False)
    assert sink.values(TOPIC) == values(20)


def test_a_shipper_rests_while_it_cannot_start_over(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = log_files(log)
    content = bytearray(file.read_bytes())
    content[HEADER_SIZE + 5] ^= 0xFF
    file.write_bytes(content)
    sink = MemorySink()
    with Shipper(log, sink) as shipper:
        assert shipper.open()
        with monkeypatch.context() as patch:

            def fail(_descriptor: int) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patch.setattr(os, "fdatasync", fail)
            shipper.run_once(0)
            assert shipper._rest_s() > 0.5
            assert sink.wire_batches(TOPIC) == []
        shipper.run(follow=False)
    assert sink.values(TOPIC) == values(20, first=1)


def test_a_read_of_a_partition_lets_the_native_loop_send_its_next_batches(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, found = LogStream.read, set()

    def noted(stream: LogStream, has_room: Callable[[int], bool]) -> None:
        stream.window.must_read = True
        read(stream, has_room)
        found.add(stream.window.must_read)

    monkeypatch.setattr(LogStream, "read", noted)
    ship(log, MemorySink())
    assert found == {False}


@pytest.mark.parametrize("place", [PLACE, TopicPartition("hops", 0)])
def test_an_append_and_a_new_partition_are_seen_before_the_next_scan(
    log: Path, monkeypatch: pytest.MonkeyPatch, place: TopicPartition
) -> None:
    with Shipper(log, sink := MemorySink()) as shipper:
        shipper.open()
        while not shipper.is_done:
            shipper.run_once(0)
        monkeypatch.setattr("shmaccum.sender.shipping.shipper.CHECK_S", 3600)
        with open_log(log) as directory:
            directory.create_topic(place.topic)
            offsets(directory.partition(*place).append([make_batch([b"late"])]))
        for _ in range(5):
            shipper.run_once(0)
        assert sink.values(place.topic)[-1] == b"late"


def test_an_unchanged_log_is_scanned_once_in_an_interval(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmaccum.sender.shipping.shipper.CHECK_S", 3600)
    with Shipper(log, MemorySink()) as shipper:
        shipper.open()
        shipper._checked_ns = -(10**18)
        scans: list[Path] = []
        add_found = shipper._add_found

        def note() -> None:
            scans.append(log)
            add_found()

        monkeypatch.setattr(shipper, "_add_found", note)
        for _ in range(5):
            shipper.run_once(0)
        assert len(scans) == 1


def test_the_bytes_that_are_read_ahead_are_limited_over_all_partitions(log: Path) -> None:
    with open_log(log) as directory:
        directory.create_topic("hops", 2)
    size = next(iter(LogReader(log).partition(TOPIC, 0).batches())).size
    with Shipper(log, MemorySink(partitions=2), read_ahead_bytes=8 * size) as shipper:
        shipper.open()
        shipper._read()
        with open_log(log) as directory:
            for partition in range(2):
                offsets(directory.partition("hops", partition).append(make_batches(20)))
        for stream in shipper.streams:
            stream.may_have_more = True
        shipper._read()
        assert [len(stream.window.shipments) for stream in shipper.streams] == [5, 3, 1]


# --- responses


def test_a_batch_that_failed_waits_for_its_pause(log: Path) -> None:
    sink = ScriptedSink(lambda wire: Verdict.RETRY)  # noqa: ARG005
    with Shipper(log, sink, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as shipper:
        shipper.open()
        for _ in range(5):
            shipper.run_once(0)
    assert sink.attempts == [0]


def test_no_batch_overtakes_the_first_one_of_an_epoch(log: Path) -> None:
    """A sink that does not know the producer would accept the second batch as the first one."""
    verdicts = iter([Verdict.RETRY])
    sink = ScriptedSink(lambda wire: next(verdicts, None))  # noqa: ARG005
    ship(log, sink)
    assert sink.attempts[:3] == [0, 0, 3]
    assert sink.values(TOPIC) == values(20)


def test_a_batch_that_fails_comes_again_in_its_order(log: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)

    def fail_or_forget_the_answer(wire: WireBatch) -> Verdict | None:
        draw = chance.random()
        if draw < 0.2:
            MemorySink.write(sink, [wire])
        return Verdict.RETRY if draw < 0.4 else None

    sink = ScriptedSink(fail_or_forget_the_answer)
    ship(log, sink)
    assert sink.values(TOPIC) == values(20)
    assert len(sink.attempts) > 20


def test_a_partition_starts_over_when_the_place_has_lost_a_batch(log: Path) -> None:
    told = []

    def lose_sequence_30(wire: WireBatch) -> Verdict | None:
        if wire.producer_epoch == 0 and wire.base_sequence >= 30:
            told.append(wire.base_sequence)
            return Verdict.OUT_OF_SEQUENCE
        return None

    sink = ScriptedSink(lose_sequence_30)
    ship(log, sink)
    assert told[0] == 30
    assert sink.values(TOPIC) == values(20)
    position = read_shipped(str(log)).positions[PLACE]
    assert (position.producer_epoch, position.origin, position.sequence_at(33)) == (1, 30, 3)


def test_a_partition_that_has_no_further_epoch_is_refused(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "PRODUCER_EPOCH_MAX", 0)
    progress = ship(log, ScriptedSink(lambda wire: Verdict.OUT_OF_SEQUENCE if wire.base_sequence >= 30 else None))
    assert progress.refusals == {PLACE: "it has started over 0 times: remove the shipping positions"}


@pytest.mark.parametrize("verdict", [Verdict.REFUSED, Verdict.TOO_LARGE])
def test_a_partition_that_is_refused_stops_alone_and_loses_nothing(log: Path, verdict: Verdict) -> None:
    with open_log(log) as directory:
        directory.create_topic("hops")
        offsets(directory.partition("hops", 0).append([make_batch([b"a"])]))
    sink = ScriptedSink(lambda wire: verdict if wire.topic == TOPIC and wire.base_sequence >= 9 else None)
    progress = ship(log, sink)
    assert progress.refusals == {PLACE: "rejected by the script"}
    assert sink.values("hops") == [b"a"]
    assert (read_shipped(str(log)).positions[PLACE].offset, progress.left_record_count) == (9, 51)
    sink.script = lambda wire: None  # noqa: ARG005
    ship(log, sink)
    assert sink.values(TOPIC) == values(20)


def test_a_partition_that_the_place_does_not_have_is_refused(tmp_path: Path) -> None:
    with LogDirectory(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 3)
        for partition in range(3):
            offsets(directory.partition(TOPIC, partition).append([make_batch([b"%d" % partition])]))
    sink = MemorySink(partitions=2)
    progress = ship(tmp_path / "log", sink)
    assert list(progress.refusals) == [TopicPartition(TOPIC, 2)]
    assert "give it more" in progress.refusals[TopicPartition(TOPIC, 2)]
    assert sink.topic_partitions() == [(TOPIC, 0), (TOPIC, 1)]


# --- changes of the log


def test_the_readable_part_of_a_damaged_log_is_shipped_and_the_damage_reported(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = log_files(log)
    batches = list(LogReader(log).partition(TOPIC, 0).batches())
    content = bytearray(file.read_bytes())
    for batch in (batches[7], batches[8], batches[15]):
        content[batch.position + HEADER_SIZE + 5] ^= 0xFF
    file.write_bytes(content)
    sink = MemorySink()
    progress = ship(log, sink)
    whole = values(20)
    assert sink.values(TOPIC) == whole[:21] + whole[27:45] + whole[48:]
    assert progress.damage_count == 2
    assert sum("is damaged" in message for message in caplog.messages) == 2
    assert read_shipped(str(log)).positions[PLACE].producer_epoch == 2


def test_shipping_stops_in_front_of_a_transaction_and_reports_why(log: Path) -> None:
    with open_log(log) as directory:
        offsets(directory.partition(TOPIC, 0).append([batch_of(9, 0, b"of a transaction")]))
    sink = MemorySink()
    progress = ship(log, sink)
    assert sink.values(TOPIC, 0) == values(20)
    (sentence,) = progress.refusals.values()
    assert "begins a record batch of a transaction" in sentence
    assert progress.left_record_count == 1


def test_deleted_records_are_reported_and_passed_over(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = ScriptedSink(lambda wire: Verdict.REFUSED if wire.base_sequence >= 9 else None)
    ship(log, sink)
    with open_log(log, segment_bytes="1KiB") as directory:
        directory.delete_records(TOPIC, 0, 30)
    sink.script = lambda wire: None  # noqa: ARG005
    ship(log, sink)
    assert sink.values(TOPIC) == values(3) + values(20, first=10)
    assert any("deleted by retention" in message for message in caplog.messages)


def test_a_topic_that_was_created_again_is_shipped_from_its_start(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = MemorySink()
    ship(log, sink)
    with open_log(log) as directory:
        directory.delete_topic(TOPIC)
    with open_log(log) as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(30, first=100)))
    ship(log, sink)
    assert sink.values(TOPIC) == values(20) + values(130, first=100)
    (told,) = [message for message in caplog.messages if "was deleted and recreated" in message]
    assert told.startswith(f"{PLACE}: ")


def test_a_topic_that_is_created_again_is_found_by_a_shipper_that_runs(log: Path) -> None:
    sink = MemorySink()

    def shipped_after_a_round(count: int) -> bool:
        shipper.run_once(0)
        return len(sink.values(TOPIC)) == count

    with Shipper(log, sink) as shipper:
        assert shipper.open()
        wait_until(lambda: shipped_after_a_round(60), "the topic is shipped")
        with open_log(log) as directory:
            directory.delete_topic(TOPIC)
        shipper.progress()
        with open_log(log) as directory:
            offsets(directory.partition(TOPIC, 0).append(make_batches(1, first=100)))
        wait_until(lambda: shipped_after_a_round(63), "the new topic is shipped")
    assert sink.values(TOPIC)[60:] == values(101, first=100)


def test_records_that_a_crash_of_the_host_took_back_are_not_left_out(log: Path) -> None:
    (folder,) = {file.parent for file in log_files(log)}
    topic_id = ShippedPosition(45, topic_id=read_topic_id(log))
    position = topic_id._replace(leader_epoch=0)
    (folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 30\n")
    after, event = resumed(position, str(folder), 60)
    assert (after.offset, after.origin, after.producer_epoch) == (30, 30, 1)
    assert "offset 30 to 45" in event
    assert resumed(position._replace(leader_epoch=1), str(folder), 60) == (position._replace(leader_epoch=1), "")


@pytest.mark.parametrize("content", ["", "version: 0\n", "version: 0\ntopic_id: AAAA\n"])
def test_a_topic_whose_id_cannot_be_read_is_not_shipped_again(log: Path, content: str) -> None:
    (folder,) = {file.parent for file in log_files(log)}
    position = ShippedPosition(45, topic_id=read_topic_id(log))
    (folder / "partition.metadata").write_text(content)
    assert resumed(position, str(folder), 60) == (position, "")


def read_topic_id(log: Path) -> str:
    text = (log / f"{TOPIC}-0" / "partition.metadata").read_text()
    return text.partition("topic_id: ")[2].strip()


# --- retention


def test_retention_never_deletes_what_was_not_shipped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    options = {"segment_bytes": "1KiB", "retention_bytes": 0}
    with open_log(path, **options) as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(20)))
    sink = ScriptedSink(lambda wire: Verdict.REFUSED if wire.base_sequence >= 30 else None)
    ship(path, sink)
    with open_log(path, **options) as directory:
        directory.retain()
        start = directory.partition(TOPIC, 0).log_start_offset
        assert 0 < start <= 30
        assert any("not shipped" in finding for finding in directory.findings)
    sink.script = lambda wire: None  # noqa: ARG005
    ship(path, sink)
    assert sink.values(TOPIC) == values(20)
    with open_log(path, **options) as directory:
        directory.retain()
        assert directory.partition(TOPIC, 0).log_start_offset > 30


def test_retention_keeps_a_topic_that_no_shipper_has_met_yet_and_no_topic_that_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    options = {"segment_bytes": "1KiB", "retention_bytes": 0}
    with open_log(path, **options) as directory:
        ship(path, MemorySink(), topics=["hops"])
        for topic in ("hops", TOPIC):
            directory.create_topic(topic)
            offsets(directory.partition(topic, 0).append(make_batches(20)))
        directory.retain()
        assert directory.partition("hops", 0).log_start_offset == 0
        assert directory.partition(TOPIC, 0).log_start_offset > 0
        forget(str(path))
        directory.retain()
        assert directory.partition("hops", 0).log_start_offset > 0


def test_damaged_positions_are_reported_and_retention_deletes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    options = {"segment_bytes": "1KiB", "retention_bytes": 0}
    with open_log(path, **options) as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(20)))
        sink = MemorySink()
        ship(path, sink)
        file = path / ".shipping" / "positions"
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(lines[0] + lines[1].replace(b"flights", b"flaghts") + b"".join(lines[2:]))
        with pytest.raises(LogError, match="--forget"):
            ship(path, sink)
        assert directory.retain() == 0
        assert any("is damaged" in finding for finding in directory.findings)


# --- the file of positions


def test_positions_that_were_removed_are_recreated_once_the_disk_takes_them(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = MemorySink()

    def fail(_directory: str) -> None:
        raise OSError(errno.ENOSPC, "no room for a lock")

    with Shipper(log, sink) as shipper:
        assert shipper.open()
        shutil.rmtree(log / ".shipping")
        with monkeypatch.context() as patch:
            patch.setattr("shmaccum.sender.shipping.shipper.shipping_lock", fail)
            shipper._checked_ns = 0
            shipper.run_once(0)
        assert any("no room for a lock" in message for message in caplog.messages)
        shipper._checked_ns = 0
        shipper.run(follow=False)
    assert sink.values(TOPIC) == values(20)
    assert read_shipped(str(log)).positions[PLACE].offset == 60


def test_a_torn_line_is_cut_and_every_prefix_of_the_file_is_read(log: Path) -> None:
    ship(log, MemorySink())
    file = log / ".shipping" / "positions"
    content = file.read_bytes()
    found = set()
    for size in range(len(content) + 1):
        file.write_bytes(content[:size])
        shipped = read_shipped(str(log))
        assert shipped.size <= size
        found.add(shipped.positions[PLACE].offset if shipped.positions else None)
    assert found == {None, 0, 3, 18, 33, 48, 60}  # the first batch of an epoch alone, then five at a time


def test_a_file_that_has_grown_is_rewritten(log: Path) -> None:
    (log / ".shipping").mkdir()
    file = PositionsFile(str(log), read_shipped(str(log)), ShippedTo("memory:", "00", 7, None))
    for offset in range(DEAD_SIZE_MIN // 50):
        file.shipped.size += 50  # as if the lines were longer
        file.write({PLACE: ShippedPosition(offset)}) if offset % 100 == 0 else None
    file.write({PLACE: ShippedPosition(4711)})
    file.write({PLACE: ShippedPosition(4712)})
    file.close()
    assert (log / ".shipping" / "positions").stat().st_size < 1000
    assert read_shipped(str(log)).positions == {PLACE: ShippedPosition(4712)}


def test_sequences_wrap_as_kafkas_do() -> None:
    assert [ShippedPosition(7).sequence_at(offset) for offset in (0, 7)] == [0, 7]
    position = ShippedPosition(2**31 + 5, origin=5)
    assert [position.sequence_at(offset) for offset in (5, 2**31 + 4, 2**31 + 5)] == [0, 2**31 - 1, 0]


# --- the rate


def test_a_rate_limit_lets_a_batch_go_and_then_waits_for_its_bytes() -> None:
    limit = RateLimit(1000)
    assert limit.wait_ns(0) == 0
    limit.spend(500, 0)
    limit.spend(1000, 0)
    assert limit.wait_ns(0) == 1_500_000_000
    assert limit.wait_ns(2_000_000_000) == 0
    assert RateLimit(None).wait_ns(0) == 0


def test_a_shipper_with_a_rate_limit_ships_everything(log: Path) -> None:
    sink = MemorySink()
    ship(log, sink, rate_limit="100KiB")
    assert [record[3] for wire in sink.wire_batches(TOPIC) for record in decode_batch(wire)] == values(20)


def test_a_shipper_works_without_notifications_of_appends(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has a limited number of inotify instances."""
    monkeypatch.setattr(log_watch, "_libc", NoInotify())
    sink = MemorySink()
    ship(log, sink)
    assert sink.values(TOPIC) == values(20)


class NoInotify:
    """A C library in which inotify_init fails."""

    def inotify_init1(self, _flags: int) -> int:
        return -1

    def inotify_add_watch(self, *_arguments: object) -> int:
        return -1
