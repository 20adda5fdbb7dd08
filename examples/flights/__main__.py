# SPDX-License-Identifier: Apache-2.0
"""``python -m examples.flights``: the example pipeline of ``make run``."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from examples.flights.console import make_console
from examples.flights.data import FLIGHT_COUNT, data_folder
from shmaccum.cli.group import Command

DIRECTORY = Path("out/log")
DIRECTORY_OF_SPARK = Path("out/spark")
SIGNALLED = 128
"""A shell command that a signal ended has this plus the number of the signal as its exit code."""


@click.command("flights", cls=Command)
@click.option("--kill", "is_killing", is_flag=True, help="Kill a worker and the sender half-way, and replace them.")
@click.option("--serve", "is_serving", is_flag=True, help="Serve the log, and read it by a group of consumers, too.")
@click.option(
    "--watch",
    "is_watched",
    is_flag=True,
    help="Show the arena in a browser: the run begins when the browser has the page, and takes half a minute.",
)
@click.option("--peer/--no-peer", default=True, help="Send them through a multiprocessing.Queue, too.")
@click.option(
    "--spark",
    "has_spark",
    is_flag=True,
    help="Use Spark: join flights, weather and aircraft, write them, stream them back and add them up.",
)
@click.option(
    "--cluster", "has_cluster", is_flag=True, help="With --spark: start a master and two workers, and run there."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The folder of the log; the log of an older run is replaced.  [default: {DIRECTORY}; with Spark "
    f"{DIRECTORY_OF_SPARK}]",
)
@click.option(
    "--flights",
    "flight_count",
    type=click.IntRange(1, FLIGHT_COUNT),
    default=FLIGHT_COUNT,
    show_default=True,
    help="The number of flights, from the first of the file on.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    is_killing: bool,
    is_serving: bool,
    is_watched: bool,
    peer: bool,
    has_spark: bool,
    has_cluster: bool,
    directory: Path | None,
    flight_count: int,
) -> None:
    """Run the example: a year of flights through four workers, one arena and one sender, into a log.

    At the end, two readers verify the log, and so do four consumers on this host. One of these is killed.
    """
    _end_on_signals()
    if has_spark or has_cluster:
        if is_killing or is_serving or is_watched:
            raise click.UsageError("--kill, --serve and --watch are of the example without Spark: leave them out")
        ctx.exit(_run_spark(directory or DIRECTORY_OF_SPARK, flight_count, has_cluster=has_cluster))
    data_folder()  # reports a missing package now, before each worker does
    console = make_console()
    from examples.flights import report  # slow to import, and an extra of the package

    plan = report.Plan(
        directory or DIRECTORY,
        flight_count=flight_count,
        is_killing=is_killing,
        is_serving=is_serving,
        is_watched=is_watched,
        has_peer=peer,
    )
    ctx.exit(report.run(console, plan))


def _end_on_signals() -> None:
    """Makes a signal end the processes of the run and remove its arena, as Ctrl-C does."""

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the cleanup
        raise SystemExit(SIGNALLED + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, end)


def _run_spark(directory: Path, flight_count: int, *, has_cluster: bool) -> int:
    from examples.flights.spark import needs

    needs.check()
    console = make_console()
    from examples.flights.spark import report  # pandas

    return report.run(console, report.Plan(directory, flight_count=flight_count, has_cluster=has_cluster))


if __name__ == "__main__":
    command(prog_name="python -m examples.flights")
