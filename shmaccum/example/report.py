# SPDX-License-Identifier: Apache-2.0
"""What ``shmaccum run`` prints: how far it is, what the readers found, and a closing table."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shmaccum.example import peer, pipeline, verification
from shmaccum.example.flights import FLIGHT_COUNT, topics
from shmaccum.example.worker import WORKER_COUNT
from shmaccum.units import format_size


class _Bars:
    """Two bars: events sent by the workers, records delivered by the sender."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._sent = progress.add_task("sent", total=FLIGHT_COUNT, what="")
        self._delivered = progress.add_task("delivered", total=FLIGHT_COUNT, what="")

    def watch(self, what: str, sent: int, delivered: int) -> None:
        self._progress.update(self._sent, completed=sent)
        self._progress.update(self._delivered, completed=delivered, what=what)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[what]}"),
        console=console,
    )


def _say_what(console: Console, directory: Path) -> None:
    console.print(f"{FLIGHT_COUNT:,} flights, {WORKER_COUNT} worker processes, one arena of 32 MiB, one sender process.")
    console.print(f"Topics {', '.join(topics())}, {pipeline.PARTITION_COUNT} partitions each, into {directory}\n")


def _run_pipeline(console: Console, directory: Path, *, is_killing: bool) -> pipeline.Outcome:
    with _progress(console) as progress:
        return pipeline.run(directory, _Bars(progress).watch, is_killing=is_killing)


def _verify(console: Console, directory: Path) -> tuple[verification.Ledger, list[str]]:
    """Reads the log with every reader; answers the ledger of ours, and what is wrong."""
    with console.status("working out what must be in the log"):
        expected = verification.expected_checksums()
    findings: list[str] = []
    ledgers: dict[str, verification.Ledger] = {}
    for name, read in verification.readers().items():
        ledgers[name] = verification.Ledger(expected)
        with console.status(f"reading the log back with {name}"):
            read(directory, ledgers[name])
        found = ledgers[name].findings()
        findings += [f"{name}: {finding}" for finding in found]
        if not found:
            console.print(
                f"[green]✓[/] {name} finds every flight exactly once, in the order of its key, all checksums right"
            )
    return ledgers["shmaccum"], findings


def _facts(outcome: pipeline.Outcome, ledger: verification.Ledger, peer_rate: float | None) -> list[tuple[str, str]]:
    """The rows of the closing table."""
    rate = FLIGHT_COUNT / outcome.seconds
    counters = outcome.statistics.counters
    fill = ledger.byte_count / (ledger.batch_count * outcome.statistics.batch_size)
    facts = [
        ("flights read, packed, sent, delivered", f"{FLIGHT_COUNT:,} in {outcome.seconds:.1f} s"),
        ("records a second, start-up included", f"{rate:,.0f}"),
        ("batches", f"{ledger.batch_count:,}"),
        ("mean fill of a batch", f"{fill:.0%}, {FLIGHT_COUNT / ledger.batch_count:.0f} records"),
        ("bytes", format_size(ledger.byte_count)),
        ("waits for a buffer", f"{counters['allocations that waited for a buffer']:,}"),
    ]
    if outcome.killed:
        facts.append(("killed with SIGKILL, and replaced", " and ".join(outcome.killed)))
    if peer_rate is not None:
        facts.append(("the same through a multiprocessing.Queue", f"{peer_rate:,.0f} records a second"))
        facts.append(("shmaccum is", f"{rate / peer_rate:.1f} times as fast"))
    return facts


def _print_table(console: Console, facts: list[tuple[str, str]]) -> None:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in facts:
        table.add_row(name, value)
    console.print(table)


def run(console: Console, directory: Path, *, is_killing: bool, is_measuring_peer: bool) -> int:
    """Runs the pipeline, verifies the log and prints what came of it.

    Args:
        console: where to print.
        directory: for the log; one that is there already is replaced.
        is_killing: a worker and the sender are killed half-way.
        is_measuring_peer: the same work is done once more through a multiprocessing.Queue.

    Returns:
        The exit code: 0 when every flight is there exactly once.

    Raises:
        ShmaccumError: a worker or the sender ended by itself.
    """
    _say_what(console, directory)
    outcome = _run_pipeline(console, directory, is_killing=is_killing)
    ledger, findings = _verify(console, directory)
    findings += [f"the arena: {finding}" for finding in outcome.findings]
    peer_rate = None
    if is_measuring_peer:
        with console.status("the same work through a multiprocessing.Queue"):
            peer_rate = peer.measure(directory.parent / f"peer-{os.getpid()}")
    _print_table(console, _facts(outcome, ledger, peer_rate))
    for finding in findings:
        console.print(f"[red]✗[/] {finding}")
    return 1 if findings else 0
