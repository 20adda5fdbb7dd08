# SPDX-License-Identifier: Apache-2.0
"""The prices of a broker and of clients, computed from the runs of ``bench.fleet.check``.

A broker pays for each request, each batch and each record; the clients of a design pay for each request and each
record. The prices minimize the squares of the relative errors of all runs, and none is negative.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEASURED = Path(__file__).with_name("measured.json")
BROKER_COUNTS = ("request_count", "batch_count", "record_count")
CLIENT_COUNTS = ("request_count", "record_count")

Run = dict[str, Any]


@dataclass(frozen=True)
class Prices:
    """Seconds of processor time for a request, a batch and a record."""

    of: dict[str, float]

    def cost_s(self, counts: dict[str, float]) -> float:
        return sum(price * counts[name] for name, price in self.of.items())


def load(path: Path = MEASURED) -> dict[str, Any]:
    """Return the runs, with the machine, the day, and the share of a core of the idle broker."""
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def fit(runs: Sequence[Run], names: Sequence[str], seconds: Sequence[float]) -> Prices:
    """Return the prices of `names` that fit the seconds of the runs best.

    Each subset of the prices is tried, with all others at zero. For three prices there are seven subsets.
    """
    wanted = np.asarray(seconds)
    weighed = np.array([[run[name] for name in names] for run in runs], dtype=float) / wanted[:, None]
    best, least = np.zeros(len(names)), float("inf")
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), size):
            prices = _solve(weighed, chosen)
            error = float(np.sum((weighed @ prices - 1) ** 2))
            if min(prices) >= 0 and error < least:
                best, least = prices, error
    return Prices(dict(zip(names, best.tolist(), strict=True)))


def _solve(weighed: NDArray[np.float64], chosen: Sequence[int]) -> NDArray[np.float64]:
    prices = np.zeros(weighed.shape[1])
    prices[list(chosen)] = np.linalg.lstsq(weighed[:, list(chosen)], np.ones(len(weighed)), rcond=None)[0]
    return prices


def broker_seconds(kept: dict[str, Any]) -> list[float]:
    """Return the processor time of the broker in each run, less that of an idle broker."""
    return [max(run["broker_s"] - kept["idle_share"] * run["seconds"], 1e-6) for run in kept["runs"]]


def broker_prices(kept: dict[str, Any]) -> Prices:
    """Return the prices of a broker from the runs of both designs."""
    return fit(kept["runs"], BROKER_COUNTS, broker_seconds(kept))


def client_prices(kept: dict[str, Any], design: str) -> Prices:
    """Return the prices of a host's processes from the runs of one design."""
    runs = [run for run in kept["runs"] if run["design"] == design]
    return fit(runs, CLIENT_COUNTS, [run["client_s"] for run in runs])
