# SPDX-License-Identifier: Apache-2.0
"""The requests that change a log: Produce, and those that make and delete topics. Only a writable server has them.

A batch is judged before it is appended (`produced`). It is appended under the sequences of its producer: the log takes
each once, as a broker does. A batch of a transaction needs a partition that its producer has added to it
(`transaction_coordinator`).
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError, LogError, LogPartitionNotFoundError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.codecs import DecompressedTooLargeError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.log_batch import LogBatch
from shmaccum.log.files.partition_log import LOG_APPEND_TIME, OWN_TIME
from shmaccum.log.files.producer_state import Refusal
from shmaccum.log.server.call import TWICE, Call, Values, once_and_again
from shmaccum.log.server.numbers import ServerNumbers
from shmaccum.log.server.placement import ONE_REPLICA
from shmaccum.log.server.produced import AT_ONCE_SIZE_MAX, Budget, Rules, decompressed_size_max, judge, split
from shmaccum.log.server.settings import NODE_ID, changeable
from shmaccum.log.server.steps import Steps, Stepwise, answer_each
from shmaccum.log.server.topics import NO_TOPIC_ID, LogTopics
from shmaccum.log.server.transaction_coordinator import TransactionCoordinator

logger = logging.getLogger(__name__)

ACKS = (-1, 0, 1)
ID_VERSION = 13
"""Of Produce: from this version on a topic has its id in place of its name."""
PARTITION_COUNT_MAX = 1000
"""Partitions of one topic: each is a folder, and one request could ask for billions."""
BROKER_CHOOSES = -1
"""A partition count, or a number of replicas, that is left to the server."""
ALL_RECORDS = -1
REQUEST_PARTITION_COUNT_MAX = 10_000
"""Partitions that one request may create (QuorumController.MAX_RECORDS_PER_USER_OP)."""
TOO_MANY: Final = (
    BrokerError.POLICY_VIOLATION,
    f"a request creates {REQUEST_PARTITION_COUNT_MAX} partitions at most: send several requests",
)


class Prepared(NamedTuple):
    """What a request has for a partition."""

    topic: str | None
    data: Any
    """As the request has it."""
    rules: Rules
    batches: list[LogBatch] | Refusal


_CREATED_NOT: Final[Values] = {"topic_id": NO_TOPIC_ID, "num_partitions": -1, "replication_factor": -1, "configs": []}
_NO_RULES = Rules(0, 0, 0, sets_time=False)
"""Of a partition that takes nothing."""


@final
class Writing:
    """A log directory that this server writes.

    Args:
        directory: open for writing.
        topics: the topics that the server serves.
        numbers: where the batches are counted that clients produce.
        transactions: their coordinator.
    """

    def __init__(
        self,
        directory: LogDirectory,
        topics: LogTopics,
        numbers: ServerNumbers,
        transactions: TransactionCoordinator,
    ) -> None:
        self.transactions = transactions
        self._numbers = numbers
        self._directory = directory
        self._topics = topics

    # --- produce

    def produce(self, call: Call) -> Steps:
        """Produce: judges the batches, and appends those of each partition where all are right."""
        prepared = yield from self._prepare(call)
        try:
            judged = _judged(prepared, Budget(AT_ONCE_SIZE_MAX))
        except DecompressedTooLargeError:
            request_size = sum(len(data.records or b"") for _, data, _, _ in prepared)
            budget = Budget(decompressed_size_max(request_size), may_stream=True)
            judged = yield functools.partial(_judged_in_thread, prepared, budget)
        yield from self._append_all(call, judged)

    def _prepare(self, call: Call) -> Stepwise[list[Prepared]]:
        """Every partition of a request, with its batches, or the reason why it takes none."""
        is_by_id = call.version >= ID_VERSION
        prepared: list[Prepared] = []
        for topic in call.message.topic_data:
            name = self._topics.name_of(topic.topic_id) if is_by_id else topic.name
            for data in topic.partition_data:
                refusal = self._place_problem(name, data, call)
                rules = _NO_RULES if refusal is not None or name is None else self._rules_of(name, call.version)
                batches = refusal or split(memoryview(bytes(data.records or b"")), rules)
                prepared.append(Prepared(name, data, rules, batches))
                yield None
        return prepared

    def _append_all(self, call: Call, prepared: list[Prepared]) -> Steps:
        """Appends what was judged, and answers."""
        produced = iter(prepared)
        responses = []
        for topic in call.message.topic_data:
            of_topic = list(itertools.islice(produced, len(topic.partition_data)))
            name = of_topic[0].topic if of_topic else None
            partitions = yield from answer_each(of_topic, lambda one: self._produced(one, call))
            responses.append({"name": name, "topic_id": topic.topic_id, "partition_responses": partitions})
        if call.message.acks == 0:
            call.answer_with([])
        else:
            call.answer({"responses": responses})

    def _produced(self, one: Prepared, call: Call) -> Values:
        answer: Values = {
            "index": one.data.index,
            "error_code": BrokerError.NONE,
            "base_offset": -1,
            "log_append_time_ms": OWN_TIME,
            "log_start_offset": -1,
            "record_errors": [],
            "error_message": None,
        }
        found = self._append(one, call)
        if isinstance(found, Refusal):
            return {**answer, "error_code": int(found.error_code), "error_message": found.message or None}
        assert one.topic is not None
        offset, time_ms = found
        start = self._directory.partition(one.topic, one.data.index).log_start_offset
        return {**answer, "base_offset": offset, "log_append_time_ms": time_ms, "log_start_offset": start}

    def _place_problem(self, topic: str | None, data: Any, call: Call) -> Refusal | None:
        """The reason why a partition takes nothing of a request; None: it takes what is right."""
        if call.message.acks not in ACKS:
            return Refusal(BrokerError.INVALID_REQUIRED_ACKS, f"acks is {call.message.acks}, not one of -1, 0, 1")
        if topic is None or not 0 <= data.index < self._directory.partition_count(topic):
            is_by_id = call.version >= ID_VERSION
            return Refusal(BrokerError.UNKNOWN_TOPIC_ID if is_by_id else BrokerError.UNKNOWN_TOPIC_OR_PARTITION, "")
        return None

    def _rules_of(self, topic: str, version: int) -> Rules:
        options = self._directory.options_of(topic)
        assert isinstance(options, ServerOptions)
        return Rules(
            version,
            options.max_message_bytes,
            time.time_ns() // 10**6 + options.message_timestamp_after_max_ms,
            options.message_timestamp_type == LOG_APPEND_TIME,
        )

    def _append(self, one: Prepared, call: Call) -> tuple[int, int] | Refusal:
        """Appends the batches of one partition; the first one's offset and time."""
        if isinstance(one.batches, Refusal):
            return one.batches
        refusal = self._place_problem(one.topic, one.data, call)  # the topic may be gone since it was judged
        if refusal is not None or one.topic is None:
            return refusal or Refusal(BrokerError.UNKNOWN_TOPIC_OR_PARTITION, "")
        place = TopicPartition(one.topic, one.data.index)
        problems = (self._transaction_problem(batch, place, call) for batch in one.batches)
        problem = next((each for each in problems if each is not None), None)
        return problem or self._append_batches(place, one.batches)

    def _transaction_problem(self, batch: LogBatch, place: TopicPartition, call: Call) -> Refusal | None:
        """The reason why a batch does not fit the transactions of its producer; None: it does."""
        if batch.is_of_transaction:
            return self.transactions.problem_of(call.message.transactional_id, batch, place, call.version)
        if batch.producer_id >= 0 and self.transactions.is_open(batch.producer_id, place):
            return Refusal(
                BrokerError.INVALID_TXN_STATE,
                f"producer {batch.producer_id} has an open transaction in {place}, and sent a batch outside of it",
            )
        return None

    def _append_batches(self, place: TopicPartition, batches: list[LogBatch]) -> tuple[int, int] | Refusal:
        try:
            log = self._directory.partition(*place)
            outcomes = log.append(batches)
        except LogPartitionNotFoundError as error:
            return Refusal(BrokerError.UNKNOWN_TOPIC_OR_PARTITION, str(error))
        except OSError as error:
            return Refusal(BrokerError.KAFKA_STORAGE_ERROR, str(error))
        taken = [batch for batch, outcome in zip(batches, outcomes, strict=True) if isinstance(outcome, int)]
        self._numbers.note_produced(
            place.topic, sum(batch.size for batch in taken), sum(batch.record_count for batch in taken)
        )
        for outcome in outcomes:
            if isinstance(outcome, Refusal):
                return outcome
        first = outcomes[0]
        assert isinstance(first, int)
        return first, log.time_of(batches[0], first)

    # --- topics

    def create_topic(self, name: str, partition_count: int | None) -> Steps:
        """Makes a topic unless it is there; each partition is a step.

        Raises:
            InvalidArgumentError: it cannot be a topic.
            LogError, OSError: it could not be made.
        """
        count = yield from self._directory.create_topic_in_steps(name, partition_count)
        for partition in range(count):
            if self._directory.partition_count(name) > partition:  # another client may be deleting it
                self._directory.partition(name, partition)  # makes its files
            yield None
        self._topics.look()

    def create_topics(self, call: Call) -> Steps:
        """CreateTopics."""
        is_trial = bool(call.message.validate_only)
        topics, again = once_and_again(call.message.topics, lambda topic: str(topic.name))
        created = []
        has_room = _is_within_limit(_wanted_count(topic) or 1 for topic in topics)
        for topic in topics:
            created.append((yield from self._created(topic, is_trial=is_trial, has_room=has_room)))
            yield None
        call.answer({"topics": [*created, *({**_CREATED_NOT, "name": name, **TWICE} for name in again)]})

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
            return BrokerError.TOPIC_ALREADY_EXISTS, f"the topic {topic.name} exists"
        if topic.assignments:
            if topic.num_partitions != BROKER_CHOOSES or topic.replication_factor != BROKER_CHOOSES:
                return BrokerError.INVALID_REQUEST, "replicas are assigned: leave both numbers at -1"
            if (sentence := _assignment_problem(topic.assignments)) is not None:
                return BrokerError.INVALID_REPLICA_ASSIGNMENT, sentence
        elif topic.replication_factor not in (1, BROKER_CHOOSES):
            return BrokerError.INVALID_REPLICATION_FACTOR, "a log on one host has one replica of each partition"
        count = _wanted_count(topic)
        if count is not None and not 1 <= count <= PARTITION_COUNT_MAX:
            return BrokerError.INVALID_PARTITIONS, f"a topic has 1 to {PARTITION_COUNT_MAX} partitions, not {count}"
        try:
            changeable(_wanted_settings(topic))
        except InvalidArgumentError as error:
            return BrokerError.INVALID_CONFIG, str(error)
        return BrokerError.NONE, None

    def _try_create(
        self, name: str, count: int | None, settings: Mapping[str, str] | None = None
    ) -> Stepwise[tuple[BrokerError, str | None]]:
        try:
            yield from self.create_topic(name, count)
            if settings:
                self._directory.change_settings(name, changeable(settings))
        except InvalidArgumentError as error:
            return BrokerError.INVALID_TOPIC_EXCEPTION, str(error)
        except (LogError, OSError) as error:
            return BrokerError.KAFKA_STORAGE_ERROR, str(error)
        return BrokerError.NONE, None

    def create_partitions(self, call: Call) -> Steps:
        """CreatePartitions: a topic gets more of them."""
        is_trial = bool(call.message.validate_only)
        topics, again = once_and_again(call.message.topics, lambda topic: str(topic.name))
        grown = []
        has_room = _is_within_limit(topic.count for topic in topics)
        for topic in topics:
            grown.append((yield from self._grown(topic, is_trial=is_trial, has_room=has_room)))
            yield None
        call.answer({"results": [*grown, *({"name": name, **TWICE} for name in again)]})

    def _grown(self, topic: Any, *, is_trial: bool, has_room: bool) -> Stepwise[Values]:
        known = self._directory.partition_count(topic.name)
        error: BrokerError = BrokerError.NONE
        sentence: str | None = None
        if not known:
            error, sentence = BrokerError.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name}"
        elif topic.count <= known:
            error, sentence = (
                BrokerError.INVALID_PARTITIONS,
                f"the topic has {format_count(known, 'partition')} already",
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

    def delete_records(self, call: Call) -> Steps:
        """DeleteRecords: a partition starts at a later offset; -1 deletes all that there is."""
        topics = []
        for topic in call.message.topics:
            deleted = yield from answer_each(topic.partitions, functools.partial(self._records_deleted, topic.name))
            topics.append({"name": topic.name, "partitions": deleted})
        self._topics.retain()
        call.answer({"topics": topics})

    def _records_deleted(self, topic: str, asked: Any) -> Values:
        number, error, start = asked.partition_index, BrokerError.NONE, -1
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

    def delete_topics(self, call: Call) -> Steps:
        """DeleteTopics, by name or (from version 6 on) by id."""
        topics, again = once_and_again(topics_to_delete(call), lambda topic: topic)
        deleted = []
        for name, topic_id in topics:
            deleted.append((yield from self._deleted(name, topic_id)))
            yield None
        repeated = [{"name": name, "topic_id": topic_id, **TWICE} for name, topic_id in again]
        call.answer({"responses": [*deleted, *repeated]})

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
    """True when one request may create so many partitions. A number that no topic may have creates none."""
    return sum(count for count in counts if 0 < count <= PARTITION_COUNT_MAX) <= REQUEST_PARTITION_COUNT_MAX


def _wanted_settings(topic: Any) -> dict[str, str]:
    return {one.name: one.value or "" for one in topic.configs}


def _assignment_problem(assignments: Sequence[Any]) -> str | None:
    """The reason why the replicas of a new topic cannot be where a client wants them; None: they can."""
    if sorted(one.partition_index for one in assignments) != list(range(len(assignments))):
        return "the partitions that replicas are assigned to are not numbered from 0 on, each once"
    return None if all(one.broker_ids == [NODE_ID] for one in assignments) else ONE_REPLICA


def _growth_problem(topic: Any, known: int) -> str | None:
    """The same for the new partitions of a topic."""
    if topic.assignments is None:
        return None
    if len(topic.assignments) != topic.count - known:
        return f"replicas are assigned to {len(topic.assignments)} partitions, {topic.count - known} are new"
    return None if all(one.broker_ids == [NODE_ID] for one in topic.assignments) else ONE_REPLICA


def topics_to_delete(call: Call) -> list[tuple[str | None, uuid.UUID]]:
    """Name and id of each topic that a DeleteTopics names; the name is None where the id alone was given."""
    if call.version >= 6:
        return [(topic.name, topic.topic_id) for topic in call.message.topics]
    return [(name, NO_TOPIC_ID) for name in call.message.topic_names]


def _wanted_count(topic: Any) -> int | None:
    if topic.assignments:
        return len(topic.assignments)
    return None if topic.num_partitions == BROKER_CHOOSES else int(topic.num_partitions)


def _judged(prepared: list[Prepared], budget: Budget) -> list[Prepared]:
    """The partitions, with their batches as the log takes them.

    Raises:
        DecompressedTooLargeError: the compressed batches stand for more bytes than the budget has.
    """
    return [
        one if isinstance(one.batches, Refusal) else one._replace(batches=judge(one.batches, one.rules, budget))
        for one in prepared
    ]


def _judged_in_thread(prepared: list[Prepared], budget: Budget) -> list[Prepared]:
    """The same; a request that is beyond the budget is refused, and so is one that cannot be judged."""
    try:
        return _judged(prepared, budget)
    except DecompressedTooLargeError as error:
        refusal = Refusal(BrokerError.MESSAGE_TOO_LARGE, f"{error}, together: send smaller batches")
    except Exception as error:
        logger.exception("a Produce request could not be judged")
        refusal = Refusal(BrokerError.UNKNOWN_SERVER_ERROR, f"the batches could not be judged: {error}")
    return [one if isinstance(one.batches, Refusal) else one._replace(batches=refusal) for one in prepared]
