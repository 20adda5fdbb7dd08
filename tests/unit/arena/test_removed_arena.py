# SPDX-License-Identifier: Apache-2.0
"""An arena that was removed: its producers raise, and its sender delivers or exports its records and exits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shmaccum
from shmaccum import _native
from shmaccum._native import DeliveryFuture
from shmaccum.arena import Arena
from shmaccum.arena.removal import EXIT_CODE, has_lost_its_name
from shmaccum.exceptions import (
    ArenaRemovedError,
    BufferExhaustedError,
    DeliveryAbortedError,
    LogBusyError,
    SenderNotStartedError,
)
from shmaccum.log.files import LogReader
from shmaccum.log.files.directory import LogDirectory
from shmaccum.producer import Producer
from shmaccum.sender import Sender, arena_closer
from shmaccum.sender.arena_closer import CHECK_NS, CLOSING_CHECK_NS, ArenaCloser
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Sink
from shmaccum.supervisor import ensure_sender
from tests.support.arenas import end_senders
from tests.support.processes import WATCHDOG_S, Child, wait_until
from tests.support.sender import ScriptedSink
from tests.support.system_calls import dies_at_system_call

TOPIC = "flights"
SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 16, "waiter_count": 8}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.arena"


@pytest.fixture
def arena(path: Path) -> Iterator[Arena]:
    """An arena in a file, with a topic of one partition."""
    with Arena.create(path, **SMALL) as arena:
        arena.native.set_topic_partition_count(TOPIC, 1)
        yield arena
        gc.collect()


@pytest.fixture
def producer(arena: Arena) -> Iterator[Producer]:
    producer = Producer(arena, linger_ms=1, max_block_ms=30_000)
    yield producer
    with contextlib.suppress(ArenaRemovedError):
        producer.close(0)


class Running:
    """A sender in a thread, with the exception that ended it."""

    def __init__(self, arena: Arena, sink: Sink | str, **options: Any) -> None:
        self.sender = Sender(str(arena.name), sink, **options)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.sender.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def has_role(self) -> bool:
        return self.sender.is_open

    def join(self) -> BaseException | None:
        self.thread.join()
        return self.error


@pytest.fixture
def run_sender(arena: Arena) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(sink: Sink | str, **options: Any) -> Running:
        started.append(Running(arena, sink, **{"linger_ms": 1, **options}))
        wait_until(started[-1].has_role, "the sender has its role")
        return started[-1]

    yield start
    for running in started:
        if running.thread.is_alive():
            running.sender.stop(0)
        running.thread.join()


def lose_name(arena: Arena) -> None:
    """Unlink the arena's name without notice, as ``rm`` does."""
    os.unlink(arena.name)


def send_until_refused(producer: Producer) -> list[DeliveryFuture]:
    """Send until the arena is closed, and return the futures of the accepted records."""
    accepted: list[DeliveryFuture] = []
    with contextlib.suppress(ArenaRemovedError):
        while True:
            accepted.append(producer.send(TOPIC, b"%d" % len(accepted)))
            time.sleep(0.0005)
    return accepted


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR and text in r.getMessage()]


# --- producers


def test_a_removed_arena_is_reported_once(arena: Arena, producer: Producer, caplog: pytest.LogCaptureFixture) -> None:
    Arena.remove(arena.name)
    send_until_refused(producer)
    with pytest.raises(
        ArenaRemovedError, match=r"events\.arena was removed .* It has no sender, so the remaining records"
    ):
        producer.send(TOPIC, b"one more")
    assert len(told(caplog, "was removed while this process was attached")) == 1


def test_remove_returns_when_the_arena_takes_no_more_records(arena: Arena, producer: Producer) -> None:
    producer.send(TOPIC, b"into an open batch")
    Arena.remove(arena.name)
    assert arena.native.closing == "begun"
    with pytest.raises(ArenaRemovedError):
        producer.send(TOPIC, b"one more")
    assert arena.verify() == []


