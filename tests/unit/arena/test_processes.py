# SPDX-License-Identifier: Apache-2.0
"""Fork, spawn, forkserver, unrelated processes and threads, also during use."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import ArenaRemovedError, LayoutMismatchError, NotSenderError
from tests.support.accumulator import Accumulator
from tests.support.arenas import SHARED_MEMORY, check_idle, deliver_all, drain
from tests.support.processes import WATCHDOG_S, Child, run_in_child, run_in_process, wait_until

LAYOUT_VERSION_AT = 8


def append_by_name(name: str, value: bytes) -> int:
    with Arena.attach(name) as arena, Accumulator(arena) as accumulator:
        accumulator.append("t", 0, 1, None, value)
        return os.getpid()


def append_to_pickled(arena: Arena, value: bytes) -> int:
    with arena, Accumulator(arena) as accumulator:
        accumulator.append("t", 0, 1, None, value)
        return os.getpid()


# --- ways to start a process


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_attaches_by_name(arena: Arena, sender: Accumulator, method: str) -> None:
    pid = run_in_process(method, append_by_name, arena.name, method.encode())
    assert pid != os.getpid()
    assert deliver_all(sender) == [method.encode()]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_arena_is_handed_over_pickled(arena: Arena, sender: Accumulator, method: str) -> None:
    run_in_process(method, append_to_pickled, arena, b"v")
    assert deliver_all(sender) == [b"v"]


def test_an_unrelated_process_attaches(arena: Arena, sender: Accumulator) -> None:
    program = (
        "import sys\n"
        "from shmaccum import Arena, Producer\n"
        "with Arena.attach(sys.argv[1]) as arena:\n"
        "    arena.native.set_topic_partition_count('t', 1)\n"
        "    producer = Producer(arena)\n"
        "    producer.send('t', b'unrelated')\n"
        "    producer.close(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, arena.name], check=True, timeout=WATCHDOG_S)
    assert deliver_all(sender) == [b"unrelated"]


# --- fork in the middle of use


def test_a_forked_accumulator_continues_as_a_process_of_its_own(arena: Arena, sender: Accumulator) -> None:
    sender.append("t", 0, 1, None, b"parent")

    def in_child() -> tuple[Any, ...]:
        was_attached = arena.native.is_attached
        sender.append("t", 0, 1, None, b"child")
        return was_attached, arena.native.entry_index, sender.is_sender, sender.flush_begin().remaining()

    assert run_in_child(in_child) == "(False, 1, False, 1)"
    assert arena.native.entry_index == 0
    assert sender.is_sender
    assert deliver_all(sender) == [b"parent", b"child"]


def test_the_child_of_a_sender_is_no_sender(arena: Arena, sender: Accumulator) -> None:
    sender.append("t", 0, 1, None, b"v")
    (batch,) = drain(sender)

    def in_child() -> str:
        with pytest.raises(NotSenderError):
            sender.ready(0)
        arena.native.attach()
        with pytest.raises(NotSenderError):
            sender.complete(batch, BatchResult.SUCCEEDED)
        with pytest.raises(NotSenderError):
            batch.tobytes()
        sender.close()
        arena.close()
        return "closed"

    assert run_in_child(in_child) == "'closed'"
    sender.complete(batch, BatchResult.SUCCEEDED)


def test_the_child_takes_the_role_when_its_parent_left_it(arena: Arena, sender: Accumulator) -> None:
    sender.append("t", 0, 1, None, b"v")
    ready, go = os.pipe()

    def in_child() -> list[bytes | None]:
        os.close(go)  # so that the end of the parent ends the wait
        os.read(ready, 1)
        sender.become_sender()
        return deliver_all(sender)

    child = Child(in_child)
    sender.resign()
    os.write(go, b"x")
    assert child.join() == "[b'v']"
    os.close(ready)
    os.close(go)


def test_a_child_that_dies_at_once_takes_nothing_along(arena: Arena, sender: Accumulator) -> None:
    """It briefly shared this process's descriptors. The locks must stay with this process, and end with it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with Arena.attach(arena.name) as other:
        assert other.native.sender_is_alive
        sender.resign()
        assert not other.native.sender_is_alive


