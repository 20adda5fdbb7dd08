# SPDX-License-Identifier: Apache-2.0
"""Produce. Only a writable server accepts batches.

A batch is validated before it is appended (`produced`). The log uses the sequences of its producer to append each batch
once, as a broker does. A batch of a transaction is accepted only if its producer has added the partition to the
transaction (`transaction_coordinator`).
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from typing import Any, NamedTuple, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import ServerOptions
from shmaccum.config.topic import COMPACT
from shmaccum.exceptions import LogPartitionNotFoundError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.codecs import DecompressedTooLargeError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.log_batch import LogBatch
from shmaccum.log.files.partition_log import LOG_APPEND_TIME, OWN_TIME
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.server.call import Call, Response, Values
from shmaccum.log.server.numbers import ServerNumbers
from shmaccum.log.server.produced import AT_ONCE_SIZE_MAX, Budget, Rules, decompressed_size_max, split, validate_batches
from shmaccum.log.server.steps import Stepwise, answer_each
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.transaction_coordinator import TransactionCoordinator

logger = logging.getLogger(__name__)

ACKS = (-1, 0, 1)
ID_VERSION = 13
"""From this version of Produce on, a topic has its id instead of its name."""


class Prepared(NamedTuple):
    """The data of a request for one partition."""

    topic: str | None
    data: Any
    """The partition data of the request."""
    rules: Rules
    batches: list[LogBatch] | Rejection


_NO_RULES = Rules(0, 0, 0, sets_time=False, needs_keys=False)
"""The rules of a partition whose data is rejected."""


@final
class ProduceHandler:
    """Appends the batches of clients.

    Args:
        directory: the log, open for writing.
        topics: the topics that the server serves.
        numbers: counts the produced batches.
        transactions: the coordinator of transactions.
    """

    def __init__(
        self,
        directory: LogDirectory,
        topics: LogTopics,
        numbers: ServerNumbers,
        transactions: TransactionCoordinator,
    ) -> None:
        self._transactions = transactions
        self._numbers = numbers
        self._directory = directory
        self._topics = topics

    def handle(self, call: Call) -> Stepwise[Response]:
        """Produce: validates the batches, and appends those of each partition without an invalid batch."""
        prepared = yield from self._prepare(call)
        try:
            validated = _validated(prepared, Budget(AT_ONCE_SIZE_MAX))
        except DecompressedTooLargeError:
            request_size = sum(len(data.records or b"") for _, data, _, _ in prepared)
            budget = Budget(decompressed_size_max(request_size), may_stream=True)
            validated = yield functools.partial(_validated_in_thread, prepared, budget)
        return (yield from self._append_all(call, validated))

    def _prepare(self, call: Call) -> Stepwise[list[Prepared]]:
        """Returns every partition of a request with its batches, or with the reason why it is rejected."""
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

    def _append_all(self, call: Call, prepared: list[Prepared]) -> Stepwise[Response]:
        """Appends the validated batches."""
        produced = iter(prepared)
        responses = []
        for topic in call.message.topic_data:
            of_topic = list(itertools.islice(produced, len(topic.partition_data)))
            name = of_topic[0].topic if of_topic else None
            partitions = yield from answer_each(of_topic, lambda one: self._produced(one, call))
            responses.append({"name": name, "topic_id": topic.topic_id, "partition_responses": partitions})
        return [] if call.message.acks == 0 else {"responses": responses}

    def _produced(self, one: Prepared, call: Call) -> Values:
        found = self._append(one, call)
        if isinstance(found, Rejection):
            refused = _refused_partition(one.data.index, int(found.error_code), found.message or None)
            errors = [{"batch_index": index, "batch_index_error_message": None} for index in found.record_indexes]
            return {**refused, "record_errors": errors}
        assert one.topic is not None
        offset, time_ms = found
        start = self._directory.partition(one.topic, one.data.index).log_start_offset
        appended = {"base_offset": offset, "log_append_time_ms": time_ms, "log_start_offset": start}
        return {**_refused_partition(one.data.index, BrokerError.NONE, None), **appended}

    def _place_problem(self, topic: str | None, data: Any, call: Call) -> Rejection | None:
        """Returns the reason why a partition rejects the data of a request, or None."""
        if call.message.acks not in ACKS:
            return Rejection(BrokerError.INVALID_REQUIRED_ACKS, f"acks is {call.message.acks}, not one of -1, 0, 1")
        if topic is None or not 0 <= data.index < self._directory.partition_count(topic):
            is_by_id = call.version >= ID_VERSION
            return Rejection(BrokerError.UNKNOWN_TOPIC_ID if is_by_id else BrokerError.UNKNOWN_TOPIC_OR_PARTITION, "")
        return None

    def _rules_of(self, topic: str, version: int) -> Rules:
        options = self._directory.options_of(topic)
        assert isinstance(options, ServerOptions)
        return Rules(
            version,
            options.max_message_bytes,
            time.time_ns() // 10**6 + options.message_timestamp_after_max_ms,
            options.message_timestamp_type == LOG_APPEND_TIME,
            self._directory.settings.has_policy(topic, COMPACT),
        )

    def _append(self, one: Prepared, call: Call) -> tuple[int, int] | Rejection:
        """Appends the batches of one partition, and returns the offset and time of the first one."""
        if isinstance(one.batches, Rejection):
            return one.batches
        refusal = self._place_problem(one.topic, one.data, call)  # the topic may have been deleted since validation
        if refusal is not None or one.topic is None:
            return refusal or Rejection(BrokerError.UNKNOWN_TOPIC_OR_PARTITION, "")
        place = TopicPartition(one.topic, one.data.index)
        problems = (self._transaction_problem(batch, place, call) for batch in one.batches)
        problem = next((each for each in problems if each is not None), None)
        return problem or self._append_batches(place, one.batches)

    def _transaction_problem(self, batch: LogBatch, place: TopicPartition, call: Call) -> Rejection | None:
        """Returns the reason why a batch does not fit the transactions of its producer, or None."""
        if batch.is_of_transaction:
            return self._transactions.problem_of(call.message.transactional_id, batch, place, call.version)
        if batch.producer_id >= 0 and self._transactions.is_open(batch.producer_id, place):
            return Rejection(
                BrokerError.INVALID_TXN_STATE,
                f"producer {batch.producer_id} has an open transaction in {place} but sent a batch outside of it",
            )
        return None

    def _append_batches(self, place: TopicPartition, batches: list[LogBatch]) -> tuple[int, int] | Rejection:
        try:
            log = self._directory.partition(*place)
            outcomes = log.append(batches)
        except LogPartitionNotFoundError as error:
            return Rejection(BrokerError.UNKNOWN_TOPIC_OR_PARTITION, str(error))
        except OSError as error:
            return Rejection(BrokerError.KAFKA_STORAGE_ERROR, str(error))
        taken = [batch for batch, outcome in zip(batches, outcomes, strict=True) if isinstance(outcome, int)]
        self._numbers.count_produced(
            place.topic, sum(batch.size for batch in taken), sum(batch.record_count for batch in taken)
        )
        for outcome in outcomes:
            if isinstance(outcome, Rejection):
                return outcome
        first = outcomes[0]
        assert isinstance(first, int)
        return first, log.time_of(batches[0], first)


def _validated(prepared: list[Prepared], budget: Budget) -> list[Prepared]:
    """Validate the batches of all partitions.

    Raises:
        DecompressedTooLargeError: the decompressed size of the batches exceeds the budget.
    """
    return [
        one
        if isinstance(one.batches, Rejection)
        else one._replace(batches=validate_batches(one.batches, one.rules, budget))
        for one in prepared
    ]


def _validated_in_thread(prepared: list[Prepared], budget: Budget) -> list[Prepared]:
    """Validate in the thread. If the request exceeds the budget or validation fails, all of it is rejected."""
    try:
        return _validated(prepared, budget)
    except DecompressedTooLargeError as error:
        refusal = Rejection(BrokerError.MESSAGE_TOO_LARGE, f"{error} in one request: send smaller batches")
    except Exception as error:
        logger.exception("a Produce request could not be validated")
        refusal = Rejection(BrokerError.UNKNOWN_SERVER_ERROR, f"the batches could not be validated: {error}")
    return [one if isinstance(one.batches, Rejection) else one._replace(batches=refusal) for one in prepared]


def refused_topic(topic: Any, error: BrokerError, sentence: str | None = None) -> Values:
    """Return a topic of a Produce response that rejects all of its partitions."""
    partitions = [_refused_partition(one.index, error, sentence) for one in topic.partition_data]
    return {"name": topic.name, "topic_id": topic.topic_id, "partition_responses": partitions}


def _refused_partition(index: int, error: int, sentence: str | None) -> Values:
    return {
        "index": index,
        "error_code": error,
        "base_offset": -1,
        "log_append_time_ms": OWN_TIME,
        "log_start_offset": -1,
        "record_errors": [],
        "error_message": sentence,
    }