def test_an_arena_without_a_free_entry_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "full.arena"
    with Arena.create(path, **{**SMALL, "process_count": 1}) as arena:
        Arena.remove(path)
        assert not path.exists()
        assert arena.native.check_name() == "begun"


@pytest.mark.parametrize(
    "end", [lambda producer: producer.flush(30), Producer.close, lambda producer: producer.close(0)]
)
def test_flush_and_close_say_how_many_records_are_lost(
    arena: Arena, end: Callable[[Producer], None], caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(arena)
    for _ in range(3):
        producer.send(TOPIC, b"v")
    lose_name(arena)
    producer.send(TOPIC, b"accepted, because nobody has looked")
    with pytest.raises(ArenaRemovedError, match=r"not delivered: at most 4 records\. .*It has no sender"):
        end(producer)
    with contextlib.suppress(ArenaRemovedError):
        producer.close()
    assert producer.closed
    assert len(told(caplog, "at most 4 records")) == 1


def test_a_with_statement_reports_it_too(arena: Arena) -> None:
    def send() -> None:
        with Producer(arena) as producer:
            producer.send(TOPIC, b"v")
            lose_name(arena)

    with pytest.raises(ArenaRemovedError, match="at most 1 record"):
        send()


def test_oversized_records_and_many_at_once_are_refused_too(arena: Arena, producer: Producer) -> None:
    Arena.remove(arena.name)
    send_until_refused(producer)
    with pytest.raises(ArenaRemovedError):
        producer.send(TOPIC, bytes(10_000))
    with pytest.raises(ArenaRemovedError) as caught:
        producer.send_many(TOPIC, [b"a", b"b"])
    assert len(caught.value.appended) == 0  # type: ignore[attr-defined]
    assert arena.verify() == []


def test_a_producer_that_waits_for_a_buffer_gets_the_error(arena: Arena, producer: Producer) -> None:
    filler = Producer(arena, max_block_ms=0)
    with contextlib.suppress(BufferExhaustedError):
        while True:
            filler.send(TOPIC, bytes(3000))
    filler.close(0)
    errors: list[BaseException] = []

    def send() -> None:
        try:
            producer.send(TOPIC, bytes(3000))
        except ArenaRemovedError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: arena.statistics().waiting_count == 1, "it waits for a buffer")
    Arena.remove(arena.name)
    thread.join()
    assert len(errors) == 1


def test_a_producer_that_waits_for_a_partition_count_gets_the_error(arena: Arena, producer: Producer) -> None:
    Arena.remove(arena.name)
    with pytest.raises(ArenaRemovedError):
        producer.send("unknown", b"v")


def test_waiting_for_results_ends_when_no_sender_is_left(arena: Arena, producer: Producer) -> None:
    seen: list[BaseException] = []
    future = producer.send(TOPIC, b"v").add_errback(seen.append)
    Arena.remove(arena.name)
    with pytest.raises(DeliveryAbortedError, match="is in an arena that was removed, and no sender is left") as caught:
        future.get(timeout=30)
    wait_until(lambda: bool(seen), "the errback was called")
    assert str(seen[0]) == str(caught.value)
    with pytest.raises(ArenaRemovedError):
        producer.flush(timeout=30)


def test_a_waiting_coroutine_gets_the_error(arena: Arena, producer: Producer) -> None:
    async def deliver() -> None:
        future = producer.send(TOPIC, b"v")
        Arena.remove(arena.name)
        await future

    with pytest.raises(DeliveryAbortedError, match="was removed"):
        asyncio.run(deliver())


def test_an_arena_that_was_only_moved_takes_records_when_it_is_found_again(path: Path) -> None:
    moved = path.with_name("moved.arena")
    with Arena.create(path, **SMALL) as arena:
        assert not has_lost_its_name(arena)
        os.rename(path, moved)
        assert has_lost_its_name(arena)
        arena.native.begin_closing()
    with Arena.attach(moved) as arena:
        assert arena.native.closing == "not"
        arena.native.set_topic_partition_count(TOPIC, 1)
        with Producer(arena) as producer:
            producer.send(TOPIC, b"v")
            producer.close(0)
    Arena.remove(moved)


