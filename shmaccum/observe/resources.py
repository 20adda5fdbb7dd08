# SPDX-License-Identifier: Apache-2.0
"""The CPU and the resident memory of attached processes, as psutil reads them.

An import of psutil takes longer than a look at an arena, so only code that shows these figures imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import psutil


class Used(NamedTuple):
    """The CPU and the memory that a process uses."""

    cpu_percent: float
    """Of one core, since the look before; 0 in the first look."""
    memory_size: int
    """Resident bytes."""


class Resources:
    """Reads the CPU and the memory of processes; kept between looks, because CPU is a share of the time between two."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, int], psutil.Process]] = {}
        """Entry of the arena -> pid and start of the process that has it, and the process."""

    def look(self, entry: Mapping[str, Any]) -> Used | None:
        """The figures of the process that has an entry; None when it has ended, or this user may not read them."""
        who = (entry["pid"], entry["start_time_ticks"])
        try:
            known, process = self._known.get(entry["entry"], (None, None))
            if process is None or known != who:
                process = psutil.Process(entry["pid"])
                self._known[entry["entry"]] = (who, process)
            return Used(process.cpu_percent(), process.memory_info().rss)
        except psutil.Error:
            return None
