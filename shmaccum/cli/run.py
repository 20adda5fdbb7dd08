# SPDX-License-Identifier: Apache-2.0
"""``shmaccum run``: the example pipeline of ``make run``."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from shmaccum.cli.group import Command
from shmaccum.example.flights import FLIGHT_COUNT


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
@click.option(
    "--flights",
    "flight_count",
    type=click.IntRange(1, FLIGHT_COUNT),
    default=FLIGHT_COUNT,
    show_default=True,
    help="How many flights, from the first of the year on.",
)
@click.pass_context
def command(ctx: click.Context, *, is_killing: bool, peer: bool, directory: Path, flight_count: int) -> None:
    """A year of flights through four workers, one arena and one sender, into a log that two readers verify."""
    from shmaccum.example import report  # slow to import, and what it reads is an extra of the package

    plan = report.Plan(directory, flight_count=flight_count, is_killing=is_killing, has_peer=peer)
    ctx.exit(report.run(Console(), plan))
