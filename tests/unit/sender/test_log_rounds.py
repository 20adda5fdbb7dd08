# SPDX-License-Identifier: Apache-2.0
"""C code appends the ordinary batches of a log sink, with the same bytes and safety as the writer in Python."""

from __future__ import annotations

import functools
import itertools
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError
from shmaccum.log.files import LogReader, check_log
from shmaccum.log.files.log_batch import LogBatch
from shmaccum.sender import Sender
from shmaccum.sender.sinks.log import LogSink
from shmaccum.sender.sinks.sink import Ack, WireBatch
from tests.support.accumulator import Accumulator
from tests.support.system_calls import dies_at_system_call

TOPIC = "flights"
PARTITIONS = 3
START_MS = 1_700_000_000_000
PADDING = b"." * 80
Record = tuple[int, int, bytes]


class CountingSink(LogSink):
    """A log that counts the batches passed to `deliver`."""

    delivered_count = 0

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        self.delivered_count += len(batches)
        return super().write(batches)


class PythonSink(LogSink):
    """A log whose batches are all passed to `deliver`."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, {} if name == "log_ends" else value)

    def _open_end(self, partition_index: int, log: Any) -> None:
        """Do nothing, so that the sender gets no log end."""


def some_records(chance: random.Random, count: int) -> list[Record]:
    """Return mostly similar records, with some large, some late and some far in the future."""
    now_ms, records = START_MS, []
    for number in range(count):
        now_ms += chance.choice([0, 1, 1, 5, chance.choice([0, 0, 100_000])])
        size = chance.choice([10, 100, 100, 300, chance.choice([300, 3000, 9000])])
        time_ms = now_ms - chance.choice([0, 0, 0, 50])
        records.append((chance.randrange(PARTITIONS), time_ms, b"%08d" % number + b"." * size))
    return records


def deliver_all(sender: Sender, arena: Arena) -> None:
    """Run rounds until all buffers are free."""
    for _ in range(1000):
        sender.run_once()
        if arena.statistics().slots["FREE"] == arena.geometry["slot_count"]:
            return
    raise AssertionError("batches are left after 1,000 rounds")


def append(accumulator: Accumulator, records: Sequence[Record]) -> None:
    for partition, time_ms, value in records:
        accumulator.append(TOPIC, partition, time_ms, None, value, max_block_ms=0)


def append_in_any_case(accumulator: Accumulator, sender: Sender, record: Record) -> None:
    try:
        append(accumulator, [record])
    except BufferExhaustedError:
        deliver_all(sender, accumulator.arena)
        append(accumulator, [record])


def appended_in_turns(arena: Arena, sink: LogSink, records: Sequence[Record], steps: Sequence[int]) -> None:
    """Append a few records and run rounds of the sender, in turns."""
    left = iter(records)
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        for step in itertools.cycle(steps):
            turn = list(itertools.islice(left, step))
            if not turn:
                return
            for record in turn:
                append_in_any_case(accumulator, sender, record)
            deliver_all(sender, arena)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of the topic's folders, without the topic's random id."""
    found = (path for path in folder.glob(f"{TOPIC}-*/*") if path.is_file() and path.name != "partition.metadata")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def values_in(folder: Path) -> list[bytes]:
    return sorted(bytes(record.value or b"") for batch in batches_in(folder) for record in batch.records())


def batches_in(folder: Path) -> list[LogBatch]:
    reader = LogReader(folder)
    return [batch for place in reader.topic_partitions() for batch in reader.partition(*place).batches()]


@pytest.fixture
def roomy(arena_name: str) -> Iterator[Arena]:
    """An arena of 64 buffers of 4 KiB, for records of up to 12 KiB."""
    options: dict[str, Any] = {"buffer_memory": "256KiB", "batch_size": "4KiB", "max_request_size": "12KiB"}
    with Arena.create(arena_name, **options) as arena:
        yield arena


OPTIONS: list[dict[str, Any]] = [
    {},
    {"segment_bytes": 40_000, "index_interval_bytes": 1},
    {"segment_ms": 50_000, "index_interval_bytes": 5000},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["defaults", "small segments", "short segments"])
def test_both_writers_write_the_same_bytes(
    tmp_path: Path, roomy: Arena, options: dict[str, Any], seeded: Callable[[], random.Random]
) -> None:
    chance = seeded()
    records = some_records(chance, 400)
    steps = [chance.choice([1, 3, 20, 90]) for _ in range(20)]
    logs = {"native": CountingSink, "python": PythonSink}
    sinks = {name: new(str(tmp_path / name), partitions=PARTITIONS, **options) for name, new in logs.items()}
    for sink in sinks.values():
        appended_in_turns(roomy, sink, records, steps)
    assert files_of(tmp_path / "native") == files_of(tmp_path / "python")
    assert values_in(tmp_path / "native") == sorted(value for _, _, value in records)
    native = sinks["native"]
    assert isinstance(native, CountingSink)
    assert native.delivered_count < len(batches_in(tmp_path / "native")), "not one batch was appended in C"


