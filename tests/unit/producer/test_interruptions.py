# SPDX-License-Identifier: Apache-2.0
"""Signal handlers, finalizers and callbacks may call a producer at any moment, and no exception ends its threads.

A test that may deadlock runs in a separate process, which a watchdog kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Producer, Sender
from shmaccum.arena import Arena, flusher
from shmaccum.common import clock
from shmaccum.config import ServerOptions
from shmaccum.exceptions import ArenaInUseError, SenderNotStartedError
from shmaccum.log.files import LogDirectory
from shmaccum.log.server import server_thread
from shmaccum.log.server.server import LogServer
from shmaccum.log.server.worker import Worker
from shmaccum.logging import ArenaHandler
from shmaccum.producer import producer as producer_module
from shmaccum.producer.delivery import DeliveryTracker
from shmaccum.sender.sinks.null import NullSink
from shmaccum.supervisor import Recipe, SenderSupervisor, supervisor
from tests.support.arenas import Drainer, end_senders
from tests.support.processes import WATCHDOG_S, wait_until

TOPIC = "t"
INTERVAL: dict[str, Any] = {"durability": "interval", "sync_interval_ms": 1000}
ENDING = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, MemoryError)
"""Exceptions of user code that a thread has to survive."""


@pytest.fixture
def arena(arena_name: str) -> Iterator[Arena]:
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB", topics={TOPIC: 1, "u": 1}) as arena:
        yield arena


@pytest.fixture
def small(arena_name: str) -> Iterator[Arena]:
    """An arena that a few records fill."""
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="16KiB", topics={TOPIC: 1}) as arena:
        yield arena


def run_watched(code: str, *arguments: object) -> str:
    """Run a program that must not block, and return its output."""
    program = f"{PRELUDE}\n{code}"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


PRELUDE = """
import gc, os, signal, sys, threading, time
import shmaccum
from tests.support.arenas import Drainer, end_senders
from tests.support.processes import wait_until
name = sys.argv[1]
"""


# --- exceptions of callbacks


@pytest.mark.parametrize("ending", ENDING)
def test_callbacks_continue_after_one_that_raised(arena: Arena, ending: type[BaseException]) -> None:
    def give_up(_metadata: object) -> None:
        raise ending

    told: list[int] = []
    with Drainer(arena), Producer(arena) as producer:
        producer.send(TOPIC, b"first").add_callback(give_up)
        wait_until(lambda: not producer._tracker._waiters.native.waiters(), "the first was told")
        for number in range(5):
            producer.send(TOPIC, b"v").add_callback(lambda _, number=number: told.append(number))
        wait_until(lambda: told == [0, 1, 2, 3, 4], "all others were told")


@pytest.mark.parametrize("ending", ENDING)
def test_callbacks_continue_after_an_interceptor_that_raised(arena: Arena, ending: type[BaseException]) -> None:
    acknowledged: list[object] = []

    class Interceptor:
        def on_acknowledgement(self, metadata: object, _error: object) -> None:
            acknowledged.append(metadata)
            raise ending

    with Drainer(arena), Producer(arena, interceptors=[Interceptor()], linger_ms=50) as producer:
        for _ in range(3):
            producer.send(TOPIC, b"v")
        wait_until(lambda: len(acknowledged) == 3, "the interceptor was told of all")


def test_callbacks_continue_where_a_logging_handler_raises_everything(arena: Arena) -> None:
    class Rude(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            raise SystemExit

    def fail(_metadata: object) -> None:
        raise ValueError

    told: list[object] = []
    rude = Rude()
    logging.getLogger("shmaccum").addHandler(rude)
    try:
        with Drainer(arena), Producer(arena, linger_ms=50) as producer:
            for callback in (fail, told.append):
                producer.send(TOPIC, b"v").add_callback(callback)
            wait_until(lambda: len(told) == 1, "the second was told")
    finally:
        logging.getLogger("shmaccum").removeHandler(rude)


def test_callbacks_continue_where_a_look_fails_once(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmaccum.producer.delivery.RETRY_S", 0.01)
    results, failures = DeliveryTracker.results, [SystemExit(), MemoryError()]

    def fail_first(self: DeliveryTracker, first: int, last: int) -> Any:
        if failures:
            raise failures.pop()
        return results(self, first, last)

    monkeypatch.setattr(DeliveryTracker, "results", fail_first)
    told: list[object] = []
    with Drainer(arena), Producer(arena, linger_ms=50) as producer:
        producer.send(TOPIC, b"v").add_callback(told.append)
        wait_until(lambda: len(told) == 1, "it was told")
    assert failures != [] or told


# --- threads that cannot start


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of threads whose next start fails."""
    begin, refused = threading.Thread.start, ["shmaccum-delivery", "shmaccum-supervisor", "shmaccum-flusher"]

    def begin_second(self: threading.Thread) -> None:
        if self.name in refused:
            refused.remove(self.name)
            raise RuntimeError("can't start new thread")
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", begin_second)
    return refused


