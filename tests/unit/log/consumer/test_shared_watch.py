# SPDX-License-Identifier: Apache-2.0
"""All consumers of a process share one instance of inotify, and each gets events of its own files."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmaccum.common import clock
from shmaccum.log.consumer import shared_watch
from shmaccum.log.consumer.change_waiter import ChangeWaiter
from shmaccum.log.files.log_watch import LogWatch
from tests.support.processes import WATCHDOG_S, wait_until


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    found = [tmp_path / name for name in "abc"]
    for folder in found:
        folder.mkdir()
    return [os.fspath(folder) for folder in found]


@pytest.fixture
def waiters(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ChangeWaiter]]:
    """A waiter for each folder. They share their instance with no consumer of a former test."""
    monkeypatch.setattr(shared_watch._CurrentWatch, "watch", None)
    made = [ChangeWaiter() for _ in folders]
    for one, folder in zip(made, folders, strict=True):
        one.watch([folder])
        assert one.has_watch
    yield made
    for one in made:
        if not one.is_closed:
            one.close()


def change(folder: str) -> None:
    Path(folder, "file").write_bytes(b"x")


def is_inotify(descriptor: int) -> bool:
    return "inotify" in os.readlink(f"/proc/self/fd/{descriptor}")


def wait_in_thread(one: ChangeWaiter, found: dict[ChangeWaiter, set[str]]) -> threading.Thread:
    """Starts a thread that waits for the next change, and returns when it waits."""

    def run() -> None:
        while not found.get(one) and not one.wait(time.monotonic() + WATCHDOG_S):
            found[one] = one.take()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_consumers_of_a_process_have_one_instance_and_the_last_closes_it(waiters: list[ChangeWaiter]) -> None:
    (shared,) = {one._shared for one in waiters}
    for one in waiters:
        assert is_inotify(shared._watch.descriptor)
        one.close()
    assert shared._watch.descriptor == -1


def test_each_consumer_gets_its_own_paths_though_another_one_reads(
    waiters: list[ChangeWaiter], folders: list[str]
) -> None:
    for folder in folders[:2]:
        change(folder)
    assert [one.take() for one in reversed(waiters)] == [set(), {folders[1]}, {folders[0]}]
    assert [one.take() for one in waiters] == [set()] * 3


@pytest.mark.parametrize("number", [0, 1, 2])
def test_each_of_several_waiting_threads_wakes_by_its_own_folder(
    waiters: list[ChangeWaiter], folders: list[str], number: int
) -> None:
    found: dict[ChangeWaiter, set[str]] = {}
    threads = [wait_in_thread(one, found) for one in waiters]
    change(folders[number])
    threads[number].join(WATCHDOG_S)
    assert found[waiters[number]] == {folders[number]}
    for one in waiters:
        one.wake()
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not any(found.get(one) for one in waiters if one is not waiters[number])


def test_the_next_waiting_thread_listens_when_a_listener_goes(waiters: list[ChangeWaiter], folders: list[str]) -> None:
    found: dict[ChangeWaiter, set[str]] = {}
    first = wait_in_thread(waiters[0], found)
    wait_until(lambda: is_listening(waiters[0]), "the first one listens")
    second = wait_in_thread(waiters[1], found)
    waiters[0].wake()
    first.join(WATCHDOG_S)
    wait_until(lambda: is_listening(waiters[1]), "the second one listens")
    change(folders[1])
    second.join(WATCHDOG_S)
    assert found[waiters[1]] == {folders[1]}


def is_listening(one: ChangeWaiter) -> bool:
    return len(one._selector.get_map()) == 2


def test_a_path_in_the_box_ends_a_wait_before_it_begins(waiters: list[ChangeWaiter], folders: list[str]) -> None:
    change(folders[0])
    assert waiters[1].take() == set()
    begin_s = time.monotonic()
    assert not waiters[0].wait(begin_s + WATCHDOG_S)
    assert time.monotonic() < begin_s + WATCHDOG_S / 2
    assert waiters[0].take() == {folders[0]}


def test_tasks_of_one_loop_wake_by_their_own_folders(waiters: list[ChangeWaiter], folders: list[str]) -> None:
    async def wait_for(one: ChangeWaiter) -> set[str]:
        while not (found := one.take()):
            await one.wait_in_loop(time.monotonic() + WATCHDOG_S)
        return found

    async def run() -> list[set[str]]:
        tasks = [asyncio.create_task(wait_for(one)) for one in waiters]
        await asyncio.sleep(0)
        for folder in folders:
            change(folder)
        return await asyncio.wait_for(asyncio.gather(*tasks), WATCHDOG_S)

    assert asyncio.run(run()) == [{folder} for folder in folders]


def test_a_forked_child_changes_nothing_of_its_parent(waiters: list[ChangeWaiter], folders: list[str]) -> None:
    child = os.fork()
    if not child:
        try:
            for one in waiters:
                one.close()
            own = ChangeWaiter()
            own.watch([folders[0]])
            change(folders[0])
            os._exit(0 if own.take() == {folders[0]} else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [one.take() for one in waiters] == [{folders[0]}, set(), set()]
    change(folders[2])
    assert waiters[2].take() == {folders[2]}


def test_a_folder_with_two_names_reports_both(tmp_path: Path, folders: list[str]) -> None:
    other = os.fspath(tmp_path / "link")
    os.symlink(folders[0], other)
    watch = LogWatch()
    try:
        assert watch.add(folders[0])
        assert watch.add(other)
        change(folders[0])
        assert watch.changed() == {folders[0], other}
        watch.remove(folders[0])
        change(folders[0])
        assert watch.changed() == {other}
        os.unlink(Path(folders[0], "file"))
        os.rmdir(folders[0])
        watch.changed()
        assert watch.folder_count == 0
    finally:
        watch.close()


@pytest.mark.parametrize("in_loop", [False, True], ids=["call", "loop"])
def test_without_an_instance_consumers_look_by_themselves_more_and_more_rarely(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, in_loop: bool
) -> None:
    def refuse(watch: LogWatch) -> None:
        watch.descriptor = -1

    monkeypatch.setattr(LogWatch, "__init__", refuse)
    one = ChangeWaiter()
    one.watch(folders)
    assert not one.has_watch
    assert one.take() == set(folders)
    waits_s = []
    for _ in range(4):
        waits_s.append(one._timeout_s(math.inf))
        assert not (asyncio.run(one.wait_in_loop(math.inf)) if in_loop else one.wait(math.inf))
    assert waits_s == [0.001, 0.002, 0.004, 0.008]
    one.close()
    other = ChangeWaiter()
    other.watch([])
    assert other.has_watch
    other.close()


def test_each_path_is_checked_once_in_each_interval(
    waiters: list[ChangeWaiter], folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = clock.monotonic()
    waiters[0].take()
    found = []
    for seconds in (5.1, 5.2, 10.0, 10.2, 10.3):
        monkeypatch.setattr(clock, "monotonic", lambda now_s=began_s + seconds: now_s)
        found.append(waiters[0].take())
    assert found == [{folders[0]}, set(), set(), {folders[0]}, set()]
