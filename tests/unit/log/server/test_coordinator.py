# SPDX-License-Identifier: Apache-2.0
"""The coordinator finds groups by file name, reads only new data of a file, and may die in a commit."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import LogBusyError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.file_names import GROUPS_FOLDER, PARTITION_METADATA_FILE
from shmaccum.log.groups import offsets_file
from shmaccum.log.groups.member_locks import MemberLocks
from shmaccum.log.groups.offsets_file import OFFSETS, Committed, GroupLock, OffsetsFile, coordinator_address, group_ids
from shmaccum.log.server import coordinator as coordinators
from shmaccum.log.server.call import Call
from shmaccum.log.server.consumer_group import ConsumerLimits
from shmaccum.log.server.coordinator import EMPTY_KEPT_S, Coordinator, LoadedGroup
from shmaccum.log.server.group import Group, GroupLimits, GroupState
from shmaccum.log.server.group_requests import GroupRequests
from shmaccum.log.server.messages import decode, encode_request, read_head
from shmaccum.log.server.offset_requests import OffsetRequests
from shmaccum.log.server.steps import take_all
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.users import ANONYMOUS
from tests.support.segment_log import TOPIC, make_batches, open_log
from tests.support.system_calls import dies_at_system_call

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, VERSION = 8, 9, 11, 7
PLACE = TopicPartition(TOPIC, 0)
PARTITION_COUNT = 3
RECORD_COUNT = 30


@pytest.fixture
def log(tmp_path: Path) -> Iterator[str]:
    with open_log(tmp_path / "log", partitions=PARTITION_COUNT) as directory:
        directory.partition(*PLACE).append(make_batches(RECORD_COUNT // 3))
        yield os.fspath(tmp_path / "log")


def commit(log: str, group_id: str, offset: int) -> None:
    lock = GroupLock(log, group_id)
    file = OffsetsFile(log, group_id, is_writer=True)
    file.commit({PLACE: Committed(offset, -1, "", 1)})
    file.close()
    lock.release()


def coordinator_of(log: str) -> Coordinator:
    return Coordinator(log, LogTopics(log), GroupLimits(), ConsumerLimits())


def lags(coordinator: Coordinator) -> dict[str, int]:
    return {group.group_id: group.lags[PLACE] for group in take_all(coordinator.lags())}


def test_a_group_that_did_not_change_is_not_read_again(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real_read = OffsetsFile._read

    def counted(file: OffsetsFile) -> list[tuple[int, int]]:
        read.append(file.group_id)
        return real_read(file)

    for group_id in ("a", "b"):
        commit(log, group_id, 10)
    monkeypatch.setattr(OffsetsFile, "_read", counted)
    coordinator = coordinator_of(log)
    assert lags(coordinator) == lags(coordinator) == {"a": 20, "b": 20}
    assert sorted(read) == ["a", "b"]
    monkeypatch.undo()
    commit(log, "b", 25)
    monkeypatch.setattr(OffsetsFile, "_read", counted)
    assert lags(coordinator) == {"a": 20, "b": 5}
    assert sorted(read) == ["a", "b", "b"]


def test_a_group_that_is_gone_and_returns_starts_again(log: str) -> None:
    commit(log, "a", 10)
    coordinator = coordinator_of(log)
    assert lags(coordinator) == {"a": 20}
    lock = GroupLock(log, "a")
    lock.remove_files()
    lock.release()
    assert lags(coordinator) == {}
    assert coordinator.offsets_of("a") == {}
    commit(log, "a", 29)
    assert lags(coordinator) == {"a": 1}


def test_names_that_are_no_groups_are_passed_over(log: str) -> None:
    commit(log, "a", 1)
    folder = Path(log) / GROUPS_FOLDER
    for name in ("a b.offsets", ".offsets", "%zz.offsets", "%C3.offsets", "x" * 200 + ".offsets"):
        (folder / name).write_bytes(b"")
    (folder / "folder.offsets").mkdir()
    os.mkfifo(folder / "fifo.offsets")
    (folder / "link.offsets").symlink_to(folder / "a.offsets")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.offsets")).write_bytes(b"")
    assert group_ids(log) == ["a"]
    assert lags(coordinator_of(log)) == {"a": RECORD_COUNT - 1}


# --- offsets whose validity is unknown


def fetched(coordinator: Coordinator, group_id: str) -> tuple[BrokerError, int | None]:
    """Fetch the offset of one partition. Return the error and the offset."""
    values = {"group_id": group_id, "topics": [{"name": TOPIC, "partition_indexes": [0]}], "require_stable": False}
    frame = encode_request(OFFSET_FETCH, VERSION, values)
    request = read_head(memoryview(frame)[4:])
    call = Call(request, decode(request), "host", ANONYMOUS, None, lambda _call, _result: None)
    answer = take_all(OffsetRequests(coordinator).fetch(call))
    if answer["error_code"] is not BrokerError.NONE:
        return answer["error_code"], None
    return BrokerError.NONE, answer["topics"][0]["partitions"][0]["committed_offset"]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_group_keeps_its_offsets_while_the_id_of_its_topic_cannot_be_read(log: str, is_loaded: bool) -> None:
    """The offsets can be fetched, and the removal of unused groups deletes none of them."""
    commit(log, "a", 10)
    coordinator = coordinator_of(log)
    if is_loaded:
        assert not isinstance(coordinator.load("a"), BrokerError)
    for partition in range(PARTITION_COUNT):
        Path(log, str(TopicPartition(TOPIC, partition)), PARTITION_METADATA_FILE).write_bytes(b"")
    path = Path(log, GROUPS_FOLDER, "a.offsets")
    long_ago_s = time.time() - 10 * EMPTY_KEPT_S
    os.utime(path, (long_ago_s, long_ago_s))
    coordinator.retain()
    assert path.exists()
    assert fetched(coordinator, "a") == (BrokerError.NONE, 10)
    coordinator.close()


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_server_whose_log_is_away_reports_that_it_does_not_know(log: str, tmp_path: Path, is_loaded: bool) -> None:
    commit(log, "a", 10)
    coordinator = coordinator_of(log)
    if is_loaded:
        assert not isinstance(coordinator.load("a"), BrokerError)
    assert fetched(coordinator, "a") == (BrokerError.NONE, 10)
    Path(log).rename(tmp_path / "away")
    assert fetched(coordinator, "a") == (BrokerError.COORDINATOR_NOT_AVAILABLE, None)
    (tmp_path / "away").rename(log)
    assert fetched(coordinator, "a") == (BrokerError.NONE, 10)
    coordinator.close()


def test_a_group_whose_existence_is_unknown_has_no_answer(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets file cannot be read, for a temporary reason."""
    commit(log, "a", 10)
    coordinator = coordinator_of(log)
    real_stat = os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).endswith(OFFSETS):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real_stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    assert fetched(coordinator, "a") == (BrokerError.COORDINATOR_NOT_AVAILABLE, None)
    monkeypatch.undo()
    assert fetched(coordinator, "a") == (BrokerError.NONE, 10)


