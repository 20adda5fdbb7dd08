# SPDX-License-Identifier: Apache-2.0
"""Views that adapt to the terminal: pieces of a line, columns of a table, rows of a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from shmaccum.cli.drawing import Line, Screen, Span, Text, View, width_of

GAP = "   "
UNBOUNDED_WIDTH = 10_000


class Pieces:
    """Facts side by side. Lines break between facts, and inside a fact only if it is wider than a line."""

    def __init__(self, *pieces: str | Text) -> None:
        self._pieces = [Text(piece) if isinstance(piece, str) else piece for piece in pieces]

    def lines(self, screen: Screen) -> Iterator[Line]:
        """Yield lines with as many pieces as fit."""
        text = Text()
        for piece in self._pieces:
            if text.spans and width_of([*text.spans, Span(GAP), *piece.spans]) > screen.width:
                yield from text.lines(screen)
                text = Text()
            text.spans += [*([Span(GAP)] if text.spans else []), *piece.spans]
        yield from text.lines(screen)


class FirstThatFits:
    """The first of several forms of a view that fits the screen, or the last form if none fits."""

    def __init__(self, *forms: Callable[[], View]) -> None:
        self._forms = forms

    def lines(self, screen: Screen) -> Iterable[Line]:
        """Return the lines of the form that is chosen."""
        for form in self._forms[:-1]:
            lines = list(form().lines(screen.of_width(UNBOUNDED_WIDTH)))
            if max(map(width_of, lines), default=0) <= screen.width:
                return lines
        return self._forms[-1]().lines(screen)


class FittedToScreen:
    """A view of lists that is cut to the height of a screen that is repainted in place and cannot scroll.

    Args:
        make_view: makes a view that shows the given number of rows of each list.
        wanted: the number of rows of each list, the most important list first.
    """

    def __init__(self, make_view: Callable[[Sequence[int]], View], wanted: Sequence[int]) -> None:
        self._make_view = make_view
        self._wanted = wanted

    def lines(self, screen: Screen) -> Iterable[Line]:
        """Return the lines of the view, cut to the height of the screen."""
        shown = self._wanted if screen.height is None else self._shown(screen, screen.height)
        return self._make_view(shown).lines(screen)

    def _shown(self, screen: Screen, height: int) -> Sequence[int]:
        """Return the rows to show of each list. Each list has at least one row, or the last lists are omitted."""
        shown = self._wanted
        for list_count in range(len(self._wanted), 0, -1):
            shown = [count if index < list_count else 0 for index, count in enumerate(self._wanted)]
            while (surplus := len(list(self._make_view(shown).lines(screen))) - height) > 0 and max(shown) > 1:
                shown = reduce_largest(shown, surplus)
            if surplus <= 0:
                break
        return shown


def reduce_largest(counts: Sequence[int], surplus: int) -> list[int]:
    """Remove `surplus` in total, each time from the largest count. Counts stay at least 1."""
    left = list(counts)
    for _ in range(surplus):
        largest = max(range(len(left)), key=left.__getitem__)
        left[largest] = max(left[largest] - 1, min(left[largest], 1))
    return left
