# SPDX-License-Identifier: Apache-2.0
"""The overflow in the rounds of a sender: when it takes batches, and when they go from there to the sink.

`shmaccum.sender.overflow` has the log, the results and the reasons. A round calls these methods, whose verbs are
its own::

    spill         batches of a full arena go to the overflow while the sink does not work
    ship          ordinary batches of the overflow go to a sink that lends its sockets, in one native call
    ship_others   the others go by `Sink.deliver`, before any batch of the arena
    keep          after the acks: positions and results are written down
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shmaccum.sender.duties.duty import TICK_NS, Duty, Shared
from shmaccum.sender.sinks.sink import Ack, Delivered, WireBatch

if TYPE_CHECKING:
    from shmaccum.sender.duties.dead_letters import DeadLetters
    from shmaccum.sender.overflow import Overflow


class NoOverflow(Duty):
    """The batches of the arena wait there for as long as the sink does not work."""

    @property
    def is_settled(self) -> bool:
        """False while the sequence of a batch of the arena tells whether the overflow has it, too."""
        return True

    @property
    def is_getting_emptier(self) -> bool:
        """True while the sink takes what lies here."""
        return False

    def holds(self, partition_index: int) -> bool:
        """True while nothing of a partition may go from the arena to the sink."""
        del partition_index
        return False

    def spill(self, now_ns: int) -> int:
        """Moves batches of a full arena here; answers how many."""
        del now_ns
        return 0

    def ship(self, now_ns: int) -> int:
        """Sends ordinary batches natively; answers how many the sink has taken."""
        del now_ns
        return 0

    def ship_others(self, deliver: Callable[[list[WireBatch], int], object], now_ns: int) -> int:
        """Delivers the others that are ready; answers how many."""
        del deliver, now_ns
        return 0

    def lends(self, wire: WireBatch) -> bool:
        """True for a batch of the overflow. A delivery has batches of the overflow alone, or none of it."""
        del wire
        return False

    def settle(self, ack: Ack, now_ns: int) -> None:
        """Takes the sink's answer for a batch of the overflow."""

    def keep(self) -> None:
        """Writes down what acks have settled."""


class Overflowing(NoOverflow):
    """Moves batches of the arena to the overflow, and delivers those of it that are not ordinary.

    Args:
        letters: where the records of refused batches are kept; None: nowhere.
    """

    def __init__(self, shared: Shared, overflow: Overflow, letters: DeadLetters | None) -> None:
        self._shared = shared
        self._overflow = overflow
        self._letters = letters
        self._tick_at_ns = 0

    @property
    def due_ns(self) -> int:
        return self._overflow.due_ns

    @property
    def is_idle(self) -> bool:
        return not self._overflow

    @property
    def is_settled(self) -> bool:
        return self._overflow.is_settled

    @property
    def is_getting_emptier(self) -> bool:
        return self._overflow.is_getting_emptier

    def metrics(self) -> dict[str, float]:
        return self._overflow.metrics()

    def spill(self, now_ns: int) -> int:
        if now_ns >= self._tick_at_ns:
            self._tick_at_ns = now_ns + TICK_NS
            self._overflow.tick()
        count = self._overflow.spill(self._shared.lending, self._shared.linger_ns, now_ns)
        if count:
            self._shared.naps.spilled(now_ns)
        return count

    def ship(self, now_ns: int) -> int:
        if not self._overflow:
            return 0
        ship = functools.partial(self._overflow.ship, self._shared.doorbell.fileno(), now_ns)
        delivered = self._shared.trouble.ask(ship, Delivered())
        if delivered.batch_count:
            self._shared.metrics.delivered(delivered, self._shared.native.now_ns())
        return delivered.batch_count

    def ship_others(self, deliver: Callable[[list[WireBatch], int], object], now_ns: int) -> int:
        sent = 0
        while ready := self._overflow.ready(self._shared.identity, now_ns):
            plan: Sequence[Sequence[int]] = self._shared.trouble.ask(
                functools.partial(self._shared.sink.plan, ready), []
            )
            deliveries = [wires for request in plan if (wires := self._overflow.take(request, now_ns))]
            for wires in deliveries:
                deliver(wires, now_ns)
            if not deliveries:
                break
            sent += sum(map(len, deliveries))
        return sent

    def holds(self, partition_index: int) -> bool:
        return self._overflow.holds(partition_index)

    def lends(self, wire: WireBatch) -> bool:
        return self._overflow.lends(wire)

    def settle(self, ack: Ack, now_ns: int) -> None:
        self._overflow.settle(ack, self._shared.metrics, self._letters, now_ns)

    def keep(self) -> None:
        self._overflow.keep()
