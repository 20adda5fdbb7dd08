# SPDX-License-Identifier: Apache-2.0
"""Which partitions a read has, and at which offsets it begins and ends, by the rules of Spark's Kafka connector.

Positions are written as Spark's Kafka source writes them, in options as in checkpoints: ``{"flights": {"0": 4711}}``.
A checkpoint has the ids of the topics, too: ``{"flights": {"0": 4711}, "topic ids": {"flights": "0a1b..."}}``. A topic
that was deleted and created again has another id, and no position of the former topic says anything about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import SparkSourceOptions
from shmaccum.exceptions import InvalidArgumentError, LogPartitionNotFoundError, OffsetOutOfRangeError
from shmaccum.log.files import LogReader, PartitionReader
from shmaccum.log.files.topic_ids import TopicIds

Positions: TypeAlias = dict[TopicPartition, int]
Offsets: TypeAlias = dict[str, dict[str, int]]
"""Positions as JSON has them."""

TOPIC_IDS = "topic ids"
"""No topic has this name, because of the space."""

EARLIEST, LATEST = -2, -1
NAMES = {"earliest": EARLIEST, "latest": LATEST}


class StreamOffsets(dict[str, Any]):
    """Positions as Spark keeps them in a checkpoint. The JSON has the ids of the topics as one more item.

    Attributes:
        topic_ids: the id of each topic that has one, in hexadecimal digits.
    """

    def __init__(self, offsets: Offsets, topic_ids: Mapping[str, str]) -> None:
        super().__init__(offsets)
        self.topic_ids = topic_ids

    def items(self) -> Any:
        """The items of the JSON."""
        return [*super().items(), *([(TOPIC_IDS, dict(self.topic_ids))] if self.topic_ids else [])]


def to_json(positions: Positions, topic_ids: Mapping[str, str] | None = None) -> Offsets:
    """Positions as Spark keeps them in a checkpoint.

    Args:
        positions: of any partitions.
        topic_ids: the ids of topics, of which those of the positions are kept.
    """
    offsets: Offsets = {}
    for place, offset in sorted(positions.items()):
        offsets.setdefault(place.topic, {})[str(place.partition)] = offset
    known = {topic: topic_id for topic, topic_id in (topic_ids or {}).items() if topic in offsets}
    return StreamOffsets(offsets, known)


def topic_ids_in(offsets: Mapping[str, Any]) -> Mapping[str, str]:
    """The ids of topics in a checkpoint; those of a former version have none."""
    found: Mapping[str, str] = offsets.topic_ids if isinstance(offsets, StreamOffsets) else offsets.get(TOPIC_IDS, {})
    return found


def topic_ids_of(reader: LogReader) -> dict[str, str]:
    """The ids of the topics of a log. They are read before positions: then no position goes with a later id."""
    ids = TopicIds(reader.path)
    found = {topic: ids.of(topic) for topic in reader.topics()}
    return {topic: topic_id.hex() for topic, topic_id in found.items() if topic_id is not None}


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Positions:
    """Positions from a checkpoint."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, found in offsets.items()
        if topic != TOPIC_IDS
        for partition, offset in found.items()
    }


def open_reader(options: SparkSourceOptions) -> LogReader:
    """The log directory of a read.

    Raises:
        NotALogError: there is none.
    """
    assert options.path is not None
    return LogReader(options.path, on_corrupt="raise" if options.fail_on_data_loss else "skip")


# --- which partitions


def chosen_partitions(reader: LogReader, options: SparkSourceOptions, *, must_exist: bool) -> list[TopicPartition]:
    """The partitions of the log that ``assign``, ``subscribe`` or ``subscribePattern`` name.

    Args:
        reader: of the log directory.
        options: of the read.
        must_exist: a topic or partition that is named and not there is an error; a stream waits for it.

    Raises:
        LogPartitionNotFoundError: see `must_exist`.
        InvalidArgumentError: the option cannot be read.
    """
    present = reader.topic_partitions()
    if must_exist and (missing := _missing(present, options)):
        raise LogPartitionNotFoundError(f"{reader.path} has no {', '.join(missing)}; {_known(reader)}")
    return list(filter(partition_test(options), present))


