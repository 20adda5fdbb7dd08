# SPDX-License-Identifier: Apache-2.0
"""Operations in which system calls fail. Each one prepares, runs under faults, and checks its results.

An operation may raise an error or succeed. It must never leak a resource or report a false result. `settle` repeats it
without faults and checks everything.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.arena.wake_fifo import WakeFifo
from shmaccum.exceptions import ArenaPoisonedError, BufferExhaustedError, ShmaccumError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.inspection import check_log
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.reader import LogReader
from shmaccum.observe.inspection import export
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.pump import PumpResult, PumpRunner
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.memory import MemorySink
from tests.faults.broker import BrokerProcess
from tests.support.accumulator import Accumulator
from tests.support.arenas import check_idle, deliver_all
from tests.support.segment_log import TOPIC, make_batches, open_log, partition_folder

SMALL: dict[str, Any] = {
    "buffer_memory": "32KiB",
    "batch_size": "4KiB",
    "process_count": 4,
    "waiter_count": 4,
    "topic_count": 4,
    "partition_count": 8,
    "completion_count": 16,
}
_numbers = itertools.count()


class Operation:
    """An operation of a user. Each instance is used for one fault.

    Attributes:
        keeps: the suffixes of files that may stay open after a failure, because they will be used again.
    """

    keeps: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name: str | Path = f"shmaccum-test-{os.getpid()}-{next(_numbers)}"

    @classmethod
    def begin(cls) -> None:
        """Create what all instances use, before the first fault of the process."""

    @classmethod
    def end(cls) -> None:
        """Remove what `begin` created."""

    def prepare(self) -> None:
        """Create the initial state, without faults."""

    def run(self) -> None:
        """Run the operation under faults."""
        raise NotImplementedError

    def check_failed(self) -> None:
        """Check the state right after `run` raised."""

    def settle(self) -> None:
        """If it failed, repeat it without faults. Then check and remove everything."""
        raise NotImplementedError


def arena_end(arena: Arena, expected: Sequence[bytes]) -> None:
    """Deliver everything. The values must be exactly *expected*, and the arena must be valid and empty afterwards."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        delivered = sorted(deliver_all(accumulator), key=repr)
        assert delivered == sorted(expected), f"{delivered} were delivered, {expected} were appended"
        accumulator.maintain()
    check_idle(arena)
    assert arena.native.state_counts()["FREE"] == arena.geometry["slot_count"]
    arena.close()
    Arena.remove(arena.name)


# --- arenas


class Create(Operation):
    arena: Arena | None = None
    options: ClassVar[dict[str, Any]] = SMALL

    def run(self) -> None:
        self.arena = Arena.create(self.name, **self.options)

    def check_failed(self) -> None:
        assert not Arena.exists(self.name), "a creation that failed has left its arena"

    def settle(self) -> None:
        if self.arena is None:
            self.run()
        assert self.arena is not None
        with Accumulator(self.arena) as accumulator:
            accumulator.append("topic", 0, None, None, b"value")
        arena_end(self.arena, [b"value"])


class CreateFile(Create):
    options: ClassVar[dict[str, Any]] = {**SMALL, "durability": "sync"}

    def prepare(self) -> None:
        self.name = self.folder / "file.arena"


class Attach(Operation):
    """Attach to an arena that another process uses."""

    arena: Arena | None = None
    first: Arena

    def prepare(self) -> None:
        self.first = Arena.create(self.name, **SMALL)
        with Accumulator(self.first) as accumulator:
            accumulator.append("topic", 0, None, None, b"value")

    def run(self) -> None:
        self.arena = Arena.attach(self.name)

    def settle(self) -> None:
        if self.arena is None:
            self.run()
        assert self.arena is not None
        self.first.close()
        arena_end(self.arena, [b"value"])


class Recover(Operation):
    """Attach first to an arena that all processes left, with records in it."""

    arena: Arena | None = None

    def prepare(self) -> None:
        self.name = self.folder / "left.arena"
        with Arena.create(self.name, **SMALL) as arena, Accumulator(arena) as accumulator:
            for partition in range(3):
                accumulator.append("topic", partition, None, None, b"%d" % partition)

    def run(self) -> None:
        self.arena = Arena.attach(self.name)

    def settle(self) -> None:
        if self.arena is None:
            self.run()
        assert self.arena is not None
        arena_end(self.arena, [b"0", b"1", b"2"])


class Export(Operation):
    """``recover --export`` copies waiting records to segments."""

    def prepare(self) -> None:
        with Arena.create(self.name, **SMALL) as arena, Accumulator(arena) as accumulator:
            for partition in range(2):
                accumulator.append("topic", partition, None, None, b"%d" % partition)

    def run(self) -> None:
        with Arena.open_read_only(self.name) as arena:
            export(arena, self.folder / "copy")

    def settle(self) -> None:
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        self.run()
        assert len(list((self.folder / "copy").rglob("*.log"))) == 2
        arena_end(Arena.attach(self.name), [b"0", b"1"])


