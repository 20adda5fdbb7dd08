# SPDX-License-Identifier: Apache-2.0
"""The delivery clock: the sender's side (native: delivery_clock.h has the arena's side and the diagram).

A record expires only if it could not be delivered although a sender and its sink worked.
So the sender adds to the arena's clock only the time in which its sink was proved to work.

Rules:

* A step is the time between two checks. A step of more than `STEP_MAX_NS` counts as `STEP_MAX_NS`: the sender was
  stopped, the host was suspended, or a write blocked, and nothing was delivered meanwhile.
* If the sink has a peer (`Peer.answer_count`), the next response proves the pending steps before it.
* While the overflow gets emptier, no step counts, because records of the arena wait for it.
* An outage (`Peer.outage`) discards the pending steps. It is recorded in the arena's error log, and published for all
  readers of the arena. The first step after an outage began during the outage, so it does not count either.
"""

from __future__ import annotations

import logging

from shmaccum.common.clock import NS_PER_MS
from shmaccum.common.units import format_duration_ns
from shmaccum.sender.duties.duty import Shared
from shmaccum.sender.duties.overflow import NoOverflow

logger = logging.getLogger("shmaccum.sender")

STEP_MAX_NS = 5_000 * NS_PER_MS
OUTAGE_SIZE_MAX = 255
"""The capacity in the arena, in bytes (native: OUTAGE_SIZE, which includes the NUL)."""


class DeliveryClock:
    """Advances the delivery clock of an arena.

    Args:
        overflow: while it gets emptier, records of the arena wait for its records.
    """

    def __init__(self, shared: Shared, overflow: NoOverflow) -> None:
        self._overflow = overflow
        self._half = shared.half
        self._native = shared.native
        self._sink = shared.sink
        options = shared.options
        self._counts_always = options.delivery_timeout_counts == "always"
        self._checked_ns = shared.native.now_ns()
        self._unproved_ns = 0
        self._outage_since_ns = 0
        self._answer_count = shared.sink.peer.answer_count
        self.outage: str | None = None
        """Why the sink did not work at the last check; None if it worked."""
        shared.half.publish_delivery_timeout(options.delivery_timeout_ms * NS_PER_MS, self._counts_always)

    @property
    def stands_still(self) -> bool:
        """True while no record ages."""
        return self.outage is not None and not self._counts_always

    def check(self, now_ns: int) -> None:
        """Check whether the sink works, and advance the clock by the proved time.

        Args:
            now_ns: the arena's clock.
        """
        step_ns = min(now_ns - self._checked_ns, STEP_MAX_NS)
        self._checked_ns = now_ns
        outage = self._sink.peer.outage
        if outage != self.outage:
            self._handle_outage_change(outage, now_ns)
            step_ns = 0
        if outage is None:
            self._unproved_ns += 0 if self._overflow.is_getting_emptier else step_ns
            self._count_proved()

    def _count_proved(self) -> None:
        answer_count = self._sink.peer.answer_count
        if answer_count is not None and answer_count == self._answer_count:
            return
        self._answer_count = answer_count
        if self._unproved_ns > 0:
            self._half.run_delivery_clock(self._unproved_ns)
            self._unproved_ns = 0

    def _handle_outage_change(self, outage: str | None, now_ns: int) -> None:
        """Handle the start, the end or a new reason of an outage."""
        was_outage, self.outage = self.outage, outage
        self._unproved_ns = 0
        if outage is None:
            self._half.publish_outage(0, b"")
            lasted = format_duration_ns(now_ns - self._outage_since_ns)
            logger.warning("the sink works again after %s: the delivery timeout of records runs again", lasted)
            return
        if was_outage is None:
            self._outage_since_ns = now_ns
            self._native.record_error(f"the sink does not work: {outage}")
            logger.error("the sink does not work: %s. %s", outage, self._consequence)
        # Truncated to the capacity of the arena, without a partial character at the end.
        text = outage.replace("\0", "?").encode("utf-8", "replace")[:OUTAGE_SIZE_MAX]
        published = text.decode("utf-8", "ignore").encode()
        self._half.publish_outage(self._outage_since_ns, published)

    @property
    def _consequence(self) -> str:
        if self._counts_always:
            return "Records expire meanwhile (delivery_timeout_counts=always)"
        return "No record expires meanwhile; records wait in the arena"
