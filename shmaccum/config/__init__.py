# SPDX-License-Identifier: Apache-2.0
"""Options: their description (`option`), their parser (`table`), one table per kind, and the generated page.

::

    option      a row: kind, default, bounds, sentence
    table       the rows of one kind, and the parser of a user's options
    arena, producer, consumer, sender, sinks, kafka, server, shipper, spark
                the tables
    compression the rows that the tables of some sinks share
    topic       the settings of a topic that are not options of its log
    secret      secrets that are never displayed
    dicts       the tables as typed dictionaries   ─ dicts_source   the program that writes them
    page        docs/reference/options.rst, generated from the tables
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shmaccum.config.option import INT_MAX, LONG_MAX, Option
from shmaccum.config.table import Options, command_line_value, folded, is_literal_secret, parse_together

if TYPE_CHECKING:
    from shmaccum.config.arena import ArenaOptions
    from shmaccum.config.consumer import ConsumerOptions
    from shmaccum.config.kafka import KafkaSinkOptions
    from shmaccum.config.producer import ProducerOptions
    from shmaccum.config.sender import DEAD_LETTER_KIND, SenderOptions
    from shmaccum.config.server import ServerOptions
    from shmaccum.config.shipper import ShipperOptions
    from shmaccum.config.sinks import LogSinkOptions, PlacelessSinkOptions
    from shmaccum.config.spark import SparkSinkOptions, SparkSourceOptions

__all__ = [
    "DEAD_LETTER_KIND",
    "INT_MAX",
    "LONG_MAX",
    "ArenaOptions",
    "ConsumerOptions",
    "KafkaSinkOptions",
    "LogSinkOptions",
    "Option",
    "Options",
    "PlacelessSinkOptions",
    "ProducerOptions",
    "SenderOptions",
    "ServerOptions",
    "ShipperOptions",
    "SparkSinkOptions",
    "SparkSourceOptions",
    "command_line_value",
    "folded",
    "is_literal_secret",
    "parse_together",
]

_TABLES = {
    "ArenaOptions": "arena",
    "ProducerOptions": "producer",
    "ConsumerOptions": "consumer",
    "SenderOptions": "sender",
    "LogSinkOptions": "sinks",
    "KafkaSinkOptions": "kafka",
    "PlacelessSinkOptions": "sinks",
    "ServerOptions": "server",
    "ShipperOptions": "shipper",
    "SparkSinkOptions": "spark",
    "SparkSourceOptions": "spark",
}
"""The module of each table, in the order of the page. A table is imported when it is first used."""
_HOMES = {**_TABLES, "DEAD_LETTER_KIND": "sender"}


def __getattr__(name: str) -> Any:
    """Imports the module of a table when one of its names is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


Options.find_tables = lambda: tuple(__getattr__(name) for name in _TABLES)
