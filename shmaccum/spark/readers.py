# SPDX-License-Identifier: Apache-2.0
"""The source, as Spark calls it, over the log directory that a sink ``log:DIR`` writes, or that of a Kafka broker.

Spark reads what it planned: offsets are chosen on the driver, and each task opens the log itself, so every node must
see the directory under the same path.

A query reads the partitions that its options name, and no others. Its checkpoint keeps the position of every partition
that it has ever read. So a topic that it no longer names is not read, and goes on from there once it is named again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import SparkSourceOptions
from shmaccum.exceptions import (
    InvalidArgumentError,
    LogPartitionNotFoundError,
    OffsetOutOfRangeError,
    ShmaccumError,
)
from shmaccum.log.files import LogReader
from shmaccum.spark.group_offsets import commit, read_committed
from shmaccum.spark.planning import LogRange, limit_positions, plan_ranges
from shmaccum.spark.positions import (
    Offsets,
    Positions,
    awaited,
    chosen_partitions,
    ending_positions,
    from_json,
    latest_positions,
    open_reader,
    partition_test,
    present_positions,
    starting_positions,
    to_json,
    topic_ids_in,
    topic_ids_of,
)
from shmaccum.spark.record_batches import record_batches

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before 4.2 Spark knows no limits
    HAS_READ_LIMITS = False
    SupportsTriggerAvailableNow = object
else:
    HAS_READ_LIMITS = True

logger = logging.getLogger(__name__)

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
        self._known: Positions = {}
        """The newest position of each partition; before Spark 4.2 `latestOffset` is not told the start."""
        self._told: set[str] = set()

    # --- the driver's half

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """The positions at which a query without a checkpoint begins."""
        reader = open_reader(self._options)
        topic_ids, places = topic_ids_of(reader), self._places(reader)
        starts = starting_positions(reader, places, self._options, default="latest")
        return to_json({**starts, **self._committed(reader, places)}, topic_ids)

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
        topic_ids = topic_ids_of(reader)
        ends = self._latest(reader) if self._last is None else self._last
        if start is None:
            return to_json({**self._known, **ends}, topic_ids)
        starts = self._starts(reader, start, ends, topic_ids)
        ends = {**starts, **{place: max(end, starts[place]) for place, end in ends.items()}}
        if HAS_READ_LIMITS and isinstance(limit, ReadMaxRows):
            ends = limit_positions(starts, ends, limit.max_rows)
        return to_json(ends, topic_ids)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """The end of the log, which the progress of a query shows as ``latestOffset`` since Spark 4.2.

        None while the log cannot be read: the next micro-batch raises the reason.
        """
        try:
            ends = self._latest(open_reader(self._options)) if self._last is None else self._last
        except (ShmaccumError, OSError):
            return None
        return to_json(ends) or None

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """A range of offsets for each task of a micro-batch.

        Raises:
            OffsetOutOfRangeError, LogPartitionNotFoundError: as `latestOffset`.
            InvalidArgumentError: the micro-batch was planned with records of partitions that the query does not name.
        """
        ends = from_json(end)
        reader = open_reader(self._options)
        starts = self._starts(reader, start, ends, topic_ids_in(end))
        for place in self._former(starts, topic_ids_in(end), topic_ids_of(reader)):
            self._tell_former(place, ends.get(place, starts[place]))
            ends[place] = starts[place] = 0
        self._known.update({**starts, **ends})
        wanted = self._without_unnamed(starts, ends)
        return plan_ranges(starts, wanted, self._options.min_partitions)

    def _without_unnamed(self, starts: Positions, ends: Positions) -> Positions:
        """The ends of the partitions that the query names."""
        is_named = partition_test(self._options)
        unnamed = [place for place, end in sorted(ends.items()) if not is_named(place) and starts[place] < end]
        if unnamed:
            place = unnamed[0]
            told = f"this micro-batch was planned with the offsets {starts[place]} to {ends[place]} of {place}"
            if self._options.fail_on_data_loss:
                raise InvalidArgumentError(
                    f"{told}, which the query does not name any more: name it until the micro-batch is written, or say "
                    "failOnDataLoss=false to leave these records out"
                )
            self._warn(f"{told}, which the query does not name any more: these records are left out")
        return {place: end for place, end in ends.items() if is_named(place)}

    def commit(self, end: Offsets) -> None:
        """Tells the group how far the query is, if it has one; the query itself goes on from its checkpoint.

        Raises:
            ConsumerStateError: the group has members.
            GroupModeError: a server coordinates the group.
        """
        if self._options.group_id is not None:
            is_named, reader = partition_test(self._options), open_reader(self._options)
            ends = {place: offset for place, offset in from_json(end).items() if is_named(place)}
            for place in self._former(ends, topic_ids_in(end), topic_ids_of(reader)):
                del ends[place]
            commit(reader, self._options.group_id, ends)

    def _latest(self, reader: LogReader) -> Positions:
        return latest_positions(reader, self._places(reader))

    def _places(self, reader: LogReader) -> list[TopicPartition]:
        """The partitions that the query names and the log has. A warning names what it waits for, once."""
        if sentence := awaited(reader, self._options):
            self._warn(sentence)
        return chosen_partitions(reader, self._options, must_exist=False)

    def _warn(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            logger.warning("%s", sentence)

    def _starts(self, reader: LogReader, start: Offsets, ends: Positions, topic_ids: Mapping[str, str]) -> Positions:
        """The position at which each partition goes on; a new partition begins at its start.

        Args:
            reader: of the log.
            start: the position in the checkpoint.
            ends: the end of the micro-batch.
            topic_ids: of the topics that the ends are of.
        """
        starts = from_json(start)
        for place in ends.keys() - starts.keys():
            found = self._known.get(place)
            starts[place] = reader.partition(*place).log_start_offset if found is None else found
        for place in self._former(starts, topic_ids_in(start), topic_ids):
            self._tell_former(place, starts[place])
            starts[place] = _start_of(reader, place)
        if self._options.fail_on_data_loss:
            self._check_loss(reader, starts, ends)
        else:
            self._leave_lost(reader, starts, ends, topic_ids_in(start))
        self._tell_unnamed(starts)
        return starts

    @staticmethod
    def _former(
        positions: Positions, former_ids: Mapping[str, str], topic_ids: Mapping[str, str]
    ) -> list[TopicPartition]:
        """The partitions whose topic was deleted and created again since the ids were read."""
        known = former_ids.keys() & topic_ids.keys()
        former = {topic for topic in known if former_ids[topic] != topic_ids[topic]}
        return [place for place in positions if place.topic in former]

    def _tell_former(self, place: TopicPartition, offset: int) -> None:
        sentence = f"{place} was read up to offset {offset}, and its topic was deleted and created again since"
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{sentence}; {PUT_UP}")
        self._warn(f"{sentence}: the query goes on with the records of the new topic")

    def _leave_lost(self, reader: LogReader, starts: Positions, ends: Positions, topic_ids: Mapping[str, str]) -> None:
        """Positions behind the end of a log: no record that is written from now on may be passed over.

        A position of a former version, which has no id, is taken for one of a former topic.
        """
        for place in [place for place, start in starts.items() if ends.get(place, start) < start]:
            offset = ends[place] if place.topic in topic_ids else _start_of(reader, place)
            self._warn(
                f"{place} was read up to offset {starts[place]} and ends at {ends[place]} now: the query goes on at "
                f"offset {offset}"
            )
            starts[place] = offset

    @staticmethod
    def _check_loss(reader: LogReader, starts: Positions, ends: Positions) -> None:
        """A micro-batch may have been planned without a partition that is there: its position is kept."""
        present = set(reader.topic_partitions())
        for place, start in sorted(starts.items()):
            if place not in present:
                raise LogPartitionNotFoundError(f"{place} was read up to offset {start} and is gone; {PUT_UP}")
            if ends.get(place, start) < start:
                raise OffsetOutOfRangeError(
                    f"{place} was read up to offset {start} and ends at {ends[place]} now; {PUT_UP}"
                )

    def _tell_unnamed(self, starts: Positions) -> None:
        is_named = partition_test(self._options)
        unnamed = sorted({place.topic for place in starts if not is_named(place)})
        if unnamed:
            self._warn(
                f"the checkpoint has positions of {', '.join(unnamed)}, which the query does not name any more: they "
                "are kept, and nothing is read there"
            )

    # --- a task's half

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range."""
        return read_range(self._options, partition)


def _start_of(reader: LogReader, place: TopicPartition) -> int:
    """The log start offset of a partition; 0 where it is not there."""
    is_there = place in reader.topic_partitions()
    return reader.partition(*place).log_start_offset if is_there else 0


PUT_UP = "say failOnDataLoss=false to read what is there"
