# SPDX-License-Identifier: Apache-2.0
"""``shmaccum options``: show the option tables on a terminal or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from shmaccum.cli.drawing import Column, Table
from shmaccum.cli.group import Command, json_option, print_json
from shmaccum.cli.terminal import show
from shmaccum.config import (
    ArenaOptions,
    ConsumerOptions,
    KafkaSinkOptions,
    LogSinkOptions,
    Option,
    Options,
    PlacelessSinkOptions,
    ProducerOptions,
    SenderOptions,
    ServerOptions,
    ShipperOptions,
    SparkSinkOptions,
    SparkSourceOptions,
)
from shmaccum.config.page import bounds, kafka_name, spell

KINDS: Mapping[str, tuple[type[Options], ...]] = {
    "arena": (ArenaOptions,),
    "producer": (ProducerOptions,),
    "consumer": (ConsumerOptions,),
    "sender": (SenderOptions,),
    "sink": (LogSinkOptions, KafkaSinkOptions, PlacelessSinkOptions),
    "server": (ServerOptions,),
    "shipper": (ShipperOptions,),
    "spark": (SparkSinkOptions, SparkSourceOptions),
}


def _plain(text: str) -> str:
    """Return text without reStructuredText markup."""
    return text.replace("``", "")


def _value_lines(name: str, option: Option) -> Iterator[str]:
    """Yield kind, default, bounds, and Kafka's name if it differs."""
    yield f"{option.kind}, default {spell(option, option.default)}"
    if limits := bounds(option):
        yield limits
    if other := kafka_name(name, option):
        yield f"Kafka: {other}"


def _view(table: type[Options]) -> Table:
    title = f"Options of the {table.scope}, given to {_plain(table.place)}"
    columns = Column("option", style="cyan"), Column("value", is_folded=True), Column("meaning", is_folded=True)
    view = Table(*columns, title=title, header_style="bold")
    for name, option in table.table().items():
        view.add_row(name, "\n".join(_value_lines(name, option)), _plain(option.sentence))
    return view


def _document(table: type[Options]) -> dict[str, Any]:
    return {
        "scope": table.scope,
        "place": _plain(table.place),
        "options": [
            {
                "name": name,
                "kafka": kafka_name(name, option),
                "kind": option.kind,
                "default": spell(option, option.default),
                "bounds": bounds(option),
                "choices": list(option.choices),
                "meaning": _plain(option.sentence),
            }
            for name, option in table.table().items()
        ],
    }


@click.command("options", cls=Command)
@click.argument("kind", required=False, type=click.Choice(list(KINDS)))
@json_option
def command(kind: str | None, is_json: bool) -> None:
    """Show every option: its kind, default, bounds and meaning.

    Dots may replace underscores, as in Kafka: linger.ms is linger_ms. A size is written like 32MiB, a duration like
    500ms.
    """
    tables = [table for name, tables in KINDS.items() if kind in {None, name} for table in tables]
    if is_json:
        print_json([_document(table) for table in tables])
        return
    for position, table in enumerate(tables):
        if position:
            click.echo()
        show(_view(table))
