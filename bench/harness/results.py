# SPDX-License-Identifier: Apache-2.0
"""The answer to a question as a file: all measurements, the machine, and the versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness.measuring import Measured, Series
from bench.harness.percentiles import is_percentile
from bench.harness.question import Figure, Goal, Guarantees, Question
from bench.harness.verdict import Interval, Reach, Spread, Verdict, exactly, interval, judge, ratios, reach, spread
from setup import ROOT

RESULTS = ROOT / "bench" / "results"
SIGNIFICANT_DIGITS = 5


@dataclass(frozen=True)
class Comparison:
    """A contender beside its peer in one figure: the median of the ratios of the rounds, its interval and verdict."""

    peer: str
    ratio: float
    interval: Interval
    verdict: Verdict


@dataclass(frozen=True)
class Reached:
    """A goal, and its measured value."""

    goal: Goal
    figure: Figure
    value: float
    interval: Interval
    compared: Comparison | None

    @property
    def reach(self) -> Reach:
        """The verdict on the goal, by the interval."""
        return reach(self.interval, self.figure.better, self.goal.bound)


@dataclass
class Answer:
    """A question, the machine on which it was measured, and its measurements."""

    question: str
    title: str
    figures: list[Figure]
    goals: list[Goal]
    machine: dict[str, str]
    series: list[Series]
    missing: dict[str, str]
    is_exact: bool = False

    @property
    def command(self) -> str:
        """The command that measures it again."""
        return f"python -m bench {self.question}"

    def figure(self, name: str) -> Figure:
        """Return the figure of that name."""
        return next(figure for figure in self.figures if figure.name == name)

    def found(self, goal: Goal) -> Reached | None:
        """Return the measured value of a goal, or None if it was not measured."""
        figure = self.figure(goal.figure)
        measured, compared = self.spread(goal.contender, figure), self.compared(goal.contender, figure, goal.peer)
        if measured is None or (goal.is_ratio and compared is None):
            return None
        value = compared.ratio if goal.is_ratio and compared else measured.median
        between = compared.interval if goal.is_ratio and compared else self.interval(goal.contender, figure)
        return Reached(goal, figure, value, between, compared)

    def find(self, contender: str) -> Series | None:
        """Return the series of a contender, or None if it has none."""
        return next((series for series in self.series if series.contender == contender), None)

    def _values(self, contender: str, figure: Figure) -> list[float]:
        series = self.find(contender)
        return [value * figure.scale for value in series.values(figure.name)] if series else []

    def spread(self, contender: str, figure: Figure) -> Spread | None:
        """Return the spread in the figure's unit, or None if the figure was not measured."""
        values = self._values(contender, figure)
        return spread(values) if values else None

    def interval(self, contender: str, figure: Figure) -> Interval:
        """Return the interval of the median in the figure's unit. The figure must have been measured."""
        values = self._values(contender, figure)
        return exactly(values[0]) if self.is_exact else interval(values)

    def compared(self, contender: str, figure: Figure, peer: str = "") -> Comparison | None:
        """Compare a contender with its peer, or with `peer`.

        Return None if one of them has no such figure, and for the peer itself.
        """
        mine = self.find(contender)
        theirs = self.find(peer or mine.peer) if mine else None
        if mine is None or theirs is None or mine is theirs:
            return None
        pair = mine.values(figure.name), theirs.values(figure.name)
        if not all(pair) or not all(pair[1]):
            return None
        found = ratios(*pair)
        ratio = spread(found).median
        between = exactly(ratio) if self.is_exact else interval(found)
        return Comparison(theirs.contender, ratio, between, judge(between, figure.better))

    def headline(self) -> tuple[str, Figure, Comparison] | None:
        """Return the comparison of the first contender, which is shmaccum's: contender, figure and result.

        Return None if its peer was not measured.
        """
        return next(iter(self.headlines()), None)

    def headlines(self) -> list[tuple[str, Figure, Comparison]]:
        """Return the comparison of the first contender in its first figure. If the figures are latencies, add every
        percentile.
        """
        ours = self.series[0].contender
        compared = [(figure, self.compared(ours, figure)) for figure in self.figures]
        found = [(ours, figure, comparison) for figure, comparison in compared if comparison]
        percentile_rows = [row for row in found if is_percentile(row[1].name)]
        return percentile_rows if found[:1] == percentile_rows[:1] else found[:1]


def answer(name: str, question: Question, machine: dict[str, str], measured: Measured) -> Answer:
    """Combine a question and its measurements."""
    figures, goals = list(question.figures), list(question.goals)
    facts = (name, question.title, figures, goals, machine, measured.series, measured.missing, question.is_exact)
    return Answer(*facts)


# --- as JSON


def to_json(answered: Answer) -> str:
    """Return JSON with one line for the series of each contender, so that a diff is readable."""
    parts: dict[str, Any] = asdict(answered)
    series = [_series_row(each) for each in answered.series]
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in parts.items() if key != "series"]
    rows = ",\n".join(f"    {json.dumps(row)}" for row in series)
    return "{\n" + ",\n".join([*lines, f'  "series": [\n{rows}\n  ]']) + "\n}\n"


def _series_row(series: Series) -> dict[str, Any]:
    names = list(dict.fromkeys(name for measurement in series.measurements for name in measurement))
    values = {name: [_rounded(value) for value in series.values(name)] for name in names}
    guarantees = asdict(series.guarantees) if series.guarantees else None
    names_and_values = {"contender": series.contender, "peer": series.peer, "version": series.version, "values": values}
    return {**names_and_values, "guarantees": guarantees}


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def from_json(text: str) -> Answer:
    """Return the answer in the text of `to_json`. Values have five digits."""
    parts = json.loads(text)
    parts["figures"] = [Figure(**figure) for figure in parts["figures"]]
    parts["goals"] = [Goal(**goal) for goal in parts["goals"]]
    parts["series"] = [_series(row) for row in parts["series"]]
    return Answer(**parts)


def _series(row: dict[str, Any]) -> Series:
    values: dict[str, list[float]] = row.pop("values")
    guarantees = row.pop("guarantees", None)
    round_count = max((len(column) for column in values.values()), default=0)
    measurements = [
        {name: column[number] for name, column in values.items() if number < len(column)}
        for number in range(round_count)
    ]
    return Series(**row, measurements=measurements, guarantees=Guarantees(**guarantees) if guarantees else None)


def lines(answered: Answer) -> Iterator[str]:
    """Yield each measurement as a line of JSON, with the machine."""
    for series in answered.series:
        for number, measurement in enumerate(series.measurements):
            facts = {"question": answered.question, "contender": series.contender, "round": number}
            yield json.dumps({**facts, **measurement, "machine": answered.machine})


# --- as files


def save(answered: Answer, folder: Path) -> Path:
    """Save an answer as ``FOLDER/QUESTION.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{answered.question}.json"
    path.write_text(to_json(answered), encoding="utf-8")
    return path


def load(folder: Path = RESULTS) -> dict[str, Answer]:
    """Return all answers of a folder by the name of the question."""
    paths = sorted(folder.glob("*.json"))
    return {path.stem: from_json(path.read_text(encoding="utf-8")) for path in paths}
