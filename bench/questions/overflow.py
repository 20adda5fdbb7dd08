# SPDX-License-Identifier: Apache-2.0
"""How fast does a sender spill to the overflow and deliver from it, and how long does a send take meanwhile?

The arena is full of sealed batches, and the overflow is on tmpfs. The peer of spilling is a delivery of the same
batches by the same sender to a log on tmpfs. The overflow is delivered to a broker that discards the bytes; the peer is
a delivery of as many batches from the arena to that broker. The peer of `send` beside a spilling sender is `send`
beside a sender that delivers to the log.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import sender_process, temporary_arena
from bench.parts.draining_broker import TOPIC, draining_broker
from bench.parts.segments import tmpfs_folder
from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError
from shmaccum.sender import Sender
from shmaccum.sender.sinks.kafka.sink import KafkaSink
from shmaccum.sender.sinks.log import LogSink
from tests.support.accumulator import Accumulator

SPILLED, DELIVERED = "spilling to the overflow", "delivering to a log"
SHIPPED, BROUGHT = "delivering the overflow to a broker", "delivering the arena to a broker"
SENT_BESIDE_SPILLING, SENT_BESIDE_DELIVERING = "send beside a spilling sender", "send beside a delivering sender"
BUFFER_MEMORY = 512 << 20
BATCH_SIZE = 16 << 10
PARTITION_COUNT = 16
RUN = [b"x" * 100] * 140
SEND_COUNT = 300_000
NOBODY = "kafka:127.0.0.1:1"


class AwayLog(LogSink):
    """A log that reports an outage while `is_away`."""

    is_away = False

    @property
    def outage(self) -> str | None:
        return "away" if self.is_away else super().outage

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        return [] if self.is_away else super().plan(ready)


class AwayKafka(KafkaSink):
    """A Kafka sink that reports an outage while `is_away`."""

    is_away = False

    @property
    def outage(self) -> str | None:
        return "away" if self.is_away else super().outage

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        return [] if self.is_away else super().plan(ready)


AwaySink = AwayLog | AwayKafka


@contextmanager
def _full_arena() -> Iterator[Arena]:
    with temporary_arena(buffer_memory=BUFFER_MEMORY, batch_size=BATCH_SIZE) as arena:
        with Accumulator(arena, max_block_ms=0) as accumulator, contextlib.suppress(BufferExhaustedError):
            while True:
                for partition in range(PARTITION_COUNT):
                    accumulator.append_many(TOPIC, partition, RUN)
        yield arena


def _used_count(arena: Arena) -> int:
    """Return the number of buffers that are not free."""
    return int(arena.geometry["slot_count"]) - arena.statistics().slots["FREE"]


def _completed_count(arena: Arena) -> int:
    """Return the number of batches that have a result."""
    return int(arena.native.counters()["batches completed"])


@contextmanager
def _opened(arena: Arena, folder: Path, sink: AwaySink) -> Iterator[Sender]:
    """Open a sender with its topic and its producer id, before its first delivery."""
    with Sender(arena, sink, linger_ms=0, overflow=f"log:{folder}/overflow", overflow_at=1) as sender:
        sender.open()
        yield sender


@contextmanager
def _beside_a_log() -> Iterator[tuple[Arena, Sender, AwayLog]]:
    """Yield a full arena and a sender to a log."""
    with _full_arena() as arena, tmpfs_folder() as folder:
        sink = AwayLog(str(folder / "sink"), partitions=PARTITION_COUNT)
        with _opened(arena, folder, sink) as sender:
            yield arena, sender, sink


@contextmanager
def _beside_a_broker() -> Iterator[tuple[Arena, Sender, AwayKafka]]:
    """Yield a full arena and a sender to a broker. The sender has already delivered a batch of each partition.

    Python delivers them, because one call of the pump empties an arena.
    """
    with (
        _full_arena() as arena,
        tmpfs_folder() as folder,
        draining_broker(PARTITION_COUNT, answers_each=True) as (port, _),
    ):
        sink = AwayKafka(f"127.0.0.1:{port}", send_buffer_bytes=-1)
        with _opened(arena, folder, sink) as sender:
            is_carried, sink.is_carried = sink.is_carried, False
            while _completed_count(arena) < PARTITION_COUNT:
                sender.run_once()
            sink.is_carried = is_carried
            yield arena, sender, sink


def _emptied(sender: Sender, arena: Arena, left_count: int) -> Measurement:
    used_count = _used_count(arena)
    stopwatch = Stopwatch()
    while _used_count(arena) > left_count:
        sender.run_once()
    elapsed = stopwatch.elapsed()
    size = (used_count - left_count) * BATCH_SIZE
    return {"bytes_per_s": size / elapsed.wall_s, "cpu_s_per_byte": elapsed.cpu_s / size}


def _delivered() -> Measurement:
    with _beside_a_log() as (arena, sender, _):
        return _emptied(sender, arena, 0)


def _brought() -> Measurement:
    with _beside_a_broker() as (arena, sender, _):
        return _emptied(sender, arena, 0)


def _spill(sender: Sender, sink: AwaySink, arena: Arena) -> Measurement:
    sink.is_away = True
    return _emptied(sender, arena, int(arena.geometry["slot_count"]) // 100)


def _spilled() -> Measurement:
    with _beside_a_log() as (arena, sender, sink):
        measured = _spill(sender, sink, arena)
        sink.is_away = False
        sender.stop()
        sender.run()
        return measured


def _shipped() -> Measurement:
    with _beside_a_broker() as (arena, sender, sink):
        _spill(sender, sink, arena)
        before = _completed_count(arena)
        sink.is_away = False
        stopwatch = Stopwatch()
        while arena.native.spilled()["partitions"]:
            sender.run_once()
        elapsed = stopwatch.elapsed()
        size = (_completed_count(arena) - before) * BATCH_SIZE
        sender.stop()
        sender.run()
    return {"bytes_per_s": size / elapsed.wall_s, "cpu_s_per_byte": elapsed.cpu_s / size}


def _sent(sink: Callable[[Path], str]) -> Measurement:
    """Measure a send while the sender spills or delivers, after its first batches."""
    with temporary_arena(buffer_memory=BUFFER_MEMORY, batch_size=BATCH_SIZE) as arena, tmpfs_folder() as folder:
        arena.native.set_topic_partition_count(TOPIC, 1)
        options = {"overflow": f"log:{folder}/overflow", "overflow_at": "1", "request_timeout_ms": "100"}
        with sender_process(arena, sink(folder), **options), Producer(arena) as producer:
            value = bytes(100)
            producer.send_many(TOPIC, [value] * 100_000)
            while arena.statistics().slots["READY"] > int(arena.geometry["slot_count"]) // 80:
                time.sleep(0.001)
            stopwatch = Stopwatch()
            for _ in range(SEND_COUNT):
                producer.send(TOPIC, value)
            elapsed = stopwatch.elapsed()
            producer.close(0)
    return {"seconds_per_record": elapsed.wall_s / SEND_COUNT}


def contenders() -> list[Contender]:
    """Return spilling, delivering, and a send during both."""
    return [
        Contender(SPILLED, _spilled),
        Contender(DELIVERED, _delivered),
        Contender(SHIPPED, _shipped, peer=BROUGHT),
        Contender(BROUGHT, _brought),
        Contender(SENT_BESIDE_SPILLING, lambda: _sent(lambda _: NOBODY), peer=SENT_BESIDE_DELIVERING),
        Contender(SENT_BESIDE_DELIVERING, lambda: _sent(lambda folder: f"log:{folder}/sink")),
    ]


QUESTION = Question(
    title="spill to the overflow and deliver it: full 16 KiB batches of 16 partitions",
    figures=(
        Figure("bytes_per_s", "GiB/s", 1 / 2**30, "higher"),
        Figure("cpu_s_per_byte", "ns/KiB", 2**10 * 1e9, "lower", "processor time"),
        Figure("seconds_per_record", "ns", 1e9, "lower", "time of a send"),
    ),
    contenders=contenders,
    peer=DELIVERED,
    goals=(
        Goal("spilling to the overflow, of the log sink", SPILLED, "bytes_per_s", 0.8, is_ratio=True),
        Goal("delivering the overflow, of delivering the arena", SHIPPED, "bytes_per_s", 1 / 1.2, is_ratio=True),
        Goal("``send`` beside a spilling sender", SENT_BESIDE_SPILLING, "seconds_per_record", 1.05, is_ratio=True),
    ),
    reason=(
        "A spilled batch has a row in a second file and a range in the arena (decision 0066), besides the "
        "append to the log. The overflow is delivered by sendfile, with a call for each batch of 16 KiB and one for "
        "its header. The arena is delivered by one call for many batches. The files on tmpfs are then removed, which "
        "takes a sixth of the time."
    ),
)
