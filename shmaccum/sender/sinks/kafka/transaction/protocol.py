# SPDX-License-Identifier: Apache-2.0
"""The protocol of a transactional producer as a pure machine (Kafka's TransactionManager; KIP-98, 360, 447, 890).

::

    owner (a sender, a commit)          protocol                      driver (or a test)
      initialize() ─────────────────────> goal
      begin() ──────────────────────────> goal      next_request(now) ──> (node, request), after the state is saved
      add_partitions(), add_offsets() ──> goal      answered(response, now) <── the broker's response
      may_produce(place)? <────────────── state     missed(code, now) <──────── none: a lost connection, a time-out
      batch_failed(code) ───────────────> state
      commit() or abort() ──────────────> goal      outcome, failure ───> owner

States::

    NEW ── initialize ──> READY ── begin ──> OPEN ── commit ──> COMMITTING ──> READY, outcome COMMITTED
                            ^                 │ │ a batch or a request fails       │ it fails permanently
                            │                 │ └────────────> ABORT_ONLY <────────┤
                            │                 │ abort             │ abort          v
                            └─ ABORTED ── ABORTING <──────────────┘             FAILED, outcome None or UNKNOWN

Rules
    One request is in flight at a time. The coordinator is looked up first. The producer id follows, then partitions
    and offsets, and the end comes last. `error_effects` has the effect of an error: retry, another coordinator, only an
    abort, an abort and a new epoch, or the end of this producer.
    `recovery_state` is everything that a successor needs. The driver saves it before it sends the result of
    `next_request`, so a successor never knows less than a broker. The first request of a transaction to a broker
    (`is_known`) and its end (`is_end_sent`) are in the saved state before they are sent.
    With transaction.version 2 (KIP-890), Produce and TxnOffsetCommit add partitions and groups implicitly, and the end
    returns the next epoch, and sometimes the next producer id. With version 1, an error that loses sequences requires
    a new epoch (KIP-360) before the next transaction.
    Offsets are not in the recovery state. Their owner stores them, and gives them to an OPEN or COMMITTING successor
    before it calls `next_request`. A saved state may omit partitions and groups: a successor adds them again, and the
    coordinator ignores duplicates.

Deaths
    ====================================  ============================================================================
    a death of the owner                  its successor, created with the saved state
    ====================================  ============================================================================
    before a producer id was saved        requests one; the coordinator raises the epoch, and aborts an open transaction
    while a new epoch was requested       repeats the request with the former epoch: the coordinator knows it (KIP-360)
    while partitions were added           adds them again: the coordinator ignores duplicates
    while offsets were committed          gets them from its owner, and commits them again
    OPEN, batches in flight               continues: batches keep their producer id, epoch and sequence
    COMMITTING, the end was not sent      sends it
    COMMITTING, the end may have arrived  sends it again: the coordinator responds as the first time
    ====================================  ============================================================================

The outcome of a commit is UNKNOWN if an end may have arrived, and the coordinator then refuses permanently: the
producer was fenced, or the transaction forgotten. The coordinator can no longer report whether it committed.

The clock is an argument, in seconds, with any origin.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple, final

from shmaccum.common.format.group_offsets import GroupMember, OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.kafka.transaction.error_effects import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    OPERATION_NOT_ATTEMPTED,
    SEVERITY,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_VERSION,
    Effect,
    effect_of,
    effect_of_batch,
    sentence,
)
from shmaccum.sender.sinks.kafka.transaction.requests import (
    NO_PRODUCER,
    AddOffsets,
    AddPartitions,
    AskVersion,
    CommitOffsets,
    CoordinatorKey,
    CoordinatorKind,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    Request,
    TransactionalProducer,
    TransactionResponse,
)

IMPLICIT = 2
"""From this transaction.version on, brokers add partitions implicitly."""
FIRST_ADD_BACKOFF_S, FIRST_ADD_BACKOFF_MAX_S = 0.0025, 0.02
"""The pauses of the first partition while the former transaction is being completed: short ones, then Java's."""
BACKOFF_FACTOR_MAX = 10
PATIENCE_COUNT = 5
"""After this number of transient errors in a row, the problem of a request is reported."""


