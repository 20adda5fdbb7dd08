# SPDX-License-Identifier: Apache-2.0
"""``shmaccum log``: a log directory in Kafka's format, ours or a broker's, is read and checked."""

from __future__ import annotations

import click

from shmaccum.cli.group import CommandGroup
from shmaccum.cli.log_cat import cat
from shmaccum.cli.log_facts import info, offsets, verify


@click.group("log", cls=CommandGroup)
def command() -> None:
    """Read and check a log directory that a sender writes (--sink log:DIR), or that of a Kafka broker.

    Changes nothing, and works while the log is written.
    """


for subcommand in (cat, info, offsets, verify):
    command.add_command(subcommand)