def test_all_batches_but_the_first_of_a_partition_are_appended_in_c(tmp_path: Path, arena: Arena) -> None:
    sink = CountingSink(str(tmp_path / "log"))
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        tokens = []
        for number in range(20):
            tokens.append(accumulator.append(TOPIC, 0, START_MS, None, b"%03d" % number))
            deliver_all(sender, arena)
        assert sink.delivered_count == 1
        results = [accumulator.find(token) for token in tokens[-16:]]
        assert [result.base_offset for result in results if result] == list(range(4, 20))
        metrics = sender.metrics()
        assert metrics["record-send-total"] == metrics[f"record-send-total.topic-{TOPIC}"] == 20
        assert metrics["batch-size-max"] > 0
        assert metrics["request-latency-max"] >= 0
    assert values_in(tmp_path / "log") == [b"%03d" % number for number in range(20)]


def full_of_one_partition(arena: Arena, tmp_path: Path, sink: LogSink) -> list[int]:
    """Fill an arena once the partition has a log end. Return the number of batches of each later round.

    The clock is stopped, so no call ends early on a slow machine.
    """
    counts = []
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        append(accumulator, [(0, START_MS, b"first")])
        deliver_all(sender, arena)
        arena.native.set_manual_clock(time.monotonic_ns())
        append(accumulator, [(0, START_MS, b"%03d" % number * 1000) for number in range(100)])
        while arena.statistics().slots["FREE"] < arena.geometry["slot_count"]:
            counts.append(sender.run_once())
    expected = [b"first", *(b"%03d" % number * 1000 for number in range(100))]
    assert [record.value for batch in batches_in(tmp_path / "log") for record in batch.records()] == expected
    return counts


@pytest.fixture
def long_queue(arena_name: str) -> Iterator[Arena]:
    """An arena of 128 buffers, of which 100 have a batch of one record each."""
    with Arena.create(arena_name, buffer_memory="512KiB", batch_size="4KiB") as arena:
        yield arena


def test_a_round_takes_more_of_a_partition_than_may_be_in_flight_at_once(tmp_path: Path, long_queue: Arena) -> None:
    sink = CountingSink(str(tmp_path / "log"))
    counts = full_of_one_partition(long_queue, tmp_path, sink)
    assert max(counts) > sink.limits.in_flight_max
    assert sink.delivered_count == 1


def test_passes_of_a_round_end_where_the_delivery_has_its_size(tmp_path: Path, long_queue: Arena) -> None:
    sink = CountingSink(str(tmp_path / "log"))
    sink.limits = sink.limits._replace(request_size_max=40 * 4096)
    counts = full_of_one_partition(long_queue, tmp_path, sink)
    assert sink.limits.in_flight_max < max(counts) <= 40 * 4096 // 3000 + 1


def test_a_segment_that_ends_between_two_passes_is_rolled_in_order(tmp_path: Path, long_queue: Arena) -> None:
    sink = CountingSink(str(tmp_path / "log"), segment_bytes=40 * 3100)
    full_of_one_partition(long_queue, tmp_path, sink)
    assert sink.delivered_count > 1
    assert len(list((tmp_path / "log" / f"{TOPIC}-0").glob("*.log"))) == 3
    assert check_log(tmp_path / "log") == []


def test_a_damaged_batch_is_quarantined_and_those_around_it_are_delivered(
    tmp_path: Path, arena_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = CountingSink(str(tmp_path / "log"))
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB") as arena:
        with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
            sender.open()
            append(accumulator, [(0, START_MS, b"first")])
            deliver_all(sender, arena)
            tokens = [accumulator.append(TOPIC, 0, START_MS, None, b"%d" % number * 3000) for number in range(4)]
            scribble(arena, b"2" * 3000)
            for _ in range(5):
                sender.run_once()
            results = [accumulator.find(token) for token in tokens]
        assert [result.result.name for result in results if result] == [
            "SUCCEEDED",
            "SUCCEEDED",
            "CORRUPT",
            "SUCCEEDED",
        ]
        assert arena.statistics().slots["BAD"] == 1
    Arena.remove(arena_name)
    assert [value[:1] for value in values_in(tmp_path / "log")] == [b"0", b"1", b"3", b"f"]
    assert "is quarantined in slot" in caplog.text


def scribble(arena: Arena, value: bytes) -> None:
    """Change a byte of a record in the arena."""
    with open(f"/dev/shm/{arena.name}", "r+b") as file:
        content = file.read()
        file.seek(content.index(value) + 5)
        file.write(b"X")


# --- a medium that fails


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Limit the size of this process's files: one write is short, and the next one fails."""
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, former)


