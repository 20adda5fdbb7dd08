# SPDX-License-Identifier: Apache-2.0
"""The offsets of groups as records of Kafka's topic ``__consumer_offsets``, for a broker that takes over the groups.

The key is an OffsetCommitKey of version 1 and the value an OffsetCommitValue of version 3, as defined in
org.apache.kafka.coordinator.group.generated. The partition of a group follows from Java's hash of its id.
"""

from __future__ import annotations

import os
import struct

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.record_writer import NewRecord, make_batch
from shmaccum.log.groups.offsets_file import Committed, OffsetsFile, group_ids

TOPIC = "__consumer_offsets"
PARTITION_COUNT = 50
"""The default of offsets.topic.num.partitions."""
KEY_VERSION, VALUE_VERSION = 1, 3
BATCH_RECORDS_MAX = 1000


def partition_of(group_id: str) -> int:
    """The partition of a group: Java's String.hashCode without its sign, modulo the number of partitions."""
    units = struct.unpack(f">{len(group_id.encode('utf-16-be')) // 2}H", group_id.encode("utf-16-be"))
    number = 0
    for unit in units:
        number = (31 * number + unit) & 0xFFFF_FFFF
    return (number & 0x7FFF_FFFF) % PARTITION_COUNT


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def record_of(group_id: str, place: TopicPartition, one: Committed) -> NewRecord:
    """The record of one committed offset."""
    key = struct.pack(">h", KEY_VERSION) + _text(group_id) + _text(place.topic) + struct.pack(">i", place.partition)
    value = struct.pack(">hqi", VALUE_VERSION, one.offset, one.leader_epoch) + _text(one.metadata)
    return NewRecord(one.time_ms, key, value + struct.pack(">q", one.time_ms), ())


def export(directory: str, target: str | os.PathLike[str]) -> tuple[int, int]:
    """Write the offsets of all groups of a log to another log directory.

    Returns:
        The number of groups and the number of offsets.

    Raises:
        InvalidArgumentError: if the target is the log itself, or already has the topic.
        LogBusyError, NotALogError: if another process writes the target, or it is not a log.
        OSError: if records may be missing in the target.
    """
    if os.path.abspath(target) == directory:
        raise InvalidArgumentError(f"{directory} cannot be exported into itself: name another directory")
    groups = {group_id: OffsetsFile(directory, group_id, is_writer=False).offsets for group_id in group_ids(directory)}
    with LogDirectory(target) as log:
        if log.partition_count(TOPIC):
            raise InvalidArgumentError(f"{log.path} already has a topic {TOPIC}: name a new directory")
        log.create_topic(TOPIC, PARTITION_COUNT)
        for group_id, offsets in groups.items():
            records = [record_of(group_id, place, one) for place, one in sorted(offsets.items())]
            for first in range(0, len(records), BATCH_RECORDS_MAX):
                batch = make_batch(records[first : first + BATCH_RECORDS_MAX])
                (outcome,) = log.partition(TOPIC, partition_of(group_id)).append([batch])
                if isinstance(outcome, Rejection):
                    raise OSError(outcome.errno, outcome.message)
        log.sync()
    return len(groups), sum(map(len, groups.values()))
