# SPDX-License-Identifier: Apache-2.0
"""Stop the processes of a contender during the rounds of others: a JVM polls even when it is idle.

The clock runs on while a process is stopped, so the time-outs of a stopped contender must be longer than a question.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class StoppedProcesses:
    """The processes of a contender that live between its rounds. They run during its rounds, and are stopped
    otherwise.
    """

    def __init__(self) -> None:
        self._groups: list[int] = []

    def add(self, group: int) -> None:
        """Add a process group by the id of its leader. It is stopped from the end of this round."""
        self._groups.append(group)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the processes run, for a round or for their exit."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(group, number)