@pytest.mark.usefixtures("no_thread")
def test_a_thread_of_callbacks_that_could_not_start_starts_with_the_next_callback(arena: Arena) -> None:
    told: list[int] = []
    with Drainer(arena), Producer(arena, linger_ms=1000) as producer:
        producer.send(TOPIC, b"1").add_callback(lambda _: told.append(1))
        producer.send(TOPIC, b"2").add_callback(lambda _: told.append(2))
        producer.flush()
        wait_until(lambda: told == [1, 2], "both were told")


@pytest.mark.parametrize(("failure_count", "caller"), [(2, "shmaccum-delivery"), (3, "MainThread")])
def test_close_calls_the_callbacks_of_a_thread_that_could_not_start(
    arena: Arena, no_thread: list[str], failure_count: int, caller: str
) -> None:
    """The callback, the flush of the close, and the end of the close try to start it."""
    no_thread += ["shmaccum-delivery"] * (failure_count - 1)
    callers: list[str] = []
    with Drainer(arena):
        producer = Producer(arena, linger_ms=1000)
        producer.send(TOPIC, b"1").add_callback(lambda _: callers.append(threading.current_thread().name))
        producer.close()
    assert callers == [caller]


@pytest.mark.usefixtures("no_thread")
def test_a_supervisor_that_could_not_start_starts_with_a_later_call(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_S", 0.0)
    with Producer(arena, sink=f"log:{tmp_path}/log") as producer:
        found = producer._supervisor
        assert found is not None
        before = found.is_running
        producer.send(TOPIC, b"1").get(WATCHDOG_S)
        producer.flush()
        assert (before, found.is_running) == (False, True)
    end_senders(arena)


@pytest.mark.usefixtures("no_thread")
def test_a_flusher_that_could_not_start_starts_with_a_later_call(tmp_path: Path) -> None:
    with Arena.create(tmp_path / "arena", buffer_memory="256KiB", **INTERVAL, topics={TOPIC: 1}) as arena:
        flushing = arena._flusher
        assert flushing is not None
        before = flushing.is_running
        with Drainer(arena), Producer(arena) as producer:
            producer.send(TOPIC, b"1")
            producer.flush()
            assert (before, flushing.is_running) == (False, True)
    Arena.remove(tmp_path / "arena")


def test_a_flusher_continues_after_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "RETRY_S", 0.01)
    looks: list[None] = []

    def fail(_self: object, _stop: object) -> bool:
        looks.append(None)
        time.sleep(0.01)
        return len(looks) > 3

    class Native:
        closed = False
        is_attached = True

        def force_if_due(self, _interval_ns: int) -> None:
            raise SystemExit

    monkeypatch.setattr(flusher.Flusher, "_must_stop", fail)
    forced = flusher.Flusher(Native(), 10)  # type: ignore[arg-type]
    assert forced._thread is not None
    forced._thread.join(WATCHDOG_S)
    assert len(looks) == 4


# --- handlers and finalizers that interrupt

BETWEEN = """
told = []
producer = shmaccum.Producer(name, linger_ms=0)
start, between = threading.Thread.start, [{between}]
def started(self):
    while between:
        between.pop()()
    start(self)
threading.Thread.start = started
with Drainer(producer.arena):
    producer.send("t", b"1").add_callback(lambda _: told.append(1))
    wait_until(lambda: len(told) >= 1, "it was told")
    {after}
producer.close(10)
print(sorted(told))
"""


