# SPDX-License-Identifier: Apache-2.0
"""Producing processes, senders and a cluster together. Each record arrives exactly once, in the order of its key.

::

    producer ─┐                                 ┌─ consumer
    producer ─┼─> arena ─> sender (or the next) ─> cluster ──> every record once, and keys in order
    producer ─┘
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from shmaccum.arena import Arena
from tests.kafka.journey_producer import WORD, WORD_SIZE

ROOT = Path(__file__).resolve().parents[2]
DELIVERY_TIMEOUT = "10min"
JOURNEY_TIMEOUT_S = 3600.0
"""The time limit of a test ends a journey sooner."""


class Journey:
    """One arena between producing processes and senders.

    Args:
        arena: created and removed by the test.
        bootstrap: the cluster's addresses.
        directory: the folder for ledgers and the senders' output.
        options: the options of the sink.
    """

    def __init__(self, arena: Arena, bootstrap: str, directory: Path, options: Mapping[str, str] | None = None) -> None:
        self.arena = arena
        self._bootstrap = bootstrap
        self._directory = directory
        self._options = dict(options or {})
        self._senders: list[subprocess.Popen[bytes]] = []
        self._producers: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._calls = directory / "pump-calls"

    # --- processes

    def start_sender(self, delivery_timeout_ms: str = DELIVERY_TIMEOUT, **options: str) -> None:
        """Start another sender with these options, which waits for the role."""
        command = [sys.executable, "-m", "tests.kafka.noted_sender", str(self._calls), self.arena.name, "--standby"]
        command += ["--sink", f"kafka:{self._bootstrap}"]
        for name, value in {"delivery_timeout_ms": delivery_timeout_ms, **options}.items():
            command += ["--set", f"{name}={value}"]
        for name, value in self._options.items():
            command += ["--sink-set", f"{name}={value}"]
        with open(self._directory / "senders", "ab") as output:
            self._senders.append(subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT))

    def start_producer(self, count: int, topics: Sequence[str]) -> None:
        """Start a producer that sends this many records and exits."""
        number = len(self._producers)
        ledger = self._directory / f"ledger-{number}"
        ledger.write_bytes(bytes(WORD_SIZE))
        command = [sys.executable, "-m", "tests.kafka.journey_producer", self.arena.name, str(ledger), str(number)]
        with open(self._directory / "producers", "ab") as output:
            process = subprocess.Popen([*command, str(count), *topics], stdout=output, stderr=output, cwd=ROOT)
        self._producers.append((process, ledger))

    def kill_sender(self) -> None:
        """Kill the oldest sender, which has the role if any does."""
        sender = self._senders.pop(0)
        sender.kill()
        sender.wait()

    def kill_producer(self) -> None:
        """Kill the oldest running producer."""
        for process, _ in self._producers:
            if process.poll() is None:
                process.kill()
                process.wait()
                return

    def stop(self) -> None:
        """Kill every process. The arena can be removed afterwards."""
        for process in [*self._senders, *(process for process, _ in self._producers)]:
            process.kill()
            process.wait()

    @property
    def pump_call_count(self) -> int:
        """Count the pump calls that senders have begun."""
        return self._calls.stat().st_size

    # --- waiting

    def is_producing(self) -> bool:
        return any(process.poll() is None for process, _ in self._producers)

    def sent_count(self, number: int) -> int:
        """Count the records whose send returned."""
        (count,) = memoryview(self._producers[number][1].read_bytes()).cast(WORD)
        return count

    def sent_total(self) -> int:
        return sum(self.sent_count(number) for number in range(len(self._producers)))

    def is_delivered(self) -> bool:
        """No process produces, and no batch is left."""
        is_empty = self.arena.statistics().slots["FREE"] == self.arena.geometry["slot_count"]
        return not self.is_producing() and is_empty and not self.arena.native.spilled()["partitions"]

    def delivered_count(self) -> int:
        """Count the records that have a result."""
        return self.arena.native.counters()["records completed"]

    def run_until_delivered(self, disturb: Callable[[], object] | None = None, period_s: float = 0.3) -> None:
        """Waits until everything is delivered, and disturbs it repeatedly.

        Disturbances are at least `period_s` apart, and each waits until delivery has resumed. On a busy machine, a
        sender may take longer to start. A sender that is killed before it has delivered proves nothing.
        """
        deadline = time.monotonic() + JOURNEY_TIMEOUT_S
        disturb_at, delivered_before = time.monotonic() + period_s, 0
        while not self.is_delivered():
            assert time.monotonic() < deadline, self.what_was_said()
            is_time = time.monotonic() >= disturb_at and self.delivered_count() > delivered_before
            if disturb is not None and is_time:
                disturb()
                disturb_at, delivered_before = time.monotonic() + period_s, self.delivered_count()
            time.sleep(0.01)

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Waits until the condition is true."""
        deadline = time.monotonic() + JOURNEY_TIMEOUT_S
        while not is_over():
            assert time.monotonic() < deadline, self.what_was_said()
            time.sleep(0.01)

    def what_was_said(self) -> str:
        """Return the last output of senders and producers."""
        said = [path.read_text(errors="replace")[-3000:] for path in sorted(self._directory.glob("*ers"))]
        return "\n".join([*said, str(self.arena.statistics()), str(self.arena.native.errors()[-5:])])

    # --- arrived records

    def check_arrived(self, topics: Sequence[str]) -> int:
        """Check that each sent record is there once, keys in order. Return their number.

        A killed process may have sent one record more than its ledger states.
        """
        arrived: dict[int, list[int]] = defaultdict(list)
        last: dict[tuple[str, bytes], int] = {}
        for topic, key, value in read_topics(self._bootstrap, topics):
            sent = int(value)
            assert last.get((topic, key), -1) < sent, (topic, key, last[topic, key], sent)
            last[topic, key] = sent
            arrived[int(key.split(b"-")[0])].append(sent)
        for number in range(len(self._producers)):
            check_once(number, self.sent_count(number), arrived[number])
        return sum(map(len, arrived.values()))


