# SPDX-License-Identifier: Apache-2.0
"""The output of ``shmaccum run``: its progress, the findings of the readers, and a closing table."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights import group, local_group, page, peer, pipeline, verification
from examples.flights.data import FLIGHT_COUNT, topics
from examples.flights.worker import WORKER_COUNT
from shmaccum.arena import Arena, ArenaStatistics, VerifyDepth
from shmaccum.common.units import format_size

WATCHED_S = 30.0
"""The time over which a watched run of all flights is spread."""


@dataclass(frozen=True)
class Plan:
    """The options of a run."""

    directory: Path
    """The directory of the log. The log of an older run is replaced."""
    flight_count: int = FLIGHT_COUNT
    """The number of flights, from the first one in the file."""
    is_killing: bool = False
    """True to kill a worker and the sender in mid-flight."""
    is_serving: bool = False
    """True to have a group of consumers read the log from the sender's server."""
    is_watched: bool = False
    """True to show the run in a browser. The run begins when the browser has loaded the page, and takes longer."""
    has_peer: bool = True
    """True to send the same events through a multiprocessing.Queue, too, unless the run kills or is watched."""


@dataclass(frozen=True)
class Outcome:
    """The results of a run."""

    seconds: float
    """The time from the first send until the last record was in the log."""
    statistics: ArenaStatistics
    findings: list[str]
    """The findings of `Arena.verify` at the end. Empty for an intact arena."""
    killed: list[str]
    """Descriptions of the killed processes."""
    peer_rate: float | None
    """Records per second through a multiprocessing.Queue, if that was measured."""
    consumed: group.Consumed | None
    """The records that a group of consumers read, if one did."""


