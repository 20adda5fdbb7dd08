# SPDX-License-Identifier: Apache-2.0
"""``shmaccum run``: the example pipeline of ``make run``."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from shmaccum.cli.group import Command


@click.command("run", cls=Command)
@click.option("--kill", "is_killing", is_flag=True, help="Kill a worker and the sender half-way, with SIGKILL.")
@click.option("--peer/--no-peer", default=True, help="Do the same through a multiprocessing.Queue, too.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/log"),
    show_default=True,
    help="Where the log is written; an older one there is replaced.",
)
@click.pass_context
def command(ctx: click.Context, *, is_killing: bool, peer: bool, directory: Path) -> None:
    """A year of flights through four workers, one arena and one sender, into a log that two readers verify."""
    from shmaccum.example import report  # its data and readers are extras of the package

    ctx.exit(report.run(Console(), directory, is_killing=is_killing, has_peer=peer))
