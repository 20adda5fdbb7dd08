# SPDX-License-Identifier: Apache-2.0
"""The first comparison of each question on other machines, in ``bench/harness/machines.csv``.

``bench/results`` has every measurement of one machine. `page` shows the ratios of the others beside them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.harness.results import Answer
from setup import ROOT

KEPT = ROOT / "bench" / "harness" / "machines.csv"
NUMBERS = ("median", "ratio", "low", "high")
DIGITS = 3


@dataclass(frozen=True)
class Elsewhere:
    """A comparison that was measured on another machine.

    Attributes:
        machine: its name on the page.
        question: the question's name.
        contender, peer: the names of shmaccum's contender and of its peer.
        figure: the figure's name.
        unit: the figure's unit.
        median: the contender's median, in that unit.
        ratio: the median of the ratios to the peer.
        low, high: the ends of the interval of the ratio.
        revision, day, load: the revision of the sources, the day of the measurement, and the machine's load before it.
    """

    machine: str
    question: str
    contender: str
    figure: str
    unit: str
    peer: str
    median: float
    ratio: float
    low: float
    high: float
    revision: str
    day: str
    load: str


def rows_of(answers: Iterable[Answer], machine: str) -> Iterator[Elsewhere]:
    """Yield the comparisons of each answer that are on the page."""
    for answer in answers:
        for contender, figure, compared in answer.headlines():
            spread = answer.spread(contender, figure)
            assert spread is not None, "a contender that is compared was measured"
            between = compared.interval
            names = (machine, answer.question, contender, figure.name, figure.unit, compared.peer)
            median, ratio, low, high = map(_rounded, (spread.median, compared.ratio, between.low, between.high))
            yield Elsewhere(*names, median, ratio, low, high, *_facts(answer))


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def others(rows: Iterable[Elsewhere], answers: Iterable[Answer]) -> list[Elsewhere]:
    """Return the rows that do not come from the measurements of `answers`."""
    own = {(answer.question, *_facts(answer)) for answer in answers}
    return [row for row in rows if (row.question, row.revision, row.day, row.load) not in own]


def _facts(answer: Answer) -> tuple[str, str, str]:
    return answer.machine["revision"], answer.machine["day"], answer.machine["load before"]


def load(path: Path = KEPT) -> list[Elsewhere]:
    """Return all rows in the order of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(words: Mapping[str, Any]) -> Elsewhere:
    return Elsewhere(**{**words, **{name: float(words[name]) for name in NUMBERS}})


def save(rows: Iterable[Elsewhere], path: Path = KEPT) -> None:
    """Write the file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Elsewhere)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def keep(answers: Iterable[Answer], machine: str, path: Path = KEPT) -> None:
    """Add the answers of another machine, and replace rows of the same machine and question."""
    new = list(rows_of(answers, machine))
    replaced = {(row.machine, row.question) for row in new}
    save([row for row in load(path) if (row.machine, row.question) not in replaced] + new, path)