# --- records


class Append(Operation):
    """First batches of partitions, a record larger than a batch, and a wait that fails."""

    def prepare(self) -> None:
        self.arena = Arena.create(self.name, **SMALL)
        self.producer = Producer(self.arena, max_block_ms=20)
        self.values = [b"first", b"x" * 6000, b"second", *(b"%d" % i + b"." * 3900 for i in range(8))]
        self.acknowledged: list[bytes] = []
        self.arena.native.set_topic_partition_count("topic", 3)

    def run(self) -> None:
        for index, value in enumerate(self.values):
            with contextlib.suppress(BufferExhaustedError):
                self.producer.send("topic", value, partition=index % 3)
                self.acknowledged.append(value)

    def settle(self) -> None:
        assert self.acknowledged == self.values[: len(self.acknowledged)] or len(self.acknowledged) >= 3
        with Accumulator(self.arena) as sender:
            sender.become_sender()
            assert sorted(deliver_all(sender), key=repr) == sorted(self.acknowledged)
            self.producer.send("topic", b"again", partition=0)
            assert deliver_all(sender) == [b"again"]
        self.producer.close()
        arena_end(self.arena, [])


class ChildRefusedError(ShmaccumError):
    """A forked child got an error with a remedy."""


class Fork(Operation):
    """A forked child appends with an inherited producer, which attaches again."""

    REFUSED: ClassVar[int] = 1
    was_appended = False

    def prepare(self) -> None:
        self.arena = Arena.create(self.name, **SMALL)
        self.producer = Accumulator(self.arena)
        self.producer.append("topic", 0, None, None, b"parent")

    def run(self) -> None:
        child = os.fork()
        if child == 0:
            os._exit(self._append())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == self.REFUSED:
            raise ChildRefusedError("the child of a fork could not append")
        assert code == 0, f"the child ended with {code}"
        self.was_appended = True

    def _append(self) -> int:
        try:
            self.producer.append("topic", 0, None, None, b"child")
        except (OSError, MemoryError, ShmaccumError):
            return self.REFUSED
        except BaseException:  # noqa: BLE001 - it is the child's last word
            traceback.print_exc()
            return self.REFUSED + 1
        return 0

    def settle(self) -> None:
        if not self.was_appended:
            self.run()
        self.producer.close()
        arena_end(self.arena, [b"parent", b"child"])


class Deliver(Operation):
    """A sender takes the role, drains, completes and leaves."""

    def prepare(self) -> None:
        self.arena = Arena.create(self.name, **SMALL)
        self.delivered: list[bytes | None] = []
        with Accumulator(self.arena) as accumulator:
            for partition in range(3):
                accumulator.append("topic", partition, None, None, b"%d" % partition)

    def run(self) -> None:
        with Accumulator(self.arena) as accumulator:
            accumulator.become_sender()
            self._drain(accumulator)
            accumulator.maintain()

    def _drain(self, accumulator: Accumulator) -> None:
        partitions, _ = accumulator.ready(0, True)
        for batch in accumulator.drain(partitions, 2**31)[0]:
            values = [record[3] for record in batch.decode()]
            accumulator.complete(batch, BatchResult.SUCCEEDED)
            self.delivered += values

    def settle(self) -> None:
        self.run()
        assert sorted(self.delivered, key=repr) == [b"0", b"1", b"2"]
        arena_end(self.arena, [])


class Send(Operation):
    """A whole sender with its wake FIFO, from its start to its end."""

    def prepare(self) -> None:
        self.arena = Arena.create(self.name, **SMALL)
        self.sink = MemorySink(partitions=3)
        with Accumulator(self.arena) as accumulator:
            for partition in range(3):
                accumulator.append("topic", partition, None, None, b"%d" % partition)

    def run(self) -> None:
        with Sender(self.arena, self.sink, linger_ms=0) as sender:
            sender.open()
            sender.stop(5)
            while not sender._is_over():
                sender.run_once()

    def settle(self) -> None:
        self.run()
        delivered = [record.value for partition in range(3) for record in self.sink.records("topic", partition)]
        assert delivered == [b"0", b"1", b"2"], delivered
        arena_end(self.arena, [])


class MakeWakeFifo(Operation):
    wake_fifo: WakeFifo | None = None

    def prepare(self) -> None:
        self.name = self.folder / "bell.arena"
        self.arena = Arena.create(self.name, mode=0o600, **SMALL)

    def run(self) -> None:
        self.wake_fifo = WakeFifo(self.arena)

    def settle(self) -> None:
        if self.wake_fifo is None:
            self.run()
        assert self.wake_fifo is not None
        assert os.stat(self.wake_fifo.path).st_mode & 0o777 == 0o600
        self.wake_fifo.wake()
        assert self.wake_fifo.clear()
        self.wake_fifo.close()
        arena_end(self.arena, [])


