# SPDX-License-Identifier: Apache-2.0
"""A standby sleeps until the sender hangs up: where these tests look, nothing else can end its wait."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from shmaccum.arena import Arena, presence
from shmaccum.arena.presence import Presence, SenderWatch
from shmaccum.sender import Sender
from shmaccum.sinks.memory import MemorySink
from tests.support import WATCHDOG_S, Child, wait_until


@pytest.fixture(autouse=True)
def _nobody_looks_by_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "LOOK_S", 10 * WATCHDOG_S)


@pytest.fixture
def watch(arena: Arena) -> Iterator[SenderWatch]:
    watch = SenderWatch(arena)
    yield watch
    watch.close()


class Waiting:
    """A watch that is waited for in a thread, and was connected."""

    def __init__(self, watch: SenderWatch) -> None:
        self._thread = threading.Thread(target=watch.wait, daemon=True)
        self._thread.start()
        wait_until(lambda: watch._line is not None, "it is connected")

    def ends(self) -> bool:
        self._thread.join(WATCHDOG_S)
        return not self._thread.is_alive()


def be_present(name: str) -> None:
    with Arena.attach(name) as arena:
        present = Presence(arena)
        signal.pause()
        present.close()


def sleep_for_ever() -> None:
    signal.pause()


def connect_until(watch: SenderWatch) -> bool:
    watch._line, former = watch._connected(presence._address(watch._arena)), watch._line
    if former is not None:
        former.close()
    return watch._line is not None


def test_a_sender_that_leaves_hangs_up(arena: Arena, watch: SenderWatch) -> None:
    present = Presence(arena)
    waiting = Waiting(watch)
    present.close()
    assert waiting.ends()


def test_a_sender_that_is_killed_hangs_up(arena: Arena, watch: SenderWatch) -> None:
    child = Child(be_present, arena.name)
    wait_until(lambda: connect_until(watch), "the child listens")
    waiting = Waiting(watch)
    child.kill()
    assert waiting.ends()


def test_a_child_of_the_sender_does_not_keep_the_line(arena: Arena, watch: SenderWatch) -> None:
    present = Presence(arena)
    child = Child(sleep_for_ever)
    waiting = Waiting(watch)
    present.close()
    assert waiting.ends()
    child.kill()


def test_who_cannot_connect_looks_by_himself(watch: SenderWatch) -> None:
    watch.wait()
    assert watch._line is None


def test_who_hung_up_once_is_not_called_again(arena: Arena, watch: SenderWatch) -> None:
    """Somebody who takes calls and hangs up at once must not keep a standby busy."""
    present = Presence(arena)
    waiting = Waiting(watch)
    present.close()
    assert waiting.ends()
    present = Presence(arena)
    watch.wait()
    assert watch._line is None
    present.close()


@pytest.mark.parametrize(("mode", "is_believed"), [(0o600, False), (0o660, True)])
def test_a_stranger_on_the_name_is_believed_only_where_the_arena_is_shared(
    arena_name: str, monkeypatch: pytest.MonkeyPatch, mode: int, is_believed: bool
) -> None:
    with Arena.create(arena_name, mode=mode) as arena, contextlib.closing(SenderWatch(arena)) as watch:
        present = Presence(arena)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert connect_until(watch) is is_believed
        present.close()


def test_who_is_told_to_stop_after_the_watch_ended_writes_nowhere(arena: Arena) -> None:
    watch = SenderWatch(arena)
    watch.close()
    reader, writer = os.pipe2(os.O_NONBLOCK)  # gets the numbers that the watch had
    watch.wake()
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.close(reader)
    os.close(writer)


def test_a_successor_is_watched_in_its_turn(arena: Arena) -> None:
    """The third one stands by for the first, then for the second."""
    first = Sender(arena.name, MemorySink())
    first.open()
    second, third = (Sender(arena.name, MemorySink(), standby=True) for _ in range(2))
    threads = {sender: threading.Thread(target=sender.run) for sender in (second, third)}
    for thread in threads.values():
        thread.start()
    first.close()
    wait_until(lambda: second.is_open or third.is_open, "one of them has the role")
    elder, younger = (second, third) if second.is_open else (third, second)
    elder.stop()
    wait_until(lambda: younger.is_open, "the other one has it")
    younger.stop()
    for thread in threads.values():
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()


def test_a_standby_that_is_stopped_leaves_without_a_look(arena: Arena) -> None:
    with Sender(arena.name, MemorySink()) as first:
        first.open()
        standby = Sender(arena.name, MemorySink(), standby=True)
        thread = threading.Thread(target=standby.run)
        thread.start()
        wait_until(lambda: standby._watch is not None and standby._watch._line is not None, "it stands by")
        assert [row["role"] for row in arena.native.processes()].count("standby") == 1
        standby.stop()
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
        assert first.is_open