def test_a_file_that_takes_half_of_a_write_keeps_whole_batches_and_loses_none(tmp_path: Path, arena: Arena) -> None:
    sink = CountingSink(str(tmp_path / "log"))
    options: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 0, "retry_backoff_max_ms": 0}
    with Accumulator(arena) as accumulator, Sender(arena, sink, **options) as sender:
        sender.open()
        append(accumulator, [(0, START_MS, b"first")])
        deliver_all(sender, arena)
        append(accumulator, [(0, START_MS, b"%d" % number * 3000) for number in range(8)])
        with files_end_at(10_000):
            sender.run_once()
            (path,) = (tmp_path / "log" / f"{TOPIC}-0").glob("*.log")
            assert path.stat().st_size == pytest.approx(100 + 3 * 3070, abs=100), "cut to the last whole batch"
            assert sink.outage is None  # EFBIG is a limit of one file
        deliver_all(sender, arena)
    assert [value[:1] for value in values_in(tmp_path / "log")] == [b"%d" % number for number in range(8)] + [b"f"]
    assert check_log(tmp_path / "log") == []


def test_an_index_that_cannot_grow_costs_no_batch(
    tmp_path: Path, arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    sink = CountingSink(str(tmp_path / "log"), index_interval_bytes=1)
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        append(accumulator, [(0, START_MS, b"first")])
        deliver_all(sender, arena)
        log = sink.directory.partition(TOPIC, 0)
        index = log._active.offset_index
        writable, read_only = index.descriptor, os.open(index.path, os.O_RDONLY)
        index.descriptor = read_only
        append(accumulator, [(0, START_MS + 1, b"second")])
        deliver_all(sender, arena)
        index.descriptor = writable
        os.close(read_only)
        append(accumulator, [(0, START_MS + 2, b"third")])
        deliver_all(sender, arena)
    assert sink.delivered_count == 1
    assert caplog.text.count("no index entries were written, so look-ups take longer") == 1
    assert values_in(tmp_path / "log") == [b"first", b"second", b"third"]


# --- a log end that was closed


def test_a_log_that_rolled_continues_in_the_next_segment(tmp_path: Path, arena: Arena) -> None:
    sink = CountingSink(str(tmp_path / "log"))
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        for number in range(6):
            append(accumulator, [(0, START_MS, b"%d" % number)])
            deliver_all(sender, arena)
            if number == 2:
                sink.directory.partition(TOPIC, 0).roll()
    assert sink.delivered_count == 2
    assert len(list((tmp_path / "log" / f"{TOPIC}-0").glob("*.log"))) == 2
    assert values_in(tmp_path / "log") == [b"%d" % number for number in range(6)]


def test_a_topic_with_other_settings_is_written_by_them(tmp_path: Path, arena: Arena) -> None:
    sink = CountingSink(str(tmp_path / "log"))
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        for number in range(4):
            append(accumulator, [(0, START_MS, b"%d" % number)])
            deliver_all(sender, arena)
            if number == 1:
                sink.directory.change_settings(TOPIC, {"message.timestamp.type": "LogAppendTime"})
    assert sink.delivered_count == 3
    times_ms = [record.timestamp_ms for record in LogReader(tmp_path / "log").partition(TOPIC, 0).records()]
    assert times_ms[:2] == [START_MS, START_MS]
    assert min(times_ms[2:]) > START_MS


def test_every_sync_of_a_batch_is_done_by_the_writer_in_python(tmp_path: Path, arena: Arena) -> None:
    sink = CountingSink(str(tmp_path / "log"), sync="batch")
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        for number in range(3):
            append(accumulator, [(0, START_MS, b"%d" % number)])
            deliver_all(sender, arena)
        assert sink.directory.partition(TOPIC, 0).recovery_point == 3
    assert sink.delivered_count == 3
    assert not sink.log_ends


# --- deaths


def test_a_sender_that_dies_at_any_system_call_loses_and_repeats_nothing(
    tmp_path: Path, arena_name: str, seeded: Callable[[], random.Random]
) -> None:
    """After an append in Python, a child dies in the rounds in C, before about every second call."""
    steps = seeded()
    death_count = number = 0
    while True:
        number += steps.randint(1, 3)
        folder = tmp_path / f"log{number}"
        with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB") as arena:
            is_dead = dies_at_system_call(functools.partial(about_to_append, arena_name, folder), number)
            with Sender(arena, LogSink(str(folder)), linger_ms=0) as sender:
                sender.open()
                deliver_all(sender, arena)
        Arena.remove(arena_name)
        assert values_in(folder) == sorted([b"first", *(b"%d" % each * 3000 for each in range(5))])
        if not is_dead:
            break
        death_count += 1
    assert death_count > 2


def about_to_append(arena_name: str, folder: Path) -> Callable[[], object]:
    arena = Arena.attach(arena_name)
    accumulator = Accumulator(arena)
    sink = CountingSink(str(folder), index_interval_bytes=1)
    sender = Sender(arena, sink, linger_ms=0)
    sender.open()
    append(accumulator, [(0, START_MS, b"first")])
    deliver_all(sender, arena)
    append(accumulator, [(0, START_MS + each, b"%d" % each * 3000) for each in range(5)])
    return lambda: deliver_all(sender, arena)
