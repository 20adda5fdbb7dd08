# SPDX-License-Identifier: Apache-2.0
"""``shmaccum topics``: the topics of a log directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from shmaccum.cli.drawing import Table, numbers, words
from shmaccum.cli.group import Command, CommandGroup, assignments, json_option, print_json
from shmaccum.cli.log_facts import partition_facts
from shmaccum.cli.log_place import directory_argument
from shmaccum.cli.server_settings import settings_option
from shmaccum.cli.terminal import show
from shmaccum.common.units import format_count, format_size
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files import LogReader
from shmaccum.log.files.file_names import TOPIC_SETTINGS_FILE
from shmaccum.log.files.leader_epochs import LeaderEpochs
from shmaccum.log.files.partition_folders import topic_id_in
from shmaccum.log.files.small_files import uuid_text
from shmaccum.log.files.topic_settings import TopicSettings, checked
from shmaccum.log.server.client_settings import ClientSettings
from shmaccum.log.server.topic_administration import create_topic, delete_topic, grow_topic

topic_argument = click.argument("topic", metavar="TOPIC")
count_option = click.option(
    "-n",
    "--partitions",
    "count",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="The number of partitions.",
)


@click.group("topics", cls=CommandGroup)
def command() -> None:
    """Show and manage the topics of a log directory.

    If a writable server serves the log, topics are changed through that server. Otherwise, they can be changed only
    while no process writes the log. While a sender writes a log, its topics can only be shown.
    """


def _facts(reader: LogReader, topic: str) -> dict[str, Any]:
    parts = [partition_facts(reader.partition(topic, number)) for number in reader.partitions(topic)]
    topic_id = topic_id_in(reader.path, topic, len(parts))
    return {
        "topic": topic,
        "id": None if topic_id is None else uuid_text(topic_id),
        "record_count": sum(part["record_count"] for part in parts),
        "size": sum(part["size"] for part in parts),
        "settings": dict(TopicSettings(os.path.join(reader.path, TOPIC_SETTINGS_FILE)).of(topic)),
        "partitions": [
            {**part, "leader_epoch": LeaderEpochs(os.path.join(reader.path, f"{topic}-{part['partition']}")).latest}
            for part in parts
        ],
    }


# --- list, describe


@command.command("list", cls=Command)
@directory_argument
@json_option
def list_topics(directory: str, is_json: bool) -> None:
    """Show every topic with its partitions, records and bytes."""
    reader = LogReader(directory, on_corrupt="skip")
    found = [_facts(reader, topic) for topic in reader.topics()]
    if is_json:
        print_json(found)
        return
    table = Table(*words("topic"), *numbers("partitions", "records", "bytes"))
    for facts in found:
        count = str(len(facts["partitions"]))
        table.add_row(facts["topic"], count, f"{facts['record_count']:,}", format_size(facts["size"]))
    show(table)


@command.command("describe", cls=Command)
@directory_argument
@topic_argument
@json_option
def describe(directory: str, topic: str, is_json: bool) -> None:
    """Show the partitions of a topic, its id and its settings."""
    facts = _facts(LogReader(directory, on_corrupt="skip"), topic)
    if is_json:
        print_json(facts)
        return
    click.echo(f"{topic}: id {facts['id'] or 'none'}, {format_count(len(facts['partitions']), 'partition')}")
    for name, value in facts["settings"].items():
        click.echo(f"{name}={value}")
    show(_partitions_table(facts["partitions"]))


def _partitions_table(parts: Sequence[dict[str, Any]]) -> Table:
    table = Table(*words("partition"), *numbers("start", "end", "records", "bytes", "segments", "epoch"))
    for part in parts:
        offsets = (f"{part[name]:,}" for name in ("log_start_offset", "log_end_offset", "record_count"))
        rest = format_size(part["size"]), str(len(part["segments"])), str(part["leader_epoch"])
        table.add_row(str(part["partition"]), *offsets, *rest)
    return table


# --- create, delete, partitions


@command.command("create", cls=Command)
@directory_argument
@topic_argument
@count_option
@click.option("--set", "texts", multiple=True, metavar="NAME=VALUE", help="A setting, such as retention.ms=7d.")
@settings_option
def create(directory: str, topic: str, count: int, texts: tuple[str, ...], settings: ClientSettings) -> None:
    """Create a topic. If the directory is new or empty, it becomes a log."""
    create_topic(directory, topic, count, checked(assignments(texts)), settings)
    click.echo(f"{topic} has {format_count(count, 'partition')}")


@command.command("delete", cls=Command)
@directory_argument
@topic_argument
@settings_option
def delete(directory: str, topic: str, settings: ClientSettings) -> None:
    """Delete a topic and all its records."""
    count = len(LogReader(directory).partitions(topic))
    delete_topic(directory, topic, settings)
    click.echo(f"{topic} was deleted with {format_count(count, 'partition')}")


@command.command("partitions", cls=Command)
@directory_argument
@topic_argument
@count_option
@settings_option
def grow(directory: str, topic: str, count: int, settings: ClientSettings) -> None:
    """Increase the number of partitions of a topic."""
    known = len(LogReader(directory).partitions(topic))
    if count <= known:
        raise InvalidArgumentError(f"{topic} has {format_count(known, 'partition')}: name a larger number")
    grow_topic(directory, topic, count, settings)
    click.echo(f"{topic} has {format_count(count, 'partition')}")