@pytest.mark.parametrize(
    "between",
    [
        "lambda: producer.send('t', b'2').add_callback(lambda _: told.append(2))",
        "lambda: producer.send('u', b'2').add_both(lambda _: told.append(2))",
    ],
)
@pytest.mark.parametrize("kind", ["handler", "finalizer"])
def test_a_callback_may_be_added_while_another_one_is_added(arena: Arena, between: str, kind: str) -> None:
    """The interruption is while the tracker's thread starts, where the tracker once held its lock."""
    if kind == "handler":
        prepared = f"signal.signal(signal.SIGUSR1, lambda *_: ({between})())"
        between = "lambda: signal.raise_signal(signal.SIGUSR1)"
    else:
        prepared = (
            f"class Late:\n    def __del__(self): ({between})()\n"
            "def collect():\n    late = Late(); late.late = late; del late; gc.collect()"
        )
        between = "collect"
    code = BETWEEN.format(between=between, after="wait_until(lambda: len(told) == 2, 'both were told')")
    assert run_watched(code.replace("told = []\n", "told = []\n" + prepared + "\n", 1), arena.name) == "[1, 2]"


def test_a_finalizer_may_leave_a_supervisor_while_another_one_is_created(arena_name: str, tmp_path: Path) -> None:
    """A cycle with a producer is collected while a thread of a supervisor starts."""
    code = """
    other = name + "b"
    for each in (name, other):
        shmaccum.Arena.remove(each, missing_ok=True)
        shmaccum.Arena.create(each, buffer_memory="256KiB").close()
    log = sys.argv[2]
    gc.disable()
    def make(each):
        return shmaccum.Producer(each, sink=f"log:{log}/{each}", idle_exit_ms=60_000)
    make(other)  # forgotten: a cycle, as every producer is
    start = threading.Thread.start
    def started(self):
        gc.collect()
        start(self)
    threading.Thread.start = started
    make(name).close()
    wait_until(lambda: "shmaccum-supervisor" not in [each.name for each in threading.enumerate()], "both end")
    for each in (name, other):
        with shmaccum.Arena.attach(each) as arena:
            end_senders(arena)
        shmaccum.Arena.remove(each)
    """
    run_watched("\n".join(line.removeprefix("    ") for line in code.splitlines()), arena_name, tmp_path)


CLOSED_IN_HANDLER = """
producer = shmaccum.Producer(name, max_block_ms="60s", linger_ms=0)
raised = []
def leave(*_):
    try:
        producer.close(0)
    except BaseException as error:
        raised.append(repr(error))
signal.signal(signal.SIGUSR1, leave)
main = threading.main_thread().ident
{prepared}
def interrupt():
    wait_until(lambda: {moment}, "it waits")
    signal.pthread_kill(main, signal.SIGUSR1)
threading.Thread(target=interrupt).start()
try:
    {call}
except shmaccum.ProducerClosedError:
    print("ProducerClosedError", end=" ")
assert raised == [], raised
producer.close(0)
wait_until(lambda: producer.arena.closed, "the process has left the arena")
print(producer.closed)
"""
FLUSHING = """
begin, begun = producer._appender.begin_flush, []
producer._appender.begin_flush = lambda: (begun.append(1), begin())[1]
producer.send('t', b'1')
"""
WAITS_FOR_MEMORY = "producer.arena.statistics().waiting_count == 1"


@pytest.mark.parametrize(
    ("prepared", "call", "moment"),
    [
        ("", "while True: producer.send('t', bytes(10_000))", WAITS_FOR_MEMORY),
        ("", "while True: producer.send_many('t', [bytes(10_000)] * 10)", WAITS_FOR_MEMORY),
        ("", "producer.send('unknown', b'1')", "producer.arena.native.topics() == ['t', 'unknown']"),
        ("", "producer.partitions_for('unknown')", "producer._appender.buffer_waiter._waiting_threads"),
        (
            FLUSHING,
            "producer.flush()",
            "begun",
        ),
    ],
    ids=["send", "send_many", "send to a new topic", "partitions_for", "flush"],
)
def test_close_in_a_handler_ends_the_call_that_it_interrupts(
    small: Arena, prepared: str, call: str, moment: str
) -> None:
    code = CLOSED_IN_HANDLER.format(prepared=prepared, call=call, moment=moment)
    assert run_watched(code, small.name) == "ProducerClosedError True"
    with Drainer(small):
        wait_until(lambda: small.native.state_counts()["READY"] + small.native.state_counts()["OPEN"] == 0, "sent")


