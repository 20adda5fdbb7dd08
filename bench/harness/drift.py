# SPDX-License-Identifier: Apache-2.0
"""Compare the ratios of a question with the committed ones. Absolute figures differ between machines."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.question import Figure
from bench.harness.results import Answer
from bench.harness.verdict import MARGIN, ratios


def drift(before: Answer, now: Answer) -> Iterator[str]:
    """Yield a sentence for each ratio that is outside the range of all rounds of `before` and a margin."""
    for series in before.series:
        for figure in before.figures:
            yield from _drift(before, now, series.contender, figure)


def _drift(before: Answer, now: Answer, contender: str, figure: Figure) -> Iterator[str]:
    mine, compared = before.find(contender), now.compared(contender, figure)
    if mine is None or compared is None or before.compared(contender, figure) is None:
        return
    peer = before.find(mine.peer)
    assert peer is not None, "a compared contender has a peer"
    stated = ratios(mine.values(figure.name), peer.values(figure.name))
    low, high = min(stated) / (1 + MARGIN), max(stated) * (1 + MARGIN)
    if not low <= compared.ratio <= high:
        yield (
            f"{contender}, {figure.name}: {compared.ratio:.3g} times {compared.peer},"
            f" but bench/results has {min(stated):.3g} to {max(stated):.3g}"
        )
