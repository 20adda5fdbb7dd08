# SPDX-License-Identifier: Apache-2.0
"""The accumulator: all partition queues of an arena (Kafka's RecordAccumulator), in its two halves.

The producer's half (append, append_many, flush) is for any number of processes and threads. The sender's half (ready,
drain, complete, ...) is for the one thread of the one process that called `become_sender`.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, ParamSpec, TypeVar, final

from shmaccum import _native
from shmaccum.arena import Arena
from shmaccum.arena.doorbell import DoorbellButton
from shmaccum.arena.removal import RemovalWatch, tell_removal
from shmaccum.buffer_pool import BufferPool
from shmaccum.units import parse_timeout_s

_P = ParamSpec("_P")
_R = TypeVar("_R")

DEFAULT_MAX_BLOCK_MS = 60_000
FLUSH_SLICE_NS = 5_000_000
"""A batch counts as flushed shortly after its result was recorded, so the last wake-up may come just too early."""


FLUSH_FEW = 4
FLUSH_REST_MAX_S = 0.02


def flush_rest(elapsed: float, completed: int, left: int) -> float:
    """Seconds in which a flush need not look: a quarter of what is left of it at its pace; 0 when it is nearly over.

    Each result wakes everybody who waits for one. With many batches to go, most of that would be for nothing, and at
    the cost of the sender. At the beginning the pace says little: many batches may have been on their way together. So
    it is a quarter of what has passed at most, and no flush takes much longer than it must.
    """
    if left <= FLUSH_FEW or completed == 0:
        return 0.0
    return min(elapsed * min(left / completed, 1.0) / 4, FLUSH_REST_MAX_S)


class BatchResult(enum.IntEnum):
    """How a batch ended."""

    SUCCEEDED = _native.RESULT_SUCCEEDED
    FAILED = _native.RESULT_FAILED
    EXPIRED = _native.RESULT_EXPIRED
    ABORTED = _native.RESULT_ABORTED
    CORRUPT = _native.RESULT_CORRUPT


class Completion(NamedTuple):
    """The result of records [first_record, first_record + record_count) of a batch."""

    result: BatchResult
    error_code: int
    """The sink's own number (Kafka's error code); 0 none."""
    base_offset: int
    """Of first_record; -1 unknown."""
    log_append_time_ms: int
    """-1: the records' own timestamps hold."""
    first_record: int
    record_count: int

    def offset_of(self, token: _native.Token) -> int:
        """Kafka's offset of the token's record, -1 when unknown."""
        return -1 if self.base_offset < 0 else self.base_offset + token.record_index - self.first_record


@final
class Accumulator:
    """Appends records to an arena's batches, and hands them to the sender.

    The methods without code of their own are those of the native accumulator, without a layer in between; their
    signatures stand in `_native.pyi`.

    Args:
        arena: attached; stays open until the accumulator is closed.
        max_block_ms: how long an append waits for a buffer when the call says nothing (Kafka's max.block.ms).
        linger_ms: how long the batches it opens wait for company (Kafka's linger.ms); None leaves it to the sender.
        ring: called, at most once per sleep, when the sender sleeps and there is something to send; by default it rings
            the arena's doorbell.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        max_block_ms: int = DEFAULT_MAX_BLOCK_MS,
        linger_ms: int | None = None,
        ring: Callable[[], object] | None = None,
    ) -> None:
        if not isinstance(arena, Arena):
            raise TypeError(f"arena must be an Arena, not {type(arena).__name__}: attach to it first")
        self.arena = arena
        self._doorbell = DoorbellButton(arena)
        self.buffer_pool = BufferPool(arena, self._doorbell)
        native = _native.Accumulator(
            arena.native,
            self.buffer_pool.wait,
            self.buffer_pool.wake,
            ring or self._doorbell.ring,
            max_block_ms,
            None if linger_ms is None else linger_ms * 10**6,
        )
        self.native = native
        self.append = self._durably(native.append)
        self.append_many = self._durably(native.append_many)
        self.partition_index = native.partition_index
        self.flush_begin = native.flush_begin
        self.become_sender = native.become_sender
        self.set_sink_name = native.set_sink_name
        self.resign = native.resign
        self.ready = native.ready
        self.drain = native.drain
        self.complete = native.complete
        self.complete_many = native.complete_many
        self.complete_part = native.complete_part
        self.requeue = native.requeue
        self.decide = native.decide
        self.want_dead_letters = native.want_dead_letters
        self.dead_letters = native.dead_letters
        self.quarantine = native.quarantine
        self.tell_delivery_timeout = native.tell_delivery_timeout
        self.run_delivery_clock = native.run_delivery_clock
        self.publish_outage = native.publish_outage
        self.expire = native.expire
        self.take_expired = native.take_expired
        self.abort = native.abort
        self.mute = native.mute
        self.end_backoff = native.end_backoff
        self.set_available = native.set_available
        self.publish_queues = native.publish_queues
        self.maintain = native.maintain
        self.show_life = native.show_life
        self.set_producer_id = native.set_producer_id
        self.resequence = native.resequence
        self.statistics = native.statistics

    def _durably(self, append: Callable[_P, _R]) -> Callable[_P, _R]:
        """The same; with durability=sync one that comes back when it is on disk."""
        if self.arena.durability != "sync":
            return append

        def append_and_sync(*arguments: _P.args, **named: _P.kwargs) -> _R:
            result = append(*arguments, **named)
            self.arena.sync()
            return result

        return append_and_sync

    def find(self, token: _native.Token) -> Completion | None:
        """What became of an appended record; None while it is pending.

        Raises:
            ResultExpiredError: the result was overwritten before it was read.
        """
        found = self.arena.native.find(token)
        return None if found is None else Completion(BatchResult(found[0]), *found[1:])

    def flush(self, timeout: float | None = None) -> bool:
        """Seals what this process appended to and waits until all of it is complete. False when the time is over.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            ArenaRemovedError: the arena was removed, and no sender is left that could deliver the rest.
        """
        watch = RemovalWatch(self.arena)
        timeout_s = parse_timeout_s(timeout)
        ticket = self.flush_begin()
        self._doorbell.ring_if_asleep()
        begin = time.monotonic()
        end = begin + timeout_s
        count = ticket.remaining()
        tail = self.arena.native.completion_tail
        while (left := ticket.remaining()) > 0:
            now = time.monotonic()
            if now >= end:
                return False
            if watch.is_abandoned():
                raise tell_removal(self.arena)
            rest = flush_rest(now - begin, count - left, left)
            if rest > 0:
                time.sleep(min(rest, end - now))
                tail = self.arena.native.completion_tail
            else:
                tail = self.arena.native.wait_completion(tail, FLUSH_SLICE_NS)
        return True

    @property
    def is_sender(self) -> bool:
        """True while this accumulator holds the sender role."""
        return self.native.is_sender

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self.native.closed

    def close(self) -> None:
        """No more appends; leaves the sender role. What was appended stays in the arena and will be sent.

        Raises:
            ArenaInUseError: another thread is in a call.
            BatchInUseError: buffers of drained batches are still in use.
        """
        if not self.closed:
            self.native.close()
            self.buffer_pool.close()
            self._doorbell.close()

    def __enter__(self) -> Accumulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "sender" if self.is_sender else "producer"
        return f"<Accumulator of {self.arena.name!r}, {state}>"
