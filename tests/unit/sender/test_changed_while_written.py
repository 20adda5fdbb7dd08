# SPDX-License-Identifier: Apache-2.0
"""A batch that another process changes between its checksum and the end of its write is never acknowledged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.common.format.batch_header import CRC_START, changed_header, crc_problem, read_header
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import LogSinkOptions
from shmaccum.log.files import LogReader, check_log
from shmaccum.log.files.directory import LogDirectory
from shmaccum.sender import Sender
from shmaccum.sender.sinks import open_sink
from tests.support.accumulator import Accumulator
from tests.support.segment_log import make_batch

TOPIC = "flights"
VALUE = b"the record that is struck" * 8
START_MS = 1_700_000_000_000


class Changer:
    """Changes one byte of the arena at the first write of a batch with the value."""

    def __init__(self, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
        self.strikes = 0
        self._path = f"/dev/shm/{arena.name}"
        self._pwritev = os.pwritev
        monkeypatch.setattr(os, "pwritev", self._write)

    def _write(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        if not self.strikes and any(VALUE in bytes(buffer) for buffer in buffers):
            self.strikes += 1
            with open(self._path, "r+b") as file:
                at = file.read().index(VALUE)
                file.seek(at + 5)
                file.write(b"X")
        return self._pwritev(descriptor, buffers, position)


def struck(arena: Arena, path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, **options: Any) -> list[Any]:
    """Return the results of the changed record, of the one before and of the one after it."""
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0, **options) as sender:
        sender.open()
        striker = Changer(arena, monkeypatch)
        tokens = [
            accumulator.append(TOPIC, partition, START_MS, None, value)
            for partition, value in ((0, b"before"), (1, VALUE), (2, b"after"))
        ]
        deadline_s = time.monotonic() + 60
        while any(accumulator.find(token) is None for token in tokens):
            assert time.monotonic() < deadline_s
            sender.run_once()
        assert striker.strikes == 1
        monkeypatch.undo()
        assert sender.metrics()["batch-quarantine-total"] == 1
        found = [accumulator.find(token) for token in tokens]
    assert check_log(path) == []
    return [result.result for result in found if result is not None]


def values_in(path: Path) -> list[bytes]:
    reader = LogReader(path)
    partitions = (reader.partition(TOPIC, number) for number in reader.partitions(TOPIC))
    return [record.value or b"" for partition in partitions for record in partition.records(0)]


@pytest.fixture
def big(arena_name: str) -> Any:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", partition_count=8) as arena:
        arena.declare_topic(TOPIC, 3)
        yield arena
    Arena.remove(arena_name)


@pytest.mark.parametrize(
    "options",
    [
        {"verify_written": "true"},
        {"sync": "batch"},
        {"verify_written": "true", "message_timestamp_type": "LogAppendTime"},
    ],
)
def test_the_log_has_no_changed_batch(
    big: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    sink: Any = open_sink(f"log:{tmp_path}/log", partitions=3, **options)
    results = struck(big, tmp_path / "log", monkeypatch, sink)
    assert results == [BatchResult.SUCCEEDED, BatchResult.CORRUPT, BatchResult.SUCCEEDED]
    assert big.statistics().slots["BAD"] == 1
    assert sorted(values_in(tmp_path / "log")) == [b"after", b"before"]


def test_the_crc_of_a_new_header_is_computed_from_the_former_crc() -> None:
    wire = make_batch([b"a", b"b"]).wire
    header = read_header(wire)
    changed = header._replace(attributes=8, max_timestamp_ms=7, producer_id=3)
    content = changed_header(header, changed) + wire[61:]
    assert crc_problem(read_header(content), memoryview(content)) is None
    damaged = memoryview(content[:-1] + b"!")
    assert crc_problem(read_header(damaged), damaged) is not None
    assert CRC_START == 21


class Shared:
    """A batch whose memory another process writes."""

    def __init__(self, number: int, *, is_shared: bool) -> None:
        made = make_batch([b"%d" % number] * 3)
        self.content = bytearray(made.wire)
        header = read_header(made.wire)
        self.shared_crc = header.crc if is_shared else None
        self.record_count, self.size = 3, len(self.content)
        self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.max_timestamp_ms = header.max_timestamp_ms

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        return (memoryview(self.content),)


@pytest.mark.parametrize("place", [16, 17, 21, 40, 61, -1])
@pytest.mark.parametrize("struck_number", [0, 1, 2])
def test_batches_before_the_changed_one_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, struck_number: int
) -> None:
    batches = [Shared(number, is_shared=True) for number in range(3)]
    pwritev = os.pwritev
    strike: list[Callable[[], None]] = [lambda: batches[struck_number].content.__setitem__(place, 0xEE)]

    def write(descriptor: int, buffers: Sequence[Any], position: int) -> int:
        if strike:
            strike.pop()()
        return pwritev(descriptor, buffers, position)

    with LogDirectory(tmp_path, LogSinkOptions(verify_written="true")) as directory:
        directory.create_topic(TOPIC)
        log = directory.partition(*TopicPartition(TOPIC, 0))
        monkeypatch.setattr(os, "pwritev", write)
        outcomes = log.append(batches)
        monkeypatch.undo()
        assert [isinstance(outcome, int) for outcome in outcomes] == [number < struck_number for number in range(3)]
        failed = outcomes[struck_number]
        assert not isinstance(failed, int)
        assert "changed while it was written" in failed.message
        assert failed.is_retriable
        assert log.log_end_offset == 3 * struck_number
        assert log.append([Shared(9, is_shared=False)]) == [3 * struck_number]
    assert check_log(tmp_path) == []
    assert values_in(tmp_path) == [b"%d" % number for number in range(struck_number) for _ in range(3)] + [b"9"] * 3
