# SPDX-License-Identifier: Apache-2.0
"""Wait until the outputs in an arena are delivered, and find the log to which its sender delivers them."""

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
POLL_INTERVAL_S = 0.001


def wait_for_deliveries(arena: Arena, timeout_s: float) -> LogReader:
    """Wait until all records that were sent before this call have left the arena, and a sender lives.

    Returns:
        The log to which the sender delivers.

    Raises:
        ArenaRemovedError: if the arena was removed.
        ConsumerStateError: if the sender does not deliver to a log on this host.
        FlushTimeoutError: if the timeout has passed.
    """
    moment_ns, deadline_s = arena.native.now_ns(), clock.monotonic() + timeout_s
    while (sink := arena.native.sender()["sink_name"]) is None or arena.holds_from_before(moment_ns):
        check_takes_records(arena)
        if clock.monotonic() >= deadline_s:
            raise FlushTimeoutError(
                f"records that were sent through {arena.name} before are not in the log after {timeout_s:g} s, so the "
                f"relay cannot determine its outputs. {sender_state(arena)}"
            )
        time.sleep(POLL_INTERVAL_S)
    return _log(arena, sink)


def _log(arena: Arena, sink: bytes) -> LogReader:
    place = os.fsdecode(sink.removeprefix(LOG_KIND))
    if not sink.startswith(LOG_KIND) or not os.path.isdir(place):
        raise ConsumerStateError(
            f"the sender of {arena.name} delivers to {os.fsdecode(sink)!r}, but a relay needs a log on this host, to "
            "read its outputs: give the sender the sink log:DIR"
        )
    return LogReader(place)
