# SPDX-License-Identifier: Apache-2.0
"""A group's offsets survive every death of their writer. A commit is complete or absent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmaccum._native import append_frame
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError, GroupModeError, InvalidArgumentError, LogBusyError
from shmaccum.log.files import lock_descriptor
from shmaccum.log.files.file_names import GROUPS_FOLDER
from shmaccum.log.files.lock_descriptor import FLOCK
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.groups import offsets_file
from shmaccum.log.groups.joins import Joins
from shmaccum.log.groups.member_locks import MemberLocks
from shmaccum.log.groups.offsets_file import Committed, GroupLock, OffsetsFile, file_stem, group_ids, is_in_use
from shmaccum.log.groups.plan import MemberRow, Plan, plan_path, write_plan
from tests.support.processes import wait_until

PLACES = [TopicPartition("flights", partition) for partition in range(3)]


def committed(offset: int, metadata: str = "") -> Committed:
    return Committed(offset, 0, metadata, 1_700_000_000_000)


def written(directory: Path, group_id: str = "g") -> OffsetsFile:
    return OffsetsFile(os.fspath(directory), group_id, is_writer=True)


def read(directory: Path, group_id: str = "g") -> OffsetsFile:
    return OffsetsFile(os.fspath(directory), group_id, is_writer=False)


def path_of(directory: Path, group_id: str = "g") -> Path:
    return directory / GROUPS_FOLDER / (file_stem(group_id) + offsets_file.OFFSETS)


def test_what_is_committed_is_read_again(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.commit({place: committed(7 + place.partition, "why") for place in PLACES})
    file.commit({PLACES[0]: committed(8)})
    file.forget([PLACES[2], PLACES[2]])
    file.store_generation(5, "consumer", "range")
    file.close()
    found = read(tmp_path)
    assert found.offsets == {PLACES[0]: committed(8), PLACES[1]: committed(8, "why")}
    assert (found.generation, found.protocol_type, found.protocol) == (5, "consumer", "range")


def test_a_commit_torn_at_any_byte_is_the_former_one_or_the_new_one(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.commit({place: committed(1) for place in PLACES})
    file.close()
    path = path_of(tmp_path)
    before = path.stat().st_size
    file = written(tmp_path)
    file.commit({place: committed(2) for place in PLACES})
    file.close()
    whole = path.read_bytes()
    for size in range(before, len(whole) + 1):
        path.write_bytes(whole[:size])
        offset = 2 if size == len(whole) else 1
        assert read(tmp_path).offsets == {place: committed(offset) for place in PLACES}
        successor = written(tmp_path)
        successor.commit({PLACES[0]: committed(3)})
        successor.close()
        assert read(tmp_path).offsets[PLACES[0]] == committed(3)


def tear_at_each_byte(directory: Path, commit_count: int) -> None:
    """Makes this many commits, and truncates the last frame of the file at each of its bytes."""
    file = written(directory)
    for number in range(commit_count - 1):
        file.commit({PLACES[number % 3]: committed(number)})
    former, before = dict(file.offsets), path_of(directory).stat().st_size
    last = commit_count - 1
    file.commit({PLACES[last % 3]: committed(last), PLACES[commit_count % 3]: committed(last)})
    expected = dict(file.offsets)
    file.close()
    whole = path_of(directory).read_bytes()
    assert before < len(whole) < offsets_file.DEAD_SIZE_MIN + 1000 * len(PLACES)  # the file was rewritten meanwhile
    for end in range(before, len(whole)):
        path_of(directory).write_bytes(whole[:end])
        assert read(directory).offsets == former
    torn = written(directory)
    torn.commit({place: expected[place] for place in expected})
    torn.close()
    assert read(directory).offsets == expected


def test_the_last_of_many_commits_torn_at_any_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_file, "DEAD_SIZE_MIN", 4 << 10)
    tear_at_each_byte(tmp_path, 3_000)


@pytest.mark.slow
def test_the_last_of_a_million_commits_torn_at_any_byte(tmp_path: Path) -> None:
    tear_at_each_byte(tmp_path, 1_000_000)


def test_any_flipped_bit_costs_its_own_frame_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path)
    ends = [path_of(tmp_path).stat().st_size]
    for offset in (1, 2, 3):
        file.commit({PLACES[0]: committed(offset), PLACES[offset - 1]: committed(offset)})
        ends.append(path_of(tmp_path).stat().st_size)
    file.close()
    path = path_of(tmp_path)
    whole = path.read_bytes()
    for position in range(len(whole)):
        caplog.clear()
        damaged = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        path.write_bytes(damaged)
        assert read(tmp_path).offsets.get(PLACES[0], committed(0)).offset == (2 if position >= ends[2] else 3)
        assert group_ids(os.fspath(tmp_path)) == ["g"]
        written(tmp_path).close()
        kept = [each for each in path.parent.iterdir() if offsets_file.DAMAGED in each.name]
        is_size_of_last = ends[2] <= position < ends[2] + 4
        assert [each.read_bytes() for each in kept] == ([damaged] if kept or not is_size_of_last else [])
        assert [record.levelname for record in caplog.records] == ["ERROR"] * len(kept)
        for each in kept:
            each.unlink()


def test_the_offsets_after_a_damaged_frame_count_and_the_file_is_whole_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path)
    file.store_generation(4, "consumer", "range")
    begin = path_of(tmp_path).stat().st_size
    for offset in range(1, 100):
        file.commit({PLACES[offset % 3]: committed(offset)})
    file.close()
    damaged = bytearray(path_of(tmp_path).read_bytes())
    damaged[begin + 12 : begin + 2000] = os.urandom(1988)
    path_of(tmp_path).write_bytes(damaged)
    expected = {PLACES[0]: committed(99), PLACES[1]: committed(97), PLACES[2]: committed(98)}
    assert read(tmp_path).offsets == expected
    successor = written(tmp_path)
    assert "could be read" in caplog.text
    successor.commit({PLACES[0]: committed(100)})
    successor.close()
    caplog.clear()
    found = written(tmp_path)
    found.close()
    assert found.offsets == {**expected, PLACES[0]: committed(100)}
    assert (found.generation, caplog.text) == (4, "")


def test_a_torn_commit_is_cut_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path)
    file.commit({PLACES[0]: committed(1)})
    file.close()
    path_of(tmp_path).write_bytes(path_of(tmp_path).read_bytes()[:-1])
    written(tmp_path).close()
    assert caplog.text == ""
    assert [each.suffix for each in path_of(tmp_path).parent.iterdir()] == [".offsets"]


def test_a_file_that_is_mostly_dead_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_file, "DEAD_SIZE_MIN", 4096)
    file = written(tmp_path)
    file.store_generation(3, "consumer", "range")
    for offset in range(1000):
        file.commit({PLACES[offset % 3]: committed(offset)})
    file.close()
    assert path_of(tmp_path).stat().st_size < 6000
    found = read(tmp_path)
    assert found.offsets == {PLACES[0]: committed(999), PLACES[1]: committed(997), PLACES[2]: committed(998)}
    assert found.generation == 3


def test_pending_offsets_count_from_the_commit_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [TopicPartition("t", number) for number in range(3)]
    file = written(tmp_path)
    file.commit({places[0]: committed(1)})
    file.commit_pending(7, {places[0]: committed(10), places[1]: committed(11)})
    file.commit_pending(8, {places[2]: committed(12)})
    monkeypatch.setattr(offsets_file, "DEAD_SIZE_MIN", -(10**9))
    file.commit({places[2]: committed(2)})  # and rewrites the file
    for known in (file, read(tmp_path)):
        assert {place: one.offset for place, one in known.offsets.items()} == {places[0]: 1, places[2]: 2}
        assert [known.is_pending(place) for place in places] == [True] * 3
    file.end_pending(7, is_commit=True)
    file.end_pending(7, is_commit=False)  # which recovers nothing
    file.end_pending(8, is_commit=False)
    file.close()
    for known in (file, read(tmp_path)):
        assert [known.offsets[place].offset for place in places] == [10, 11, 2]
        assert known.pending == {}


def test_a_rewrite_that_dies_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_file, "DEAD_SIZE_MIN", 0)

    def die(_source: str, _target: str) -> None:
        raise OSError(5, "dies here")

    file = written(tmp_path)
    monkeypatch.setattr(os, "replace", die)
    for offset in range(20):
        file.commit({PLACES[0]: committed(offset)})
    file.close()
    assert read(tmp_path).offsets == {PLACES[0]: committed(19)}


def test_a_full_disk_commits_nothing_and_the_next_commit_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path)
    file.commit({PLACES[0]: committed(1)})

    def write_half(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shmaccum.log.files.small_files.write_all", write_half)
        with pytest.raises(OSError, match="No space"):
            file.commit({PLACES[0]: committed(2)})
    assert file.offsets == {PLACES[0]: committed(1)}
    file.commit({PLACES[1]: committed(3)})
    file.close()
    assert read(tmp_path).offsets == {PLACES[0]: committed(1), PLACES[1]: committed(3)}


def test_a_group_has_one_writer(tmp_path: Path) -> None:
    lock = GroupLock(os.fspath(tmp_path), "g")
    with pytest.raises(LogBusyError, match="'g'"):
        GroupLock(os.fspath(tmp_path), "g")
    GroupLock(os.fspath(tmp_path), "other").release()
    lock.release()
    GroupLock(os.fspath(tmp_path), "g").release()


def test_a_forked_child_does_not_keep_the_lock_of_a_group(tmp_path: Path) -> None:
    lock = GroupLock(os.fspath(tmp_path), "g")
    begin, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.read(begin, 1)
        os._exit(0)
    os.close(begin)
    try:
        lock.release()  # the child lives, and has no copy of the descriptor
        wait_until(lambda: not is_in_use(os.fspath(tmp_path), "g"), "the child has closed its copy")
    finally:
        os.close(end)
        os.waitpid(child, 0)


@pytest.mark.parametrize("group_id", ["a/../b", ".", "..", "ä ö", "x" * 1000, "a%2Fb", "con\0trol"])
def test_any_group_id_has_a_file_of_its_own_in_the_folder(tmp_path: Path, group_id: str) -> None:
    for name in (group_id, group_id + "'"):
        file = written(tmp_path, name)
        file.commit({PLACES[0]: committed(len(name))})
        file.close()
    assert read(tmp_path, group_id).offsets == {PLACES[0]: committed(len(group_id))}
    assert group_ids(os.fspath(tmp_path)) == sorted([group_id, group_id + "'"])
    assert os.listdir(tmp_path) == [GROUPS_FOLDER]


def test_the_group_without_a_name_has_offsets_and_no_local_members(tmp_path: Path) -> None:
    file = written(tmp_path, "")
    file.commit({PLACES[0]: committed(7)})
    file.close()
    written(tmp_path, "%").close()
    assert read(tmp_path, "").offsets == {PLACES[0]: committed(7)}
    assert group_ids(os.fspath(tmp_path)) == ["", "%"]
    with pytest.raises(InvalidArgumentError, match="empty"):
        MemberLocks(os.fspath(tmp_path), "")


ONE, TWO = 1, 2
"""Producer ids."""


def take(step: str, number: int, file: OffsetsFile) -> None:
    """a and b stage an offset of a producer. A and B commit its transaction, x aborts the one of a, and c commits
    directly.
    """
    offsets = {PLACES[0]: committed(number)}
    if step == "c":
        file.commit(offsets)
    elif step in "ab":
        file.commit_pending(ONE if step == "a" else TWO, offsets)
    else:
        file.end_pending(TWO if step == "B" else ONE, is_commit=step != "x")


@pytest.mark.parametrize(
    ("steps", "offset"),
    [
        ("acA", 1),
        ("caA", 1),
        ("acaA", 2),
        ("accA", 2),
        ("acx", 1),
        ("abBA", 1),
        ("abAB", 1),
        ("abcAB", 2),
        ("baBcA", 3),
    ],
)
@pytest.mark.parametrize("is_rewritten", [False, True])
def test_the_later_one_of_a_staged_and_a_committed_offset_counts(
    tmp_path: Path, steps: str, offset: int, is_rewritten: bool
) -> None:
    file = written(tmp_path)
    for number, step in enumerate(steps):
        if is_rewritten:
            file._rewrite()
        take(step, number, file)
        assert read(tmp_path).offsets == file.offsets
    assert file.offsets == {PLACES[0]: committed(offset)}
    file.close()
    assert read(tmp_path).offsets == {PLACES[0]: committed(offset)}


def test_another_groups_file_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    written(tmp_path).close()
    path_of(tmp_path).rename(path_of(tmp_path, "h"))
    with pytest.raises(CorruptLogError, match="'h'"):
        read(tmp_path, "h")


def deleted(directory: Path) -> None:
    lock = GroupLock(os.fspath(directory), "g")
    lock.remove_files()
    lock.release()


def test_a_deleted_group_leaves_no_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.commit({PLACES[0]: committed(1)})
    file.close()
    write_plan(plan_path(os.fspath(tmp_path), "g"), Plan())
    Joins(os.fspath(tmp_path), "g").add("m", MemberRow(0, 1, ("a",), ("range",)))
    deleted(tmp_path)
    assert list((tmp_path / GROUPS_FOLDER).iterdir()) == []
    assert group_ids(os.fspath(tmp_path)) == []
    assert read(tmp_path).offsets == {}
    deleted(tmp_path)


@pytest.mark.parametrize(
    "take",
    [lambda path: GroupLock(path, "g").release, lambda path: MemberLocks(path, "g").close],
    ids=["server", "member"],
)
def test_a_lock_file_that_is_removed_before_it_is_locked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[str], Callable[[], None]]
) -> None:
    """Otherwise, two processes could have the lock: one on the removed file, one on the new one."""

    def open_and_lose(path: str, flags: int) -> int:
        descriptor = open_regular(path, flags)
        monkeypatch.undo()
        deleted(tmp_path)
        return descriptor

    monkeypatch.setattr(lock_descriptor, "open_regular", open_and_lose)
    release = take(os.fspath(tmp_path))
    with pytest.raises((LogBusyError, GroupModeError)):
        GroupLock(os.fspath(tmp_path), "g")
    release()
    GroupLock(os.fspath(tmp_path), "g").release()


# --- a commit in one call of the native core


class AtOnce:
    """A lock file, and a file of offsets that this process has written."""

    def __init__(self, directory: Path) -> None:
        self.file = written(directory)
        self.lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT)
        self.path = path_of(directory)

    def commit(self, offset: int) -> bool:
        return self.file.commit_at_once({PLACES[0]: committed(offset)}, self.lock, BYTE)

    def close(self) -> None:
        self.file.close()
        os.close(self.lock)


BYTE = 1


@pytest.fixture
def at_once(tmp_path: Path) -> Iterator[AtOnce]:
    with contextlib.closing(AtOnce(tmp_path)) as made:
        yield made


def set_lock(path: Path, kind: int) -> int:
    """Open a descriptor and try to lock the byte."""
    descriptor = os.open(path, os.O_RDWR)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, BYTE, 1, 0))
    return descriptor


def test_a_commit_at_once_is_the_same_frame_and_frees_the_lock(tmp_path: Path, at_once: AtOnce) -> None:
    for offset in range(5):
        assert at_once.commit(offset)
    file = written(tmp_path, "h")
    for offset in range(5):
        file.commit({PLACES[0]: committed(offset)})
    file.close()
    head = len(b"\0" * 8 + b"\x92\xa5group\xa1g")
    assert at_once.path.read_bytes()[head:] == path_of(tmp_path, "h").read_bytes()[head:]
    assert read(tmp_path).offsets == at_once.file.offsets == {PLACES[0]: committed(4)}
    os.close(set_lock(tmp_path / "lock", fcntl.F_WRLCK))


def test_a_commit_at_once_writes_nothing_while_another_has_the_lock(tmp_path: Path, at_once: AtOnce) -> None:
    other, before = set_lock(tmp_path / "lock", fcntl.F_WRLCK), at_once.path.read_bytes()
    assert not at_once.commit(1)
    assert (at_once.path.read_bytes(), at_once.file.offsets) == (before, {})
    os.close(other)
    assert at_once.commit(1)


def test_a_commit_at_once_leaves_a_file_alone_that_others_wrote(tmp_path: Path, at_once: AtOnce) -> None:
    other = written(tmp_path)
    other.commit({PLACES[1]: committed(1)})
    other.close()
    assert not at_once.commit(1)
    at_once.file.prepare()
    assert at_once.commit(1)
    at_once.path.unlink()
    assert not at_once.commit(2)
    assert at_once.file.offsets == {PLACES[0]: committed(1), PLACES[1]: committed(1)}


def test_a_commit_at_once_on_a_full_disk_leaves_no_part_of_a_frame(tmp_path: Path, at_once: AtOnce) -> None:
    """With a file size limit, the kernel writes a part of the frame."""
    assert at_once.commit(1)
    before = at_once.path.read_bytes()
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 11, former[1]))
    try:
        assert not at_once.commit(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert at_once.path.read_bytes() == before
    assert at_once.commit(2)
    assert read(tmp_path).offsets == {PLACES[0]: committed(2)}


def test_a_long_file_is_rewritten_though_its_commits_are_made_at_once(
    at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_file, "DEAD_SIZE_MIN", 300)
    for offset in range(100):
        if not at_once.commit(offset):
            at_once.file.commit({PLACES[0]: committed(offset)})
    assert at_once.path.stat().st_size < 700


def test_append_frame_refuses_wrong_arguments(tmp_path: Path) -> None:
    with open(tmp_path / "file", "ab") as file:
        with pytest.raises(TypeError, match="'body' must be bytes, not str"):
            append_frame(file.fileno(), 1, file.fileno(), 0, "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="lock"):
            append_frame(-1, 1, file.fileno(), 0, b"")
        assert append_frame(2**31 - 1, 1, file.fileno(), 0, b"x") == 0
        assert append_frame(file.fileno(), 1, 2**31 - 1, 0, b"x") == 0
    assert (tmp_path / "file").read_bytes() == b""
