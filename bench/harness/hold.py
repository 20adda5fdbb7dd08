# SPDX-License-Identifier: Apache-2.0
"""Processes that live from round to round are stopped while others have theirs: a JVM polls even when it is idle.

Time goes on for who is stopped, so time-outs of a contender that is held must be longer than a question.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Hold:
    """The processes that a contender keeps between its rounds. They run during a round, and stand still otherwise."""

    def __init__(self) -> None:
        self._groups: list[int] = []

    def add(self, group: int) -> None:
        """A process group, by its leader's id. It stands still from the end of this round on."""
        self._groups.append(group)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """For a round, and for leaving in order."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(group, number)