def test_close_in_a_handler_that_interrupts_close_changes_nothing(small: Arena) -> None:
    code = CLOSED_IN_HANDLER.format(prepared=FLUSHING, call="producer.close(3)", moment="begun")
    assert run_watched(code, small.name) == "True"
    with Drainer(small):
        wait_until(lambda: small.native.state_counts()["READY"] + small.native.state_counts()["OPEN"] == 0, "sent")


def test_an_exception_leaves_out_no_step_of_close(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(arena.name)
    stop = DeliveryTracker.stop

    def interrupt(_self: DeliveryTracker, _timeout_s: float) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(DeliveryTracker, "stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.close(0)
    monkeypatch.setattr(DeliveryTracker, "stop", stop)
    assert producer.arena.closed
    assert not producer._tracker._waiters.native.waiters()
    producer.close(0)


def test_a_second_close_leaves_the_arena_where_the_first_could_not(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(arena.name)
    leave = Producer._leave_arena

    def interrupt(_self: Producer, _deadline_s: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Producer, "_leave_arena", interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.close(0)
    monkeypatch.setattr(Producer, "_leave_arena", leave)
    assert not producer.arena.closed
    producer.close(0)
    assert producer.arena.closed


def test_parts_of_a_pipeline_that_exit_are_closed_all(arena: Arena) -> None:
    closed: list[int] = []

    class Interceptor:
        def __init__(self, number: int) -> None:
            self._number = number

        def close(self) -> None:
            closed.append(self._number)
            sys.exit(self._number)

    producer = Producer(arena.name, interceptors=[Interceptor(1), Interceptor(2)])
    with pytest.raises(SystemExit):
        producer.close(0)
    assert closed == [1, 2]
    assert producer.arena.closed


def test_close_in_a_handler_ends_a_sender_after_its_round(arena: Arena) -> None:
    class ClosingSink(NullSink):
        def write(self, batches: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return super().write(batches)

    former = signal.signal(signal.SIGUSR1, lambda *_: sender.close())
    try:
        with Producer(arena, linger_ms=0) as producer:
            sender = Sender(arena, ClosingSink("", partitions=1))
            future = producer.send(TOPIC, b"1")
            sender.run()
            assert future.get(WATCHDOG_S).topic == TOPIC
        assert not arena.native.sender_is_alive
        assert not arena.native.sender_died
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_a_callback_may_close_its_producer(arena: Arena) -> None:
    with Drainer(arena):
        producer = Producer(arena.name, linger_ms=0)
        told: list[object] = []

        def close(metadata: object) -> None:
            producer.close(WATCHDOG_S)
            told.append(metadata)

        producer.send(TOPIC, b"1").add_callback(close)
        wait_until(lambda: producer.arena.closed and bool(told), "the callback has closed it")


def test_a_finalizer_may_close_a_producer_in_a_call_of_another_one(arena: Arena) -> None:
    class Owner:
        def __init__(self) -> None:
            self.producer = Producer(arena.name)
            self.cycle = self

        def __del__(self) -> None:
            self.producer.close(0)
            closed.append(self.producer.arena.closed)

    closed: list[bool] = []
    Owner()
    with Drainer(arena), Producer(arena, partitioner=lambda *_: gc.collect() * 0) as producer:
        assert producer.send(TOPIC, b"1").get(WATCHDOG_S).offset == 0
    assert closed == [True]


# --- the deadline of close


def test_close_leaves_a_callback_that_runs_longer_than_its_timeout(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    told: list[object] = []

    def wait(_metadata: object) -> None:
        begun.set()
        go_on.wait(2 * WATCHDOG_S)

    with Drainer(arena):
        producer = Producer(arena, linger_ms=1000)
        for callback in (wait, told.append, told.append):
            producer.send(TOPIC, b"1").add_callback(callback)
        producer.flush()
        assert begun.wait(WATCHDOG_S)
        thread = producer._tracker._owner
        producer.close(0.1)
        assert not go_on.is_set()
        go_on.set()
        assert thread is not None
        thread.join(WATCHDOG_S)
    assert not thread.is_alive()
    assert told == []
    assert "2 callbacks will not be called" in caplog.text


def test_a_handler_is_closed_though_its_callback_waits_for_the_lock_of_logging(arena: Arena) -> None:
    begun, is_acknowledged = threading.Event(), threading.Event()

    class Interceptor:
        def on_acknowledgement(self, _metadata: object, _error: object) -> None:
            begun.set()
            logging.getLogger(f"{__name__}.{time.monotonic_ns()}").debug("acknowledged")
            is_acknowledged.set()

    with Drainer(arena):
        handler = ArenaHandler(arena, TOPIC, interceptors=[Interceptor()], linger_ms=100)
        with logging._lock:  # type: ignore[attr-defined] # as dictConfig does
            handler.handle(logging.makeLogRecord({"msg": "hello"}))
            assert begun.wait(WATCHDOG_S)
            handler.close()
            assert not is_acknowledged.is_set()
        assert is_acknowledged.wait(WATCHDOG_S)
        wait_until(lambda: not handler._producer._tracker._has_thread(), "the thread has ended")


def test_the_end_of_a_process_has_one_deadline_for_all_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three producers would use its whole time-out."""
    now_s = [100.0]
    given: list[float] = []

    class Options:
        def __init__(self, close_timeout_ms: int) -> None:
            self.close_timeout_ms = close_timeout_ms

    class Patient:
        def __init__(self, close_timeout_ms: int) -> None:
            self.options = Options(close_timeout_ms)

        def will_be_delivered(self) -> bool:
            return True

        def close(self, timeout: float) -> None:
            given.append(timeout)
            now_s[0] += timeout

    monkeypatch.setattr(producer_module, "_producers", [Patient(3000), Patient(10_000), Patient(10_000)])
    monkeypatch.setattr(clock, "monotonic", lambda: now_s[0])
    producer_module._close_at_exit()
    assert given == [3.0, 7.0, 0.0]


def test_ctrl_c_at_the_end_of_a_process_ends_the_waits_and_closes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[float] = []

    class Impatient:
        class options:  # noqa: N801 - the attribute of a producer
            close_timeout_ms = 10_000

        def will_be_delivered(self) -> bool:
            return True

        def close(self, timeout: float) -> None:
            closed.append(timeout)
            raise KeyboardInterrupt

    monkeypatch.setattr(producer_module, "_producers", [Impatient(), Impatient()])
    with pytest.raises(KeyboardInterrupt):
        producer_module._close_at_exit()
    assert closed[1:] == [0.0]


def test_a_producer_leaves_the_arena_after_the_call_that_kept_it(arena: Arena) -> None:
    """The exported view acts like a native call in another thread."""
    producer = Producer(arena.name)
    view = producer.arena.native.region("globals")
    producer.close(0)
    assert not producer.arena.closed
    with pytest.raises(ArenaInUseError):
        producer.arena.close()
    view.release()
    wait_until(lambda: producer.arena.closed, "the process has left")


# --- the supervisor


def test_a_supervisor_continues_after_every_exception(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "ABSENT_CHECK_S", 0.01)
    check, failures = SenderSupervisor._check, [raised() for raised in ENDING]

    def fail_first(self: SenderSupervisor, looked: Arena) -> None:
        if failures:
            raise failures.pop()
        check(self, looked)

    monkeypatch.setattr(SenderSupervisor, "_check", fail_first)
    with Producer(arena, sink=f"log:{tmp_path}/log") as producer:
        found = producer._supervisor
        assert found is not None
        wait_until(lambda: not failures and found._adopted_s is not None, "the supervisor has met the sender")
    assert "continues after an exception" in caplog.text
    end_senders(arena)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_supervisor_starts_a_sender_again_when_no_process_could_be_forked(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with Producer(arena, sink=f"log:{tmp_path}/log") as producer:
        run, failures = subprocess.run, [OSError(number, os.strerror(number)) for _ in range(2)]

        def fail_first(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return run(*arguments, **options)

        monkeypatch.setattr(subprocess, "run", fail_first)
        pid = next(row["pid"] for row in arena.native.processes() if row["role"] == "sender")
        os.kill(pid, signal.SIGKILL)
        assert producer.send(TOPIC, b"1").get(WATCHDOG_S).offset == 0
        assert any(os.strerror(number) in sentence for sentence in producer.errors())
    end_senders(arena)


def test_a_sender_that_cannot_be_forked_is_reported_with_advice(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any, **_options: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(SenderNotStartedError, match=r"temporarily unavailable.*ulimit -u"):
        Producer(arena, sink="null:")


def test_a_caller_of_keep_and_a_thread_that_ends_see_each_other(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an arena joins after the thread has found none and before it ends, the thread takes it."""
    monkeypatch.setattr(SenderSupervisor, "ensure_thread", lambda _: None)
    kept = SenderSupervisor(arena, Recipe("null:"))
    kept.leave(arena)
    looks: list[Callable[[], object]] = [lambda: kept.join(arena)]
    find = SenderSupervisor._arena

    def joined_meanwhile(self: SenderSupervisor) -> Arena | None:
        found = find(self)
        if looks:
            looks.pop()()
        return found

    monkeypatch.setattr(SenderSupervisor, "_arena", joined_meanwhile)
    assert kept._wanted_arena() is arena
    assert not kept._is_over
    kept.leave(arena)
    assert kept._wanted_arena() is None
    assert not kept.join(arena)
    supervisor._supervisors.discard(kept)
    with contextlib.suppress(ValueError):
        kept._arenas.remove(arena)


# --- threads of a sender's process


def test_the_thread_of_a_server_continues_after_every_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_thread, "RETRY_S", 0.01)
    run, failures = LogServer.run, [raised() for raised in ENDING]

    def fail_first(self: LogServer) -> None:
        if failures:
            raise failures.pop()
        run(self)

    monkeypatch.setattr(LogServer, "run", fail_first)
    with LogDirectory(tmp_path / "log") as log:
        thread = server_thread.ServerThread(log, "127.0.0.1:0", ServerOptions())
        wait_until(lambda: not failures, "the loop was started again")
        with socket.create_connection(("127.0.0.1", thread.port), WATCHDOG_S):
            pass
        thread.close()
        assert not thread._thread.is_alive()


def test_the_end_of_a_server_does_not_wait_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(_self: LogServer) -> None:
        begun.set()
        go_on.wait(2 * WATCHDOG_S)

    monkeypatch.setattr(LogServer, "run", wait)
    with LogDirectory(tmp_path / "log") as log:
        thread = server_thread.ServerThread(log, "127.0.0.1:0", ServerOptions())
        assert begun.wait(WATCHDOG_S)
        thread.close(0.1)
        assert thread._thread.is_alive()
        go_on.set()
        thread._thread.join(WATCHDOG_S)
        thread._server.close()


@pytest.mark.parametrize("failure", [UnicodeError("label too long"), SystemExit()])
def test_a_look_up_that_fails_in_any_way_has_an_outcome(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = pytest.importorskip("shmaccum.sender.sinks.kafka.library.lookup")

    class Net:
        def call_soon_threadsafe(self, finish: Callable[[], object]) -> None:
            finish()

    def fail(*_arguments: object) -> None:
        raise failure

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    future = lookup.Lookup(Net(), "broker.example", 9092).future
    wait_until(lambda: future.is_done, "the look-up has an outcome")
    assert future.failed()


def test_a_look_up_without_a_thread_has_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = pytest.importorskip("shmaccum.sender.sinks.kafka.library.lookup")

    def fail(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert lookup.Lookup(None, "broker.example", 9092).future.failed()


def test_a_computation_without_a_thread_is_done_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    worker = Worker(lambda: None, "test")
    monkeypatch.setattr(threading.Thread, "start", fail)
    concluded: list[int] = []
    worker.ask(lambda: 7, concluded.append)
    assert concluded == [7]


# --- confluent-kafka's options


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt, ValueError])
def test_close_calls_the_other_callbacks_of_confluent_where_one_raises(
    arena_name: str, tmp_path: Path, ending: type[BaseException]
) -> None:
    confluent = pytest.importorskip("shmaccum.compat.confluent")
    told: list[int] = []

    def give_up(_error: object, _message: object) -> None:
        raise ending

    producer = confluent.Producer(
        {"bootstrap.servers": "x:1", "shmaccum.arena": arena_name, "shmaccum.sink": f"log:{tmp_path}/log"}
    )
    producer.produce(TOPIC, b"1", on_delivery=give_up)
    for number in range(3):
        producer.produce(TOPIC, b"1", on_delivery=lambda _error, _message, number=number: told.append(number))
    with pytest.raises(ending):
        producer.close()
    assert told == [0, 1, 2]
    with Arena.attach(arena_name) as arena:
        end_senders(arena)
