# SPDX-License-Identifier: Apache-2.0
"""Standard output as a place for views: its width, its colors, and a screen that is painted over."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

import click

from shmaccum.cli.drawing import Screen, View, drawn

WIDTH_OF_A_PIPE = 110
"""So many columns that nothing is cut."""
WIDTH_OF_A_TERMINAL, HEIGHT_OF_A_TERMINAL = 80, 24
"""The size of a terminal that tells none."""
ENTER = "\x1b[?1049h\x1b[?25l"
"""The terminal's other screen, and no cursor."""
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, ERASE_LINE, ERASE_BELOW = "\x1b[H", "\x1b[K", "\n\x1b[J"


def can_paint() -> bool:
    """Whether standard output is a terminal with a cursor that can be moved."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def has_color() -> bool:
    """Whether styles are written: to a terminal, unless NO_COLOR is set, or where FORCE_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or can_paint()


def screen_of(stream: TextIO) -> Screen:
    """The room on the terminal behind a stream, or in the file or pipe; COLUMNS and LINES overrule it."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = WIDTH_OF_A_PIPE, 0
    width = _number_in("COLUMNS") or columns or WIDTH_OF_A_TERMINAL
    height = _number_in("LINES") or rows or HEIGHT_OF_A_TERMINAL
    return Screen(width, height, (stream.encoding or "ascii").lower().startswith("utf"))


def _number_in(variable: str) -> int:
    """The number in a variable of the environment; 0: there is none."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


def show(view: View) -> None:
    """Writes a view below what the terminal shows."""
    lines = drawn(view, screen_of(sys.stdout)._replace(height=None), has_color=has_color())
    if lines:
        click.echo("\n".join(lines), color=True)


@contextlib.contextmanager
def painting() -> Iterator[Callable[[View], None]]:
    """The terminal's other screen. The block is given a function that paints a view over the one before."""
    _write(ENTER)
    try:
        yield _paint
    finally:
        _write(LEAVE)


def _paint(view: View) -> None:
    """Each line is erased before it is written: an erasure behind a full line would take its last letter away."""
    screen = screen_of(sys.stdout)
    lines = drawn(view, screen, has_color=has_color())[: screen.height]
    below = ERASE_BELOW if len(lines) < (screen.height or 0) else ""
    _write(HOME + "\n".join(ERASE_LINE + line for line in lines) + below)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
