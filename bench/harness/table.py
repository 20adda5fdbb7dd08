# SPDX-License-Identifier: Apache-2.0
"""Render an answer as tables for the terminal."""

from __future__ import annotations

from dataclasses import astuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.harness.question import Figure
from bench.harness.results import Answer, Comparison
from bench.harness.verdict import Verdict

STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "yellow", Verdict.ALIKE: "", Verdict.OPEN: "dim"}


def spell(value: float) -> str:
    """Return three significant digits, or all digits before the point."""
    size = abs(value)
    digits = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def caption(figure: Figure) -> str:
    """Return the description of a figure, its unit, and its better direction."""
    return f"{figure.what + ', ' if figure.what else ''}{figure.unit}; {figure.better} is better"


def render(answer: Answer) -> RenderableType:
    """Return a table for each figure, the goals, the guarantees, and the missing contenders."""
    parts: list[RenderableType] = [Text(f"\n{answer.title}", style="bold")]
    parts += [_table(answer, figure) for figure in answer.figures]
    parts += [_goals(answer)] if any(map(answer.found, answer.goals)) else []
    parts += [_guarantees(answer)] if any(series.version or series.guarantees for series in answer.series) else []
    parts += [Text(f"missing: {name}: {reason}", style="dim") for name, reason in answer.missing.items()]
    return Group(*parts)


def _table(answer: Answer, figure: Figure) -> Table:
    table = Table(title=caption(figure), title_justify="left", title_style="dim")
    for name in ("", "median", "±", "lowest", "highest", "ratio", "interval", "peer"):
        table.add_column(name, justify="left" if name in ("", "peer") else "right")
    for series in answer.series:
        spread = answer.spread(series.contender, figure)
        cells = (spread.median, spread.deviation, spread.lowest, spread.highest) if spread else ()
        spelled = [spell(cell) for cell in cells] or ["-"] * 4
        table.add_row(series.contender, *spelled, *_comparison_cells(answer.compared(series.contender, figure)))
    return table


def _goals(answer: Answer) -> Table:
    """Return the table of the measured goals."""
    table = Table(title="goals", title_justify="left", title_style="dim")
    for name in ("", "goal", "median", "interval", "verdict"):
        table.add_column(name, justify="left" if name in ("", "verdict") else "right")
    for found in filter(None, map(answer.found, answer.goals)):
        sign = "≥" if found.figure.better == "higher" else "≤"
        unit = "of the peer" if found.goal.is_ratio else found.figure.unit
        between = f"{spell(found.interval.low)} to {spell(found.interval.high)}"
        bound = f"{sign} {spell(found.goal.bound)} {unit}"
        table.add_row(found.goal.what, bound, spell(found.value), between, found.reach.value)
    return table


def _guarantees(answer: Answer) -> Table:
    """Return the table of versions and guarantees."""
    table = Table(title="guarantees", title_justify="left", title_style="dim")
    for name in ("", "version", "keeps a", "order by", "checksum", "sent, then kill -9"):
        table.add_column(name)
    for series in answer.series:
        words = astuple(series.guarantees) if series.guarantees else ("-",) * 4
        table.add_row(series.contender, series.version or "-", *words)
    return table


def _comparison_cells(comparison: Comparison | None) -> list[str | Text]:
    if comparison is None:
        return []
    style = STYLES[comparison.verdict]
    between = f"{spell(comparison.interval.low)} to {spell(comparison.interval.high)}"
    return [
        Text(spell(comparison.ratio), style),
        between,
        f"{comparison.verdict.value} than {comparison.peer}"
        if comparison.verdict in (Verdict.BETTER, Verdict.WORSE)
        else f"{comparison.verdict.value}: {comparison.peer}",
    ]