def test_a_name_that_cannot_be_looked_at_is_not_lost(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "stat", refuse)
    assert not has_lost_its_name(arena)


# --- the sender


def test_the_sender_delivers_what_is_there_and_leaves(
    arena: Arena, producer: Producer, run_sender: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    sink = MemorySink()
    running = run_sender(sink)
    lose_name(arena)
    accepted = send_until_refused(producer)
    assert isinstance(running.join(), ArenaRemovedError)
    assert [future.get(timeout=10).offset for future in accepted] == list(range(len(accepted)))
    assert len(sink.values(TOPIC)) == len(accepted)
    assert arena.native.closing == "done"
    assert len(told(caplog, "was removed")) >= 1
    with pytest.raises(ArenaRemovedError, match="Its sender has delivered or exported"):
        producer.send(TOPIC, b"v")


def test_an_idle_sender_leaves_too(arena: Arena, run_sender: Callable[..., Running]) -> None:
    running = run_sender(MemorySink())
    Arena.remove(arena.name)
    assert isinstance(running.join(), ArenaRemovedError)


@pytest.mark.parametrize(("record_count", "closing"), [(0, "not"), (1, "done")])
def test_a_sender_that_leaves_before_it_notices_the_removal_closes_the_arena_if_records_are_left(
    arena: Arena, producer: Producer, record_count: int, closing: str
) -> None:
    with Sender(arena, MemorySink()) as sender:
        sender.open()
        for _ in range(record_count):
            producer.send(TOPIC, b"v")
        lose_name(arena)
    assert arena.native.closing == closing


def test_a_name_is_checked_once_a_second_and_a_closing_arena_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked_ns: list[int] = []
    closed_ns: list[int] = []
    native: Any = SimpleNamespace(now=0, now_ns=lambda: native.now, closing="not")
    native.begin_closing = lambda: closed_ns.append(native.now)

    def keeps_its_name(_arena: Arena) -> bool:
        checked_ns.append(native.now)
        return False

    monkeypatch.setattr(arena_closer, "has_lost_its_name", keeps_its_name)
    monkeypatch.setattr(arena_closer, "report_removal", lambda _: ArenaRemovedError())
    arena: Any = SimpleNamespace(native=native)
    closer = ArenaCloser(arena)
    for native.now in (0, CHECK_NS - 1, CHECK_NS, CHECK_NS + 1):
        closer.check()
    assert (checked_ns, closer.has_begun, closer.error) == ([0, CHECK_NS], False, None)
    native.closing = "begun"
    begin_ns = native.now + 1
    for native.now in (begin_ns, begin_ns + CLOSING_CHECK_NS - 1, begin_ns + CLOSING_CHECK_NS):
        closer.check()
    assert closed_ns == [begin_ns, begin_ns + CLOSING_CHECK_NS]
    assert closer.has_begun
    assert closer.error is not None


def test_a_sender_whose_arena_was_replaced_leaves_the_other_alone(
    arena: Arena, path: Path, run_sender: Callable[..., Running]
) -> None:
    running = run_sender(MemorySink())
    Arena.remove(path)
    with Arena.create(path, **SMALL) as other:
        assert isinstance(running.join(), ArenaRemovedError)
        assert other.native.closing == "not"
        assert not other.native.sender_is_alive
    Arena.remove(path)


def test_what_cannot_be_delivered_is_exported_and_aborted(
    arena: Arena,
    path: Path,
    producer: Producer,
    run_sender: Callable[..., Running],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = ScriptedSink(partitions=1)
    sink.plan_filter = lambda _: False
    running = run_sender(sink)
    lose_name(arena)
    accepted = send_until_refused(producer)
    running.sender.stop(0.3)
    error = running.join()
    assert isinstance(error, ArenaRemovedError)
    folder = path.with_name(f"events.arena-{arena.uuid.hex()[:12]}-{arena.native.arena_epoch}.left")
    assert str(folder) in str(error)
    assert len(told(caplog, str(folder))) == 1
    assert folder.stat().st_mode & 0o077 == 0
    assert [record.value for record in LogReader(folder).partition(TOPIC, 0).records()] == [
        b"%d" % number for number in range(len(accepted))
    ]
    with pytest.raises(DeliveryAbortedError, match=r"\.left"):
        accepted[-1].get(timeout=10)
    assert arena.verify() == []


def test_a_stopped_producer_holds_the_sender_up_no_longer_than_its_limit(
    arena: Arena, run_sender: Callable[..., Running]
) -> None:
    place = _native.BufferWait.join(arena.native, 1)
    running = run_sender(MemorySink())
    Arena.remove(arena.name)
    wait_until(lambda: arena.native.closing == "begun", "the arena closes")
    assert running.thread.is_alive()
    running.sender.stop(0.3)
    assert isinstance(running.join(), ArenaRemovedError)
    place.cancel()


def test_a_standby_gets_the_error_and_exits_when_nothing_is_left(
    arena: Arena, run_sender: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    running = run_sender(MemorySink())
    standby = Running(arena, MemorySink(), standby=True)
    Arena.remove(arena.name)
    assert isinstance(running.join(), ArenaRemovedError)
    assert isinstance(standby.join(), ArenaRemovedError)
    assert len(told(caplog, "was removed")) >= 2


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _send_and_die(name: str, log: str, step: str, *, is_before: bool) -> None:
    """Run a sender that is killed right before or right after a step of the closing."""
    real = getattr(ArenaCloser, step)

    def dying(closing: ArenaCloser, *arguments: Any) -> Any:
        if is_before and has_lost_its_name(closing._arena):
            _die()
        answer = real(closing, *arguments)
        if closing.has_begun:
            _die()
        return answer

    setattr(ArenaCloser, step, dying)
    Sender(name, f"log:{log}", linger_ms=1).run()


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("step", ["check", "is_over", "leave"])
def test_a_sender_that_is_killed_in_a_step_is_replaced_by_its_standby(
    arena: Arena, tmp_path: Path, producer: Producer, step: str, is_before: bool
) -> None:
    log = tmp_path / "log"
    first = Child(lambda: _send_and_die(arena.name, str(log), step, is_before=is_before))
    wait_until(lambda: arena.native.sender_is_alive, "the sender has its role")
    standby = Running(arena, f"log:{log}", standby=True, linger_ms=1)
    accepted = [producer.send(TOPIC, b"before the name is lost")]
    lose_name(arena)
    accepted += send_until_refused(producer)
    wait_until(first.has_ended, "the sender was killed")
    first.kill()
    assert isinstance(standby.join(), ArenaRemovedError)
    assert [future.get(timeout=10).offset for future in accepted] == list(range(len(accepted)))
    assert len(list(LogReader(log).partition(TOPIC, 0).records())) == len(accepted)


def exported_values(folder: Path) -> list[bytes | None]:
    """Return the values in the folders of exports, except incomplete ones."""
    assert list(folder.glob("*.unfinished")) == []
    return [
        record.value for found in folder.glob("*.left") for record in LogReader(found).partition(TOPIC, 0).records()
    ]


ONE_IN_SEVEN = 7
EVERY_ONE = pytest.param(1, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("stride", [ONE_IN_SEVEN, EVERY_ONE])
def test_a_sender_that_is_killed_while_it_exports_loses_and_doubles_nothing(
    tmp_path: Path, seeded: Callable[[], random.Random], stride: int
) -> None:
    """Kill at every n-th system call from a random one. The successor delivers or finds the export, never both."""
    number = 1 + seeded().randrange(stride)
    ways: set[tuple[bool, bool]] = set()
    is_cut_off = True
    while is_cut_off:
        folder = tmp_path / str(number)
        folder.mkdir()
        is_cut_off, was_exported, was_delivered = export_and_die(folder, number)
        ways.add((was_exported, was_delivered))
        number += stride
    assert ways == {(True, False), (False, True)}
    assert number > 30


def export_and_die(folder: Path, number: int) -> tuple[bool, bool, bool]:
    """Kill an exporting sender at a system call, then run another one.

    Return whether the first one was killed, whether the records are exported, and whether they are delivered.
    """
    values: list[bytes | None] = [b"%d" % value for value in range(20)]
    with Arena.create(folder / "x.arena", **SMALL) as arena:
        arena.native.set_topic_partition_count(TOPIC, 1)
        with contextlib.suppress(ArenaRemovedError), Producer(arena) as producer:
            for value in values:
                producer.send(TOPIC, value)
            is_cut_off = dies_at_system_call(lambda: _about_to_export(arena.name), number)
            with pytest.raises(ArenaRemovedError):
                Sender(arena, f"log:{folder / 'log'}", linger_ms=0).run()
        is_delivered = (folder / "log").exists()
        delivered = list(LogReader(folder / "log").partition(TOPIC, 0).records()) if is_delivered else []
        exported = exported_values(folder)
        assert exported + [record.value for record in delivered] == values, f"killed at system call {number}"
        assert arena.verify() == []
    return is_cut_off, bool(exported), bool(delivered)


def _about_to_export(name: str) -> Callable[[], None]:
    """Run a sender with a sink that takes nothing and a removed arena, so that it has to export the records."""
    sink = ScriptedSink(partitions=1)
    sink.plan_filter = lambda _: False
    sender = Sender(name, sink)
    sender.open()
    os.unlink(name)
    sender.stop(0)
    return sender.close


def test_an_export_of_another_user_counts_for_nothing(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = arena_closer._places(arena)
    folder.mkdir()
    assert arena_closer._found_export(arena) == folder
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert arena_closer._found_export(arena) is None


# --- the arena that has the name now


def test_a_log_reports_whose_sender_writes_it(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path / "log", arena_name="/eve=nts\n")
    with pytest.raises(LogBusyError) as caught:
        LogDirectory(tmp_path / "log")
    directory.close()
    assert caught.value.arena_name == "/eve=nts\n"


def test_a_new_arena_of_the_name_is_served_though_the_old_sender_lives(arena_name: str, tmp_path: Path) -> None:
    sink = f"log:{tmp_path / 'log'}"
    with Arena.create(arena_name, **SMALL) as old:
        assert ensure_sender(old, sink, idle_exit=None)
        with Producer(old) as producer:
            producer.send(TOPIC, b"old").get(timeout=30)
            Arena.remove(arena_name)
            with Arena.create(arena_name, **SMALL) as new:
                assert ensure_sender(new, sink, idle_exit=None)
                with Producer(new) as successor:
                    assert successor.send(TOPIC, b"new").get(timeout=30).offset == 1
                end_senders(new)
        with pytest.raises(ArenaRemovedError):
            ensure_sender(old, sink)
    assert [record.value for record in LogReader(tmp_path / "log").partition(TOPIC, 0).records()] == [b"old", b"new"]


def test_another_arena_does_not_wait_for_a_log_that_is_taken(arena_name: str, tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path / "log", arena_name="/another")
    begin_s = time.monotonic()
    with Arena.create(arena_name, **SMALL) as arena, pytest.raises(SenderNotStartedError, match="another process"):
        ensure_sender(arena, f"log:{tmp_path / 'log'}")
    assert time.monotonic() - begin_s < 20
    directory.close()


def test_the_command_ends_with_a_code_of_its_own(arena_name: str, tmp_path: Path) -> None:
    with Arena.create(arena_name, **SMALL) as arena:
        command = [sys.executable, "-m", "shmaccum", "sender", arena_name, "--sink", f"log:{tmp_path / 'log'}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: arena.native.sender_is_alive, "the sender has its role")
            with Producer(arena_name) as producer:
                producer.send("flights", b"1").get(WATCHDOG_S)  # so the sender has opened everything
            Arena.remove(arena_name)
            _, said = process.communicate(timeout=60)
        assert process.returncode == EXIT_CODE == 3
        assert "ERROR" in said
        assert "was removed while this process was attached" in said


def test_the_exception_is_public() -> None:
    assert issubclass(shmaccum.ArenaRemovedError, shmaccum.ArenaError)