def check_once(producer: int, count: int, arrived: Sequence[int]) -> None:
    """Each number below `count` arrived once, and `count` itself at most once."""
    times = Counter(arrived)
    lost, unknown = set(range(count)) - times.keys(), times.keys() - set(range(count + 1))
    twice = {sent for sent in times if times[sent] > 1}
    for what, which in ("lost", lost), ("never sent", unknown), ("twice", twice):
        assert not which, f"{what}: of producer {producer}, which sent {count}: {len(which)}, from {min(which)} on"


def read_topics(bootstrap: str, topics: Sequence[str]) -> Iterator[tuple[str, bytes, bytes]]:
    """Topic, key and value of all records, in the order of each partition."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "journey", "check.crcs": True}
    consumer = Consumer({**settings, "log_level": 0, "enable.auto.commit": False})
    found = consumer.list_topics(timeout=120).topics
    partitions = [TopicPartition(topic, partition, 0) for topic in topics for partition in found[topic].partitions]
    missing = sum(consumer.get_watermark_offsets(partition, timeout=120)[1] for partition in partitions)
    consumer.assign(partitions)
    while missing > 0:
        for message in consumer.consume(20_000, timeout=0.2):
            assert message.error() is None, message.error()
            topic, key, value = message.topic(), message.key(), message.value()
            assert topic is not None
            assert key is not None
            assert value is not None
            missing -= 1
            yield topic, key, value
    consumer.close()


@contextmanager
def journey(
    arena_name: str,
    bootstrap: str,
    directory: Path,
    options: Mapping[str, str] | None = None,
    **geometry: Any,
) -> Iterator[Journey]:
    """A journey whose processes end with the context. Its arena is then idle and sound."""
    with Arena.create(arena_name, **{"buffer_memory": "4MiB", "batch_size": "16KiB", **geometry}) as arena:
        one = Journey(arena, bootstrap, directory, options)
        try:
            yield one
        finally:
            one.stop()