def awaited(reader: LogReader, options: SparkSourceOptions) -> str:
    """A sentence on what a stream names and the log does not have yet; empty: the log has all of it."""
    present = reader.topic_partitions()
    if missing := _missing(present, options):
        return f"{reader.path} has no {', '.join(missing)} yet: the stream waits for it; {_known(reader)}"
    if options.subscribe_pattern is not None and not any(map(partition_test(options), present)):
        return (
            f"{reader.path} has no topic that matches {options.subscribe_pattern!r} yet: the stream waits for one; "
            f"{_known(reader)}"
        )
    return ""


def _known(reader: LogReader) -> str:
    return f"its topics are {', '.join(reader.topics()) or 'none'}"


def partition_test(options: SparkSourceOptions) -> Callable[[TopicPartition], bool]:
    """Is a partition among those the options name? Where they name none, each is.

    Raises:
        InvalidArgumentError: the option cannot be read.
    """
    if options.assign is not None:
        return _assigned(options.assign).__contains__
    if options.subscribe is not None:
        topics = _subscribed(options.subscribe)
        return lambda place: place.topic in topics
    pattern = _pattern(".*" if options.subscribe_pattern is None else options.subscribe_pattern)
    return lambda place: pattern.fullmatch(place.topic) is not None


def _missing(present: Sequence[TopicPartition], options: SparkSourceOptions) -> list[str]:
    """The topics or partitions that an option names and the log does not have."""
    if options.assign is not None:
        return sorted(str(place) for place in _assigned(options.assign) - set(present))
    if options.subscribe is not None:
        return sorted(_subscribed(options.subscribe) - {place.topic for place in present})
    return []


def _subscribed(text: str) -> set[str]:
    return {topic.strip() for topic in text.split(",") if topic.strip()}


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidArgumentError(f"subscribePattern {text!r} is no regular expression: {error}") from None


def _assigned(text: str) -> set[TopicPartition]:
    found = _loaded("assign", text)
    try:
        return {
            TopicPartition(topic, int(partition)) for topic, partitions in found.items() for partition in partitions
        }
    except (TypeError, ValueError):
        raise InvalidArgumentError(f'assign is {text}, it must look like {{"flights": [0, 1]}}') from None


