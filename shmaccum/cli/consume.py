# SPDX-License-Identifier: Apache-2.0
"""``shmaccum consume``: write records as they arrive, alone or as a group member, like ``kcat -C`` and ``-G``."""

from __future__ import annotations

import click

from shmaccum.cli.group import Command
from shmaccum.cli.log_place import directory_argument, offset_option, partitions
from shmaccum.cli.record_output import FORMATS, Output, record_output_options
from shmaccum.config import ConsumerOptions
from shmaccum.log.consumer import Consumer
from shmaccum.log.files import LogReader, PartitionReader
from shmaccum.log.files.start import Start

AUTO_COMMIT = "enable_auto_commit"
RESETS = {"beginning": "earliest", "end": "latest"}


def _join(directory: str, topics: tuple[str, ...], group: str, offset: str, given: dict[str, str]) -> Consumer:
    """Return a group member whose offsets are committed only on request."""
    if offset not in RESETS:
        raise click.UsageError(
            "with --group, --offset must be beginning or end: a group starts at its committed offsets"
        )
    kept = {name: value for name, value in given.items() if name.replace(".", "_") != AUTO_COMMIT}
    own = {"group_id": group, "auto_offset_reset": RESETS[offset], AUTO_COMMIT: "false"}
    return Consumer(directory, *topics, **kept, **own)


def _read(directory: str, chosen: list[PartitionReader], offset: str, given: dict[str, str]) -> Consumer:
    """Return a consumer that is assigned these partitions and positioned at `offset`."""
    start = Start.parse(offset)
    consumer = Consumer(directory, **given)
    consumer.assign([partition.place for partition in chosen])
    for partition in chosen:
        consumer.seek(partition.place, start.of(partition))
    return consumer


@click.command("consume", cls=Command, epilog=FORMATS)
@directory_argument
@click.option("-t", "--topic", "topics", multiple=True, required=True, metavar="NAME", help="A topic; repeatable.")
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Only this partition; not with --group."
)
@click.option("-g", "--group", metavar="NAME", help="Consume as a member of this group.")
@offset_option("offset", " With --group, used only where the group has no committed offset.")
@record_output_options
def command(
    directory: str,
    topics: tuple[str, ...],
    partition: int | None,
    group: str | None,
    offset: str,
    output: Output,
    given: dict[str, str],
) -> None:
    """Write records to standard output as they arrive, until Ctrl-C.

    With --group, the partitions are divided among the members of the group. An offset is committed after its record was
    written. With -X enable_auto_commit=false, no offset is committed.
    """
    if group is not None and partition is not None:
        raise click.UsageError("--group and --partition cannot be combined: the group assigns the partitions")
    reader = LogReader(directory)
    chosen = [one for topic in dict.fromkeys(topics) for one in partitions(reader, topic, partition)]
    is_committing = group is not None and ConsumerOptions.parse({**given, "group_id": group}).enable_auto_commit
    if group is None:
        opened = _read(directory, chosen, offset, given)
    else:
        opened = _join(directory, topics, group, offset, given)
    with opened as consumer:
        output.follow(consumer, is_committing=is_committing)
