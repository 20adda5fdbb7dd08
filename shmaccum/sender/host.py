# SPDX-License-Identifier: Apache-2.0
"""What a sink may ask of the sender that opened it (sinks/sink.py: SinkHost)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from shmaccum.accumulator import Accumulator
from shmaccum.config import SenderOptions
from shmaccum.doorbell import Doorbell
from shmaccum.refusals import EXPIRED
from shmaccum.sender.places import Places

logger = logging.getLogger("shmaccum.sender")


class Host:
    """The sender, as its sink sees it."""

    def __init__(self, accumulator: Accumulator, places: Places, doorbell: Doorbell, options: SenderOptions) -> None:
        self._accumulator = accumulator
        self._arena = accumulator.arena
        self._places = places
        self._doorbell = doorbell
        self._options = dataclasses.asdict(options)
        self.last_trouble = ("", 0)
        """What was reported last, and when, in nanoseconds of the arena's clock."""

    @property
    def arena_name(self) -> str:
        return self._arena.name

    @property
    def batch_size_max(self) -> int:
        geometry = self._arena.geometry
        return max(geometry["batch_size"], geometry["record_size_max"])

    @property
    def options(self) -> Mapping[str, Any]:
        return self._options

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        return self._places[partition_index]

    def partition_count(self, topic: str) -> int:
        return self._arena.native.topic_partition_count(topic)

    def report(self, sentence: str) -> None:
        if not sentence.startswith(EXPIRED):  # which is no reason
            self.last_trouble = (sentence, self._arena.native.now_ns())
        self._arena.native.record_error(sentence)
        logger.warning("%s", sentence)

    def end_backoff(self, partition_index: int) -> None:
        self._accumulator.end_backoff(partition_index)

    def set_available(self, partition_index: int, is_available: bool) -> None:
        self._accumulator.set_available(partition_index, is_available)

    def wake(self) -> None:
        self._doorbell.ring()
