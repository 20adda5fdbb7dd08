# SPDX-License-Identifier: Apache-2.0
"""The rare parts of a wait for a buffer (native/python/producer/append.c has an ordinary wait).

An append that finds no buffer joins the queue in C, wakes a sleeping sender, and sleeps for the first slice. A buffer
that becomes free in this slice ends the wait in C. `BufferWaiter.wait` continues if no buffer became free, if a signal
arrived, if the waiter's semaphore must be created, or if the queue cannot be joined.

A process that holds its share of the arena (max_process_share) waits for a result before it joins the queue, because
only a result frees one of its buffers. In the queue it would only block others.

A waiter sleeps on the POSIX semaphore of its waiter entry. The semaphore is a hint, and the waiter word in the arena is
the truth. Every sleep ends after a slice (`_native.WAITER_SLICE_NS`). The waiter then checks the word, and helps the
pool, which repairs what dead processes left. So a semaphore that is missing, was posted too often, or whose poster was
killed costs at most one slice. A parked waiter sleeps longer (`_native.PARKED_SLEEP_NS`) and is woken by other waiters
(native/arena/parked_waiters.h).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shmaccum import _native
from shmaccum.arena import Arena
from shmaccum.arena.removal import check_takes_records, report_removal
from shmaccum.arena.semaphores import make_semaphore, remove_orphans
from shmaccum.arena.sender_state import sender_state
from shmaccum.arena.stuck import stuck_age_ns, stuck_reason
from shmaccum.arena.wake_fifo import SenderWaker
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

RETRY_SLICE_NS = 5_000_000
"""The pause before a process that was refused the queue, or its granted buffers, tries again. A result ends the pause
early. Its buffer becomes free shortly afterwards, so the next try may come slightly too early.
"""


def limit_sentence(arena: Arena, limit: Mapping[str, Any]) -> str:
    """Describes the limit that prevents a partition from getting more buffers.

    Args:
        arena: the arena of the partition.
        limit: as `_native.Arena.partition_limit` returns it.
    """
    slot_count = arena.geometry["slot_count"]
    holder = f"topic {limit['topic']!r} holds {limit['held']} of the {slot_count} buffers"
    if limit["stuck_reason"] != 0:
        _, why = stuck_reason(limit["stuck_reason"], limit["stuck_error"])
        age = format_duration_ns(stuck_age_ns(arena.native.now_ns(), limit["stuck_since_ms"]))
        if limit["is_oversized_admitted"]:
            rule = f"a buffer only while more than {slot_count // 2} of {slot_count} are free"
        else:
            rule = "the buffers of a large record only while half of oversized_max_bytes stays free"
        return (
            f"partition {limit['partition']} of topic {limit['topic']!r} has been stuck for {age}: {why}. It gets "
            f"{rule}, so that it does not take the memory of others; {holder}. Check the brokers, or spill to an "
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
    """Waits for buffers of an arena's pool. A native Appender calls its `wait` in rare cases.

    Args:
        arena: the arena, which the caller owns.
        waker: wakes the sender. The caller owns it.
        on_wait: called repeatedly while an append waits.
        stuck_block_ms: the longest wait for a stuck partition, or None for the limit of any other partition.
    """

    sleeps_in_append = True
    """True if a native append sleeps for the first slice of a wait."""

    def __init__(
        self,
        arena: Arena,
        waker: SenderWaker,
        on_wait: Callable[[], object] = lambda: None,
        stuck_block_ms: int | None = None,
    ) -> None:
        self._arena = arena
        self._waker = waker
        self._on_wait = on_wait
        self._stuck_block_ms = stuck_block_ms
        self._is_refused = False
        self._waiting_threads: list[int] = []
        self._places: set[_native.BufferWait] = set()

    # --- wait

    @contextlib.contextmanager
    def waiting_here(self) -> Iterator[None]:
        """Marks this thread as waiting in a call. A signal handler in this thread that closes the producer must not
        wait for the end of the call.
        """
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
        """Waits in first-come, first-served order until `need` slots belong to this process.

        Args:
            need: the number of slots; more than one for an oversized record.
            max_block_ms: for the message.
            deadline_ns: on the clock of time.monotonic_ns().
            place: the place in the queue, if the first slice ended without a grant. None before joining the queue.
            partition_index: the partition that needs the slots.

        Raises:
            BufferExhaustedError: the deadline passed. ProcessShareUsedError, if this process holds its share.
            RecordTooLargeError: the arena can never provide so many slots.
            TableFullError: too many threads are waiting.
            ProducerClosedError: `refuse` was called.
            ArenaRemovedError: the arena was removed.

        On any other exception (Ctrl-C), the thread also leaves the queue. Nothing is lost.
        """
        with self.waiting_here():
            return self._wait(need, max_block_ms, deadline_ns, place, partition_index)

    def _wait(
        self, need: int, max_block_ms: int, deadline_ns: int, place: _native.BufferWait | None, partition_index: int
    ) -> _native.BufferWait:
        started_ns = clock.monotonic_ns() if place is None else place.joined_ns
        if place is None:
            place = self._join(need, max_block_ms, deadline_ns, started_ns, partition_index)
        is_taken = False
        self._places.add(place)
        try:
            while self._sleep(place, deadline_ns):
                is_taken = place.take()
                if is_taken:
                    return place
                self.check_not_refused()
                check_takes_records(self._arena)
                if (left_ns := deadline_ns - clock.monotonic_ns()) <= 0:
                    break
                cooperative.sleep(min(left_ns, RETRY_SLICE_NS) / 1e9)
        finally:
            self._places.discard(place)
            if not is_taken:
                place.cancel()
            self._arena.native.count_wait(clock.monotonic_ns() - started_ns, not is_taken)
        raise BufferExhaustedError(self._exhausted(need, max_block_ms, partition_index))

    def _deadline_of(self, place: _native.BufferWait, deadline_ns: int) -> int:
        """Returns the end of a wait. It is earlier than the deadline while the partition is stuck."""
        if self._stuck_block_ms is None or not place.is_stuck():
            return deadline_ns
        return min(deadline_ns, place.joined_ns + self._stuck_block_ms * NS_PER_MS)

    def _join(
        self, need: int, max_block_ms: int, deadline_ns: int, started_ns: int, partition_index: int
    ) -> _native.BufferWait:
        """Joins the queue as soon as this process has not used up its share and is not refused the pool lock. Wakes the
        sender, so no batch lingers.
        """
        native = self._arena.native
        tail = native.completion_tail
        while True:
            native.check_name()
            try:
                place = _native.BufferWait.join(native, need, partition_index)
            except ArenaRemovedError:
                raise report_removal(self._arena) from None
            except BufferExhaustedError as error:
                is_share_used = isinstance(error, ProcessShareUsedError)
                self._waker.wake_if_asleep()
            else:
                self._waker.wake_if_asleep()
                return place
            self.check_not_refused()
            self._on_wait()
            left_ns = deadline_ns - clock.monotonic_ns()
            if left_ns <= 0:
                native.count_wait(clock.monotonic_ns() - started_ns, True)
                raise self._not_joined(is_share_used, need, max_block_ms, partition_index)
            tail = cooperative.wait_completion(native, tail, min(left_ns, RETRY_SLICE_NS))

    def _not_joined(
        self, is_share_used: bool, need: int, max_block_ms: int, partition_index: int
    ) -> BufferExhaustedError:
        if is_share_used:
            return ProcessShareUsedError(self._share_used())
        return BufferExhaustedError(self._exhausted(need, max_block_ms, partition_index))

    def _sleep(self, place: _native.BufferWait, deadline_ns: int) -> bool:
        """Returns True if granted. At the deadline it checks once more, because the grant may have just arrived."""
        if not place.poll() and not place.open_semaphore():
            make_semaphore(self._arena, place.waiter_index)
            place.open_semaphore()  # from now on, it is removed even if the arena loses its name
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
        """Sleeps once. A parked waiter sleeps longer, and C code checks its turns (native/arena/parked_waiters.h).

        C does not check whether the partition has become stuck. So with stuck_block_ms it sleeps for one slice until
        the partition is stuck.
        """
        slice_ns = _native.PARKED_SLICE_NS if place.is_parked() else _native.WAITER_SLICE_NS
        if cooperative.patched_by() is not None:
            cooperative.sleep(min(left_ns, slice_ns) / 1e9)
        elif place.is_parked() and (self._stuck_block_ms is None or place.is_stuck()):
            place.sleep(min(left_ns, _native.PARKED_SLEEP_NS))
        else:
            place.sleep(min(left_ns, slice_ns))

    def refuse(self) -> None:
        """Ends the waits of all threads (Kafka's BufferPool.close).

        A thread checks the flag after it has added its place, so it either sees the flag or is interrupted.
        """
        self._is_refused = True
        for place in listed(self._places):
            place.interrupt()

    def check_not_refused(self) -> None:
        if self._is_refused:
            raise ProducerClosedError("the producer was closed while this call waited for memory: nothing was appended")

    def _exhausted(self, need: int, max_block_ms: int, partition_index: int) -> str:
        """Returns the message: Kafka's figures (BufferPool.allocate) with a remedy, or the limit that was reached."""
        geometry = self._arena.geometry
        failed = f"Failed to allocate {need * geometry['batch_size']} bytes within the configured max blocking time "
        if keeper := self._lock_keeper():
            return f"{failed}{max_block_ms} ms: {keeper}"
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

    def _lock_keeper(self) -> str:
        """Describes a stopped process that keeps the lock of the pool. Returns "" if there is none."""
        native = self._arena.native
        keeper = native.pool_lock_keeper
        if keeper is None:
            return ""
        pid = native.processes()[keeper]["pid"]
        return (
            f"process {pid} was stopped while it had the lock of the buffer pool, so no process gets a buffer for "
            f"which it has to wait. Continue process {pid} (kill -CONT {pid}), or end it."
        )

    def _oversized(self, need: int) -> str:
        """Describes the memory of records larger than a buffer, if such a record did not get its buffers."""
        if need == 1:
            return ""
        used, limit = self._arena.native.oversized_bytes, self._arena.geometry["oversized_bytes_max"]
        return f"Records larger than a buffer hold {used} of at most {limit} bytes (oversized_max_bytes). "

    def _share_used(self) -> str:
        geometry = self._arena.geometry
        return (
            f"this process holds its share (max_process_share) of the arena: {geometry['process_slot_count_max']} of "
            f"the {geometry['slot_count']} buffers. {sender_state(self._arena)} If the share is too small, create the "
            "arena with a larger one. Other processes can still append."
        )

    def close(self) -> None:
        """Removes semaphores that no other process would remove."""
        remove_orphans(self._arena)
