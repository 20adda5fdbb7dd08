# SPDX-License-Identifier: Apache-2.0
"""Transactions in the segment log: batches, markers, the index of aborted ones, and readers of committed records."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shmaccum import Consumer
from shmaccum.log.files import LogReader, PartitionReader, Rejection, check_log
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.producer_state import ProducerState
from shmaccum.log.files.recovery import Recovery
from shmaccum.log.files.transaction_index import Aborted, pack_aborted, read_aborted
from shmaccum.log.files.transaction_marker import decision_in, marker_batch
from shmaccum.log.files.transaction_view import TransactionView
from tests.support.processes import Child
from tests.support.segment_log import (
    START_MS,
    TOPIC,
    A,
    B,
    batch_of,
    log_files,
    make_batch,
    offsets,
    open_log,
    partition_folder,
    values_of,
)
from tests.support.system_calls import SOME_OR_EACH, Interruption, some_of_all


def partition_of(path: Path, isolation_level: Any = "read_committed") -> PartitionReader:
    return LogReader(path, isolation_level=isolation_level).partition(TOPIC, 0)


# --- markers


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_reports_what_was_decided(is_commit: bool) -> None:
    marker = marker_batch(A, 3, is_commit=is_commit, timestamp_ms=START_MS)
    assert marker.is_control
    assert marker.crc_problem() is None
    assert decision_in(marker.view, marker.header) is is_commit
    (record,) = marker.records()
    assert record.key == bytes([0, 0, 0, is_commit])
    assert record.value == bytes(6)


def test_other_control_batches_decide_nothing() -> None:
    marker = marker_batch(A, 3, is_commit=True, timestamp_ms=START_MS)
    content = bytearray(marker.view)
    for kind in (2, 7, 255):  # a change of leaders, an unknown kind
        content[61 + 5 + 3] = kind
        assert decision_in(memoryview(bytes(content)), marker.header) is None
    content[61:] = bytes(len(content) - 61)
    assert decision_in(memoryview(bytes(content)), marker.header) is None


# --- what readers see


def test_committed_records_appear_at_the_commit_and_aborted_ones_never(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append([make_batch([b"plain"]), batch_of(A, 0, b"a1", b"a2"), batch_of(B, 0, b"b1")])
        partition.append([make_batch([b"later"])])
        assert partition.stable_offset == 1
        assert values_of(tmp_path) == [b"plain"]
        assert values_of(tmp_path, isolation_level="read_uncommitted") == [b"plain", b"a1", b"a2", b"b1", b"later"]
        assert partition.end_transaction(B, 0, is_commit=False) == 5
        assert partition.stable_offset == 1, "the transaction of the other producer began first"
        assert partition.end_transaction(A, 0, is_commit=True) == 6
        assert partition.stable_offset == 7
        assert values_of(tmp_path) == [b"plain", b"a1", b"a2", b"later"]
        assert values_of(tmp_path, isolation_level="read_uncommitted") == [b"plain", b"a1", b"a2", b"b1", b"later"]
    assert aborted_of(tmp_path) == [Aborted(B, 3, 5, 1)]
    assert check_log(tmp_path) == []


def test_an_open_reader_follows_the_decisions(tmp_path: Path) -> None:
    with open_log(tmp_path) as log, Consumer(tmp_path, isolation_level="read_committed") as consumer:
        partition = log.partition(TOPIC, 0)
        partition.append([make_batch([b"plain"])])
        key = partition.place
        consumer.assign([key])
        consumer.seek_to_beginning()

        def polled() -> list[bytes]:
            return [record.value for records in consumer.poll(0).values() for record in records]

        assert polled() == [b"plain"]
        partition.append([batch_of(A, 0, b"a1"), make_batch([b"behind"])])
        assert polled() == []
        assert (consumer.position(key), consumer.end_offsets([key])[key], consumer.highwater(key)) == (1, 1, 3)
        partition.end_transaction(A, 0, is_commit=False)
        assert polled() == [b"behind"]
        partition.append([batch_of(A, 1, b"a2")])
        partition.end_transaction(A, 0, is_commit=False)
        assert polled() == []
        assert consumer.position(key) == consumer.end_offsets([key])[key] == 6, "aborted records are passed over"
        partition.append([batch_of(A, 2, b"a3")])
        partition.end_transaction(A, 0, is_commit=True)
        assert polled() == [b"a3"]


def test_a_reader_knows_transactions_that_began_before_the_newest_snapshot(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=600) as log:
        partition = log.partition(TOPIC, 0)
        partition.append([batch_of(A, 0, b"a1"), batch_of(B, 0, b"b1")])
        partition.end_transaction(B, 0, is_commit=False)
        for number in range(30):  # several segments, each with a snapshot
            partition.append([make_batch([b"%d" % number + b"." * 100])])
        assert len(partition.segments) > 3
        assert values_of(tmp_path) == []
        assert partition_of(tmp_path).open_transactions() == {A: 0}
        partition.end_transaction(A, 0, is_commit=False)
        assert [value[:2] for value in values_of(tmp_path) if value] == [
            b"%d." % n if n < 10 else b"%d" % n for n in range(30)
        ]
    assert check_log(tmp_path) == []


def test_a_look_up_by_time_stays_in_front_of_an_open_transaction(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([make_batch([b"old"], timestamp_ms=START_MS - 10), batch_of(A, 0, b"a1")])
    assert partition_of(tmp_path).offset_for_timestamp(START_MS) is None
    found = partition_of(tmp_path, "read_uncommitted").offset_for_timestamp(START_MS)
    assert found is not None
    assert found.offset == 1


# --- the writer's state


def test_a_marker_fences_older_epochs(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append([batch_of(A, 0, b"a1")])
        partition.end_transaction(A, 1, is_commit=False)
        (late,) = partition.append([batch_of(A, 1, b"zombie")])
        assert isinstance(late, Rejection)
        assert late.error_code is BrokerError.INVALID_PRODUCER_EPOCH
        (gap,) = partition.append([batch_of(A, 1, b"a2", epoch=1)])
        assert isinstance(gap, Rejection)
        assert gap.error_code is BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER
        old = partition.end_transaction(A, 0, is_commit=True)
        assert isinstance(old, Rejection)
    with open_log(tmp_path) as log:  # the snapshot has the fence
        partition = log.partition(TOPIC, 0)
        (late,) = partition.append([batch_of(A, 1, b"zombie")])
        assert isinstance(late, Rejection)
        assert partition.append([batch_of(A, 0, b"a2", epoch=1)]) == [2]


def test_no_entry_of_an_aborted_transaction_goes_to_another_folder_of_the_name(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_ms=2**40) as log:  # the marker is much younger than the records
        partition = log.partition(TOPIC, 0)
        partition.append([batch_of(A, 0, b"a1")])
        folder = partition_folder(tmp_path)
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        refused = partition.end_transaction(A, 0, is_commit=False)
        assert isinstance(refused, Rejection)
        assert list(folder.iterdir()) == []


def test_a_duplicate_of_a_transaction_begins_none(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        first = batch_of(A, 0, b"a1")
        assert partition.append([first]) == [0]
        partition.end_transaction(A, 0, is_commit=True)
        assert partition.append([first]) == [0]
        assert partition.stable_offset == 2
        assert partition.append([batch_of(A, 1, b"a2")]) == [2], "the sequences continue in the next transaction"


def test_snapshots_report_open_transactions_oldest_first() -> None:
    state = ProducerState()
    for offset, producer_id in enumerate((B, A)):
        assert state.admit_of_transaction(batch_of(producer_id, 0, b"v"), offset) is None
    state.confirm()
    found = ProducerState.from_snapshot(state.snapshot())
    assert found is not None
    assert found.transactions.producer_ids() == [B, A]
    assert found.transactions.stable_offset(9) == 0


def test_records_deleted_by_retention_leave_the_transaction_open(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=300) as log:
        partition = log.partition(TOPIC, 0)
        partition.append([batch_of(A, 0, b"a1")])
        for _ in range(10):
            partition.append([make_batch([b"." * 100])])
        log.delete_records(TOPIC, 0, 5)
        assert partition.stable_offset == partition.log_start_offset == 5
        assert isinstance(partition.end_transaction(A, 0, is_commit=False), int)
        assert partition.stable_offset == partition.log_end_offset


# --- deaths


def life(path: Path, count: int = 4) -> None:
    """Pairs of transactions between plain records, in small segments."""
    with open_log(path, segment_bytes=400) as log:
        partition = log.partition(TOPIC, 0)
        for sequence in range(count):
            partition.append(
                [batch_of(A, sequence, b"a%d" % sequence + b"." * 60), batch_of(B, sequence, b"b%d" % sequence)]
            )
            partition.end_transaction(A, 0, is_commit=sequence % 2 == 0)
            partition.append([make_batch([b"p%d" % sequence])])
            partition.end_transaction(B, 0, is_commit=False)


def aborted_of(path: Path) -> list[Aborted]:
    """Return the aborted transactions in the index files of partition 0."""
    folder = partition_folder(path)
    return [entry for file in log_files(path) for entry in read_aborted(str(folder), int(file.stem))]


def aborted_by_markers(path: Path) -> list[Aborted]:
    """Replay the whole log without snapshots, and return the aborted transactions."""
    for file in log_files(path, ".snapshot"):
        file.unlink()
    recovered = Recovery(str(partition_folder(path)), 4096, 0, is_same_boot=False).run()
    recovered.active.close()
    return aborted_of(path)


@SOME_OR_EACH
def test_a_death_at_any_system_call_leaves_an_index_that_recovery_makes_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    def live_and_die(path: Path, number: int) -> bool:
        death = Interruption(number, lambda: os._exit(0))
        death.install(monkeypatch)
        life(path, 1)
        return death.has_acted

    for number in some_of_all(stride):
        path = tmp_path / str(number)
        survived = Child(live_and_die, path, number).join() == "False"
        with open_log(path, segment_bytes=400) as log:
            log.partition(TOPIC, 0)
        assert check_log(path) == [], number
        seen, found = values_of(path), aborted_of(path)
        assert aborted_by_markers(path) == found, number
        assert not any(value and value.startswith((b"b", b"a1")) for value in seen), (number, seen)
        shutil.rmtree(path)
        if survived:
            break
    assert number > 40


def test_a_damaged_entry_hides_no_committed_records_of_other_segments(tmp_path: Path) -> None:
    life(tmp_path, 8)
    whole = values_of(tmp_path)
    folder = str(partition_folder(tmp_path))
    indexes = {file: read_aborted(folder, int(file.stem)) for file in sorted(log_files(tmp_path, ".txnindex"))}
    file, entries = next((file, entries) for file, entries in indexes.items() if entries[0].producer_id == A)
    file.write_bytes(pack_aborted([entries[0]._replace(last_offset=entries[-1].last_offset + 20)]))
    assert set(whole) <= set(values_of(tmp_path))


def test_an_entry_without_its_marker_is_taken_away(tmp_path: Path) -> None:
    life(tmp_path)
    entries = aborted_of(tmp_path)
    last = log_files(tmp_path)[-1]
    index = log_files(tmp_path, ".txnindex")[-1]
    with open(index, "ab") as file:
        file.write(index.read_bytes()[-34:-16] + (999).to_bytes(8, "big") + (999).to_bytes(8, "big") + b"torn")
    assert check_log(tmp_path) != []
    log_files(tmp_path, ".snapshot")[-1].unlink()
    with open_log(tmp_path, segment_bytes=400) as log:
        log.partition(TOPIC, 0)
        assert any(".txnindex was wrong" in finding for finding in log.findings)
    assert aborted_of(tmp_path) == entries
    assert check_log(tmp_path) == []
    assert last.exists()


@pytest.mark.parametrize("call", ["write", "pwritev"])
def test_a_full_disk_refuses_the_marker_and_keeps_the_transaction_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append([batch_of(A, 0, b"a1")])
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            refusal = partition.end_transaction(A, 1, is_commit=False)
        assert isinstance(refusal, Rejection)
        assert refusal.is_retriable
        assert partition.stable_offset == 0
        assert aborted_of(tmp_path) == []
        assert partition.append([batch_of(A, 1, b"a2")]) == [1], "the marker did not fence the epoch either"
        assert partition.end_transaction(A, 0, is_commit=False) == 2
        assert values_of(tmp_path) == []
    assert check_log(tmp_path) == []


def test_a_crash_of_the_host_rebuilds_the_index_after_the_recovery_point(tmp_path: Path) -> None:
    life(tmp_path)
    entries = aborted_of(tmp_path)
    for file in log_files(tmp_path, ".txnindex"):
        file.unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    recovered = Recovery(str(partition_folder(tmp_path)), 4096, 0, is_same_boot=False).run()
    recovered.active.close()
    assert aborted_of(tmp_path) == entries


def test_random_transactions_are_read_as_they_were_decided(tmp_path: Path, seeded: Callable[[], Random]) -> None:
    """Compare random transactions with a list, in both isolation levels and by two readers."""
    dice = seeded()
    sequences = dict.fromkeys(range(5), 0)
    begun: dict[int, dict[int, bytes]] = {}
    plain_or_committed: dict[int, bytes] = {}
    everything: dict[int, bytes] = {}
    log = open_log(tmp_path, segment_bytes=2000)
    try:
        follower = partition_of(tmp_path)
        for number in range(120):
            partition = log.partition(TOPIC, 0)
            value, producer = b"%d" % number, dice.randrange(5)
            kind = dice.choice(["plain", "send", "send", "end", "end", "roll", "reopen"])
            if kind == "plain":
                (offset,) = offsets(partition.append([make_batch([value])]))
                everything[offset] = plain_or_committed[offset] = value
            elif kind == "send":
                (offset,) = offsets(partition.append([batch_of(producer, sequences[producer], value)]))
                sequences[producer] += 1
                everything[offset] = value
                begun.setdefault(producer, {})[offset] = value
            elif kind == "end":
                is_commit = dice.random() < 0.5
                assert isinstance(partition.end_transaction(producer, 0, is_commit=is_commit), int)
                plain_or_committed.update(begun.pop(producer, {}) if is_commit else {})
                begun.pop(producer, None)
            elif kind == "roll":
                partition.roll()
            else:
                log.close()
                log = open_log(tmp_path, segment_bytes=2000)
                partition = log.partition(TOPIC, 0)
            stable = min((min(sent) for sent in begun.values()), default=partition.log_end_offset)
            assert partition.stable_offset == follower.stable_offset == stable
            if number % 20 == 0:
                wanted = {offset: value for offset, value in plain_or_committed.items() if offset < stable}
                for reader in (follower, partition_of(tmp_path)):
                    assert {record.offset: record.value for record in reader.records()} == wanted
                found = partition_of(tmp_path, "read_uncommitted").records()
                assert {record.offset: record.value for record in found} == everything
    finally:
        log.close()
    assert check_log(tmp_path) == []


@pytest.mark.parametrize(("shift", "is_known"), [(-1, True), (0, False), (1, False)])
def test_an_entry_of_a_segment_ends_before_the_next_segment(tmp_path: Path, shift: int, is_known: bool) -> None:
    with open_log(tmp_path, segment_bytes=300) as log:
        partition = log.partition(TOPIC, 0)
        while len(log_files(tmp_path)) < 3:
            partition.append([make_batch([b"v" * 100])])
    folder = partition_folder(tmp_path)
    second = int(log_files(tmp_path)[1].stem)
    entry = Aborted(A, 0, second + shift, second + shift)
    log_files(tmp_path)[0].with_suffix(".txnindex").write_bytes(pack_aborted([entry]))
    view = TransactionView(os.fspath(folder))
    assert view.start_offset > second
    assert view.has_any() is is_known
    assert view.is_aborted(A, 0) is is_known
