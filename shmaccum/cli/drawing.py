# SPDX-License-Identifier: Apache-2.0
"""Texts and tables as terminal lines.

::

    view  --(screen: the available width and height)-->  lines, each a list of spans: text in one style

A view is drawn again for each screen, so a table can omit a column on a narrow terminal. No rendering library is used:
importing one would take longer than a command that prints one view.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple, Protocol

GAP_WIDTH = 2
"""Blanks between two columns of a table."""
FOLDED_WIDTH_MIN = 8
"""The least width of a folded column, in cells, while other columns can still be narrowed."""
STYLES = {
    "bold": "1",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "white": "37",
    "bright_black": "90",
}
"""The words of a style, and their terminal codes (ECMA-48, Select Graphic Rendition)."""
PROBLEM = "bold red"
QUIET = "bright_black"


class Screen(NamedTuple):
    """The size and abilities of the output.

    Attributes:
        width: the cells of a line.
        height: the lines of a screen that is repainted in place. If None, the output is unlimited.
        has_unicode: whether characters beyond ASCII can be shown.
    """

    width: int
    height: int | None = None
    has_unicode: bool = True

    def of_width(self, width: int) -> Screen:
        """Return the same screen with another width, of at least one cell."""
        return self._replace(width=max(width, 1))


class Span(NamedTuple):
    """Text in one style. An empty style is the terminal's default."""

    text: str
    style: str = ""


Line = list[Span]


class View(Protocol):
    """An object that can be drawn."""

    def lines(self, screen: Screen) -> Iterable[Line]:
        """Return the lines for this screen."""


def drawn(view: View, screen: Screen, *, has_color: bool = False) -> list[str]:
    """Return the lines of a view as terminal text, without trailing blanks, none wider than the screen."""
    lines = (_cropped(line, screen.width) for line in view.lines(screen))
    return ["".join(_spelled(span) if has_color else span.text for span in line) for line in lines]


def _cropped(line: Line, width: int) -> Line:
    """Return the part of a line that fits. A table of many columns may be wider than the screen."""
    return line if width_of(line) <= width else _sliced(line, 0, _fitting("".join(span.text for span in line), width))


def _spelled(span: Span) -> str:
    numbers = ";".join(STYLES[word] for word in span.style.split())
    return f"\x1b[{numbers}m{span.text}\x1b[0m" if numbers else span.text


# --- cells


def _cell_count_of(letter: str) -> int:
    if unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1


def cell_count(text: str) -> int:
    """Return the number of cells that a text takes. An ideograph takes two, a combining accent none."""
    return len(text) if text.isascii() else sum(map(_cell_count_of, text))


def width_of(line: Line) -> int:
    """Return the number of cells that a line takes."""
    return sum(cell_count(span.text) for span in line)


def _fitting(text: str, width: int) -> int:
    """Return how many leading characters take at most `width` cells."""
    if text.isascii():
        return min(width, len(text))
    left = width
    for index, letter in enumerate(text):
        left -= _cell_count_of(letter)
        if left < 0:
            return index
    return len(text)


def _sliced(line: Line, start: int, end: int) -> Line:
    """Return the characters from `start` up to `end` in their styles."""
    found, place = [], 0
    for text, style in line:
        if piece := text[max(start - place, 0) : max(end - place, 0)]:
            found.append(Span(piece, style))
        place += len(text)
    return found