class State(enum.IntEnum):
    """The state of a producer. The numbers are stored."""

    NEW = 0
    READY = 1
    OPEN = 2
    ABORT_ONLY = 3
    COMMITTING = 4
    ABORTING = 5
    FAILED = 6


class TransactionOutcome(enum.IntEnum):
    """How a transaction ended. The numbers are stored."""

    COMMITTED = 1
    ABORTED = 2
    UNKNOWN = 3


class TransactionFailure(NamedTuple):
    """The reason for ABORT_ONLY or FAILED."""

    effect: Effect
    error_code: int
    """Kafka's error code."""
    message: str
    """A sentence for people."""


class RecoveryState(NamedTuple):
    """The recovery state: everything about a producer and its transaction that a successor needs."""

    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER
    state: State = State.NEW
    version: int = 1
    """The transaction.version with which the transaction began."""
    is_known: bool = False
    """A broker may know the transaction, so its end has to be sent."""
    is_confirmed: bool = False
    """The coordinator has confirmed a partition or a group."""
    is_end_sent: bool = False
    """The end may have reached the coordinator."""
    needs_epoch: bool = False
    """The next transaction needs another epoch than this."""
    partitions: frozenset[TopicPartition] = frozenset()
    """The coordinator has them."""
    groups: frozenset[str] = frozenset()
    """The coordinator has them."""
    outcome: TransactionOutcome | None = None
    """How the last transaction ended; None before the first one, and while one is open."""


