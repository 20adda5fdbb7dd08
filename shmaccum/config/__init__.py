# SPDX-License-Identifier: Apache-2.0
"""Options: how one is described (`option`), how a table of them is read (`table`), one table per kind, and the page.

::

    option      a row: kind, default, bounds, sentence
    table       the rows of one kind, and how the options that a user gave are read
    arena, producer, consumer, sender, sinks, kafka, server, shipper, spark
                the tables
    secret      passwords that do not show
    page        docs/reference/options.rst, written from the tables
"""

from shmaccum.config.arena import ArenaOptions
from shmaccum.config.consumer import ConsumerOptions
from shmaccum.config.kafka import KafkaSinkOptions
from shmaccum.config.option import INT_MAX, LONG_MAX, Option
from shmaccum.config.producer import ProducerOptions
from shmaccum.config.sender import DEAD_LETTER_KIND, SenderOptions
from shmaccum.config.server import ServerOptions
from shmaccum.config.shipper import ShipperOptions
from shmaccum.config.sinks import LogSinkOptions, PlacelessSinkOptions
from shmaccum.config.spark import SparkSinkOptions, SparkSourceOptions
from shmaccum.config.table import Options, command_line_value, folded, parse_together

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
    "parse_together",
]

Options.tables = (
    ArenaOptions,
    ProducerOptions,
    ConsumerOptions,
    SenderOptions,
    LogSinkOptions,
    KafkaSinkOptions,
    PlacelessSinkOptions,
    ServerOptions,
    ShipperOptions,
    SparkSinkOptions,
    SparkSourceOptions,
)
