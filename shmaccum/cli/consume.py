# SPDX-License-Identifier: Apache-2.0
"""``shmaccum consume``: records as they come, alone or as a member of a group, as ``kcat -C`` and ``-G``."""

from __future__ import annotations

import click

from shmaccum.cli.consuming import FORMATS, Output, consuming_options
from shmaccum.cli.group import Command
from shmaccum.cli.log_place import directory_argument, offset_option, partitions
from shmaccum.config import ConsumerOptions
from shmaccum.log.consumer import Consumer
from shmaccum.log.files import LogReader, PartitionReader
from shmaccum.log.files.start import Start

AUTO_COMMIT = "enable_auto_commit"
RESETS = {"beginning": "earliest", "end": "latest"}


def _join(directory: str, topics: tuple[str, ...], group: str, offset: str, given: dict[str, str]) -> Consumer:
    """A member of a group; it commits when it is told to."""
    if offset not in RESETS:
        raise click.UsageError("with --group, --offset is beginning or end: a group begins at its committed offsets")
    kept = {name: value for name, value in given.items() if name.replace(".", "_") != AUTO_COMMIT}
    own = {"group_id": group, "auto_offset_reset": RESETS[offset], AUTO_COMMIT: "false"}
    return Consumer(directory, *topics, **kept, **own)


def _read(directory: str, chosen: list[PartitionReader], offset: str, given: dict[str, str]) -> Consumer:
    """A consumer of these partitions, at the place where it is to begin."""
    start = Start.parse(offset)
    consumer = Consumer(directory, **given)
    consumer.assign([partition.place for partition in chosen])
    for partition in chosen:
        consumer.seek(partition.place, start.of(partition))
    return consumer


@click.command("consume", cls=Command, epilog=FORMATS)
@directory_argument
@click.option("-t", "--topic", "topics", multiple=True, required=True, metavar="NAME", help="A topic; may be repeated.")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="One partition only; without --group.")
@click.option("-g", "--group", metavar="NAME", help="Share the partitions with the other members of this group.")
@offset_option("offset", " A group begins at its committed offsets, and here where it has none.")
@consuming_options
def command(
    directory: str,
    topics: tuple[str, ...],
    partition: int | None,
    group: str | None,
    offset: str,
    output: Output,
    given: dict[str, str],
) -> None:
    """Write records to standard output as they come, until Ctrl-C.

    With --group, the members of the group share the partitions. The offset of a record is committed when the record was
    written; -X enable_auto_commit=false commits nothing.
    """
    if group is not None and partition is not None:
        raise click.UsageError("--group and --partition exclude each other: the group shares the partitions")
    reader = LogReader(directory)
    chosen = [one for topic in dict.fromkeys(topics) for one in partitions(reader, topic, partition)]
    is_committing = group is not None and ConsumerOptions.parse({**given, "group_id": group}).enable_auto_commit
    if group is None:
        opened = _read(directory, chosen, offset, given)
    else:
        opened = _join(directory, topics, group, offset, given)
    with opened as consumer:
        output.follow(consumer, is_committing=is_committing)
