# SPDX-License-Identifier: Apache-2.0
"""``shmaccum log``: read and check a log directory in Kafka's format, from a sender or a broker."""

from __future__ import annotations

import click

from shmaccum.cli.group import CommandGroup
from shmaccum.cli.log_cat import cat
from shmaccum.cli.log_facts import info, offsets, verify


@click.group("log", cls=CommandGroup)
def command() -> None:
    """Read and check a log directory of a sender (--sink log:DIR) or of a Kafka broker.

    The log may be in use, and is not changed.
    """


for subcommand in (cat, info, offsets, verify):
    command.add_command(subcommand)
