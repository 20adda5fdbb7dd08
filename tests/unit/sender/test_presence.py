# SPDX-License-Identifier: Apache-2.0
"""A standby sleeps until the sender closes the connection. In these tests, only this can end its wait."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena, presence
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.presence import Presence, SenderWatch
from shmaccum.exceptions import ArenaClosedError
from shmaccum.sender import Sender
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.other_users import needs_root
from tests.support.processes import WATCHDOG_S, Child, wait_until
from tests.support.sender import check_names
from tests.support.system_calls import dies_at_system_call

USER, GROUP = 23471, 23472


def become(user: int, *groups: int) -> None:
    os.setgroups(list(groups))
    os.setgid(groups[0])
    os.setuid(user)


@pytest.fixture(autouse=True)
def _checks_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "CHECK_S", 10 * WATCHDOG_S)


@pytest.fixture
def watch(arena: Arena) -> Iterator[SenderWatch]:
    watch = SenderWatch(arena)
    yield watch
    watch.close()


class Waiting:
    """A thread that waits on a connected watch."""

    def __init__(self, watch: SenderWatch) -> None:
        self._thread = threading.Thread(target=watch.wait, daemon=True)
        self._thread.start()
        wait_until(lambda: watch._connection is not None, "it is connected")

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
    watch._connection, former = watch._connected(watch._arena.native.presence), watch._connection
    if former is not None:
        former.close()
    return watch._connection is not None


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


def test_an_arena_that_is_closed_during_the_connection_leaves_no_socket(
    arena: Arena, watch: SenderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> bool:
        raise ArenaClosedError

    with contextlib.closing(Presence(arena)):
        made = presence._new_socket()
        monkeypatch.setattr(presence, "_new_socket", lambda: made)
        monkeypatch.setattr(presence, "is_insider", refuse)
        with pytest.raises(ArenaClosedError):
            watch.wait()
    assert made.fileno() == -1


def test_a_watcher_that_cannot_connect_polls(watch: SenderWatch) -> None:
    watch.wait()
    assert watch._connection is None


def test_one_that_hung_up_once_is_not_called_again(arena: Arena, watch: SenderWatch) -> None:
    """A process that accepts and closes connections at once must not keep a standby busy."""
    present = Presence(arena)
    waiting = Waiting(watch)
    present.close()
    assert waiting.ends()
    present = Presence(arena)
    watch.wait()
    assert watch._connection is None
    present.close()


def socket_of(arena: Arena) -> Path:
    return Path(ArenaFile.parse(arena.name).presence(arena.uuid, arena.native.presence))


@needs_root
@pytest.mark.parametrize(("groups", "is_believed"), [((GROUP,), True), ((1, GROUP), True), ((1,), False)])
def test_a_listener_is_trusted_only_when_it_shares_the_arena(
    arena_name: str, groups: tuple[int, ...], is_believed: bool
) -> None:
    """Here, root gives another user the name. The kernel reports the listener's user."""
    with Arena.create(arena_name, mode=0o660, group=GROUP) as arena, contextlib.closing(SenderWatch(arena)) as watch:
        arena.native.set_presence(1)

        def listen() -> None:
            become(USER, *groups)
            with socket.socket(socket.AF_UNIX) as line:
                line.bind(str(socket_of(arena)))
                line.listen()
                signal.pause()

        child = Child(listen)
        try:
            wait_until(lambda: can_connect(socket_of(arena)), "the child listens")
            assert connect_until(watch) is is_believed
        finally:
            child.kill()
            socket_of(arena).unlink(missing_ok=True)  # another test may have removed it


@needs_root
def test_another_user_cannot_connect(arena: Arena) -> None:
    """The socket's backlog must not fill with connections of other users."""
    present = Presence(arena)

    def connect() -> str:
        become(USER, GROUP)
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(socket_of(arena)))
        except PermissionError:
            return "refused"
        return "connected"

    assert Child(connect).join() == repr("refused")
    present.close()


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_socket_has_the_permissions_of_the_arena(arena_name: str, umask: int) -> None:
    former = os.umask(umask)
    try:
        with Arena.create(arena_name, mode=0o660, group=os.getegid()) as arena:
            present = Presence(arena)
            assert stat.S_IMODE(socket_of(arena).stat().st_mode) == 0o660
            present.close()
    finally:
        os.umask(former)


def test_the_name_of_each_sender_is_another_one_and_cannot_be_computed(arena: Arena) -> None:
    names = set()
    for _ in range(3):
        present = Presence(arena)
        names.add(socket_of(arena).name)
        assert arena.native.presence > 2**20
        present.close()
    assert len(names) == 3


