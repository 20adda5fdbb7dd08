# SPDX-License-Identifier: Apache-2.0
"""Rounds of all contenders in turn, A B C A B C, so that a machine that slows down slows all of them."""

from __future__ import annotations

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
    """What came out: a series for each that could run, a sentence for each that could not."""

    series: list[Series]
    missing: dict[str, str]


def note(text: str) -> None:
    """Progress, beside the answers."""
    print(text, file=sys.stderr, flush=True)


def measure(
    contenders: Sequence[Contender], peer: str, repetitions: int, seconds: float, clock: Clock = time.monotonic
) -> Measured:
    """A warm-up each, then `repetitions` rounds, or as many as fit into `seconds` altogether, but at least five."""
    deadline = clock() + seconds
    missing: dict[str, str] = {}
    able = [contender for contender in contenders if _warm_up(contender, missing)]
    series = [_series(each, peer) for each in able]
    longest = 0.0
    for number in range(repetitions):
        if number >= ROUND_COUNT_MIN and clock() + longest > deadline:
            break
        begin = clock()
        _round(able, series, number)
        longest = max(longest, clock() - begin)
    return Measured(series, missing)


def _series(contender: Contender, peer: str) -> Series:
    version = contender.version() if contender.version else ""
    return Series(contender.name, contender.peer or peer, version, guarantees=contender.guarantees)


def _warm_up(contender: Contender, missing: dict[str, str]) -> bool:
    """False: it cannot run here, and `missing` says why."""
    try:
        contender.run()
    except (UnavailableError, ModuleNotFoundError) as error:
        missing[contender.name] = str(error)
        note(f"  {contender.name} is missing: {error}")
        return False
    return True


def _round(contenders: Sequence[Contender], series: Sequence[Series], number: int) -> None:
    """Everybody once; who begins changes from round to round, so that nobody always follows the same one."""
    for step in range(len(contenders)):
        index = (number + step) % len(contenders)
        series[index].measurements.append(contenders[index].run())
