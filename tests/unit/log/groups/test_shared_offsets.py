# SPDX-License-Identifier: Apache-2.0
"""The members of a process share the offsets that they read of a group: in threads, after a fork, in any order."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError
from shmaccum.log.files.file_names import GROUPS_FOLDER
from shmaccum.log.groups.member_locks import MemberLocks
from shmaccum.log.groups.offsets_file import OFFSETS, Committed, OffsetsFile, file_stem
from shmaccum.log.groups.shared_offsets import SharedOffsets, _OpenFiles, shared_offsets
from tests.support.descriptors import open_descriptors
from tests.support.processes import WATCHDOG_S

PLACES = [TopicPartition("a", number) for number in range(4)]
COMMITS_EACH = 100


def offset(number: int) -> Committed:
    return Committed(number, -1, "", 1)


def open_files(directory: Path) -> int:
    """The descriptors of offsets files that this process has."""
    found = [path for _, path in open_descriptors()]
    return sum(path.startswith(os.fspath(directory)) and path.endswith(OFFSETS) for path in found)


def stored(directory: Path) -> dict[TopicPartition, int]:
    file = OffsetsFile(os.fspath(directory), "g", is_writer=False)
    return {place: one.offset for place, one in file.offsets.items()}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_members_of_a_process_share_one_file_and_the_last_closes_it(tmp_path: Path, order: tuple[int, ...]) -> None:
    users = [shared_offsets(os.fspath(tmp_path), "g") for _ in range(3)]
    users[0].commit({PLACES[0]: offset(7)})
    assert all(user is users[0] for user in users)
    for number in order:
        assert open_files(tmp_path) == 1
        assert users[number].committed(PLACES[0]) == offset(7)
        users[number].release()
    assert open_files(tmp_path) == 0
    again = shared_offsets(os.fspath(tmp_path), "g")
    assert again is not users[0]
    assert again.committed(PLACES[0]) == offset(7)
    again.release()


def test_a_frame_of_another_process_is_read_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = [shared_offsets(os.fspath(tmp_path), "g") for _ in range(3)]
    other = OffsetsFile(os.fspath(tmp_path), "g", is_writer=True)
    assert users[0].committed(PLACES[0]) is None
    replayed: list[int] = []
    replay = OffsetsFile._replay

    def counted(file: OffsetsFile, body: list[Any], position: int) -> None:
        replayed.append(position)
        replay(file, body, position)

    monkeypatch.setattr(OffsetsFile, "_replay", counted)
    for number in range(5):
        other.commit({PLACES[0]: offset(number)})
        assert [user.committed(PLACES[0]) for user in users] == [offset(number)] * 3
    assert len(replayed) == 5
    other.close()
    for user in users:
        user.release()


def test_threads_commit_and_read_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmaccum.log.groups.offsets_file.DEAD_SIZE_MIN", -100)  # the file is often rewritten
    failures: list[BaseException] = []

    def commit(place: TopicPartition) -> None:
        try:
            with_own_locks(tmp_path, place)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=commit, args=(place,)) for place in PLACES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert not failures
    assert stored(tmp_path) == dict.fromkeys(PLACES, COMMITS_EACH - 1)
    assert open_files(tmp_path) == 0


def with_own_locks(directory: Path, place: TopicPartition) -> None:
    """Commits as a member does, and reads each commit back."""
    locks, offsets = MemberLocks(os.fspath(directory), "g"), shared_offsets(os.fspath(directory), "g")
    for number in range(COMMITS_EACH):
        with locks.offsets_lock(WATCHDOG_S):
            offsets.commit({place: offset(number)})
        assert offsets.committed(place) == offset(number)
    offsets.release()
    locks.close()


def test_a_forked_child_opens_a_file_of_its_own(tmp_path: Path) -> None:
    """During the fork, another thread of the parent holds all locks."""
    offsets = shared_offsets(os.fspath(tmp_path), "g")
    offsets.commit({PLACES[0]: offset(1)})
    begun, is_over = threading.Event(), threading.Event()
    holder = threading.Thread(target=hold, args=(offsets, begun, is_over))
    holder.start()
    assert begun.wait(WATCHDOG_S)
    child = os.fork()
    if not child:
        try:
            own = shared_offsets(os.fspath(tmp_path), "g")
            own.commit({PLACES[1]: offset(2)})
            offsets.release()
            own.release()
            os._exit(open_files(tmp_path))
        finally:
            os._exit(9)
    _, status = os.waitpid(child, 0)
    is_over.set()
    holder.join(WATCHDOG_S)
    assert os.waitstatus_to_exitcode(status) == 0
    offsets.commit({PLACES[2]: offset(3)})
    assert stored(tmp_path) == {PLACES[0]: 1, PLACES[1]: 2, PLACES[2]: 3}
    offsets.release()


def hold(offsets: SharedOffsets, begun: threading.Event, is_over: threading.Event) -> None:
    """Holds a member's locks until *is_over* is set."""
    with _OpenFiles.lock, offsets._lock:
        begun.set()
        is_over.wait(WATCHDOG_S)


def test_every_member_gets_an_error_for_an_invalid_file(tmp_path: Path) -> None:
    users = [shared_offsets(os.fspath(tmp_path), "g") for _ in range(2)]
    path = tmp_path / GROUPS_FOLDER / (file_stem("g") + OFFSETS)
    other = OffsetsFile(os.fspath(tmp_path), "h", is_writer=True)
    other.close()
    os.replace(path.with_name(file_stem("h") + OFFSETS), path)
    for user in users:
        with pytest.raises(CorruptLogError, match="not a frame of group 'g'"):
            user.committed(PLACES[0])
        user.release()
    with pytest.raises(CorruptLogError, match="not a frame of group 'g'"):
        shared_offsets(os.fspath(tmp_path), "g")
