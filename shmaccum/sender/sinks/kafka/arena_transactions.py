# SPDX-License-Identifier: Apache-2.0
"""The transactions of an arena at Kafka's coordinator.

::

    plan ── admit ──> begin, AddPartitions ──> the partitions that may get batches now
    poll ── step ──> driver ──> coordinator
              └──> a failure ──> host.fail: the arena's transaction can only be aborted
    end_transaction ── end ──> EndTxn ──> the outcome, and producer id and epoch of the next transaction
    deliver ── add_offsets ──> TxnOffsetCommit, for records of __consumer_offsets
    new_producer_id ── names ──> InitProducerId, if there is no id, or an abort needs the next epoch

Rules
    The arena decides how a transaction ends, as far as the coordinator allows. A transaction that no broker knows ends
    at once. An abort always requests the next epoch, because the discarded batches had sequences (KIP-360). After a
    failure that the next transaction may avoid, only this transaction is aborted. After a fatal failure, a new producer
    id is requested, as after a restart. A fenced arena begins nothing until a process takes its transactional id back.

Deaths
    The next sender continues from the recovery state in the arena (`transaction.stored_state`) and the arena's own
    state of the transaction (native/arena/transaction.h).

    ===========================================  =======================================================================
    state of the arena at the death              the next sender
    ===========================================  =======================================================================
    OPEN, COMMITTING                             adds the partitions again, delivers again what has no result
    DECIDED, and the end has no response         sends the same end again: the coordinator responds as the first time
    DECIDED or ABORTING, recovery state READY    sends nothing: the coordinator has responded already
    ABORTING, any other recovery state           aborts
    ===========================================  =======================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from shmaccum import _native
from shmaccum.arena.results import TransactionReason
from shmaccum.common import clock
from shmaccum.common.format.group_offsets import OFFSETS_TOPIC, GroupMember, unpack_offsets
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.sender.sinks.kafka.errors import INVALID_TOPIC_EXCEPTION
from shmaccum.sender.sinks.kafka.transaction.driver import TransactionDriver
from shmaccum.sender.sinks.kafka.transaction.error_effects import (
    PRODUCER_FENCED,
    UNKNOWN_SERVER_ERROR,
    Effect,
    sentence,
)
from shmaccum.sender.sinks.kafka.transaction.protocol import (
    RecoveryState,
    State,
    TransactionFailure,
    TransactionOutcome,
    TransactionProtocol,
)
from shmaccum.sender.sinks.kafka.transaction.stored_state import NUMBER_MASK, StoredState, pack, unpack
from shmaccum.sender.sinks.sink import Ack, Ended, HostTransactions, Verdict, WireBatch

ASK_AGAIN_S = 1.0
"""The pause after a producer id was refused."""
UNDECIDED = frozenset({"open", "committing", "decided"})
ABORTED = frozenset({"abort only", "aborting"})

WHYS = {
    TransactionOutcome.COMMITTED: TransactionReason.NOT,
    TransactionOutcome.ABORTED: TransactionReason.REFUSED,
    TransactionOutcome.UNKNOWN: TransactionReason.UNKNOWN,
    None: TransactionReason.UNKNOWN,
}


@final
class KafkaTransactions:
    """The transactional producer of an arena.

    Args:
        host: the transactions of the arena.
        take_part: called with the protocol, which then uses the connections of the sink.
        report: takes sentences for people.
        retry_backoff_ms: the pause before a request is retried.
    """

    def __init__(
        self,
        host: HostTransactions,
        take_part: Callable[[TransactionProtocol, Callable[[RecoveryState], object]], TransactionDriver],
        report: Callable[[str], object],
        retry_backoff_ms: int,
    ) -> None:
        self._host = host
        self._take_part = take_part
        self._report = report
        self._backoff_ms = retry_backoff_ms
        self._reported: tuple[TransactionFailure, int] | None = None
        self._ask_at_s = 0.0
        self._offsets: list[tuple[WireBatch, list[GroupMember]]] = []
        self._acks: list[Ack] = []
        producer_id, epoch, _ = host.producer_identity
        stored = unpack(host.recovery_state, producer_id, epoch, host.number)
        self._number = stored.number
        """The number of the transaction that the recovery state describes, truncated to its lowest bits."""
        self._renew(stored.recovery_state)
        if stored.recovery_state.state is State.FAILED:
            code = PRODUCER_FENCED if stored.is_fenced else UNKNOWN_SERVER_ERROR
            self._protocol.failure = TransactionFailure(
                Effect.FENCED if stored.is_fenced else Effect.FATAL, code, sentence(code)
            )

    def _renew(self, recovery_state: RecoveryState) -> None:
        host = self._host
        self._protocol = TransactionProtocol(
            host.transactional_id, host.timeout_ms, recovery_state, retry_backoff_ms=self._backoff_ms
        )
        self._driver = self._take_part(self._protocol, self._save)

    def _save(self, recovery_state: RecoveryState) -> None:
        self._host.save_recovery_state(pack(StoredState(recovery_state, self._number, self._is_fenced)))

    @property
    def _is_fenced(self) -> bool:
        recovery_state, failure = self._protocol.recovery_state, self._protocol.failure
        return recovery_state.state is State.FAILED and failure is not None and failure.effect is Effect.FENCED

    @property
    def _is_begun(self) -> bool:
        """True if the recovery state describes the arena's newest transaction."""
        return self._number == self._host.number & NUMBER_MASK

    # --- producer id and epoch

    @property
    def may_be_elsewhere(self) -> bool:
        """True if the newest transaction may have begun in the sink of a former sender."""
        return self._is_begun or self._host.recovery_state == 0

    def forget(self) -> None:
        """Start again in another cluster than the one that gave the producer id. No transaction is open."""
        self._number = 0
        self._renew(RecoveryState())

    @property
    def has_current_id(self) -> bool:
        """True while the arena has the producer id and epoch that the coordinator knows."""
        recovery_state = self._protocol.recovery_state
        names = recovery_state.producer_id, recovery_state.producer_epoch
        is_usable = recovery_state.state not in {State.NEW, State.FAILED} and not recovery_state.needs_epoch
        return is_usable and names == self._host.producer_identity[:2]

    def names(self) -> tuple[int, int] | None:
        """Return producer id and epoch of the next transaction; None while they are requested."""
        self._ask_again()
        if not self._protocol.is_ready:
            return None
        self._driver.save()
        return self._protocol.recovery_state.producer_id, self._protocol.recovery_state.producer_epoch

    def _ask_again(self) -> None:
        """Request producer id and epoch if there are none; after a refusal, once the pause has passed."""
        failure, now_s = self._protocol.failure, clock.monotonic()
        if self._protocol.recovery_state.state not in {State.NEW, State.READY, State.FAILED}:
            return  # a transaction is being ended, and the request follows it
        if failure is not None:
            if now_s < self._ask_at_s:
                return
            self._ask_at_s = now_s + ASK_AGAIN_S
            self._report(self._sentence(failure))
        is_over = not self._is_begun or self._host.state == "none"
        if self._protocol.recovery_state.state is State.FAILED and is_over and not self._is_fenced:
            self._renew(RecoveryState())
        self._protocol.initialize()

    # --- batches

    def admit(self, places: Sequence[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that may get batches of the transaction now. The others are added to it."""
        protocol = self._protocol
        if not self._is_begun:
            if not protocol.is_ready or not self.has_current_id:
                return set()
            self._number = self._host.number & NUMBER_MASK
            protocol.begin()
        if protocol.recovery_state.state is State.OPEN:
            protocol.add_partitions(place for place in places if place.topic != OFFSETS_TOPIC)
            self._driver.save()
        return {place for place in places if self._may_send_to(place)}

    def _may_send_to(self, place: TopicPartition) -> bool:
        if place.topic == OFFSETS_TOPIC:
            return self._protocol.recovery_state.state is State.OPEN
        return self._protocol.may_produce(place)

    def batch_failed(self, error_code: int, message: str) -> None:
        """Note that a batch of the transaction failed permanently.

        Args:
            error_code: Kafka's error code.
            message: for people.
        """
        self._protocol.batch_failed(error_code, message)

    # --- offsets of groups

    def add_offsets(self, wires: Sequence[WireBatch]) -> None:
        """Commit the offsets in batches of admitted records of `OFFSETS_TOPIC`. `take_acks` returns their acks."""
        for wire in wires:
            try:
                records = _native.decode_batch(b"".join(wire.buffers))
                commits = [unpack_offsets(value) for _, _, _, value, _ in records]
            except ValueError as error:
                self._refuse(wire, INVALID_TOPIC_EXCEPTION, str(error))
                continue
            for member, offsets in commits:
                self._protocol.add_offsets(member, offsets)
            self._offsets.append((wire, [member for member, _ in commits]))

    def _refuse(self, wire: WireBatch, error_code: int, message: str) -> None:
        self._acks.append(Ack(wire, Verdict.REFUSED, error_code=error_code, message=message))
        self.batch_failed(error_code, message)

    @property
    def is_awaiting(self) -> bool:
        """True while offsets have no response."""
        return bool(self._offsets)

    def take_acks(self) -> list[Ack]:
        """Return the acks of batches whose offsets have a response."""
        offsets, self._offsets = self._offsets, []
        for wire, members in offsets:
            failure = self._protocol.failure
            if failure is not None:
                self._refuse(wire, failure.error_code, f"the offsets of a group: {failure.message}")
            elif any(map(self._protocol.has_offsets_of, members)):
                self._offsets.append((wire, members))
            else:
                self._acks.append(Ack(wire, Verdict.DELIVERED))
        acks, self._acks = self._acks, []
        return acks

    # --- requests

    def step(self) -> None:
        """Process a response that has arrived, and send the next request if possible."""
        if self._offsets and self._host.state in ABORTED:
            self.batch_failed(0, "the transaction is aborted")
        if self._is_fenced and self._host.recovery_state == 0:  # a process takes the id back
            self._renew(RecoveryState())
            self._protocol.initialize()
        self._driver.step()
        if trouble := self._protocol.take_trouble():
            self._report(f"the transactional_id {self._host.transactional_id!r}: {trouble}")
        self._report_failure()

    def _report_failure(self) -> None:
        """Report to the arena, once, that its transaction cannot be committed."""
        failure, number = self._protocol.failure, self._host.number
        if failure is None or (failure, number) == self._reported or self._host.state not in UNDECIDED:
            return
        self._reported = failure, number
        self._host.fail(self._reason_of(failure), self._sentence(failure))

    def _reason_of(self, failure: TransactionFailure) -> TransactionReason:
        return TransactionReason.FENCED if failure.effect is Effect.FENCED else TransactionReason.REFUSED

    def _sentence(self, failure: TransactionFailure) -> str:
        return f"the transactional_id {self._host.transactional_id!r}: {failure.message}"

    # --- end

    def end(self, *, is_commit: bool) -> Ended | None:
        """Commit or abort the transaction. Return None while that is in progress."""
        protocol = self._protocol
        if self._is_begun:
            if protocol.recovery_state.state is State.OPEN and is_commit:
                protocol.commit()
            elif protocol.recovery_state.state is State.OPEN:
                protocol.batch_failed(0, "the transaction is aborted")
            if protocol.recovery_state.state is State.ABORT_ONLY:
                protocol.abort()
            self.step()
        if self._is_begun and protocol.recovery_state.state in {State.COMMITTING, State.ABORTING}:
            return None
        self._driver.save()
        return self._ended(is_commit=is_commit)

    def _ended(self, *, is_commit: bool) -> Ended:
        """Return the end of the transaction, with the producer id and epoch of the next one. They are those of the
        arena, unless the coordinator has assigned others.
        """
        recovery_state = self._protocol.recovery_state
        why = self._why_not_committed() if is_commit else TransactionReason.NOT
        if recovery_state.state is State.READY:
            return Ended(recovery_state.producer_id, recovery_state.producer_epoch, why)
        return Ended(*self._host.producer_identity[:2], why)

    def _why_not_committed(self) -> TransactionReason:
        protocol = self._protocol
        if protocol.recovery_state.state is State.FAILED and protocol.outcome is not TransactionOutcome.UNKNOWN:
            assert protocol.failure is not None
            return self._reason_of(protocol.failure)
        return WHYS[protocol.outcome] if self._is_begun else TransactionReason.NOT
