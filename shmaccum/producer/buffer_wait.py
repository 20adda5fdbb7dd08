# SPDX-License-Identifier: Apache-2.0
"""The rare parts of a wait for a buffer (native/python/producer/append.c has an ordinary wait).

An append that finds no buffer joins the queue in C, rings for a sender that sleeps, and sleeps for the first slice. A
buffer that comes meanwhile ends the wait there. `BufferWaiter.wait` goes on where none came, where a signal came, where
the waiter's semaphore has to be made, and where the queue cannot be joined.

A process that holds its share of the arena (max_process_share) waits for a result, which is what gives it a buffer
back, before it joins the queue: in the queue it would only stand in the way.

A waiter sleeps on a POSIX semaphore of its waiter entry. The semaphore is a hint, the waiter word in the arena is the
truth: every sleep ends after a slice (`_native.WAITER_SLICE_NS`), looks at the word, and helps the pool, which repairs
whatever the dead left. So a semaphore that is missing, was posted too often, or whose poster was killed costs at most
one slice. A parked waiter sleeps longer (`_native.PARKED_SLEEP_NS`) and is woken by the others
(native/arena/parked_waiters.h).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shmaccum import _native
from shmaccum.arena import Arena
from shmaccum.arena.doorbell import DoorbellButton
from shmaccum.arena.removal import check_takes_records, tell_removal
from shmaccum.arena.semaphores import make_semaphore, remove_orphans
from shmaccum.arena.sender_state import sender_state
from shmaccum.arena.stuck import stuck_age_ns, stuck_reason
from shmaccum.common import clock, cooperative
from shmaccum.common.background import listed
from shmaccum.common.clock import NS_PER_MS
from shmaccum.common.units import format_duration_ns
from shmaccum.exceptions import (
    ArenaRemovedError,
    BufferExhaustedError,
    ProcessShareUsedError,
    ProducerClosedError,
)

SHARE_SLICE_NS = 5_000_000
"""A buffer is free shortly after its result was recorded, so the wake-up may come just too early."""


def limit_sentence(arena: Arena, limit: Mapping[str, Any]) -> str:
    """The limit that keeps a partition from more buffers.

    Args:
        arena: of the partition.
        limit: as `_native.Arena.partition_limit` returns it.
    """
    slot_count = arena.geometry["slot_count"]
    holder = f"topic {limit['topic']!r} holds {limit['held']} of the {slot_count} buffers"
    if limit["stuck_reason"] != 0:
        _, why = stuck_reason(limit["stuck_reason"], limit["stuck_error"])
        age = format_duration_ns(stuck_age_ns(arena.native.now_ns(), limit["stuck_since_ms"]))
        if limit["is_oversized_admitted"]:
            rule = f"a buffer while more than {slot_count // 2} of {slot_count} are free"
        else:
            rule = "the buffers of a large record while half of oversized_max_bytes stays free"
        return (
            f"partition {limit['partition']} of topic {limit['topic']!r} has been stuck for {age}: {why}. It gets "
            f"{rule}, so that it does not take the memory of others; {holder}. See the brokers, or spill to an "
            "overflow."
        )
    if not limit["is_oversized_admitted"]:
        return (
            f"{holder}, and its large records may take no more of oversized_max_bytes (topic_share_factor), so that "
            f"they leave a part to others: partition {limit['partition']} gets none. Give the arena a larger "
            "oversized_max_bytes, or wait longer (max_block_ms)."
        )
    return (
        f"{holder}, and may hold no more until {min(limit['free_needed'], slot_count)} are free "
        f"(topic_share_factor), so that it does not take the memory of others: partition {limit['partition']} gets "
        "none. Give the arena a larger buffer_memory, or wait longer (max_block_ms)."
    )


class BufferWaiter:
    """The waiting side of an arena's pool; a native Appender calls its `wait` for what is rare.

    Args:
        arena: whose buffers are waited for; it stays its owner's.
        doorbell: of its sender; it stays the caller's.
        on_wait: called again and again while an append waits.
        stuck_block_ms: how long one for a stuck partition waits; None: as long as any other.
    """

    sleeps_in_append = True
    """An append itself sleeps for the first slice of a wait."""

    def __init__(
        self,
        arena: Arena,
        doorbell: DoorbellButton,
        on_wait: Callable[[], object] = lambda: None,
        stuck_block_ms: int | None = None,
    ) -> None:
        self._arena = arena
        self._doorbell = doorbell
        self._on_wait = on_wait
        self._stuck_block_ms = stuck_block_ms
        self._is_refused = False
        self._waiting_threads: list[int] = []
        self._places: set[_native.BufferWait] = set()

    # --- wait

    @contextlib.contextmanager
    def waiting_here(self) -> Iterator[None]:
        """This thread waits within a call in the block. A signal handler that closes the producer there cannot wait for
        the end of the call."""
        thread = threading.get_ident()
        self._waiting_threads.append(thread)
        try:
            yield
        finally:
            self._waiting_threads.remove(thread)

    def is_waiting_here(self) -> bool:
        """True in a signal handler that interrupted a wait of its own thread."""
        return threading.get_ident() in self._waiting_threads

    def wait(
        self, need: int, max_block_ms: int, deadline_ns: int, place: _native.BufferWait | None, partition_index: int
    ) -> _native.BufferWait:
        """Waits, first come first served, until `need` slots belong to this process.

        Args:
            need: how many slots; more than one for an oversized record.
            max_block_ms: for the message.
            deadline_ns: on the clock of time.monotonic_ns().
            place: in the queue, where the sleep of a first slice ended without a grant; None: nothing is joined yet.
            partition_index: where the slots are for.

        Raises:
            BufferExhaustedError: the deadline passed; ProcessShareUsedError: with this process holding its share.
            RecordTooLargeError: that many can never be had.
            TableFullError: too many wait already.
            ProducerClosedError: `refuse` was called.
            ArenaRemovedError: the arena was removed.

        Any other exception (Ctrl-C) leaves the queue, too; nothing is lost.
        """
        with self.waiting_here():
            return self._wait(need, max_block_ms, deadline_ns, place, partition_index)

    def _wait(
        self, need: int, max_block_ms: int, deadline_ns: int, place: _native.BufferWait | None, partition_index: int
    ) -> _native.BufferWait:
        started_ns = clock.monotonic_ns() if place is None else place.joined_ns
        if place is None:
            place = self._join(need, deadline_ns, started_ns, partition_index)
        is_taken = False
        self._places.add(place)
        try:
            while self._sleep(place, deadline_ns):
                is_taken = place.take()
                if is_taken:
                    return place
        finally:
            self._places.discard(place)
            if not is_taken:
                place.cancel()
            self._arena.native.count_wait(clock.monotonic_ns() - started_ns, not is_taken)
        raise BufferExhaustedError(self._exhausted(need, max_block_ms, partition_index))

    def _deadline_of(self, place: _native.BufferWait, deadline_ns: int) -> int:
        """When a wait ends: earlier than at its deadline while its partition is stuck."""
        if self._stuck_block_ms is None or not place.is_stuck():
            return deadline_ns
        return min(deadline_ns, place.joined_ns + self._stuck_block_ms * NS_PER_MS)

    def _join(self, need: int, deadline_ns: int, started_ns: int, partition_index: int) -> _native.BufferWait:
        """A place in the queue, as soon as the share of this process has room for it. Rings: nothing lingers now."""
        native = self._arena.native
        tail = native.completion_tail
        while True:
            native.check_name()
            try:
                place = _native.BufferWait.join(native, need, partition_index)
            except ArenaRemovedError:
                raise tell_removal(self._arena) from None
            except ProcessShareUsedError:
                self._doorbell.ring_if_asleep()
            else:
                self._doorbell.ring_if_asleep()
                return place
            self.check_not_refused()
            self._on_wait()
            left_ns = deadline_ns - clock.monotonic_ns()
            if left_ns <= 0:
                native.count_wait(clock.monotonic_ns() - started_ns, True)
                raise ProcessShareUsedError(self._share_used())
            tail = cooperative.wait_completion(native, tail, min(left_ns, SHARE_SLICE_NS))

    def _sleep(self, place: _native.BufferWait, deadline_ns: int) -> bool:
        """True when granted. At the deadline memory is looked at once more: the grant may have come meanwhile."""
        if not place.poll() and not place.open_semaphore():
            make_semaphore(self._arena, place.waiter_index)
            place.open_semaphore()  # from here on it is removed at the end, whatever becomes of the arena
        while not place.poll():
            self.check_not_refused()
            check_takes_records(self._arena)
            place.help()
            if (left_ns := self._deadline_of(place, deadline_ns) - clock.monotonic_ns()) <= 0:
                return place.poll()
            self._on_wait()
            self._sleep_once(place, left_ns)
        return True

    def _sleep_once(self, place: _native.BufferWait, left_ns: int) -> None:
        """A parked waiter looks by itself in a longer sleep, at its turns (native/arena/parked_waiters.h).

        It does not see there that its partition has become stuck: with stuck_block_ms it sleeps for one slice until it
        is.
        """
        slice_ns = _native.PARKED_SLICE_NS if place.is_parked() else _native.WAITER_SLICE_NS
        if cooperative.patched_by() is not None:
            cooperative.sleep(min(left_ns, slice_ns) / 1e9)
        elif place.is_parked() and (self._stuck_block_ms is None or place.is_stuck()):
            place.sleep(min(left_ns, _native.PARKED_SLEEP_NS))
        else:
            place.sleep(min(left_ns, slice_ns))

    def refuse(self) -> None:
        """Ends waits of all threads (Kafka's BufferPool.close).

        A thread looks at the flag after it has added its place, so it either sees the flag or is interrupted.
        """
        self._is_refused = True
        for place in listed(self._places):
            place.interrupt()

    def check_not_refused(self) -> None:
        if self._is_refused:
            raise ProducerClosedError("the producer was closed while this waited for memory: nothing was appended")

    def _exhausted(self, need: int, max_block_ms: int, partition_index: int) -> str:
        """The error with Kafka's facts (BufferPool.allocate) and advice, or with the limit that was reached."""
        geometry = self._arena.geometry
        failed = f"Failed to allocate {need * geometry['batch_size']} bytes within the configured max blocking time "
        limit = self._arena.native.partition_limit(partition_index, need)
        if not limit["is_admitted"]:
            stuck_block_ms = self._stuck_block_ms if limit["stuck_reason"] != 0 else None
            block_ms = max_block_ms if stuck_block_ms is None else min(max_block_ms, stuck_block_ms)
            return (
                f"{failed}{block_ms} ms: {limit_sentence(self._arena, limit)} {self._oversized(need)}"
                f"{sender_state(self._arena)}"
            )
        free = self._arena.native.state_counts()["FREE"]
        return (
            f"{failed}{max_block_ms} ms. Total memory: {geometry['buffer_memory']} bytes. "
            f"Available memory: {free * geometry['batch_size']} bytes. Poolable size: {geometry['batch_size']} bytes. "
            f"{self._oversized(need)}"
            f"{sender_state(self._arena)} If it cannot keep up, give the arena a larger buffer_memory or wait longer "
            "(max_block_ms)."
        )

    def _oversized(self, need: int) -> str:
        """What the records larger than a buffer hold together, where one of them did not get its buffers."""
        if need == 1:
            return ""
        used, limit = self._arena.native.oversized_bytes, self._arena.geometry["oversized_bytes_max"]
        return f"Records larger than a buffer hold {used} of at most {limit} bytes (oversized_max_bytes). "

    def _share_used(self) -> str:
        geometry = self._arena.geometry
        return (
            f"this process holds its share (max_process_share) of the arena: {geometry['process_slot_count_max']} of "
            f"the {geometry['slot_count']} buffers. {sender_state(self._arena)} If the share is too small, create the "
            "arena with a larger one; other processes go on meanwhile."
        )

    def close(self) -> None:
        """Removes semaphores that no other process would."""
        remove_orphans(self._arena)