class Ring(Operation):
    """A producer that wakes a sleeping sender. Its record is already in the arena, so it must not raise."""

    keeps = (".bell",)

    def prepare(self) -> None:
        self.arena = Arena.create(self.name, **SMALL)
        self.wake_fifo = WakeFifo(self.arena)
        self.producer = Accumulator(self.arena)
        self.sender = Accumulator(self.arena)
        self.sender.become_sender()
        self.arena.native.set_sender_asleep(True)

    def run(self) -> None:
        self.producer.append("topic", 0, None, None, b"value")

    def check_failed(self) -> None:
        raise AssertionError("a record that was appended was said to be none")

    def settle(self) -> None:
        assert deliver_all(self.sender) == [b"value"]
        self.producer.close()
        self.sender.close()
        self.wake_fifo.close()
        arena_end(self.arena, [])


class Sync(Operation):
    """Group commit. After a failed sync, the arena is poisoned, because the disk is no longer trusted."""

    def prepare(self) -> None:
        self.name = self.folder / "sync.arena"
        self.arena = Arena.create(self.name, durability="sync", **SMALL)
        self.accumulator = Accumulator(self.arena)

    def run(self) -> None:
        self.accumulator.append("topic", 0, None, None, b"value")

    def settle(self) -> None:
        poisoned = self.arena.native.poisoned
        if poisoned is not None:
            with contextlib.suppress(ArenaPoisonedError):
                self.run()
                raise AssertionError("a poisoned arena took a record")
        self.accumulator.close()
        with Accumulator(self.arena) as sender:
            sender.become_sender()
            assert deliver_all(sender) == [b"value"]
        self.arena.close()
        Arena.remove(self.name)


# --- logs


class LogRefusalError(ShmaccumError):
    """The sink would retry the batch."""


class LogAppend(Operation):
    """Batches that roll segments, with their indexes and snapshots, forced to disk."""

    keeps = (".log", ".index", ".timeindex")
    options: ClassVar[dict[str, Any]] = {"segment_bytes": 1000, "index_interval_bytes": 300, "sync": "batch"}
    log: LogDirectory

    def prepare(self) -> None:
        self.path = self.folder / "log"
        self.batches = make_batches(6)
        self.log = open_log(self.path, **self.options)
        self.partition = self.log.partition(TOPIC, 0)
        self.taken = 0

    def run(self) -> None:
        for batch in self.batches:
            (outcome,) = self.partition.append([batch])
            if isinstance(outcome, Rejection):
                raise LogRefusalError(outcome.message)
            assert outcome == 3 * self.taken
            self.taken += 1

    def settle(self) -> None:
        with contextlib.suppress(OSError, ShmaccumError):
            self.log.close()
        before = read_values(self.path)
        assert len(before) >= 3 * self.taken, "a batch that was acknowledged is not in the log"
        with open_log(self.path, **self.options) as log:
            partition = log.partition(TOPIC, 0)
            for batch in self.batches:
                partition.append([batch])
        expect_whole_log(self.path, len(self.batches))


def read_values(path: Path) -> list[bytes | None]:
    return [record.value for record in LogReader(path).partition(TOPIC, 0).records()]


def expect_whole_log(path: Path, batch_count: int) -> None:
    values = read_values(path)
    expected = [b"%08d" % number for number in range(3 * batch_count)]
    assert [value[:8] for value in values if value is not None] == expected, values
    assert check_log(path) == []


class OrdinaryRounds(Operation):
    """Rounds of a sender that delivers ordinary batches in C, after a first batch."""

    topic = TOPIC
    sink_options: ClassVar[dict[str, Any]] = {}
    sender_options: ClassVar[dict[str, Any]] = {"linger_ms": 0}
    values: ClassVar[list[bytes]] = [b"%d" % number * 1500 for number in range(5)]

    @property
    def uri(self) -> str:
        """The sink."""
        raise NotImplementedError

    def delivered(self) -> list[bytes | None]:
        """Return the sink's values in order."""
        raise NotImplementedError

    def prepare(self) -> None:
        self.arena = Arena.create(self.name, **SMALL)
        self.sender = Sender(self.arena, open_sink(self.uri, **self.sink_options), **self.sender_options)
        self.sender.open()
        self.accumulator = Accumulator(self.arena)
        self._append(b"first")
        self._deliver()
        for value in self.values:
            self._append(value)

    def _append(self, value: bytes) -> None:
        self.accumulator.append(self.topic, 0, 1000, None, value)

    def _deliver(self) -> None:
        """Run rounds until all are delivered, since a failed round is retried after a pause."""
        while self.arena.statistics().slots["FREE"] < self.arena.geometry["slot_count"]:
            self.sender.run_once()

    def run(self) -> None:
        self.sender.run_once()
        self.sender.run_once()

    def settle(self) -> None:
        self._deliver()
        self.sender.close()
        self.accumulator.close()
        assert self.delivered() == [b"first", *self.values]
        arena_end(self.arena, [])


