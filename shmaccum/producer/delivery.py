# SPDX-License-Identifier: Apache-2.0
"""The results of records: a tracker looks them up for futures, and calls observers when they are known.

Results are in the arena's completion ring, which every process can read. So a future can be queried in the process
that sent the record, in a forked child, or, pickled, in any process of the host. A future that is never queried costs
nothing. Callbacks need a waiting thread. Each `DeliveryTracker` has one, which starts with the first callback and ends
when there is nothing to wait for. For ``await``, the event loop itself waits (`shmaccum.producer.loop_results`). Both
read the ring once for all futures.

Adding a callback takes no lock, so a signal handler, a finalizer or a callback may add one at any time. Each observer
belongs to a `Waiter`. Only the thread that takes it from the waiter calls it, so it is called once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shmaccum import _native
from shmaccum._native import DeliveryFuture, ResultWaiters
from shmaccum.arena import Arena
from shmaccum.arena.delivery_span import DeliveryClockReading, record_left
from shmaccum.arena.places import Places
from shmaccum.arena.removal import RemovalWatch, removed_error
from shmaccum.arena.reports import (
    Report,
    read_reports,
    reason_of_abort,
    reason_of_expiry,
    reason_of_giving_up,
    reason_of_refusal,
)
from shmaccum.arena.stuck import stuck_clause
from shmaccum.common import clock, cooperative
from shmaccum.common.background import RETRY_S, listed, log_exception, started_thread
from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_duration_ns, parse_timeout_s
from shmaccum.exceptions import (
    ArenaClosedError,
    ArenaError,
    ArenaNotFoundError,
    ArenaRemovedError,
    CorruptArenaError,
    DeliveryAbortedError,
    DeliveryError,
    DeliveryFailedError,
    DeliveryTimeoutError,
    InvalidArgumentError,
    ResultExpiredError,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

logger = logging.getLogger(__name__)

TRACKER_SLICE_NS = 50_000_000
TRACKER_IDLE_NS = 2 * NS_PER_S
FIRST_SLICE_NS = 10**7
GET_SLICE_NS = 10**9
RESULT_LOST = (0, 0, -1, -1, 0, 0)
"""The completion of a record whose result was overwritten before it was read."""
RESULT_ABANDONED = (-1, 0, -1, -1, 0, 0)
"""The completion of a record in an arena that was removed and has no sender."""
RESULT_UNREADABLE = (-2, 0, -1, -1, 0, 0)
"""The completion of a record in an arena whose memory is lost to this process."""
STOP_PATIENCE_S = 0.2
"""A stop waits at least this long for a thread that calls no callback, because it may be in a wait."""
CHECK_S = 0.01
"""The polling interval of an arena to which this process is not attached."""
REASONS_MAX = 256

Observer: TypeAlias = Callable[[DeliveryFuture], object]


class RecordMetadata(NamedTuple):
    """The place of a delivered record (kafka-python's fields and order).

    Attributes:
        offset: the offset in the partition, or -1 if the sink has none or did not report it.
        timestamp: milliseconds since 1970: the record's own, or the log's if it sets the append time.
        checksum: always None, because Kafka dropped it with its second message format.
        serialized_key_size, serialized_value_size, serialized_header_size: bytes, or -1 for null or no headers.
    """

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    checksum: None
    serialized_key_size: int
    serialized_value_size: int
    serialized_header_size: int


class Waiters:
    """Futures without a result, each with an observer to call once when the result is known.

    The observers of a partition are called in the order of its records.

    Args:
        tracker: has the handle for looking up results.
    """

    def __init__(self, tracker: DeliveryTracker) -> None:
        self._tracker = tracker
        self.native = ResultWaiters()

    def add(self, future: DeliveryFuture, observer: Observer) -> bool:
        """Adds a waiter. Returns False if the future has its result, or finds it now."""
        return self.native.add(self._tracker.native, future, observer) or not self._tracker.is_known(future)

    def end(self) -> None:
        """Ends the waiters whose results came since the last call. The caller calls their observers."""
        self.native.collect(self._tracker.native)

    def check(self) -> None:
        """Ends the waiters whose results are known, by a query for each of them."""
        if self.native.waiting_count:
            self.native.check(self._tracker.native)

    def give_up(self) -> None:
        """Ends all waiters. A future without a result gets the result that no sender is left."""
        for future, _ in self.native.waiters():
            if not self._tracker.is_known(future):
                future.completion = RESULT_ABANDONED
        self.native.end_known()

    def call_next(self) -> bool:
        """Calls the observer of the next ended waiter. Returns False if there is none.

        Logs the observer's exception, unless the exception ends a thread.
        """
        try:
            return self.native.call_next()
        except Exception:  # noqa: BLE001 - user code may raise anything
            log_exception(logger, "a callback of a record in %s failed", self._tracker.arena.name)
        return True


class DeliveryTracker:
    """Looks up the results of futures, and calls observers when the results are known.

    All threads can use it. A forked child starts without observers, which belong to the process that added them.

    Args:
        arena: contains the results. It must stay open as long as the tracker is used.
        wake_waiting_sender: called before every wait for a result. If records do not linger, it wakes a sender from a
            short timed wait (docs/decisions/0020).
    """

    def __init__(self, arena: Arena, wake_waiting_sender: Callable[[], object] | None = None) -> None:
        self.arena = arena
        self._uuid, self._mode = arena.uuid, arena.mode
        self._late: Arena | None = None
        self._is_released = False
        self._wake_waiting_sender = wake_waiting_sender
        self._places = Places(arena.native)
        self._explained: dict[tuple[int, int, int, int], tuple[Any, ...]] = {}
        self.reset()
        _trackers.add(self)
        _by_arena.setdefault(arena.uuid, self)

    def reset(self) -> None:
        """Discards all callbacks and waiters. A forked child calls it first."""
        self._waiters = Waiters(self)
        self._run_lock = threading.Lock()  # the one thread that checks has it; no thread waits for it
        self._thread: threading.Thread | None = None
        self._owner: threading.Thread | None = None
        self._is_stopped = False
        self._is_abandoned = False
        self.loops: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    # --- look up

    @property
    def is_unreadable(self) -> bool:
        """True if this process has lost the memory of the arena, so no more results arrive."""
        return (self._late or self.arena).native.is_lost

    def is_known(self, future: DeliveryFuture) -> bool:
        """True if the future has its result, or finds it now."""
        return future.completion is not None or self.look_up(future)

    def look_up(self, future: DeliveryFuture) -> bool:
        """Stores the result in the future if it is known. Returns True if it is."""
        try:
            completion = self.native.find(future)
        except ResultExpiredError:
            completion = RESULT_LOST
        except CorruptArenaError:
            if not self.is_unreadable:
                raise
            completion = RESULT_UNREADABLE
        if completion is not None:
            future.completion = completion
        return completion is not None

    def wait_for(self, future: DeliveryFuture, timeout: float | None) -> bool:
        """Waits for the result of a future. Returns False if the timeout, in seconds, expires."""
        try:
            return future.completion is not None or self.wait_until(lambda: self.look_up(future), timeout, future)
        except _AbandonedError:
            future.completion = RESULT_ABANDONED
            return True

    def wait_until(
        self, is_known: Callable[[], bool], timeout: float | None, future: DeliveryFuture | None = None
    ) -> bool:
        """Waits for results until `is_known` returns True. Returns False if the timeout, in seconds, expires.

        Args:
            future: as for `wake_waiting_sender`.
        """
        timeout_s = parse_timeout_s(timeout)
        tail = self.result_count
        if is_known():
            return True
        deadline_s = clock.monotonic() + timeout_s
        if timeout_s > 0:
            self.wake_waiting_sender(future)
        watch: RemovalWatch | None = None  # most results come before the first check
        slice_ns = FIRST_SLICE_NS
        while (left_s := deadline_s - clock.monotonic()) > 0:
            try:
                tail = wait_for_results(self.native, tail, int(min(left_s * 10**9, slice_ns)))
            except ArenaClosedError:  # the producer was closed meanwhile: is_known looks elsewhere
                watch = None
            if is_known():
                return True
            slice_ns = GET_SLICE_NS
            watch = watch or RemovalWatch(self._late or self.arena)
            if watch.is_abandoned():
                raise _AbandonedError(str(removed_error(watch.arena)))
        return False

    def release(self) -> None:
        """Prepares to detach from the arena. From now on, results are looked up in a read-only mapping."""
        with contextlib.suppress(InvalidArgumentError):
            self.topic_partition(0)  # this call reads and caches all names
        self._is_released = True

    @property
    def native(self) -> _native.Arena:
        """The handle for looking up results.

        Raises:
            ArenaRemovedError: the process has detached, and the arena's name no longer leads to the arena.
            ArenaClosedError: raised by the first use of the handle, if the owner closed the arena.
        """
        if not (self._is_released and self.arena.closed):
            return self.arena.native
        if self._late is None:
            self._late = self._opened_late()
        return self._late.native

    def _opened_late(self) -> Arena:
        try:
            found = Arena.open_read_only(self.arena.name, mode=self._mode)
        except ArenaNotFoundError:
            found = None
        if found is not None and found.uuid == self._uuid:
            return found
        raise ArenaRemovedError(
            f"the producer that sent the record was closed, and its arena {self.arena.name} was removed after that: "
            "the result is not available here any more. Query futures before close()"
        )

    def wake_waiting_sender(self, future: DeliveryFuture | None = None) -> None:
        """Wakes a sender from a short timed wait, if records do not linger.

        Args:
            future: the only awaited record, if there is only one. A sender that has drained it already waits for its
                sink, so it is not woken.
        """
        if self._wake_waiting_sender is not None and (future is None or not self.native.is_under_way(future)):
            self._wake_waiting_sender()

    @property
    def address(self) -> tuple[str, int, bytes]:
        """The name, the mode and the UUID of the arena."""
        return self.arena.name, self._mode, self._uuid

    def describe_time_left(self, future: DeliveryFuture) -> str:
        """Describes the time left for the delivery, and why the record is not delivered. Empty if that is unknown."""
        native = self.native
        left = record_left(native, future.slot_index, future.seq)
        return "; ".join(filter(None, (left, stuck_clause(native, future.partition_index))))

    def topic_partition(self, partition_index: int) -> TopicPartition:
        """Returns the name of a row in the arena's table of partitions.

        Raises:
            InvalidArgumentError: the table has no such row.
        """
        try:
            return self._places[partition_index]
        except CorruptArenaError:
            raise InvalidArgumentError(
                f"the future belongs to another arena: {self.arena.name} has no partition with index {partition_index}"
            ) from None

    def offset_of(self, future: DeliveryFuture) -> int:
        """Returns the offset of a record with a known result, or -1 if the sink has none or did not report it."""
        assert future.completion is not None
        _, _, base_offset, _, first_record, _ = future.completion
        return -1 if base_offset < 0 else base_offset + future.record_index - first_record

    def metadata_of(self, future: DeliveryFuture) -> RecordMetadata:
        """Returns the metadata of a record with a known result."""
        assert future.completion is not None
        log_append_time_ms = future.completion[3]
        topic_partition = self.topic_partition(future.partition_index)
        return RecordMetadata(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            topic_partition=topic_partition,
            offset=self.offset_of(future),
            timestamp=future.timestamp_ms if log_append_time_ms < 0 else log_append_time_ms,
            checksum=None,
            serialized_key_size=future.key_size,
            serialized_value_size=future.value_size,
            serialized_header_size=future.headers_size,
        )

    def exception_of(self, future: DeliveryFuture) -> DeliveryError | None:
        """Returns the error of a record with a known result, or None if it was delivered."""
        error = self._failure_of(future)
        return None if error is None else self.translated_error(error)

    def _failure_of(self, future: DeliveryFuture) -> DeliveryError | None:
        assert future.completion is not None
        result, error_code = future.completion[:2]
        if result == _native.RESULT_SUCCEEDED:
            return None
        if future.completion == RESULT_UNREADABLE:
            return ResultExpiredError(
                "it is unknown whether the record was delivered: this process lost the memory of the arena, because "
                "the arena's file was truncated or the file system could not provide a page"
            )
        where = "{}-{}".format(*self.topic_partition(future.partition_index))
        if result == _native.RESULT_EXPIRED:
            native, index = self.native, future.partition_index
            return DeliveryTimeoutError(*self._explain(future, lambda reports: _expiry(reports, where, native, index)))
        if result == _native.RESULT_FAILED:
            return DeliveryFailedError(*self._explain(future, lambda reports: _failure(reports, where, error_code)))
        if result == _native.RESULT_ABORTED:
            return DeliveryAbortedError(*self._explain(future, lambda reports: _abort_sentence(reports, where)))
        if future.completion == RESULT_ABANDONED:
            return DeliveryAbortedError(
                f"the record for {where} is in an arena that was removed, and no sender is left to deliver it"
            )
        if result == _native.RESULT_CORRUPT:
            return DeliveryFailedError(f"the batch of the record for {where} was damaged in memory and was not sent")
        (given_up,) = self._explain(future, lambda reports: (reason_of_giving_up(reports, where, future.seq),))
        if given_up:
            return DeliveryFailedError(given_up)
        return ResultExpiredError(
            f"the result of the record for {where} was overwritten before it was read: read it sooner, or create the "
            "arena with a larger completion_count"
        )

    def translated_error(self, error: DeliveryError) -> DeliveryError:
        """Returns the error as users get it. Here, it is unchanged."""
        return error

    def _explain(self, future: DeliveryFuture, find: Callable[[list[Report]], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Returns the arguments of an exception that depends on the arena's error log.

        The log changes, so the arguments are cached per batch. A callback and a later `get` raise the same error.
        """
        assert future.completion is not None
        result, error_code = future.completion[:2]
        key = (future.partition_index, future.seq, result, error_code)
        arguments = self._explained.get(key)
        if arguments is None:
            arguments = find(read_reports(self.native))
            if len(self._explained) >= REASONS_MAX:
                self._explained.pop(next(iter(list(self._explained))), None)
            self._explained[key] = arguments
        return arguments

    # --- call observers

    @property
    def result_count(self) -> int:
        """The number of results ever recorded in the arena, or -1 if its memory is lost."""
        native = self.native
        return -1 if native.is_lost else native.completion_tail

    def results(self, first: int, last: int) -> Sequence[tuple[int, ...]]:
        """Returns the results [first, last) without overwritten results."""
        return self.native.completions(first, last)

    def observe(self, future: DeliveryFuture, observer: Observer) -> None:
        """Calls the observer with the future when its result is known: at once, or in the tracker's thread.

        If `stop` runs meanwhile in another thread, it either counts this observer, or has already discarded all others.
        In the second case, the tracker starts again.
        """
        if self._waiters.add(future, observer):
            if self._is_abandoned:  # read after the addition, because `stop` sets it before it discards
                self._is_stopped = self._is_abandoned = False
            self.ensure_thread()
            return
        try:
            observer(future)
        except Exception:  # noqa: BLE001 - user code may raise anything
            log_exception(logger, "a callback of %r failed", future)

    def ensure_thread(self) -> None:
        """Starts the thread if there is work and no thread. The next call retries a start that fails."""
        if not self._has_thread() and self._waiters.native.waiting_count:
            self._thread = started_thread(self._run, "shmaccum-delivery", logger)

    def _has_thread(self) -> bool:
        """True if a thread holds the run lock, or is about to take it."""
        owner, thread = self._owner, self._thread
        if self._run_lock.locked() and owner is not None and not owner.is_alive():
            self._run_lock = threading.Lock()  # something ended the thread from outside
        return self._run_lock.locked() or (thread is not None and thread.is_alive())

    def _run(self) -> None:
        """Runs while this thread holds the run lock. Then checks for waiters that were added meanwhile."""
        run_lock = self._run_lock
        while run_lock.acquire(blocking=False):
            self._owner = self._thread = threading.current_thread()
            try:
                is_closed = self._check_until_idle()
            finally:
                self._owner = None
                run_lock.release()
                self._thread = None
            if is_closed or self._is_stopped or not self._waiters.native.waiting_count:
                return

    def _check_until_idle(self) -> bool:
        """Returns True if the arena is closed, so no more results become known."""
        watch: RemovalWatch | None = None
        while True:
            try:
                watch = watch or RemovalWatch(self._late or self.arena)
                if self._is_stopped or not self._check(watch):
                    self._check_last()
                    return False
            except (ArenaClosedError, ArenaRemovedError):  # noqa: PERF203 - no more results become known
                return True
            except BaseException:  # noqa: BLE001 - the thread survives every exception
                log_exception(logger, "the callbacks of %s pause for %g s", self.arena.name, RETRY_S)
                time.sleep(RETRY_S)

    def _check(self, watch: RemovalWatch) -> bool:
        """Waits for results, and calls the observers of those that came. Returns False if no future waits."""
        self._wait()
        if not self._waiters.native.waiting_count:
            return False
        self._waiters.end()
        if not self._call_observers() and not self._is_stopped and watch.is_abandoned():
            self._waiters.give_up()
            self._call_observers()
        return True

    def _wait(self) -> None:
        """Waits until a result of a waiter came, but at most for a slice. Polls if this process is not attached."""
        if cooperative.patched_by() is None and (self.is_unreadable or not self.native.is_read_only):
            self._waiters.native.wait(self.native, TRACKER_IDLE_NS, TRACKER_SLICE_NS)
            return
        deadline_s = clock.monotonic() + TRACKER_IDLE_NS / NS_PER_S
        cooperative.sleep(CHECK_S)
        while not (self._waiters.native.waiting_count or self._is_stopped) and clock.monotonic() < deadline_s:
            cooperative.sleep(CHECK_S)

    def _check_last(self) -> None:
        """Calls the observers of all known results after the producer was closed."""
        self._waiters.check()
        self._call_observers()

    def _call_observers(self) -> bool:
        """Calls the observers of ended waiters. Returns False if there is none. The thread survives every exception."""
        has_called = False
        while not self._is_abandoned:
            try:
                if not self._waiters.call_next():
                    return has_called
            except BaseException:  # noqa: BLE001 - of user code
                log_exception(logger, "a callback tried to end the thread that calls callbacks of %s", self.arena.name)
            has_called = True
        return has_called

    def stop(self, timeout_s: float) -> int:
        """Ends the thread after it has called the observers of all known results.

        A callback that runs longer continues in the thread, which calls no other callback. Futures can still be
        queried, and no sender is woken for them.

        Args:
            timeout_s: the time for callbacks.

        Returns:
            The number of callbacks that will not be called.
        """
        self._wake_waiting_sender = None
        self._is_stopped = True
        self._waiters.native.wake()
        if self._owner is threading.current_thread():
            self._check_the_rest()
        else:
            self._wait_for_thread(timeout_s)
        self._is_abandoned = True
        uncalled = self._waiters.native.clear()
        for results in listed(self.loops.values()):
            results.give_up()
        self.loops.clear()
        return uncalled

    def _wait_for_thread(self, timeout_s: float) -> None:
        self.ensure_thread()  # the last start may have failed
        thread = self._thread
        if thread is not None:
            thread.join(None if timeout_s == math.inf else max(timeout_s, STOP_PATIENCE_S))
        elif not self._run_lock.locked():
            self._check_the_rest()

    def _check_the_rest(self) -> None:
        """Runs in the closing thread, if it is the tracker's own thread, or if the tracker has no thread."""
        with contextlib.suppress(ArenaError):  # closed: no more results become known
            self._check_last()


class TaskWaiter:
    """Wakes an event loop's task that awaits one result. Any thread may call it.

    Args:
        loop: the loop that runs in the current thread.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self.waiter: Future[None] = loop.create_future()

    def __call__(self, _future: DeliveryFuture) -> None:
        if threading.get_ident() == self._thread:
            self._wake()
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed: no task waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)


class _AbandonedError(ArenaRemovedError):
    """No more results arrive, because the arena was removed and has no sender."""


def wait_for_results(native: _native.Arena, tail: int, timeout_ns: int) -> int:
    """Waits until the number of results is not `tail`, and returns it. Polls if this process is not attached."""
    with contextlib.suppress(CorruptArenaError):  # its memory is lost, which the next look-up reports
        if not native.is_read_only:
            return cooperative.wait_completion(native, tail, timeout_ns)
    if native.is_lost:
        return -1
    time.sleep(min(CHECK_S, timeout_ns / 1e9))
    return native.completion_tail


def _expiry(
    reports: Iterable[Report], where: str, native: _native.Arena, partition_index: int
) -> tuple[str, int | None, bool]:
    """Returns sentence, timeout and rule for an expired record, with the reason if the error log still has it."""
    reason = "; ".join(filter(None, (stuck_clause(native, partition_index), reason_of_expiry(reports, where))))
    clock = DeliveryClockReading.of(native)
    span = ""
    if clock.timeout_ns is not None:
        rule = "of all time" if clock.counts_always else "of time in which delivery was possible"
        span = f" ({format_duration_ns(clock.timeout_ns)} {rule})"
    sentence = f"the record for {where} was not delivered within delivery_timeout_ms{span}"
    timeout_ms = None if clock.timeout_ns is None else clock.timeout_ns // NS_PER_MS
    return f"{sentence}: {reason}" if reason else sentence, timeout_ms, clock.counts_always


def _failure(reports: Iterable[Report], where: str, error_code: int) -> tuple[str, int]:
    """Returns sentence and code for a record that the sink rejected, with the reason if the error log still has it."""
    return f"the sink rejected the record: {reason_of_refusal(reports, where, error_code)}", error_code


def _abort_sentence(reports: Iterable[Report], where: str) -> tuple[str]:
    """Returns the sentence for a record that a sender gave up."""
    reason = reason_of_abort(reports)
    sentence = f"the sender gave up the record for {where} before it was sent"
    return (f"{sentence}: {reason}" if reason else sentence,)


# --- trackers of this process

_trackers: weakref.WeakSet[DeliveryTracker] = weakref.WeakSet()
_by_arena: weakref.WeakValueDictionary[bytes, DeliveryTracker] = weakref.WeakValueDictionary()


def _after_fork_in_child() -> None:
    for tracker in listed(_trackers):
        tracker.reset()


os.register_at_fork(after_in_child=_after_fork_in_child)


def tracker_of(name: str, mode: int, uuid: bytes) -> DeliveryTracker:
    """Returns a tracker of this process for an arena. Attaches to the arena if there is none.

    Raises:
        ArenaNotFoundError: that arena was removed.
        ArenaError: see `Arena.attach`.
    """
    tracker = _by_arena.get(uuid)
    if tracker is None or tracker.arena.closed:
        arena = Arena.attach(name, mode=mode)
        if arena.uuid != uuid:
            arena.close()
            raise ArenaNotFoundError(f"the arena {name!r} of this future was removed, and another arena has its name")
        tracker = _by_arena[uuid] = DeliveryTracker(arena)
    return tracker
