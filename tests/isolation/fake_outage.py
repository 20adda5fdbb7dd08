# SPDX-License-Identifier: Apache-2.0
"""An arena whose sender delivers to a fake cluster, in which one broker leads no partition or does not answer.

::

    producer of "live" ─┐                     ┌─ broker 0 leads "live" and answers
                        ├─> arena ─> sender ──┤
    producer of "dead" ─┘                     └─ broker 1 leads "dead": no leader, or no answer

The topic "free" may have a partition on each broker. Its records name no partition.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shmaccum import Producer
from shmaccum._native import decode_batch
from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError
from tests.isolation.senders import Senders
from tests.kafka.fake_broker import Arrived, FakeCluster, Reply, Silence, fake_cluster
from tests.support.processes import wait_until

LIVE, DEAD, FREE = "live", "dead", "free"
SLOT_SIZE = 4096
WORKS, NO_LEADER, NO_ANSWER = "works", "no leader", "no answer"
LIVE_NODE, DEAD_NODE = 0, 1
NOT_LEADER = 6
METADATA_ROUNDS = 3
"""After this many Metadata requests, a sender has handled a response that names no leader."""
LONG_MS = 60_000
FREE_FIRST = 1_000_000
"""The number of the first record that names no partition."""


class TakenRecords:
    """The records that a cluster has accepted. A batch with a known sequence counts once, as in Apache Kafka."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._sequences: set[tuple[str, int, tuple[int, int, int]]] = set()

    def take(self, arrived: Arrived) -> Reply:
        """Accept a batch whose values begin with their numbers."""
        place = arrived.topic, arrived.partition
        if (*place, arrived.sequence) not in self._sequences:
            self._sequences.add((*place, arrived.sequence))
            self._numbers[place] += [int((record[3] or b"").split()[0]) for record in decode_batch(arrived.wire_bytes)]
        return Reply()

    def numbers(self, topic: str, partition: int = 0) -> list[int]:
        """Return the numbers of the records in their order."""
        return list(self._numbers[topic, partition])


