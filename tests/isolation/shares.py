# SPDX-License-Identifier: Apache-2.0
"""The shares of busy topics, and the cost of producers that wait. There is no Kafka.

``congested``: the producers of the busy topics send more than the cluster accepts, and a producer of another topic
sends a few records. ``waiting``: processes wait in a send to a topic without a leader.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from shmaccum import Producer
from shmaccum.arena import Arena
from tests.isolation.fake_outage import DEAD, NO_LEADER, fake_outage
from tests.isolation.held import held_slots, jain, waiter_count
from tests.isolation.measurements import UNDISTURBED, WARM_UP, Control, Measurements, quantile_ns
from tests.isolation.producing import main as produce
from tests.isolation.senders import Senders
from tests.kafka.fake_broker import Arrived, FakeCluster, Reply, fake_cluster
from tests.support.processes import Child, wait_until

LIVE = "live"
VALUE_SIZE = 1000
ANSWER_S = 0.001
"""The time for a batch. So the cluster accepts at most a thousand batches a second."""
LIVE_RATE = 500.0
SAMPLE_S = 0.02
BUSY_GROUP, LIVE_GROUP = 0, 1
WAITER_COUNT = 64


@dataclass
class Congestion:
    """The figures of topics to which more is sent than the cluster accepts.

    Attributes:
        held: the mean number of buffers of each busy topic.
        most_held: the maximum number of buffers that all busy topics had together.
        slot_count: the number of buffers of the arena.
        live_sends: the number of sends to the other topic.
        live_failures: the number of failed sends to the other topic.
        live_p99_ns: the 99th percentile of their latency.
        live_longest_ns: their maximum latency.
    """

    held: list[float]
    most_held: int
    slot_count: int
    live_sends: int
    live_failures: int
    live_p99_ns: int
    live_longest_ns: int

    @property
    def jain(self) -> float:
        """Return Jain's index of the busy topics."""
        return jain(self.held)

    @property
    def busy_share(self) -> float:
        """Return the largest share of the arena that all busy topics had together."""
        return self.most_held / self.slot_count


def slowly(cluster: FakeCluster, arrived: Arrived) -> Reply:
    """Accept a batch after a while, and discard it."""
    time.sleep(ANSWER_S)
    cluster.arrived.clear()
    return Reply()


@contextlib.contextmanager
def producing(arena_name: str, folder: Path, busy_count: int) -> Iterator[Control]:
    """Yield a process for each busy topic, which sends as much as it can, and one for the other topic."""
    control = Control(folder / "control")
    control.set_rate(LIVE_GROUP, LIVE_RATE)
    options = {"max_block_ms": "2s"}
    children = [
        Child(produce, arena_name, folder, number, BUSY_GROUP, VALUE_SIZE, [(f"busy-{number}", 0)], options)
        for number in range(busy_count)
    ]
    children.append(Child(produce, arena_name, folder, busy_count, LIVE_GROUP, VALUE_SIZE, [(LIVE, 0)], options))
    try:
        yield control
        control.end()
        for child in children:
            child.join()
    finally:
        for child in children:
            child.kill()


def congested(arena_name: str, folder: Path, seconds: float, busy_count: int) -> Congestion:
    """Measure `busy_count` busy topics for `seconds`."""
    topics = [f"busy-{number}" for number in range(busy_count)]
    with contextlib.ExitStack() as stack:
        arena = stack.enter_context(Arena.create(arena_name))
        control = stack.enter_context(producing(arena_name, folder, busy_count))
        cluster = stack.enter_context(fake_cluster(topics=dict.fromkeys([*topics, LIVE], 1)))
        cluster.on_produce = lambda arrived: slowly(cluster, arrived)
        senders = Senders(arena, cluster.bootstrap, folder / "senders")
        stack.callback(senders.close)
        senders.start()
        measured = Measurements(folder / f"producer-{busy_count}")
        wait_until(lambda: measured.next_number(0) > 0, "all producers send")
        wait_until(lambda: held_slots(arena).keys() >= {(topic, 0) for topic in topics}, "all topics have batches")
        control.set_round(UNDISTURBED)
        end_s, samples = time.monotonic() + seconds, []
        while time.monotonic() < end_s:
            samples.append(held_slots(arena))
            time.sleep(SAMPLE_S)
        control.set_round(WARM_UP)
        held = [fmean(sample[topic, 0] for sample in samples) for topic in topics]
        most_held = max(sum(sample[topic, 0] for topic in topics) for sample in samples)
        counts = measured.histograms(UNDISTURBED).sum(axis=0)
        failure_count = measured.failures(UNDISTURBED).total()
        longest_ns = measured.longest_ns(UNDISTURBED)
        slot_count = arena.geometry["slot_count"]
        return Congestion(
            held, most_held, slot_count, int(counts.sum()), failure_count, quantile_ns(counts, 0.99), longest_ns
        )


def cpu_ns(pid: int) -> int:
    """Return the time for which a process has run on a core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _wait(arena_name: str) -> None:
    with contextlib.closing(Producer(arena_name, max_block_ms=600_000)) as producer:
        producer.send(DEAD, bytes(VALUE_SIZE), partition=0)


def waiting(arena_name: str, folder: Path, seconds: float, slot_count: int = 64) -> float:
    """Return the part of a core that 64 producers together use while they wait for a topic without a leader."""
    with fake_outage(arena_name, folder, slot_count) as outage:
        outage.begin(NO_LEADER)
        outage.fill(DEAD, VALUE_SIZE)
        children = [Child(_wait, arena_name) for _ in range(WAITER_COUNT)]
        try:
            wait_until(lambda: waiter_count(outage.arena) == WAITER_COUNT, "all processes wait")
            begin_s, before = time.monotonic(), sum(cpu_ns(child.pid) for child in children)
            while time.monotonic() < begin_s + seconds:
                time.sleep(seconds / 10)
            used_ns = sum(cpu_ns(child.pid) for child in children) - before
            spent_s = time.monotonic() - begin_s
            assert not any(child.has_ended() for child in children)
        finally:
            for child in children:
                child.kill()
    return used_ns / spent_s / 1e9