def test_a_childs_life_does_not_keep_its_dead_parents_entry(arena: Arena) -> None:
    """A child of this process attaches, forks and dies. The grandchild stays alive without using the arena."""
    reader, writer = os.pipe()
    stop, go = os.pipe()
    middle = os.fork()
    if middle == 0:
        mine = Arena.attach(arena.name)
        my_entry = mine.native.entry_index or 0
        grandchild = os.fork()
        if grandchild == 0:
            os.close(go)  # so that the end of the test ends the wait
            os.write(writer, b"%d" % my_entry)  # the fork handlers have run
            os.read(stop, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(middle, 0)
    entry = int(os.read(reader, 100))
    assert not arena.native.processes()[entry]["alive"]
    os.write(go, b"x")
    for descriptor in (reader, writer, stop, go):
        os.close(descriptor)


def first_use_behind_a_dead_parent(name: str, use: Callable[[Arena], object]) -> str:
    """Attach, append and fork in a process that is then killed. Return the report of its child's use."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        parent = Arena.attach(name)
        Accumulator(parent).append("t", 0, 1, None, b"of the dead")
        parent_pid = os.getpid()
        if os.fork() == 0:
            wait_until(lambda: os.getppid() != parent_pid, "the parent is gone, and its locks with it")
            Child._run(use, (parent,), reader, writer)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(middle, 0)
    os.close(writer)
    with open(reader) as stream:
        return stream.read()


def test_a_child_that_is_alone_recovers_the_arena(arena_name: str) -> None:
    """The recovering process may die. A child that continued without it would use a half-recovered arena."""

    def use(arena: Arena) -> tuple[int, int]:
        epoch = arena.native.arena_epoch
        with Accumulator(arena) as accumulator:
            accumulator.append("t", 0, 1, None, b"of the child")
        return arena.native.arena_epoch - epoch, arena.native.state_counts()["READY"]

    Arena.create(arena_name).close()
    assert first_use_behind_a_dead_parent(arena_name, use) == repr((1, 1))
    with Arena.attach(arena_name) as arena, Accumulator(arena) as sender:
        sender.become_sender()
        assert deliver_all(sender) == [b"of the dead", b"of the child"]
        check_idle(arena)
    Arena.remove(arena_name)


def test_a_child_that_has_company_recovers_nothing(arena: Arena) -> None:
    def use(found: Arena) -> int:
        epoch = found.native.arena_epoch
        found.native.attach()
        return found.native.arena_epoch - epoch

    assert first_use_behind_a_dead_parent(arena.name, use) == repr(0)


def test_a_child_whose_arena_was_removed_appends_nothing(arena_name: str) -> None:
    def use(arena: Arena) -> str:
        os.unlink(SHARED_MEMORY / arena_name)
        with pytest.raises(ArenaRemovedError), Accumulator(arena) as accumulator:
            accumulator.append("t", 0, 1, None, b"of the child")
        return arena.native.closing

    Arena.create(arena_name).close()
    assert first_use_behind_a_dead_parent(arena_name, use) == repr("begun")


def test_a_child_refuses_an_arena_whose_superblock_has_changed(arena: Arena) -> None:

    def use(found: Arena) -> str:
        with open(SHARED_MEMORY / arena.name, "r+b") as stream:
            version = os.pread(stream.fileno(), 4, LAYOUT_VERSION_AT)
            os.pwrite(stream.fileno(), b"\xff\xff\xff\x7f", LAYOUT_VERSION_AT)
            with pytest.raises(LayoutMismatchError, match="superblock has changed since this process was forked"):
                found.native.attach()
            os.pwrite(stream.fileno(), version, LAYOUT_VERSION_AT)
        found.native.attach()
        return "attached"

    assert run_in_child(use, arena) == repr("attached")


@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_many_forks_each_append(arena_name: str, count: int) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 256}
    with Arena.create(arena_name, **sizes) as arena, Accumulator(arena) as sender:
        sender.become_sender()
        ready, go = os.pipe()

        def in_child(number: int) -> int | None:
            os.close(go)  # so that the end of the parent ends the wait
            sender.append("t", 0, 1, None, b"%d" % number)
            os.read(ready, 1)
            return arena.native.entry_index

        children = [Child(in_child, number) for number in range(count)]
        wait_until(lambda: arena.statistics().attached_process_count == count + 1, "all children are attached")
        os.write(go, b"x" * count)
        assert sorted(int(child.join()) for child in children) == list(range(1, count + 1))
        assert sorted(int(value or b"") for value in deliver_all(sender)) == list(range(count))
        os.close(ready)
        os.close(go)


def test_what_a_killed_process_committed_is_delivered(arena: Arena, sender: Accumulator) -> None:
    def in_child() -> None:
        with Arena.attach(arena.name) as mine, Accumulator(mine) as accumulator:
            accumulator.append("t", 0, 1, None, b"committed")
            os.kill(os.getpid(), signal.SIGKILL)

    child = Child(in_child)
    assert os.waitpid(child.pid, 0)[1] == signal.SIGKILL
    os.close(child._reader)
    assert deliver_all(sender) == [b"committed"]
    sender.maintain()


def test_a_sender_that_was_killed_is_followed_by_another(arena: Arena, accumulator: Accumulator) -> None:
    accumulator.append("t", 0, 1, None, b"v")

    def in_child() -> None:
        with Arena.attach(arena.name) as mine, Accumulator(mine) as sender:
            sender.become_sender()
            assert len(drain(sender)) == 1
            os.kill(os.getpid(), signal.SIGKILL)

    child = Child(in_child)
    assert os.waitpid(child.pid, 0)[1] == signal.SIGKILL
    os.close(child._reader)
    accumulator.become_sender()
    assert deliver_all(accumulator) == [b"v"]


# --- threads


def test_threads_append_through_one_accumulator(arena: Arena, sender: Accumulator) -> None:
    thread_count, record_count = 4, 300
    errors: list[BaseException] = []

    def produce(number: int) -> None:
        try:
            for index in range(record_count):
                sender.append(f"t{index % 3}", number, 1, None, b"%d:%d" % (number, index))
        except BaseException as error:  # noqa: BLE001 - the main thread is to see it
            errors.append(error)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(thread_count)]
    for thread in threads:
        thread.start()
    values: list[bytes | None] = []
    while any(thread.is_alive() for thread in threads):
        values += deliver_all(sender)
    for thread in threads:
        thread.join()
    values += deliver_all(sender)
    assert errors == []
    assert len(set(values)) == len(values) == thread_count * record_count


def test_fork_while_a_thread_waits_for_a_buffer(arena_name: str) -> None:
    """The child does not have the waiting thread, so it can close the accumulator."""
    with Arena.create(arena_name, buffer_memory="4KiB", batch_size="4KiB") as arena, Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.append("t", 0, 1, None, b"first")
        (batch,) = drain(accumulator)
        waiting = threading.Thread(target=accumulator.append, args=("t", 1, 1, None, b"second"))
        waiting.start()
        wait_until(lambda: arena.statistics().waiting_count == 1, "the thread waits")

        def in_child() -> str:
            accumulator.close()
            arena.close()
            return "closed"

        assert run_in_child(in_child) == "'closed'"
        accumulator.complete(batch, BatchResult.SUCCEEDED)
        waiting.join(WATCHDOG_S)
        assert deliver_all(accumulator) == [b"second"]
        check_idle(arena)


def test_one_thread_at_a_time_is_the_sender(arena: Arena, sender: Accumulator) -> None:
    sender.append("t", 0, 1, None, b"v")
    seen: list[list[bytes | None]] = []
    thread = threading.Thread(target=lambda: seen.append(deliver_all(sender)))
    thread.start()
    thread.join()
    assert seen == [[b"v"]]


# --- pickling


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_the_halves_of_an_accumulator_are_not_pickled(accumulator: Accumulator, protocol: int) -> None:
    """Only the arena is pickled. An appender and a sender half belong to their process."""
    for half in (accumulator._native(None)[0], accumulator.half):
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(half, protocol)
