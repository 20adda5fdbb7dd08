# SPDX-License-Identifier: Apache-2.0
"""The topic and partition that an index of the arena's table stands for."""

from __future__ import annotations

from shmaccum import _native
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptArenaError


class Places:
    """A copy of the table, which only grows, and whose entries never change."""

    def __init__(self, native: _native.Arena) -> None:
        self._native = native
        self._places: list[TopicPartition] = []

    def __getitem__(self, partition_index: int) -> TopicPartition:
        """The topic and partition of an index.

        Raises:
            CorruptArenaError: the arena has no such partition.
        """
        if partition_index >= len(self._places):
            self._places = [TopicPartition(*row) for row in self._native.partitions()]
        try:
            return self._places[partition_index]
        except IndexError:
            raise CorruptArenaError(f"the arena has no partition with the index {partition_index}") from None

    def name(self, partition_index: int) -> str:
        """The text ``topic-partition``."""
        return str(self[partition_index])
