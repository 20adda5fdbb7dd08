# SPDX-License-Identifier: Apache-2.0
"""The delivery clock: the sender's side (native: delivery_clock.h has the arena's side and the picture).

A record expires because it cannot be delivered, never because nobody could deliver. So the sender adds to the arena's
clock only the time in which its sink has proved to work.

Rules:

* A step is the time between two looks. A step of more than `STEP_MAX_NS` counts as that: the sender was stopped, the
  host slept, or a write blocked, and nobody delivered meanwhile.
* A sink with a peer (`Sink.answer_count`) proves its steps by the next answer. Until then they are kept apart.
* While the overflow gets emptier no step counts: records of the arena wait for it.
* An outage (`Sink.outage`) throws the steps away that are not proved yet. The outage is told in the arena's error log
  and published for everybody who reads the arena. The first step after it began in it, and does not count either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shmaccum import _native
from shmaccum._native import SenderHalf
from shmaccum.common.units import format_duration_ns
from shmaccum.config import SenderOptions
from shmaccum.sender.backoff import NS_PER_MS
from shmaccum.sender.sinks.sink import Sink

logger = logging.getLogger("shmaccum.sender")

STEP_MAX_NS = 5_000 * NS_PER_MS
OUTAGE_SIZE_MAX = 255
"""Bytes that the arena has room for (native: OUTAGE_SIZE, with the NUL)."""


class DeliveryClock:
    """Runs the delivery clock of an arena.

    Args:
        half: holds the sender role.
        native: the arena.
        sink: the sink whose state decides whether the clock runs.
        options: the timeout and what counts for it; everybody who reads the arena is told.
        now_ns: the arena's clock.
        is_held: asked while the sink works; True says that records of the arena wait for others all the same.
    """

    def __init__(
        self,
        half: SenderHalf,
        native: _native.Arena,
        sink: Sink,
        options: SenderOptions,
        now_ns: int,
        is_held: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_held = is_held
        self._half = half
        self._native = native
        self._sink = sink
        self._counts_always = options.delivery_timeout_counts == "always"
        self._looked_ns = now_ns
        self._unproved_ns = 0
        self._outage_since_ns = 0
        self._answer_count = sink.peer.answer_count
        self.outage: str | None = None
        """Why the sink did not work at the last look; None: it worked."""
        half.tell_delivery_timeout(options.delivery_timeout_ms * NS_PER_MS, self._counts_always)

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
            self._unproved_ns += 0 if self._is_held() else step_ns
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
