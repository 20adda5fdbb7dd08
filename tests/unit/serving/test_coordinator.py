# SPDX-License-Identifier: Apache-2.0
"""The coordinator knows groups by the names of their files, and reads of a file what is new."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmaccum.format.topic_partition import TopicPartition
from shmaccum.groups.offsets_file import Committed, GroupLock, OffsetsFile, group_ids
from shmaccum.segment_log.file_names import GROUPS_FOLDER
from shmaccum.serving.consumer_group import ConsumerLimits
from shmaccum.serving.coordinator import Coordinator
from shmaccum.serving.group import Limits
from shmaccum.serving.topics import Topics
from tests.log_support import TOPIC, make_batches, open_log

PLACE = TopicPartition(TOPIC, 0)
RECORD_COUNT = 30


@pytest.fixture
def log(tmp_path: Path) -> Iterator[str]:
    with open_log(tmp_path / "log") as directory:
        directory.partition(*PLACE).append(make_batches(RECORD_COUNT // 3))
        yield os.fspath(tmp_path / "log")


def commit(log: str, group_id: str, offset: int) -> None:
    lock = GroupLock(log, group_id)
    file = OffsetsFile(log, group_id, is_writer=True)
    file.commit({PLACE: Committed(offset, -1, "", 1)})
    file.close()
    lock.release()


def coordinator_of(log: str) -> Coordinator:
    return Coordinator(log, Topics(log), Limits(), ConsumerLimits())


def lags(coordinator: Coordinator) -> dict[str, int]:
    return {group.group_id: group.lags[PLACE] for group in coordinator.lags()}


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


def test_a_group_that_is_gone_and_comes_back_begins_anew(log: str) -> None:
    commit(log, "a", 10)
    coordinator = coordinator_of(log)
    assert lags(coordinator) == {"a": 20}
    lock = GroupLock(log, "a")
    lock.remove_files()
    lock.release()
    assert lags(coordinator) == {}
    assert coordinator._offsets_of("a") == {}
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
