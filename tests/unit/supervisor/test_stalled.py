# SPDX-License-Identifier: Apache-2.0
"""A sender without heartbeats is killed, and no other process."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmaccum import Producer, Sender
from shmaccum.arena import Arena, stalled
from shmaccum.arena.presence import Presence, SenderWatch
from shmaccum.arena.stalled import CHECK_MAX_S, StallWatch
from shmaccum.common.process_handle import ProcessHandle
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.accumulator import Accumulator
from tests.support.arenas import end_senders, sender_pid
from tests.support.processes import WATCHDOG_S, Child, wait_until

LIMIT_MS = 10_000
PROCESSES_REF = 8192
PROCESS_ENTRY_SIZE = 128
PID_REF = 8
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user, another PID namespace")


class Watched:
    """A watch of an arena's sender with a manual clock."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.now_s = 0.0
        self.watch = SenderWatch(arena, check_s=0, unconnected_check_s=0)
        self.stalls = StallWatch(arena, self.watch, LIMIT_MS, clock=lambda: self.now_s)

    def connect(self) -> None:
        def is_connected() -> bool:
            self.watch.wait()
            return self.watch.listener() is not None

        wait_until(is_connected, "the watch is connected")

    def check(self, count: int, step_s: float = 1.0) -> None:
        for _ in range(count):
            self.now_s += step_s
            self.stalls.check()

    def errors(self) -> list[str]:
        return [row["text"] for row in self.arena.native.errors()]


@pytest.fixture
def watched(arena: Arena) -> Iterator[Watched]:
    watched = Watched(arena)
    yield watched
    watched.watch.close()


def deliver_for_ever(name: str) -> None:
    with Sender(name, MemorySink()) as sender:
        signal.signal(signal.SIGTERM, lambda *_: sender.stop())
        sender.run()


def be_present(name: str) -> None:
    """Take the role and listen, without heartbeats."""
    with Arena.attach(name, mode=0o660) as arena, Accumulator(arena) as accumulator:
        accumulator.become_sender()
        present = Presence(arena)
        signal.pause()
        present.close()


@contextlib.contextmanager
def running(function: Callable[..., object], *arguments: object) -> Iterator[Child]:
    child = Child(function, *arguments)
    try:
        yield child
    finally:
        child.kill()


# --- killed senders


def test_a_stopped_sender_is_killed_after_the_time_and_not_before(arena: Arena, watched: Watched) -> None:
    with running(deliver_for_ever, arena.name) as child:
        watched.connect()
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: stopped(child.pid), "it is stopped")
        watched.check(10)  # the first check only reads the state
        assert arena.native.sender_is_alive
        watched.check(1)
        assert arena.native.sender_died
    assert f"(process {child.pid}) is stopped and has not renewed its heartbeat for 10 s" in watched.errors()[0]


def stopped(pid: int) -> bool:
    return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()


def test_a_wedged_sender_is_killed(arena: Arena, watched: Watched) -> None:
    with running(be_present, arena.name):
        watched.connect()
        watched.check(12)
        assert arena.native.sender_died


def wait_for_life(arena: Arena) -> None:
    shown_ns = arena.native.sender()["heartbeat_ns"]
    wait_until(lambda: bool(arena.native.sender()["heartbeat_ns"] != shown_ns), "it shows life")


def test_a_sender_that_shows_life_is_left_alone(arena: Arena, watched: Watched) -> None:
    with running(deliver_for_ever, arena.name) as child:
        watched.connect()
        for _ in range(3):
            watched.check(9)
            wait_for_life(arena)
            watched.check(1)
        assert sender_pid(arena) == child.pid
        assert watched.errors() == []


def test_a_stopped_sender_is_not_saved_by_a_forged_sign_of_life(arena: Arena, watched: Watched) -> None:
    with running(deliver_for_ever, arena.name) as child, Accumulator(arena):
        watched.connect()
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: stopped(child.pid), "it is stopped")
        for number in range(12):
            forge(arena, 4096 + heartbeat_offset(), b"%08d" % number)
            watched.check(1)
        assert arena.native.sender_died


def heartbeat_offset() -> int:
    """It follows sender_epoch, which begins the seventh line of the globals."""
    return 6 * 64 + 8


def forge(arena: Arena, position: int, content: bytes) -> None:
    with Path(f"/dev/shm/{arena.name}").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[position : position + len(content)] = content


def test_a_watcher_that_did_not_run_does_not_count_that_time(arena: Arena, watched: Watched) -> None:
    """If a container or a virtual machine was stopped, the sender was stopped, too."""
    with running(be_present, arena.name):
        watched.connect()
        watched.check(1)
        watched.check(4, step_s=1000)
        assert arena.native.sender_is_alive
        assert 4 * CHECK_MAX_S < LIMIT_MS / 1000


