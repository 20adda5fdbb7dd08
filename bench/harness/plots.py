# SPDX-License-Identifier: Apache-2.0
"""Draw an answer. Each round of each contender is a dot, and each median is a line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.question import Figure
from bench.harness.results import Answer
from bench.harness.table import caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES_WIDE, INCHES_PER_CONTENDER, INCHES_AROUND = 8.0, 0.3, 1.0
DOTS_PER_INCH = 80
FAR = 30
"""If the values of a figure differ by a larger factor, its scale is logarithmic."""


def plot(answer: Answer, folder: Path) -> Path:
    """Draw ``FOLDER/QUESTION.png`` with a panel for each figure. Raise ModuleNotFoundError without matplotlib."""
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("agg")
    height = INCHES_AROUND + INCHES_PER_CONTENDER * len(answer.series)
    size = (INCHES_WIDE, height * len(answer.figures))
    drawing, panels = pyplot.subplots(len(answer.figures), squeeze=False, figsize=size, layout="constrained")
    for panel, figure in zip(panels[:, 0], answer.figures, strict=True):
        _draw(panel, answer, figure)
    drawing.suptitle(answer.title, fontsize="medium")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{answer.question}.png"
    drawing.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(drawing)
    return path


def _draw(panel: Axes, answer: Answer, figure: Figure) -> None:
    series = [each for each in reversed(answer.series) if each.values(figure.name)]
    rows: list[Any] = [[value * figure.scale for value in each.values(figure.name)] for each in series]
    for place, values in enumerate(rows):
        panel.plot(values, [place] * len(values), "o", alpha=0.5, color="tab:blue", markersize=4)
        median = answer.spread(series[place].contender, figure)
        assert median is not None, "it has values"
        panel.plot([median.median], [place], "|", color="black", markersize=12)
    panel.set_yticks(range(len(series)), [each.contender for each in series], fontsize="small")
    panel.set_xlabel(caption(figure), fontsize="small")
    flat = [value for values in rows for value in values]
    if flat and min(flat) > 0 and max(flat) > FAR * min(flat):
        panel.set_xscale("log")
    else:
        panel.set_xlim(left=0)
    panel.grid(axis="x", alpha=0.3)
