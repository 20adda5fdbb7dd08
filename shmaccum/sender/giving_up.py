# SPDX-License-Identifier: Apache-2.0
"""Gives up the records of an arena that are in a lost overflow.

Only a user decides this, by ``shmaccum recover ARENA --give-up-overflow``. Afterwards, the arena counts no record on
disk, and the next sender delivers the records of the arena. The futures of the lost records raise
`DeliveryFailedError`.

Each sender refuses such an arena and ends, and a supervisor starts the next one. So this function tries for a while to
take the role in between.
"""

from __future__ import annotations

import contextlib
import time

from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.reports import Kind, Report
from shmaccum.common import clock
from shmaccum.common.units import format_count
from shmaccum.exceptions import ArenaBusyError

ROLE_TIMEOUT_S = 5.0
"""A sender that lives longer than this has accepted the arena."""
CHECK_S = 0.01


def give_up_overflow(arena: Arena) -> str:
    """Give the records up. Return the sentence that is added to the arena's errors; empty if there are no records.

    Args:
        arena: attached, and without a sender.

    Raises:
        ArenaBusyError: a sender lives.
    """
    half = SenderHalf(arena.native)
    try:
        _become_sender(half)
        spilled = arena.native.spilled()
        if not spilled["partitions"]:
            return ""
        names = arena.native.partitions()
        places = ", ".join("-".join(map(str, names[index])) for index in spilled["partitions"])
        records = format_count(spilled["record_count"], "record")
        sentence = f"{records} of {arena.name} in its overflow ({places}) were given up: they are lost"
        Report(Kind.SENTENCE, sentence).record(arena.native)
        for index, *numbers in spilled["ranges"]:
            Report(Kind.GIVEN_UP, " ".join(map(str, numbers)), "-".join(map(str, names[index]))).record(arena.native)
            half.set_spilled(index, 0, 0)
        half.publish_spilled(0, 0, 0, 0)
        return sentence
    finally:
        half.close()


def _become_sender(half: SenderHalf) -> None:
    deadline_s = clock.monotonic() + ROLE_TIMEOUT_S
    while clock.monotonic() < deadline_s:
        with contextlib.suppress(ArenaBusyError):
            half.become_sender()
            return
        time.sleep(CHECK_S)
    half.become_sender()
