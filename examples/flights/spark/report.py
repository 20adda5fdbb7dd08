# SPDX-License-Identifier: Apache-2.0
"""The output of ``shmaccum run --spark``: its progress, the answers, and whether pandas gives the same."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights.data import FLIGHT_COUNT
from examples.flights.spark import answers, pipeline
from examples.flights.spark.cluster import Cluster, open_cluster
from examples.flights.spark.plot import save_plot
from examples.flights.spark.session import open_session

BAR_WIDTH = 16
MAKERS_MAX = 8
DAYS_MAX = 8
LOCAL = Cluster("local[2]", ("this-node",))


@dataclass(frozen=True)
class Plan:
    """The options of a run."""

    folder: Path
    """The folder of all files. Those of an older run are replaced."""
    flight_count: int = FLIGHT_COUNT
    """The number of flights, from the first one in the file."""
    has_cluster: bool = False
    """True to run on a standalone master with two workers, instead of on two threads."""


@dataclass
class Outcome:
    """The results of a run.

    Attributes:
        found: the answers by question.
        findings: sentences about faults. Empty if there are none.
        seconds: the time from the first flight written until the last was streamed back.
        record_counts: the number of records in each node's log.
        progress: the micro-batches of the query.
    """

    found: dict[str, pd.DataFrame]
    findings: list[str]
    seconds: float
    record_counts: dict[str, int]
    progress: list[dict[str, Any]]


# --- running


def run(console: Console, plan: Plan) -> int:
    """Runs the example and prints its results.

    Returns:
        The exit code: 0 if every flight was read once and all answers equal those of pandas.

    Raises:
        ShmaccumError: the folder has other files, or Spark did not start.
    """
    pipeline.clear(plan.folder)
    with contextlib.ExitStack() as exits:
        cluster = _cluster(console, plan, exits)
        place = exits.enter_context(pipeline.prepared(plan.folder, cluster.nodes, plan.flight_count))
        with _environment(cluster), console.status("starting Spark"):
            spark = exits.enter_context(open_session(cluster.url, plan.folder))
        outcome = _run(console, spark, place, plan.flight_count)
    _print(console, place, outcome)
    return 1 if outcome.findings else 0


def _cluster(console: Console, plan: Plan, exits: contextlib.ExitStack) -> Cluster:
    if not plan.has_cluster:
        return LOCAL
    with console.status("starting a master and two workers"):
        return exits.enter_context(open_cluster(plan.folder.absolute() / "nodes"))


@contextlib.contextmanager
def _environment(cluster: Cluster) -> Iterator[None]:
    """Sets the name of the node if there is no cluster. The nodes of a cluster have their own names."""
    with pipeline.node_named(cluster.nodes[0]) if cluster is LOCAL else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _bars(console: Console, flight_count: int) -> Iterator[pipeline.Watcher]:
    columns = [TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress:
        tasks = [progress.add_task(name, total=flight_count) for name in ("written", "streamed back")]

        def watch(*counts: int) -> None:
            for task, count in zip(tasks, counts, strict=True):
                progress.update(task, completed=count)

        yield watch


def _run(console: Console, spark: Any, place: pipeline.Place, flight_count: int) -> Outcome:
    query = pipeline.DayQuery(spark, place)
    with _bars(console, flight_count) as watch:
        started_s = time.monotonic()
        pipeline.write(spark, place, lambda count: watch(count, query.seen_count))
        query.drain(flight_count, lambda: watch(flight_count, query.seen_count))
        seconds = time.monotonic() - started_s
    query.stop()
    with console.status("reading everything as a batch, and asking Spark"):
        events = pipeline.read(spark, place).cache()
        wrong = pipeline.check_rows(events, flight_count)
        found = {name: answers.of_spark(events, name) for name in answers.QUESTIONS if name != "days"}
    found["days"] = query.answer()
    with console.status("asking pandas"):
        flights = answers.read_flights(flight_count)
        differences = [
            answers.difference(name, answer, answers.of_pandas(flights, name)) for name, answer in found.items()
        ]
    findings = [finding for finding in (wrong, *differences, query.lateness()) if finding is not None]
    return Outcome(found, findings, seconds, pipeline.record_counts(place), query.progress)


# --- printing


def _bar(value: float, largest: float) -> str:
    eighths = round(max(value, 0) / largest * BAR_WIDTH * 8) if largest > 0 else 0
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def _table_of(title: str, head: str, means: pd.DataFrame) -> Table:
    """Shows groups with flights, the share that was cancelled, and the mean delay as number and bar."""
    table = Table(title=title, title_justify="left")
    table.add_column(head)
    for name in ("flights", "cancelled", "delay"):
        table.add_column(name, justify="right")
    table.add_column("", width=BAR_WIDTH)
    largest = means["delay"].max()
    for group, row in means.iterrows():
        delay = "" if pd.isna(row.delay) else f"{row.delay:.1f} min"
        bar = "" if pd.isna(row.delay) else _bar(row.delay, largest)
        name = " ".join(map(str, group)) if isinstance(group, tuple) else str(group)
        table.add_row(name, f"{int(row.flights):,}", f"{row.cancelled:.1%}", delay, f"[cyan]{bar}[/]")
    return table


def _tables(found: dict[str, pd.DataFrame]) -> Iterator[Table]:
    by_hour, by_carrier = (answers.mean_delay(found["hours"], [key]) for key in ("hour", "carrier"))
    makers = answers.mean_delay(found["aircraft"], ["maker"]).sort_values("flights", ascending=False)
    days = answers.mean_delay(found["days"], ["day", "origin"]).sort_values("delay", ascending=False)
    yield _table_of("By hour of departure", "hour", by_hour)
    yield _table_of("By carrier", "carrier", by_carrier.sort_values("delay", ascending=False))
    yield _table_of("By airport", "airport", answers.mean_delay(found["hours"], ["origin"]))
    yield _table_of("By weather", "sky", answers.mean_delay(found["weather"], ["sky"]))
    yield _table_of("By maker of the aircraft", "maker", makers.head(MAKERS_MAX))
    yield _table_of("The worst days, from the stream", "day", days.head(DAYS_MAX))


def _facts(place: pipeline.Place, outcome: Outcome) -> Iterator[tuple[str, str]]:
    count = sum(outcome.record_counts.values())
    yield "flights written and streamed back", f"{count:,} in {outcome.seconds:.1f} s"
    for node, of_node in outcome.record_counts.items():
        yield f"through the arena {place.arena_of(node)}", f"{of_node:,}"
    batches = [each for each in outcome.progress if each["numInputRows"]]
    yield "micro-batches of the query", f"{len(batches):,}"
    if outcome.progress and (operators := outcome.progress[-1]["stateOperators"]):
        yield "its watermark at the end", str(outcome.progress[-1]["eventTime"].get("watermark", ""))
        groups = len(outcome.found["days"])
        yield "groups it still remembers", f"{operators[0]['numRowsTotal']:,} of {groups:,}"


def _print(console: Console, place: pipeline.Place, outcome: Outcome) -> None:
    console.print(Columns(_tables(outcome.found), padding=(1, 3)))
    closing = Table(show_header=False)
    closing.add_column()
    closing.add_column(justify="right")
    for name, value in _facts(place, outcome):
        closing.add_row(name, value)
    console.print(closing)
    if not outcome.findings:
        groups = sum(map(len, outcome.found.values()))
        console.print("[green]✓[/] every flight came back once")
        console.print(f"[green]✓[/] {groups:,} groups of {len(outcome.found)} answers are those of pandas")
    for finding in outcome.findings:
        console.print(f"[red]✗[/] {finding}")
    picture = place.folder / "delays.png"
    with console.status("drawing"):
        save_plot(outcome.found, picture)
    console.print(f"the picture: {picture}")
