# SPDX-License-Identifier: Apache-2.0
"""Convert latencies to figures of a question."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.harness.question import Figure, Measurement

FIGURES = (
    Figure("p50_ns", "µs", 1e-3, "lower", "median"),
    Figure("p99_ns", "µs", 1e-3, "lower", "99 % within"),
    Figure("p999_ns", "µs", 1e-3, "lower", "99.9 % within"),
)
NAME = re.compile(r"p\d+_ns")
SHARES = {"p50_ns": 0.5, "p99_ns": 0.99, "p999_ns": 0.999}


def percentiles(latencies_ns: Sequence[int]) -> Measurement:
    """Return the percentiles of at least one latency."""
    ordered = sorted(latencies_ns)
    last = len(ordered) - 1
    return {name: float(ordered[min(int(len(ordered) * share), last)]) for name, share in SHARES.items()}


def is_percentile(figure: str) -> bool:
    """Return whether a figure of that name is a percentile of latencies."""
    return NAME.fullmatch(figure) is not None
