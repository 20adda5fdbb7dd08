# SPDX-License-Identifier: Apache-2.0
"""The part of `delivery_timeout_ms` that a batch has left, and why the delivery clock stands still (delivery_clock.h).

Reading takes no lock in the arena and trusts nothing: the bytes of other processes are only displayed.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from shmaccum import _native
from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.common.units import format_duration_ns

STAMP_COUNT = 2**32
SLOT_SIZE = 128
SLOT_SEQ = struct.Struct("<16xQ")
SLOT_TIMES = struct.Struct("<64xQ52xI")
"""created_ns and delivery_stamp_ms of a slot header (layout.h)."""
NO_SENDER = "no sender runs"


class DeliveryClockReading(NamedTuple):
    """The delivery clock of an arena at one moment.

    Attributes:
        now_ns: the arena's clock at that moment (CLOCK_BOOTTIME).
        clock_ns: nanoseconds in which delivery was possible, since the creation of the arena.
        timeout_ns: `delivery_timeout_ms` of the living or last sender, or None before the first sender.
        counts_always: True if the age of a record includes outages (`delivery_timeout_counts=always`).
        outage: the reason why delivery is impossible now, or None if it is possible.
        outage_ns: how long the sink of the living sender has not worked, or None if it works or there is no sender.
    """

    now_ns: int
    clock_ns: int
    timeout_ns: int | None
    counts_always: bool
    outage: str | None
    outage_ns: int | None

    @classmethod
    def of(cls, native: _native.Arena) -> DeliveryClockReading:
        """Reads the clock of an arena, which may be open read-only."""
        now_ns = native.now_ns()
        facts = native.delivery_clock()
        since_ns = facts["outage_since_ns"]
        outage = facts["outage"].decode("utf-8", "replace") or "the sender gives no reason"
        if not native.sender_is_alive:
            outage, since_ns = NO_SENDER, 0
        return cls(
            now_ns=now_ns,
            clock_ns=facts["clock_ns"],
            timeout_ns=facts["timeout_ns"] or None,
            counts_always=facts["counts_always"],
            outage=outage if since_ns or outage == NO_SENDER else None,
            outage_ns=max(now_ns - since_ns, 0) if since_ns else None,
        )

    @property
    def stands_still(self) -> bool:
        """True while records do not age."""
        return self.outage is not None and not self.counts_always

    def age_ns(self, created_ns: int, stamp_ms: int) -> int:
        """The age of a batch on the clock, as the sender counts it.

        Args:
            created_ns: `created_ns` of its slot header.
            stamp_ms: `delivery_stamp_ms` of its slot header.
        """
        ahead_ns = created_ns - self.now_ns
        run_ns = (self.clock_ns // NS_PER_MS - stamp_ms) % STAMP_COUNT * NS_PER_MS
        if ahead_ns > NS_PER_S:  # later than the boot clock: the bytes are wrong
            return self.now_ns if self.counts_always else run_ns
        boot_ns = max(-ahead_ns, 0)
        return boot_ns if self.counts_always else min(boot_ns, run_ns)

    def left_ns(self, created_ns: int, stamp_ms: int) -> int | None:
        """Returns the time that a batch has left, at least 0 ns, or None before a sender has published its timeout.

        Args:
            created_ns: `created_ns` of its slot header.
            stamp_ms: `delivery_stamp_ms` of its slot header.
        """
        return None if self.timeout_ns is None else max(self.timeout_ns - self.age_ns(created_ns, stamp_ms), 0)

    def sentence(self) -> str:
        """Describes why delivery is impossible, for how long, and the effect on records. Empty while it is possible."""
        if self.outage is None:
            return ""
        lasting = "" if self.outage_ns is None else f" for {format_duration_ns(self.outage_ns)}"
        effect = "records expire nevertheless" if self.counts_always else "no record expires meanwhile"
        what = self.outage if self.outage == NO_SENDER else f"the sink has not worked{lasting}: {self.outage}"
        return f"{what}; {effect}"

    def as_json(self) -> dict[str, Any]:
        """Returns the reading for programs. The keys are stable."""
        return self._asdict() | {"stands_still": self.stands_still}


def record_left(native: _native.Arena, slot_index: int, seq: int) -> str:
    """Describes the time that a waiting record has left, and why its clock stands still. The text may be empty.

    Args:
        slot_index: the slot of the record's batch.
        seq: the number of the record's batch. The slot may hold another batch by now.
    """
    clock = DeliveryClockReading.of(native)
    with native.region("slot_headers") as headers:
        header = bytes(headers[slot_index * SLOT_SIZE : (slot_index + 1) * SLOT_SIZE])
    if len(header) < SLOT_SIZE or SLOT_SEQ.unpack_from(header) != (seq,):
        return clock.sentence()
    left_ns = clock.left_ns(*SLOT_TIMES.unpack_from(header))
    left = "" if left_ns is None else f"{format_duration_ns(left_ns)} of its delivery timeout are left"
    return "; ".join(filter(None, (left, clock.sentence())))
