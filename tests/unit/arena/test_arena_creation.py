# SPDX-License-Identifier: Apache-2.0
"""The creation of an arena: concurrent, slow and dead creators, and files of earlier versions."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shmaccum import Producer
from shmaccum.arena import Arena, semaphore_name
from shmaccum.arena.creation import ATTACH_LOCK_BYTE, private_name, set_lock
from shmaccum.arena.fifo import make_fifo
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.semaphores import make_semaphore
from shmaccum.cli import main
from shmaccum.exceptions import (
    ArenaExistsError,
    ArenaForbiddenError,
    ArenaNotFoundError,
    InvalidArgumentError,
    UnfinishedArenaError,
)
from shmaccum.observe.host import arena_names
from tests.support.arenas import SHARED_MEMORY, left_in_shared_memory
from tests.support.other_users import needs_root
from tests.support.processes import Child, wait_until
from tests.support.system_calls import SOME_OR_EACH, dies_at_system_call, some_of_all

SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB"}
TOPICS = {"words": 3, "lines": 2}
STRANGER = 23454


@pytest.fixture(params=["name", "path"])
def name(request: pytest.FixtureRequest, arena_name: str, tmp_path: Path) -> Iterator[str]:
    """The name of an arena in shared memory, and the path of one."""
    yield arena_name if request.param == "name" else str(tmp_path / "arena")
    Arena.remove(arena_name, missing_ok=True)


def private_of(name: str) -> Path:
    return Path(private_name(ArenaFile.parse(name).path))


def signalling_sleep(descriptor: int) -> Callable[[float], None]:
    """Return a sleep that first signals another process by the descriptor."""
    real = time.sleep

    def sleep(seconds: float) -> None:
        os.write(descriptor, b"w")
        real(seconds)

    return sleep


def waiting(action: Callable[[], object]) -> Child:
    """Start a child that runs the action, and return when the action waits for another process."""
    reader, writer = os.pipe()

    def run() -> object:
        time.sleep = signalling_sleep(writer)  # type: ignore[assignment]
        return action()

    child = Child(run)
    os.close(writer)
    assert os.read(reader, 1) == b"w", child.join()
    os.close(reader)
    return child


class Creator:
    """A child that is paused within a creation until it is released or killed."""

    def __init__(self, name: str) -> None:
        begun, has_begun = os.pipe()
        has_to_finish, self._finish = os.pipe()
        self.child = Child(self._create, name, has_begun, has_to_finish)
        os.close(has_begun)
        os.close(has_to_finish)
        assert os.read(begun, 1) == b"b"
        os.close(begun)

    @staticmethod
    def _create(name: str, has_begun: int, has_to_finish: int) -> None:
        real = Arena.declare_topic

        def declare_when_told(self: Arena, name: str, partitions: int) -> None:
            os.write(has_begun, b"b")
            os.read(has_to_finish, 1)
            real(self, name, partitions)

        Arena.declare_topic = declare_when_told  # type: ignore[method-assign]
        Arena.create(name, topics={"words": 3}, **SMALL).close()

    def finish(self) -> None:
        os.write(self._finish, b"f")
        os.close(self._finish)
        self.child.join()


def attached(name: str) -> dict[str, int]:
    """Attach to or create the arena, and return its topics."""
    with Arena.attach_or_create(name, **SMALL) as arena, Producer(arena) as producer:
        return producer.list_topics()


def attached_without(descriptor: int, name: str) -> dict[str, int]:
    """Call `attached` in a child that has a copy of a descriptor with a lock."""
    os.close(descriptor)
    return attached(name)


# --- processes that begin at once


def begin_at_once(name: str, barrier: Any, answers: Any) -> None:
    barrier.wait()
    try:
        Arena.attach_or_create(name, **SMALL).close()
        answers.put("attached")
    except Exception as error:  # noqa: BLE001 - the parent compares it
        answers.put(repr(error))


@pytest.mark.parametrize("times", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_workers_that_begin_at_once_all_attach(name: str, times: int) -> None:
    context = multiprocessing.get_context("fork")
    for _ in range(times):
        barrier, answers = context.Barrier(4), context.Queue()
        workers = [context.Process(target=begin_at_once, args=(name, barrier, answers)) for _ in range(4)]
        for worker in workers:
            worker.start()
        assert [answers.get(timeout=60) for _ in workers] == ["attached"] * 4
        for worker in workers:
            worker.join()
        answers.close()
        answers.join_thread()
        assert not private_of(name).exists()
        Arena.remove(name)


def test_others_wait_for_a_living_creator_and_attach(name: str) -> None:
    creator = Creator(name)
    with pytest.raises(ArenaNotFoundError):
        Arena.attach(name)
    assert not Arena.exists(name)
    child = waiting(lambda: attached(name))
    os.kill(creator.child.pid, signal.SIGSTOP)
    assert not child.has_ended()
    os.kill(creator.child.pid, signal.SIGCONT)
    creator.finish()
    assert child.join() == "{'words': 3}"


def test_one_that_only_creates_waits_too_and_is_refused(name: str) -> None:
    creator = Creator(name)

    def refused() -> None:
        with pytest.raises(ArenaExistsError):
            Arena.create(name, **SMALL)

    child = waiting(refused)
    creator.finish()
    child.join()
    assert not private_of(name).exists()


def test_a_waiter_creates_the_arena_when_its_creator_dies(name: str) -> None:
    creator = Creator(name)
    child = waiting(lambda: attached(name))
    creator.child.kill()
    assert child.join() == "{}"
    assert not private_of(name).exists()


def test_a_creation_in_progress_is_no_arena_of_this_host(arena_name: str) -> None:
    creator = Creator(arena_name)
    assert not [each for each in arena_names() if arena_name in each]
    creator.finish()
    assert arena_name in arena_names()


def test_a_creation_that_fails_leaves_nothing(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Arena.create(name, topics={"words": 0}, **SMALL)
    with pytest.raises(RuntimeError, match="broken off"), ArenaFile.parse(name).create(0o600):
        raise RuntimeError("broken off")
    assert not Arena.exists(name)
    assert not private_of(name).exists()


def test_a_name_that_is_taken_meanwhile_is_not_replaced(name: str) -> None:
    path = Path(ArenaFile.parse(name).path)
    with pytest.raises(ArenaExistsError), ArenaFile.parse(name).create(0o600):
        path.write_text("another program's")
    assert path.read_text() == "another program's"
    assert not private_of(name).exists()
    path.unlink()


def test_long_names_have_a_private_name(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 245)
    Arena.create(path, **SMALL).close()
    assert len(private_of(str(path)).name) == 255
    Arena.remove(path)


# --- deaths


@SOME_OR_EACH
def test_after_a_death_at_any_step_of_a_creation_all_continue(name: str, stride: int) -> None:
    had_arena = set()
    for number in some_of_all(stride):
        if not dies_at_system_call(lambda: lambda: Arena.create(name, topics=TOPICS, **SMALL), number):
            break
        exists = Arena.exists(name)
        had_arena.add(exists)
        assert attached(name) == (TOPICS if exists else {})
        assert not private_of(name).exists()
        Arena.remove(name)
    assert had_arena == {False, True}
    assert number > 10
    Arena.remove(name, missing_ok=True)
    assert left_in_shared_memory(Path(name).name) == []


def test_removing_takes_what_a_dead_creator_left_and_nothing_of_a_living_one(name: str) -> None:
    creator = Creator(name)
    Arena.remove(name, missing_ok=True)
    assert private_of(name).exists()
    creator.child.kill()
    assert private_of(name).exists()
    Arena.remove(name, missing_ok=True)
    assert not private_of(name).exists()


# --- files of earlier versions under the arena's name


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_what_a_dead_creator_left_in_shared_memory_is_replaced(arena_name: str, size: int) -> None:
    path = SHARED_MEMORY / arena_name
    for use in (
        lambda: attached(arena_name),
        lambda: Arena.create(arena_name, **SMALL).close(),
        lambda: CliRunner().invoke(main, ["create", arena_name, "--exist-ok"], catch_exceptions=False),
        lambda: CliRunner().invoke(main, ["create", arena_name], catch_exceptions=False),
    ):
        path.touch(0o600)
        os.truncate(path, size)
        use()
        Arena.attach(arena_name).close()
        Arena.remove(arena_name)


def test_an_empty_file_is_replaced_and_one_of_zeros_is_not(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.touch(0o600)
    assert attached(str(path)) == {}
    Arena.remove(path)
    path.write_bytes(bytes(1 << 20))
    path.chmod(0o600)
    with pytest.raises(UnfinishedArenaError, match="remove it and create it again"):
        Arena.attach_or_create(path, **SMALL)
    with pytest.raises(ArenaExistsError, match="remove it first"):
        Arena.create(path, **SMALL)
    result = CliRunner().invoke(main, ["create", str(path), "--exist-ok"])
    assert result.exit_code != 0
    assert "remove it and create it again" in result.output
    assert path.read_bytes() == bytes(1 << 20)
    assert CliRunner().invoke(main, ["remove", "-f", str(path)]).exit_code == 0
    assert CliRunner().invoke(main, ["create", str(path), "--exist-ok"]).exit_code == 0


def test_what_a_living_creator_of_a_former_version_has_is_left_alone(arena_name: str) -> None:
    path = SHARED_MEMORY / arena_name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    assert set_lock(descriptor, fcntl.F_WRLCK, ATTACH_LOCK_BYTE)
    with pytest.raises(ArenaExistsError):
        Arena.create(arena_name, **SMALL)
    child = waiting(lambda: attached_without(descriptor, arena_name))  # the child has a copy of the lock
    os.close(descriptor)
    assert child.join() == "{}"


def test_another_program_s_file_is_left_alone(name: str) -> None:
    path = Path(ArenaFile.parse(name).path)
    for content in (b"text", bytes(32)):  # a POSIX semaphore has 32 bytes, and begins with zeros
        path.write_bytes(content)
        with pytest.raises(ArenaExistsError):
            Arena.create(name, **SMALL)
        assert path.read_bytes() == content
    path.unlink()


@needs_root
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_private_file_of_another_user_is_refused_and_not_waited_for(arena_name: str, mode: int) -> None:
    private = private_of(arena_name)
    descriptor = os.open(private, os.O_RDWR | os.O_CREAT, 0o600)
    os.chmod(private, mode)
    os.chown(private, STRANGER, STRANGER)
    assert set_lock(descriptor, fcntl.F_WRLCK, ATTACH_LOCK_BYTE)
    with pytest.raises(ArenaForbiddenError, match=f"belongs to user {STRANGER}"):
        Arena.attach_or_create(arena_name, **SMALL)
    os.close(descriptor)
    private.unlink()


# --- recovery has no time limit


def test_an_attacher_waits_for_a_living_process_that_recovers(name: str) -> None:
    Arena.create(name, topics=TOPICS, **SMALL).close()
    descriptor = os.open(ArenaFile.parse(name).path, os.O_RDWR | os.O_CLOEXEC)
    assert set_lock(descriptor, fcntl.F_WRLCK, ATTACH_LOCK_BYTE)
    # The child has a copy of the lock. The core waits for a second first.
    child = waiting(lambda: attached_without(descriptor, name))
    os.close(descriptor)
    assert child.join() == str(TOPICS)


def test_a_forked_child_waits_for_a_living_process_that_recovers(name: str) -> None:
    arena = Arena.create(name, topics=TOPICS, **SMALL)
    reader, writer = os.pipe()

    def declare() -> None:
        os.read(reader, 1)
        arena.declare_topic("more", 1)

    child = Child(declare)
    arena.close()
    descriptor = os.open(ArenaFile.parse(name).path, os.O_RDWR | os.O_CLOEXEC)
    wait_until(
        lambda: set_lock(descriptor, fcntl.F_WRLCK, ATTACH_LOCK_BYTE), "the child has let go of its copy of the lock"
    )
    os.write(writer, b"s")
    began_s = time.monotonic()
    wait_until(lambda: child.has_ended() or time.monotonic() - began_s > 2, "the core's slice of a second is over")
    assert not child.has_ended()
    os.close(descriptor)
    child.join()
    os.close(reader)
    os.close(writer)
    Arena.remove(name)


# --- files beside an arena


def test_a_fifo_and_a_semaphore_of_a_dead_creator_are_shared_again(arena_name: str) -> None:
    """The creator died after it had created them by its umask, and before it set the arena's mode."""
    with Arena.create(arena_name, mode=0o660, **SMALL) as arena:
        fifo = ArenaFile.parse(arena_name).wake_fifo(arena.uuid)
        semaphore = f"{SHARED_MEMORY}/sem.{semaphore_name(arena.uuid, 0)[1:]}"
        make_fifo(fifo, arena)
        make_semaphore(arena, 0)
        for path in (fifo, semaphore):
            os.chmod(path, 0o600)
        make_fifo(fifo, arena)
        make_semaphore(arena, 0)
        assert [stat.S_IMODE(os.stat(path).st_mode) for path in (fifo, semaphore)] == [0o660, 0o660]
