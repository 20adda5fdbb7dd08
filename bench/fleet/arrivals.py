# SPDX-License-Identifier: Apache-2.0
"""The moments at which the workers of a producer send, and the partitions that their keys choose.

With ``poisson``, a worker sends records one by one at independent random moments. With ``bursts``, it sends `BURST`
records at each such moment, as a web request that causes several events. With ``paced``, it sends `PACED_BURST` records
at once, at equal distances from a random first moment, as in ``kafka_workers``.
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
    """Return the moments at which one worker sends.

    Args:
        rng: the random number generator.
        kind: one of `KINDS`.
        rate: records a second, on average.
        seconds: the length of the work, which begins at 0.

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
    """Return the moments and partitions of the records of all workers that share a producer, in order."""
    each = [worker_times(rng, kind, rate, seconds) for _ in range(worker_count)]
    times = np.sort(np.concatenate(each))
    return times, rng.integers(0, partition_count, len(times))
