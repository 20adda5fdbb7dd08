# SPDX-License-Identifier: Apache-2.0
"""Views that fit a terminal: pieces of a line, columns of a table, rows of a screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.text import Text

GAP = "   "
UNBOUNDED_WIDTH = 10_000


class Pieces:
    """Facts side by side. A line ends between two of them, and within one only where that is wider than the line."""

    def __init__(self, *pieces: str | Text) -> None:
        self._pieces = [Text(piece) if isinstance(piece, str) else piece for piece in pieces]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [Text()]
        for piece in self._pieces:
            if not lines[-1]:
                lines[-1] = piece.copy()
            elif cell_len(lines[-1].plain + GAP + piece.plain) <= options.max_width:
                lines[-1] = Text.assemble(lines[-1], GAP, piece)
            else:
                lines.append(piece.copy())
        for line in lines:
            line.overflow = "fold"
            yield line


class FirstThatFits:
    """The first of several forms of the same that needs no more columns than there are; the last if none does."""

    def __init__(self, *forms: Callable[[], RenderableType]) -> None:
        self._forms = forms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update_width(UNBOUNDED_WIDTH)
        for form in self._forms[:-1]:
            content = form()
            if Measurement.get(console, unbounded, content).maximum <= options.max_width:
                yield content
                return
        yield self._forms[-1]()


class FittedToScreen:
    """A view of lists that is cut to the rows of a screen that is painted over, where nobody can scroll.

    Args:
        make_view: the view that shows so many of each list.
        wanted: how many of each there are to show, the dearest list first.
    """

    def __init__(self, make_view: Callable[[Sequence[int]], RenderableType], wanted: Sequence[int]) -> None:
        self._make_view = make_view
        self._wanted = wanted

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._make_view(self._shown(console, options) if console.is_alt_screen else self._wanted)

    def _shown(self, console: Console, options: ConsoleOptions) -> Sequence[int]:
        """One row of each list at least, or of as many lists as there is room for."""
        shown = self._wanted
        for list_count in range(len(self._wanted), 0, -1):
            shown = [count if index < list_count else 0 for index, count in enumerate(self._wanted)]
            while (surplus := self._surplus(shown, console, options)) > 0 and max(shown) > 1:
                shown = fewer(shown, surplus)
            if surplus <= 0:
                break
        return shown

    def _surplus(self, shown: Sequence[int], console: Console, options: ConsoleOptions) -> int:
        """How many rows there are too many; below 0: how many are left."""
        return len(console.render_lines(self._make_view(shown), options)) - options.size.height


def fewer(counts: Sequence[int], surplus: int) -> list[int]:
    """Takes so many away, each from what is largest then; one of each stays."""
    left = list(counts)
    for _ in range(surplus):
        largest = max(range(len(left)), key=left.__getitem__)
        left[largest] = max(left[largest] - 1, min(left[largest], 1))
    return left
