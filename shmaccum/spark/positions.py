# SPDX-License-Identifier: Apache-2.0
"""The partitions of a read, and its start and end offsets, by the rules of Spark's Kafka connector.

Positions have the form of Spark's Kafka source, in options and checkpoints: ``{"flights": {"0": 4711}}``. A checkpoint
also has topic ids: ``{"flights": {"0": 4711}, "topic ids": {"flights": "0a1b..."}}``. A topic that was deleted and
created again has another id, and positions of the former topic do not apply to it.
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
"""Positions as in JSON."""

TOPIC_IDS = "topic ids"
"""No topic has this name, because of the space."""

EARLIEST, LATEST = -2, -1
NAMES = {"earliest": EARLIEST, "latest": LATEST}


class StreamOffsets(dict[str, Any]):
    """Positions for a Spark checkpoint. The JSON has the topic ids as an additional item.

    Attributes:
        topic_ids: the id of each topic that has one, in hexadecimal.
    """

    def __init__(self, offsets: Offsets, topic_ids: Mapping[str, str]) -> None:
        super().__init__(offsets)
        self.topic_ids = topic_ids

    def items(self) -> Any:
        """Returns the items of the JSON."""
        return [*super().items(), *([(TOPIC_IDS, dict(self.topic_ids))] if self.topic_ids else [])]


def to_json(positions: Positions, topic_ids: Mapping[str, str] | None = None) -> Offsets:
    """Convert positions to the form of a checkpoint.

    Args:
        positions: the positions of any partitions.
        topic_ids: the topic ids. Only those of topics in `positions` are included.
    """
    offsets: Offsets = {}
    for place, offset in sorted(positions.items()):
        offsets.setdefault(place.topic, {})[str(place.partition)] = offset
    known = {topic: topic_id for topic, topic_id in (topic_ids or {}).items() if topic in offsets}
    return StreamOffsets(offsets, known)


def topic_ids_in(offsets: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the topic ids in a checkpoint. A checkpoint of an earlier version has none."""
    found: Mapping[str, str] = offsets.topic_ids if isinstance(offsets, StreamOffsets) else offsets.get(TOPIC_IDS, {})
    return found


