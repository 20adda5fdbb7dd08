# SPDX-License-Identifier: Apache-2.0
"""``shmaccum log info | offsets | verify``: the partitions of a log directory, their offsets and damage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from shmaccum.cli.drawing import Table, format_time, numbers, readable, words
from shmaccum.cli.fitting import FirstThatFits
from shmaccum.cli.group import EXIT_BAD, Command, json_option, print_json
from shmaccum.cli.log_place import directory_argument, partitions, place_options, segment_sizes
from shmaccum.cli.terminal import show
from shmaccum.common.units import format_count, format_size
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files import LogReader, PartitionReader, check_log

# --- info


def partition_facts(partition: PartitionReader) -> dict[str, Any]:
    """Return the offsets, sizes and times of a partition."""
    segments = [{"base_offset": base_offset, "size": size} for base_offset, size in segment_sizes(partition)]
    start, end = partition.log_start_offset, partition.log_end_offset
    first = next(partition.batches(start), None) if end > start else None
    last = next(partition.batches(end - 1), None) if end > start else None
    return {
        "topic": partition.place.topic,
        "partition": partition.place.partition,
        "log_start_offset": start,
        "log_end_offset": end,
        "record_count": end - start,
        "size": sum(segment["size"] for segment in segments),
        "first_timestamp_ms": first.header.base_timestamp_ms if first else None,
        "last_timestamp_ms": last.max_timestamp_ms if last else None,
        "segments": segments,
    }


TIMES = (("first record", "first_timestamp_ms"), ("last record (UTC)", "last_timestamp_ms"))


def _info_table(facts: Sequence[dict[str, Any]], times: Sequence[tuple[str, str]]) -> Table:
    counts = numbers("start", "end", "records", "bytes", "segments")
    table = Table(*words("partition"), *counts, *words(*(name for name, _ in times)))
    for fact in facts:
        table.add_row(
            f"{fact['topic']}-{fact['partition']}",
            *(f"{fact[name]:,}" for name in ("log_start_offset", "log_end_offset", "record_count")),
            format_size(fact["size"]),
            str(len(fact["segments"])),
            *(_moment(fact[key]) for _, key in times),
        )
    return table


def _moment(time_ms: int | None) -> str:
    return "-" if time_ms is None else format_time(time_ms, "seconds").removesuffix(" UTC")


@click.command("info", cls=Command)
@directory_argument
@place_options
@json_option
def info(directory: str, topic: str | None, partition: int | None, is_json: bool) -> None:
    """Show topics, partitions, offsets, sizes and times."""
    reader = LogReader(directory, on_corrupt="skip")
    facts = [partition_facts(each) for each in partitions(reader, topic, partition)]
    if is_json:
        print_json({"path": reader.path, "is_written": reader.is_written(), "partitions": facts})
        return
    state = "a sender writes it" if reader.is_written() else "no sender writes it"
    size = sum(fact["size"] for fact in facts)
    click.echo(f"{reader.path}: {format_count(len(facts), 'partition')}, {format_size(size)}, {state}")
    forms = (partial(_info_table, facts, TIMES[first:]) for first in range(len(TIMES) + 1))
    show(FirstThatFits(*forms))


# --- offsets


def _offset_at(partition: PartitionReader, moment: str) -> int:
    """Return the offset for a time. Like Kafka's tool, return -1 if no record is that late."""
    if moment == "earliest":
        return partition.log_start_offset
    if moment == "latest":
        return partition.log_end_offset
    if not moment.isdecimal():
        raise InvalidArgumentError(f"{moment!r} is not a time: write earliest, latest, or milliseconds since 1970")
    found = partition.offset_for_timestamp(int(moment))
    return -1 if found is None else found.offset


@click.command("offsets", cls=Command)
@directory_argument
@place_options
@click.option(
    "--time",
    "moment",
    default="latest",
    show_default=True,
    metavar="TIME",
    help="earliest, latest, or milliseconds since 1970.",
)
@json_option
def offsets(directory: str, topic: str | None, partition: int | None, moment: str, is_json: bool) -> None:
    """Show an offset of each partition: TOPIC:PARTITION:OFFSET, as kafka-get-offsets does.

    latest is the offset of the next record. A timestamp gives the offset of the first record at or after it, or -1 if
    there is none.
    """
    reader = LogReader(directory, on_corrupt="skip")
    found = [(*each.place, _offset_at(each, moment)) for each in partitions(reader, topic, partition)]
    if is_json:
        print_json([{"topic": name, "partition": number, "offset": offset} for name, number, offset in found])
        return
    for name, number, offset in found:
        click.echo(f"{name}:{number}:{offset}")


# --- verify


@click.command("verify", cls=Command, epilog="Exit codes: 0 sound, 1 damage was found, 2 the log could not be read.")
@directory_argument
@json_option
@click.pass_context
def verify(ctx: click.Context, directory: str, is_json: bool) -> None:
    """Check every byte: batches, CRCs, offsets, indexes, snapshots.

    Prints the file and position of each damage. While a sender writes a log, its end may look torn.
    """
    reader = LogReader(directory)
    findings = check_log(reader.path)
    is_written = reader.is_written()
    if is_json:
        found = [
            {"topic": place.topic, "partition": place.partition, "path": path, "position": position, "text": text}
            for place, path, position, text in findings
        ]
        print_json({"path": reader.path, "is_sound": not findings, "is_written": is_written, "findings": found})
    else:
        for finding in findings:
            click.echo(readable(str(finding)))
        sound = f"is sound ({format_count(len(reader.topic_partitions()), 'partition')})"
        click.echo(f"{reader.path}: {len(findings)} found" if findings else f"{reader.path} {sound}")
        if findings and is_written:
            click.echo(
                "a sender writes this log, so its ends may only look torn: check again when the sender has stopped"
            )
    ctx.exit(EXIT_BAD if findings else 0)
