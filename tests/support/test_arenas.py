# SPDX-License-Identifier: Apache-2.0
"""Files that a killed process of the tests left in shared memory are removed. Other files stay."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.presence import Presence
from shmaccum.arena.semaphores import make_semaphore
from shmaccum.arena.wake_fifo import WakeFifo
from tests.support import system_calls
from tests.support.arenas import SHARED_MEMORY, left_in_shared_memory, list_arenas, remove_arenas_of_the_dead
from tests.support.processes import Child
from tests.support.system_calls import dies_at_system_call


def be_killed_after_a_removal(name: str) -> None:
    """Create the companions of an arena, remove its file, and die."""
    list_arenas(SHARED_MEMORY / f"shmaccum-test-{os.getpid()}-uuids")
    arena = Arena.create(name, buffer_memory="64KiB", batch_size="4KiB")
    kept = WakeFifo(arena), Presence(arena)
    make_semaphore(arena, 0)
    os.unlink(arena.path)
    os.kill(os.getpid(), signal.SIGKILL)
    del kept


def test_companions_of_a_removed_arena_are_removed_after_the_death_of_their_session(
    arena: Arena, arena_name: str
) -> None:
    make_semaphore(arena, 0)
    child = Child(be_killed_after_a_removal, f"{arena_name}-lost")
    with contextlib.suppress(AssertionError):
        child.join()
    uuids = SHARED_MEMORY / f"shmaccum-test-{child.pid}-uuids"
    uuid = uuids.read_text().strip()
    (SHARED_MEMORY / f"shmaccum-{uuid}.folder").mkdir()  # a killed test leaves this folder
    left = [name for name in left_in_shared_memory(uuid) if not name.startswith(".")]  # senders remove sockets
    assert len(left) == 3
    remove_arenas_of_the_dead()
    assert left_in_shared_memory(uuid) == []
    assert not uuids.exists()
    assert left_in_shared_memory(arena.uuid.hex()[:12]) != []


def test_a_process_that_is_killed_while_it_creates_a_semaphore_leaves_no_temporary_file(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Path] = []
    find = system_calls.temporary_semaphores

    def note(pid: int) -> list[Path]:
        found = find(pid)
        left.extend(found)
        return found

    def prepare() -> Callable[[], object]:
        return lambda: make_semaphore(arena, 0)

    monkeypatch.setattr(system_calls, "temporary_semaphores", note)
    for number in itertools.count(1):
        if not dies_at_system_call(prepare, number):
            break
    assert left
    assert not any(path.exists() for path in left)
