# SPDX-License-Identifier: Apache-2.0
"""Is a contender different from its peer? Judged by the ratios of the rounds, since what slows a round slows both.

The interval of the median ratio is that of order statistics (the sign test turned around): it assumes nothing about how
times are distributed, and of fewer than five rounds it says honestly that they prove little. Two programs that do the
same differ by some percent anyhow, because their bytes lie elsewhere; so a difference counts only beyond a margin.

Source: the distribution-free interval for a median, e.g. J. D. Gibbons, Nonparametric Statistical Inference, 5.2.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness.question import Better

MARGIN = 0.05
CONFIDENCE = 0.95
CONFIDENCE_MIN = 0.90
"""Five rounds reach 0.94 and may judge; four reach 0.88 and may not."""


class Verdict(enum.Enum):
    """The verdicts on a ratio."""

    BETTER = "better"
    WORSE = "worse"
    ALIKE = "not different"
    OPEN = "undecided"


@dataclass(frozen=True)
class Interval:
    """Holds the median of all rounds that could have been with the probability `confidence`."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Spread:
    """Where the middle is, and how far the values are from it."""

    median: float
    lowest: float
    highest: float
    deviation: float
    """The median absolute deviation."""


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    median = statistics.median(values)
    return Spread(median, min(values), max(values), statistics.median(abs(value - median) for value in values))


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(mine, theirs, strict=True)]


def interval(values: Sequence[float]) -> Interval:
    """The narrowest pair of values that holds the median with 95 %; the outermost pair where that is not enough."""
    ordered = sorted(values)
    count = len(ordered)
    cut = 0
    while cut + 1 < (count + 1) // 2 and _confidence(count, cut + 1) >= CONFIDENCE:
        cut += 1
    return Interval(ordered[cut], ordered[count - 1 - cut], _confidence(count, cut))


def _confidence(count: int, cut: int) -> float:
    """How likely the median of the population lies between the values that `cut` others are below and above of."""
    outside = sum(math.comb(count, index) for index in range(cut + 1))
    return 1.0 - outside / float(1 << (count - 1))


def exactly(value: float) -> Interval:
    """Of what is counted and not timed."""
    return Interval(value, value, 1.0)


def judge(found: Interval, better: Better, margin: float = MARGIN) -> Verdict:
    """The verdict of the interval of a ratio to a peer, if `better` is the direction in which a figure should go."""
    if found.confidence < CONFIDENCE_MIN:
        return Verdict.OPEN
    if found.low > 1 + margin:
        return Verdict.BETTER if better == "higher" else Verdict.WORSE
    if found.high < 1 / (1 + margin):
        return Verdict.WORSE if better == "higher" else Verdict.BETTER
    is_inside = found.low >= 1 / (1 + margin) and found.high <= 1 + margin
    return Verdict.ALIKE if is_inside else Verdict.OPEN
