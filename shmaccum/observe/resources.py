# SPDX-License-Identifier: Apache-2.0
"""The CPU and resident memory of attached processes, from psutil.

Importing psutil takes longer than an observation, so only code that shows these figures imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import psutil


class Used(NamedTuple):
    """The CPU and memory of a process."""

    cpu_percent: float
    """The share of one core since the previous observation, at first 0."""
    memory_size: int
    """Resident bytes."""


class Resources:
    """Reads CPU and memory of processes. Keep the object between observations, because CPU is a share of that time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, int], psutil.Process]] = {}
        """Maps an entry of the arena to the pid and start time of its process, and to the process."""

    def read(self, entry: Mapping[str, Any]) -> Used | None:
        """Returns the figures of an entry's process, or None if it has ended or this user may not read them."""
        identity = (entry["pid"], entry["start_time_ticks"])
        try:
            known, process = self._known.get(entry["entry"], (None, None))
            if process is None or known != identity:
                process = psutil.Process(entry["pid"])
                self._known[entry["entry"]] = (identity, process)
            return Used(process.cpu_percent(), process.memory_info().rss)
        except psutil.Error:
            return None
