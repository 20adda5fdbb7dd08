# SPDX-License-Identifier: Apache-2.0
"""Ends the arena's transaction in the sender's rounds (native/sender/ending.c has the procedure).

::

    half.next_transaction_task ──> None: nothing to do, or batches are still in flight
                             ──> commit, abort ──> sink.end_transaction ──> producer id and epoch of the next one
                                                                        ──> half.end_transaction: the outcome is set

A durable arena is forced to disk before the sink gets a decision to commit, and again before the sink gets a batch of
the next transaction. A crash of the host resets an arena to what is on disk. Without the first sync, the next boot
could abort a transaction that the sink has committed in part. Without the second, the next boot would find the former
transaction, and commit it again. This commit would include the batches of the next transaction that the sink has, or it
would have an older epoch than the sink.

After an abort, the sink lacks the sequences of the discarded batches. So every partition starts over in the next epoch,
as in Kafka's producer.

Deaths: a sender that dies anywhere here leaves the transaction as it is. The next sender ends it again. The sink then
ends what is still open, and an epoch that is raised twice does no harm.
"""

from __future__ import annotations

import functools

from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.duties.duty import Duty, Shared
from shmaccum.sender.host import Host
from shmaccum.sender.metrics import transaction_times
from shmaccum.sender.sinks.sink import Sink, check_is_same_sink

OPEN_CHECK_NS = 500 * NS_PER_MS
"""The interval of checks of an open transaction, whose coordinator may have died."""
ENDING_CHECK_NS = 100 * NS_PER_MS
"""The interval of calls to a sink that could not end a transaction."""
CHECK_INTERVALS_NS = {
    "none": NEVER_NS,
    "open": OPEN_CHECK_NS,
    "abort only": OPEN_CHECK_NS,
}
ENDING_STATES = ("committing", "decided", "aborting")
"""The states of a transaction that is being committed or aborted."""


class TransactionEnder(Duty):
    """Checks the arena's transaction in each round, and ends it together with the sink."""

    due_ns = 0
    """The time of the next check."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._half = shared.half
        self._native = shared.native
        self._sink = shared.sink
        self._identity = shared.identity
        self._arena = shared.host.arena
        self._is_durable = self._arena.durability != "process"
        self._forced_number = 0
        self._has_ended = True  # a former sender may have ended a transaction before it died
        self._timeout_ns = self._arena.transaction_timeout_ms * NS_PER_MS
        self._is_under_way = False
        self._seen: tuple[int, str, str] | None = None

    @property
    def is_requested(self) -> bool:
        """True if a process has changed the transaction since the last check, or `expect` was called."""
        return self._native.transaction != self._seen

    @property
    def is_idle(self) -> bool:
        """False while the sink commits or aborts. Its own I/O reports the end."""
        return not self._is_under_way

    def expect(self) -> None:
        self._seen = None

    def metrics(self) -> dict[str, float]:
        return transaction_times(self._native.counters())

    def run(self, now_ns: int) -> None:
        self._shared.trouble.ask(functools.partial(self._check, now_ns), None)

    def _check(self, now_ns: int) -> None:
        """Continue the end of a transaction, as far as the sink allows.

        An open transaction of a removed arena is aborted, because no process could end it later.
        """
        is_removed = self._native.closing != "not"
        self._seen = self._native.transaction
        task = self._half.next_transaction_task(0 if is_removed else self._timeout_ns)
        state = self._native.transaction[1]
        self.due_ns = min(now_ns + CHECK_INTERVALS_NS.get(state, ENDING_CHECK_NS), NEVER_NS)
        self._is_under_way = task is not None and not self._end(*task)
        if self._has_ended and self._is_durable:
            self._arena.sync()
        self._has_ended = False

    def _end(self, is_commit: bool, number: int) -> bool:
        """Return False while the sink has not ended it."""
        if is_commit and number != self._forced_number and self._is_durable:
            self._arena.sync()
            self._forced_number = number
        producer_id, epoch, _ = self._native.producer_identity
        assert self._sink.transactions is not None
        ended = self._sink.transactions.end_transaction(producer_id, epoch, is_commit=is_commit)
        if ended is None:
            return False
        self._identity.renew(ended.producer_id, ended.producer_epoch)
        self._half.end_transaction(number, ended.why)
        self._has_ended = True
        self._shared.results_waker.wake()
        return True


def check_transactions(host: Host, sink: Sink) -> None:
    """Check that the sink and the options fit an arena with transactions.

    Args:
        host: of the arena.
        sink: open.

    Raises:
        InvalidArgumentError: the sink takes no transactions, or an option contradicts them.
        OtherSinkError: another sink has the open transaction.
    """
    if host.transactions is None:
        return
    arena, options = host.arena, host.options
    if sink.transactions is None:
        raise InvalidArgumentError(
            f"{arena.name} has the transactional_id {host.transactions.transactional_id!r}, and the sink "
            f"{sink.name or type(sink).__name__} takes no transactions: deliver to kafka:HOST:PORT or log:DIR, or "
            "create an arena without a transactional_id"
        )
    for name, is_wrong, advice in (
        ("overflow", options.overflow is not None, "a spilled batch would outlive its transaction: leave it out"),
        ("dead_letter", options.dead_letter is not None, "a record that fails aborts its transaction: leave it out"),
        ("enable_idempotence", not options.enable_idempotence, "transactions need it: leave it at true"),
    ):
        if is_wrong:
            raise InvalidArgumentError(f"{name} does not fit {arena.name}, which has a transactional_id: {advice}")
    if any(sink.identity):  # otherwise the sink learns its identity later, and checks it itself
        check_is_same_sink(host.transactions, sink.identity, arena.name)
