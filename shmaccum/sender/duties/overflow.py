# SPDX-License-Identifier: Apache-2.0
"""The overflow in the rounds of a sender: when it takes batches, and when it delivers them to the sink.

`shmaccum.sender.overflow` has the log, the results and the reasons. A round calls these methods::

    spill         moves batches of a full arena to the overflow while the sink does not work
    ship          sends ordinary batches of the overflow through the sink's sockets, in one native call
    ship_others   delivers the others with `Sink.deliver`, before any batch of the arena
    record        writes positions and results after the acks
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
    """A sender without an overflow: batches wait in the arena while the sink does not work."""

    @property
    def is_settled(self) -> bool:
        """False while the same batch may be both in the arena and in the overflow. The log then compares sequences."""
        return True

    @property
    def is_getting_emptier(self) -> bool:
        """True while the sink takes batches of the overflow."""
        return False

    def holds(self, partition_index: int) -> bool:
        """True while no batch of a partition may be sent from the arena to the sink."""
        del partition_index
        return False

    def spill(self, now_ns: int) -> int:
        """Move batches of a full arena to the overflow. Return their number."""
        del now_ns
        return 0

    def ship(self, now_ns: int) -> int:
        """Send ordinary batches in a native call. Return the number that the sink has taken."""
        del now_ns
        return 0

    def ship_others(self, deliver: Callable[[list[WireBatch], int], object], now_ns: int) -> int:
        """Deliver the other ready batches. Return their number."""
        del deliver, now_ns
        return 0

    def is_spilled(self, wire: WireBatch) -> bool:
        """True for a batch of the overflow. A delivery never mixes such batches with those of the arena."""
        del wire
        return False

    def settle(self, ack: Ack, now_ns: int) -> None:
        """Apply the sink's ack for a batch of the overflow."""

    def record(self) -> None:
        """Write the positions and results that acks have changed."""


class OverflowDuty(NoOverflow):
    """Moves batches of the arena to the overflow, and delivers those of its batches that are not ordinary.

    Args:
        dead_letters: takes the records of rejected batches; None to discard them.
    """

    def __init__(self, shared: Shared, overflow: Overflow, dead_letters: DeadLetters | None) -> None:
        self._shared = shared
        self._overflow = overflow
        self._dead_letters = dead_letters
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
        count = self._overflow.spill(self._shared.sink_batches, self._shared.linger_ns, now_ns)
        if count:
            self._shared.short_waits.spilled(now_ns)
        return count

    def ship(self, now_ns: int) -> int:
        if not self._overflow:
            return 0
        ship = functools.partial(self._overflow.ship, self._shared.wake_fifo.fileno(), now_ns)
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

    def is_spilled(self, wire: WireBatch) -> bool:
        return self._overflow.is_spilled(wire)

    def settle(self, ack: Ack, now_ns: int) -> None:
        self._overflow.settle(ack, self._shared.metrics, self._dead_letters, now_ns)

    def record(self) -> None:
        self._overflow.record()
