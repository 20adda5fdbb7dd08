# SPDX-License-Identifier: Apache-2.0
"""The source for Spark, over the log directory of a sink ``log:DIR`` or of a Kafka broker.

Offsets are planned on the driver, and each task opens the log itself. So every node must have the directory under the
same path.

A query reads only the partitions that its options select. Its checkpoint keeps the position of every partition that it
has ever read. So a topic that is no longer selected is not read, and continues from its position when it is selected
again.
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
    chosen_partitions,
    ending_positions,
    from_json,
    latest_positions,
    missing_sentence,
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
except ImportError:  # Spark before 4.2 has no limits
    HAS_READ_LIMITS = False
    SupportsTriggerAvailableNow = object
else:
    HAS_READ_LIMITS = True

logger = logging.getLogger(__name__)

ONLY_OF_BATCHES = ("ending_timestamp", "ending_offsets_by_timestamp", "ending_offsets")
ONLY_OF_STREAMS = ("max_offsets_per_trigger", "group_id")


def read_range(options: SparkSourceOptions, wanted: InputPartition) -> Iterator[Any]:
    """Return the records of a task. If a read has no records, Spark passes its own input partition."""
    if not isinstance(wanted, LogRange):
        return iter(())
    return record_batches(
        open_reader(options), wanted, has_headers=options.include_headers, is_strict=options.fail_on_data_loss
    )


def _refuse(options: SparkSourceOptions, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise InvalidArgumentError(f"{name} does not apply to {where}: omit it")


class BatchReader(DataSourceReader):
    """The reader of a batch query (``spark.read``) over a log.

    Raises:
        InvalidArgumentError: an option is only for streams.
    """

    def __init__(self, options: SparkSourceOptions) -> None:
        _refuse(options, ONLY_OF_STREAMS, "a batch")
        if (options.starting_offsets or "").strip().lower() == "latest":
            raise InvalidArgumentError(
                "startingOffsets cannot be latest, because the batch would be empty: use earliest, or offsets"
            )
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Returns a range of offsets for each task.

        Raises:
            LogError: as `starting_positions`, `ending_positions` and `chosen_partitions`.
        """
        options = self._options
        reader = open_reader(options)
        places = chosen_partitions(reader, options, must_exist=True)
        starts = starting_positions(reader, places, options, default="earliest")
        return plan_ranges(starts, ending_positions(reader, places, options), options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Returns the records of one range."""
        return read_range(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query (``spark.readStream``). The driver's instance lives as long as the query.

    Raises:
        InvalidArgumentError: an option is only for batches, or this Spark version does not support it.
    """

    def __init__(self, options: SparkSourceOptions) -> None:
        _refuse(options, ONLY_OF_BATCHES, "a stream")
        if options.max_offsets_per_trigger is not None and not HAS_READ_LIMITS:
            raise InvalidArgumentError("maxOffsetsPerTrigger needs Spark 4.2 or newer: omit it")
        self._options = options
        self._last: Positions | None = None
        """The end of a query with the trigger ``availableNow``."""
        self._known: Positions = {}
        """The latest position of each partition. Before Spark 4.2, `latestOffset` does not get the start."""
        self._warned: set[str] = set()

    # --- on the driver

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Returns the start of a query without a checkpoint."""
        reader = open_reader(self._options)
        topic_ids, places = topic_ids_of(reader), self._places(reader)
        starts = starting_positions(reader, places, self._options, default="latest")
        return to_json({**starts, **self._committed(reader, places)}, topic_ids)

    def _committed(self, reader: LogReader, places: Sequence[TopicPartition]) -> Positions:
        """Returns the committed offsets of the group for these partitions.

        Raises:
            OffsetOutOfRangeError: an offset does not exist (any more), unless failOnDataLoss is false.
        """
        if self._options.group_id is None:
            return {}
        committed = read_committed(reader, self._options.group_id)
        wanted = {place: committed[place] for place in places if place in committed}
        return present_positions(reader, wanted, is_strict=self._options.fail_on_data_loss)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Returns the limit of a micro-batch."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of this run of the query. Later records belong to the next run."""
        self._last = self._latest(open_reader(self._options))

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: N802 - Spark's name
        """Returns the end of the next micro-batch.

        Raises:
            OffsetOutOfRangeError: a partition lost records that were already read.
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
        """Returns the end of the log, which a query's progress shows as ``latestOffset`` since Spark 4.2.

        Returns None if the log cannot be read. The next micro-batch then raises the error.
        """
        try:
            ends = self._latest(open_reader(self._options)) if self._last is None else self._last
        except (ShmaccumError, OSError):
            return None
        return to_json(ends) or None

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Returns a range of offsets for each task of a micro-batch.

        Raises:
            OffsetOutOfRangeError, LogPartitionNotFoundError: as `latestOffset`.
            InvalidArgumentError: the micro-batch was planned with partitions that the query no longer selects.
        """
        ends = from_json(end)
        reader = open_reader(self._options)
        starts = self._starts(reader, start, ends, topic_ids_in(end))
        for place in self._former(starts, topic_ids_in(end), topic_ids_of(reader)):
            self._report_former(place, ends.get(place, starts[place]))
            ends[place] = starts[place] = 0
        self._known.update({**starts, **ends})
        wanted = self._selected_ends(starts, ends)
        return plan_ranges(starts, wanted, self._options.min_partitions)

    def _selected_ends(self, starts: Positions, ends: Positions) -> Positions:
        """Returns the ends of the partitions that the query selects."""
        is_selected = partition_test(self._options)
        unselected = [place for place, end in sorted(ends.items()) if not is_selected(place) and starts[place] < end]
        if unselected:
            place = unselected[0]
            facts = f"this micro-batch was planned with the offsets {starts[place]} to {ends[place]} of {place}"
            if self._options.fail_on_data_loss:
                raise InvalidArgumentError(
                    f"{facts}, which the query no longer selects: select it until the micro-batch is written, or set "
                    "failOnDataLoss=false to skip these records"
                )
            self._warn(f"{facts}, which the query no longer selects: these records are skipped")
        return {place: end for place, end in ends.items() if is_selected(place)}

    def commit(self, end: Offsets) -> None:
        """Commits the progress of the query for its group, if it has one. The query continues from its checkpoint.

        Raises:
            ConsumerStateError: the group has members.
            GroupModeError: a server coordinates the group.
        """
        if self._options.group_id is not None:
            is_selected, reader = partition_test(self._options), open_reader(self._options)
            ends = {place: offset for place, offset in from_json(end).items() if is_selected(place)}
            for place in self._former(ends, topic_ids_in(end), topic_ids_of(reader)):
                del ends[place]
            commit(reader, self._options.group_id, ends)

    def _latest(self, reader: LogReader) -> Positions:
        return latest_positions(reader, self._places(reader))

    def _places(self, reader: LogReader) -> list[TopicPartition]:
        """Returns the selected partitions that exist. Logs a warning once if the query waits for others."""
        if sentence := missing_sentence(reader, self._options):
            self._warn(sentence)
        return chosen_partitions(reader, self._options, must_exist=False)

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            logger.warning("%s", sentence)

    def _starts(self, reader: LogReader, start: Offsets, ends: Positions, topic_ids: Mapping[str, str]) -> Positions:
        """Returns the position from which each partition continues. A new partition starts at its first offset.

        Args:
            reader: a reader of the log.
            start: the positions in the checkpoint.
            ends: the end of the micro-batch.
            topic_ids: the ids of the topics in `ends`.
        """
        starts = from_json(start)
        for place in ends.keys() - starts.keys():
            found = self._known.get(place)
            starts[place] = reader.partition(*place).log_start_offset if found is None else found
        for place in self._former(starts, topic_ids_in(start), topic_ids):
            self._report_former(place, starts[place])
            starts[place] = _start_of(reader, place)
        if self._options.fail_on_data_loss:
            self._check_loss(reader, starts, ends)
        else:
            self._move_back_lost(reader, starts, ends, topic_ids_in(start))
        self._warn_unselected(starts)
        return starts

    @staticmethod
    def _former(
        positions: Positions, former_ids: Mapping[str, str], topic_ids: Mapping[str, str]
    ) -> list[TopicPartition]:
        """Returns the partitions whose topic was deleted and created again since the ids were read."""
        known = former_ids.keys() & topic_ids.keys()
        former = {topic for topic in known if former_ids[topic] != topic_ids[topic]}
        return [place for place in positions if place.topic in former]

    def _report_former(self, place: TopicPartition, offset: int) -> None:
        sentence = f"{place} was read up to offset {offset}, and its topic has been deleted and created again"
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{sentence}; {REMEDY}")
        self._warn(f"{sentence}: the query continues with the records of the new topic")

    def _move_back_lost(
        self, reader: LogReader, starts: Positions, ends: Positions, topic_ids: Mapping[str, str]
    ) -> None:
        """Moves positions beyond the end of a log back, so that no new record is skipped.

        A position without a topic id, of an earlier version, is assumed to belong to a former topic.
        """
        for place in [place for place, start in starts.items() if ends.get(place, start) < start]:
            offset = ends[place] if place.topic in topic_ids else _start_of(reader, place)
            self._warn(
                f"{place} was read up to offset {starts[place]} and now ends at {ends[place]}: the query continues at "
                f"offset {offset}"
            )
            starts[place] = offset

    @staticmethod
    def _check_loss(reader: LogReader, starts: Positions, ends: Positions) -> None:
        """Checks for lost records. A micro-batch may have been planned without an existing partition, which is no
        loss."""
        present = set(reader.topic_partitions())
        for place, start in sorted(starts.items()):
            if place not in present:
                raise LogPartitionNotFoundError(
                    f"{place} was read up to offset {start} and does not exist any more; {REMEDY}"
                )
            if ends.get(place, start) < start:
                raise OffsetOutOfRangeError(
                    f"{place} was read up to offset {start} and now ends at {ends[place]}; {REMEDY}"
                )

    def _warn_unselected(self, starts: Positions) -> None:
        is_selected = partition_test(self._options)
        unselected = sorted({place.topic for place in starts if not is_selected(place)})
        if unselected:
            self._warn(
                f"the checkpoint has positions of {', '.join(unselected)}, which the query no longer selects: they "
                "remain, and these topics are not read"
            )

    # --- in a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Returns the records of one range."""
        return read_range(self._options, partition)


def _start_of(reader: LogReader, place: TopicPartition) -> int:
    """Return the log start offset of a partition, or 0 if it does not exist."""
    is_there = place in reader.topic_partitions()
    return reader.partition(*place).log_start_offset if is_there else 0


REMEDY = "set failOnDataLoss=false to read the available records"