def _folds(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each line. A line ends at a blank, or inside a word that is wider than a line."""
    start = 0
    while cell_count(text[start:]) > width:
        end = start + max(_fitting(text[start:], width), 1)
        blank = text.rfind(" ", start, end + 1)
        stop = len(text[:blank].rstrip()) if blank > start else 0
        if stop <= start:
            stop = end
        yield start, stop
        start = len(text) - len(text[stop:].lstrip(" "))
    yield start, max(start, len(text.rstrip(" ")))


# --- texts


def readable(text: str) -> str:
    """Return the text with control characters escaped, except line feeds."""
    if text.isprintable():
        return text
    return "\n".join(map(readable_line, text.split("\n")))


def readable_line(text: str) -> str:
    """Return the text in one line with control characters escaped, for names from untrusted sources."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def format_time(milliseconds: int, precision: str = "milliseconds") -> str:
    """Return a wall clock time as text. If it is out of range, return the number of milliseconds."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
    return moment.isoformat(sep=" ", timespec=precision).replace("+00:00", " UTC")


class Text:
    """A text in one or more styles. By default, a text that is too wide continues on the next line.

    Args:
        text: the text; a line feed starts a new line.
        style: words of `STYLES`.
        is_cut: whether a line that is too wide is cut and ends in an ellipsis.
    """

    def __init__(self, text: str = "", style: str = "", *, is_cut: bool = False) -> None:
        self.spans: Line = []
        self._is_cut = is_cut
        self.append(text, style)

    def append(self, text: str, style: str = "") -> Text:
        """Add text in a style, and return this object."""
        if text:
            self.spans.append(Span(readable(text), style))
        return self

    def __str__(self) -> str:
        return "".join(span.text for span in self.spans)

    def _paragraphs(self) -> Iterator[tuple[str, Line]]:
        """Yield the lines between the line feeds of the text."""
        start = 0
        for text in str(self).split("\n"):
            yield text, _sliced(self.spans, start, start + len(text))
            start += len(text) + 1

    def lines(self, screen: Screen) -> Iterator[Line]:
        """Return the lines of the text, cut or folded."""
        return self.cut_lines(screen) if self._is_cut else self.folded_lines(screen)

    def cut_lines(self, screen: Screen) -> Iterator[Line]:
        """Yield one line for each line of the text. A line that is too wide ends in an ellipsis."""
        for text, line in self._paragraphs():
            if cell_count(text) <= screen.width:
                yield line
            else:
                head = _sliced(line, 0, _fitting(text, screen.width - 1))
                yield [*head, Span("…" if screen.has_unicode else ".", head[-1].style if head else "")]

    def folded_lines(self, screen: Screen) -> Iterator[Line]:
        """Yield as many lines as the text needs."""
        for text, line in self._paragraphs():
            for start, end in _folds(text, screen.width):
                yield _sliced(line, start, end)


def view_of(part: str | View) -> View:
    """Return the part itself if it is a view, and a view of it if it is a text."""
    return Text(part) if isinstance(part, str) else part


class Stack:
    """Views, one below the other."""

    def __init__(self, *parts: str | View) -> None:
        self._parts = parts

    def lines(self, screen: Screen) -> Iterator[Line]:
        """Yield the lines of all views."""
        for part in self._parts:
            yield from view_of(part).lines(screen)


class Labelled:
    """Labels on the left, with the view of each label on the right.

    Args:
        label_width: the cells of a label; a blank follows.
        rows: labels with their views.
    """

    def __init__(self, label_width: int, rows: Iterable[tuple[str, str | View]]) -> None:
        self._label_width = label_width
        self._rows = list(rows)

    def lines(self, screen: Screen) -> Iterator[Line]:
        """Yield the lines of all views. The first line of each view has the label."""
        room = screen.of_width(screen.width - self._label_width - 1)
        for label, content in self._rows:
            left = Span(f"{label:{self._label_width}} ", QUIET if label else "")
            for line in view_of(content).lines(room):
                yield [left, *line] if line or label else []
                left = Span(" " * (self._label_width + 1))


# --- tables


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: the header.
        is_right: whether cells are aligned right.
        is_folded: whether a cell that is too wide continues on the next line; otherwise, it is cut.
        style: the style of cells without a style.
    """

    name: str = ""
    is_right: bool = False
    is_folded: bool = False
    style: str = ""


def words(*names: str) -> list[Column]:
    """Return columns that are aligned left."""
    return [Column(name) for name in names]


def numbers(*names: str) -> list[Column]:
    """Return columns that are aligned right."""
    return [Column(name, is_right=True) for name in names]


class Table:
    """Rows below a header. Each column is as wide as its widest cell.

    If the table is too wide, its widest columns are narrowed, folded columns first.

    Args:
        columns: the columns, from left to right.
        title: a line above the table. If empty, there is no title.
        header_style: the style of the header. If None, there is no header.
    """

    def __init__(self, *columns: Column, title: str = "", header_style: str | None = QUIET) -> None:
        self._columns = columns
        self._title = title
        self._rows: list[list[Text]] = []
        if header_style is not None:
            self._rows.append([Text(column.name, header_style) for column in columns])

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Adds a row. Missing cells are empty.

        Args:
            cells: the cells, from left to right.
            style: the style of cells without a style.
        """
        given = [*cells, *[""] * (len(self._columns) - len(cells))]
        row = zip(given, self._columns, strict=True)
        self._rows.append(
            [Text(cell, style or column.style) if isinstance(cell, str) else cell for cell, column in row]
        )

    def lines(self, screen: Screen) -> Iterator[Line]:
        """Yield the title, the header and the rows."""
        if self._title:
            yield from Text(self._title, "bold").lines(screen)
        widths = self._widths(screen.width - GAP_WIDTH * (len(self._columns) - 1))
        for row in self._rows:
            yield from self._row_lines(row, [screen.of_width(width) for width in widths])

    def _widths(self, room: int) -> list[int]:
        """Return the width of each column, for a total of `room` cells."""
        wanted = [
            max((_width_wanted(row[index]) for row in self._rows), default=0) for index in range(len(self._columns))
        ]
        least = [
            min(width, FOLDED_WIDTH_MIN) if column.is_folded else width
            for width, column in zip(wanted, self._columns, strict=True)
        ]
        narrowed_once = narrowed(wanted, sum(wanted) - room, least)
        return narrowed(narrowed_once, sum(narrowed_once) - room, [1] * len(narrowed_once))

    def _row_lines(self, row: Sequence[Text], rooms: Sequence[Screen]) -> Iterator[Line]:
        """Yield the lines of a row, as many as its tallest cell has."""
        cells = [
            list(cell.folded_lines(room) if column.is_folded else cell.cut_lines(room))
            for cell, column, room in zip(row, self._columns, rooms, strict=True)
        ]
        for index in range(max(map(len, cells))):
            pieces = [cell[index] if index < len(cell) else [] for cell in cells]
            yield self._joined(pieces, [room.width for room in rooms])

    def _joined(self, pieces: Sequence[Line], widths: Sequence[int]) -> Line:
        """Join pieces side by side. Blanks are added only before a piece, so a line has no trailing blanks."""
        line: Line = []
        blank_count = 0
        for piece, width, column in zip(pieces, widths, self._columns, strict=True):
            left = width - width_of(piece)
            if piece:
                before = blank_count + (left if column.is_right else 0)
                line += [*([Span(" " * before)] if before else []), *piece]
                blank_count = 0 if column.is_right else left
            else:
                blank_count += width
            blank_count += GAP_WIDTH
        return line


def _width_wanted(cell: Text) -> int:
    return max(cell_count(text) for text in str(cell).split("\n"))


def narrowed(widths: Sequence[int], surplus: int, least: Sequence[int]) -> list[int]:
    """Remove `surplus` cells, each from the widest column that is wider than its least width."""
    left = list(widths)
    for _ in range(surplus):
        wider = [index for index, width in enumerate(left) if width > least[index]]
        if not wider:
            break
        left[max(wider, key=left.__getitem__)] -= 1
    return left
