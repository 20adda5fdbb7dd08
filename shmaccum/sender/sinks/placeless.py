# SPDX-License-Identifier: Apache-2.0
"""The base class of ``memory:`` and ``null:``, which have no place and a fixed number of partitions."""

from __future__ import annotations

from typing import Any, ClassVar

from shmaccum.config import PlacelessSinkOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.sink import SinkHost, SynchronousSink


class PlacelessSink(SynchronousSink):
    """A sink that exists only in this process.

    Args:
        place: empty.
        options: those of `PlacelessSinkOptions`.
    """

    kind: ClassVar[str]

    def __init__(self, place: str = "", **options: Any) -> None:
        super().__init__()
        if place:
            raise InvalidArgumentError(f"{self.kind}: has no place: leave {place!r} out")
        self.name = f"{self.kind}:"
        self._partition_count = PlacelessSinkOptions.parse(options).partitions

    def open(self, host: SinkHost) -> None:
        """Do nothing: there is nothing to open."""

    def partition_count(self, topic: str) -> int:  # noqa: ARG002 - the same for each
        return self._partition_count
