# SPDX-License-Identifier: Apache-2.0
"""``shmaccum groups``: the consumer groups of a log directory."""

from __future__ import annotations

from typing import Any

import click

from shmaccum.cli.drawing import Table, numbers, readable_line, words
from shmaccum.cli.group import Command, CommandGroup, json_option, print_json
from shmaccum.cli.log_place import directory_argument, partitions, place_options
from shmaccum.cli.server_settings import settings_option
from shmaccum.cli.terminal import show
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files import LogReader
from shmaccum.log.files.start import Start
from shmaccum.log.groups.export import export
from shmaccum.log.groups.offsets_file import group_ids
from shmaccum.log.server.administration import GroupFacts, MemberDescription, all_groups, delete, facts_of, move
from shmaccum.log.server.client_settings import ClientSettings

group_argument = click.argument("group_id", metavar="GROUP")


@click.group("groups", cls=CommandGroup)
def command() -> None:
    """Show and manage the consumer groups of a log directory.

    A group that a server coordinates is changed through that server. A group with live members is not changed.
    """


def _facts(directory: str, group_id: str, settings: ClientSettings) -> GroupFacts:
    reader = LogReader(directory, on_corrupt="skip")
    known = group_ids(reader.path)
    if group_id not in known:
        raise InvalidArgumentError(f"{reader.path} has no group {group_id!r}: it has {', '.join(known) or 'none'}")
    return facts_of(reader, group_id, settings)


def _lag(facts: GroupFacts) -> int:
    return sum(position.lag or 0 for position in facts.positions)


def _document(facts: GroupFacts) -> dict[str, Any]:
    return {
        "group": facts.group_id,
        "state": facts.state,
        "lag": _lag(facts),
        "members": [member._asdict() for member in facts.members],
        "partitions": [
            {
                "topic": one.place.topic,
                "partition": one.place.partition,
                "offset": one.offset,
                "end_offset": one.end_offset,
                "lag": one.lag,
                "metadata": one.metadata,
                "time_ms": one.time_ms,
            }
            for one in facts.positions
        ],
    }


# --- list, describe


@command.command("list", cls=Command)
@directory_argument
@settings_option
@json_option
def list_groups(directory: str, settings: ClientSettings, is_json: bool) -> None:
    """Show every group with its state, members and lag."""
    found = list(all_groups(LogReader(directory, on_corrupt="skip"), settings))
    if is_json:
        print_json([_document(facts) for facts in found])
        return
    table = Table(*words("group", "state"), *numbers("members", "partitions", "lag"))
    for facts in found:
        name, count = readable_line(facts.group_id), str(len(facts.positions))
        stopped = sum(member.is_stopped for member in facts.members)
        member_count = f"{len(facts.members)} ({stopped} stopped)" if stopped else str(len(facts.members))
        table.add_row(name, facts.state, member_count, count, f"{_lag(facts):,}")
    show(table)


@command.command("describe", cls=Command)
@directory_argument
@group_argument
@settings_option
@json_option
def describe(directory: str, group_id: str, settings: ClientSettings, is_json: bool) -> None:
    """Show the offset, end offset and lag of a group in each partition."""
    facts = _facts(directory, group_id, settings)
    if is_json:
        print_json(_document(facts))
        return
    members = format_count(len(facts.members), "member")
    click.echo(f"{readable_line(group_id)}: {facts.state}, {members}, lag {_lag(facts):,}")
    table = Table(*words("partition"), *numbers("offset", "end", "lag"), *words("metadata"))
    for one in facts.positions:
        end, lag = ("gone", "-") if one.end_offset is None else (f"{one.end_offset:,}", f"{one.lag:,}")
        table.add_row(str(one.place), f"{one.offset:,}", end, lag, readable_line(one.metadata))
    show(table)
    for member in facts.members:
        click.echo(readable_line(_sentence_on(member)))


def _sentence_on(member: MemberDescription) -> str:
    if member.pid is None:
        return f"member {member.member_id} of client {member.client_id} at {member.host}"
    state = "is stopped and holds" if member.is_stopped else "has"
    return f"member {member.member_id}: process {member.pid} {state} {', '.join(member.partitions) or 'no partition'}"


# --- reset, delete, export


@command.command("reset", cls=Command)
@directory_argument
@group_argument
@click.option(
    "--to",
    "target",
    required=True,
    metavar="OFFSET",
    help="The new offset: earliest, latest, an offset, -N for the last N records, or s@MS for a timestamp.",
)
@place_options
@click.option("--dry-run", is_flag=True, help="Show the new offsets and change nothing.")
@settings_option
@json_option
def reset(
    directory: str,
    group_id: str,
    target: str,
    topic: str | None,
    partition: int | None,
    dry_run: bool,
    settings: ClientSettings,
    is_json: bool,
) -> None:
    """Move the offsets of a group.

    Without --topic, the committed offsets of the group are moved. With --topic, the group gets an offset in every
    partition of that topic. An offset outside the log becomes the nearest offset in it.
    """
    start = Start.parse(target)
    reader = LogReader(directory, on_corrupt="skip")
    former = {
        one.place: one.offset for one in facts_of(reader, group_id, settings).positions if one.end_offset is not None
    }
    found = [one for one in partitions(reader, topic, partition) if topic is not None or one.place in former]
    if not found:
        raise InvalidArgumentError(f"the group {group_id!r} has no offset there: name a topic with --topic")
    moved = {one.place: min(max(start.of(one), one.log_start_offset), one.log_end_offset) for one in found}
    if not dry_run:
        move(reader.path, group_id, moved, settings)
    _print_moved(former, moved, dry_run=dry_run, is_json=is_json)


def _print_moved(
    former: dict[TopicPartition, int], moved: dict[TopicPartition, int], *, dry_run: bool, is_json: bool
) -> None:
    if is_json:
        rows = [
            {"topic": place.topic, "partition": place.partition, "from": former.get(place), "to": offset}
            for place, offset in moved.items()
        ]
        print_json({"is_dry_run": dry_run, "partitions": rows})
        return
    table = Table(*words("partition"), *numbers("from", "to"))
    for place, offset in moved.items():
        table.add_row(str(place), f"{former[place]:,}" if place in former else "-", f"{offset:,}")
    show(table)
    if dry_run:
        click.echo("nothing was changed (--dry-run)")


@command.command("delete", cls=Command)
@directory_argument
@group_argument
@settings_option
def delete_group(directory: str, group_id: str, settings: ClientSettings) -> None:
    """Delete a group and its offsets."""
    facts = _facts(directory, group_id, settings)
    delete(LogReader(directory).path, group_id, settings)
    click.echo(f"{readable_line(group_id)} was deleted with {format_count(len(facts.positions), 'offset')}")


@command.command("export", cls=Command)
@directory_argument
@click.argument("target", metavar="OUT")
def export_groups(directory: str, target: str) -> None:
    """Write the offsets of all groups as records of __consumer_offsets.

    OUT is a log directory, new or without that topic. Its topic __consumer_offsets has 50 partitions, and keys and
    values in Kafka's format (OffsetCommitKey version 1, OffsetCommitValue version 3).
    """
    group_count, offset_count = export(LogReader(directory).path, target.removeprefix("log:"))
    groups, offsets = format_count(group_count, "group"), format_count(offset_count, "offset")
    click.echo(f"{groups} with {offsets} were written to {target}")