def test_a_successor_has_all_of_the_time(arena: Arena, watched: Watched) -> None:
    with running(be_present, arena.name):
        watched.connect()
        watched.check(10)
    with running(be_present, arena.name):
        watched.connect()
        watched.check(10)
        assert arena.native.sender_is_alive


# --- spared processes


def test_a_forged_pid_in_the_arena_kills_no_other_process(arena: Arena, watched: Watched) -> None:
    with running(signal.pause) as bystander, running(be_present, arena.name):
        watched.connect()
        entry = arena.native.sender()["entry"]
        forge(arena, PROCESSES_REF + entry * PROCESS_ENTRY_SIZE + PID_REF, struct.pack("<I", bystander.pid))
        assert sender_pid(arena) == bystander.pid
        watched.check(12)
        assert arena.native.sender_died
        assert not bystander.has_ended()


def test_a_sender_of_this_process_is_only_reported(arena: Arena, watched: Watched) -> None:
    with Sender(arena.name, MemorySink()) as sender:
        sender.open()
        watched.connect()
        watched.check(30)
        assert "is not killed, because it is a part of this process" in watched.errors()[0]


def test_a_sender_that_cannot_be_reached_is_only_reported_and_once(arena: Arena, watched: Watched) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()  # and does not listen
        watched.watch.wait()
        watched.check(30)
    (row,) = arena.native.errors()
    assert "no process listens on its presence socket here" in row["text"]
    assert row["count"] == 1


def listen_as_nobody(name: str) -> None:
    with Arena.attach(name, mode=0o660) as arena, Accumulator(arena) as accumulator:
        accumulator.become_sender()
        os.setuid(NOBODY)
        present = Presence(arena)
        signal.pause()
        present.close()


@as_root
def test_a_sender_of_another_user_is_only_reported(arena_name: str) -> None:
    with Arena.create(arena_name, mode=0o660) as arena, running(listen_as_nobody, arena.name) as child:
        watched = Watched(arena)
        watched.connect()
        watched.check(12)
        watched.watch.close()
        assert not child.has_ended()
        assert f"it belongs to the user {NOBODY}, this process to 0" in watched.errors()[0]


IN_A_NAMESPACE = """
import signal, sys
from shmaccum.arena import Arena
from shmaccum._native import SenderHalf
from shmaccum.arena.presence import Presence
with Arena.attach(sys.argv[1]) as arena:
    half = SenderHalf(arena.native)
    half.become_sender()
    present = Presence(arena)
    signal.pause()
"""


@as_root
def test_a_sender_in_another_pid_namespace_is_only_reported(arena: Arena, watched: Watched) -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", IN_A_NAMESPACE, arena.name]
    with subprocess.Popen(command) as process:
        try:
            wait_until(lambda: arena.native.sender_is_alive or process.poll() is not None, "it has the role")
            if process.poll() is not None:
                pytest.skip("no PID namespace can be made here")
            watched.connect()
            watched.check(12)
            assert arena.native.sender_is_alive
            assert "it lives in another PID namespace" in watched.errors()[0]
        finally:
            process.kill()


def test_a_sender_that_the_kernel_holds_keeps_the_role_and_that_is_reported(
    arena: Arena, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test cannot cause state D. Instead, the kill does nothing and the state is reported."""
    monkeypatch.setattr(stalled, "END_TIMEOUT_S", 0.0)
    monkeypatch.setattr(ProcessHandle, "kill", lambda _: None)
    monkeypatch.setattr(ProcessHandle, "state", "D")
    with running(be_present, arena.name):
        watched.connect()
        watched.check(20)
        assert arena.native.sender_is_alive
    told = watched.errors()
    assert len(told) == 2
    assert "was killed and does not end: the kernel blocks it (state D)" in told[1]


# --- together


def test_a_standby_replaces_a_stopped_sender(arena: Arena, watched: Watched) -> None:
    with running(deliver_for_ever, arena.name) as child:
        watched.connect()
        os.kill(child.pid, signal.SIGSTOP)
        with Sender(arena.name, MemorySink(), standby=True, replace_stalled_ms="3s") as standby:
            assert standby.open()
            assert child.has_ended()


def test_a_supervisor_replaces_a_stopped_sender(arena_name: str, tmp_path: Path) -> None:
    with Arena.create(arena_name) as arena:
        with Producer(arena, sink=f"log:{tmp_path}/log", replace_stalled_ms="3s", linger_ms=1) as producer:
            producer.send("flights", b"v").get(WATCHDOG_S)
            stopped_pid = sender_pid(arena)
            assert stopped_pid is not None
            os.kill(stopped_pid, signal.SIGSTOP)
            assert producer.send("flights", b"w").get(WATCHDOG_S).offset == 1
            assert sender_pid(arena) != stopped_pid
        end_senders(arena)
