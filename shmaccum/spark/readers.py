# SPDX-License-Identifier: Apache-2.0
"""The source, as Spark calls it, over the log directory that a sink ``log:DIR`` writes, or that of a Kafka broker.

Spark reads what it planned: offsets are chosen on the driver, and each task opens the log itself, so every node must
see the directory under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from shmaccum.config import SparkSourceOptions
from shmaccum.exceptions import InvalidArgumentError, LogPartitionNotFoundError, OffsetOutOfRangeError
from shmaccum.format.topic_partition import TopicPartition
from shmaccum.segment_log import LogReader
from shmaccum.spark.group_offsets import commit, read_committed
from shmaccum.spark.planning import LogRange, limit_positions, plan_ranges
from shmaccum.spark.positions import (
    Offsets,
    Positions,
    chosen_partitions,
    ending_positions,
    from_json,
    latest_positions,
    open_reader,
    present_positions,
    starting_positions,
    to_json,
)
from shmaccum.spark.record_batches import record_batches

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before 4.2 Spark knows no limits
    HAS_READ_LIMITS = False
    SupportsTriggerAvailableNow = object
else:
    HAS_READ_LIMITS = True

ONLY_OF_BATCHES = ("ending_timestamp", "ending_offsets_by_timestamp", "ending_offsets")
ONLY_OF_STREAMS = ("max_offsets_per_trigger", "group_id")


def read_range(options: SparkSourceOptions, wanted: InputPartition) -> Iterator[Any]:
    """The records of a task. Where a read has no records, Spark asks for a partition of its own making."""
    if not isinstance(wanted, LogRange):
        return iter(())
    return record_batches(
        open_reader(options), wanted, has_headers=options.include_headers, is_strict=options.fail_on_data_loss
    )


def _refuse(options: SparkSourceOptions, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise InvalidArgumentError(f"{name} has no meaning for {where}: leave it out")


class BatchReader(DataSourceReader):
    """The reader of a batch query (``spark.read``) over a log.

    Raises:
        InvalidArgumentError: an option is one of streams.
    """

    def __init__(self, options: SparkSourceOptions) -> None:
        _refuse(options, ONLY_OF_STREAMS, "a batch")
        if (options.starting_offsets or "").strip().lower() == "latest":
            raise InvalidArgumentError("startingOffsets cannot be latest: a batch would have nothing")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """A range of offsets for each task.

        Raises:
            LogError: as `starting_positions`, `ending_positions` and `chosen_partitions`.
        """
        options = self._options
        reader = open_reader(options)
        places = chosen_partitions(reader, options, must_exist=True)
        starts = starting_positions(reader, places, options, default="earliest")
        return plan_ranges(starts, ending_positions(reader, places, options), options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range."""
        return read_range(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query (``spark.readStream``); its driver's half lives as long as the query.

    Raises:
        InvalidArgumentError: an option is one of batches, or this Spark is too old for it.
    """

    def __init__(self, options: SparkSourceOptions) -> None:
        _refuse(options, ONLY_OF_BATCHES, "a stream")
        if options.max_offsets_per_trigger is not None and not HAS_READ_LIMITS:
            raise InvalidArgumentError("maxOffsetsPerTrigger needs Spark 4.2 or newer: leave it out")
        self._options = options
        self._last: Positions | None = None
        """The end of a query with the trigger ``availableNow``."""

    # --- the driver's half

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """The positions at which a query without a checkpoint begins."""
        reader = open_reader(self._options)
        places = chosen_partitions(reader, self._options, must_exist=False)
        starts = starting_positions(reader, places, self._options, default="latest")
        return to_json({**starts, **self._committed(reader, places)})

    def _committed(self, reader: LogReader, places: Sequence[TopicPartition]) -> Positions:
        """The offsets that the group has committed for these partitions.

        Raises:
            OffsetOutOfRangeError: one is not there (any more), unless that is to be put up with.
        """
        if self._options.group_id is None:
            return {}
        committed = read_committed(reader, self._options.group_id)
        wanted = {place: committed[place] for place in places if place in committed}
        return present_positions(reader, wanted, is_strict=self._options.fail_on_data_loss)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """The limit of a micro-batch."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of this run of the query: later records belong to the next run."""
        self._last = self._latest(open_reader(self._options))

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: N802 - Spark's name
        """The positions at which the next micro-batch ends.

        Raises:
            OffsetOutOfRangeError: a partition has lost records that were read already.
        """
        reader = open_reader(self._options)
        ends = self._latest(reader) if self._last is None else self._last
        if start is None:
            return to_json(ends)
        starts = self._starts(reader, from_json(start), ends)
        ends = {**starts, **{place: max(end, starts[place]) for place, end in ends.items()}}
        if HAS_READ_LIMITS and isinstance(limit, ReadMaxRows):
            ends = limit_positions(starts, ends, limit.max_rows)
        return to_json(ends)

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """A range of offsets for each task of a micro-batch."""
        ends = from_json(end)
        starts = self._starts(open_reader(self._options), from_json(start), ends)
        return plan_ranges(starts, ends, self._options.min_partitions)

    def commit(self, end: Offsets) -> None:
        """Tells the group how far the query is, if it has one; the query itself goes on from its checkpoint.

        Raises:
            CommitFailedError: the group has members.
            GroupModeError: a server coordinates the group.
        """
        if self._options.group_id is not None:
            commit(open_reader(self._options), self._options.group_id, from_json(end))

    def _latest(self, reader: LogReader) -> Positions:
        return latest_positions(reader, chosen_partitions(reader, self._options, must_exist=False))

    def _starts(self, reader: LogReader, known: Positions, ends: Positions) -> Positions:
        """The position at which each partition goes on; a new partition begins at its start."""
        starts = dict(known)
        for place in ends.keys() - known.keys():
            starts[place] = reader.partition(*place).log_start_offset
        if self._options.fail_on_data_loss:
            self._check_loss(starts, ends)
        return starts

    @staticmethod
    def _check_loss(starts: Positions, ends: Positions) -> None:
        for place, start in sorted(starts.items()):
            if place not in ends:
                raise LogPartitionNotFoundError(f"{place} was read up to offset {start} and is gone; {PUT_UP}")
            if ends[place] < start:
                raise OffsetOutOfRangeError(
                    f"{place} was read up to offset {start} and ends at {ends[place]} now; {PUT_UP}"
                )

    # --- a task's half

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range."""
        return read_range(self._options, partition)


PUT_UP = "say failOnDataLoss=false to read what is there"