def _loaded(name: str, text: str) -> dict[str, Any]:
    """An object of JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"{name} is {text}, it must be a JSON object with topics as names")
    return found


def _numbers(name: str, text: str) -> Positions:
    """A number for each partition that is named."""
    found = _loaded(name, text)
    try:
        return {
            TopicPartition(topic, int(partition)): int(number)
            for topic, numbers in found.items()
            if topic != TOPIC_IDS
            for partition, number in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise InvalidArgumentError(f'{name} is {text}, it must look like {{"flights": {{"0": 4711}}}}') from None


# --- where to begin and to end


def starting_positions(
    reader: LogReader, places: Sequence[TopicPartition], options: SparkSourceOptions, *, default: str
) -> Positions:
    """Where a read begins, by the first given of ``startingTimestamp``, ``...ByTimestamp`` and ``startingOffsets``.

    Args:
        reader, places, options: of the read.
        default: "earliest" or "latest".

    Raises:
        InvalidArgumentError: an option cannot be read, or does not name just these partitions.
        OffsetOutOfRangeError: an offset is not there (any more), or no record is as young as asked for, unless that is
            to be put up with.
    """
    strategy = options.starting_offsets_by_timestamp_strategy
    by_timestamp = options.starting_offsets_by_timestamp
    times = _times(places, options.starting_timestamp, "startingOffsetsByTimestamp", by_timestamp)
    if times is not None:
        return _by_time(reader, times, lambda place, time_ms: _too_late(reader, place, time_ms, strategy))
    offsets = _named(places, "startingOffsets", options.starting_offsets or default)
    return present_positions(reader, offsets, is_strict=options.fail_on_data_loss)


def ending_positions(reader: LogReader, places: Sequence[TopicPartition], options: SparkSourceOptions) -> Positions:
    """Where a batch ends, by the options that begin with ``ending``.

    Raises:
        InvalidArgumentError, OffsetOutOfRangeError: as `starting_positions`.
    """
    times = _times(places, options.ending_timestamp, "endingOffsetsByTimestamp", options.ending_offsets_by_timestamp)
    if times is not None:
        return _by_time(reader, times, lambda place, _: reader.partition(*place).log_end_offset)
    offsets = _named(places, "endingOffsets", options.ending_offsets or "latest")
    if EARLIEST in offsets.values():
        raise InvalidArgumentError("endingOffsets cannot be earliest (-2): a read would have nothing")
    return present_positions(reader, offsets, is_strict=options.fail_on_data_loss)


def latest_positions(reader: LogReader, places: Sequence[TopicPartition]) -> Positions:
    """The log end offset of each."""
    return {place: reader.partition(*place).log_end_offset for place in places}


def _exactly(places: Sequence[TopicPartition], name: str, found: Positions) -> Positions:
    """The given positions, when they name just the partitions that are read; else an error."""
    wanted = set(places)
    differing = [f"lacks {place}" for place in sorted(wanted - set(found))]
    differing += [f"names {place}, which is not read" for place in sorted(set(found) - wanted)]
    if differing:
        raise InvalidArgumentError(f"{name} must name every partition that is read and no other: it {differing[0]}")
    return found


def _named(places: Sequence[TopicPartition], name: str, text: str) -> Positions:
    """Offsets from an option: a word for all, or JSON."""
    word = text.strip().lower()
    if word in NAMES:
        return dict.fromkeys(places, NAMES[word])
    return _exactly(places, name, _numbers(name, text))


def _times(places: Sequence[TopicPartition], of_all_ms: int | None, name: str, text: str | None) -> Positions | None:
    """Times from two options, of which the first wins."""
    if of_all_ms is not None:
        return dict.fromkeys(places, of_all_ms)
    return None if text is None else _exactly(places, name, _numbers(name, text))


def _by_time(reader: LogReader, times_ms: Positions, otherwise: Callable[[TopicPartition, int], int]) -> Positions:
    positions: Positions = {}
    for place, time_ms in times_ms.items():
        found = reader.partition(*place).offset_for_timestamp(time_ms)
        positions[place] = otherwise(place, time_ms) if found is None else found.offset
    return positions


def _too_late(reader: LogReader, place: TopicPartition, time_ms: int, strategy: str) -> int:
    if strategy == "error":
        raise OffsetOutOfRangeError(
            f"no record of {place} has the time {time_ms} or a later one: choose an earlier one, or say "
            "startingOffsetsByTimestampStrategy=latest"
        )
    return reader.partition(*place).log_end_offset


def present_positions(reader: LogReader, offsets: Positions, *, is_strict: bool) -> Positions:
    """Offsets that are there; without `is_strict` the nearest ones.

    Raises:
        OffsetOutOfRangeError: one is not there.
    """
    return {place: _resolved(reader.partition(*place), offset, is_strict) for place, offset in offsets.items()}


def _resolved(partition: PartitionReader, offset: int, is_strict: bool) -> int:
    """An offset that is there; the nearest one, if losses are to be put up with."""
    start, end = partition.log_start_offset, partition.log_end_offset
    if offset in {EARLIEST, LATEST}:
        return start if offset == EARLIEST else end
    if is_strict and not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {partition.place} is not there: the log has {start} to {end}; say "
            "failOnDataLoss=false to read what is there"
        )
    return min(max(offset, start), end)
