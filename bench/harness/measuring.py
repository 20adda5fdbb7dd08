# SPDX-License-Identifier: Apache-2.0
"""Rounds of all contenders in turn, A B C A B C, so that a machine that slows down slows all of them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.harness.question import Contender, Guarantees, Measurement, UnavailableError

ROUND_COUNT_MIN = 5
"""Fewer prove nothing (`bench.harness.verdict`)."""

Clock = Callable[[], float]


@dataclass
class Series:
    """All measurements of one contender, in the order of the rounds."""

    contender: str
    peer: str
    version: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    guarantees: Guarantees | None = None

    def values(self, figure: str) -> list[float]:
        """One figure; empty if the contender does not have it."""
        return [measurement[figure] for measurement in self.measurements if figure in measurement]


@dataclass
class Measured:
    """The outcome: a series for each that could run, a sentence for each that could not."""

    series: list[Series]
    missing: dict[str, str]


def note(text: str) -> None:
    """Progress, beside the answers."""
    print(text, file=sys.stderr, flush=True)


def measure_once(contenders: Sequence[Contender], peer: str) -> Measured:
    """Exact contenders: one measurement each, without a warm-up."""
    missing: dict[str, str] = {}
    found = [(contender, _first(contender, missing)) for contender in contenders]
    series = [_series(contender, peer) for contender, measurement in found if measurement is not None]
    for each, measurement in zip(series, (one for _, one in found if one is not None), strict=True):
        each.measurements.append(measurement)
    return Measured(series, missing)


def measure(
    contenders: Sequence[Contender],
    peer: str,
    repetitions: int,
    seconds: float,
    seconds_max: float = math.inf,
    clock: Clock = time.monotonic,
) -> Measured:
    """A warm-up each, then `repetitions` rounds, or as many as fit into `seconds` altogether, but at least five.

    On a machine that is too slow for that, as many as fit into `seconds_max`, but one.
    """
    begin_s = clock()
    missing: dict[str, str] = {}
    able = [contender for contender in contenders if _first(contender, missing) is not None]
    series = [_series(each, peer) for each in able]
    longest = 0.0
    for number in range(repetitions):
        allowed_s = seconds if number >= ROUND_COUNT_MIN else seconds_max
        if number > 0 and clock() + longest > begin_s + allowed_s:
            break
        begin = clock()
        _round(able, series, number)
        longest = max(longest, clock() - begin)
    return Measured(series, missing)


def _series(contender: Contender, peer: str) -> Series:
    version = contender.version() if contender.version else ""
    return Series(contender.name, contender.peer or peer, version, guarantees=contender.guarantees)


def _first(contender: Contender, missing: dict[str, str]) -> Measurement | None:
    """The first run, which warms up. None: it cannot run here, and `missing` says why."""
    try:
        return _run(contender)
    except (UnavailableError, ModuleNotFoundError) as error:
        missing[contender.name] = str(error)
        note(f"  {contender.name} is missing: {error}")
        return None


def _round(contenders: Sequence[Contender], series: Sequence[Series], number: int) -> None:
    """Each contender once. The first one changes, so that no contender always follows the same other."""
    for step in range(len(contenders)):
        index = (number + step) % len(contenders)
        series[index].measurements.append(_run(contenders[index]))


def _run(contender: Contender) -> Measurement:
    """While everybody else stands still."""
    with contender.hold.lifted():
        return contender.run()