# --- the lock file is removed


def test_a_group_whose_files_are_removed_is_locked_and_written_again(log: str) -> None:
    coordinator = coordinator_of(log)
    coordinator.address = "host:1"
    ask_to_commit(coordinator, 7, lambda: None)
    shutil.rmtree(Path(log) / GROUPS_FOLDER)
    coordinator.retain()
    with pytest.raises(LogBusyError, match="coordinated by another process"):
        GroupLock(log, "g")
    assert coordinator_address(log, "g") == "host:1"
    ask_to_commit(coordinator, 8, lambda: None)
    assert OffsetsFile(log, "g", is_writer=False).offsets[PLACE].offset == 8


def test_a_group_that_another_process_has_locked_since_is_given_up(log: str) -> None:
    coordinator = coordinator_of(log)
    ask_to_commit(coordinator, 7, lambda: None)
    answers: list[int] = []
    ask_to_join(coordinator, answers)
    assert answers == []
    shutil.rmtree(Path(log) / GROUPS_FOLDER)
    with contextlib.closing(MemberLocks(log, "g")):
        coordinator.retain()
        assert answers == [BrokerError.UNKNOWN_MEMBER_ID]
        ask_to_join(coordinator, answers)
        assert answers[1:] == [BrokerError.INCONSISTENT_GROUP_PROTOCOL]


# --- limits and errors


def test_groups_with_nothing_to_store_do_not_count(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "GROUP_COUNT_MAX", 2)
    coordinator = coordinator_of(log)
    for group_id in "abcd":
        loaded = coordinator.load(group_id)
        assert isinstance(loaded, LoadedGroup)
        coordinator.release_unused(loaded)
    assert [isinstance(coordinator.load(group_id), LoadedGroup) for group_id in "abc"] == [True, True, False]
    coordinator.close()


def test_the_offsets_of_a_transaction_wait_while_another_process_has_the_group(log: str) -> None:
    coordinator = coordinator_of(log)
    lock = GroupLock(log, "g")
    with contextlib.closing(OffsetsFile(log, "g", is_writer=True)) as file:
        file.commit_pending(7, {PLACE: Committed(5, -1, "", 1)})
    assert not coordinator.end_transaction("g", 7, is_commit=True)
    assert coordinator.offsets_of("g") == {}
    lock.release()
    assert coordinator.end_transaction("g", 7, is_commit=True)
    assert coordinator.offsets_of("g")[PLACE].offset == 5
    coordinator.close()


def test_an_offset_has_the_time_of_its_commit(log: str) -> None:
    coordinator = coordinator_of(log)
    before_ms = int(time.time() * 1000)
    ask_to_commit(coordinator, 7, lambda: None)
    assert before_ms <= coordinator.offsets_of("g")[PLACE].time_ms <= time.time() * 1000
    coordinator.close()