class Brokers:
    """The behaviour of a cluster of two brokers. The second one leads the dead topic.

    Attributes:
        cluster: the cluster of the brokers.
        taken: the records that both brokers have accepted.
        unanswered_count: batches that got no answer.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.taken = TakenRecords()
        self.unanswered_count = 0
        self._faults = [WORKS, WORKS]
        self._nodes = dict(cluster.leaders)
        cluster.on_produce = self._answer
        self.set_fault(WORKS)

    def set_fault(self, fault: str, node: int = DEAD_NODE) -> None:
        """Change the behaviour of a broker, and close its connections."""
        self._faults[node] = fault
        for place in self.places_of(node):
            self.cluster.leaders[place] = -1 if fault == NO_LEADER else node
        self.cluster.leader_epoch += 1
        self.cluster.brokers[node].cut()

    def places_of(self, node: int) -> list[tuple[str, int]]:
        """Return the partitions that a broker leads while it works."""
        return [place for place, own in self._nodes.items() if own == node]

    def _answer(self, arrived: Arrived) -> Reply:
        fault = self._faults[arrived.node_id]
        if fault == NO_LEADER:
            return Reply(NOT_LEADER)
        if fault == NO_ANSWER:
            self.unanswered_count += 1
            raise Silence
        return self.taken.take(arrived)


class FakeOutage:
    """The cluster, the arena and its sender.

    Attributes:
        arena: the arena of this outage.
        brokers: the brokers, which both work at first.
        senders: the process of the sender.
    """

    def __init__(self, arena: Arena, brokers: Brokers, senders: Senders) -> None:
        self.arena = arena
        self.brokers = brokers
        self.senders = senders
        self._sent = dict.fromkeys(brokers.cluster.leaders, 0)
        self._free_sent = 0

    def _places(self, topic: str) -> list[tuple[str, int]]:
        return [place for place in self._sent if place[0] == topic]

    def begin(self, fault: str) -> None:
        """Begin the fault, and return when the sender has noticed it."""
        with self.producer(LONG_MS) as producer:
            for place in self._sent:
                self._send(producer, place)
            wait_until(lambda: all(self.brokers.taken.numbers(*place) for place in self._sent), "all arrives")
            self._wait_until_free()
            self.brokers.set_fault(fault)
            if fault != WORKS:
                for place in self.brokers.places_of(DEAD_NODE):
                    self._send(producer, place)
        if fault == NO_LEADER:
            cluster, count = self.brokers.cluster, self.brokers.cluster.metadata_count
            wait_until(lambda: cluster.metadata_count >= count + METADATA_ROUNDS, "the sender asks for a leader")
        elif fault == NO_ANSWER:
            wait_until(lambda: self.brokers.unanswered_count > 0, "the silent broker has a batch")

    @contextlib.contextmanager
    def producer(self, max_block_ms: int) -> Iterator[Producer]:
        """Yield a producer of this process. At the end, its records stay in the arena."""
        producer = Producer(self.arena, max_block_ms=max_block_ms, linger_ms=0)
        try:
            yield producer
        finally:
            producer.close(0)

    def _send(self, producer: Producer, place: tuple[str, int], size: int = 0) -> None:
        """Send one record with a value of at least `size` bytes, and count it if it was accepted."""
        topic, partition = place
        producer.send(topic, (b"%d " % self._sent[place]).ljust(size, b"x"), partition=partition)
        self._sent[place] += 1

    def _wait_until_free(self) -> None:
        slot_count = self.arena.geometry["slot_count"]
        wait_until(lambda: self.arena.native.state_counts()["FREE"] == slot_count, "all buffers are free")

    def fill(self, topic: str, size: int) -> None:
        """Send records to each partition until it rejects one."""
        with self.producer(0) as producer:
            for place in self._places(topic):
                with contextlib.suppress(BufferExhaustedError):
                    while True:
                        self._send(producer, place, size)

    def fill_alone(self, topic: str, size: int) -> int:
        """Like `fill`, in a separate process. Return the number of accepted records."""
        before = sum(self._sent.values())
        self.fill(topic, size)
        return sum(self._sent.values()) - before

    def send_alone(self, topic: str, size: int) -> None:
        """Send one record in a separate process, which waits for a buffer without a limit."""
        with self.producer(10 * LONG_MS) as producer:
            self._send(producer, (topic, 0), size)

    def count_sent(self, topic: str, count: int) -> None:
        """Count records that another process has sent to a topic with one partition."""
        self._sent[topic, 0] += count

    def failures(self, topic: str, count: int, max_block_ms: int, size: int = 0) -> list[str]:
        """Send records to partition 0 of a topic, or to the topic "free". Return the error of each failed send."""
        with self.producer(max_block_ms) as producer:
            errors = [self._error_of(producer, topic, size) for _ in range(count)]
        return [error for error in errors if error is not None]

    def _error_of(self, producer: Producer, topic: str, size: int) -> str | None:
        """Send one record. Return the error, or None."""
        try:
            if topic == FREE:
                producer.send(topic, (b"%d " % (FREE_FIRST + self._free_sent)).ljust(size, b"x"))
                self._free_sent += 1
            else:
                self._send(producer, (topic, 0), size)
        except BufferExhaustedError as error:
            return str(error)
        return None

    def end(self, has_sent: Callable[[], bool] = lambda: True) -> None:
        """End the faults, and wait for `has_sent`. Check that each accepted record arrives once and in order."""
        for node in (LIVE_NODE, DEAD_NODE):
            self.brokers.set_fault(WORKS, node)
        wait_until(has_sent, "another process has sent")
        wait_until(lambda: not self.arena.native.spilled()["partitions"], "the overflow is empty")
        self._wait_until_free()
        free: list[int] = []
        for place, count in self._sent.items():
            numbers = self.brokers.taken.numbers(*place)
            assert numbers == sorted(numbers), place
            assert [number for number in numbers if number < FREE_FIRST] == list(range(count)), place
            free += [number - FREE_FIRST for number in numbers if number >= FREE_FIRST]
        assert sorted(free) == list(range(self._free_sent))


@contextlib.contextmanager
def fake_outage(
    arena_name: str,
    folder: Path,
    slot_count: int,
    dead_count: int = 1,
    free_count: int = 0,
    *,
    has_overflow: bool = False,
    **options: Any,
) -> Iterator[FakeOutage]:
    """Yield an outage: an arena with `slot_count` buffers, a cluster whose brokers both work, and a sender that has
    begun.
    """
    overflow = {"overflow": f"log:{folder}/overflow"} if has_overflow else {}
    with contextlib.ExitStack() as stack:
        topics = {LIVE: 1, DEAD: dead_count, FREE: free_count}
        cluster = stack.enter_context(fake_cluster(broker_count=2, topics=topics))
        cluster.leaders.update({(DEAD, partition): DEAD_NODE for partition in range(dead_count)})
        memory = slot_count * SLOT_SIZE
        arena = stack.enter_context(Arena.create(arena_name, buffer_memory=memory, batch_size=SLOT_SIZE, **options))
        senders = Senders(arena, cluster.bootstrap, folder / "senders", retry_backoff_ms="10", **overflow)
        stack.callback(senders.close)
        senders.start()
        senders.wait_until_open()
        yield FakeOutage(arena, Brokers(cluster), senders)
