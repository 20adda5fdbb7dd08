# SPDX-License-Identifier: Apache-2.0
"""Maintenance, every 100 ms: cleans up after dead processes, and publishes the sender's state and its queues."""

from __future__ import annotations

from shmaccum._native import SenderHalf
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.duties.ack_settler import AckSettler
from shmaccum.sender.duties.duty import TICK_NS, Duty


class Maintenance(Duty):
    """Runs the maintenance in the first round after each tick.

    Args:
        has_overflow: the sender has an overflow, which is filled by rounds, and not by the pump.
    """

    due_ns = 0

    def __init__(self, half: SenderHalf, ack_settler: AckSettler, *, has_overflow: bool) -> None:
        self._has_overflow = has_overflow
        self._half = half
        self._ack_settler = ack_settler

    def run(self, now_ns: int) -> None:
        if now_ns >= self.due_ns:
            self.due_ns = now_ns + TICK_NS
            self._half.maintain()
            self._half.publish_queues()
            self._ack_settler.settle_kept(now_ns)

    @property
    def ends_pump_ns(self) -> int:
        """The time at which the pump must return, because only a round can do the maintenance."""
        return self.due_ns if self._has_overflow or self._ack_settler.kept_count else NEVER_NS
