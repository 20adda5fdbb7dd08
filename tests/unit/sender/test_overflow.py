# SPDX-License-Identifier: Apache-2.0
"""The overflow: order, no duplicates, limits, deaths, a full disk, and pending futures."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum import Producer
from shmaccum._native import SenderHalf, Token
from shmaccum.arena import Arena
from shmaccum.arena.reports import read_reports, reason_of_giving_up
from shmaccum.arena.results import BatchResult
from shmaccum.common.format.batch_header import HEADER_SIZE, read_header
from shmaccum.config import SenderOptions
from shmaccum.exceptions import (
    ArenaBusyError,
    DeliveryFailedError,
    FlushTimeoutError,
    InvalidArgumentError,
    LogError,
    NotALogError,
    ResultExpiredError,
)
from shmaccum.log.files import LogDirectory
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.partition_log import PartitionLog
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.reader import LogReader
from shmaccum.observe.health import SILENCE_NS_MAX, Trouble, troubles
from shmaccum.observe.observation import Observer
from shmaccum.sender import Sender, giving_up
from shmaccum.sender.giving_up import give_up_overflow
from shmaccum.sender.overflow import Overflow, _runs
from shmaccum.sender.shipping import Shipper
from shmaccum.sender.sinks.sink import Ack, WireBatch
from shmaccum.sender.spill_file import HEAD_SIZE, OverflowBatch, SpillFile
from tests.support.overflow import (
    FAST,
    SLOT_COUNT,
    AwayLog,
    AwaySink,
    Open,
    away,
    check_deaths_repeat_nothing,
    die,
    overflow_of,
    run_rounds,
    settle,
)
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import make_batch
from tests.support.sender import TOPIC, ScriptedSink, Sending, refuse, retry
from tests.support.system_calls import dies_at_system_call

# --- order, and no duplicates


def test_an_arena_that_fills_in_an_outage_is_emptied_into_the_overflow(open_sending: Open) -> None:
    sending = open_sending(is_away=True)
    tokens = [sending.append()[0] for _ in range(SLOT_COUNT)]
    settle(sending)
    assert sending.arena.native.state_counts()["FREE"] >= SLOT_COUNT // 2
    assert sending.arena.native.spilled()["batch_count"] >= SLOT_COUNT // 2
    assert [sending.result(token) for token in tokens] == [None] * SLOT_COUNT
    tokens += [sending.append()[0] for _ in range(SLOT_COUNT // 2)]
    away(sending).is_away = False
    settle(sending)
    assert sending.values() == list(range(SLOT_COUNT + SLOT_COUNT // 2))
    assert [sending.completion(token)[2] for token in tokens[-8:]] == list(range(16, 24))
    assert sending.arena.native.spilled()["partitions"] == []
    assert not overflow_of(sending)


def open_held(open_sending: Open) -> Sending:
    """Spills five batches of each of three partitions. The sink has returned, and acknowledges nothing."""
    sending = open_sending(is_away=True, overflow_at=25)
    for _ in range(5):
        for partition in range(3):
            sending.append(partition)
    settle(sending)
    away(sending).is_held = True
    away(sending).is_away = False
    settle(sending)
    return sending


def test_the_arena_continues_after_the_overflow(open_sending: Open) -> None:
    sending = open_held(open_sending)
    assert {index for delivery in away(sending).deliveries for index, _, _ in delivery} <= {0, 1, 2}
    away(sending).is_held = False
    settle(sending)
    for partition in range(3):
        assert sending.values(partition) == list(range(partition, 15, 3))


def test_a_partition_without_batches_in_the_overflow_does_not_wait_for_it(open_sending: Open) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT - 1):
        sending.append()
    settle(sending)
    away(sending).is_away = False
    away(sending).plan_filter = lambda index: index != sending.partition_index(0)
    (other,) = sending.append(partition=1)
    settle(sending)
    assert sending.result(other) is BatchResult.SUCCEEDED
    assert overflow_of(sending).holds(sending.partition_index(0))


def test_all_partitions_together_read_ahead_a_limited_size(open_sending: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 220
    monkeypatch.setattr("shmaccum.sender.overflow.READ_AHEAD_SIZE", room)
    sending = open_held(open_sending)
    windows = [backlog.window.shipments for backlog in overflow_of(sending)._backlogs.values()]
    size = windows[0][0].batch.size
    assert 3 * size < room < 4 * size, "the room is not that of the first batches and another one"
    assert sorted(map(len, windows)) == [1, 1, 2]


def test_a_batch_that_was_in_flight_when_the_outage_began_is_there_once(open_sending: Open) -> None:
    sending = open_sending()
    sending.append()
    settle(sending, 2)

    def arrives_and_is_lost(wire: WireBatch) -> Ack:
        sending.scripted.broker.write([wire])
        return retry(wire)

    away(sending).script = [arrives_and_is_lost]
    tokens = sending.append()
    sending.run()
    away(sending).is_away = True
    tokens += [sending.append()[0] for _ in range(SLOT_COUNT - 1)]
    settle(sending)
    assert sending.result(tokens[0]) is None
    away(sending).is_away = False
    settle(sending)
    assert sending.values() == list(range(SLOT_COUNT + 1))
    assert sending.completion(tokens[0])[2] == 1


def test_the_ids_and_sequences_are_those_of_the_arena(open_sending: Open) -> None:
    sending = open_sending()
    sending.append(count=2)
    settle(sending, 2)
    away(sending).is_away = True
    for _ in range(SLOT_COUNT):
        sending.append(count=2)
    settle(sending)
    away(sending).is_away = False
    settle(sending)
    sequences = [sequence for delivery in away(sending).deliveries for _, sequence, _ in delivery]
    assert sequences == list(range(0, 2 * SLOT_COUNT + 2, 2))
    assert sending.values() == list(range(2 * SLOT_COUNT + 2))


def test_a_sender_with_an_overflow_keeps_the_first_producer_id_of_a_cluster(open_sending: Open) -> None:
    sending = open_sending()
    sending.append()
    settle(sending, 2)
    identity = sending.arena.native.producer_identity
    assert identity == (0, 0, sending.scripted.identity)
    die(sending)
    sending = open_sending(is_away=True)
    assert sending.arena.native.producer_identity == identity


# --- failures of the sink


def test_a_batch_that_is_refused_fails_and_the_others_continue_in_an_epoch_of_their_own(open_sending: Open) -> None:
    sending = open_sending(is_away=True)
    tokens = [sending.append()[0] for _ in range(SLOT_COUNT)]
    settle(sending)
    away(sending).script = [None, refuse]
    away(sending).is_away = False
    settle(sending, 20)
    assert sending.completion(tokens[1])[:2] == (BatchResult.FAILED, 87)
    assert sending.values() == [0, *range(2, SLOT_COUNT)]
    assert all(sending.result(token) is BatchResult.SUCCEEDED for token in (tokens[0], *tokens[2:]))


def test_a_refused_batch_of_the_overflow_is_a_dead_letter(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(is_away=True, dead_letter=f"log:{tmp_path}/failed")
    for _ in range(SLOT_COUNT):
        sending.append(count=2)
    settle(sending)
    away(sending).script = [None, refuse]
    away(sending).is_away = False
    settle(sending, 20)
    records = list(LogReader(tmp_path / "failed").partition(TOPIC, 0).records())
    assert [record.value for record in records] == [b"2", b"3"]


def test_a_batch_that_is_too_large_goes_in_parts(open_sending: Open) -> None:
    sending = open_sending(is_away=True)
    tokens = [sending.append(count=6) for _ in range(SLOT_COUNT)]
    settle(sending)
    away(sending).size_max = 61 + 3 * 9
    away(sending).is_away = False
    settle(sending, 60)
    assert sending.values() == list(range(6 * SLOT_COUNT))
    assert [sending.completion(token)[2] for token in tokens[5]] == [30, 30, 30, 33, 33, 33]


def test_a_retried_batch_keeps_its_place(open_sending: Open) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    away(sending).script = [None, retry, None, retry, None]
    away(sending).is_away = False
    settle(sending, 20)
    assert sending.values() == list(range(SLOT_COUNT))
    rounds = sending.sender._rounds
    assert rounds is not None
    assert rounds.metrics()["record-retry-total"] == 2


def test_a_new_leader_ends_the_pause_of_its_partition(open_sending: Open) -> None:
    pause: dict[str, Any] = dict.fromkeys(("retry_backoff_ms", "retry_backoff_max_ms"), 60_000)
    sending = open_sending(is_away=True, **pause)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    away(sending).script = [retry] * SLOT_COUNT
    away(sending).is_away = False
    settle(sending)
    away(sending).script = []
    settle(sending)
    assert sending.values() == []
    host = sending.scripted.host
    assert host is not None
    host.end_backoff(sending.partition_index())
    settle(sending)
    assert sending.values() == list(range(SLOT_COUNT))


@pytest.mark.parametrize(
    ("batches", "run_sizes"),
    [
        ([(7, 0, 5, 3), (7, 0, 8, 1), (7, 0, 9, 2)], [3]),
        ([(7, 0, 2**31 - 2, 3), (7, 0, 1, 1)], [2]),
        ([(7, 0, 5, 3), (7, 0, 9, 1)], [1, 1]),
        ([(7, 0, 5, 3), (7, 1, 8, 1)], [1, 1]),
        ([(7, 0, 5, 3), (8, 0, 8, 1)], [1, 1]),
    ],
)
def test_batches_with_consecutive_sequences_are_appended_together(
    batches: list[tuple[int, ...]], run_sizes: list[int]
) -> None:
    names = ("producer_id", "producer_epoch", "base_sequence", "record_count")
    wires: list[Any] = [SimpleNamespace(**dict(zip(names, values, strict=True))) for values in batches]
    runs = list(_runs(wires))
    assert [wire for run in runs for wire in run] == wires
    assert [len(run) for run in runs] == run_sizes


# --- deaths


def test_the_next_sender_continues_where_the_dead_one_was(open_sending: Open) -> None:
    sending = open_sending(is_away=True)
    tokens = [sending.append()[0] for _ in range(SLOT_COUNT)]
    settle(sending)
    die(sending)
    sending = open_sending(is_away=True)
    assert [sending.result(token) for token in tokens] == [None] * SLOT_COUNT
    away(sending).is_away = False
    settle(sending, 20)
    assert sending.values() == list(range(SLOT_COUNT))
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * SLOT_COUNT


def test_a_death_after_acks_that_were_not_recorded_repeats_nothing(
    open_sending: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = open_sending(is_away=True)
    tokens = [sending.append()[0] for _ in range(SLOT_COUNT)]
    settle(sending)
    away(sending).is_away = False
    with monkeypatch.context() as patched:
        patched.setattr(Overflow, "record", lambda _: None)
        settle(sending)
    assert sending.values()
    die(sending)
    sending = open_sending()
    settle(sending, 20)
    assert sending.values() == list(range(SLOT_COUNT))
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * SLOT_COUNT


def test_a_sender_without_an_overflow_does_not_pass_the_one_that_is_filled(open_sending: Open) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    die(sending)
    with pytest.raises(InvalidArgumentError, match="are in the overflow of a former sender"):
        Sender(sending.arena, AwaySink()).open()
    sending = open_sending()
    settle(sending, 20)
    assert sending.values() == list(range(SLOT_COUNT))


def test_an_overflow_outlives_its_arena(open_sending: Open, tmp_path: Path, arena_name: str) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    die(sending)
    with Arena.create(arena_name + "-next", buffer_memory="64KiB", batch_size="4KiB") as arena:
        try:
            next_sink = AwaySink()
            next_sink.broker = away(sending).broker
            heir = Sending(arena, next_sink, **{**FAST, "overflow": f"log:{tmp_path}/overflow"})
            (token,) = heir.append()
            settle(heir, 20)
            spilled = [int(value or b"") for value in next_sink.broker.values(TOPIC, 0)]
            assert spilled == [*range(len(spilled) - 1), 0]
            assert heir.result(token) is BatchResult.SUCCEEDED
            heir.close()
        finally:
            Arena.remove(arena_name + "-next")
    open_sending()


def open_sender(arena: Arena | str, tmp_path: Path) -> tuple[Sender, AwayLog]:
    sink = AwayLog(str(tmp_path / "sink"))
    sender = Sender(arena, sink, overflow=f"log:{tmp_path}/overflow", **FAST)
    sender.open()
    return sender, sink


def outage_and_return(sender: Sender, sink: AwayLog) -> None:
    """Run rounds in an outage, end the outage, and run rounds until the overflow is shipped."""
    run_rounds(sender, 5)
    sink.is_away = False
    run_rounds(sender, 25)


def test_a_sender_that_dies_at_any_system_call_of_an_outage_repeats_nothing(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    def prepare(arena: Arena | str) -> tuple[Sender, Callable[[], object]]:
        sender, sink = open_sender(arena, tmp_path)
        return sender, lambda: outage_and_return(sender, sink)

    check_deaths_repeat_nothing(arena_name, tmp_path, seeded(), prepare)


def test_a_death_at_each_system_call_of_a_new_file_leaves_one_that_can_be_opened(tmp_path: Path) -> None:
    for number in itertools.count(1):
        make = functools.partial(SpillFile, str(tmp_path / str(number)), is_synced=True)
        is_dead = dies_at_system_call(functools.partial(lambda function: function, make), number)
        file = make()
        assert (*file.position, file.row_count) == (0, -1, -1, 0, bytes(16), 0), f"killed before system call {number}"
        file.close()
        if not is_dead:
            break
    assert number > 4


# --- the disk


def impairments(arena: Arena) -> list[Trouble]:
    """Return the troubles of ``shmaccum health`` with resources other than the sink."""
    return [trouble for trouble in troubles(Observer(arena).observe()) if trouble.kind == "impaired"]


def test_a_disk_that_is_full_leaves_the_batches_in_the_arena(
    open_sending: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = open_sending(is_away=True)
    full = Rejection(BrokerError.KAFKA_STORAGE_ERROR, "No space left on device", errno.ENOSPC)
    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "append", lambda _, batches: [full] * len(batches))
        for _ in range(SLOT_COUNT):
            sending.append()
        settle(sending)
        assert sending.arena.native.state_counts()["READY"] == SLOT_COUNT
        (told,) = [trouble.sentence for trouble in impairments(sending.arena)]
        assert told.startswith("the overflow cannot be written, and records stay in the arena: No space left on device")
    sending.sleep(1000)
    settle(sending)
    assert sending.arena.native.state_counts()["READY"] <= SLOT_COUNT // 2
    away(sending).is_away = False
    settle(sending, 20)
    assert sending.values() == list(range(SLOT_COUNT))


def test_a_disk_that_fills_between_the_log_and_the_rows_repeats_nothing(
    open_sending: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = open_sending(is_away=True)
    tokens = []

    def fail(_file: SpillFile, _rows: Sequence[OverflowBatch]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(SpillFile, "append", fail)
        tokens = [sending.append()[0] for _ in range(SLOT_COUNT)]
        settle(sending)
        away(sending).is_away = False
        for _ in range(2):
            settle(sending)
            sending.sleep(1000)
        assert sending.values() == []
    settle(sending, 20)
    assert sending.values() == list(range(SLOT_COUNT))
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * SLOT_COUNT


def test_the_core_writes_the_rows_of_a_partition_that_is_in_the_overflow(
    open_sending: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, tokens = filled(open_sending)
    before = sending.arena.native.spilled()["batch_count"]
    with monkeypatch.context() as patched:
        patched.delattr(SpillFile, "append")
        tokens += [sending.append()[0] for _ in range(before)]
        settle(sending)
    assert sending.arena.native.spilled()["batch_count"] > before
    away(sending).is_away = False
    settle(sending, 30)
    assert sending.values() == list(range(len(tokens)))


def test_the_overflow_does_not_outgrow_its_bound(open_sending: Open) -> None:
    sending = open_sending(is_away=True, overflow_max_bytes="40KiB")
    bound = sending.sender.options.overflow_max_bytes
    for _ in range(40):
        if sending.arena.native.state_counts()["FREE"] == 0:
            break
        sending.producer.append(TOPIC, 0, 1000, None, b"x" * 3900)
        sending.producer.flush_begin()
        settle(sending, 2)
    assert sending.arena.native.state_counts()["FREE"] == 0
    assert 0 < overflow_of(sending).metrics()["overflow-bytes"] <= bound
    away(sending).is_away = False
    settle(sending, 20)
    assert sending.arena.native.state_counts()["FREE"] == SLOT_COUNT


def test_the_overflow_is_filled_up_to_the_last_byte(open_sending: Open) -> None:
    sending = open_sending(is_away=True, overflow_max_bytes=1000)
    overflow = overflow_of(sending)
    batches: list[Any] = [SimpleNamespace(size=600), SimpleNamespace(size=400)]
    assert overflow._has_room(batches, 0)
    assert sending.errors() == []
    batches[0].size += 1
    assert not overflow._has_room(batches, 0)
    assert any("overflow_max_bytes leaves 1,000 bytes" in sentence for sentence in sending.errors())


def test_files_of_delivered_batches_are_deleted(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    away(sending).is_away = False
    settle(sending, 20)
    logs = list((tmp_path / "overflow" / f"{TOPIC}-0").glob("*.log"))
    assert [path.stat().st_size for path in logs] == [0]
    assert (tmp_path / "overflow" / ".overflow" / f"{TOPIC}-0").stat().st_size == HEAD_SIZE


def test_what_a_crash_of_the_host_leaves_of_a_delivered_overflow_is_not_lost(
    open_sending: Open, tmp_path: Path
) -> None:
    """The range in the arena, and the size of the file of its rows, are older on disk than the bytes of the file."""
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    rows = tmp_path / "overflow" / ".overflow" / f"{TOPIC}-0"
    former_size = rows.stat().st_size
    away(sending).is_away = False
    settle(sending, 20)
    sending.sender._half.set_spilled(sending.partition_index(0), 0, SLOT_COUNT)
    die(sending)
    assert former_size > HEAD_SIZE == rows.stat().st_size
    os.truncate(rows, former_size)
    sending = open_sending()
    sending.append()
    settle(sending)
    assert sending.values() == [*range(SLOT_COUNT), 0]  # the first one of the new producer
    assert sending.arena.native.spilled()["partitions"] == []


def test_a_damaged_position_is_reported(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    die(sending)
    path = tmp_path / "overflow" / ".overflow" / f"{TOPIC}-0"
    content = bytearray(path.read_bytes())
    content[8:16] = content[72:80] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(LogError, match="it is unknown what of the overflow was delivered"):
        open_sender(sending.arena, tmp_path)
    path.unlink()
    sending = open_sending()
    settle(sending, 30)
    assert sending.values() == list(range(SLOT_COUNT))


def test_a_log_that_lost_its_end_is_gone_on_with(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    away(sending).is_away = False
    settle(sending, 20)
    die(sending)
    shutil.rmtree(tmp_path / "overflow" / f"{TOPIC}-0")
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    away(sending).is_away = False
    settle(sending, 20)
    assert len(sending.values()) == 2 * SLOT_COUNT


def damage(sending: Sending, tmp_path: Path, number: int) -> None:
    """Damage a record of the overflow's batch *number* before any batch is read ahead. -1 is the last one."""
    for backlog in overflow_of(sending)._backlogs.values():
        backlog.window.shipments.clear()
        backlog.rest()
    (log,) = (tmp_path / "overflow" / f"{TOPIC}-0").glob("*.log")
    content = bytearray(log.read_bytes())
    size = read_header(content).size
    content[number % (len(content) // size) * size + HEADER_SIZE + 1] ^= 0xFF
    log.write_bytes(content)


def test_damage_in_the_middle_of_an_overflow_is_reported_and_the_rest_is_delivered(
    open_sending: Open, tmp_path: Path
) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    damage(sending, tmp_path, 3)
    away(sending).is_away = False
    settle(sending, 40)
    assert sending.values() == [value for value in range(SLOT_COUNT) if value != 3]
    assert any("the overflow of topic-0 is damaged: bytes" in sentence for sentence in sending.errors())
    assert not overflow_of(sending)


def test_damage_at_the_end_of_an_overflow_holds_nothing_back(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    settle(sending)
    spilled_count = sending.arena.native.spilled()["batch_count"]
    damage(sending, tmp_path, -1)
    away(sending).is_away = False
    settle(sending, 40)
    assert sending.values() == [value for value in range(SLOT_COUNT) if value != spilled_count - 1]
    assert any("is damaged at its end: 1 record cannot be read" in sentence for sentence in sending.errors())
    assert sending.arena.native.spilled()["partitions"] == []
    assert not overflow_of(sending)


# --- waits


def test_a_flush_waits_for_the_batches_in_the_overflow(open_sending: Open) -> None:
    sending = open_sending(is_away=True)
    for _ in range(SLOT_COUNT):
        sending.append()
    ticket = sending.producer.flush_begin()
    settle(sending)
    later = sending.producer.flush_begin()
    assert ticket.remaining()
    assert later.remaining()
    away(sending).is_away = False
    settle(sending, 20)
    assert ticket.remaining() == later.remaining() == 0


def test_records_of_the_arena_do_not_expire_while_the_overflow_is_delivered(open_sending: Open) -> None:
    sending = open_sending(is_away=True, delivery_timeout_ms=30_000, request_timeout_ms=1000)
    tokens = [sending.append()[0] for _ in range(SLOT_COUNT)]
    settle(sending)
    away(sending).is_away = False
    round_count = 0
    while overflow_of(sending):
        away(sending).script = [retry]
        sending.sleep(10_000)
        sending.run(2)
        sending.sleep(10)
        sending.run()
        round_count += 1
    assert round_count >= 3
    settle(sending, 20)
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * SLOT_COUNT


def test_an_overflow_is_not_shipped_beside_its_sender(open_sending: Open, tmp_path: Path) -> None:
    open_sending()
    with pytest.raises(NotALogError, match="is the overflow of a sender"):
        Shipper(tmp_path / "overflow", f"log:{tmp_path}/copy")


def test_a_sink_that_knows_no_sequences_gets_no_overflow(arena: Arena, tmp_path: Path) -> None:
    sink = ScriptedSink(is_idempotent=False)
    sender = Sender(arena, sink, overflow=f"log:{tmp_path}/overflow")
    with pytest.raises(InvalidArgumentError, match="does not recognise redelivered batches"):
        sender.open()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"overflow": "/var/lib"}, "is not a log"),
        ({"overflow": "log:"}, "needs a directory"),
        ({"overflow": "log:/a", "dead_letter": "log:/a"}, "name the same directory"),
        ({"overflow": "log:/a", "enable_idempotence": False}, "needs enable_idempotence"),
    ],
)
def test_what_makes_no_sense_is_refused_with_advice(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        SenderOptions(**options)


# --- a lost folder


def filled(open_sending: Open) -> tuple[Sending, list[Token]]:
    sending = open_sending(is_away=True)
    tokens = [sending.append()[0] for _ in range(SLOT_COUNT)]
    settle(sending)
    assert sending.arena.native.spilled()["record_count"] > 0
    return sending, tokens


def move_overflow(folder: Path) -> None:
    folder.rename(folder.with_name("aside"))


def put_an_empty_one(folder: Path) -> None:
    move_overflow(folder)
    folder.mkdir()


def put_that_of_nobody(folder: Path) -> None:
    move_overflow(folder)
    with LogDirectory(folder) as other:
        other.create_topic(TOPIC)
        other.partition(TOPIC, 0)


def put_that_of_another_arena(folder: Path) -> None:
    """Put another arena's overflow there, with a row in its spill file and a batch in its log."""
    move_overflow(folder)
    with LogDirectory(folder) as other:
        other.create_topic(TOPIC)
        other.partition(TOPIC, 0).append([make_batch([b"x"])])
    (folder / ".overflow").mkdir()
    file = SpillFile(str(folder / ".overflow" / f"{TOPIC}-0"), is_synced=False)
    file.append([OverflowBatch(0, 0, 0, 1, 12345)])
    file.close()


def move_its_partition(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("aside"))
    shutil.rmtree(folder / f"{TOPIC}-0")


def bring_back(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_name("aside").rename(folder)


WAYS = [move_overflow, put_an_empty_one, put_that_of_nobody, put_that_of_another_arena, move_its_partition]


@pytest.mark.parametrize("lose", WAYS)
def test_a_sender_begins_only_with_what_the_arena_counts(
    open_sending: Open, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    sending, tokens = filled(open_sending)
    die(sending)
    folder = tmp_path / "overflow"
    lose(folder)
    for _ in range(2):
        with pytest.raises(LogError, match=r"counts [0-9]+ records on disk.*--give-up-overflow"):
            open_sender(sending.arena, tmp_path)
    assert folder.exists() is (lose is not move_overflow)
    assert any("the overflow" in sentence for sentence in sending.errors())
    bring_back(folder)
    sending = open_sending()
    settle(sending, 30)
    assert sending.values() == list(range(SLOT_COUNT))
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * SLOT_COUNT


def test_a_lost_overflow_is_given_up_by_a_user_alone(
    open_sending: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving_up, "ROLE_TIMEOUT_S", 0.0)
    sending, tokens = filled(open_sending)
    with Arena.attach(sending.arena.name) as other, pytest.raises(ArenaBusyError):
        give_up_overflow(other)
    die(sending)
    shutil.rmtree(tmp_path / "overflow")
    count = sending.arena.native.spilled()["record_count"]
    sentence = give_up_overflow(sending.arena)
    assert f"{count} records" in sentence
    assert "lost" in sentence
    assert any(sentence in told for told in sending.errors())
    assert give_up_overflow(sending.arena) == ""
    sending = open_sending()
    settle(sending, 30)
    assert sending.values() == list(range(count, SLOT_COUNT))
    reports = read_reports(sending.arena.native)
    for number, token in enumerate(tokens):
        assert bool(reason_of_giving_up(reports, f"{TOPIC}-0", token.seq)) is (number < count)
    for token in tokens[:count]:
        with pytest.raises(ResultExpiredError):
            sending.producer.find(token)
    (late,) = sending.append()
    settle(sending)
    assert sending.result(late) is BatchResult.SUCCEEDED


def test_the_future_of_a_record_that_was_given_up_reports_that_it_is_lost(arena_name: str) -> None:
    with Arena.create(arena_name, topics={TOPIC: 2}) as arena, Producer(arena_name) as producer:
        future, late = (producer.send(TOPIC, b"x", partition=number) for number in range(2))
        with pytest.raises(FlushTimeoutError):
            producer.flush(0)
        half = SenderHalf(arena.native)
        half.become_sender()
        half.ready(0, True)
        (batch,) = half.drain([half.partition_index(TOPIC, 0)], 1 << 20)[0]
        half.spill(batch)
        half.resign()
        half.close()
        assert not future.done()
        give_up_overflow(arena)
        with pytest.raises(DeliveryFailedError, match="in the overflow were discarded: they are lost"):
            future.get(timeout=WATCHDOG_S)
        assert not late.done()
        producer.close(0)


@pytest.mark.parametrize("loss", ["file", "folder", "mark"])
def test_the_files_beside_an_overflow_are_rewritten_when_they_are_gone(
    open_sending: Open, tmp_path: Path, loss: str
) -> None:
    sending, tokens = filled(open_sending)
    folder = tmp_path / "overflow" / ".overflow"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert len(before) == 2
    if loss == "folder":
        shutil.rmtree(folder)
    else:
        next(one for one in folder.iterdir() if one.name.endswith(".arena") is (loss == "mark")).unlink()
    sending.sleep(2000)
    settle(sending, 1)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    die(sending)
    sending = open_sending()
    settle(sending, 30)
    assert sending.values() == list(range(SLOT_COUNT))
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * SLOT_COUNT


@pytest.mark.parametrize("lose", [move_overflow, put_an_empty_one, put_that_of_nobody])
def test_an_overflow_that_is_away_holds_its_partitions_alone(
    open_sending: Open, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    sending, tokens = filled(open_sending)
    folder = tmp_path / "overflow"
    lose(folder)
    overflow = overflow_of(sending)

    def is_lost() -> bool:
        settle(sending, 1)
        return overflow.is_lost

    wait_until(is_lost, "the loss")
    assert len(impairments(sending.arena)) == 1
    spilled = sending.arena.native.spilled()
    away(sending).is_away = False
    (other,) = sending.append(1)
    settle(sending, 30)
    assert sending.result(other) is BatchResult.SUCCEEDED
    assert [sending.result(token) for token in tokens] == [None] * SLOT_COUNT
    assert sending.values() == []
    assert sending.arena.native.spilled() == spilled
    assert any(str(folder) in sentence for sentence in sending.errors())
    bring_back(folder)

    def is_delivered() -> bool:
        settle(sending, 1)
        return sending.result(tokens[-1]) is BatchResult.SUCCEEDED

    wait_until(is_delivered, "the records")
    assert sending.values() == list(range(SLOT_COUNT))
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * SLOT_COUNT
    assert not overflow.is_lost
    sending.sleep(SILENCE_NS_MAX // 10**6 + 1)
    assert impairments(sending.arena) == []


def test_an_overflow_that_is_back_and_cannot_be_opened_is_reported_and_opened_later(
    open_sending: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, tokens = filled(open_sending)
    move_overflow(tmp_path / "overflow")

    def is_true_after_a_round(condition: Callable[[], bool]) -> bool:
        settle(sending, 1)
        return condition()

    wait_until(functools.partial(is_true_after_a_round, lambda: overflow_of(sending).is_lost), "the loss")

    def fail(_overflow: Overflow) -> None:
        raise OSError(errno.EMFILE, "too many open files here")

    with monkeypatch.context() as patch:
        patch.setattr(Overflow, "_open", fail)
        bring_back(tmp_path / "overflow")
        is_reported = functools.partial(
            is_true_after_a_round, lambda: any("too many open files here" in one for one in sending.errors())
        )
        wait_until(is_reported, "the report")
    away(sending).is_away = False
    is_delivered = functools.partial(is_true_after_a_round, lambda: sending.result(tokens[-1]) is BatchResult.SUCCEEDED)
    wait_until(is_delivered, "the records")
    assert sending.values() == list(range(SLOT_COUNT))