# --- deaths


def ask_to_join(coordinator: Coordinator, answers: list[int]) -> None:
    """Send the JoinGroup of a new member, whose response waits for others. Append its error to `answers`."""
    values = {"group_id": "g", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "member_id": ""}
    protocols = [{"name": "range", "metadata": b""}]
    frame = encode_request(JOIN_GROUP, 3, {**values, "protocol_type": "consumer", "protocols": protocols})
    request = read_head(memoryview(frame)[4:])

    def note(_call: Call, result: Any) -> None:
        answers.append(result["error_code"])

    call = Call(request, decode(request), "host", ANONYMOUS, None, note)
    if (response := GroupRequests(coordinator).join(call)) is not None:
        note(call, response)


def ask_to_commit(coordinator: Coordinator, offset: int, tell: Callable[[], object]) -> Any:
    """Commit an offset of every partition, as a client that is no member."""
    one = {"committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    partitions = [{"partition_index": partition, **one} for partition in range(PARTITION_COUNT)]
    values = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    frame = encode_request(OFFSET_COMMIT, VERSION, {**values, "topics": [{"name": TOPIC, "partitions": partitions}]})
    request = read_head(memoryview(frame)[4:])
    call = Call(request, decode(request), "host", ANONYMOUS, None, lambda _call, _result: None)
    answer = take_all(OffsetRequests(coordinator).commit(call))
    tell()
    return answer


def test_each_offset_that_cannot_be_written_has_an_error(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: OffsetsFile, _offsets: object) -> None:
        raise OSError

    monkeypatch.setattr(OffsetsFile, "commit", fail)
    answer = ask_to_commit(coordinator_of(log), 1, lambda: None)
    errors = [partition["error_code"] for topic in answer["topics"] for partition in topic["partitions"]]
    assert errors == [BrokerError.KAFKA_STORAGE_ERROR] * PARTITION_COUNT


@pytest.mark.parametrize("is_rewritten", [False, True], ids=["appended", "written again"])
def test_a_server_killed_in_a_commit_leaves_the_old_offsets_or_the_new_ones(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rewritten: bool
) -> None:
    told = tmp_path / "told"

    def about_to_commit() -> Callable[[], object]:
        coordinator = coordinator_of(log)
        ask_to_commit(coordinator, 1, lambda: None)
        if is_rewritten:
            monkeypatch.setattr(offsets_file, "DEAD_SIZE_MIN", -(10**9))
        return lambda: ask_to_commit(coordinator, 2, told.touch)

    outcomes = set()
    for number in itertools.count(1):
        told.unlink(missing_ok=True)
        is_dead = dies_at_system_call(about_to_commit, number)
        lock = GroupLock(log, "g")  # which the kernel has released
        with contextlib.closing(OffsetsFile(log, "g", is_writer=True)) as file:
            offsets = file.offsets
        lock.release()
        found = {one.offset for one in offsets.values()}
        assert len(offsets) == PARTITION_COUNT
        assert found in ([{1}, {2}] if not told.exists() else [{2}]), number
        outcomes |= found
        if not is_dead:
            break
    assert outcomes == {1, 2}
    assert number > 3


@pytest.mark.parametrize("state", GroupState)
def test_a_generation_is_stored_once_its_members_have_their_assignment(log: str, state: GroupState) -> None:
    loaded = LoadedGroup(log, "a", GroupLimits(), is_synced=False)
    assert isinstance(loaded.group, Group)
    loaded.group.generation, loaded.group.state = 5, state
    loaded.store_generation()
    loaded.close()
    assert OffsetsFile(log, "a", is_writer=False).generation == (
        5 if state in {GroupState.STABLE, GroupState.EMPTY} else 0
    )


def test_twenty_groups_are_examined_in_each_call(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(21):
        commit(log, f"g{number}", 1)
    coordinator = coordinator_of(log)
    examined: list[str] = []
    monkeypatch.setattr(coordinator, "_maybe_expire", examined.append)
    counts = []
    for _ in range(3):
        coordinator.retain()
        counts.append(len(examined))
    assert counts == [20, 21, 41]
    assert len(set(examined[:21])) == 21


def test_a_tick_at_a_deadline_has_work(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [0.0]
    coordinator = Coordinator(log, LogTopics(log), GroupLimits(), ConsumerLimits(), clock_ms=lambda: now_ms[0])
    loaded = coordinator.load("a")
    assert not isinstance(loaded, BrokerError)
    ticks: list[float] = []
    loaded.group = SimpleNamespace(deadline_ms=10.0, tick=ticks.append)  # type: ignore[assignment]
    monkeypatch.setattr(coordinator, "store_and_answer", lambda _loaded: None)
    for now_ms[0] in (9.0, 10.0, 11.0):
        coordinator.tick()
    assert ticks == [10.0, 11.0]
    coordinator._groups.clear()
    loaded.close()
