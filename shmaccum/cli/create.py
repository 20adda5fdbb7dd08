# SPDX-License-Identifier: Apache-2.0
"""``shmaccum create``: create an arena, with one command line option for each arena option."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from shmaccum.arena import SIZES, Arena
from shmaccum.arena.file import ArenaFile, group_number
from shmaccum.cli.group import Command, arena_argument, json_option, opened_read_only, print_json
from shmaccum.common.units import format_count, format_size
from shmaccum.config import ArenaOptions
from shmaccum.config.option import Option
from shmaccum.config.page import spell
from shmaccum.exceptions import ArenaExistsError, InvalidArgumentError
from shmaccum.observe.observation import Observer

TOPIC_EXAMPLE = "flights:12"


def arena_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each row of the table. An option that the user omits is not passed on."""
    for name, option in reversed([*ArenaOptions.table().items()]):
        function = _option(name, option)(function)
    return function


def _option(name: str, option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    spelling = f"--{name.replace('_', '-')}"
    if option.kind == "boolean":
        return click.option(spelling, name, is_flag=True, default=None, help=option.sentence)
    help_text = f"{option.sentence} [default: {spell(option, option.default)}]"
    return click.option(spelling, name, metavar=option.kind.upper(), help=help_text)


def parse_topic(text: str) -> tuple[str, int]:
    """Return the topic and the partition count of ``NAME:PARTITIONS``."""
    name, _, count = text.rpartition(":")
    if not name or not count.isdecimal() or int(count) < 1:
        raise InvalidArgumentError(f"{text!r} is not NAME:PARTITIONS: write it like {TOPIC_EXAMPLE}")
    return name, int(count)


def parse_topics(texts: tuple[str, ...]) -> dict[str, int]:
    """Return the partition counts by topic.

    Raises:
        InvalidArgumentError: a text is not ``NAME:PARTITIONS``, or a topic is named twice.
    """
    counts: dict[str, int] = {}
    for topic, count in map(parse_topic, texts):
        if topic in counts:
            raise InvalidArgumentError(f"topic {topic!r} is named twice: name it once, with its partition count")
        counts[topic] = count
    return counts


def _differences(arena_name: str, sizes: dict[str, int], partition_counts: dict[str, int]) -> Iterator[str]:
    """Yield the differences between an existing arena and the requested one, in sizes and topics.

    Raises:
        ArenaError: this build cannot use the file: it has another layout, is damaged or is not an arena.
    """
    with opened_read_only(arena_name) as arena:
        seen = Observer(arena).observe()
        differences = arena.size_differences(sizes)
    yield from differences
    for topic, wanted_count in partition_counts.items():
        has_count = seen.topics.get(topic, 0)
        if has_count != wanted_count:
            yield f"it has {format_count(has_count, 'partition')} of topic {topic!r}, not {wanted_count}"


@click.command(
    "create",
    cls=Command,
    epilog="Sizes are written like 32MiB. A name without a slash is POSIX shared memory. A path is a file, which "
    "survives a reboot. All space is reserved at creation.",
)
@arena_argument
@click.option(
    "--topic", "topics", metavar="NAME:PARTITIONS", multiple=True, help="A topic and its partitions; repeatable."
)
@click.option("--exist-ok", is_flag=True, help="Accept an existing arena, and print how it differs.")
@arena_options
@json_option
def command(arena_name: str, topics: tuple[str, ...], exist_ok: bool, is_json: bool, **given: str | None) -> None:
    """Create an arena.

    If a topic is not named here, the sink determines its partition count at the first record.
    """
    options = ArenaOptions.parse({name: value for name, value in given.items() if value is not None})
    partition_counts = parse_topics(topics)
    try:
        arena = Arena.create(arena_name, topics=partition_counts, **vars(options))
    except ArenaExistsError:
        if not exist_ok:
            raise
        ArenaFile.parse(arena_name).check_trust(options.mode, group_number(options.group, options.mode))
        sizes = {name: getattr(options, name) for name in SIZES if given[name] is not None}
        for difference in _differences(arena_name, sizes, partition_counts):
            click.echo(f"shmaccum: {arena_name} already exists and was not changed: {difference}", err=True)
        return
    with arena:
        facts: dict[str, Any] = {
            "name": arena.name,
            "uuid": arena.uuid.hex(),
            "size": arena.native.size,
            **arena.geometry,
            "topics": partition_counts,
        }
    if is_json:
        print_json(facts)
        return
    click.echo(
        f"created {facts['name']}: {format_size(facts['buffer_memory'])} in "
        f"{format_count(facts['slot_count'], 'buffer')} of "
        f"{format_size(facts['batch_size'])}, {format_size(facts['size'])} in total"
    )
