# SPDX-License-Identifier: Apache-2.0
"""A year of flights, month by month, through Spark: joined, written to each node's arena, streamed back, and added up.

    tables ──> joins ──> task ─┐ append   ┌───────┐  sender   log of     source of
                         task ─┴────────> │ arena │ ───────>  the node ────────────> a query with a watermark
                                          └───────┘                       └────────> batches
                         (the same on every other node)

A month is a batch job, and its flights are written in any order while the query runs. So no flight that the query reads
is more than a month older than the newest one. Its watermark has that delay, so no flight is late, and the state of
older days is dropped. The query's answers are upserted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd

from examples.flights.spark import answers, tables
from shmaccum.arena import Arena
from shmaccum.exceptions import NotALogError, ShmaccumError
from shmaccum.log.files import LogDirectory, LogReader
from shmaccum.spark.node import NODE, NODE_VARIABLE

PARTITION_COUNT = 2
TASK_COUNT = 4
MONTH = "31 days"
IDLE_EXIT = "2s"
TIMEOUT_S = 600.0
CHECK_EVERY_S = 0.1
OWN = ("tables", "nodes", "checkpoint", "logs", "warehouse", "spark.log", "log4j2.properties", "delays.png")
"""The files that a run creates in its folder, and that the next run replaces."""

Watcher = Callable[[int, int], None]
"""Called periodically with the numbers of flights that were written, and that were streamed back."""


@dataclass(frozen=True)
class Place:
    """The folder, nodes and arenas of a run.

    Attributes:
        folder: the folder of everything except the arenas.
        nodes: the names of the nodes.
        prefix: the prefix of the names of the arenas.
    """

    folder: Path
    nodes: tuple[str, ...]
    prefix: str = field(default_factory=lambda: f"shmaccum-spark-{os.getpid()}")

    @property
    def arena(self) -> str:
        """The option ``arena`` of the sink, the same for all nodes."""
        return f"{self.prefix}-{NODE}"

    @property
    def log(self) -> Path:
        """The log directory in the sink's name, the same for all nodes."""
        return self.folder.absolute() / "logs" / NODE

    def arena_of(self, node: str) -> str:
        """The arena of one node."""
        return self.arena.replace(NODE, node)

    def log_of(self, node: str) -> Path:
        """The log of one node."""
        return Path(str(self.log).replace(NODE, node))


@contextlib.contextmanager
def prepared(folder: Path, nodes: tuple[str, ...], flight_count: int) -> Iterator[Place]:
    """Makes the tables as files, and an empty log for each node. At the end, no arena and no sender is left.

    Raises:
        NotALogError: the folder has files that are not from an older run.
        ShmaccumError: the package with the data is not installed.
    """
    place = Place(folder, nodes)
    tables.unpack_tables(folder / "tables", flight_count)
    for node in nodes:
        with LogDirectory(place.log_of(node)):
            pass
    try:
        yield place
    finally:
        for node in nodes:
            _remove(place.arena_of(node))