@contextmanager
def _bars(console: Console, flight_count: int) -> Iterator[pipeline.Watcher]:
    """Three bars: the events that the workers have packed, the sent events, and the delivered events."""
    columns = [TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress:
        tasks = [progress.add_task(name, total=flight_count) for name in ("packed", "sent", "delivered")]

        def watch(*counts: int) -> None:
            for task, count in zip(tasks, counts, strict=True):
                progress.update(task, completed=count)

        yield watch


def _soundness(arena: Arena) -> list[str]:
    return [f"the arena: {finding.text}" for finding in arena.verify(VerifyDepth.DEEP, is_idle=True)]


def _run_pipeline(console: Console, plan: Plan) -> Outcome:
    has_queue = plan.has_peer and not plan.is_killing and not plan.is_watched
    seconds = WATCHED_S * plan.flight_count / FLIGHT_COUNT if plan.is_watched else 0
    listen = _free_address() if plan.is_serving else None
    with (
        _bars(console, plan.flight_count) as watch,
        pipeline.open_pipeline(
            plan.directory, watch, flight_count=plan.flight_count, seconds=seconds, has_queue=has_queue, listen=listen
        ) as run,
        page.shown(console, run.arena) if plan.is_watched else nullcontext(),
    ):
        run.prepare()
        run.begin()
        if plan.is_killing:
            run.kill_and_replace()
        seconds = run.finish()
        peer_rate = None
        if run.crew.queue is not None:
            peer_rate = peer.measure(run.crew.board, run.crew.queue, plan.directory.with_name(f"peer-{os.getpid()}"))
        consumed = None if listen is None else group.consume(listen, plan.flight_count)
        run.leave()
        return Outcome(seconds, run.arena.statistics(), _soundness(run.arena), run.killed, peer_rate, consumed)


def _free_address() -> str:
    """Returns an unused address of this host."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def _shares(shares: local_group.Shares) -> Table:
    """Shows the shares: a row for each consumer, a column for each partition."""
    table = Table("consumer", *(f"partition {number}" for number in range(pipeline.PARTITION_COUNT)))
    for number in range(local_group.GROUP_SIZE):
        owned = shares.get(number)
        cells = [("■" if partition in (owned or ()) else "·") for partition in range(pipeline.PARTITION_COUNT)]
        state = "killed" if owned is None else "" if owned else "idle"
        table.add_row(f"{number} {state}".rstrip(), *cells, style="red" if owned is None else None)
    return table


def _consume(console: Console, plan: Plan) -> group.Consumed:
    """Reads the log with the consumers of this host, and shows how they take over from a killed one."""

    def watch(shares: local_group.Shares, takeover: local_group.Takeover | None) -> None:
        if takeover is not None:
            killed = f"consumer {takeover.number} (process {takeover.pid})"
            console.print(f"kill -9 of {killed}: the others had its partitions after {takeover.seconds * 1000:.0f} ms")
        console.print(_shares(shares))

    size, partitions = local_group.GROUP_SIZE, pipeline.PARTITION_COUNT
    console.print(f"\na group of {size} consumers on this host, {partitions} partitions of each topic:")
    return local_group.consume(plan.directory, plan.flight_count, watch)


def _enter(consumed: group.Consumed, _directory: Path, ledger: verification.Ledger) -> None:
    consumed.enter(ledger)


def _verify(
    console: Console, plan: Plan, groups: Mapping[str, group.Consumed]
) -> tuple[verification.Ledger, list[str]]:
    """Reads the log with every reader. Returns the ledger of shmaccum's reader, and all findings."""
    with console.status("working out what must be in the log"):
        expected = verification.expected_checksums(plan.flight_count)
    findings: list[str] = []
    ledgers: dict[str, verification.Ledger] = {}
    readers = verification.readers()
    for name, consumed in groups.items():
        readers[name] = partial(_enter, consumed)
    for name, read in readers.items():
        ledgers[name] = verification.Ledger(expected)
        with console.status(f"reading the log back with {name}"):
            read(plan.directory, ledgers[name])
        found = ledgers[name].findings()
        findings += [f"{name}: {finding}" for finding in found]
        if not found:
            console.print(f"[green]✓[/] read back with {name}: every flight once, in order, unharmed")
    return ledgers["shmaccum"], findings


def _facts(
    flight_count: int, outcome: Outcome, consumed: group.Consumed, ledger: verification.Ledger
) -> Iterator[tuple[str, str]]:
    """The rows of the closing table."""
    rate = flight_count / outcome.seconds
    fill = ledger.byte_count / (ledger.batch_count * outcome.statistics.batch_size)
    waits = outcome.statistics.counters["allocations that waited for a buffer"]
    yield "flights sent and delivered", f"{flight_count:,} in {outcome.seconds:.2f} s"
    if outcome.killed:
        yield "killed in mid-flight, and replaced", "\n".join(outcome.killed)
    else:
        yield "records a second", f"{rate:,.0f}"
    if outcome.peer_rate is not None:
        yield "through a multiprocessing.Queue", f"{outcome.peer_rate:,.0f}"
        yield "shmaccum is", f"{rate / outcome.peer_rate:.1f} times as fast"
    if outcome.consumed is not None:
        yield "consumed twice through the server", f"{outcome.consumed.repeated_count:,}"
    yield "consumed twice, for the kill", f"{consumed.repeated_count:,}"
    yield "batches", f"{ledger.batch_count:,}"
    yield "mean fill of a batch", f"{fill:.0%}, {flight_count / ledger.batch_count:.0f} records"
    yield "bytes in the log", format_size(ledger.byte_count)
    yield "waits for a buffer", f"{waits:,}"


def _table(facts: Iterator[tuple[str, str]]) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in facts:
        table.add_row(name, value)
    return table


def run(console: Console, plan: Plan) -> int:
    """Runs the pipeline, verifies the log and prints the result.

    Args:
        console: where to print.
        plan: the options of the run.

    Returns:
        The exit code: 0 when every flight is there exactly once.

    Raises:
        ShmaccumError: a worker or the sender ended unexpectedly, or the directory is not a log.
    """
    console.print(f"{plan.flight_count:,} flights, {WORKER_COUNT} worker processes, one arena of 32 MiB, one sender;")
    console.print(f"topics {', '.join(topics())}, {pipeline.PARTITION_COUNT} partitions each; {plan.directory}\n")
    outcome = _run_pipeline(console, plan)
    consumed = _consume(console, plan)
    groups = {f"{local_group.GROUP_SIZE} consumers of this host": consumed}
    if outcome.consumed is not None:
        groups[f"a group of {group.GROUP_SIZE} consumers"] = outcome.consumed
    ledger, findings = _verify(console, plan, groups)
    findings += outcome.findings
    console.print(_table(_facts(plan.flight_count, outcome, consumed, ledger)))
    for finding in findings:
        console.print(f"[red]✗[/] {finding}")
    return 1 if findings else 0
