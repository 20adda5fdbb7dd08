# SPDX-License-Identifier: Apache-2.0
"""If a writer's file is removed, moved or replaced, it acknowledges nothing that the next process lacks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum import Arena
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import LogBusyError, LogLostError, NotALogError
from shmaccum.log.files.file_names import GROUPS_FOLDER, OVERFLOW_FOLDER, SHIPPING_FOLDER, TRANSACTIONAL_IDS_FILE
from shmaccum.log.files.lock_file import LockFile
from shmaccum.log.files.shipping_positions import PositionsFile, Shipped, ShippedPosition, ShippedTo, read_shipped
from shmaccum.log.groups.offsets_file import Committed, OffsetsFile
from shmaccum.log.groups.shared_offsets import shared_offsets
from shmaccum.log.server.transactional_id import TransactionalId, TransactionState
from shmaccum.log.server.transactions_file import TransactionsFile
from shmaccum.sender.shipping import Shipper
from shmaccum.sender.shipping.shipper import shipping_lock
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.descriptors import open_descriptors, open_files
from tests.support.processes import wait_until
from tests.support.segment_log import TOPIC, make_batches, offsets, open_log

GROUP = "g"
PLACES = [TopicPartition(TOPIC, number) for number in range(2)]


def removed(path: Path) -> None:
    path.unlink()


def moved(path: Path) -> None:
    path.rename(path.with_name("away"))


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


def folder_removed(path: Path) -> None:
    shutil.rmtree(path.parent)


Loss = Callable[[Path], None]
LOSSES = [removed, moved, replaced]


def committed(offset: int) -> Committed:
    return Committed(offset, 0, "", 1)


# --- transactional ids


def state(name: str, epoch: int) -> TransactionalId:
    nothing: frozenset[str] = frozenset()
    return TransactionalId(name, 7, epoch, -1, -1, 1000, TransactionState.EMPTY, 0, 0, frozenset(), nothing)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_of_a_transaction_is_in_the_file_that_the_next_server_reads(tmp_path: Path, loss: Loss) -> None:
    file = TransactionsFile(str(tmp_path), is_synced=False)
    file.put(state("a", 0))
    loss(tmp_path / TRANSACTIONAL_IDS_FILE)
    for epoch in (1, 2):
        file.put(state("b", epoch))
    file.close()
    assert TransactionsFile(str(tmp_path), is_synced=False).ids == {"a": state("a", 0), "b": state("b", 2)}


def test_a_step_fails_where_the_directory_is_away(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    file = TransactionsFile(str(tmp_path / "log"), is_synced=False)
    file.put(state("a", 0))
    (tmp_path / "log").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        file.put(state("a", 1))
    (tmp_path / "away").rename(tmp_path / "log")
    assert TransactionsFile(str(tmp_path / "log"), is_synced=False).ids == {"a": state("a", 0)}
    file.put(state("a", 2))
    file.close()
    assert TransactionsFile(str(tmp_path / "log"), is_synced=False).ids == {"a": state("a", 2)}


# --- offsets of groups


@pytest.mark.parametrize("loss", [*LOSSES, folder_removed])
def test_a_commit_is_in_the_file_that_the_next_server_reads(tmp_path: Path, loss: Loss) -> None:
    file = OffsetsFile(str(tmp_path), GROUP, is_writer=True)
    file.commit({PLACES[0]: committed(5)})
    loss(tmp_path / GROUPS_FOLDER / f"{GROUP}.offsets")
    for offset in (6, 7):
        file.commit({PLACES[1]: committed(offset)})
    file.close()
    found = OffsetsFile(str(tmp_path), GROUP, is_writer=False).offsets
    assert found == {PLACES[0]: committed(5), PLACES[1]: committed(7)}


def test_a_commit_fails_where_the_directory_is_away(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    file = OffsetsFile(str(tmp_path / "log"), GROUP, is_writer=True)
    file.commit({PLACES[0]: committed(5)})
    (tmp_path / "log").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        file.commit({PLACES[0]: committed(6)})
    assert not (tmp_path / "log").exists()
    (tmp_path / "away").rename(tmp_path / "log")
    assert OffsetsFile(str(tmp_path / "log"), GROUP, is_writer=False).offsets == {PLACES[0]: committed(5)}


@pytest.mark.parametrize("loss", [*LOSSES, folder_removed])
@pytest.mark.parametrize("is_at_once", [False, True])
def test_a_commit_of_a_group_without_a_server_is_read_by_its_other_members(
    tmp_path: Path, loss: Loss, is_at_once: bool
) -> None:
    member = shared_offsets(str(tmp_path), GROUP)
    member.commit({PLACES[0]: committed(5)})
    loss(tmp_path / GROUPS_FOLDER / f"{GROUP}.offsets")
    with open(tmp_path / "lock", "wb") as lock:
        offset = {PLACES[0]: committed(6)}
        if not (is_at_once and member.commit_at_once(offset, lock.fileno(), 0)):
            member.commit(offset)
    member.release()
    assert OffsetsFile(str(tmp_path), GROUP, is_writer=False).offsets == {PLACES[0]: committed(6)}


# --- positions of a shipper

SHIPPED_TO = ShippedTo("memory:", "00", 7, None)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("is_batch_loop", [False, True])
def test_positions_are_in_the_file_that_the_next_shipper_reads(tmp_path: Path, loss: Loss, is_batch_loop: bool) -> None:
    shipping_lock(str(tmp_path)).release()
    file = PositionsFile(str(tmp_path), Shipped(), SHIPPED_TO)
    file.write({PLACES[0]: ShippedPosition(1)})
    loss(tmp_path / SHIPPING_FOLDER / "positions")
    if is_batch_loop:
        assert file.appended(file.shipped.size, {PLACES[1]: ShippedPosition(2)})
    else:
        file.write({PLACES[1]: ShippedPosition(2)})
    file.close()
    assert read_shipped(str(tmp_path)).positions == {PLACES[0]: ShippedPosition(1), PLACES[1]: ShippedPosition(2)}


def test_positions_without_a_folder_are_not_kept(tmp_path: Path) -> None:
    shipping_lock(str(tmp_path)).release()
    file = PositionsFile(str(tmp_path), Shipped(), SHIPPED_TO)
    shutil.rmtree(tmp_path / SHIPPING_FOLDER)
    with pytest.raises(FileNotFoundError):
        file.write({PLACES[0]: ShippedPosition(1)})
    assert not file.appended(file.shipped.size, {})


def append(path: Path, first: int) -> None:
    with open_log(path) as log:
        offsets(log.partition(TOPIC, 0).append(make_batches(1, first=first)))


@pytest.mark.parametrize("has_other", [False, True])
def test_a_shipper_takes_its_lock_and_its_positions_up_again(tmp_path: Path, has_other: bool) -> None:
    def round_of(shipper: Shipper) -> bool:
        shipper.run_once(0)
        return (tmp_path / SHIPPING_FOLDER / "positions").exists()

    append(tmp_path, 0)
    sink = MemorySink()
    with Shipper(tmp_path, sink) as shipper:
        assert shipper.open()
        wait_until(lambda: round_of(shipper) and shipper.progress().left_record_count == 0, "all is shipped")
        shutil.rmtree(tmp_path / SHIPPING_FOLDER)
        if has_other:
            other = shipping_lock(str(tmp_path))
            with pytest.raises(LogBusyError):
                wait_until(lambda: round_of(shipper), "the other one is seen")
            other.release()
            return
        wait_until(lambda: round_of(shipper), "the positions are there")
        with pytest.raises(LogBusyError):
            shipping_lock(str(tmp_path))
    count = len(sink.values(TOPIC, 0))
    with Shipper(tmp_path, sink) as shipper:
        shipper.run(follow=False)
    assert len(sink.values(TOPIC, 0)) == count == 3


def test_a_log_that_becomes_an_overflow_before_its_shipper_opens_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0)
    sink = MemorySink()
    shipper = Shipper(tmp_path, sink)
    (tmp_path / OVERFLOW_FOLDER).mkdir()
    with pytest.raises(NotALogError, match="is the overflow of a sender"):
        shipper.open()


# --- the files beside an arena


@pytest.mark.parametrize("size", [247, 248, 255])
def test_an_arena_with_a_long_name_is_removed(tmp_path: Path, size: int) -> None:
    path = tmp_path / ("a" * size)
    Arena.create(path, buffer_memory="1MiB").close()
    Arena.remove(path)
    assert not os.listdir(tmp_path)


def test_a_directory_that_is_back_is_opened_by_the_next_check(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.check_paths()
        (tmp_path / "log").rename(tmp_path / "moved")
        with pytest.raises(LogLostError):
            log.require_name()
        log.check_paths()
        assert len(log.findings) == 1
        assert os.listdir(tmp_path) == ["moved"]
        (tmp_path / "moved").rename(tmp_path / "log")
        log._next_check_s = 0.0
        log.check_paths()
        log.require_name()


def test_a_lock_file_that_was_removed_before_its_lock_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / ".lock", LockFile._lock
    removed: list[Path] = []

    def remove_first(self: LockFile) -> None:
        lock(self)
        if not removed:
            removed.append(path)
            path.unlink()

    monkeypatch.setattr(LockFile, "_lock", remove_first)
    held = LockFile(str(path))
    assert [target for _, target in open_descriptors() if target.startswith(str(path))] == [str(path)]
    assert len(open_files(tmp_path)) == 1
    held.release()
    assert open_files(path) == open_files(tmp_path) == []
