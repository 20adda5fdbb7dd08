# SPDX-License-Identifier: Apache-2.0
"""The requests that change the topics of a log: create, grow and delete topics, and delete records.

Only a writable server supports them.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, final

from shmaccum.common.units import format_count
from shmaccum.config.topic import DELETE
from shmaccum.exceptions import InvalidArgumentError, LogError, LogPartitionNotFoundError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.server.call import REPEATED, Call, Values, split_repeated
from shmaccum.log.server.placement import ONE_REPLICA
from shmaccum.log.server.settings import NODE_ID, without_fixed
from shmaccum.log.server.steps import Steps, Stepwise, answer_each
from shmaccum.log.server.topics import NO_TOPIC_ID, LogTopics

PARTITION_COUNT_MAX = 1000
"""The most partitions of one topic. Each is a folder, and a request could name billions."""
BROKER_CHOOSES = -1
"""A number of partitions or replicas that the server chooses."""
ALL_RECORDS = -1
REQUEST_PARTITION_COUNT_MAX = 10_000
"""The most partitions that one request may create (QuorumController.MAX_RECORDS_PER_USER_OP)."""
TOO_MANY: Final = (
    BrokerError.POLICY_VIOLATION,
    f"a request may create at most {REQUEST_PARTITION_COUNT_MAX} partitions: send several requests",
)
CREATED_NOT: Final[Values] = {"topic_id": NO_TOPIC_ID, "num_partitions": -1, "replication_factor": -1, "configs": []}


@final
class TopicRequests:
    """Handles requests that change the topics of a log that this server writes."""

    def __init__(self, directory: LogDirectory, topics: LogTopics) -> None:
        self._directory = directory
        self._topics = topics

    def create_topic(self, name: str, partition_count: int | None) -> Steps:
        """Creates a topic unless it exists. Each partition is a step.

        Raises:
            InvalidArgumentError: the name is not valid.
            LogError, OSError: the topic could not be created.
        """
        count = yield from self._directory.create_topic_in_steps(name, partition_count)
        for partition in range(count):
            if self._directory.partition_count(name) > partition:  # another client may delete it meanwhile
                self._directory.partition(name, partition)  # creates its files
            yield None
        self._topics.refresh()

    def create_topics(self, call: Call) -> Stepwise[Values]:
        """CreateTopics."""
        is_trial = bool(call.message.validate_only)
        topics, again = split_repeated(call.message.topics, lambda topic: str(topic.name))
        created = []
        has_room = _is_within_limit(_wanted_count(topic) or 1 for topic in topics)
        for topic in topics:
            created.append((yield from self._created(topic, is_trial=is_trial, has_room=has_room)))
            yield None
        return {"topics": [*created, *({**CREATED_NOT, "name": name, **REPEATED} for name in again)]}

    def _created(self, topic: Any, *, is_trial: bool, has_room: bool) -> Stepwise[Values]:
        error, sentence = self._creation_problem(topic)
        if error is BrokerError.NONE and not has_room:
            error, sentence = TOO_MANY
        if error is BrokerError.NONE and not is_trial:
            error, sentence = yield from self._try_create(topic.name, _wanted_count(topic), _wanted_settings(topic))
        count = self._topics.partition_count(topic.name) if error is BrokerError.NONE and not is_trial else -1
        return {
            "name": topic.name,
            "topic_id": self._topics.topic_id(topic.name) if count > 0 else NO_TOPIC_ID,
            "error_code": error,
            "error_message": sentence,
            "num_partitions": count,
            "replication_factor": 1 if count > 0 else -1,
            "configs": [],
        }

    def _creation_problem(self, topic: Any) -> tuple[BrokerError, str | None]:
        if self._directory.partition_count(topic.name):
            return BrokerError.TOPIC_ALREADY_EXISTS, f"the topic {topic.name} already exists"
        if topic.assignments:
            if topic.num_partitions != BROKER_CHOOSES or topic.replication_factor != BROKER_CHOOSES:
                return BrokerError.INVALID_REQUEST, "with assigned replicas, both numbers must be -1"
            if (sentence := _assignment_problem(topic.assignments)) is not None:
                return BrokerError.INVALID_REPLICA_ASSIGNMENT, sentence
        elif topic.replication_factor not in (1, BROKER_CHOOSES):
            return BrokerError.INVALID_REPLICATION_FACTOR, "a log on one host has one replica of each partition"
        count = _wanted_count(topic)
        if count is not None and not 1 <= count <= PARTITION_COUNT_MAX:
            return BrokerError.INVALID_PARTITIONS, f"a topic has 1 to {PARTITION_COUNT_MAX} partitions, not {count}"
        try:
            without_fixed(_wanted_settings(topic))
        except InvalidArgumentError as error:
            return BrokerError.INVALID_CONFIG, str(error)
        return BrokerError.NONE, None

    def _try_create(
        self, name: str, count: int | None, settings: Mapping[str, str] | None = None
    ) -> Stepwise[tuple[BrokerError, str | None]]:
        try:
            yield from self.create_topic(name, count)
            if settings:
                self._directory.change_settings(name, without_fixed(settings))
        except InvalidArgumentError as error:
            return BrokerError.INVALID_TOPIC_EXCEPTION, str(error)
        except (LogError, OSError) as error:
            return BrokerError.KAFKA_STORAGE_ERROR, str(error)
        return BrokerError.NONE, None

    def create_partitions(self, call: Call) -> Stepwise[Values]:
        """CreatePartitions: adds partitions to topics."""
        is_trial = bool(call.message.validate_only)
        topics, again = split_repeated(call.message.topics, lambda topic: str(topic.name))
        grown = []
        has_room = _is_within_limit(topic.count for topic in topics)
        for topic in topics:
            grown.append((yield from self._grow_topic(topic, is_trial=is_trial, has_room=has_room)))
            yield None
        return {"results": [*grown, *({"name": name, **REPEATED} for name in again)]}

    def _grow_topic(self, topic: Any, *, is_trial: bool, has_room: bool) -> Stepwise[Values]:
        known = self._directory.partition_count(topic.name)
        error: BrokerError = BrokerError.NONE
        sentence: str | None = None
        if not known:
            error, sentence = BrokerError.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name}"
        elif topic.count <= known:
            error, sentence = (
                BrokerError.INVALID_PARTITIONS,
                f"the topic already has {format_count(known, 'partition')}",
            )
        elif topic.count > PARTITION_COUNT_MAX:
            error, sentence = BrokerError.INVALID_PARTITIONS, f"a topic has at most {PARTITION_COUNT_MAX} partitions"
        elif (assignment := _growth_problem(topic, known)) is not None:
            error, sentence = BrokerError.INVALID_REPLICA_ASSIGNMENT, assignment
        elif not has_room:
            error, sentence = TOO_MANY
        elif not is_trial:
            error, sentence = yield from self._try_create(topic.name, topic.count)
        return {"name": topic.name, "error_code": error, "error_message": sentence}

    def delete_records(self, call: Call) -> Stepwise[Values]:
        """DeleteRecords: moves the start of a partition to an offset. -1 deletes all records.

        A topic with cleanup.policy=compact alone keeps its records.
        """
        topics = []
        for topic in call.message.topics:
            deleted = yield from answer_each(topic.partitions, functools.partial(self._records_deleted, topic.name))
            topics.append({"name": topic.name, "partitions": deleted})
        self._topics.retain()
        return {"topics": topics}

    def _records_deleted(self, topic: str, asked: Any) -> Values:
        number, error, start = asked.partition_index, BrokerError.NONE, -1
        if not self._directory.settings.has_policy(topic, DELETE):  # as in Apache Kafka
            return {"partition_index": number, "low_watermark": -1, "error_code": BrokerError.POLICY_VIOLATION}
        try:
            end = self._directory.partition(topic, number).log_end_offset
            start = self._directory.delete_records(topic, number, end if asked.offset == ALL_RECORDS else asked.offset)
        except LogPartitionNotFoundError:
            error = BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        except InvalidArgumentError:
            error = BrokerError.OFFSET_OUT_OF_RANGE
        except OSError:
            error = BrokerError.KAFKA_STORAGE_ERROR
        return {"partition_index": number, "low_watermark": start, "error_code": error}

    def delete_topics(self, call: Call) -> Stepwise[Values]:
        """DeleteTopics, by name or, from version 6 on, by id."""
        topics, again = split_repeated(topics_to_delete(call), lambda topic: topic)
        deleted = []
        for name, topic_id in topics:
            deleted.append((yield from self._deleted(name, topic_id)))
            yield None
        repeated = [{"name": name, "topic_id": topic_id, **REPEATED} for name, topic_id in again]
        return {"responses": [*deleted, *repeated]}

    def _deleted(self, name: str | None, topic_id: uuid.UUID) -> Stepwise[Values]:
        name = name or self._topics.name_of(topic_id)
        error, sentence = BrokerError.NONE, None
        if name is None:
            error = BrokerError.UNKNOWN_TOPIC_ID
        elif not self._directory.partition_count(name):
            error, sentence = BrokerError.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}"
        else:
            topic_id = self._topics.topic_id(name)
            self._topics.forget(name)
            yield from self._directory.delete_topic_in_steps(name)
            self._topics.forget(name)
        return {"name": name, "topic_id": topic_id, "error_code": error, "error_message": sentence}


def _is_within_limit(counts: Iterable[int]) -> bool:
    """Return whether one request may create so many partitions. Invalid counts create none."""
    return sum(count for count in counts if 0 < count <= PARTITION_COUNT_MAX) <= REQUEST_PARTITION_COUNT_MAX


def _wanted_settings(topic: Any) -> dict[str, str]:
    return {one.name: one.value or "" for one in topic.configs}


def _assignment_problem(assignments: Sequence[Any]) -> str | None:
    """Return the reason why the replica assignment of a new topic is invalid, or None."""
    if sorted(one.partition_index for one in assignments) != list(range(len(assignments))):
        return "the assigned partitions must be numbered from 0, each once"
    return None if all(one.broker_ids == [NODE_ID] for one in assignments) else ONE_REPLICA


def _growth_problem(topic: Any, known: int) -> str | None:
    """Return the reason why the replica assignment of new partitions is invalid, or None."""
    if topic.assignments is None:
        return None
    if len(topic.assignments) != topic.count - known:
        return f"replicas are assigned to {len(topic.assignments)} partitions, but {topic.count - known} are new"
    return None if all(one.broker_ids == [NODE_ID] for one in topic.assignments) else ONE_REPLICA


def topics_to_delete(call: Call) -> list[tuple[str | None, uuid.UUID]]:
    """Return name and id of each topic in a DeleteTopics. The name is None if only the id was given."""
    if call.version >= 6:
        return [(topic.name, topic.topic_id) for topic in call.message.topics]
    return [(name, NO_TOPIC_ID) for name in call.message.topic_names]


def _wanted_count(topic: Any) -> int | None:
    if topic.assignments:
        return len(topic.assignments)
    return None if topic.num_partitions == BROKER_CHOOSES else int(topic.num_partitions)