@contextlib.contextmanager
def node_named(name: str) -> Iterator[None]:
    """Gives a node's name to the processes that start in the body."""
    former = os.environ.get(NODE_VARIABLE)
    os.environ[NODE_VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(NODE_VARIABLE) if former is None else os.environ.update({NODE_VARIABLE: former})


def clear(folder: Path) -> None:
    """Makes the folder, or removes what an older run left there, and nothing else.

    Raises:
        NotALogError: the folder has other files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    strangers = sorted({path.name for path in folder.iterdir()} - set(OWN))
    if strangers:
        raise NotALogError(
            f"{folder} has things that are not of this example ({', '.join(strangers[:3])}), and would be replaced: "
            "name a new directory"
        )
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _remove(arena: str) -> None:
    """Removes an arena after its sender has exited: when Spark's workers are gone and all records are sent."""
    if not Arena.exists(arena):
        return
    with Arena.open_read_only(arena) as view:
        deadline_s = time.monotonic() + TIMEOUT_S
        while view.native.sender_is_alive and time.monotonic() < deadline_s:
            time.sleep(CHECK_EVERY_S)
    Arena.remove(arena)


# --- writing


def write(spark: Any, place: Place, tell: Callable[[int], None]) -> None:
    """Joins the tables and writes the events through the sink, a job for each month.

    Args:
        spark: the session.
        place: the place of the run.
        tell: called with the number of written flights.
    """
    events = tables.enriched(spark, place.folder / "tables").repartition(TASK_COUNT, "tailnum").cache()
    counts = {row.month: row["count"] for row in events.groupBy("month").count().collect()}
    written = 0
    for month in sorted(counts):
        of_month = events.where(f"month = {month}").sortWithinPartitions("time_hour", "row")
        writer = tables.as_records(of_month).write.format("shmaccum").mode("append")
        writer = writer.options(arena=place.arena, sink=f"log:{place.log}", partitions=str(PARTITION_COUNT))
        writer.options(bufferMemory="32MiB", idleExitMs=IDLE_EXIT).save()
        written += counts[month]
        tell(written)
    events.unpersist()


# --- reading


def _loaded(reader: Callable[[], Any], place: Place) -> Any:
    """Returns the logs of all nodes as one frame of events."""
    loaded = [
        reader().format("shmaccum").options(path=str(place.log_of(node)), subscribePattern=r"flights\..*").load()
        for node in place.nodes
    ]
    return tables.as_events(reduce(lambda left, right: left.union(right), loaded))


def read(spark: Any, place: Place) -> Any:
    """Returns all events of the logs, by a batch query."""
    return _loaded(lambda: spark.read, place)


class DayQuery:
    """A streaming query: flights and delays by day and airport.

    Args:
        spark: the session.
        place: the place of the run that it reads.
    """

    def __init__(self, spark: Any, place: Place) -> None:
        self.progress: list[dict[str, Any]] = []
        self._answers: dict[tuple[str, str], tuple[int, ...]] = {}
        self._lock = threading.Lock()
        self._query = self._begin(_loaded(lambda: spark.readStream.option("startingOffsets", "earliest"), place), place)

    def _begin(self, events: Any, place: Place) -> Any:
        from pyspark.sql.functions import col, date_format, window

        days = events.withWatermark("timestamp", MONTH).groupBy(window("timestamp", "1 day"), "origin")
        counted = days.agg(*answers.measures()).select(
            date_format(col("window.start"), "yyyy-MM-dd").alias("day"), "origin", *answers.MEASURES
        )
        writer = counted.writeStream.outputMode("update").foreachBatch(self._upsert)
        writer = writer.trigger(processingTime="1 second")
        return writer.option("checkpointLocation", str(place.folder / "checkpoint")).start()

    def _upsert(self, rows: Any, _batch_id: int) -> None:
        with self._lock:
            for row in rows.collect():
                self._answers[row.day, row.origin] = tuple(row[measure] for measure in answers.MEASURES)

    @property
    def seen_count(self) -> int:
        """The number of flights that the query has read."""
        return sum(progress["numInputRows"] for progress in self._query.recentProgress)

    def drain(self, flight_count: int, look: Callable[[], None]) -> None:
        """Waits until the query has read this number of flights.

        Raises:
            ShmaccumError: the query ended, or was not done within ten minutes.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.seen_count < flight_count:
            look()
            if (error := self._query.exception()) is not None:
                raise ShmaccumError(f"the query ended: {error}")
            if time.monotonic() > deadline_s:
                raise ShmaccumError(f"the query has read {self.seen_count:,} of {flight_count:,} flights: it is stuck")
            time.sleep(CHECK_EVERY_S)
        self._query.processAllAvailable()
        look()

    def lateness(self) -> str | None:
        """Describes the flights that the query left out because they were late. None if there are none."""
        late = sum(
            operator["numRowsDroppedByWatermark"] for each in self.progress for operator in each["stateOperators"]
        )
        return f"the query left out {late:,} rows that came after its watermark" if late else None

    def stop(self) -> None:
        """Ends the query. Its answers remain."""
        self.progress = list(self._query.recentProgress)
        self._query.stop()

    def answer(self) -> pd.DataFrame:
        """Returns the answer by day and airport, as far as the query has come."""
        with self._lock:
            rows = [(*group, *numbers) for group, numbers in self._answers.items()]
        return answers.in_order(pd.DataFrame(rows, columns=["day", "origin", *answers.MEASURES]), "days")


def record_counts(place: Place) -> dict[str, int]:
    """The number of records in the log of each node."""
    counts = {}
    for node in place.nodes:
        log = LogReader(place.log_of(node))
        counts[node] = sum(log.partition(*each).log_end_offset for each in log.topic_partitions())
    return counts


def check_rows(events: Any, flight_count: int) -> str | None:
    """Describes flights that are missing or repeated. None if every flight is there once."""
    count, distinct, first, last = events.selectExpr(
        "count(1)", "count(distinct row)", "min(row)", "max(row)"
    ).collect()[0]
    if (count, distinct, first, last) == (flight_count, flight_count, 0, flight_count - 1):
        return None
    return f"{flight_count:,} flights were written, {distinct:,} came back, as {count:,} records"
