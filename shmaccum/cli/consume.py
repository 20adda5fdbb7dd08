# SPDX-License-Identifier: Apache-2.0
"""``shmaccum consume``: records as they come, alone or as a member of a group, as ``kcat -C`` and ``-G``."""

from __future__ import annotations

import sys
from typing import Any

import click

from shmaccum.cli.group import Command, assignments
from shmaccum.cli.log_cat import Look, Piece
from shmaccum.cli.log_place import OFFSET_FORMS, Start, directory_argument, partitions
from shmaccum.config import ConsumerOptions
from shmaccum.consumer import Consumer
from shmaccum.segment_log import LogReader, LogRecord, PartitionReader

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


def _write(consumer: Consumer, piece: Piece, count: int | None, *, is_ending: bool, is_committing: bool) -> None:
    """Writes the records, `count` of them at most; a record is committed only when it was written."""
    output = sys.stdout.buffer
    limit = consumer.options.max_poll_records
    while count is None or count > 0:
        found = consumer.poll(0 if is_ending else float("inf"), limit if count is None else min(count, limit))
        for place, records in found.items():
            plain = [LogRecord(one.offset, one.timestamp, one.key, one.value, one.headers) for one in records]
            output.write(b"".join([piece(place, record) for record in plain]))
            count = None if count is None else count - len(records)
        output.flush()
        if found and is_committing:
            consumer.commit()
        if not found and is_ending:
            return


@click.command(
    "consume",
    cls=Command,
    epilog="A format has kcat's letters: %s value, %S its size, %R the same in four bytes, %k key, %K its size, %T "
    "timestamp, %h headers, %t topic, %p partition, %o offset, %% a percent sign, and escapes such as \\n. Exit codes: "
    "0 it ended in order, 2 it could not be done, 130 Ctrl-C.",
)
@directory_argument
@click.option("-t", "--topic", "topics", multiple=True, required=True, metavar="NAME", help="A topic; may be repeated.")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="One partition only; without --group.")
@click.option("-g", "--group", metavar="NAME", help="Share the partitions with the other members of this group.")
@click.option(
    "-o",
    "--offset",
    default="beginning",
    show_default=True,
    metavar="OFFSET",
    help=f"Where to begin: {OFFSET_FORMS}. A group begins at its committed offsets, and here where it has none.",
)
@click.option("-c", "--count", type=click.IntRange(min=1), metavar="N", help="Leave after so many records.")
@click.option("-e", "--exit", "is_ending", is_flag=True, help="Leave at the end of the log instead of waiting.")
@click.option("-f", "--format", "format_text", metavar="FORMAT", help="How a record is written.")
@click.option("-J", "--json", "is_json", is_flag=True, help="A line of JSON for each record, with kcat's keys.")
@click.option("-D", "--delimiter", default=r"\n", show_default=True, metavar="TEXT", help="What ends a record.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Write the key, and this behind it.")
@click.option("-X", "options", multiple=True, metavar="OPTION=VALUE", help="Of the consumer (docs/options.rst).")
def command(
    directory: str,
    topics: tuple[str, ...],
    partition: int | None,
    group: str | None,
    offset: str,
    count: int | None,
    is_ending: bool,
    options: tuple[str, ...],
    **look: Any,
) -> None:
    """Write records to standard output as they come, until Ctrl-C.

    With --group, the members of the group share the partitions. The offset of a record is committed when the record was
    written; -X enable_auto_commit=false commits nothing.
    """
    piece = Look(**look).piece()
    given = assignments(options)
    parsed = ConsumerOptions.parse(given)
    if parsed.group_id is not None:
        raise click.UsageError("the group is named by --group")
    if group is not None and partition is not None:
        raise click.UsageError("--group and --partition exclude each other: the group shares the partitions")
    reader = LogReader(directory)
    chosen = [one for topic in dict.fromkeys(topics) for one in partitions(reader, topic, partition)]
    is_committing = group is not None and parsed.enable_auto_commit
    if group is None:
        opened = _read(directory, chosen, offset, given)
    else:
        opened = _join(directory, topics, group, offset, given)
    with opened as consumer:
        _write(consumer, piece, count, is_ending=is_ending, is_committing=is_committing)
