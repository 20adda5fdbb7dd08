# SPDX-License-Identifier: Apache-2.0
"""Decide from the ratios of the rounds whether a contender differs from its peer. A slow round is slow for both.

The interval of the median ratio is that of order statistics (the inverted sign test). It assumes no distribution of
times, and is too wide for a verdict with fewer than five rounds. Two equal programs differ by some percent because
their code has different addresses, so a difference below a margin is no difference.

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
"""Five rounds reach 0.94, which suffices; four reach 0.88, which does not."""


class Verdict(enum.Enum):
    """The verdicts on a ratio."""

    BETTER = "better"
    WORSE = "worse"
    ALIKE = "not different"
    OPEN = "undecided"


class Reach(enum.Enum):
    """The verdicts on a goal."""

    REACHED = "reached"
    MISSED = "missed"
    OPEN = "open"


@dataclass(frozen=True)
class Interval:
    """An interval that contains the true median with the probability `confidence`."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Spread:
    """The median of values, and their deviation from it."""

    median: float
    lowest: float
    highest: float
    deviation: float
    """The median absolute deviation."""


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of at least one value."""
    median = statistics.median(values)
    return Spread(median, min(values), max(values), statistics.median(abs(value - median) for value in values))


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round."""
    return [one / other for one, other in zip(mine, theirs, strict=True)]


def interval(values: Sequence[float]) -> Interval:
    """Return the narrowest pair of values that contains the median with a probability of 95 %, or the outermost
    pair.
    """
    ordered = sorted(values)
    count = len(ordered)
    cut = 0
    while cut + 1 < (count + 1) // 2 and _confidence(count, cut + 1) >= CONFIDENCE:
        cut += 1
    return Interval(ordered[cut], ordered[count - 1 - cut], _confidence(count, cut))


def _confidence(count: int, cut: int) -> float:
    """Return the probability that the true median is within the values without the `cut` lowest and highest."""
    outside = sum(math.comb(count, index) for index in range(cut + 1))
    return 1.0 - outside / float(1 << (count - 1))


def exactly(value: float) -> Interval:
    """Return the interval of an exact value, such as a count of instructions."""
    return Interval(value, value, 1.0)


def reach(found: Interval, better: Better, bound: float) -> Reach:
    """Return the verdict on a goal: reached or missed if the whole interval is on one side of the bound."""
    if found.confidence < CONFIDENCE_MIN:
        return Reach.OPEN
    best, worst = (found.high, found.low) if better == "higher" else (found.low, found.high)
    if worst == bound or (worst > bound) == (better == "higher"):
        return Reach.REACHED
    return Reach.OPEN if best == bound or (best > bound) == (better == "higher") else Reach.MISSED


def judge(found: Interval, better: Better, margin: float = MARGIN) -> Verdict:
    """Return the verdict on the interval of a ratio to a peer. `better` is the direction of a good figure."""
    if found.confidence < CONFIDENCE_MIN:
        return Verdict.OPEN
    if found.low > 1 + margin:
        return Verdict.BETTER if better == "higher" else Verdict.WORSE
    if found.high < 1 / (1 + margin):
        return Verdict.WORSE if better == "higher" else Verdict.BETTER
    is_inside = found.low >= 1 / (1 + margin) and found.high <= 1 + margin
    return Verdict.ALIKE if is_inside else Verdict.OPEN
