# SPDX-License-Identifier: Apache-2.0
"""Simulate one producer, event by event.

A record joins the open batch of its partition. A batch is due when it is full, or when it has lingered. A check of a
node sends one request, if the node has a due batch and fewer than `IN_FLIGHT` requests. The request has a batch of each
partition of the node that may be sent with it. The sending thread is then busy for a while, and the response arrives a
round trip later. A check follows when a batch becomes full or has lingered, when the thread is free again, and after a
response.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.fleet.arrivals import Partitions, Times

IN_FLIGHT = 5
"""Requests without a response that a node may have (Kafka's max.in.flight.requests.per.connection)."""
REQUEST_BATCHES_MAX = 64
"""Batches of 16 KiB in a request of a megabyte (max.request.size)."""


@dataclass(frozen=True)
class Rules:
    """The rules by which a producer makes requests.

    A batch that is not due may be sent with one that is due, after the share `along` of its linger. It is 0 in Java's
    producer, 0.5 in shmaccum's sender (decision 0020), and None in librdkafka, whose requests have one batch each.
    """

    along: float | None
    linger_s: float = 0.005
    batch_records: int = 130
    partition_count: int = 6
    node_count: int = 1
    round_trip_s: float = 0.005
    request_s: float = 200e-6
    check_delay_s: float = 0.0
    """The time between the end of a batch's linger and the next check, which short waits cause (decision 0020)."""


@dataclass
class Outcome:
    """The numbers of batches and requests of a producer, and its latencies."""

    seconds: float
    record_count: int = 0
    batch_count: int = 0
    request_count: int = 0
    latencies_s: list[float] = field(default_factory=list)
    """From the send of each record to the response for its batch."""

    @property
    def records_per_batch(self) -> float:
        return self.record_count / max(self.batch_count, 1)

    @property
    def batches_per_request(self) -> float:
        return self.batch_count / max(self.request_count, 1)

    def latency_s(self, share: float) -> float:
        """Return the latency that `share` of the records does not exceed."""
        return float(np.quantile(self.latencies_s, share)) if self.latencies_s else 0.0


@dataclass
class _Node:
    """The batches for one broker: the times of their records by partition."""

    open: dict[int, list[float]] = field(default_factory=dict)
    full: deque[tuple[int, list[float]]] = field(default_factory=deque)
    in_flight: int = 0


class _Simulation:
    def __init__(self, rules: Rules, seconds: float) -> None:
        self.rules = rules
        self.outcome = Outcome(seconds)
        self._nodes = [_Node() for _ in range(rules.node_count)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._free_at_s = 0.0

    def run(self, times: Times, partitions: Partitions) -> Outcome:
        for time_s, partition in zip(times.tolist(), partitions.tolist(), strict=True):
            self._run_events(time_s)
            self._append(time_s, partition)
        self._run_events(float("inf"))
        return self.outcome

    def _run_events(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            time_s, _, event = heapq.heappop(self._events)
            event(time_s)

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), event))

    def _append(self, now_s: float, partition: int) -> None:
        node = self._nodes[partition % len(self._nodes)]
        batch = node.open.setdefault(partition, [])
        batch.append(now_s)
        if len(batch) == self.rules.batch_records:
            node.full.append((partition, node.open.pop(partition)))
            self._check(node, now_s)
        elif len(batch) == 1:
            self._at(now_s + self.rules.linger_s + self.rules.check_delay_s, lambda time_s: self._check(node, time_s))

    def _check(self, node: _Node, now_s: float) -> None:
        """Send a request if one is due, or check again when the thread is free."""
        if node.in_flight == IN_FLIGHT or not self._is_due(node, now_s):
            return
        if now_s < self._free_at_s:
            self._at(self._free_at_s, lambda time_s: self._check(node, time_s))
            return
        batches = self._take(node, now_s)
        node.in_flight += 1
        self._free_at_s = now_s + self.rules.request_s
        self._at(self._free_at_s + self.rules.round_trip_s, lambda time_s: self._on_response(node, batches, time_s))
        self._at(self._free_at_s, lambda time_s: self._check(node, time_s))

    def _is_due(self, node: _Node, now_s: float) -> bool:
        """Return True if a batch is due. The first batch has lingered longest: batches are in the order of opening."""
        oldest = next(iter(node.open.values()), None)
        return bool(node.full) or (oldest is not None and self._has_lingered(oldest, now_s, 1.0))

    def _has_lingered(self, batch: list[float], now_s: float, share: float) -> bool:
        return now_s - batch[0] >= self.rules.linger_s * share - 1e-9

    def _take(self, node: _Node, now_s: float) -> list[list[float]]:
        """Return the batches of the next request: at most one for each partition, full ones first."""
        along, most = self.rules.along, REQUEST_BATCHES_MAX
        if along is None:
            along, most = 1.0, 1
        taken: dict[int, list[float]] = {}
        later: deque[tuple[int, list[float]]] = deque()
        while node.full:
            partition, batch = node.full.popleft()
            if partition in taken or len(taken) == most:
                later.append((partition, batch))
            else:
                taken[partition] = batch
        node.full = later
        waiting = {partition for partition, _ in later}
        for partition in [each for each, batch in node.open.items() if self._has_lingered(batch, now_s, along)]:
            if partition not in taken and partition not in waiting and len(taken) < most:
                taken[partition] = node.open.pop(partition)
        return list(taken.values())

    def _on_response(self, node: _Node, batches: list[list[float]], now_s: float) -> None:
        node.in_flight -= 1
        self.outcome.request_count += 1
        self.outcome.batch_count += len(batches)
        for batch in batches:
            self.outcome.record_count += len(batch)
            self.outcome.latencies_s += [now_s - time_s for time_s in batch]
        self._check(node, now_s)


def simulate(rules: Rules, times: Times, partitions: Partitions, seconds: float) -> Outcome:
    """Return the outcome of a producer that sends these records, after all responses have arrived.

    Args:
        rules: the rules of the producer.
        times: the times of the records, in order.
        partitions: the partition of each record, from 0 to `rules.partition_count` - 1.
        seconds: the length of the simulated time.
    """
    return _Simulation(rules, seconds).run(times, partitions)
