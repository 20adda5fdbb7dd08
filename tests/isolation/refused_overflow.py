# SPDX-License-Identifier: Apache-2.0
"""The waits of a producer while all brokers refuse connections and the sender has an overflow. There is no Kafka.

The cluster stops listening, and no other program can get its port. At the end, a new cluster listens there, and accepts
the records.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError
from tests.isolation.fake_outage import TakenRecords
from tests.isolation.senders import Senders
from tests.kafka.broker import LOOPBACK, held_port
from tests.kafka.fake_broker import FakeCluster, fake_cluster
from tests.support.processes import wait_until

TOPIC = "events"
VALUE_SIZE = 1000
KILL_PERIOD_S = 1.0
DRAIN_S = 300.0


@dataclass
class Refusal:
    """The figures of an outage.

    Attributes:
        seconds: the time for which records were sent.
        sent_count: accepted records.
        failures: the error of each record that was not accepted.
        longest_s: the longest send.
        first_spill_s: the time from the start of the outage until the first batch was in the overflow, or None.
        spilled_bytes: the bytes in the overflow at the end of the outage.
        kill_count: killed senders.
        lost_count: accepted records that did not arrive.
        doubled_count: records that arrived again.
        is_in_order: no record arrived after a later one.
    """

    seconds: float
    sent_count: int
    failures: list[str]
    longest_s: float
    first_spill_s: float | None
    spilled_bytes: int
    kill_count: int
    lost_count: int = 0
    doubled_count: int = 0
    is_in_order: bool = True

    def count_arrived(self, numbers: list[int]) -> None:
        """Count the records that arrived."""
        self.lost_count = len(set(range(self.sent_count)) - set(numbers))
        self.doubled_count = len(numbers) - len(set(numbers))
        self.is_in_order = list(dict.fromkeys(numbers)) == sorted(set(numbers))


def refuse(
    arena_name: str,
    folder: Path,
    seconds: float,
    max_block_ms: int,
    *,
    kills: bool,
    stops_at_failure: bool = False,
    rate: int = 4000,
    **options: str,
) -> Refusal:
    """Send to an arena of 4 MiB while the brokers refuse connections.

    Args:
        arena_name: the name of the arena, which is created here.
        folder: the folder for the overflow.
        seconds: the length of the outage. A send that waits makes it longer.
        max_block_ms: the option of the producer.
        kills: kill the sender each second; another one waits to take over.
        stops_at_failure: end the outage at the first record that is not taken.
        rate: records a second.
        options: further options of the sender.
    """
    taken = TakenRecords()
    options |= {"overflow": f"log:{folder}/overflow", "overflow_after_ms": "1s"}
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(contextlib.closing(held_port()))
        port = held.getsockname()[1]
        arena = stack.enter_context(Arena.create(arena_name, buffer_memory="4MiB"))
        senders = Senders(arena, f"{LOOPBACK}:{port}", folder / "senders", **options)
        stack.callback(senders.close)
        senders.start()
        producer = Producer(arena, max_block_ms=60_000, linger_ms=0)
        stack.callback(producer.close, 0)
        with listening(port, taken) as cluster:
            topic_ids = cluster.topic_ids
            producer.send(TOPIC, b"0 ", partition=0)
            wait_until(lambda: taken.numbers(TOPIC) == [0], "the first record arrives")
        other = Producer(arena, max_block_ms=max_block_ms)
        stack.callback(other.close, 0)
        with disturbed(arena, senders, kills=kills) as watch:
            outage = _send(other, seconds, rate, stops_at_failure=stops_at_failure)
        outage.kill_count = senders.kill_count
        outage.spilled_bytes = arena.native.spilled()["size"]
        outage.first_spill_s = watch.first_spill_s
        with listening(port, taken) as cluster:
            cluster.topic_ids = topic_ids
            cluster.producer_ids = iter(range(8_000, 9_000))
            wait_until(lambda: is_drained(arena), "all is delivered", DRAIN_S)
        outage.count_arrived(taken.numbers(TOPIC))
    return outage


@contextlib.contextmanager
def listening(port: int, taken: TakenRecords) -> Iterator[FakeCluster]:
    """A cluster at this port."""
    listener = held_port(port)
    with fake_cluster(topics={TOPIC: 1}, listener=listener) as cluster:
        cluster.on_produce = taken.take
        yield cluster


def is_drained(arena: Arena) -> bool:
    is_free = arena.native.state_counts()["FREE"] == arena.geometry["slot_count"]
    return is_free and not arena.native.spilled()["partitions"]


def _send(producer: Producer, seconds: float, rate: int, *, stops_at_failure: bool) -> Refusal:
    """Sends this many records a second, or as many as are taken."""
    begin_s = due_s = time.monotonic()
    number, longest_s, failures = 1, 0.0, []
    while (now_s := time.monotonic()) < begin_s + seconds:
        time.sleep(max(due_s - now_s, 0))
        due_s = max(due_s, now_s - 0.1) + 1 / rate
        sent_s = time.monotonic()
        try:
            producer.send(TOPIC, (b"%d " % number).ljust(VALUE_SIZE, b"x"), partition=0)
            number += 1
        except BufferExhaustedError as error:
            failures.append(str(error))
        longest_s = max(longest_s, time.monotonic() - sent_s)
        if failures and stops_at_failure:
            break
    return Refusal(time.monotonic() - begin_s, number, failures, longest_s, None, 0, 0)


class _Watch(threading.Thread):
    """Notes when the first batch is in the overflow, and kills senders."""

    def __init__(self, arena: Arena, senders: Senders, *, kills: bool) -> None:
        super().__init__()
        self.first_spill_s: float | None = None
        self.failure: BaseException | None = None
        self.is_over = threading.Event()
        self._arena = arena
        self._senders = senders
        self._kills = kills
        self._begin_s = time.monotonic()

    def run(self) -> None:
        try:
            self._watch()
        except BaseException as failure:  # noqa: BLE001 - raised again by the thread that ends this one
            self.failure = failure

    def _watch(self) -> None:
        kill_s = time.monotonic() + KILL_PERIOD_S
        while not self.is_over.wait(0.01):
            if self.first_spill_s is None and self._arena.native.spilled()["batch_count"]:
                self.first_spill_s = time.monotonic() - self._begin_s
            if self._kills and time.monotonic() >= kill_s and self._senders.has_standby:
                self._senders.replace()
                kill_s = time.monotonic() + KILL_PERIOD_S


@contextlib.contextmanager
def disturbed(arena: Arena, senders: Senders, *, kills: bool) -> Iterator[_Watch]:
    """Watches the overflow, and kills senders each second if asked."""
    if kills:
        senders.start()
        wait_until(lambda: senders.has_standby, "a standby waits")
    watch: Any = _Watch(arena, senders, kills=kills)
    watch.start()
    try:
        yield watch
    finally:
        watch.is_over.set()
        watch.join()
    if watch.failure is not None:
        raise watch.failure