@final
class TransactionProtocol:
    """One transactional producer. The docstring of this module has the interface.

    Args:
        transactional_id: the name by which brokers know it.
        timeout_ms: the coordinator aborts a transaction that is open for longer.
        recovery_state: the recovery state of the predecessor; empty for a new producer.
        retry_backoff_ms: the pause before a request is retried. It grows with each retry, up to tenfold.

    Attributes:
        recovery_state: to be saved after each change, before the next request is sent.
        failure: the reason of the state ABORT_ONLY or FAILED, or of a refused `initialize`.
    """

    def __init__(
        self,
        transactional_id: str,
        timeout_ms: int,
        recovery_state: RecoveryState = RecoveryState(),  # noqa: B008 - immutable
        *,
        retry_backoff_ms: int = 100,
    ) -> None:
        self.transactional_id = transactional_id
        self.recovery_state = recovery_state
        self.failure: TransactionFailure | None = None
        self._timeout_ms = timeout_ms
        self._backoff_s = retry_backoff_ms / 1000
        self._coordinator = CoordinatorKey(CoordinatorKind.TRANSACTION, transactional_id)
        self._nodes: dict[CoordinatorKey, int] = {}
        self._version: int | None = None
        self._is_wanted = recovery_state.state is not State.NEW
        self._new_partitions: set[TopicPartition] = set()
        self._offsets: dict[GroupMember, dict[TopicPartition, OffsetToCommit]] = {}
        self._asked: Request | None = None
        self._not_before_s = float("-inf")
        self._miss_count = 0
        self._trouble = ""
        self._is_end_open = recovery_state.is_end_sent

    def __repr__(self) -> str:
        recovery_state = self.recovery_state
        return (
            f"<TransactionProtocol {self.transactional_id} {recovery_state.state.name} "
            f"{recovery_state.producer_id}/{recovery_state.producer_epoch}>"
        )

    # --- facts

    @property
    def producer(self) -> TransactionalProducer:
        """Transactional id, producer id and epoch."""
        return TransactionalProducer(
            self.transactional_id, self.recovery_state.producer_id, self.recovery_state.producer_epoch
        )

    @property
    def outcome(self) -> TransactionOutcome | None:
        """How the last transaction ended; None before the first one, and while one is open."""
        return self.recovery_state.outcome

    @property
    def is_ready(self) -> bool:
        """True if `begin` may be called."""
        is_initialized = self.recovery_state.state is State.READY and not self.recovery_state.needs_epoch
        return is_initialized and self._version is not None and self.failure is None

    @property
    def is_settled(self) -> bool:
        """True if everything requested is done."""
        return self._asked is None and self._next_request() is None

    @property
    def is_implicit(self) -> bool:
        """True if brokers add the partitions of this transaction implicitly, which needs Produce 12 or newer.

        Otherwise, Produce must be of version 11 or older.
        """
        return self.recovery_state.version >= IMPLICIT

    @property
    def resumes_at_s(self) -> float:
        """The time before which `next_request` returns None."""
        return self._not_before_s

    def take_trouble(self) -> str:
        """Return the problem of a repeated request, once per response; empty if nothing is new."""
        trouble, self._trouble = self._trouble, ""
        return trouble

    def may_produce(self, place: TopicPartition) -> bool:
        """True if the coordinator has the partition, so that batches of the transaction may be sent to it.

        After a failed request, such batches may still be sent, until the abort.
        """
        recovery_state = self.recovery_state
        return recovery_state.state in {State.OPEN, State.ABORT_ONLY} and place in recovery_state.partitions

    # --- goals

    def initialize(self) -> None:
        """Request a producer id, unless there is one. A call after a refusal tries again."""
        if not self._is_wanted:
            self._is_wanted = True
            self.failure = None

    def begin(self) -> None:
        """Open a transaction.

        Raises:
            InvalidArgumentError: the producer is not ready.
        """
        if not self.is_ready:
            raise self._out_of_order("begin a transaction")
        assert self._version is not None
        self._change(state=State.OPEN, version=self._version, outcome=None)

    def add_partitions(self, places: Iterable[TopicPartition]) -> None:
        """Add partitions to which batches will be sent. Partitions that are added already cost nothing.

        Raises:
            InvalidArgumentError: no transaction is open, or it can only be aborted.
        """
        new = set(places) - self.recovery_state.partitions
        if not new:
            return
        if self.recovery_state.state is not State.OPEN:
            raise self._out_of_order("add partitions")
        if self.is_implicit:
            self._change(is_known=True, partitions=self.recovery_state.partitions | new)
        else:
            self._new_partitions |= new

    def add_offsets(self, member: GroupMember, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
        """Add offsets of a group that are committed with the transaction.

        Raises:
            InvalidArgumentError: as `add_partitions`.
        """
        if self.recovery_state.state not in {State.OPEN, State.COMMITTING} or self.recovery_state.is_end_sent:
            raise self._out_of_order("commit offsets")
        if offsets:
            self._offsets.setdefault(member, {}).update(offsets)

    def has_offsets_of(self, member: GroupMember) -> bool:
        """True while offsets of a member are to be committed."""
        return member in self._offsets

    def batch_failed(self, error_code: int, message: str) -> None:
        """Note that a batch of the transaction failed permanently, so that it can only be aborted.

        Args:
            error_code: Kafka's error code; 0 if the batch expired.
            message: for people.
        """
        if self.recovery_state.state in {State.OPEN, State.ABORT_ONLY}:
            self._fail(TransactionFailure(effect_of_batch(error_code), error_code, message))

    def commit(self) -> None:
        """Commit, after every batch is acked. The added offsets are sent first.

        Raises:
            InvalidArgumentError: no transaction is open, or it can only be aborted.
        """
        if self.recovery_state.state is not State.OPEN:
            raise self._out_of_order("commit")
        self._change(state=State.COMMITTING)
        self._new_partitions.clear()  # no batch was sent to them
        self._maybe_end()

    def abort(self) -> None:
        """Abort, while no batch is in flight.

        Raises:
            InvalidArgumentError: no transaction is open, or it is being committed.
        """
        if self.recovery_state.state not in {State.OPEN, State.ABORT_ONLY}:
            raise self._out_of_order("abort")
        self._change(state=State.ABORTING)
        self._new_partitions.clear()
        self._offsets.clear()
        self._maybe_end()

    def _out_of_order(self, what: str) -> InvalidArgumentError:
        reason = f": {self.failure.message}" if self.failure is not None else ""
        return InvalidArgumentError(
            f"{self.transactional_id} cannot {what}, its state is {self.recovery_state.state.name}{reason}"
        )

    def _maybe_end(self) -> None:
        """End a transaction that no broker knows."""
        if not self.recovery_state.is_known and not self._offsets:
            self._ended(
                TransactionOutcome.COMMITTED
                if self.recovery_state.state is State.COMMITTING
                else TransactionOutcome.ABORTED
            )

    # --- requests

    def next_request(self, now_s: float) -> tuple[int | None, Request] | None:
        """Return the next request and its node (None for any broker); None if there is nothing to send.

        The driver saves `recovery_state` before it sends the request, and calls `answered` or `missed` afterwards.
        """
        if self._asked is not None or now_s < self._not_before_s or (request := self._next_request()) is None:
            return None
        coordinator = self._coordinator_of(request)
        if coordinator is not None and coordinator not in self._nodes:
            request, coordinator = FindCoordinator(coordinator), None
        self._asked = request
        if isinstance(request, (AddPartitions, AddOffsets, CommitOffsets)):
            self._change(is_known=True)
        elif isinstance(request, EndTransaction):
            self._change(is_end_sent=True)
        return None if coordinator is None else self._nodes[coordinator], request

    def _next_request(self) -> Request | None:
        state = self.recovery_state.state
        if state is State.FAILED or not self._is_wanted:
            return None
        if state is State.NEW or (state is State.READY and self.recovery_state.needs_epoch):
            return InitProducerId(self.producer, self._timeout_ms)
        if state is State.READY:
            return AskVersion() if self._version is None else None
        if state is State.OPEN and self._new_partitions:
            return AddPartitions(self.producer, tuple(sorted(self._new_partitions)))
        if state in {State.OPEN, State.COMMITTING} and self._offsets:
            return self._next_offsets_request(next(iter(self._offsets)))
        if state in {State.COMMITTING, State.ABORTING}:
            return EndTransaction(self.producer, state is State.COMMITTING, self.recovery_state.version)
        return None

    def _next_offsets_request(self, member: GroupMember) -> Request:
        if not self.is_implicit and member.group not in self.recovery_state.groups:
            return AddOffsets(self.producer, member.group)
        offsets = tuple(sorted(self._offsets[member].items()))
        return CommitOffsets(self.producer, member, offsets, self.recovery_state.version)

    def _coordinator_of(self, request: Request) -> CoordinatorKey | None:
        if isinstance(request, CommitOffsets):
            return CoordinatorKey(CoordinatorKind.GROUP, request.member.group)
        return None if isinstance(request, FindCoordinator) else self._coordinator

    # --- responses

    def answered(self, answer: TransactionResponse, now_s: float) -> None:
        """Process the response to the request in flight."""
        request = self._take_asked()
        codes = _codes(request, answer)
        codes = [code for code in codes if code not in {0, OPERATION_NOT_ATTEMPTED}] or codes
        worst = max(codes, key=lambda code: SEVERITY.index(effect_of(request, code)))
        self._remove_accepted(request, answer)
        found = effect_of(request, worst)
        if found is Effect.DONE:
            self._miss_count = 0
            self._apply_success(request, answer)
        elif found in {Effect.RETRY, Effect.FIND}:
            if self._miss_count >= PATIENCE_COUNT and worst != CONCURRENT_TRANSACTIONS:
                self._trouble = sentence(worst, answer.message)
            self._retry_later(
                request, worst, now_s, is_lost=found is Effect.FIND, is_unchanged=worst == CONCURRENT_TRANSACTIONS
            )
        else:
            self._refused(request, TransactionFailure(found, worst, sentence(worst, answer.message)))

    def missed(self, error_code: int, message: str, now_s: float, *, is_unsent: bool = False) -> None:
        """Note that the request in flight has no response.

        Args:
            error_code: Kafka's error code for the reason.
            message: for people.
            is_unsent: no broker can have received it.
        """
        request = self._take_asked()
        if error_code == UNSUPPORTED_VERSION:
            self._refused(request, TransactionFailure(Effect.FATAL, error_code, message))
        else:
            self._retry_later(request, error_code, now_s, is_lost=True, is_unchanged=is_unsent)

    def _take_asked(self) -> Request:
        assert self._asked is not None, "no request is in flight"
        asked, self._asked = self._asked, None
        return asked

    def _retry_later(
        self, request: Request, error_code: int, now_s: float, *, is_lost: bool, is_unchanged: bool
    ) -> None:
        """Retry the request after a pause, in the next round at the earliest.

        Args:
            is_unchanged: the coordinator certainly did nothing for the request. Kafka's coordinator reports this while
                a former transition is in progress. After other errors, it may have written the change
                (TransactionStateManager).
        """
        if isinstance(request, EndTransaction):
            self._is_end_open |= not is_unchanged
            self._change(is_end_sent=self._is_end_open)
        if is_lost and (coordinator := self._coordinator_of(request)) is not None:
            self._nodes.pop(coordinator, None)
            if coordinator == self._coordinator:
                self._version = None
        is_first = isinstance(request, AddPartitions) and not self.recovery_state.partitions
        if is_first and error_code == CONCURRENT_TRANSACTIONS:
            pause_s = min(FIRST_ADD_BACKOFF_S * 2**self._miss_count, FIRST_ADD_BACKOFF_MAX_S, self._backoff_s)
        else:
            pause_s = self._backoff_s * min(2**self._miss_count, BACKOFF_FACTOR_MAX)
        self._not_before_s = now_s + pause_s
        self._miss_count = min(self._miss_count + 1, BACKOFF_FACTOR_MAX)

    def _remove_accepted(self, request: Request, answer: TransactionResponse) -> None:
        """Remove the offsets that were accepted, so that they are not sent again, even if others were not."""
        if not isinstance(request, CommitOffsets):
            return
        pending = self._offsets.get(request.member, {})
        for place, offset in request.offsets:
            if answer.error_codes.get(place) == 0 and pending.get(place) == offset:
                del pending[place]
        if not pending:
            self._offsets.pop(request.member, None)

    def _apply_success(self, request: Request, answer: TransactionResponse) -> None:
        if isinstance(request, FindCoordinator):
            self._nodes[request.coordinator] = answer.node_id
        elif isinstance(request, AskVersion):
            self._version = answer.version
        elif isinstance(request, InitProducerId):
            self._initialized(answer)
        elif isinstance(request, AddPartitions):
            self._new_partitions -= set(request.places)
            self._change(is_confirmed=True, partitions=self.recovery_state.partitions | set(request.places))
        elif isinstance(request, AddOffsets):
            self._change(is_confirmed=True, groups=self.recovery_state.groups | {request.group})
        elif isinstance(request, EndTransaction):
            self._take_epoch(answer)
            self._ended(TransactionOutcome.COMMITTED if request.is_commit else TransactionOutcome.ABORTED)

    def _initialized(self, answer: TransactionResponse) -> None:
        self.failure = None
        self.recovery_state = RecoveryState(
            answer.producer_id, answer.producer_epoch, State.READY, outcome=self.outcome
        )

    def _take_epoch(self, answer: TransactionResponse) -> None:
        """Take the producer id and epoch of the next transaction, which the end returns from version 2 on."""
        if answer.producer_id >= 0 and answer.producer_epoch >= 0:
            self._change(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)
        elif self.is_implicit:
            self._change(needs_epoch=True)

    def _ended(self, outcome: TransactionOutcome) -> None:
        recovery_state = self.recovery_state
        self.failure = None
        self._is_end_open = False
        self.recovery_state = RecoveryState(
            recovery_state.producer_id,
            recovery_state.producer_epoch,
            State.READY,
            needs_epoch=recovery_state.needs_epoch,
            outcome=outcome,
        )

    # --- failures

    def _refused(self, request: Request, failure: TransactionFailure) -> None:
        """Handle a request that failed permanently, and with it the transaction, or the producer."""
        is_mapping_lost = failure.error_code in {UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_ID_MAPPING}
        if isinstance(request, EndTransaction) and self._is_empty and failure.error_code == INVALID_TXN_STATE:
            self._ended(TransactionOutcome.COMMITTED if request.is_commit else TransactionOutcome.ABORTED)
        elif failure.effect in {Effect.FENCED, Effect.FATAL}:
            self._fail(failure)
        elif self.recovery_state.state in {State.NEW, State.READY}:
            self._is_wanted = False
            self.failure = failure
        elif isinstance(request, EndTransaction):
            self._end_refused(request, failure, is_mapping_lost=is_mapping_lost)
        else:
            if is_mapping_lost:
                self._change(is_known=False)  # the coordinator has forgotten the producer, so there is nothing to end
            self._fail(failure)

    @property
    def _is_empty(self) -> bool:
        """True if the coordinator has confirmed nothing of the transaction, so it may find nothing to end."""
        return not self.is_implicit and not self.recovery_state.is_confirmed

    def _end_refused(self, request: EndTransaction, failure: TransactionFailure, *, is_mapping_lost: bool) -> None:
        """Handle a refused end. A commit that may have arrived earlier is never considered an abort."""
        if request.is_commit and self._is_end_open:
            self._fail(failure._replace(effect=Effect.FATAL))
        elif request.is_commit:
            self._change(is_end_sent=False, is_known=not is_mapping_lost)
            self._fail(failure)
        elif is_mapping_lost:
            self._change(needs_epoch=True)
            self._ended(TransactionOutcome.ABORTED)
        else:
            self._fail(failure._replace(effect=Effect.FATAL))

    def _fail(self, failure: TransactionFailure) -> None:
        if failure.effect in {Effect.FENCED, Effect.FATAL}:
            self._fail_permanently(failure)
            return
        recovery_state = self.recovery_state
        is_raised = self.is_implicit and recovery_state.is_known  # by the end of every transaction, from version 2 on
        if failure.effect is Effect.BUMP and not is_raised:
            self._change(needs_epoch=True)
        if recovery_state.state is not State.ABORTING:
            self._change(state=State.ABORT_ONLY)
            self.failure = self.failure or failure
        self._new_partitions.clear()
        self._offsets.clear()

    def _fail_permanently(self, failure: TransactionFailure) -> None:
        """Fail the producer. An open transaction is never committed then, unless its commit may have arrived."""
        state, outcome = self.recovery_state.state, self.outcome
        if state is State.COMMITTING and self._is_end_open:
            outcome = TransactionOutcome.UNKNOWN
        elif state not in {State.NEW, State.READY}:
            outcome = TransactionOutcome.ABORTED
        self._change(state=State.FAILED, outcome=outcome)
        self.failure = failure

    def _change(self, **changed: object) -> None:
        self.recovery_state = self.recovery_state._replace(**changed)  # type: ignore[arg-type]


def _codes(request: Request, answer: TransactionResponse) -> list[int]:
    """Return all error codes of a response. A partition that the broker omitted is retried."""
    codes = [answer.error_code or _incomplete_error(request, answer)]
    if answer.error_code == 0 and isinstance(request, (AddPartitions, CommitOffsets)):
        places = request.places if isinstance(request, AddPartitions) else [place for place, _ in request.offsets]
        codes += [answer.error_codes.get(place, LEFT_OUT) for place in places]
    return codes


def _incomplete_error(request: Request, answer: TransactionResponse) -> int:
    """Return the error of a response that reports success without its result; 0 for any other."""
    if isinstance(request, FindCoordinator) and answer.node_id < 0:
        return COORDINATOR_NOT_AVAILABLE
    is_nameless = answer.producer_id < 0 or answer.producer_epoch < 0
    return UNKNOWN_SERVER_ERROR if isinstance(request, InitProducerId) and is_nameless else 0


LEFT_OUT = 7
"""The error of a partition that a response omits: REQUEST_TIMED_OUT, which is retried."""
