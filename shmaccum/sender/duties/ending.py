# SPDX-License-Identifier: Apache-2.0
"""The end of an arena's transaction, as the sender's rounds see it (native/sender/ending.c has the procedure).

::

    half.next_transaction_task ──> None: nothing to do, or batches are still on their way
                             ──> commit, abort ──> sink.end_transaction ──> the names of the next transaction
                                                                        ──> half.end_transaction: the outcome is known

A durable arena is forced to disk before the sink hears of a decision to commit, and again before the sink gets a batch
of the next transaction. A crash of the host takes an arena back to what is on disk. Without the first, the next boot
could abort what the sink has committed in part. Without the second, it would commit a former transaction once more, and
with it the batches of the next one that are in the sink; or its epoch would be one that the sink has left behind.

After an abort the sink lacks sequences of batches that were thrown away. So every partition starts over in the next
epoch, as Kafka's producer does.

Deaths: a sender that dies anywhere here leaves the transaction as it is. The next one ends it again: the sink ends what
is still open there, and an epoch that is raised twice does no harm.
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

OPEN_LOOK_NS = 500 * NS_PER_MS
"""The time between two looks at an open transaction: its coordinator may have died."""
ENDING_LOOK_NS = 100 * NS_PER_MS
"""The time after which a sink is asked again that could not end a transaction."""
LOOKS_NS = {
    "none": NEVER_NS,
    "open": OPEN_LOOK_NS,
    "abort only": OPEN_LOOK_NS,
}
ENDING_STATES = ("committing", "decided", "aborting")
"""The states of a transaction that is being committed or aborted."""


class Ending(Duty):
    """Looks at the transaction of an arena that has some in each round, and ends it together with the sink."""

    due_ns = 0
    """When the transaction is to be looked at again."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._half = shared.half
        self._native = shared.native
        self._sink = shared.sink
        self._identity = shared.identity
        self._arena = shared.host.arena
        self._is_durable = self._arena.durability != "process"
        self._forced_number = 0
        self._has_ended = True  # a former sender may have ended a transaction, and died
        self._timeout_ns = self._arena.transaction_timeout_ms * NS_PER_MS
        self._is_under_way = False
        self._seen: tuple[int, str, str] | None = None

    @property
    def is_news(self) -> bool:
        """True when a process has changed the transaction since the last look, or `expect` was called."""
        return self._native.transaction != self._seen

    @property
    def is_idle(self) -> bool:
        """False while the sink commits or aborts: it hears of its end by its own I/O."""
        return not self._is_under_way

    def expect(self) -> None:
        self._seen = None

    def metrics(self) -> dict[str, float]:
        return transaction_times(self._native.counters())

    def run(self, now_ns: int) -> int:
        self._shared.trouble.ask(functools.partial(self._look, now_ns), None)
        return 0

    def _look(self, now_ns: int) -> None:
        """Goes on with the end of a transaction, as far as the sink lets it.

        An open transaction of an arena that was removed is aborted, because no process could end it later.
        """
        is_removed = self._native.closing != "not"
        self._seen = self._native.transaction
        task = self._half.next_transaction_task(0 if is_removed else self._timeout_ns)
        state = self._native.transaction[1]
        self.due_ns = min(now_ns + LOOKS_NS.get(state, ENDING_LOOK_NS), NEVER_NS)
        self._is_under_way = task is not None and not self._end(*task)
        if self._has_ended and self._is_durable:
            self._arena.sync()
        self._has_ended = False

    def _end(self, is_commit: bool, number: int) -> bool:
        """False: the sink is not done."""
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
        self._shared.results_bell.ring()
        return True


def check_transactions(host: Host, sink: Sink) -> None:
    """Refuses what an arena with transactions cannot be delivered to or by.

    Args:
        host: of the arena.
        sink: open.

    Raises:
        InvalidArgumentError: the sink takes no transactions, or an option contradicts them.
        OtherSinkError: another sink has the transaction that is open.
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
    if any(sink.identity):  # else the sink finds out later what is behind it, and looks itself
        check_is_same_sink(host.transactions, sink.identity, arena.name)
