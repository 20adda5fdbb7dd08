# SPDX-License-Identifier: Apache-2.0
"""The source over an arena: reads waiting records in place, for diagnosis.

The arena is mapped read-only; no lock is taken, and nothing is changed. It may be in use, left by a host that crashed,
or damaged: its bytes are trusted only if their checksums match.

A waiting record has no offset yet. Here it gets the offset that it would have in an empty log: counted from 0 in each
partition, oldest batch first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from shmaccum.arena import Arena, tables
from shmaccum.arena.slot_word import SLOT_STATES
from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.config import LONG_MAX, SparkSourceOptions
from shmaccum.exceptions import ArenaError, CorruptArenaError, CorruptLogError, InvalidArgumentError
from shmaccum.log.files.columns import RecordColumns, decode_columns
from shmaccum.log.files.log_batch import Decodable
from shmaccum.observe.inspection import LEGAL_TOPIC, WAITING_STATES, Inspector, SlotFacts
from shmaccum.spark.columns import BATCH_COLUMNS, source_schema
from shmaccum.spark.positions import partition_test
from shmaccum.spark.record_batches import ColumnBuilder, runs

logger = logging.getLogger(__name__)

ANY_MODE = 0o777
"""A reader changes nothing, so an arena of any user is accepted."""
UNKNOWN_PLACE = ("?", -1)
"""The place of a batch whose partition does not exist."""
SIZE_PER_TASK = 32 << 20
NOT_OF_ARENAS = (
    *("starting_timestamp", "starting_offsets_by_timestamp", "starting_offsets", "max_offsets_per_trigger"),
    *("ending_timestamp", "ending_offsets_by_timestamp", "ending_offsets"),
)
REMEDY = "set includeBatches=true to see it, or failOnDataLoss=false to read the others"


class WaitingBatch(NamedTuple):
    """A batch at the time when the read was planned."""

    slot_index: int
    seq: int
    record_count: int
    """The number of its records at that time; an open batch may have more now."""
    base_offset: int
    size: int


@dataclass(frozen=True)
class ArenaRange(InputPartition):
    """The batches that one task reads."""

    batches: tuple[WaitingBatch, ...]


class ArenaReader(DataSourceReader):
    """The reader of a batch query (``spark.read``) over an arena.

    Raises:
        InvalidArgumentError: an option is only for logs.
    """

    def __init__(self, options: SparkSourceOptions) -> None:
        for name in NOT_OF_ARENAS:
            if getattr(options, name) is not None:
                raise InvalidArgumentError(f"{name} does not apply to an arena: omit it")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Returns the batches of each task. Batches of a partition stay in order.

        Raises:
            ArenaError: the arena cannot be opened.
        """
        with _opened(self._options) as arena:
            waiting = waiting_batches(arena, self._options)
        return [ArenaRange(tuple(part)) for part in _cut(waiting, self._options.min_partitions or 1)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields the records of these batches that are still in the arena.

        Raises:
            CorruptArenaError: a batch is damaged, and neither includeBatches nor failOnDataLoss=false is set.
        """
        if isinstance(partition, ArenaRange):
            with _opened(self._options) as arena:
                yield from _Task(arena, self._options).read(partition.batches)


def _opened(options: SparkSourceOptions) -> Arena:
    assert options.arena is not None
    try:
        return Arena.open_read_only(options.arena, mode=ANY_MODE)
    except ArenaError as error:
        if options.arena in str(error):
            raise
        raise type(error)(f"{options.arena}: {error}") from None


# --- planning


def waiting_batches(arena: Arena, options: SparkSourceOptions) -> list[WaitingBatch]:
    """Return the waiting batches of the requested partitions, by partition, oldest first, without their records."""
    slots = arena.slot_table().copy()
    states = tables.slot_state(slots["word"])
    is_waiting = np.isin(states, [SLOT_STATES.index(state) for state in WAITING_STATES])
    is_bad = states == SLOT_STATES.index("BAD")
    counts = tables.slot_record_count(slots["word"]).astype(np.int64)
    (chosen,) = np.nonzero(is_waiting & ((counts > 0) | is_bad))
    names = arena.native.partitions()
    is_wanted = partition_test(options)
    order = sorted(chosen, key=lambda slot: (int(slots["partition_index"][slot]), int(slots["seq"][slot])))
    found: list[WaitingBatch] = []
    for partition_index, of_partition in groupby(order, key=lambda slot: int(slots["partition_index"][slot])):
        place = TopicPartition(*(names[partition_index] if partition_index < len(names) else UNKNOWN_PLACE))
        if not is_wanted(place):
            continue
        offset = 0
        for slot in of_partition:
            count, size = int(counts[slot]), int(tables.slot_size(slots["word"][slot]))
            found.append(WaitingBatch(int(slot), int(slots["seq"][slot]), count, offset, size))
            offset += count
    return found


def _cut(batches: Sequence[WaitingBatch], min_count: int) -> Iterator[list[WaitingBatch]]:
    """Yield at least `min_count` parts of similar size, in order, or one per batch if there are fewer batches."""
    size_max = max(min(SIZE_PER_TASK, -(-sum(batch.size for batch in batches) // min_count)), 1)
    part: list[WaitingBatch] = []
    size = part_count = 0
    for index, batch in enumerate(batches):
        is_needed = len(batches) - index <= min_count - part_count - 1  # each remaining batch becomes a part
        if part and (is_needed or size + batch.size > size_max):
            yield part
            part, size, part_count = [], 0, part_count + 1
        part.append(batch)
        size += batch.size
    if part:
        yield part


# --- reading


class ArenaBatch:
    """One batch in the form for `decode_columns`.

    Attributes:
        facts: the facts of its slot.
        planned: the batch at the time when the read was planned.
        segment: the arena.
        position: the slot.
        size: the size in bytes.
    """

    is_control = False
    """Producers append no control batches."""

    def __init__(self, facts: SlotFacts, planned: WaitingBatch, segment: str) -> None:
        self.facts = facts
        self.planned = planned
        self.segment = segment
        self.position = facts.slot_index
        self.size = facts.size or 0

    @property
    def record_count(self) -> int:
        """The number of its records when the read was planned."""
        return self.planned.record_count

    @property
    def place(self) -> TopicPartition | None:
        """The topic-partition of the batch, or None if it is damaged."""
        facts = self.facts
        if facts.topic is None or facts.partition is None or LEGAL_TOPIC.fullmatch(facts.topic) is None:
            return None
        return TopicPartition(facts.topic, facts.partition)

    def decodable(self) -> Decodable:
        """Returns the bytes and numbers that the native core needs to decode the records."""
        facts = self.facts
        return Decodable(
            facts.data[HEADER_SIZE:],
            self.planned.base_offset,
            facts.base_timestamp_ms or 0,
            facts.record_count or 0,
            None,
        )

    @cached_property
    def columns_problem(self) -> str | None:
        """The reason why the batch cannot be decoded, or None."""
        if self.place is None:
            return "it belongs to no partition"
        try:
            found = _decoded([self], has_headers=False)
        except (CorruptLogError, InvalidArgumentError) as error:
            return error.problem if isinstance(error, CorruptLogError) else str(error)
        return None if found.row_count == self.record_count else "it has fewer records than its header claims"

    @property
    def problem(self) -> str | None:
        """The reason why the batch is not sound, or None."""
        return self.columns_problem or (None if self.facts.is_checksum_right else "its checksum is wrong")

    @property
    def description(self) -> str:
        """A sentence with the batch and its damage."""
        facts = self.facts
        return (
            f"the batch in slot {facts.slot_index} of {self.segment} ({facts.topic}-{facts.partition}, "
            f"seq {facts.seq}, {format_count(self.record_count, 'record')}) is damaged: {self.problem}"
        )

    def cells(self, *, is_readable: bool) -> dict[str, Any]:
        """Returns the cells of the batch columns by name."""
        facts = self.facts
        seq = min(self.planned.seq, LONG_MAX)  # the number of a damaged batch may have any value
        values = (facts.state, seq, facts.slot_index, facts.is_checksum_right, is_readable)
        return {field.name: value for field, value in zip(BATCH_COLUMNS, values, strict=True)}


def _decoded(batches: Sequence[ArenaBatch], *, has_headers: bool) -> RecordColumns:
    first, last = batches[0].planned, batches[-1].planned
    end = last.base_offset + last.record_count
    return decode_columns(batches, first.base_offset, end, has_headers=has_headers)


class _Task:
    """Reads batches of an open arena."""

    def __init__(self, arena: Arena, options: SparkSourceOptions) -> None:
        self._inspector = Inspector(arena)
        self._options = options
        schema = source_schema(has_headers=options.include_headers, has_batches=options.include_batches)
        self._builder = ColumnBuilder(schema)

    def read(self, planned: Sequence[WaitingBatch]) -> Iterator[Any]:
        """Yields Arrow record batches: one for each run of readable batches of a partition or unreadable batch."""
        found = (batch for batch in map(self._found, planned) if batch is not None)
        for place, of_place in groupby(found, key=lambda batch: batch.place if batch.columns_problem is None else None):
            if place is None:
                yield from map(self._unreadable, of_place)
            else:
                yield from (self._readable(run, place) for run in runs(of_place))

    def _found(self, planned: WaitingBatch) -> ArenaBatch | None:
        """Returns the batch, or None if it was delivered meanwhile, or is damaged and skipped."""
        options = self._options
        facts = self._inspector.slot(planned.slot_index)
        if facts.seq != planned.seq or facts.state not in WAITING_STATES:
            return None
        batch = ArenaBatch(facts, planned, str(options.arena))
        if options.include_batches or batch.problem is None:
            return batch
        if options.fail_on_data_loss:
            raise CorruptArenaError(f"{batch.description}; {REMEDY}")
        logger.warning("skipped: %s", batch.description)
        return None

    def _readable(self, run: list[ArenaBatch], place: TopicPartition) -> Any:
        columns = _decoded(run, has_headers=self._options.include_headers)
        return self._builder.build(columns, place, self._batch_columns(run))

    def _unreadable(self, batch: ArenaBatch) -> Any:
        """Returns one row, whose value is the bytes of the batch, with its place as far as it is known."""
        place = batch.place
        cells = {
            "value": batch.facts.data,
            "topic": place and place.topic,
            "partition": place and place.partition,
            **batch.cells(is_readable=False),
        }
        schema = self._builder.schema
        arrays = [pa.array([cells.get(field.name)], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _batch_columns(self, run: list[ArenaBatch]) -> dict[str, Any]:
        """Returns the batch columns, with the cells of each batch repeated for each of its rows."""
        if not self._options.include_batches:
            return {}
        of_batches = [batch.cells(is_readable=True) for batch in run]
        which = pa.array(np.repeat(np.arange(len(run)), [batch.record_count for batch in run]))
        return {
            field.name: pa.array(
                [cells[field.name] for cells in of_batches], self._builder.schema.field(field.name).type
            ).take(which)
            for field in BATCH_COLUMNS
        }
