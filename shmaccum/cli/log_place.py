# SPDX-License-Identifier: Apache-2.0
"""The arguments that the ``log`` commands share: the log, its partitions, and the first offset."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from shmaccum.exceptions import InvalidArgumentError, LogPartitionNotFoundError
from shmaccum.segment_log import LogReader, PartitionReader

FROM_END = re.compile(r"-([0-9]+)")
AT_TIME = re.compile(r"s@([0-9]+)")
OFFSET_FORMS = "beginning, end, an offset, -N for the last N records, or s@MS for a timestamp"

directory_argument = click.argument(
    "directory", metavar="DIR", callback=lambda _ctx, _parameter, value: value.removeprefix("log:")
)


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--topic`` and ``--partition``."""
    number = click.IntRange(min=0)
    function = click.option("-p", "--partition", type=number, metavar="N", help="One partition only.")(function)
    return click.option("-t", "--topic", metavar="NAME", help="One topic only.")(function)


def partitions(reader: LogReader, topic: str | None, partition: int | None) -> list[PartitionReader]:
    """The partitions that are meant, in order.

    Raises:
        LogPartitionNotFoundError: there is none of that name or number.
    """
    found = [
        reader.partition(*place)
        for place in reader.topic_partitions()
        if topic in {None, place.topic} and partition in {None, place.partition}
    ]
    if not found and topic is not None:
        reader.partitions(topic)  # says which topics there are
    if not found and partition is not None:
        of_topic = f" of topic {topic!r}" if topic else ""
        raise LogPartitionNotFoundError(f"{reader.path} has no partition {partition}{of_topic}")
    return found


@dataclass(frozen=True)
class Start:
    """Where to begin: an offset, so many records before the end, or a timestamp; without any of them the beginning."""

    offset: int | None = None
    before_end: int | None = None
    timestamp_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> Start:
        """From what a user writes.

        Raises:
            InvalidArgumentError: it is none of the forms.
        """
        if text in {"beginning", "end"}:
            return cls() if text == "beginning" else cls(before_end=0)
        if text.isdecimal():
            return cls(offset=int(text))
        if found := FROM_END.fullmatch(text):
            return cls(before_end=int(found[1]))
        if found := AT_TIME.fullmatch(text):
            return cls(timestamp_ms=int(found[1]))
        raise InvalidArgumentError(f"{text!r} is no offset: write {OFFSET_FORMS}")

    def of(self, partition: PartitionReader) -> int:
        """The offset at which to begin in this partition."""
        if self.offset is not None:
            return self.offset
        if self.before_end is not None:
            return max(partition.log_end_offset - self.before_end, partition.log_start_offset)
        if self.timestamp_ms is not None:
            found = partition.offset_for_timestamp(self.timestamp_ms)
            return partition.log_end_offset if found is None else found.offset
        return partition.log_start_offset


def segment_sizes(partition: PartitionReader) -> Iterator[tuple[int, int]]:
    """Base offset and bytes of each segment."""
    for base_offset in partition.segments():
        with contextlib.suppress(FileNotFoundError):  # retained away meanwhile
            yield base_offset, os.path.getsize(os.path.join(partition.folder, f"{base_offset:020}.log"))
