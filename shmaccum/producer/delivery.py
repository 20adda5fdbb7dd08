# SPDX-License-Identifier: Apache-2.0
"""Results of records: the tracker that looks them up for futures, and tells of them.

A result stands in the arena's completion ring, where every process can read it. So a future can be asked in the process
that sent, in a child that it forked, or, pickled, anywhere on the host. Nothing runs for a future that nobody asked.
Callbacks need somebody who waits meanwhile: that is one thread per `DeliveryTracker`, started by the first of them and
ended when there is nothing to wait for. For ``await`` the event loop waits itself (`shmaccum.producer.loop_results`).
Either walks the ring once, however many futures there are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shmaccum import _native
from shmaccum._native import DeliveryFuture
from shmaccum.arena import Arena
from shmaccum.arena.delivery_span import NS_PER_MS, DeliveryClock, record_left
from shmaccum.arena.places import Places
from shmaccum.arena.removal import RemovalWatch, removed_error
from shmaccum.arena.reports import Report, read_reports, reason_of_abortion, reason_of_expiry, reason_of_refusal
from shmaccum.exceptions import (
    ArenaError,
    ArenaNotFoundError,
    ArenaRemovedError,
    CorruptArenaError,
    DeliveryAbortedError,
    DeliveryError,
    DeliveryFailedError,
    DeliveryTimeoutError,
    InvalidArgumentError,
    RecordCorruptError,
    ResultExpiredError,
)
from shmaccum.format.topic_partition import TopicPartition
from shmaccum.units import format_duration_ns, parse_timeout_s

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

logger = logging.getLogger(__name__)

TRACKER_SLICE_NS = 50_000_000
TRACKER_IDLE_S = 2.0
FIRST_SLICE_NS = 10**7
GET_SLICE_NS = 10**9
RESULT_LOST = (0, 0, -1, -1, 0, 0)
"""A completion whose result is none: it was overwritten before it was read."""
RESULT_ABANDONED = (-1, 0, -1, -1, 0, 0)
"""The completion of a record in an arena that was removed and has no sender."""
LOOK_S = 0.01
"""Between two looks into an arena to which this process is not attached."""
REASONS_MAX = 256

Observer: TypeAlias = Callable[[DeliveryFuture], object]


class RecordMetadata(NamedTuple):
    """Where a record went (kafka-python's fields and order).

    Attributes:
        offset: its place in the partition; -1 where the sink has none or did not tell.
        timestamp: milliseconds since 1970: the record's own, or the log's where it appends its own time.
        checksum: always None; Kafka dropped it with its second message format.
        serialized_key_size, serialized_value_size, serialized_header_size: bytes; -1 for null, or no headers.
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


class DeliveryTracker:
    """Looks up the results of futures, and waits for those that somebody wants to be told of.

    Usable by all threads. A forked child starts with nothing to tell: callbacks belong to the process that asked.

    Args:
        arena: in which the results are; stays open as long as the tracker is used.
        hurry: called before every wait for a result: where records do not linger it wakes a napping sender
            (docs/decisions/0020).
    """

    def __init__(self, arena: Arena, hurry: Callable[[], object] | None = None) -> None:
        self.arena = arena
        self._uuid, self._mode = arena.uuid, arena.mode
        self._late: Arena | None = None
        self._is_let_go = False
        self._hurry = hurry
        self._places = Places(arena.native)
        self._explained: dict[tuple[int, int, int, int], tuple[Any, ...]] = {}
        self.start_anew()
        _trackers.add(self)
        _by_arena.setdefault(arena.uuid, self)

    def start_anew(self) -> None:
        """Forgets all callbacks and waiters. A child of a fork begins with this."""
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._telling = threading.Lock()
        self._observed: dict[tuple[int, int], list[tuple[DeliveryFuture, Observer]]] = {}
        self._thread: threading.Thread | None = None
        self._tail = 0
        self._is_stopped = False
        self.loops: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    # --- look up

    def is_known(self, future: DeliveryFuture) -> bool:
        """True when the future has its result, or finds it now."""
        return future.completion is not None or self.look_up(future)

    def look_up(self, future: DeliveryFuture) -> bool:
        """Notes the future's result if it is known; True when it is."""
        try:
            completion = self._native().find(future)
        except ResultExpiredError:
            completion = RESULT_LOST
        if completion is not None:
            future.completion = completion
        return completion is not None

    def wait_for(self, future: DeliveryFuture, timeout: float | None) -> bool:
        """Waits for the result of a future; False when the time, in seconds, is over."""
        try:
            return future.completion is not None or self.wait_until(lambda: self.look_up(future), timeout, future)
        except _AbandonedError:
            future.completion = RESULT_ABANDONED
            return True

    def wait_until(
        self, is_known: Callable[[], bool], timeout: float | None, future: DeliveryFuture | None = None
    ) -> bool:
        """Waits for results until what one waits for is known; False when the time, in seconds, is over.

        Args:
            future: as `hurry` takes it.
        """
        native = self._native()
        timeout_s = parse_timeout_s(timeout)
        tail = native.completion_tail
        if is_known():
            return True
        deadline_s = time.monotonic() + timeout_s
        if timeout_s > 0:
            self.hurry(future)
        watch: RemovalWatch | None = None  # most results come before the first look
        slice_ns = FIRST_SLICE_NS
        while (left_s := deadline_s - time.monotonic()) > 0:
            tail = _wait_for_results(native, tail, int(min(left_s * 10**9, slice_ns)))
            if is_known():
                return True
            slice_ns = GET_SLICE_NS
            watch = watch or RemovalWatch(self._late or self.arena)
            if watch.is_abandoned():
                raise _AbandonedError(str(removed_error(watch.arena)))
        return False

    def let_go(self) -> None:
        """The process leaves the arena: from now on each result is looked for in a mapping that is only read."""
        with contextlib.suppress(InvalidArgumentError):
            self.topic_partition(0)  # reads the names of all
        self._is_let_go = True

    def _native(self) -> _native.Arena:
        """The handle to look for results with.

        Raises:
            ArenaRemovedError: the process has left the arena, and its name leads there no more.
            ArenaClosedError: by the first use of the handle of an arena that its owner closed.
        """
        if not (self._is_let_go and self.arena.closed):
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
            f"the producer that sent the record was closed, and its arena {self.arena.name} was removed since then: "
            "its result cannot be known here any more. Ask futures before close()"
        )

    def hurry(self, future: DeliveryFuture | None = None) -> None:
        """Wakes a napping sender, where records do not linger.

        Args:
            future: of the only record that is waited for. A sender that has taken it out already waits for the answer
                of its sink, and a ring would wake it for nothing.
        """
        if self._hurry is not None and (future is None or not self._native().is_under_way(future)):
            self._hurry()

    @property
    def address(self) -> tuple[str, int, bytes]:
        """Where the arena is: its name, its mode, and its UUID."""
        return self.arena.name, self._mode, self._uuid

    def what_is_left(self, future: DeliveryFuture) -> str:
        """How long the record may still be delivered, in words; empty when that is not known."""
        return record_left(self._native(), future.slot_index, future.seq)

    def topic_partition(self, partition_index: int) -> TopicPartition:
        """The name of a row in the arena's table of partitions, which only grows.

        Raises:
            InvalidArgumentError: there is no such row.
        """
        try:
            return self._places[partition_index]
        except CorruptArenaError:
            raise InvalidArgumentError(
                f"the future is of another arena: {self.arena.name} has no partition with the index {partition_index}"
            ) from None

    def offset_of(self, future: DeliveryFuture) -> int:
        """The offset of a record whose result is known; -1 where the sink has none or did not tell."""
        assert future.completion is not None
        _, _, base_offset, _, first_record, _ = future.completion
        return -1 if base_offset < 0 else base_offset + future.record_index - first_record

    def metadata_of(self, future: DeliveryFuture) -> RecordMetadata:
        """The place of a record whose result is known."""
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
        """Why a record was not delivered whose result is known; None when it was."""
        error = self._failure_of(future)
        return None if error is None else self.told(error)

    def _failure_of(self, future: DeliveryFuture) -> DeliveryError | None:
        assert future.completion is not None
        result, error_code = future.completion[:2]
        if result == _native.RESULT_SUCCEEDED:
            return None
        where = "{}-{}".format(*self.topic_partition(future.partition_index))
        if result == _native.RESULT_EXPIRED:
            native = self._native()
            return DeliveryTimeoutError(*self._explain(future, lambda reports: _expiry(reports, where, native)))
        if result == _native.RESULT_FAILED:
            return DeliveryFailedError(*self._explain(future, lambda reports: _failure(reports, where, error_code)))
        if result == _native.RESULT_ABORTED:
            return DeliveryAbortedError(*self._explain(future, lambda reports: _abortion(reports, where)))
        if future.completion == RESULT_ABANDONED:
            return DeliveryAbortedError(
                f"the record for {where} is in an arena that was removed, and no sender is left that could deliver it"
            )
        if result == _native.RESULT_CORRUPT:
            return RecordCorruptError(f"the batch of the record for {where} was damaged in memory and was not sent")
        return ResultExpiredError(
            f"the result of the record for {where} was overwritten before it was read: ask sooner, or create the arena "
            "with a larger completion_count"
        )

    def told(self, error: DeliveryError) -> DeliveryError:
        """The error as the user is told of it: the same here."""
        return error

    def _explain(self, future: DeliveryFuture, find: Callable[[list[Report]], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The arguments of an exception that rests on the arena's error log.

        The log changes. The arguments for a batch are kept, so that a callback and a later `get` say the same.
        """
        assert future.completion is not None
        result, error_code = future.completion[:2]
        key = (future.partition_index, future.seq, result, error_code)
        arguments = self._explained.get(key)
        if arguments is None:
            arguments = find(read_reports(self._native()))
            if len(self._explained) >= REASONS_MAX:
                del self._explained[next(iter(self._explained))]
            self._explained[key] = arguments
        return arguments

    # --- tell

    def observe(self, future: DeliveryFuture, observer: Observer) -> None:
        """Calls the observer with the future when its result is known: from the tracker's thread, or at once."""
        if self.is_known(future):
            _notify([(future, observer)])
            return
        self._add(future, observer, self._ensure_thread)

    def watch(self, future: DeliveryFuture, observer: Observer) -> None:
        """The same for an event loop, which calls `tell` after each ring of the results bell: no thread is started."""
        self._add(future, observer, lambda: None)

    def _add(self, future: DeliveryFuture, observer: Observer, ensure_teller: Callable[[], None]) -> None:
        key = future.partition_index, future.seq
        with self._lock:
            if self._thread is None and not self._observed:
                self._tail = self._native().completion_tail
            self._observed.setdefault(key, []).append((future, observer))
            ensure_teller()
        # The result may have come between the two looks, behind the back of a thread that was just started.
        if self.look_up(future):
            _notify(self._take(key, lambda waiting: waiting[0] is future))

    def forget(self, future: DeliveryFuture, observer: Observer) -> None:
        """Takes an observer away that nobody waits for any more."""
        self._take((future.partition_index, future.seq), lambda waiting: waiting[1] is observer)

    def tell(self) -> None:
        """Tells of the results that came since the last time. Where another thread does so already, that one tells of
        all."""
        while self._native().completion_tail != self._tail and self._telling.acquire(blocking=False):
            try:
                tail = self._native().completion_tail
                self._resolve(self._tail, tail)
                self._tail = tail
            finally:
                self._telling.release()

    def _ensure_thread(self) -> None:
        """Holding the lock."""
        self._is_stopped = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shmaccum-delivery", daemon=True)
            self._thread.start()
        self._news.notify_all()

    def _take(
        self, key: tuple[int, int], is_wanted: Callable[[tuple[DeliveryFuture, Observer]], bool]
    ) -> list[tuple[DeliveryFuture, Observer]]:
        """Takes out of the observed of one batch those that are wanted."""
        with self._lock:
            waiting = self._observed.pop(key, [])
            taken = [one for one in waiting if is_wanted(one)]
            kept = [one for one in waiting if not is_wanted(one)]
            if kept:
                self._observed[key] = kept
        return taken

    def _has_work(self) -> bool:
        """False when the thread is to end; waits a while for something to do before."""
        with self._lock:
            if not self._observed and not self._is_stopped:
                self._news.wait_for(lambda: self._observed or self._is_stopped, TRACKER_IDLE_S)
            if self._observed and not self._is_stopped:
                return True
            self._thread = None
            return False

    def _run(self) -> None:
        with contextlib.suppress(ArenaError):  # closed under us: there is nobody to tell any more
            native = self._native()
            watch = RemovalWatch(self._late or self.arena)
            while self._has_work():
                tail = _wait_for_results(native, self._tail, TRACKER_SLICE_NS)
                if tail != self._tail:
                    self.tell()
                elif watch.is_abandoned():
                    self.give_up_all()

    def _resolve(self, first: int, last: int) -> None:
        """Tells whoever waits for results [first, last); the ring may have overwritten some of them."""
        rows = self._native().completions(first, last)
        for _, partition_index, seq, *completion in rows:
            first_record, record_count = completion[4:]
            places = range(first_record, first_record + record_count)
            ended = self._take((partition_index, seq), lambda waiting: waiting[0].record_index in places)  # noqa: B023
            for future, _ in ended:
                future.completion = tuple(completion)
            _notify(ended)
        if len(rows) < last - first:
            self._look_at_all()

    def give_up_all(self) -> None:
        """No sender is left, so each future that somebody waits for gets the result that says so."""
        with self._lock:
            left = [waiting for some in self._observed.values() for waiting in some]
            self._observed.clear()
        for future, _ in left:
            if not self.look_up(future):
                future.completion = RESULT_ABANDONED
        _notify(left)

    def _look_at_all(self) -> None:
        with self._lock:
            keys = list(self._observed)
        for key in keys:
            _notify(self._take(key, lambda waiting: self.look_up(waiting[0])))

    def stop(self) -> int:
        """Ends the thread and tells of every result that is known; answers how many futures somebody still wanted to be
        told of. They can be asked on, and nobody is hurried for them."""
        self._hurry = None
        with self._lock:
            thread, self._is_stopped = self._thread, True
            self._news.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with contextlib.suppress(ArenaError):  # closed: there is nothing to be known any more
            self._look_at_all()
        with self._lock:
            left = [waiting for some in self._observed.values() for waiting in some]
            self._observed.clear()
        self.loops.clear()
        tasks = [waiting for waiting in left if isinstance(waiting[1], TaskWaiter)]
        _notify(tasks)  # a task is not left waiting; it is told that the result is not known
        return len(left) - len(tasks)


class TaskWaiter:
    """Wakes the task of an event loop that awaits one result; from any thread.

    Args:
        loop: that runs in the thread that makes this.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self.waiter: Future[None] = loop.create_future()

    def __call__(self, _future: DeliveryFuture) -> None:
        if threading.get_ident() == self._thread:
            self._wake()
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)


class _AbandonedError(ArenaRemovedError):
    """No result comes any more: the arena was removed, and has no sender."""


def _wait_for_results(native: _native.Arena, tail: int, timeout_ns: int) -> int:
    """Waits until `tail` is not the number of results any more, and answers that number; only looks where this process
    is not attached."""
    if not native.is_read_only:
        return native.wait_completion(tail, timeout_ns)
    time.sleep(min(LOOK_S, timeout_ns / 1e9))
    return native.completion_tail


def _expiry(reports: Iterable[Report], where: str, native: _native.Arena) -> tuple[str, int | None, bool]:
    """Sentence, timeout and rule of a record that expired, with the reason that the arena's error log still has."""
    reason = reason_of_expiry(reports, where)
    clock = DeliveryClock.of(native)
    span = ""
    if clock.timeout_ns is not None:
        rule = "of all time" if clock.counts_always else "of time in which somebody could deliver"
        span = f" ({format_duration_ns(clock.timeout_ns)} {rule})"
    sentence = f"the record for {where} was not delivered within delivery_timeout_ms{span}"
    timeout_ms = None if clock.timeout_ns is None else clock.timeout_ns // NS_PER_MS
    return f"{sentence}: {reason}" if reason else sentence, timeout_ms, clock.counts_always


def _failure(reports: Iterable[Report], where: str, error_code: int) -> tuple[str, int]:
    """Sentence and code of a record that the sink refused, with the reason that the arena's error log still has."""
    return f"the sink did not take the record: {reason_of_refusal(reports, where, error_code)}", error_code


def _abortion(reports: Iterable[Report], where: str) -> tuple[str]:
    """The sentence of a record that a sender gave up."""
    reason = reason_of_abortion(reports)
    sentence = f"the sender gave the record for {where} up before it was sent"
    return (f"{sentence}: {reason}" if reason else sentence,)


def _notify(ended: Iterable[tuple[DeliveryFuture, Observer]]) -> None:
    """In the order of the records; one observer's exception does not keep the others from being called."""
    for future, observer in sorted(ended, key=lambda waiting: waiting[0].record_index):
        _notify_one(future, observer)


def _notify_one(future: DeliveryFuture, observer: Observer) -> None:
    try:
        observer(future)
    except Exception:  # user code may raise anything
        logger.exception("a callback of %r failed", future)


# --- trackers of this process

_trackers: weakref.WeakSet[DeliveryTracker] = weakref.WeakSet()
_by_arena: weakref.WeakValueDictionary[bytes, DeliveryTracker] = weakref.WeakValueDictionary()


def _after_fork_in_child() -> None:
    for tracker in list(_trackers):
        tracker.start_anew()


os.register_at_fork(after_in_child=_after_fork_in_child)


def tracker_of(name: str, mode: int, uuid: bytes) -> DeliveryTracker:
    """One of this process's trackers of an arena; attaches where there is none.

    Raises:
        ArenaNotFoundError: that arena was removed.
        ArenaError: see `Arena.attach`.
    """
    tracker = _by_arena.get(uuid)
    if tracker is None or tracker.arena.closed:
        arena = Arena.attach(name, mode=mode)
        if arena.uuid != uuid:
            arena.close()
            raise ArenaNotFoundError(f"the arena {name!r} of this future was removed; another one has its name now")
        tracker = _by_arena[uuid] = DeliveryTracker(arena)
    return tracker