def topic_ids_of(reader: LogReader) -> dict[str, str]:
    """Return the topic ids of a log. Call this before reading positions, so that no position gets a later id."""
    ids = TopicIds(reader.path)
    found = {topic: ids.of(topic) for topic in reader.topics()}
    return {topic: topic_id.hex() for topic, topic_id in found.items() if topic_id is not None}


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Positions:
    """Convert positions from a checkpoint."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, found in offsets.items()
        if topic != TOPIC_IDS
        for partition, offset in found.items()
    }


def open_reader(options: SparkSourceOptions) -> LogReader:
    """Open the log directory of a read.

    Raises:
        NotALogError: the directory has no log.
    """
    assert options.path is not None
    return LogReader(options.path, on_corrupt="raise" if options.fail_on_data_loss else "skip")


# --- which partitions


def chosen_partitions(reader: LogReader, options: SparkSourceOptions, *, must_exist: bool) -> list[TopicPartition]:
    """Return the partitions of the log that ``assign``, ``subscribe`` or ``subscribePattern`` select.

    Args:
        reader: a reader of the log directory.
        options: the options of the read.
        must_exist: whether a missing topic or partition is an error. A stream waits for it instead.

    Raises:
        LogPartitionNotFoundError: see `must_exist`.
        InvalidArgumentError: the option is invalid.
    """
    present = reader.topic_partitions()
    if must_exist and (missing := _missing(present, options)):
        raise LogPartitionNotFoundError(f"{reader.path} has no {', '.join(missing)}; {_known(reader)}")
    return list(filter(partition_test(options), present))


def missing_sentence(reader: LogReader, options: SparkSourceOptions) -> str:
    """Return a sentence on what a stream selects but the log lacks, or an empty string."""
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
    """Return a test for the selected partitions. If no option selects partitions, all pass.

    Raises:
        InvalidArgumentError: the option is invalid.
    """
    if options.assign is not None:
        return _assigned(options.assign).__contains__
    if options.subscribe is not None:
        topics = _subscribed(options.subscribe)
        return lambda place: place.topic in topics
    pattern = _pattern(".*" if options.subscribe_pattern is None else options.subscribe_pattern)
    return lambda place: pattern.fullmatch(place.topic) is not None


def _missing(present: Sequence[TopicPartition], options: SparkSourceOptions) -> list[str]:
    """Return the selected topics or partitions that the log lacks."""
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
        raise InvalidArgumentError(f"subscribePattern {text!r} is not a regular expression: {error}") from None


def _assigned(text: str) -> set[TopicPartition]:
    found = _loaded("assign", text)
    try:
        return {
            TopicPartition(topic, int(partition)) for topic, partitions in found.items() for partition in partitions
        }
    except (TypeError, ValueError):
        raise InvalidArgumentError(f'assign is {text} but must look like {{"flights": [0, 1]}}') from None


def _loaded(name: str, text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} is not JSON: {error}: write a JSON object with topics as names") from None
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"{name} is {text} but must be a JSON object with topics as names")
    return found


def _numbers(name: str, text: str) -> Positions:
    """Parse a number for each partition."""
    found = _loaded(name, text)
    try:
        return {
            TopicPartition(topic, int(partition)): int(number)
            for topic, numbers in found.items()
            if topic != TOPIC_IDS
            for partition, number in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise InvalidArgumentError(f'{name} is {text} but must look like {{"flights": {{"0": 4711}}}}') from None


# --- where to begin and to end


def starting_positions(
    reader: LogReader, places: Sequence[TopicPartition], options: SparkSourceOptions, *, default: str
) -> Positions:
    """Return the start of a read, from ``startingTimestamp``, ``...ByTimestamp`` or ``startingOffsets``, in this order.

    Args:
        reader, places, options: those of the read.
        default: "earliest" or "latest".

    Raises:
        InvalidArgumentError: an option is invalid, or does not name exactly these partitions.
        OffsetOutOfRangeError: an offset does not exist (any more), or no record is as late as requested, unless the
            options accept that.
    """
    strategy = options.starting_offsets_by_timestamp_strategy
    by_timestamp = options.starting_offsets_by_timestamp
    times = _times(places, options.starting_timestamp, "startingOffsetsByTimestamp", by_timestamp)
    if times is not None:
        return _by_time(reader, times, lambda place, time_ms: _too_late(reader, place, time_ms, strategy))
    offsets = _named(places, "startingOffsets", options.starting_offsets or default)
    return present_positions(reader, offsets, is_strict=options.fail_on_data_loss)


def ending_positions(reader: LogReader, places: Sequence[TopicPartition], options: SparkSourceOptions) -> Positions:
    """Return the end of a batch, from the options whose names start with ``ending``.

    Raises:
        InvalidArgumentError, OffsetOutOfRangeError: as `starting_positions`.
    """
    times = _times(places, options.ending_timestamp, "endingOffsetsByTimestamp", options.ending_offsets_by_timestamp)
    if times is not None:
        return _by_time(reader, times, lambda place, _: reader.partition(*place).log_end_offset)
    offsets = _named(places, "endingOffsets", options.ending_offsets or "latest")
    if EARLIEST in offsets.values():
        raise InvalidArgumentError(
            "endingOffsets cannot be earliest (-2), because the read would be empty: use latest, or offsets"
        )
    return present_positions(reader, offsets, is_strict=options.fail_on_data_loss)


def latest_positions(reader: LogReader, places: Sequence[TopicPartition]) -> Positions:
    """Return the log end offset of each partition."""
    return {place: reader.partition(*place).log_end_offset for place in places}


def _exactly(places: Sequence[TopicPartition], name: str, found: Positions) -> Positions:
    """Return the positions if they name exactly the partitions of the read, or raise an error."""
    wanted = set(places)
    differing = [f"lacks {place}" for place in sorted(wanted - set(found))]
    differing += [f"names {place}, which is not read" for place in sorted(set(found) - wanted)]
    if differing:
        raise InvalidArgumentError(f"{name} must name exactly the partitions of the read: it {differing[0]}")
    return found


def _named(places: Sequence[TopicPartition], name: str, text: str) -> Positions:
    """Parse offsets from an option: a word for all partitions, or JSON."""
    word = text.strip().lower()
    if word in NAMES:
        return dict.fromkeys(places, NAMES[word])
    return _exactly(places, name, _numbers(name, text))


def _times(places: Sequence[TopicPartition], of_all_ms: int | None, name: str, text: str | None) -> Positions | None:
    """Parse times from two options, of which the first takes precedence."""
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
            f"no record of {place} has the time {time_ms} or a later one: choose an earlier time, or set "
            "startingOffsetsByTimestampStrategy=latest"
        )
    return reader.partition(*place).log_end_offset


def present_positions(reader: LogReader, offsets: Positions, *, is_strict: bool) -> Positions:
    """Return offsets that exist; without `is_strict`, the nearest ones.

    Raises:
        OffsetOutOfRangeError: an offset does not exist.
    """
    return {place: _resolved(reader.partition(*place), offset, is_strict) for place, offset in offsets.items()}


def _resolved(partition: PartitionReader, offset: int, is_strict: bool) -> int:
    """Return an offset that exists; without `is_strict`, the nearest one."""
    start, end = partition.log_start_offset, partition.log_end_offset
    if offset in {EARLIEST, LATEST}:
        return start if offset == EARLIEST else end
    if is_strict and not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {partition.place} does not exist: the log has {start} to {end}; set "
            "failOnDataLoss=false to read the available records"
        )
    return min(max(offset, start), end)
