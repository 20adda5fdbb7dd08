# SPDX-License-Identifier: Apache-2.0
"""The delivery clock: the sender's side (native: delivery_clock.h has the arena's side and the picture).

A record expires because it cannot be delivered, never because nobody could deliver. So the sender adds to the arena's
clock only the time in which its sink has proved to work.

Rules:

* A step is the time between two looks. A step of more than `STEP_MAX_NS` counts as that: the sender was stopped, the
  host slept, or a write blocked, and nobody delivered meanwhile.
* A sink with a peer (`Peer.answer_count`) proves its steps by the next answer. Until then they are kept apart.
* While the overflow gets emptier no step counts: records of the arena wait for it.
* An outage (`Peer.outage`) throws the steps away that are not proved yet. The outage is told in the arena's error log
  and published for everybody who reads the arena. The first step after it began in it, and does not count either.
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
"""Bytes that the arena has room for (native: OUTAGE_SIZE, with the NUL)."""


class DeliveryClock:
    """Runs the delivery clock of an arena.

    Args:
        overflow: while it gets emptier, records of the arena wait for those in it.
    """

    def __init__(self, shared: Shared, overflow: NoOverflow) -> None:
        self._overflow = overflow
        self._half = shared.half
        self._native = shared.native
        self._sink = shared.sink
        options = shared.options
        self._counts_always = options.delivery_timeout_counts == "always"
        self._looked_ns = shared.native.now_ns()
        self._unproved_ns = 0
        self._outage_since_ns = 0
        self._answer_count = shared.sink.peer.answer_count
        self.outage: str | None = None
        """Why the sink did not work at the last look; None: it worked."""
        shared.half.publish_delivery_timeout(options.delivery_timeout_ms * NS_PER_MS, self._counts_always)

    @property
    def stands_still(self) -> bool:
        """True while no record grows older."""
        return self.outage is not None and not self._counts_always

    def look(self, now_ns: int) -> None:
        """Asks the sink whether it works, and lets the clock run by what is proved.

        Args:
            now_ns: the arena's clock.
        """
        step_ns = min(now_ns - self._looked_ns, STEP_MAX_NS)
        self._looked_ns = now_ns
        outage = self._sink.peer.outage
        if outage != self.outage:
            self._turn(outage, now_ns)
            step_ns = 0
        if outage is None:
            self._unproved_ns += 0 if self._overflow.is_getting_emptier else step_ns
            self._prove()

    def _prove(self) -> None:
        answer_count = self._sink.peer.answer_count
        if answer_count is not None and answer_count == self._answer_count:
            return
        self._answer_count = answer_count
        if self._unproved_ns > 0:
            self._half.run_delivery_clock(self._unproved_ns)
            self._unproved_ns = 0

    def _turn(self, outage: str | None, now_ns: int) -> None:
        """The sink has stopped working, works again, or does not work for another reason."""
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
        # The sentence as the arena has room for it, without half a character at its end.
        text = outage.replace("\0", "?").encode("utf-8", "replace")[:OUTAGE_SIZE_MAX]
        published = text.decode("utf-8", "ignore").encode()
        self._half.publish_outage(self._outage_since_ns, published)

    @property
    def _consequence(self) -> str:
        if self._counts_always:
            return "Records expire meanwhile (delivery_timeout_counts=always)"
        return "No record expires meanwhile; records wait in the arena"
