# SPDX-License-Identifier: Apache-2.0
"""The progress line of a command, on standard error, while the records go elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import final

import click

from shmaccum.cli.drawing import Text, drawn
from shmaccum.cli.terminal import screen_of
from shmaccum.common import clock

PROGRESS_INTERVAL_S = 0.1
ERASE_LINE = "\r\x1b[K"


@final
class ProgressLine:
    """The line, repainted in place, and erased at the end.

    Args:
        sentence: returns the line, given the seconds since the start.
        is_shown: whether the line is painted.
    """

    def __init__(self, sentence: Callable[[float], str], *, is_shown: bool) -> None:
        self.is_shown = is_shown
        self._sentence = sentence
        self._begin_s = self._shown_s = clock.monotonic()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._paint("")

    def show(self) -> None:
        """Repaints the line, at most once per `PROGRESS_INTERVAL_S`."""
        now_s = clock.monotonic()
        if self.is_shown and now_s - self._shown_s > PROGRESS_INTERVAL_S:
            self._paint(self._sentence(now_s - self._begin_s))
            self._shown_s = now_s

    def _paint(self, sentence: str) -> None:
        """Paints the line, cut to the width of the terminal, because a wrapped line could not be repainted."""
        if self.is_shown:
            screen = screen_of(sys.stderr)
            (line,) = drawn(Text(sentence, is_cut=True), screen.of_width(screen.width - 1))
            click.echo(ERASE_LINE + line, nl=False, err=True, color=True)