class LogRounds(OrdinaryRounds):
    """Rounds to a log, with index entries and a roll."""

    keeps = (".log", ".index", ".timeindex")
    sink_options: ClassVar[dict[str, Any]] = {"segment_bytes": 5000, "index_interval_bytes": 1}

    @property
    def uri(self) -> str:
        return f"log:{self.folder / 'log'}"

    def delivered(self) -> list[bytes | None]:
        assert check_log(self.folder / "log") == []
        return read_values(self.folder / "log")


class LogRecover(Operation):
    """Opens a log that was not closed, with a torn tail and without one of its indexes."""

    log: LogDirectory | None = None
    options: ClassVar[dict[str, Any]] = {"segment_bytes": 1000, "index_interval_bytes": 300}

    def prepare(self) -> None:
        self.path = self.folder / "log"
        writer = open_log(self.folder / "written", **self.options)
        partition = writer.partition(TOPIC, 0)
        for batch in make_batches(6):
            partition.append([batch])
        shutil.copytree(self.folder / "written", self.path)
        writer.close()
        shutil.rmtree(self.folder / "written")
        files = sorted(partition_folder(self.path).glob("*.log"))
        with files[-1].open("ab") as torn:
            torn.write(make_batches(1, first=6)[0].wire[:-10])
        files[0].with_suffix(".index").unlink(missing_ok=True)

    def run(self) -> None:
        self.log = open_log(self.path, **self.options)
        self.log.partition(TOPIC, 0)

    def check_failed(self) -> None:
        if self.log is not None:
            self.log.abandon()

    def settle(self) -> None:
        if self.log is not None:
            self.log.close()
        with open_log(self.path, **self.options) as log:
            log.partition(TOPIC, 0)
        expect_whole_log(self.path, 6)


class LogRead(Operation):
    def prepare(self) -> None:
        self.path = self.folder / "log"
        self.values: list[bytes | None] = []
        with open_log(self.path, segment_bytes=1000) as log:
            for batch in make_batches(4):
                log.partition(TOPIC, 0).append([batch])

    def run(self) -> None:
        self.values = read_values(self.path)

    def settle(self) -> None:
        assert self.values in ([], read_values(self.path)), "a reader left records out and said nothing"
        expect_whole_log(self.path, 4)


# --- brokers


class KafkaRounds(OrdinaryRounds):
    """Rounds to Kafka. The broker is a process without faults."""

    keeps = ("]",)
    is_pumped: ClassVar[bool] = True
    sink_options: ClassVar[dict[str, Any]] = {"reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 1}
    sender_options: ClassVar[dict[str, Any]] = {"linger_ms": 0, "retry_backoff_ms": 1}
    broker: ClassVar[BrokerProcess]
    run_count: ClassVar[int] = 0
    """The runs of the pump in all instances."""

    @classmethod
    def begin(cls) -> None:
        cls.broker = BrokerProcess()
        if not cls.is_pumped:
            PumpRunner.may_run = False  # type: ignore[method-assign, assignment]
        run = PumpRunner.run

        def note(*arguments: Any, **options: Any) -> PumpResult | None:
            carried = run(*arguments, **options)
            cls.run_count += carried is not None and carried.batch_count > 0
            return carried

        PumpRunner.run = note  # type: ignore[method-assign]

    @classmethod
    def end(cls) -> None:
        cls.broker.close()
        assert (cls.run_count > 0) is cls.is_pumped, f"{cls.run_count} calls of the pump sent something"

    @property
    def uri(self) -> str:
        return f"kafka:{self.broker.bootstrap}"

    def prepare(self) -> None:
        self.topic = f"topic-{next(_numbers)}"
        super().prepare()

    def delivered(self) -> list[bytes | None]:
        return self.broker.values(self.topic)


class KafkaRoundsOfPython(KafkaRounds):
    """Rounds to Kafka without the pump."""

    is_pumped = False


OPERATIONS: dict[str, type[Operation]] = {
    "create": Create,
    "create-file": CreateFile,
    "attach": Attach,
    "recover": Recover,
    "export": Export,
    "append": Append,
    "fork": Fork,
    "deliver": Deliver,
    "send": Send,
    "wake_fifo": MakeWakeFifo,
    "ring": Ring,
    "sync": Sync,
    "log-append": LogAppend,
    "log-rounds": LogRounds,
    "log-recover": LogRecover,
    "log-read": LogRead,
    "kafka-rounds": KafkaRounds,
    "kafka-rounds-of-python": KafkaRoundsOfPython,
}
