# SPDX-License-Identifier: Apache-2.0
"""A wait for the outputs that are in an arena, and the log to which its sender delivers them."""

from __future__ import annotations

import os
import time

from shmaccum.arena import Arena
from shmaccum.arena.removal import check_takes_records
from shmaccum.arena.sender_state import sender_state
from shmaccum.common import clock
from shmaccum.exceptions import ConsumerStateError, FlushTimeoutError
from shmaccum.log.files import LogReader

LOG_KIND = b"log:"
LOOK_INTERVAL_S = 0.001


def wait_for_deliveries(arena: Arena, timeout_s: float) -> LogReader:
    """Waits until the arena holds nothing that was sent before, and a sender lives.

    Returns:
        The log to which the sender delivers.

    Raises:
        ArenaRemovedError: the arena was removed.
        ConsumerStateError: the sender delivers elsewhere than to a log on this host.
        FlushTimeoutError: the time was over.
    """
    moment_ns, deadline_s = arena.native.now_ns(), clock.monotonic() + timeout_s
    while (sink := arena.native.sender()["sink_name"]) is None or arena.holds_from_before(moment_ns):
        check_takes_records(arena)
        if clock.monotonic() >= deadline_s:
            raise FlushTimeoutError(
                f"records that were sent through {arena.name} before are not in the log after {timeout_s:g} s, so the "
                f"relay cannot know its outputs. {sender_state(arena)}"
            )
        time.sleep(LOOK_INTERVAL_S)
    return _log(arena, sink)


def _log(arena: Arena, sink: bytes) -> LogReader:
    place = os.fsdecode(sink.removeprefix(LOG_KIND))
    if not sink.startswith(LOG_KIND) or not os.path.isdir(place):
        raise ConsumerStateError(
            f"the sender of {arena.name} delivers to {os.fsdecode(sink)!r}, and a relay reads its outputs in a log on "
            "this host: give the sender the sink log:DIR"
        )
    return LogReader(place)
