# SPDX-License-Identifier: Apache-2.0
"""A transaction of an arena, in the process that began it: its coordinator (docs/decisions/0070).

::

    begin ──> sends of any process ──> commit: no more records ──> the sender delivers them ──> the sink commits
                                  └──> abort:  no more records ──> the sender discards them, the sink aborts

Rules: an arena has one transaction at a time, and one coordinator. The coordinator keeps its role until it has read the
outcome, so the next transaction cannot overwrite it. A commit waits for the outcome. An abort takes effect at once and
does not wait for the sender. The next begin waits for it.

Deaths: if the coordinator dies, the sender, or the next process that begins, aborts its open transaction. A commit
continues without its coordinator.

A step that waits is a generator, which yields where it must wait. A thread or an asyncio task (`shmaccum.aio`) waits
there.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, final

from shmaccum.arena import Arena
from shmaccum.arena.removal import RemovalWatch, check_takes_records, removed_error
from shmaccum.arena.reports import read_entries, reason_of_failed_transaction
from shmaccum.arena.results import FENCED_STATE, TransactionReason
from shmaccum.arena.sender_state import sender_state
from shmaccum.common import clock, cooperative
from shmaccum.common.units import parse_timeout_s
from shmaccum.exceptions import (
    ArenaBusyError,
    NoTransactionError,
    ProducerFencedError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
)
from shmaccum.producer.group_offsets import GroupOffsets

if TYPE_CHECKING:
    from typing_extensions import Self

    from shmaccum import _native

COMMIT_TIMEOUT_S = 120.0
"""The default time that a commit waits for its outcome."""
CHECK_NS = 10_000_000
"""The polling interval of a transaction. At its end, the sender wakes waiting processes, unless it dies first."""
Timed = Callable[[str], AbstractContextManager[None]]
Waits = Generator[None, None, None]
"""A step of a transaction. It yields where it waits."""

ABORTED_STATES = ("abort only", "aborting")

_coordinated: weakref.WeakKeyDictionary[Arena, Transaction] = weakref.WeakKeyDictionary()
"""The transactions that this process coordinates. The core knows one coordinator for each handle of an arena."""


def run_step(native: _native.Arena, waits: Waits) -> None:
    """Runs a step in this thread.

    Args:
        native: the native handle of the arena.
        waits: the step.
    """
    with contextlib.closing(waits):
        seen = native.transaction_word  # read before the check, so a change after the check ends the wait
        for _ in waits:
            seen = cooperative.wait_transaction(native, seen, CHECK_NS)


def unfence_waits(arena: Arena, wake: Callable[[], object], timeout_s: float) -> Waits:
    """The step of a process that takes the transactional_id back. It waits for the end of the last transaction.

    Args:
        arena: attached; it has a transactional_id.
        wake: wakes the sender.
        timeout_s: the longest wait for the end of the last transaction.

    Raises:
        ArenaBusyError: this process must abort its transaction first, or the last one did not end in time.
        ArenaRemovedError: the arena was removed.
    """
    deadline_s = clock.monotonic() + timeout_s
    while not arena.native.unfence_transactions():
        check_takes_records(arena)
        if arena in _coordinated:
            raise ArenaBusyError(
                f"the transactional_id of {arena.name} cannot be taken back while the transaction of this process is "
                "open: abort that one first"
            )
        if clock.monotonic() >= deadline_s:
            raise ArenaBusyError(
                f"the last transaction of {arena.name} is not over, so its transactional_id cannot be taken back. "
                f"{sender_state(arena)}"
            )
        wake()
        yield


@final
class Transaction:
    """A transaction of an arena. `Producer.transaction` makes and begins it.

    ::

        with producer.transaction() as transaction:
            ...

    The end of the block commits; an exception in the block aborts.

    Args:
        arena: attached.
        wake: wakes the sender.
        timed: measures a step, given its metric name.
        send_offsets: the producer's method.

    Attributes:
        number: the number of the transaction in the arena, or 0 before it begins. Workers join by this number
            (`Producer.join`).
    """

    def __init__(
        self,
        arena: Arena,
        wake: Callable[[], object],
        timed: Timed,
        send_offsets: Callable[[GroupOffsets, object], None],
    ) -> None:
        self._arena = arena
        self._native = arena.native
        self._wake = wake
        self._timed = timed
        self._send_offsets = send_offsets
        self._pid = os.getpid()
        self.number = 0
        self._begun_ns = 0
        self._is_released = False

    def begin(self, timeout_s: float) -> None:
        """Begins the transaction as soon as the previous one is over.

        Args:
            timeout_s: the longest wait for the end of the previous one.

        Raises:
            ArenaBusyError: another transaction is open, or the previous one did not end in time.
            ArenaRemovedError: the arena was removed.
            InvalidArgumentError: the arena has no transactional_id.
            ProducerFencedError: another producer has the transactional_id.
        """
        run_step(self._native, self.begin_waits(timeout_s))

    def begin_waits(self, timeout_s: float) -> Waits:
        """The step of `begin`."""
        if self._native.transaction_recovery_state & FENCED_STATE:
            raise ProducerFencedError(
                f"another producer has the transactional_id {self._arena.transactional_id!r} of {self._arena.name}, or "
                "the brokers aborted its last transaction after a timeout: call init_transactions() to take the id back"
            )
        if _coordinated.setdefault(self._arena, self) is not self:
            raise ArenaBusyError(
                f"this process has already begun a transaction of {self._arena.name}: commit or abort that one first"
            )
        try:
            with self._timed("txn-begin"):
                yield from self._begin(clock.monotonic() + timeout_s)
        except BaseException:
            self._leave()
            raise

    def _begin(self, deadline_s: float) -> Waits:
        while (number := self._native.begin_transaction()) is None:
            check_takes_records(self._arena)
            if clock.monotonic() >= deadline_s:
                raise ArenaBusyError(
                    f"the last transaction of {self._arena.name} is not over, so none can begin. "
                    f"{sender_state(self._arena)}"
                )
            self._wake()
            yield
        self.number = number
        self._begun_ns = self._native.now_ns()

    def _leave(self) -> None:
        """Releases the role of the coordinator."""
        if _coordinated.get(self._arena) is self:
            del _coordinated[self._arena]
            if not self._arena.closed:
                self._native.leave_transaction()

    def send_offsets(self, offsets: GroupOffsets, group_metadata: object) -> None:
        """Commits offsets of a consumer group with the transaction, as `Producer.send_offsets_to_transaction`.

        Args:
            offsets: the next offset of each partition.
            group_metadata: a group id, or the group metadata of a consumer.

        Raises:
            Exception: as `Producer.send_offsets_to_transaction`.
        """
        self.check_is_ours()
        self._send_offsets(offsets, group_metadata)

    # --- end

    @property
    def is_over(self) -> bool:
        """True if this process has read the outcome, or has aborted the transaction."""
        return _coordinated.get(self._arena) is not self

    def commit(self, timeout: float | None = COMMIT_TIMEOUT_S) -> None:
        """Commits. The transaction accepts no more records, and its records become visible in the sink.

        Args:
            timeout: seconds, or None for no limit.

        Raises:
            TransactionEndedError: the transaction was aborted, or must be (`abort`). The message has the reason.
            ProducerFencedError: the same, because another producer has the transactional_id.
            TransactionOutcomeUnknownError: the outcome was not known in time. The commit continues. Call `commit` again
                to wait for the outcome. If the brokers do not report the outcome, the message states that.
            NoTransactionError: the transaction is over, or another process began it.
        """
        run_step(self._native, self.commit_waits(timeout))

    def commit_waits(self, timeout: float | None) -> Waits:
        """The step of `commit`."""
        timeout_s = parse_timeout_s(timeout)
        self.check_is_ours()
        with self._timed("txn-commit"):
            try:
                self._native.commit_transaction(self.number)
            except TransactionEndedError:
                self._is_committed()  # returns True after an earlier call, and raises otherwise
            if not self._is_committed():
                self._wake()
                yield from self._outcome(clock.monotonic() + timeout_s)
            self._leave()

    def _outcome(self, deadline_s: float) -> Waits:
        """Waits until the transaction is committed."""
        watch = RemovalWatch(self._arena)
        while not self._is_committed():
            if watch.is_abandoned():
                raise TransactionOutcomeUnknownError(f"{self._name}: {removed_error(self._arena)}")
            if clock.monotonic() >= deadline_s:
                raise TransactionOutcomeUnknownError(
                    f"{self._name} is being committed, and its outcome is not known in time: call commit_transaction() "
                    f"again. {sender_state(self._arena)}"
                )
            yield

    def _is_committed(self) -> bool:
        number, state, why = self._native.transaction
        if number != self.number:
            self._leave()
            raise TransactionOutcomeUnknownError(f"{self._name} is over, and another process has begun the next one")
        if state in ABORTED_STATES or why:
            self._raise_reason(state, why)
        return state == "none"

    def _raise_reason(self, state: str, why: str) -> NoReturn:
        advice = "; abort it" if state == "abort only" else ""
        reason = reason_of_failed_transaction(read_entries(self._native), self._begun_ns)
        explanation = f"{why} ({reason})" if reason else why
        code = self._native.transaction_why
        if code == TransactionReason.UNKNOWN:
            self._leave()
            raise TransactionOutcomeUnknownError(
                f"{self._name} is over, and may be committed or not: {explanation}"
            ) from None
        if code == TransactionReason.FENCED:
            raise ProducerFencedError(
                f"{self._name} is not committed: {why}{advice}; init_transactions() takes the id back"
            ) from None
        raise TransactionEndedError(f"{self._name} is not committed: {explanation}{advice}") from None

    def abort(self) -> None:
        """Aborts. The transaction accepts no more records, and its records are discarded.

        The outcome is certain when this method returns. The sender discards the records as soon as it runs. Aborting an
        aborted transaction does nothing.

        Raises:
            TransactionEndedError: its commit has begun.
            NoTransactionError: the transaction is over, or another process began it.
        """
        self.check_is_ours()
        with self._timed("txn-abort"):
            try:
                self._native.abort_transaction(self.number)
            except TransactionEndedError:
                self._check_is_aborted()
            self._wake()
            self._leave()

    def _check_is_aborted(self) -> None:
        number, state, why = self._native.transaction
        if number == self.number and not why:
            raise TransactionEndedError(
                f"{self._name} cannot be aborted: its commit has begun ({state}), and commit_transaction() returns its "
                "outcome"
            ) from None

    def release(self) -> None:
        """Called when the producer is closed. Aborts an open transaction. A commit continues."""
        if self.is_over or os.getpid() != self._pid:
            return
        self._is_released = True
        try:
            self.abort()
        except TransactionEndedError:
            self._leave()

    def check_block(self) -> None:
        """Checks a transaction that was over when its block ended without an error.

        Raises:
            TransactionEndedError: its producer was closed inside the block.
        """
        if self._is_released and os.getpid() == self._pid:
            raise TransactionEndedError(
                f"{self._name} was aborted by the close of its producer: end the block before you close the producer"
            )

    def end_block(self, error: BaseException | None) -> None:
        """Called when the block raises. Aborts an open transaction.

        If a commit in the block did not learn its outcome, the transaction remains, so `commit` can be called again.
        """
        if isinstance(error, TransactionOutcomeUnknownError) and not self.is_over:
            with contextlib.suppress(TransactionEndedError):
                self.abort()
        else:
            self.release()

    def check_is_ours(self) -> None:
        """Rejects a transaction that this process cannot end.

        Raises:
            NoTransactionError: the transaction is over, or another process began it.
        """
        if self.is_over or os.getpid() != self._pid:
            raise NoTransactionError(
                f"{self._name} is over in this process, or another process began it: the process that begins a "
                "transaction ends it"
            )

    @property
    def _name(self) -> str:
        return f"transaction {self.number} of {self._arena.name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.end_block(error)
            return
        if self.is_over:
            self.check_block()
            return
        try:
            self.commit()
        except (TransactionEndedError, ProducerFencedError):
            self.release()
            raise

    def __repr__(self) -> str:
        return f"<Transaction {self.number} of {self._arena.name!r}, {'over' if self.is_over else 'begun'}>"


os.register_at_fork(after_in_child=_coordinated.clear)
