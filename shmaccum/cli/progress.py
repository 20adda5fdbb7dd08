# SPDX-License-Identifier: Apache-2.0
"""One line on standard error while a terminal looks and the records go elsewhere: how far a command has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from rich.console import Console

PROGRESS_EVERY_S = 0.1


@final
class Progress:
    """The line, painted over itself.

    Args:
        sentence: makes the line from the seconds since the begin.
        is_shown: without it nothing is painted.
    """

    def __init__(self, sentence: Callable[[float], str], *, is_shown: bool) -> None:
        self.is_shown = is_shown
        self._sentence = sentence
        self._status = Console(stderr=True, highlight=False).status("") if is_shown else None
        self._begin_s = self._shown_s = time.monotonic()

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def show(self) -> None:
        """Paints the line anew, when the last time was long enough ago."""
        now_s = time.monotonic()
        if self._status and now_s - self._shown_s > PROGRESS_EVERY_S:
            self._status.update(self._sentence(now_s - self._begin_s))
            self._shown_s = now_s
