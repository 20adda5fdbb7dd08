# SPDX-License-Identifier: Apache-2.0
"""The coordinator of transactions: requests of transactional producers, states and markers (KIP-98).

::

    EndTxn ──> decision in the file ──> response
                      └──> markers in partitions and groups ──> complete in the file

Rules: a step is written to the file before its response is sent. A batch of a transaction is appended only if the
producer that has the id has added the partition. So a fenced producer cannot start anything that would never end.

Procedure of a decision: it is written to the file, then a marker is written to each partition and group with the open
transaction, then the id is complete. If a marker cannot be written (disk full), it is retried every `RETRY_MS`.
Meanwhile, the producer gets CONCURRENT_TRANSACTIONS and retries.

==============================  ========================================================================================
death of the server after       repair by the next server that writes the log
==============================  ========================================================================================
a partition was added           the producer continues, or the transaction times out and is aborted
the decision                    every missing marker is written
some markers                    the same: a partition with its marker has no open transaction of this producer
all markers                     the id is completed
==============================  ========================================================================================

If a producer dies, its transaction is aborted by the time-out, or by the next producer with its id.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import LogPartitionNotFoundError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.log_batch import LogBatch
from shmaccum.log.files.producer_state import ProducerState, Rejection
from shmaccum.log.server.call import Call, Values, partition_errors
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.steps import Steps, Stepwise, answer_each, take_all
from shmaccum.log.server.transactional_id import (
    NO_PRODUCER_ID,
    PREPARED,
    ProducerKey,
    TransactionalId,
    TransactionRefusedError,
    TransactionState,
    check_expected,
    check_producer,
    check_unprepared,
    completed,
    decided,
    extended,
    fenced,
    initialized,
)
from shmaccum.log.server.transactions_file import TransactionsFile

logger = logging.getLogger(__name__)

IDS_MAX = 100_000
"""The most transactional ids of a log; each is held in memory."""
TIMEOUT_MAX_MS = 900_000
"""The longest timeout that a producer may request (transaction.max.timeout.ms)."""
EXPIRATION_MS = 7 * 24 * 3_600_000
"""The time after which an unused id is removed (transactional.id.expiration.ms)."""
RETRY_MS = 1000
EXPIRY_INTERVAL_MS = 3_600_000
FENCED_VERSION = 2
"""From this version of the transaction requests on, a fenced producer gets PRODUCER_FENCED."""
ABORTABLE_VERSION = 11
"""From this version of Produce on, TRANSACTION_ABORTABLE exists."""


@final
class TransactionCoordinator:
    """All transactional ids of a log that this server writes.

    Args:
        directory: the log, open for writing.
        groups: the coordinator of groups, which stores the offsets of transactions.
        is_synced: whether a step is synced to disk before its response is sent.
        clock_ms: the wall clock in milliseconds since 1970, because time-outs continue while no server runs.

    Raises:
        OSError: the file of the ids cannot be read or written.
    """

    def __init__(
        self,
        directory: LogDirectory,
        groups: Coordinator,
        *,
        is_synced: bool,
        clock_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._directory = directory
        self._groups = groups
        self._clock_ms = clock_ms
        self._file = TransactionsFile(directory.path, is_synced=is_synced)
        self._unfinished = {name: state for name, state in self._file.ids.items() if state.is_unfinished}
        """The ids that `tick` examines. Most ids have nothing open."""
        self._retry_ms = 0.0
        self._expire_at_ms = 0.0
        self._deadline_ms: float | None = None
        self._concluding: set[str] = set()
        """The ids whose markers a request or a tick is writing in steps."""
        take_all(self.tick())

    def _now_ms(self) -> int:
        return int(self._clock_ms())

    def _put(self, state: TransactionalId) -> TransactionalId:
        """Writes a step to the file.

        Raises:
            TransactionRefusedError: the step could not be written.
        """
        self._deadline_ms = None
        try:
            self._file.put(state)
        except OSError as error:
            logger.error("a step of the transactional id %r could not be written: %s", state.name, error.strerror)
            raise TransactionRefusedError(BrokerError.COORDINATOR_NOT_AVAILABLE) from None
        if state.is_unfinished:
            self._unfinished[state.name] = state
        else:
            self._unfinished.pop(state.name, None)
        return state

    # --- producers

    def init_producer_id(self, call: Call) -> Stepwise[Values]:
        """InitProducerId: returns a producer id and epoch, idempotent or transactional."""
        message = call.message
        try:
            if message.transactional_id is None:
                found = ProducerKey(self._directory.new_producer_id(), 0)
            else:
                expected = ProducerKey(message.producer_id, message.producer_epoch) if call.version >= 3 else None
                timeout_ms = message.transaction_timeout_ms
                found = yield from self._begin_producer(message.transactional_id, timeout_ms, expected)
        except TransactionRefusedError as refusal:
            error = _error_for_version(refusal.error, is_fence_known=call.version >= 4)
            return {"error_code": error, "producer_id": NO_PRODUCER_ID, "producer_epoch": -1}
        return {"error_code": BrokerError.NONE, "producer_id": found.producer_id, "producer_epoch": found.epoch}

    def _begin_producer(self, name: str, timeout_ms: int, expected: ProducerKey | None) -> Stepwise[ProducerKey]:
        expected = expected or ProducerKey(NO_PRODUCER_ID, -1)
        if not name:
            raise TransactionRefusedError(BrokerError.INVALID_REQUEST)
        if not 0 < timeout_ms <= TIMEOUT_MAX_MS:
            raise TransactionRefusedError(BrokerError.INVALID_TRANSACTION_TIMEOUT)
        current = self._file.ids.get(name) or self._new_id(name)
        check_expected(current, expected)
        check_unprepared(current)
        if current.state is TransactionState.ONGOING:
            if expected.producer_id != NO_PRODUCER_ID and expected.epoch != current.epoch:
                raise TransactionRefusedError(BrokerError.PRODUCER_FENCED)
            current = yield from self._conclude(self._put(fenced(current, self._now_ms())))
            check_unprepared(current)
            expected = ProducerKey(NO_PRODUCER_ID, -1)
        new_id = self._directory.new_producer_id
        state = self._put(initialized(current, timeout_ms, expected, new_id, self._now_ms()))
        return ProducerKey(state.producer_id, state.epoch)

    def _new_id(self, name: str) -> TransactionalId:
        if len(self._file.ids) >= IDS_MAX:
            logger.warning("the transactional id %r was rejected: %d ids exist", name, IDS_MAX)
            raise TransactionRefusedError(BrokerError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return TransactionalId(name, self._directory.new_producer_id())

    def _of(self, name: str, producer_id: int, epoch: int) -> TransactionalId:
        """Returns the state of an id, for the producer that has it."""
        if not name:
            raise TransactionRefusedError(BrokerError.INVALID_REQUEST)
        return check_producer(self._file.ids.get(name), ProducerKey(producer_id, epoch))

    # --- a transaction

    def add_partitions(self, call: Call) -> Stepwise[Values]:
        """AddPartitionsToTxn: adds all partitions, or none if one is unknown."""
        message = call.message
        topics = message.v3_and_below_topics
        places: set[TopicPartition] = set()
        errors: dict[TopicPartition, BrokerError] = {}
        for topic in topics:
            for number in topic.partitions:
                place = TopicPartition(topic.name, number)
                if 0 <= number < self._directory.partition_count(topic.name):
                    places.add(place)
                else:
                    errors[place] = BrokerError.UNKNOWN_TOPIC_OR_PARTITION
                yield None
        rest = BrokerError.OPERATION_NOT_ATTEMPTED
        if not errors:
            name, epoch = message.v3_and_below_transactional_id, message.v3_and_below_producer_epoch
            producer_id = message.v3_and_below_producer_id
            rest = _attempt(call, lambda: self._extend(self._of(name, producer_id, epoch), places=places))
        return {"results_by_topic_v3_and_below": [added_values(topic, errors, rest) for topic in topics]}

    def _extend(self, state: TransactionalId, **more: Iterable[Any]) -> None:
        grown = extended(state, self._now_ms(), **more)
        if grown is not state:
            self._put(grown)

    def add_offsets(self, call: Call) -> Values:
        """AddOffsetsToTxn: adds a group to the transaction."""
        message = call.message
        if not message.group_id:
            return {"error_code": BrokerError.INVALID_GROUP_ID}

        def add() -> None:
            state = self._of(message.transactional_id, message.producer_id, message.producer_epoch)
            self._extend(state, groups=[message.group_id])

        return {"error_code": _attempt(call, add)}

    def commit_offsets(self, call: Call) -> Stepwise[Values]:
        """TxnOffsetCommit: stores offsets that take effect if the transaction is committed."""
        message = call.message
        errors: dict[TopicPartition, BrokerError] = {}
        checked = yield from self._groups.checked_offsets(message, has_epochs=call.version >= 2)

        def commit() -> None:
            state = self._of(message.transactional_id, message.producer_id, message.producer_epoch)
            check_unprepared(state)
            if message.group_id not in state.groups:
                raise TransactionRefusedError(BrokerError.INVALID_TXN_STATE)
            found = self._groups.commit_of_transaction(call, *checked)
            if isinstance(found, BrokerError):
                raise TransactionRefusedError(found)
            errors.update(found)

        rest = _attempt(call, commit)
        return {"topics": [partition_errors(topic, errors, rest) for topic in message.topics]}

    def problem_of(self, name: str | None, batch: LogBatch, place: TopicPartition, version: int) -> Rejection | None:
        """Returns the reason why a batch of a transaction may not be appended (KIP-890), or None.

        Args:
            name: the transactional id in the request.
            batch: the batch.
            place: its partition.
            version: the version of Produce.
        """
        try:
            state = self._of(name or "", batch.producer_id, batch.producer_epoch)
        except TransactionRefusedError as refusal:
            is_fence = refusal.error is BrokerError.PRODUCER_FENCED
            error = BrokerError.INVALID_PRODUCER_EPOCH if is_fence else refusal.error
            return Rejection(error, f"producer {batch.producer_id} does not have the transactional id {name!r}")
        if state.state is TransactionState.ONGOING and place in state.places:
            return None
        error = BrokerError.TRANSACTION_ABORTABLE if version >= ABORTABLE_VERSION else BrokerError.INVALID_TXN_STATE
        return Rejection(error, f"{place} was not added to a transaction of {name!r}")

    def is_open(self, producer_id: int, place: TopicPartition) -> bool:
        """Returns whether a producer has an open transaction in a partition."""
        transactions = self._directory.partition(*place).producers.transactions
        return transactions.first_offset_of(producer_id) is not None

    def end(self, call: Call) -> Stepwise[Values]:
        """EndTxn: writes the decision to the file, then the markers. The response follows the decision."""
        message = call.message
        decisions: list[TransactionalId] = []

        def decide() -> None:
            state = self._of(message.transactional_id, message.producer_id, message.producer_epoch)
            after = decided(state, self._now_ms(), is_commit=message.committed)
            if after is not state:
                decisions.append(self._put(after))

        error = _attempt(call, decide)
        for state in decisions:
            yield from self._conclude(state)
        return {"error_code": error}

    # --- markers

    def _conclude(self, state: TransactionalId) -> Stepwise[TransactionalId]:
        """Writes the missing markers, each in a step, and completes the id if all are written. Meanwhile, no other
        request changes the id. If the client disconnects, `tick` continues."""
        self._concluding.add(state.name)
        try:
            is_marked = yield from answer_each(sorted(state.places), lambda place: self._mark(place, state))
            are_groups_done = yield from answer_each(
                sorted(state.groups), lambda group_id: self._end_offsets(group_id, state)
            )
        finally:
            self._concluding.discard(state.name)
        if all(is_marked) and all(are_groups_done):
            with contextlib.suppress(TransactionRefusedError):
                return self._put(completed(state, self._now_ms()))
        self._retry_ms = self._clock_ms() + RETRY_MS
        self._deadline_ms = None
        return state

    def _end_offsets(self, group_id: str, state: TransactionalId) -> bool:
        return self._groups.end_transaction(group_id, state.producer_id, is_commit=state.is_commit)

    def _mark(self, place: TopicPartition, state: TransactionalId) -> bool:
        """Writes the marker of one partition, if the transaction is open there. Returns False if it must be retried."""
        try:
            log = self._directory.partition(*place)
        except LogPartitionNotFoundError:
            return True  # the topic was deleted
        except OSError as error:
            logger.error("no marker can be written to %s: %s", place, error.strerror)
            return False
        if log.producers.transactions.first_offset_of(state.producer_id) is None:
            return True
        outcome = log.end_transaction(state.producer_id, state.epoch, is_commit=state.is_commit)
        if isinstance(outcome, Rejection):
            logger.error("the marker of %r was not written to %s: %s", state.name, place, outcome.message)
        return not isinstance(outcome, Rejection)

    # --- now and then

    def tick(self) -> Steps:
        """Aborts transactions that timed out, retries markers, and removes unused ids. Called often."""
        now_ms = self._now_ms()
        if now_ms < self._due_ms():
            return
        for name in list(self._unfinished):
            state = self._unfinished.get(name)
            if state is None or name in self._concluding:
                continue
            if state.state in PREPARED:
                yield from self._conclude(state)
            elif state.deadline_ms <= now_ms:
                logger.info("the transaction of %r was aborted: it exceeded its time-out", state.name)
                with contextlib.suppress(TransactionRefusedError):
                    yield from self._conclude(self._put(fenced(state, now_ms)))
        if now_ms >= self._expire_at_ms:
            self._expire(now_ms)
        self._deadline_ms = None

    def _due_ms(self) -> float:
        if self._deadline_ms is None:
            states = self._unfinished.values()
            deadlines_ms = (self._retry_ms if one.state in PREPARED else one.deadline_ms for one in states)
            self._deadline_ms = min(deadlines_ms, default=math.inf)
        return min(self._deadline_ms, self._expire_at_ms)

    def _expire(self, now_ms: int) -> None:
        self._expire_at_ms = now_ms + EXPIRY_INTERVAL_MS
        ids = self._file.ids.values()
        idle = [one.name for one in ids if not one.is_unfinished and one.updated_ms + EXPIRATION_MS < now_ms]
        if idle:
            try:
                self._file.forget(idle)
            except OSError as error:
                logger.warning("unused transactional ids could not be removed: %s", error.strerror)

    # --- describe

    def list(self, call: Call) -> Values:
        """ListTransactions."""
        message = call.message
        states, producer_ids = set(message.state_filters), set(message.producer_id_filters)
        known = {state.value for state in TransactionState}
        youngest_ms = self._now_ms() - message.duration_filter if call.version >= 1 else math.inf
        found = [
            {
                "transactional_id": one.name,
                "producer_id": one.producer_id,
                "transaction_state": one.state.value,
            }
            for one in self._file.ids.values()
            if (not states or one.state.value in states)
            and (not producer_ids or one.producer_id in producer_ids)
            and (call.version < 1 or message.duration_filter < 0 or 0 <= one.started_ms < youngest_ms)
        ]
        unknown = sorted(states - known)
        return {"error_code": BrokerError.NONE, "unknown_state_filters": unknown, "transaction_states": found}

    def describe(self, call: Call) -> Stepwise[Values]:
        """DescribeTransactions."""
        states = yield from answer_each(call.message.transactional_ids, self._described)
        return {"transaction_states": states}

    def _described(self, name: str) -> Values:
        state = self._file.ids.get(name)
        if state is None:
            return described_transaction(name, BrokerError.TRANSACTIONAL_ID_NOT_FOUND)
        topics: dict[str, list[int]] = {}
        for place in sorted(state.places):
            topics.setdefault(place.topic, []).append(place.partition)
        return {
            **described_transaction(name, BrokerError.NONE),
            "transaction_state": state.state.value,
            "transaction_timeout_ms": state.timeout_ms,
            "transaction_start_time_ms": state.started_ms,
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }

    def describe_producers(self, call: Call) -> Stepwise[Values]:
        """DescribeProducers (KIP-664): returns the producers of partitions, and their open transactions."""
        topics = []
        for topic in call.message.topics:
            places = (TopicPartition(topic.name, number) for number in topic.partition_indexes)
            topics.append({"name": topic.name, "partitions": (yield from answer_each(places, self._producers_of))})
        return {"topics": topics}

    def _producers_of(self, place: TopicPartition) -> Values:
        answer: Values = {"partition_index": place.partition, "error_message": None, "active_producers": []}
        try:
            state = self._directory.partition(*place).producers
        except LogPartitionNotFoundError as error:
            return {**answer, "error_code": BrokerError.UNKNOWN_TOPIC_OR_PARTITION, "error_message": str(error)}
        except OSError as error:
            return {**answer, "error_code": BrokerError.KAFKA_STORAGE_ERROR, "error_message": error.strerror}
        producers = [_active(producer_id, state) for producer_id in state.producer_ids()]
        return {**answer, "error_code": BrokerError.NONE, "active_producers": producers}

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _active(producer_id: int, state: ProducerState) -> Values:
    last = state.batches_of(producer_id)[-1]
    first_offset = state.transactions.first_offset_of(producer_id)
    return {
        "producer_id": producer_id,
        "producer_epoch": last.epoch,
        "last_sequence": last.last_sequence,
        "last_timestamp": last.timestamp_ms,
        "coordinator_epoch": 0,
        "current_txn_start_offset": -1 if first_offset is None else first_offset,
    }


def _attempt(call: Call, step: Callable[[], None]) -> BrokerError:
    """Run a step, and return its error for the client."""
    try:
        step()
    except TransactionRefusedError as refusal:
        return _error_for_version(refusal.error, is_fence_known=call.version >= FENCED_VERSION)
    return BrokerError.NONE


def _error_for_version(error: BrokerError, *, is_fence_known: bool) -> BrokerError:
    """Return the error as the version of the request represents it (KIP-588)."""
    is_replaced = error is BrokerError.PRODUCER_FENCED and not is_fence_known
    return BrokerError.INVALID_PRODUCER_EPOCH if is_replaced else error


def described_transaction(name: str, error: BrokerError) -> Values:
    """Return an element of DescribeTransactions with only an error."""
    return {
        "error_code": error,
        "transactional_id": name,
        "transaction_state": "",
        "transaction_timeout_ms": 0,
        "transaction_start_time_ms": -1,
        "producer_id": NO_PRODUCER_ID,
        "producer_epoch": -1,
        "topics": [],
    }


def added_values(topic: Any, errors: Mapping[TopicPartition, BrokerError], rest: BrokerError) -> Values:
    """Return a topic of AddPartitionsToTxn, with `errors` for single partitions and `rest` for all others."""
    results = [
        {
            "partition_index": number,
            "partition_error_code": errors.get(TopicPartition(topic.name, number), rest),
        }
        for number in topic.partitions
    ]
    return {"name": topic.name, "results_by_partition": results}
