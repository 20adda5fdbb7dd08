# SPDX-License-Identifier: Apache-2.0
"""The appender, with which a producer appends and flushes (the producer's side of Kafka's RecordAccumulator).

The sender's side is `shmaccum._native.SenderHalf`. The two sides share only the arena.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from shmaccum import _native
from shmaccum.arena import Arena
from shmaccum.arena.removal import RemovalWatch, report_removal
from shmaccum.arena.wake_fifo import SenderWaker
from shmaccum.common import clock, cooperative
from shmaccum.common.units import parse_timeout_s
from shmaccum.producer.buffer_wait import BufferWaiter

DEFAULT_MAX_BLOCK_MS = 60_000
FLUSH_SLICE_NS = 5_000_000
"""A batch counts as flushed shortly after its result is recorded, so the last wake-up may come slightly too early."""


FLUSH_FEW = 4
FLUSH_PAUSE_MAX_S = 0.02


def flush_pause(elapsed: float, completed: int, left: int) -> float:
    """Returns how long a flush may pause, in seconds: a quarter of its estimated remaining time, 0 near its end.

    Each result wakes every waiting process. With many batches left, most wake-ups would be useless and would slow the
    sender down. At the start the estimate is unreliable, because many batches may have been in flight together. So the
    pause is at most a quarter of the elapsed time, and no flush takes much longer than necessary.
    """
    if left <= FLUSH_FEW or completed == 0:
        return 0.0
    return min(elapsed * min(left / completed, 1.0) / 4, FLUSH_PAUSE_MAX_S)


@final
class Appender:
    """The native appender of an arena, and its waiter for buffers.

    Args:
        arena: attached. It stays open until the appender is closed.
        waker: wakes the sender. The caller closes it.
        max_block_ms: the longest time that an append waits for a buffer (Kafka's max.block.ms).
        stuck_block_ms: the longest wait for a buffer of a stuck partition, or None for the limit of any other.
        linger_ms: the time that new batches wait for more records (Kafka's linger.ms), or None for the sender's linger.
        wake: called if there is something to send, and the sender sleeps or does not renew its heartbeat. By default,
            wakes the sender.
        on_wait: called repeatedly while an append waits for a buffer.
        waiter_type: the class that waits for a buffer.
    """

    def __init__(
        self,
        arena: Arena,
        waker: SenderWaker,
        *,
        max_block_ms: int = DEFAULT_MAX_BLOCK_MS,
        stuck_block_ms: int | None = None,
        linger_ms: int | None = None,
        wake: Callable[[], object] | None = None,
        on_wait: Callable[[], object] = lambda: None,
        waiter_type: type[BufferWaiter] = BufferWaiter,
    ) -> None:
        if not isinstance(arena, Arena):
            raise TypeError(f"arena must be an Arena, not {type(arena).__name__}: attach to it first")
        self.arena = arena
        self._waker = waker
        self.buffer_waiter = waiter_type(arena, waker, on_wait, stuck_block_ms)
        self.native = _native.Appender(
            arena.native,
            self.buffer_waiter.wait,
            wake or waker.wake,
            max_block_ms,
            None if linger_ms is None else linger_ms * 10**6,
            sleeps=waiter_type.sleeps_in_append and cooperative.patched_by() is None,
        )
        self.flush_begin = self.native.flush_begin

    def begin_flush(self) -> _native.FlushTicket:
        """Seals the batches of this process, and wakes the sender. The ticket counts the batches that are left."""
        ticket = self.flush_begin()
        self._waker.wake_if_asleep()
        return ticket

    def flush(self, timeout: float | None = None) -> bool:
        """Seals the batches of this process, and waits until all of them are complete. Returns False at the timeout.

        Args:
            timeout: seconds, or None for no limit.

        Raises:
            ArenaRemovedError: the arena was removed, and no sender is left that could deliver the rest.
        """
        watch = RemovalWatch(self.arena)
        timeout_s = parse_timeout_s(timeout)
        ticket = self.begin_flush()
        begin = clock.monotonic()
        end = begin + timeout_s
        count = ticket.remaining()
        tail = self.arena.native.completion_tail
        while (left := ticket.remaining()) > 0:
            now = clock.monotonic()
            if now >= end:
                return False
            if watch.is_abandoned():
                raise report_removal(self.arena)
            rest = flush_pause(now - begin, count - left, left)
            if rest > 0:
                time.sleep(min(rest, end - now))
                tail = self.arena.native.completion_tail
            else:
                tail = cooperative.wait_completion(self.arena.native, tail, FLUSH_SLICE_NS)
        return True

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self.native.closed

    def close(self) -> None:
        """Rejects further appends. Appended records stay in the arena and will be sent.

        Raises:
            ArenaInUseError: another thread is in a call.
        """
        if not self.closed:
            self.native.close()
            self.buffer_waiter.close()
