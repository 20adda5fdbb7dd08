# SPDX-License-Identifier: Apache-2.0
"""The arguments shared by the ``log`` commands: the log and its partitions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from shmaccum.exceptions import LogPartitionNotFoundError
from shmaccum.log.files import LogReader, PartitionReader
from shmaccum.log.files.start import OFFSET_FORMS

directory_argument = click.argument(
    "directory", metavar="DIR", callback=lambda _ctx, _parameter, value: value.removeprefix("log:")
)


def offset_option(name: str, remark: str = "") -> Callable[..., Any]:
    """Return the option ``--offset``, the first record to write.

    Args:
        name: the parameter of the command.
        remark: text to append to the help.
    """
    text = f"The first record: {OFFSET_FORMS}.{remark}"
    return click.option("-o", "--offset", name, default="beginning", show_default=True, metavar="OFFSET", help=text)


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--topic`` and ``--partition``."""
    number = click.IntRange(min=0)
    function = click.option("-p", "--partition", type=number, metavar="N", help="Only this partition.")(function)
    return click.option("-t", "--topic", metavar="NAME", help="Only this topic.")(function)


def partitions(reader: LogReader, topic: str | None, partition: int | None) -> list[PartitionReader]:
    """Return the selected partitions, sorted.

    Raises:
        LogPartitionNotFoundError: no partition has that topic or number.
    """
    found = [
        reader.partition(*place)
        for place in reader.topic_partitions()
        if topic in {None, place.topic} and partition in {None, place.partition}
    ]
    if not found and topic is not None:
        reader.partitions(topic)  # raises an error that lists the topics
    if not found and partition is not None:
        of_topic = f" of topic {topic!r}" if topic else ""
        raise LogPartitionNotFoundError(f"{reader.path} has no partition {partition}{of_topic}")
    return found


def segment_sizes(partition: PartitionReader) -> Iterator[tuple[int, int]]:
    """Yield the base offset and the size of each segment."""
    for base_offset in partition.segments():
        with contextlib.suppress(FileNotFoundError):  # deleted by retention meanwhile
            yield base_offset, os.path.getsize(os.path.join(partition.folder, f"{base_offset:020}.log"))
