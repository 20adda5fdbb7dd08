# SPDX-License-Identifier: Apache-2.0
"""Measure all contenders in turn, A B C A B C, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.harness.question import Contender, Guarantees, Measurement, UnavailableError

ROUND_COUNT_MIN = 5
"""With fewer rounds there is no verdict (`bench.harness.verdict`)."""

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
        """Return the values of one figure, or an empty list if the contender does not have it."""
        return [measurement[figure] for measurement in self.measurements if figure in measurement]


@dataclass
class Measured:
    """A series for each contender that ran, and the reason for each that could not run."""

    series: list[Series]
    missing: dict[str, str]


def note(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def measure(
    contenders: Sequence[Contender],
    peer: str,
    repetitions: int,
    seconds: float,
    seconds_max: float = math.inf,
    *,
    has_warm_up: bool = True,
    clock: Clock = time.monotonic,
) -> Measured:
    """Warm each contender up, and run at most `repetitions` rounds. Without a warm-up, the first run is a round.

    From the sixth round on, a round runs only if it fits into `seconds`; an earlier one only if it fits into
    `seconds_max`. The first round always runs.
    """
    begin_s = clock()
    missing: dict[str, str] = {}
    able, series = _able(contenders, peer, missing)
    longest = clock() - begin_s
    if has_warm_up:
        longest = 0.0
        for each in series:
            each.measurements.clear()
    for number in range(0 if has_warm_up else 1, repetitions):
        allowed_s = seconds if number >= ROUND_COUNT_MIN else seconds_max
        if number > 0 and clock() + longest > begin_s + allowed_s:
            break
        begin = clock()
        _round(able, series, number)
        longest = max(longest, clock() - begin)
    return Measured(series, missing)


def _able(contenders: Sequence[Contender], peer: str, missing: dict[str, str]) -> tuple[list[Contender], list[Series]]:
    """Run each contender once. Return those that can run, each with a series of that run."""
    firsts = [(contender, _first(contender, missing)) for contender in contenders]
    found = [(contender, first) for contender, first in firsts if first is not None]
    return [contender for contender, _ in found], [_series(contender, peer, first) for contender, first in found]


def _series(contender: Contender, peer: str, first: Measurement) -> Series:
    version = contender.version() if contender.version else ""
    return Series(contender.name, contender.peer or peer, version, [first], contender.guarantees)


def _first(contender: Contender, missing: dict[str, str]) -> Measurement | None:
    """Run a contender the first time. If it cannot run, add the reason to `missing` and return None."""
    try:
        return _run(contender)
    except (UnavailableError, ModuleNotFoundError) as error:
        missing[contender.name] = str(error)
        note(f"  {contender.name} is missing: {error}")
        return None


def _round(contenders: Sequence[Contender], series: Sequence[Series], number: int) -> None:
    """Run each contender once. Each round begins with another contender, so no contender always follows the same
    one.
    """
    for step in range(len(contenders)):
        index = (number + step) % len(contenders)
        series[index].measurements.append(_run(contenders[index]))


def _run(contender: Contender) -> Measurement:
    """Run a contender while the processes of all others are stopped."""
    with contender.stopped.running():
        return contender.run()
