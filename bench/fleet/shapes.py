# SPDX-License-Identifier: Apache-2.0
"""Fleets of any size: the load of one simulated producer, times the number of producers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from bench.fleet.arrivals import arrivals
from bench.fleet.costs import Prices
from bench.fleet.producer import Outcome, Rules, simulate

SIMULATED_RECORDS = 8_000
SEED = 20


@dataclass(frozen=True)
class Design:
    """A way to connect workers to brokers.

    Attributes:
        check_delay_s: the time between the end of a batch's linger and the sending thread's check.
        request_s: the sending thread's time for a request. That of librdkafka results from the prices, that of the pump
        from decision 0077.
    """

    name: str
    title: str
    along: float | None
    is_shared: bool
    """True if the workers of a host share a producer."""
    check_delay_s: float
    request_s: float


CLIENTS = Design(
    "clients", "a producer for each worker", along=None, is_shared=False, check_delay_s=0.0, request_s=110e-6
)
ARENA = Design("arena", "an arena for each host", along=0.5, is_shared=True, check_delay_s=0.001, request_s=40e-6)
DESIGNS = (CLIENTS, ARENA)


@dataclass(frozen=True)
class Shape:
    """A fleet and its work. The rate is that of a worker, in records of 100 bytes a second."""

    host_count: int = 100
    worker_count: int = 64
    rate: float = 100.0
    kind: str = "poisson"
    linger_s: float = 0.005
    partition_count: int = 60
    broker_count: int = 6
    round_trip_s: float = 0.005

    def rules(self, design: Design) -> Rules:
        return Rules(
            design.along,
            linger_s=self.linger_s,
            partition_count=self.partition_count,
            node_count=self.broker_count,
            round_trip_s=self.round_trip_s,
            request_s=design.request_s,
            check_delay_s=design.check_delay_s,
        )


@dataclass(frozen=True)
class Load:
    """The load of a fleet on its brokers, in numbers a second, and the latency of a record."""

    connections: int
    requests: float
    batches: float
    records: float
    p50_s: float
    p99_s: float

    @property
    def records_per_batch(self) -> float:
        return self.records / self.batches

    def cores(self, prices: Prices) -> float:
        """Return the busy cores by the prices of a broker or of clients."""
        counts = {"request_count": self.requests, "batch_count": self.batches, "record_count": self.records}
        return prices.cost_s(counts)


def outcome(shape: Shape, design: Design, seed: int = SEED) -> Outcome:
    """Simulate one producer of the fleet for about `SIMULATED_RECORDS` records."""
    worker_count = shape.worker_count if design.is_shared else 1
    seconds = SIMULATED_RECORDS / (worker_count * shape.rate)
    rng = np.random.default_rng(seed)
    times, partitions = arrivals(rng, shape.kind, worker_count, shape.rate, seconds, shape.partition_count)
    return simulate(shape.rules(design), times, partitions, seconds)


@cache
def load_of(shape: Shape, design: Design, seed: int = SEED) -> Load:
    """Return the load of the whole fleet."""
    one = outcome(replace(shape, host_count=1), design, seed)
    producer_count = shape.host_count * (1 if design.is_shared else shape.worker_count)
    return Load(
        connections=producer_count * min(shape.broker_count, shape.partition_count),
        requests=producer_count * one.request_count / one.seconds,
        batches=producer_count * one.batch_count / one.seconds,
        records=producer_count * one.record_count / one.seconds,
        p50_s=one.latency_s(0.5),
        p99_s=one.latency_s(0.99),
    )
