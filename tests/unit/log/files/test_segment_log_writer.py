# SPDX-License-Identifier: Apache-2.0
"""Appending to a segment log: offsets, files, rolling, indexes, duplicates, retention, failures, one writer."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shmaccum.common import clock
from shmaccum.common.descriptors import share
from shmaccum.common.format.batch_header import read_header
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import (
    InvalidArgumentError,
    LogBusyError,
    LogForbiddenError,
    LogLostError,
    LogPartitionNotFoundError,
    NotALogError,
)
from shmaccum.log.files import partition_log
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.directory import (
    CHECK_INTERVAL_S,
    CHECKPOINT_INTERVAL_S,
    OPEN_PARTITIONS_MAX,
    OPEN_PARTITIONS_PARTS,
    TRANSACTIONS_INTERVAL_S,
    LogDirectory,
)
from shmaccum.log.files.partition_folders import make_partition_folder
from shmaccum.log.files.partition_log import SNAPSHOT_BATCH_COUNT, PartitionLog
from shmaccum.log.files.producer_state import KEPT_COUNT, Rejection
from shmaccum.log.files.segment import IOV_MAX
from shmaccum.log.files.transaction_files import TransactionFiles
from tests.support.processes import run_in_child
from tests.support.segment_log import (
    PRODUCER_ID,
    START_MS,
    TOPIC,
    log_files,
    make_batch,
    make_batches,
    offsets,
    open_log,
    partition_folder,
    wire_in_files,
)


def names(path: Path) -> list[str]:
    return sorted(file.name for file in partition_folder(path).iterdir())


# --- append


def test_a_batch_in_the_log_is_the_wire_batch_but_for_its_first_sixteen_bytes(tmp_path: Path) -> None:
    batches = make_batches(3)
    with open_log(tmp_path) as log:
        assert offsets(log.partition(TOPIC, 0).append(batches)) == [0, 3, 6]
    written = log_files(tmp_path)[0].read_bytes()
    position = 0
    for batch, base_offset in zip(batches, (0, 3, 6), strict=True):
        assert written[position + 16 : position + batch.size] == batch.wire[16:]
        assert struct.unpack(">qii", written[position : position + 16]) == (base_offset, batch.size - 12, 0)
        position += batch.size
    assert position == len(written)


def test_a_folder_has_the_files_that_kafka_gives_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(make_batches(1))
    assert names(tmp_path) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000003.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert (partition_folder(tmp_path) / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert (partition_folder(tmp_path) / "partition.metadata").read_text().startswith("version: 0\ntopic_id: ")


def test_a_batch_in_pieces_is_appended_whole_however_many_there_are(tmp_path: Path) -> None:
    values = [b"x" * 8000]
    batches = [make_batch(values, piece_count=count) for count in (1, 2, 7, 3000)]
    with open_log(tmp_path) as log:
        assert offsets(log.partition(TOPIC, 0).append(batches)) == [0, 1, 2, 3]
    assert len(wire_in_files(tmp_path)) == sum(batch.size for batch in batches)
    assert {wire_in_files(tmp_path)[16 + index * batches[0].size :][: batches[0].size - 16] for index in range(4)} == {
        batches[0].wire[16:]
    }


def test_more_batches_than_one_system_call_takes_are_appended_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = make_batches(IOV_MAX, record_count=1, value_size=1)
    counts, write = [], os.pwritev

    def counted(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        counts.append(len(buffers))
        return write(descriptor, buffers, position)

    monkeypatch.setattr(os, "pwritev", counted)
    with open_log(tmp_path) as log:
        assert offsets(log.partition(TOPIC, 0).append(batches)) == list(range(IOV_MAX))
    assert counts == [IOV_MAX, IOV_MAX]  # two buffers of each batch


def test_opened_again_the_log_continues_where_it_was(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(make_batches(2))
        uuid = log.uuid
    with open_log(tmp_path) as log:
        assert log.uuid == uuid
        assert offsets(log.partition(TOPIC, 0).append(make_batches(1, first=2))) == [6]
        assert log.findings == []


# --- roll


def test_a_segment_that_would_outgrow_its_size_is_rolled(tmp_path: Path) -> None:
    batches = make_batches(7)
    with open_log(tmp_path, segment_bytes=batches[0].size * 3 + 5) as log:
        partition = log.partition(TOPIC, 0)
        assert offsets(partition.append(batches)) == [0, 3, 6, 9, 12, 15, 18]
        assert partition.segments == [0, 9, 18]
    assert [file.name for file in log_files(tmp_path)] == [f"{base:020d}.log" for base in (0, 9, 18)]
    assert [file.stat().st_size for file in log_files(tmp_path)] == [
        sum(batch.size for batch in part) for part in (batches[:3], batches[3:6], batches[6:])
    ]


def test_a_segment_is_rolled_when_a_record_is_too_much_younger_than_its_first(tmp_path: Path) -> None:
    ages = [0, 5_000, 10_000, 10_001, 12_000, 20_001, 20_002]
    batches = [make_batch([b"v"], timestamp_ms=START_MS + age) for age in ages]
    with open_log(tmp_path, segment_ms=10_000) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches)
        assert partition.segments == [0, 3, 6]


def test_a_segment_is_rolled_before_an_offset_does_not_fit_its_index(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(make_batches(1))
        partition._active.next_offset += 2**31 - 4
        assert offsets(partition.append(make_batches(2, first=1))) == [2**31 - 1, 2**31 + 2]
        assert partition.segments == [0, 2**31 - 1]


def test_a_segment_is_rolled_when_an_index_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmaccum.log.files.index_file.INDEX_FILE_SIZE_MAX", 5 * 12)
    with open_log(tmp_path, index_interval_bytes=1) as log:
        partition = log.partition(TOPIC, 0)
        for batch in make_batches(12):
            partition.append([batch])
        assert partition.segments == [0, 15, 30]


def test_a_batch_larger_than_a_segment_is_refused_and_the_next_is_taken(tmp_path: Path) -> None:
    small, large = make_batch([b"small"]), make_batch([b"x" * 5000])
    with open_log(tmp_path, segment_bytes=1000) as log:
        first, refused, second = log.partition(TOPIC, 0).append([small, large, small])
        assert (first, second) == (0, 1)
        assert isinstance(refused, Rejection)
        assert refused.error_code == BrokerError.MESSAGE_TOO_LARGE
        assert "raise segment_bytes" in refused.message


# --- indexes


def test_index_entries_follow_kafkas_rules(tmp_path: Path) -> None:
    batches = make_batches(10)
    size = batches[0].size
    with open_log(tmp_path, index_interval_bytes=2 * size, segment_bytes=10 * size) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches)
        partition.append(make_batches(1, first=10))
    offset_entries = list(struct.iter_unpack(">ii", log_files(tmp_path, ".index")[0].read_bytes()))
    # Entries must be more than 2 batches apart, so every third batch has one.
    assert offset_entries == [(3 * index + 2, size * index) for index in (3, 6, 9)]
    time_entries = list(struct.iter_unpack(">qi", log_files(tmp_path, ".timeindex")[0].read_bytes()))
    assert time_entries == [(START_MS + 1000 * index + 2, 3 * index + 2) for index in (3, 6, 9)]


def test_a_time_index_never_goes_back_and_ends_with_the_largest_timestamp(tmp_path: Path) -> None:
    ages = [50, 40, 30, 60, 20, 10, 70, 5]
    batches = [make_batch([b"v" * 100], timestamp_ms=START_MS + age) for age in ages]
    with open_log(tmp_path, index_interval_bytes=1) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches)
        partition.roll()
    time_entries = list(struct.iter_unpack(">qi", log_files(tmp_path, ".timeindex")[0].read_bytes()))
    assert time_entries == [(START_MS + 50, 0), (START_MS + 60, 3), (START_MS + 70, 6)]


# --- idempotence


def test_the_last_batches_are_recognised_and_answered_with_their_offsets(tmp_path: Path) -> None:
    batches = make_batches(KEPT_COUNT + 3)
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches)
        assert offsets(partition.append(batches[3:])) == [3 * index for index in range(3, KEPT_COUNT + 3)]
        (older,) = partition.append([batches[2]])
        assert isinstance(older, Rejection)
        assert older.error_code == BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert partition.log_end_offset == 3 * (KEPT_COUNT + 3)


def test_a_duplicate_in_the_same_call_is_recognised(tmp_path: Path) -> None:
    one, two = make_batches(2)
    with open_log(tmp_path) as log:
        assert offsets(log.partition(TOPIC, 0).append([one, one, two, one])) == [0, 0, 3, 0]


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("codec", [0, 1])
def test_another_batch_under_the_same_sequences_is_no_duplicate(tmp_path: Path, is_reopened: bool, codec: int) -> None:
    """After a power cut, an arena on disk may assign sequences again."""
    batches = [make_batch([b"%d" % number], producer=(PRODUCER_ID, 0, number), codec=codec) for number in range(4)]
    log = open_log(tmp_path, segment_bytes=batches[0].size * 2)
    log.partition(TOPIC, 0).append(batches)
    if is_reopened:
        log.close()
        log = open_log(tmp_path)
    with log:
        partition = log.partition(TOPIC, 0)
        for number in range(4):
            others = [
                make_batch([b"x"], producer=(PRODUCER_ID, 0, number), codec=codec),
                make_batch([b"%d" % number], producer=(PRODUCER_ID, 0, number), codec=codec, timestamp_ms=START_MS + 1),
            ]
            for other in others:
                (refusal,) = partition.append([other])
                assert isinstance(refusal, Rejection)
                assert refusal.error_code == BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert offsets(partition.append([batches[number]])) == [number]
        (again,) = partition.append([make_batch([b"x"], producer=(PRODUCER_ID, 1, 0), codec=codec)])
        assert again == 4


@pytest.mark.parametrize("codecs", [(0, 1), (1, 0), (1, 3), (4, 2)])
def test_a_duplicate_may_be_compressed_in_another_way(tmp_path: Path, codecs: tuple[int, int]) -> None:
    first, second = (make_batch([b"v" * 100], producer=(PRODUCER_ID, 0, 0), codec=codec) for codec in codecs)
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        assert offsets([*partition.append([first]), *partition.append([second])]) == [0, 0]


@pytest.mark.parametrize("damage", ["none", "no snapshots", "corrupt snapshots", "killed"])
def test_duplicates_are_recognised_after_reopening(tmp_path: Path, damage: str) -> None:
    batches = make_batches(9)
    log = open_log(tmp_path, segment_bytes=batches[0].size * 4)
    log.partition(TOPIC, 0).append(batches)
    if damage == "killed":
        log.abandon()
    log.close()
    for snapshot in log_files(tmp_path, ".snapshot"):
        if damage == "no snapshots":
            snapshot.unlink()
        if damage == "corrupt snapshots":
            snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"\x55")
    with open_log(tmp_path, segment_bytes=batches[0].size * 4) as log:
        partition = log.partition(TOPIC, 0)
        assert offsets(partition.append([*batches[4:], *make_batches(1, first=9)])) == [12, 15, 18, 21, 24, 27]


def test_gaps_and_old_epochs_are_refused_as_a_broker_does(tmp_path: Path) -> None:
    def batch(epoch: int, sequence: int) -> object:
        return make_batch([b"v"], producer=(PRODUCER_ID, epoch, sequence))

    tries = [
        (batch(0, 7), None),  # any sequence of an unknown producer is accepted
        (batch(0, 9), BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (batch(0, 8), None),
        (batch(2, 1), BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (batch(2, 0), None),
        (batch(1, 0), BrokerError.INVALID_PRODUCER_EPOCH),
        (batch(0, 9), BrokerError.INVALID_PRODUCER_EPOCH),
        (batch(2, 1), None),
    ]
    with open_log(tmp_path) as log:
        outcomes = log.partition(TOPIC, 0).append([made for made, _ in tries])  # type: ignore[misc]
    assert [outcome.error_code if isinstance(outcome, Rejection) else None for outcome in outcomes] == [
        expected for _, expected in tries
    ]


def test_after_the_last_sequence_comes_zero(tmp_path: Path) -> None:
    last = make_batch([b"a", b"b"], producer=(PRODUCER_ID, 0, 2**31 - 2))
    across = make_batch([b"c", b"d", b"e"], producer=(PRODUCER_ID, 0, 0))
    after = make_batch([b"f"], producer=(PRODUCER_ID, 0, 3))
    with open_log(tmp_path) as log:
        assert offsets(log.partition(TOPIC, 0).append([last, across, after])) == [0, 2, 5]
    straddling = make_batch([b"a", b"b"], producer=(7, 0, 2**31 - 1))
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        assert offsets(partition.append([straddling, make_batch([b"c"], producer=(7, 0, 1))])) == [6, 8]
        assert offsets(partition.append([straddling])) == [6]


def test_producers_that_are_not_idempotent_are_taken_each_time(tmp_path: Path) -> None:
    batch = make_batch([b"v"])
    with open_log(tmp_path) as log:
        assert offsets(log.partition(TOPIC, 0).append([batch, batch, batch])) == [0, 1, 2]


# --- retain


def sizes_kept(path: Path, **options: object) -> list[str]:
    batches = make_batches(8)
    with open_log(path, segment_bytes=batches[0].size * 2, **options) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches)
        log.retain()
        assert partition.log_start_offset == partition.segments[0]
        assert offsets(partition.append(make_batches(1, first=8))) == [24]
    return [file.name.lstrip("0") or "0" for file in log_files(path)]


def test_a_log_that_lost_its_path_is_closed_when_it_is_given_up(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    (tmp_path / "log").rename(tmp_path / "moved")
    with pytest.raises(LogLostError):
        log.require_name()
    assert not log.closed
    log.abandon()
    assert log.closed


def test_a_writer_keeps_few_batches_of_a_producer_in_memory(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        for batch in make_batches(KEPT_COUNT + 2):
            partition.append([batch])
        assert [len(batches) for batches in partition.producers.known.values()] == [KEPT_COUNT]


def test_without_options_nothing_is_deleted(tmp_path: Path) -> None:
    assert len(sizes_kept(tmp_path)) == 5


@pytest.mark.parametrize("batch_count", [3, 4])
def test_what_is_beyond_retention_bytes_is_deleted_segment_by_segment(tmp_path: Path, batch_count: int) -> None:
    size = make_batches(1)[0].size
    assert sizes_kept(tmp_path, retention_bytes=batch_count * size) == ["12.log", "18.log", "24.log"]
    assert [file.name[:20] for file in log_files(tmp_path, ".index")] == [f"{base:020d}" for base in (12, 18, 24)]


def test_what_is_older_than_retention_ms_is_deleted_even_when_active(tmp_path: Path) -> None:
    batches = make_batches(8)
    options = LogSinkOptions.parse({"segment_bytes": batches[0].size * 2, "retention_ms": 60_000})
    with LogDirectory(tmp_path, options, clock=lambda: (START_MS + 60_000 + 3500) / 1000) as log:
        log.create_topic(TOPIC)
        partition = log.partition(TOPIC, 0)
        partition.append(batches)
        assert log.retain() == 2  # the youngest records of the first two segments are 1 and 3 seconds old
        assert partition.segments == [12, 18]
    with LogDirectory(tmp_path, options, clock=lambda: START_MS / 1000 + 3600) as log:
        partition = log.partition(TOPIC, 0)
        assert log.retain() == 2
        assert partition.segments == [24]
        assert partition.log_end_offset == 24
        assert partition.producers.producer_ids() == []
    with LogDirectory(tmp_path, options) as log:
        assert log.partition(TOPIC, 0).log_end_offset == 24


# --- failures


@contextlib.contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Limits the files of this process, which causes a short write and then EFBIG."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        signal.signal(signal.SIGXFSZ, handler)


def test_what_a_full_disk_cut_short_is_taken_back_to_the_last_whole_batch(tmp_path: Path) -> None:
    batches = make_batches(40, record_count=1)
    fitting = 4000 // batches[0].size
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        with files_limited_to(4000):
            outcomes = partition.append(batches)
        assert outcomes[:fitting] == list(range(fitting))
        for refused in outcomes[fitting:]:
            assert isinstance(refused, Rejection)
            assert refused.is_retriable
            assert "File too large. Nothing is lost, it will be tried again" in refused.message
        assert log_files(tmp_path)[0].stat().st_size == fitting * batches[0].size
        assert offsets(partition.append(batches[fitting - 2 :])) == list(range(fitting - 2, 40))


class FailingWrites:
    """Replaces os.pwritev: writes at most this many more bytes, then fails."""

    def __init__(self, room: int, error: int) -> None:
        self.room = room
        self.error = error
        self.write = os.pwritev

    def __call__(self, descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        data = b"".join(buffers)[: self.room]
        if not data:
            raise OSError(self.error, os.strerror(self.error))
        self.room -= len(data)
        return self.write(descriptor, [data], position)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1, 15, 16, 17, 60, 61, 200, 1000])
def test_any_failure_at_any_byte_loses_nothing_and_tears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, error: int
) -> None:
    batches = make_batches(6)
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches[:1])
        with monkeypatch.context() as failing:
            failing.setattr(os, "pwritev", FailingWrites(room, error))
            outcomes = partition.append(batches)
        whole = 1 + room // batches[0].size
        assert [isinstance(outcome, int) for outcome in outcomes] == [True] * whole + [False] * (6 - whole)
        assert log_files(tmp_path)[0].stat().st_size == whole * batches[0].size
        assert offsets(partition.append(batches)) == [0, 3, 6, 9, 12, 15]
    assert wire_in_files(tmp_path).count(b"shmaccum") == 0
    assert len(wire_in_files(tmp_path)) == sum(batch.size for batch in batches)


def test_nothing_is_acknowledged_if_the_file_is_removed_before_a_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class RemovingWrites(FailingWrites):
        def __call__(self, descriptor: int, buffers: Sequence[bytes], position: int) -> int:
            for file in log_files(tmp_path):
                file.unlink()
            return super().__call__(descriptor, buffers, position)

    batches = make_batches(3)
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        monkeypatch.setattr(os, "pwritev", RemovingWrites(2 * batches[0].size, errno.ENOSPC))
        outcomes = partition.append(batches)
    assert [isinstance(outcome, Rejection) and outcome.errno for outcome in outcomes] == [errno.ESTALE] * 3


def test_bytes_that_another_process_appended_are_not_overwritten(tmp_path: Path) -> None:
    batches = make_batches(2)
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches[:1])
        with log_files(tmp_path)[0].open("ab") as file:
            file.write(b"foreign")
        (outcome,) = partition.append(batches[1:])
        assert isinstance(outcome, Rejection)
        assert "written by another process" in outcome.message
    assert wire_in_files(tmp_path).endswith(b"foreign")


def test_what_cannot_be_cut_at_once_is_cut_before_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_truncation(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "no")

    one, two, short = *make_batches(2), make_batch([b"v"])
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append([one])
        with monkeypatch.context() as failing:
            failing.setattr(os, "pwritev", FailingWrites(two.size - 1, errno.ENOSPC))
            failing.setattr(os, "ftruncate", no_truncation)
            partition.append([two])
            assert log_files(tmp_path)[0].stat().st_size == one.size + two.size - 1
        assert offsets(partition.append([short])) == [3]
    assert log_files(tmp_path)[0].stat().st_size == one.size + short.size


def test_batches_that_are_shorter_than_they_say_are_not_appended(tmp_path: Path) -> None:
    class Liar:
        def __init__(self) -> None:
            made = make_batch([b"value"])
            self.buffers, self.size, self.record_count = made.buffers, made.size + 10, 1
            self.producer_id = self.producer_epoch = self.base_sequence = -1
            self.max_timestamp_ms = START_MS

    with open_log(tmp_path) as log:
        (outcome,) = log.partition(TOPIC, 0).append([Liar()])
        assert isinstance(outcome, Rejection)
    assert log_files(tmp_path)[0].stat().st_size == 0


def test_index_entries_that_cannot_be_written_cost_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    batches = make_batches(5)
    log = open_log(tmp_path, index_interval_bytes=1)
    partition = log.partition(TOPIC, 0)
    with monkeypatch.context() as failing:
        failing.setattr("shmaccum.log.files.index_file.write_all", full)
        assert offsets(partition.append(batches)) == [0, 3, 6, 9, 12]
    assert "no index entries were written" in log.findings[0]
    log.close()
    with open_log(tmp_path, index_interval_bytes=1) as log:
        log.partition(TOPIC, 0)
        assert "rewritten" in log.findings[0]
    assert log_files(tmp_path, ".index")[0].stat().st_size == 4 * 8


def test_a_segment_that_cannot_be_rolled_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = make_batches(4)
    opened = os.open

    def full(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and path.endswith(f"{6:020d}.timeindex"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, mode)

    with open_log(tmp_path, segment_bytes=2 * batches[0].size) as log:
        partition = log.partition(TOPIC, 0)
        with monkeypatch.context() as failing:
            failing.setattr(os, "open", full)
            outcomes = partition.append(batches)
            assert outcomes[:2] == [0, 3]
            assert [outcome.is_retriable for outcome in outcomes[2:] if isinstance(outcome, Rejection)] == [True, True]
            assert "could not be followed by a new segment" in str(outcomes[2])
        assert offsets(partition.append(batches)) == [0, 3, 6, 9]
        assert partition.segments == [0, 6]


# --- sync


@pytest.mark.parametrize("failing", ["segment.IndexFile", "partition_log.sync_folder"])
def test_after_a_roll_that_failed_nothing_is_appended_after_the_next_segments_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The next segment's file exists then. The previous one must not get offsets from its base offset on."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "made to fail")

    first, large, small = make_batch([b"x" * 500]), make_batch([b"y" * 600]), make_batch([b"z"])
    with open_log(tmp_path / "log", segment_bytes=1000, sync="batch") as directory:
        log = directory.partition(TOPIC, 0)
        assert offsets(log.append([first])) == [0]
        with monkeypatch.context() as broken:
            broken.setattr(f"shmaccum.log.files.{failing}", fails)
            (refusal,) = log.append([large])
            assert isinstance(refusal, Rejection)
        assert offsets(log.append([small])) == [1]
        assert log.segments == [0, 1]
    with open_log(tmp_path / "log", segment_bytes=1000) as directory:
        assert offsets(directory.partition(TOPIC, 0).append([large])) == [2]


def test_with_sync_batch_no_offset_is_reported_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    really = os.fdatasync

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def note(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        really(descriptor)

    batches = make_batches(3)
    with open_log(tmp_path, sync="batch") as log:
        partition = log.partition(TOPIC, 0)
        with monkeypatch.context() as failing:
            failing.setattr(os, "fdatasync", fail)
            outcomes = partition.append(batches[:2])
            assert all(isinstance(outcome, Rejection) and outcome.is_retriable for outcome in outcomes)
            assert "could not be synced" in str(outcomes[0])
        rewritten = os.stat(log_files(tmp_path)[0]).st_mtime_ns
        monkeypatch.setattr(os, "fdatasync", note)
        # The kernel drops the bytes of a failed fdatasync, so they are written again first.
        assert offsets(partition.append(batches[:2])) == [0, 3]
        assert os.stat(log_files(tmp_path)[0]).st_mtime_ns > rewritten
        assert synced == [batches[0].size * 2]
        assert partition.recovery_point == 6
        assert offsets(partition.append(batches)) == [0, 3, 6]
        assert synced == [batches[0].size * 2, batches[0].size * 3]


def test_no_bytes_are_written_again_if_no_sync_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []

    def note(_descriptor: int, content: bytes, _position: int) -> int:
        again.append(len(content))
        return len(content)

    with open_log(tmp_path, sync="batch") as log, monkeypatch.context() as noting:
        partition = log.partition(TOPIC, 0)
        noting.setattr(os, "pwrite", note)
        for batch in make_batches(2):
            partition.append([batch])
    assert again == []


def test_recovery_points_are_those_of_the_last_sync(tmp_path: Path) -> None:
    with open_log(tmp_path, sync="interval", sync_interval_ms=1) as log:
        log.partition(TOPIC, 0).append(make_batches(2))
        while log.partition(TOPIC, 0).recovery_point == 0:
            log.maintain()
        assert not (tmp_path / "recovery-point-offset-checkpoint").exists()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == f"0\n1\n{TOPIC} 0 6\n"
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(make_batches(1, first=2))
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == f"0\n1\n{TOPIC} 0 6\n"


# --- the directory


@pytest.mark.parametrize(
    ("job", "owner", "interval_s"),
    [
        ("check_names", PartitionLog, CHECK_INTERVAL_S),
        ("unfinished", TransactionFiles, TRANSACTIONS_INTERVAL_S),
        ("sync", LogDirectory, 4.0),
        ("retain", LogDirectory, 8.0),
        ("checkpoint", LogDirectory, CHECKPOINT_INTERVAL_S),
    ],
)
def test_each_part_of_the_maintenance_is_due_once_in_its_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, owner: type, interval_s: float
) -> None:
    times, now = [], 0
    monkeypatch.setattr(clock, "monotonic", lambda: now * interval_s / 4)
    with open_log(tmp_path, sync="interval", sync_interval_ms=4000, retention_check_interval_ms=8000) as log:
        log.partition(TOPIC, 0)
        with monkeypatch.context() as counting:
            counting.setattr(owner, job, lambda *_: times.append(now))
            while now <= 12:
                log.maintain()
                now += 1
    assert times in ([0, 4, 8, 12], [4, 8, 12])


def test_a_second_writer_is_refused_by_name_until_the_first_closes(tmp_path: Path) -> None:
    with open_log(tmp_path), pytest.raises(LogBusyError, match=rf"by another process \(pid {os.getpid()}\)"):
        LogDirectory(tmp_path)
    LogDirectory(tmp_path).close()


def test_a_forked_child_neither_holds_nor_keeps_the_right_to_write(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert run_in_child(lambda: log.closed) == "True"
    log.close()
    LogDirectory(tmp_path).close()


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(NotALogError, match=r"has other files \(holiday.jpg\): name a new or an empty directory"):
        LogDirectory(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["holiday.jpg"]


def test_the_directory_of_a_broker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("#\nversion=1\nnode.id=1\ncluster.id=abc\n")
    with pytest.raises(NotALogError, match="log directory of a Kafka broker"):
        LogDirectory(tmp_path)


def test_the_directory_of_another_version_is_refused(tmp_path: Path) -> None:
    LogDirectory(tmp_path).close()
    meta = tmp_path / "meta.properties"
    meta.write_text(meta.read_text().replace("shmaccum.version=1", "shmaccum.version=9"))
    with pytest.raises(NotALogError, match="another version"):
        LogDirectory(tmp_path)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotALogError, match="is not a directory"):
        LogDirectory(tmp_path / "file")


def test_a_file_in_the_place_of_a_partition_is_refused(tmp_path: Path) -> None:
    LogDirectory(tmp_path).close()
    (tmp_path / f"{TOPIC}-0").touch()
    with LogDirectory(tmp_path) as log, pytest.raises(NotALogError, match="is not a directory"):
        log.create_topic(TOPIC)


def test_a_directory_one_may_not_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: str, *rest: object) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    def read_only(path: str, *rest: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    for stand_in, sentence in ((forbidden, "may not write .*lock"), (read_only, "read-only file system")):
        with monkeypatch.context() as failing:
            failing.setattr("shmaccum.log.files.lock_file.os.open", stand_in)
            with pytest.raises(LogForbiddenError, match=sentence):
                LogDirectory(tmp_path)


def test_partitions_are_those_of_the_option_and_then_those_that_exist(tmp_path: Path) -> None:
    with LogDirectory(tmp_path, LogSinkOptions.parse({"partitions": 3})) as log:
        assert log.partition_count("new") == 0
        assert log.create_topic("new") == 3
        assert log.create_topic("with-dash-7", 2) == 2
    with LogDirectory(tmp_path, LogSinkOptions.parse({"partitions": 9})) as log:
        assert log.topics() == ["new", "with-dash-7"]
        assert log.create_topic("new") == 3
        assert log.create_topic("with-dash-7", 1) == 2
        assert log.create_topic("with-dash-7", 4) == 4
        with pytest.raises(LogPartitionNotFoundError, match="no partition 3 of topic 'new', which has 3"):
            log.partition("new", 3)
        with pytest.raises(InvalidArgumentError, match="cannot be a topic"):
            log.create_topic("no/slash")


def test_a_topic_whose_creation_was_interrupted_has_all_of_its_partitions(tmp_path: Path) -> None:
    with open_log(tmp_path):
        make_partition_folder(str(tmp_path / "half-4"), bytes(range(16)))  # the highest is created first
    with open_log(tmp_path) as log:
        assert log.partition_count("half") == 5
        assert offsets(log.partition("half", 2).append([make_batch([b"v"])])) == [0]


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        assert [log.new_producer_id() for _ in range(3)] == [0, 1, 2]
        log.abandon()
    with open_log(tmp_path) as log:
        assert log.new_producer_id() == 3


def test_more_partitions_than_may_be_open_take_turns(tmp_path: Path) -> None:
    count = OPEN_PARTITIONS_MAX + 3
    with LogDirectory(tmp_path, LogSinkOptions.parse({"partitions": count})) as log:
        log.create_topic(TOPIC)
        for _ in range(2):
            for partition in range(count):
                log.partition(TOPIC, partition).append([make_batch([b"v"])])
        open_count = share(OPEN_PARTITIONS_MAX, OPEN_PARTITIONS_PARTS)  # fewer if this process may open few files
        assert log.metrics()["open-partition-count"] == open_count
        assert all(log.partition(TOPIC, partition).log_end_offset == 2 for partition in range(count))


def test_the_headers_in_the_log_have_ascending_offsets(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(make_batches(4))
    wire = wire_in_files(tmp_path)
    size = len(wire) // 4
    assert [read_header(wire, index * size).base_offset for index in range(4)] == [0, 3, 6, 9]


def test_batches_that_were_appended_through_the_log_end_are_counted_for_the_snapshot(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(make_batches(1))
        partition.appended(SNAPSHOT_BATCH_COUNT - 2, 0)
        assert log_files(tmp_path, ".snapshot") == []
        partition.appended(1, 0)
        assert len(log_files(tmp_path, ".snapshot")) == 1


@pytest.mark.parametrize(
    ("error", "number", "sentence"),
    [
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC, "No space left on device. Nothing is lost"),
        (OSError("without a number"), 0, "Success. Nothing is lost"),
        (LogLostError("it was removed"), errno.ESTALE, "it was removed"),
    ],
)
def test_a_storage_error_has_the_number_of_its_cause(
    tmp_path: Path, error: OSError, number: int, sentence: str
) -> None:
    with open_log(tmp_path) as log:
        found = log.partition(TOPIC, 0)._storage_error("cannot be written", error)
    assert (found.error_code, found.errno) == (BrokerError.KAFKA_STORAGE_ERROR, number)
    assert sentence in found.message


def test_a_segment_knows_the_bytes_that_are_on_disk_and_has_no_descriptor_once_it_is_closed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        active = partition._active
        assert active.synced_size == 0
        assert active.descriptor >= 0
        partition.append(make_batches(1))
        assert active.synced_size == 0
        active.sync()
        assert active.synced_size == active.size > 0
    assert active.descriptor == -1


@pytest.mark.parametrize("offset_max", [5, 7])
def test_a_segment_takes_the_largest_relative_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset_max: int
) -> None:
    monkeypatch.setattr(partition_log, "RELATIVE_OFFSET_MAX", offset_max)
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(make_batches(3))
    assert [int(path.stem) for path in log_files(tmp_path)] == [0, 6]


def test_a_segment_that_was_removed_is_not_rolled(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(make_batches(1))
        log_files(tmp_path)[0].unlink()
        with pytest.raises(LogLostError):
            partition.roll()
        assert list(partition_folder(tmp_path).glob("*.snapshot")) == log_files(tmp_path) == []
