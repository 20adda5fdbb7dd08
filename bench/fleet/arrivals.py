# SPDX-License-Identifier: Apache-2.0
"""The moments at which the workers of a producer send, and the partitions that their keys choose.

``poisson``: a worker sends records one by one, at moments that do not know of each other. ``bursts``: at such moments
it sends `BURST` records at once, as a request of a web server does that makes several events. ``paced``: it sends
`PACED_BURST` records at once, at equal distances from a random first moment; this is the work of ``kafka_workers``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BURST = 50
PACED_BURST = 5
KINDS = ("poisson", "bursts", "paced")

Times = NDArray[np.float64]
Partitions = NDArray[np.int64]


def worker_times(rng: np.random.Generator, kind: str, rate: float, seconds: float) -> Times:
    """The moments of one worker.

    Args:
        rng: where chance comes from.
        kind: one of `KINDS`.
        rate: records a second, on average.
        seconds: the length of the work, from 0 on.

    Raises:
        ValueError: there is no such kind.
    """
    if kind == "paced":
        gap_s = PACED_BURST / rate
        moments = np.arange(rng.uniform(0, gap_s), seconds, gap_s)
        return np.repeat(moments, PACED_BURST)
    if kind not in KINDS:
        raise ValueError(f"the kind of arrivals must be one of {', '.join(KINDS)}, got {kind!r}")
    size = BURST if kind == "bursts" else 1
    count = rng.poisson(rate / size * seconds)
    return np.repeat(np.sort(rng.uniform(0, seconds, count)), size)


def arrivals(
    rng: np.random.Generator, kind: str, worker_count: int, rate: float, seconds: float, partition_count: int
) -> tuple[Times, Partitions]:
    """The records of all workers that share a producer, in order: their moments, and the partitions of their keys."""
    each = [worker_times(rng, kind, rate, seconds) for _ in range(worker_count)]
    times = np.sort(np.concatenate(each))
    return times, rng.integers(0, partition_count, len(times))
