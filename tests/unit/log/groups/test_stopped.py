# SPDX-License-Identifier: Apache-2.0
"""A member kills a stopped member if it is configured to, and never kills any other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmaccum import Consumer
from shmaccum.log.consumer import group
from shmaccum.log.groups.member_locks import MEMBERS_BYTE, MemberLocks
from shmaccum.log.groups.plan import MemberRow
from shmaccum.log.groups.stopped import CHECK_MAX_S, StoppedWatch, holds_byte
from tests.support.descriptors import await_no_other, open_descriptors
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import TOPIC, make_batch, open_log

LIMIT_S = 10.0
HOLDER = """
import sys, time
import random
from shmaccum.log.groups.member_locks import MemberLocks
locks = MemberLocks(sys.argv[1], "g")
random.randrange = lambda _count: 0  # the member takes the first slot
locks.join()
print(locks.slot, flush=True)
time.sleep(3600)
"""
MEMBER = """
import sys
from shmaccum import Consumer
from shmaccum.log.consumer import group
with Consumer(sys.argv[1], "flights", group_id="g") as consumer:
    while True:
        consumer.poll(timeout_ms=10)
        if consumer.assignment():
            print("owner", flush=True)
            consumer.poll(timeout_ms=3_600_000)
"""
Start = Callable[[str, Path], "subprocess.Popen[bytes]"]


class Watched:
    """A watch with a manual clock."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 0.0
        self.locks = MemberLocks(os.fspath(directory), "g")
        self.watch = StoppedWatch("g", self.locks.path, int(LIMIT_S * 1000), clock=lambda: self.now_s)

    def check(self, count: int, *rows: MemberRow, step_s: float = 1.0) -> float:
        for _ in range(count - 1):
            self.now_s += step_s
            self.watch.check(rows)
        self.now_s += step_s
        return self.watch.check(rows)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    yield found
    found.locks.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program, and returns when it has written a line."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(program: str, directory: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def row(pid: int, slot: int = 0) -> MemberRow:
    return MemberRow(slot, pid, (), ())


def test_a_member_that_is_stopped_for_long_is_killed(
    watched: Watched, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    member = start(HOLDER, tmp_path)
    assert holds_byte(member.pid, watched.locks.path, MEMBERS_BYTE)
    assert not holds_byte(member.pid, watched.locks.path, MEMBERS_BYTE + 1)
    assert watched.check(20, row(member.pid)) == LIMIT_S / 2
    stop(member)
    assert watched.check(10, row(member.pid)) == CHECK_MAX_S / 2
    assert member.poll() is None
    former = open_descriptors()
    watched.check(1, row(member.pid))
    await_no_other(former)
    assert member.wait(WATCHDOG_S) == -signal.SIGKILL
    assert f"process {member.pid}, a member of the group 'g', has been stopped for 10 s" in caplog.text
    assert not watched.locks.lives(0)


def test_a_member_that_continues_in_time_is_young_again(watched: Watched, start: Start, tmp_path: Path) -> None:
    member = start(HOLDER, tmp_path)
    for _ in range(3):
        stop(member)
        watched.check(10, row(member.pid))
        member.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, member.pid, os.WCONTINUED | os.WNOWAIT)
        watched.check(1, row(member.pid))
    assert member.poll() is None


def test_time_in_which_the_watcher_did_not_run_counts_little(watched: Watched, start: Start, tmp_path: Path) -> None:
    member = start(HOLDER, tmp_path)
    stop(member)
    watched.check(5, row(member.pid), step_s=3600)
    assert member.poll() is None


def test_a_process_that_does_not_hold_the_lock_is_only_reported(
    watched: Watched, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    member = start(HOLDER, tmp_path)
    stop(member)
    watched.check(30, row(member.pid, slot=7))
    assert member.poll() is None
    assert caplog.text.count("does not have the lock of the member") == 1


@pytest.mark.parametrize("pid", [0, 1, -1, 2**31 - 1, 2**70])
def test_numbers_in_a_forged_plan_do_no_harm(watched: Watched, pid: int) -> None:
    assert watched.check(30, row(pid), row(os.getpid())) == LIMIT_S / 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user")
def test_a_process_of_another_user_is_only_reported(
    watched: Watched, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = start(HOLDER, tmp_path)
    stop(member)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    watched.check(30, row(member.pid))
    assert member.poll() is None
    assert "belongs to user 0" in caplog.text


def test_a_consumer_that_is_configured_to_takes_over_from_a_stopped_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "StoppedWatch", lambda name, path, limit_ms: StoppedWatch(name, path, limit_ms // 10))
    with open_log(tmp_path / "log") as log:
        log.partition(TOPIC, 0).append([make_batch([b"1"])])
    stopped = start(MEMBER, tmp_path / "log")
    stop(stopped)
    with Consumer(tmp_path / "log", TOPIC, group_id="g", replace_stalled_ms=1000) as consumer:
        assert consumer.assignment() == set()

        def has_taken_over() -> bool:
            consumer.poll(timeout_ms=100)
            return bool(consumer.assignment())

        wait_until(has_taken_over, "it took over")
    assert stopped.wait(WATCHDOG_S) == -signal.SIGKILL
