# SPDX-License-Identifier: Apache-2.0
"""Which topic and partition an index of the arena's table stands for."""

from __future__ import annotations

from shmaccum import _native
from shmaccum.exceptions import CorruptArenaError


class Places:
    """A copy of the table: it only grows, and an entry never changes."""

    def __init__(self, native: _native.Arena) -> None:
        self._native = native
        self._places: list[tuple[str, int]] = []

    def __getitem__(self, partition_index: int) -> tuple[str, int]:
        """(topic, partition)

        Raises:
            CorruptArenaError: the arena has no such partition.
        """
        if partition_index >= len(self._places):
            self._places = self._native.partitions()
        try:
            return self._places[partition_index]
        except IndexError:
            raise CorruptArenaError(f"the arena has no partition with the index {partition_index}") from None

    def name(self, partition_index: int) -> str:
        """As people write it: ``topic-partition``."""
        topic, partition = self[partition_index]
        return f"{topic}-{partition}"
