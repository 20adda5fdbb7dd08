# SPDX-License-Identifier: Apache-2.0
"""Standard output for views: its size, its colors, and repainting."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

import click

from shmaccum.cli.drawing import Screen, View, drawn

WIDTH_OF_A_PIPE = 110
"""Wide enough that nothing is cut."""
WIDTH_OF_A_TERMINAL, HEIGHT_OF_A_TERMINAL = 80, 24
"""The size of a terminal that does not report its size."""
ENTER = "\x1b[?1049h\x1b[?25l"
"""Switches to the alternate screen and hides the cursor."""
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, ERASE_LINE, ERASE_BELOW = "\x1b[H", "\x1b[K", "\n\x1b[J"


def can_paint() -> bool:
    """Returns whether standard output is a terminal with a movable cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def has_color() -> bool:
    """Returns whether to write styles: to a terminal unless NO_COLOR is set, or if FORCE_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or can_paint()


def screen_of(stream: TextIO) -> Screen:
    """Returns the size of a stream's terminal, or defaults for a file or pipe. COLUMNS and LINES override it."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = WIDTH_OF_A_PIPE, 0
    width = _number_in("COLUMNS") or columns or WIDTH_OF_A_TERMINAL
    height = _number_in("LINES") or rows or HEIGHT_OF_A_TERMINAL
    return Screen(width, height, (stream.encoding or "ascii").lower().startswith("utf"))


def _number_in(variable: str) -> int:
    """Returns the number in an environment variable, or 0 if it is not a number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


def show(view: View) -> None:
    """Writes a view after the existing output."""
    lines = drawn(view, screen_of(sys.stdout)._replace(height=None), has_color=has_color())
    if lines:
        click.echo("\n".join(lines), color=True)


@contextlib.contextmanager
def painting() -> Iterator[Callable[[View], None]]:
    """Switches to the alternate screen. The block receives a function that repaints the screen with a view."""
    _write(ENTER)
    try:
        yield _paint
    finally:
        _write(LEAVE)


def _paint(view: View) -> None:
    """Paints a view. Lines are erased before they are written; erasing after a full line would erase its last cell."""
    screen = screen_of(sys.stdout)
    lines = drawn(view, screen, has_color=has_color())[: screen.height]
    below = ERASE_BELOW if len(lines) < (screen.height or 0) else ""
    _write(HOME + "\n".join(ERASE_LINE + line for line in lines) + below)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