def test_a_sender_takes_another_name_when_its_name_is_taken(
    arena: Arena, watch: SenderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter([11, 12, 13])
    monkeypatch.setattr(secrets, "randbits", lambda _: next(numbers))
    for number in (11, 12):
        Path(ArenaFile.parse(arena.name).presence(arena.uuid, number)).touch()
    present = Presence(arena)
    assert arena.native.presence == 13
    assert connect_until(watch)
    present.close()
    for number in (11, 12):
        Path(ArenaFile.parse(arena.name).presence(arena.uuid, number)).unlink(missing_ok=True)


def test_a_sender_that_cannot_listen_reports_it_and_is_checked_less_and_less_often(
    arena: Arena, watch: SenderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda _: 11)
    taken = Path(ArenaFile.parse(arena.name).presence(arena.uuid, 11))
    taken.touch()
    present = Presence(arena)
    assert arena.native.presence == 0
    assert "cannot listen beside the arena" in arena.native.errors()[0]["text"]
    pauses: list[float] = []
    monkeypatch.setattr(watch, "pause", pauses.append)
    for _ in range(10):
        watch.wait()
    assert pauses == sorted(pauses)
    assert pauses[-1] == presence.UNCONNECTED_CHECK_MAX_S > pauses[0]
    present.close()
    taken.unlink()


@pytest.fixture
def lone_arena(socket_folder: Path) -> Iterator[Arena]:
    """An arena in a folder in which no sender of another test removes sockets."""
    with Arena.create(socket_folder / "events", buffer_memory="64KiB", batch_size="4KiB") as arena:
        yield arena


def test_the_socket_of_a_killed_sender_is_removed_by_the_next_one(lone_arena: Arena) -> None:
    child = Child(be_present, lone_arena.name)
    wait_until(lambda: lone_arena.native.presence != 0 and can_connect(socket_of(lone_arena)), "the child listens")
    left = socket_of(lone_arena)
    child.kill()
    assert left.exists()
    present = Presence(lone_arena)
    assert not left.exists()
    now = socket_of(lone_arena)
    present.close()
    assert not now.exists()


def test_the_socket_of_a_killed_sender_is_removed_with_the_arena(arena_name: str) -> None:
    with Arena.create(arena_name) as arena:
        child = Child(be_present, arena.name)
        wait_until(lambda: arena.native.presence != 0 and can_connect(socket_of(arena)), "the child listens")
        left = socket_of(arena)
        child.kill()
        Arena.remove(arena_name)
        assert not left.exists()


def sockets_of(arena: Arena) -> list[str]:
    return ArenaFile.parse(arena.name).presences(arena.uuid)


def leave_socket(arena: Arena, number: int) -> None:
    """Leave a socket as a killed sender does. The next one may write another number, and also be killed."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(ArenaFile.parse(arena.name).presence(arena.uuid, number))


def test_the_sockets_of_all_killed_senders_are_removed_by_the_next_one(arena: Arena) -> None:
    for number in (11, 12):
        leave_socket(arena, number)
    present = Presence(arena)
    assert sockets_of(arena) == [present.path]
    present.close()


def test_the_sockets_of_all_killed_senders_are_removed_with_any_arena_of_the_folder(arena_name: str) -> None:
    with Arena.create(arena_name) as arena, Arena.create(f"{arena_name}-other") as other:
        present = Presence(other)
        for number in (11, 12):
            leave_socket(arena, number)
            leave_socket(other, number)
        Arena.remove(arena_name)
        assert sockets_of(arena) == []
        assert sockets_of(other) == [present.path]
        Arena.remove(other.name)
        assert sockets_of(other) == []
        present.close()


def test_the_socket_of_a_living_sender_of_another_arena_stays_and_its_queue_is_not_used(
    arena: Arena, arena_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "LISTEN_COUNT", 1)
    present = Presence(arena)
    assert present.path is not None
    with socket.socket(socket.AF_UNIX) as bound, Arena.create(f"{arena_name}-other") as other:
        bound.bind(ArenaFile.parse(arena.name).presence(arena.uuid, 11))  # a sender before it listens
        for _ in range(3):
            Presence(other).close()
        Arena.remove(other.name)
        assert sorted(sockets_of(arena)) == sorted([present.path, bound.getsockname()])
        assert can_connect(Path(present.path))
        os.unlink(bound.getsockname())
    present.close()


def test_a_file_or_a_link_with_the_name_of_a_socket_is_left_unchanged(lone_arena: Arena) -> None:
    leave_socket(lone_arena, 11)
    (dead,) = map(Path, sockets_of(lone_arena))
    file, link = dead.with_name(f"{dead.name[:-1]}c"), dead.with_name(f"{dead.name[:-1]}d")
    file.touch()
    link.symlink_to(dead)
    Presence(lone_arena).close()
    assert sorted(sockets_of(lone_arena)) == [str(file), str(link)]


def test_a_sender_that_is_killed_at_any_step_leaves_no_socket_even_if_its_arena_was_removed(
    lone_arena: Arena, socket_folder: Path
) -> None:
    left = 0
    for number in itertools.count(1):
        lost = Arena.create(socket_folder / "lost", buffer_memory="64KiB", batch_size="4KiB")

        def prepare(lost: Arena = lost) -> Callable[[], object]:
            os.unlink(lost.path)
            return lambda: Presence(lost)

        is_killed = dies_at_system_call(prepare, number)
        left += len(sockets_of(lost))
        Presence(lone_arena).close()
        assert sockets_of(lost) == []
        lost.close()
        if not is_killed:
            break
    assert left > 0


def test_a_socket_that_is_removed_while_it_is_created_is_created_again(
    arena: Arena, watch: SenderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = socket.socket.bind

    class Robbed(socket.socket):
        def bind(self, address: Any) -> None:
            bind(self, address)
            os.unlink(address)

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Robbed)
        present = Presence(arena)
    assert arena.native.errors() == []
    assert present.check()
    assert connect_until(watch)
    present.close()


def test_a_sender_of_an_arena_that_was_removed_keeps_no_name(arena_name: str) -> None:
    with Arena.create(arena_name) as arena:
        Arena.remove(arena_name)
        present = Presence(arena)
        assert sockets_of(arena) == []
        present.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_socket_that_another_process_removes_is_created_again_and_reported(
    arena: Arena, watch: SenderWatch, *, is_replaced: bool
) -> None:
    sender = Sender(arena, "null:")
    sender.open()
    waiting = Waiting(watch)
    former = socket_of(arena)
    former.unlink()
    if is_replaced:
        former.touch()
    check_names(sender)
    assert socket_of(arena) != former
    assert can_connect(socket_of(arena))
    assert "socket was removed or replaced, and is recreated" in arena.native.errors()[0]["text"]
    now = socket_of(arena)
    check_names(sender)
    assert socket_of(arena) == now
    sender.close()
    assert waiting.ends()  # the watch of the old socket also ends
    former.unlink(missing_ok=True)
    assert sockets_of(arena) == []


@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_socket_whose_queue_is_full_of_watchers_that_have_ended_is_created_again(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, *, is_read_only: bool
) -> None:
    monkeypatch.setattr(presence, "LISTEN_COUNT", 2)
    opened = Arena.open_read_only(arena.name) if is_read_only else Arena.attach(arena.name)
    sender = Sender(arena, "null:")
    sender.open()
    with opened, contextlib.closing(SenderWatch(opened)) as watch, contextlib.closing(SenderWatch(arena)) as first:
        assert connect_until(first)
        for _ in range(3):  # the queue is full each time
            wait_until(lambda: not can_connect(socket_of(arena)), "the queue is full")
            assert not connect_until(watch)
            assert arena.native.presence == 0
            check_names(sender)
            assert sockets_of(arena) == [str(socket_of(arena))]
            assert connect_until(watch)
        assert arena.native.errors() == []
        first.wake()
        first.wait()
        assert first.is_connected()
    sender.close()


def can_connect(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as line, contextlib.suppress(OSError):
        line.connect(str(path))
        return True
    return False


def test_a_watch_checks_again_at_once_if_its_connection_was_closed_before_the_role_was_free(arena: Arena) -> None:
    """The kernel closes the socket of a dead process before it releases the lock of the role."""
    with contextlib.closing(SenderWatch(arena, unconnected_check_s=10 * WATCHDOG_S)) as watch:
        present = Presence(arena)
        waiting = Waiting(watch)
        present.close()
        assert waiting.ends()
        again = threading.Thread(target=watch.wait, daemon=True)
        again.start()
        again.join(WATCHDOG_S)
        assert not again.is_alive()


def test_one_that_is_asked_to_stop_after_the_watch_ended_writes_nowhere(arena: Arena) -> None:
    watch = SenderWatch(arena)
    watch.close()
    reader, writer = os.pipe2(os.O_NONBLOCK)  # reuses the numbers of the watch
    watch.wake()
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.close(reader)
    os.close(writer)


def test_a_successor_is_watched_in_its_turn(arena: Arena) -> None:
    """The third process stands by for the first, then for the second."""
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
        wait_until(lambda: standby._watch is not None and standby._watch._connection is not None, "it stands by")
        assert [row["role"] for row in arena.native.processes()].count("standby") == 1
        standby.stop()
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
        assert first.is_open
