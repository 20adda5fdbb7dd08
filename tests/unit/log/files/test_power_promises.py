# SPDX-License-Identifier: Apache-2.0
"""An ack follows the syncs that it depends on: of the file, and of each directory above it.

``tests/power`` cuts the power of a real disk. These tests detect each missing sync.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Consumer, Producer, Sender, Shipper
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.common.durability import log_level_of
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import LogSinkOptions, SenderOptions
from shmaccum.exceptions import ConsumerStateError, InvalidArgumentError
from shmaccum.log.files import LogDirectory, LogReader, StagedAttempt, TransactionId, Winner, transactions
from shmaccum.log.files.partition_folders import UNFINISHED
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.small_files import replace_file_synced
from shmaccum.log.files.transaction_files import Decision, TransactionFiles
from shmaccum.log.files.writer_level import WriterLevel
from shmaccum.log.groups.offsets_file import Committed, OffsetsFile
from shmaccum.log.server.transactional_id import TransactionalId
from shmaccum.log.server.transactions_file import TransactionsFile
from shmaccum.relay import Relay
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.log import LogSink
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Ack, Ended, Verdict, WireBatch
from shmaccum.sender.spill_file import OverflowBatch, OverflowPosition, SpillFile
from tests.support.accumulator import Accumulator
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import (
    TOPIC,
    batch_of,
    log_files,
    make_batch,
    make_batches,
    offsets,
    open_log,
    partition_folder,
    values_of,
)
from tests.support.system_calls import Forced
from tests.unit.sender.sinks.test_log_sink import Host, wires

PLACE = TopicPartition(TOPIC, 0)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Forced:
    return Forced(monkeypatch)


@pytest.fixture
def durable_arena(tmp_path: Path) -> Iterator[Arena]:
    path = tmp_path / "durable.arena"
    try:
        arena = Arena.create(path, durability="sync", buffer_memory="64KiB", batch_size="4KiB", transactional_id="t")
    except InvalidArgumentError:
        pytest.skip("the folder of temporary files lies in memory, where no arena is durable")
    yield arena
    arena.close()


def host_with(durability: str) -> Host:
    host = Host()
    host.durability = durability
    host.sync_interval_ms = 50 if durability == "interval" else None
    return host


def opened(path: Path, durability: str, **options: Any) -> LogSink:
    sink = open_sink(f"log:{path}", **options)
    assert isinstance(sink, LogSink)
    sink.open(host_with(durability))
    return sink


# --- the level of a sink


@pytest.mark.parametrize("durability", ["process", "interval", "sync"])
def test_an_unset_level_of_a_log_follows_its_arena(tmp_path: Path, durability: str) -> None:
    sink = opened(tmp_path / "log", durability)
    assert sink.directory.options.sync == log_level_of(durability)
    assert sink.directory.options.sync_interval_ms == (50 if durability == "interval" else None)
    assert WriterLevel(str(tmp_path / "log")).level == log_level_of(durability)
    sink.close(0)


@pytest.mark.parametrize(
    ("durability", "options"),
    [
        ("interval", {"sync": "none"}),
        ("sync", {"sync": "none"}),
        ("sync", {"sync": "interval", "sync_interval_ms": 10}),
    ],
)
def test_a_lower_level_is_refused_with_advice(tmp_path: Path, durability: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"leave sync out, or set sync={log_level_of(durability)}"):
        opened(tmp_path / "log", durability, **options)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("durability", "sync"), [("process", "none"), ("process", "batch"), ("interval", "batch")])
def test_a_level_that_is_high_enough_is_taken(tmp_path: Path, durability: str, sync: str) -> None:
    sink = opened(tmp_path / "log", durability, sync=sync)
    assert sink.directory.options.sync == sync
    sink.close(0)


def test_a_shipper_ships_to_a_log_that_syncs(tmp_path: Path, forced: Forced) -> None:
    with open_log(tmp_path / "log") as log:
        log.partition(TOPIC, 0).append(make_batches(3))
    with Shipper(tmp_path / "log", f"log:{tmp_path}/copy") as shipper:
        shipper.run(follow=False)
    assert forced.has(tmp_path / "log", tmp_path / "log/.shipping", log_files(tmp_path / "copy")[0])
    with pytest.raises(InvalidArgumentError, match="leave sync out"):
        Shipper(tmp_path / "log", f"log:{tmp_path}/copy", sink_options={"sync": "none"}).run(follow=False)


class NotedSink(MemorySink):
    """A sink that records deliveries in the list of syncs."""

    def __init__(self, forced: Forced) -> None:
        super().__init__()
        self._forced = forced

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        self._forced.calls += [("sent", f"{wire.base_sequence}") for wire in batches]
        return super().write(batches)


@pytest.mark.parametrize("sync", ["none", "interval", "batch"])
def test_records_of_a_durable_log_are_on_disk_before_they_are_shipped(
    tmp_path: Path, sync: str, forced: Forced
) -> None:
    options = {"sync_interval_ms": "1h"} if sync == "interval" else {}
    with open_log(tmp_path / "log", sync=sync, segment_bytes="1KiB", **options) as log:
        offsets(log.partition(TOPIC, 0).append(make_batches(20)))
        forced.clear()
        sink = NotedSink(forced)
        Shipper(tmp_path / "log", sink).run(follow=False)
    reader = LogReader(tmp_path / "log").partition(TOPIC, 0)
    segments = {f"{batch.base_offset}": os.path.realpath(batch.segment) for batch in reader.batches()}
    assert len(set(segments.values())) > 1
    synced, early = list[str](), list[str]()
    for call, name in forced.calls:
        if call == "sync":
            synced.append(name)
        elif call == "sent" and segments[name] not in synced:
            early.append(name)
    assert len(sink.values(TOPIC)) == 60
    assert (early == []) == (sync != "none")


def test_a_window_of_batches_is_forced_to_disk_once(tmp_path: Path, forced: Forced) -> None:
    with open_log(tmp_path / "log", sync="batch") as log:
        offsets(log.partition(TOPIC, 0).append(make_batches(20)))
        forced.clear()
        Shipper(tmp_path / "log", NotedSink(forced)).run(follow=False)
    (segment,) = log_files(tmp_path / "log")
    steps = [name.isdigit() for _, name in forced.calls if name.isdigit() or name == os.path.realpath(segment)]
    windows = "".join("s" if is_sent else "F" for is_sent in steps).rstrip("F")
    assert re.fullmatch("Fs(Fsssss)*Fssss", windows), windows  # the first batch of an epoch is sent alone


def test_records_that_cannot_be_forced_to_disk_wait(
    tmp_path: Path, forced: Forced, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(tmp_path / "log", sync="batch") as log:
        offsets(log.partition(TOPIC, 0).append(make_batches(20)))
    with Shipper(tmp_path / "log", sink := MemorySink(), retry_backoff_ms=1, retry_backoff_max_ms=1) as shipper:
        shipper.open()
        forced.is_failing = True
        for _ in range(3):
            shipper.run_once(0)
        assert not sink.values(TOPIC)
        forced.is_failing = False
        shipper.run(follow=False)
    assert len(sink.values(TOPIC)) == 60
    assert any("cannot be forced to disk" in message for message in caplog.messages)


def test_a_position_is_written_after_the_receiver_has_synced(tmp_path: Path, forced: Forced) -> None:
    with open_log(tmp_path / "log") as log:
        log.partition(TOPIC, 0).append(make_batches(3))
    with Shipper(tmp_path / "log", f"log:{tmp_path}/copy") as shipper:
        shipper.open()
        forced.clear()
        shipper.run(follow=False)
    paths = forced.synced
    copy = os.path.realpath(log_files(tmp_path / "copy")[0])
    assert paths.index(copy) < paths.index(os.path.realpath(tmp_path / "log/.shipping/positions"))


# --- acks of an arena with an interval


def test_with_an_interval_an_ack_waits_for_the_sync(tmp_path: Path, sender: Accumulator, forced: Forced) -> None:
    sink = opened(tmp_path / "log", "interval")
    sender.append(TOPIC, 0, 0, None, b"one")
    lent = wires(sender)
    wake_read_fd, wake_write_fd = os.pipe()
    sink.deliver(lent)
    forced.clear()
    acks = _polled(sink, wake_read_fd)
    assert forced.has(*log_files(tmp_path / "log"))
    assert [ack.verdict for ack in acks] == [Verdict.DELIVERED]
    assert sink.log_ends == {}  # a batch appended in C has no delayed ack
    _end(sink, sender, acks)
    os.close(wake_read_fd)
    os.close(wake_write_fd)


def test_with_an_interval_a_failed_sync_is_no_ack(tmp_path: Path, sender: Accumulator, forced: Forced) -> None:
    sink = opened(tmp_path / "log", "interval")
    sender.append(TOPIC, 0, 0, None, b"one")
    lent = wires(sender)
    wake_read_fd, wake_write_fd = os.pipe()
    forced.is_failing = True
    sink.deliver(lent)
    acks = _polled(sink, wake_read_fd)
    assert [ack.verdict for ack in acks] == [Verdict.RETRY]
    assert sink.outage is not None
    forced.is_failing = False
    sink.deliver(lent)  # the log has it already
    acks = _polled(sink, wake_read_fd)
    assert [(ack.verdict, ack.base_offset) for ack in acks] == [(Verdict.DELIVERED, 0)]
    _end(sink, sender, acks)
    os.close(wake_read_fd)
    os.close(wake_write_fd)


def _polled(sink: LogSink, wake_read_fd: int) -> list[Ack]:
    acks: list[Ack] = []
    while not acks:
        acks += sink.poll(0.01, wake_read_fd)
    return acks


def _end(sink: LogSink, sender: Accumulator, acks: list[Ack]) -> None:
    for ack in acks:
        for view in ack.wire.buffers:
            view.release()
        sender.complete(ack.wire.batch, BatchResult.SUCCEEDED, ack.base_offset)
    sink.close(0)


# --- files of a log


def test_every_new_folder_on_the_way_to_a_log_is_synced(tmp_path: Path, forced: Forced) -> None:
    path = tmp_path / "a/b/log"
    with open_log(path, sync="batch") as log:
        log.partition(TOPIC, 0).append(make_batches(1))
        partition = partition_folder(path)
        assert forced.has(tmp_path, tmp_path / "a", tmp_path / "a/b", path, partition, *log_files(path))
        metadata = f"{UNFINISHED}/partition.metadata"
        names = [os.path.relpath(one, os.path.realpath(path)) for _, one in forced.calls]
        assert names.index(metadata) < names.index(UNFINISHED) < names.index(f"{TOPIC}-0")


def test_a_folder_that_a_dead_process_made_is_synced_by_the_next(tmp_path: Path, forced: Forced) -> None:
    path = tmp_path / "a/b/log"
    open_log(path).abandon()
    forced.clear()
    with open_log(path, sync="batch"):
        assert forced.has(tmp_path, tmp_path / "a", tmp_path / "a/b", path)


def test_a_topic_is_on_disk_when_it_was_created_and_gone_when_it_was_deleted(tmp_path: Path, forced: Forced) -> None:
    with LogDirectory(tmp_path / "log", LogSinkOptions(sync="batch")) as log:
        forced.clear()
        log.create_topic(TOPIC, 2)
        assert forced.calls[-1] == ("sync", os.path.realpath(tmp_path / "log"))
        assert forced.synced.count(os.path.realpath(tmp_path / "log" / UNFINISHED)) == 2
        forced.clear()
        log.delete_topic(TOPIC)
        assert forced.calls[-1] == ("sync", os.path.realpath(tmp_path / "log"))


@pytest.mark.parametrize("sync", ["interval", "batch"])
def test_a_closed_log_is_synced(tmp_path: Path, sync: str, forced: Forced) -> None:
    options = {"sync_interval_ms": "1h"} if sync == "interval" else {}
    log = open_log(tmp_path, sync=sync, **options)
    log.partition(TOPIC, 0).append(make_batches(1))
    forced.clear()
    log.close()
    assert forced.has(log_files(tmp_path)[0])


def test_a_rolled_segment_is_synced_before_the_next_one_is_written(tmp_path: Path, forced: Forced) -> None:
    batches = make_batches(3)
    with open_log(tmp_path, sync="interval", sync_interval_ms="1h", segment_bytes=batches[0].size + 10) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches[:1])
        forced.clear()
        partition.append(batches[1:2])
        assert forced.has(log_files(tmp_path)[0], partition_folder(tmp_path))
        forced.clear()
        partition.recovery_point = 0  # as if the first segment had not been synced
        partition.sync()
        assert forced.has(*log_files(tmp_path))


@pytest.mark.parametrize("sync", ["none", "interval"])
def test_an_interval_covers_what_a_dead_writer_appended(tmp_path: Path, sync: str, forced: Forced) -> None:
    batches = make_batches(3)
    options = {"sync_interval_ms": "1h"} if sync == "interval" else {}
    former = open_log(tmp_path, sync=sync, segment_bytes=batches[0].size + 10, **options)
    for batch in batches:
        former.partition(TOPIC, 0).append([batch])
    former.abandon()
    if sync == "interval":
        assert forced.has(*log_files(tmp_path)[:2], partition_folder(tmp_path))
    else:
        forced.clear()
    with LogDirectory(tmp_path, LogSinkOptions(sync="interval", sync_interval_ms=1)) as log:
        log.sync()
        metadata = partition_folder(tmp_path) / "partition.metadata"
        assert forced.has(*log_files(tmp_path), metadata, partition_folder(tmp_path))


def test_an_entry_of_an_aborted_transaction_is_synced_with_its_folder(tmp_path: Path, forced: Forced) -> None:
    with open_log(tmp_path, sync="batch") as log:
        partition = log.partition(TOPIC, 0)
        partition.append([batch_of(1, 0, b"a")])
        forced.clear()
        partition.end_transaction(1, 0, is_commit=False)
        entry, folder = log_files(tmp_path, ".txnindex")[0], partition_folder(tmp_path)
        assert forced.synced[-2:] == [os.path.realpath(entry), os.path.realpath(folder)]


def test_an_entry_that_a_dead_writer_left_is_synced_before_it_is_trusted(tmp_path: Path, forced: Forced) -> None:
    former = open_log(tmp_path)
    former.partition(TOPIC, 0).append([batch_of(1, 0, b"a")])
    former.partition(TOPIC, 0).end_transaction(1, 0, is_commit=False)
    former.abandon()
    with open_log(tmp_path, sync="batch") as log:
        partition = log.partition(TOPIC, 0)
        forced.clear()
        partition.append(make_batches(1))
        assert partition.recovery_point == partition.log_end_offset
        assert forced.has(log_files(tmp_path, ".txnindex")[0])


def test_entries_that_are_rewritten_are_synced(tmp_path: Path, forced: Forced) -> None:
    former = open_log(tmp_path)
    former.partition(TOPIC, 0).append([batch_of(1, 0, b"a")])
    former.partition(TOPIC, 0).end_transaction(1, 0, is_commit=False)
    former.abandon()
    log_files(tmp_path, ".txnindex")[0].unlink()
    for snapshot in log_files(tmp_path, ".snapshot"):
        snapshot.unlink()
    forced.clear()
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0)
        path = os.path.realpath(log_files(tmp_path, ".txnindex")[0])
        assert forced.has(partition_folder(tmp_path))
        assert f"{path}.tmp" in forced.synced


def test_retention_removes_a_log_before_its_indexes(tmp_path: Path, forced: Forced) -> None:
    batches = make_batches(3)
    with open_log(tmp_path, segment_bytes=batches[0].size + 10, index_interval_bytes=0) as log:
        partition = log.partition(TOPIC, 0)
        for batch in batches:
            partition.append([batch])
        forced.clear()
        partition.delete_before(3)
    removed = [os.path.splitext(path)[1] for call, path in forced.calls if call == "unlink" and "0" * 20 in path]
    assert removed[0] == ".log"
    assert {".index", ".timeindex"} <= set(removed)


@pytest.mark.parametrize("sync", ["none", "interval"])
def test_deleted_records_that_a_power_cut_takes_hide_no_later_ones(tmp_path: Path, sync: str) -> None:
    batches = make_batches(3)
    options = {"sync_interval_ms": "1h"} if sync == "interval" else {}
    log = open_log(tmp_path, sync=sync, **options)
    log.partition(TOPIC, 0).append(batches)
    log.delete_records(TOPIC, 0, 8)
    log.abandon()
    os.truncate(log_files(tmp_path)[0], batches[0].size)  # the log ends at 3 after the power cut
    assert values_of(tmp_path) == []
    with open_log(tmp_path, sync=sync, **options) as log:
        assert offsets(log.partition(TOPIC, 0).append(batches[1:2])) == [3]
        assert log.partition(TOPIC, 0).log_start_offset == 3
    assert len(values_of(tmp_path)) == 3


@pytest.mark.parametrize("sync", ["none", "interval", "batch"])
@pytest.mark.parametrize("begins_in_sector", [True, False])
def test_a_log_ends_in_front_of_a_sector_that_a_power_cut_took(
    tmp_path: Path, sync: str, begins_in_sector: bool
) -> None:
    batches = make_batches(4, value_size=300)
    options = {"sync_interval_ms": "1h"} if sync == "interval" else {}
    log = open_log(tmp_path, sync=sync, **options)
    log.partition(TOPIC, 0).append(batches)
    log.abandon()
    (path,) = log_files(tmp_path)
    second = batches[0].size
    with path.open("r+b") as file:
        file.seek(second if begins_in_sector else -(-second // 512) * 512)
        file.write(bytes(-second % 512 if begins_in_sector else 512))
    for snapshot in log_files(tmp_path, ".snapshot"):
        snapshot.unlink()
    (tmp_path / ".lock").write_bytes(b"boot.id=another\n")
    with open_log(tmp_path, sync=sync, **options) as log:
        again = log.partition(TOPIC, 0).append(batches[1:])
        if sync != "none":
            assert offsets(again) == [3, 6, 9]
            assert [value[:8] for value in values_of(tmp_path)] == [b"%08d" % number for number in range(12)]
        else:
            assert isinstance(again[0], Rejection)
            assert any("left as it is" in finding for finding in log.findings)


def test_a_small_file_is_synced_before_its_rename_and_its_folder_after(tmp_path: Path, forced: Forced) -> None:
    replace_file_synced(str(tmp_path / "small"), b"content")
    folder = os.path.realpath(tmp_path)
    assert forced.calls == [("sync", f"{folder}/small.tmp"), ("replace", str(tmp_path / "small")), ("sync", folder)]


# --- offsets and transactions


@pytest.mark.parametrize("sync", ["none", "batch"])
def test_a_commit_of_a_local_group_is_as_durable_as_the_log(tmp_path: Path, sync: str, forced: Forced) -> None:
    with open_log(tmp_path, sync=sync) as log:
        log.partition(TOPIC, 0).append(make_batches(2))
    forced.clear()
    with Consumer(tmp_path, group_id="group", enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([TOPIC])
        wait_until(lambda: bool(consumer.poll(timeout_ms=100)), "there are records")
        consumer.commit()
        folder = tmp_path / ".groups"
        assert forced.has(tmp_path, folder, folder / "group.offsets") == (sync != "none")
        forced.clear()
        consumer.commit({PLACE: 1})
        assert forced.has(folder / "group.offsets") == (sync != "none")


def test_a_commit_follows_the_writer_that_the_log_has_now(tmp_path: Path, forced: Forced) -> None:
    open_log(tmp_path).close()
    offsets = OffsetsFile(str(tmp_path), "group", is_writer=True)
    offsets.commit({PLACE: Committed(1, -1, "", 0)})
    assert not forced.has(tmp_path / ".groups/group.offsets")
    open_log(tmp_path, sync="batch").close()
    offsets.commit({PLACE: Committed(2, -1, "", 0)})
    assert forced.has(tmp_path / ".groups/group.offsets")
    offsets.close()


def names(paths: Sequence[str]) -> list[str]:
    return [os.path.basename(path) for path in paths]


def test_records_are_on_disk_before_a_commit_of_a_consumer_counts_them(tmp_path: Path, forced: Forced) -> None:
    with open_log(tmp_path, sync="interval", sync_interval_ms=60_000) as log:
        log.partition(TOPIC, 0).append(make_batches(2))
        with Consumer(tmp_path, group_id="group", enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
            consumer.subscribe([TOPIC])
            wait_until(lambda: bool(consumer.poll(timeout_ms=100)), "there are records")
            consumer.commit({PLACE: 1})  # creates the file
            forced.clear()
            consumer.commit()
            assert names(forced.synced) == [f"{0:020d}.log", "group.offsets"]


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.parametrize("is_served", [False, True])
def test_a_commit_forces_the_segment_in_front_of_it(
    tmp_path: Path, is_served: bool, is_pending: bool, forced: Forced
) -> None:
    batches = make_batches(3)
    options = {"sync": "interval", "sync_interval_ms": 60_000, "segment_bytes": 2 * batches[0].size + 10}
    with open_log(tmp_path, **options) as log:
        for batch in batches:
            log.partition(TOPIC, 0).append([batch])
        first, second = names(sorted(map(str, log_files(tmp_path, ".log"))))
        offsets = OffsetsFile(str(tmp_path), "group", is_writer=True, is_synced=is_served)
        offsets.commit({PLACE: Committed(0, -1, "", 0)})
        for offset, segment in ((3, first), (6, first), (7, second), (9, second), (20, second)):
            found = {PLACE: Committed(offset, -1, "", 0), TopicPartition("missing", 0): Committed(offset, -1, "", 0)}
            forced.clear()
            if is_pending:
                offsets.commit_pending(1, found)
            else:
                offsets.commit(found)
            assert names(forced.synced) == [segment, "group.offsets"]
        offsets.close()


def test_nothing_is_committed_while_its_records_cannot_be_forced_to_disk(tmp_path: Path, forced: Forced) -> None:
    with open_log(tmp_path, sync="interval", sync_interval_ms=60_000) as log:
        log.partition(TOPIC, 0).append(make_batches(1))
        offsets = OffsetsFile(str(tmp_path), "group", is_writer=True)
        offsets.commit({PLACE: Committed(1, -1, "", 0)})
        size = (tmp_path / ".groups/group.offsets").stat().st_size
        forced.clear()
        forced.is_failing = True
        with pytest.raises(OSError, match="Input/output error"):
            offsets.commit({PLACE: Committed(3, -1, "", 0)})
        assert names(forced.synced) == [f"{0:020d}.log"]
        forced.is_failing = False
        assert offsets.offsets[PLACE].offset == 1
        assert (tmp_path / ".groups/group.offsets").stat().st_size == size
        offsets.close()


def test_a_commit_forces_no_records_that_are_on_disk_or_not_durable(tmp_path: Path, forced: Forced) -> None:
    for sync in ("batch", "none"):
        with open_log(tmp_path / sync, sync=sync) as log:
            log.partition(TOPIC, 0).append(make_batches(1))
        forced.clear()
        offsets = OffsetsFile(str(tmp_path / sync), "group", is_writer=True, is_synced=True)
        offsets.commit({PLACE: Committed(3, -1, "", 0)})
        assert "group.offsets" in names(forced.synced)
        assert f"{0:020d}.log" not in names(forced.synced)
        offsets.close()


def test_the_level_of_a_log_is_on_disk(tmp_path: Path, forced: Forced) -> None:
    with open_log(tmp_path, sync="batch"):
        assert forced.has(tmp_path / ".lock")


def test_a_step_of_a_transactional_id_is_synced_and_so_is_its_file(tmp_path: Path, forced: Forced) -> None:
    file = TransactionsFile(str(tmp_path), is_synced=True)
    assert forced.has(tmp_path)
    forced.clear()
    file.put(TransactionalId("name", 1))
    assert forced.has(tmp_path / "transactional-ids")
    file.close()


def test_a_decision_is_on_disk_before_the_sink_gets_it_and_its_end_before_the_next_batch(
    durable_arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync = Arena.sync

    def note(arena: Arena) -> None:
        calls.append(f"forced in {arena.native.transaction[1]}")
        sync(arena)

    class NotingSink(MemorySink):
        def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended:
            calls.append("committed" if is_commit else "aborted")
            return super().end_transaction(producer_id, producer_epoch, is_commit=is_commit)

    with Sender(durable_arena, NotingSink()) as sender, Producer(durable_arena) as producer:
        sender.open()
        sender.run_once()
        durable_arena.declare_topic(TOPIC, 1)
        for is_commit in (True, False, True):
            transaction = producer.transaction()
            with producer.synced_together():
                producer.send(TOPIC, b"x")
            monkeypatch.setattr(Arena, "sync", note)
            if is_commit:
                for _ in transaction.commit_waits(WATCHDOG_S):
                    sender.run_once()
            else:
                transaction.abort()
                while durable_arena.native.transaction[1] != "none":
                    sender.run_once()
            monkeypatch.undo()
    commit = ["forced in decided", "committed", "forced in none"]
    assert calls == [*commit, "aborted", "forced in none", *commit]


def test_a_sender_forces_what_its_predecessor_ended(durable_arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync = Arena.sync

    def note(arena: Arena) -> None:
        calls.append("forced")
        sync(arena)

    class NotingSink(MemorySink):
        def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
            calls.append("sent")
            return super().write(batches)

    with Sender(durable_arena, NotingSink()) as sender, Producer(durable_arena) as producer:
        sender.open()
        durable_arena.declare_topic(TOPIC, 1)
        transaction = producer.transaction()
        producer.send(TOPIC, b"x")
        monkeypatch.setattr(Arena, "sync", note)
        for _ in transaction.commit_waits(WATCHDOG_S):
            sender.run_once()
    assert calls[:2] == ["forced", "sent"]


def test_staged_records_and_their_decision_are_on_disk(tmp_path: Path, forced: Forced) -> None:
    log, transaction = tmp_path / "a/log", TransactionId("query", 0)
    with StagedAttempt(log, transaction, "task") as attempt:
        with LogDirectory(attempt.log) as staged:
            staged.create_topic(TOPIC)
            staged.partition(TOPIC, 0).append([make_batch([b"x"])])
        folder = Path(attempt.folder)
        forced.clear()
        attempt.keep(is_synced=True)
    staging = log / ".staging"
    assert forced.has(tmp_path, tmp_path / "a", log, staging, folder, folder / "log", *log_files(folder / "log"))
    forced.clear()
    transactions.conclude(log, transaction, [Winner(attempt.name, 1)], LogSinkOptions(sync="batch"))
    assert forced.has(log, log / ".transactions", log_files(log)[0])
    over = forced.calls.index(("replace", str(log / ".transactions/query.over")))
    assert forced.calls.index(("sync", os.path.realpath(log_files(log)[0]))) < over


def test_a_decision_is_on_disk_when_it_is_made(tmp_path: Path, forced: Forced) -> None:
    assert TransactionFiles(str(tmp_path)).decide(TransactionId("query", 0), Decision())
    assert forced.has(tmp_path)
    assert forced.calls[-1] == ("sync", os.path.realpath(tmp_path / ".transactions"))


def test_a_decision_that_is_taken_stays_taken(tmp_path: Path, forced: Forced) -> None:
    files = TransactionFiles(str(tmp_path))
    transaction = TransactionId("query", 0)
    files.decide(transaction, Decision())
    assert any(path.endswith(".tmp") for path in forced.synced)
    forced.clear()
    files.take(transaction)
    assert forced.calls[-1] == ("sync", os.path.realpath(tmp_path / ".transactions"))


def test_a_relay_refuses_outputs_that_are_less_durable_than_its_commits(tmp_path: Path, arena: Arena) -> None:
    with open_log(tmp_path / "in", sync="batch") as log:
        log.partition(TOPIC, 0).append(make_batches(1))
    with Producer(arena, linger_ms=0) as producer, Sender(arena, f"log:{tmp_path}/out") as sender:
        sender.open()
        sender.run_once()
        with (
            Relay(tmp_path / "in", TOPIC, group_id="group", producer=producer, outputs=["out"]) as relay,
            pytest.raises(ConsumerStateError, match=r"sync=none.*give its sender the option sync=batch"),
        ):
            _turn(relay)


def _turn(relay: Relay) -> None:
    while True:
        with relay.turn(timeout_ms=1000):
            pass


# --- the overflow


def test_rows_and_positions_of_a_spill_file_are_synced_and_so_is_its_name(tmp_path: Path, forced: Forced) -> None:
    path = tmp_path / "flights-0"
    file = SpillFile(str(path), is_synced=True)
    assert forced.has(tmp_path, path)
    forced.clear()
    file.append([OverflowBatch(0, 1, 0, 1, 1)])
    assert forced.has(path)
    forced.clear()
    file.write_position(OverflowPosition(1))
    assert forced.has(path)
    file.close()


# --- the arena


def test_every_new_folder_on_the_way_to_a_durable_arena_is_synced(tmp_path: Path, forced: Forced) -> None:
    path = tmp_path / "a/b/x.arena"
    path.parent.mkdir(parents=True)
    try:
        arena = Arena.create(path, durability="sync", buffer_memory="64KiB", batch_size="4KiB")
    except InvalidArgumentError:
        pytest.skip("the folder of temporary files lies in memory, where no arena is durable")
    assert forced.has(tmp_path, tmp_path / "a", tmp_path / "a/b")
    arena.close()
    forced.clear()
    Arena.attach(path).close()  # their creator may have died before the sync
    assert forced.has(tmp_path, tmp_path / "a", tmp_path / "a/b")
    forced.clear()
    Arena.remove(path)
    assert forced.has(tmp_path / "a/b")


def test_a_durable_arena_is_on_disk_before_it_has_its_name(tmp_path: Path, forced: Forced) -> None:
    try:
        Arena.create(tmp_path / "x.arena", durability="sync", buffer_memory="64KiB", batch_size="4KiB").close()
    except InvalidArgumentError:
        pytest.skip("the folder of temporary files lies in memory, where no arena is durable")
    assert os.path.basename(forced.synced[0]) == ".x.arena.unfinished"


def test_a_refused_level_is_reported_by_the_command(durable_arena: Arena, tmp_path: Path) -> None:
    sender = Sender(durable_arena, open_sink(f"log:{tmp_path}/log", sync="none"))
    with pytest.raises(InvalidArgumentError, match=r"durable.arena keeps \(durability=sync\): leave sync out"):
        sender.open()
    sender.close()


@pytest.mark.parametrize(
    ("durability", "acks", "is_warned"),
    [("sync", "1", True), ("interval", "0", True), ("sync", "all", False), ("process", "1", False)],
)
def test_lower_acks_of_a_durable_arena_cause_a_warning(durability: str, acks: str, is_warned: bool) -> None:
    host = host_with(durability)
    host.options = SenderOptions(acks=acks, enable_idempotence=acks == "all")
    sink = open_sink("kafka:127.0.0.1:1")
    sink.open(host)
    assert any("Set acks=all" in sentence for sentence in host.sentences) == is_warned
    sink.close(0)
