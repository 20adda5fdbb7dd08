# SPDX-License-Identifier: Apache-2.0
"""``shmaccum run``: the demonstration of ``make run``."""

from __future__ import annotations

import click

from shmaccum import demonstration
from shmaccum.cli.group import Command


@click.command("run", cls=Command)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Four workers, one arena, one of them killed: what is lost?"""
    ctx.exit(demonstration.run())
