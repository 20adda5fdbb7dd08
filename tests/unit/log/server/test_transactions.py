# SPDX-License-Identifier: Apache-2.0
"""The states of a transactional id, their file, and deaths of the coordinator at each system call."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.common.format.batch_header import PRODUCER_EPOCH_MAX
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogDirectory, LogReader, check_log
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.file_names import TRANSACTIONAL_IDS_FILE
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.groups.frames import pack_frame
from shmaccum.log.groups.offsets_file import GroupLock, OffsetsFile
from shmaccum.log.server import LogServer, transactions_file
from shmaccum.log.server.consumer_group import ConsumerLimits
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.group import GroupLimits
from shmaccum.log.server.produce import _NO_RULES, Prepared, ProduceHandler
from shmaccum.log.server.steps import take_all
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.transaction_coordinator import EXPIRATION_MS, EXPIRY_INTERVAL_MS, TransactionCoordinator
from shmaccum.log.server.transactional_id import (
    NO_PRODUCER,
    ProducerKey,
    TransactionalId,
    TransactionRefusedError,
    TransactionState,
    check_producer,
    completed,
    decided,
    extended,
    fenced,
    initialized,
)
from shmaccum.log.server.transactions_file import TransactionsFile
from tests.support.descriptors import await_no_other, open_descriptors, open_files
from tests.support.processes import Child, wait_until
from tests.support.segment_log import TOPIC, batch_of, offsets, open_log
from tests.support.system_calls import Interruption

PLACE = TopicPartition(TOPIC, 0)
TIMEOUT_MS = 60_000
NEW = TransactionalId("etl", 7)


def begun(state: TransactionalId = NEW, expected: ProducerKey = NO_PRODUCER) -> TransactionalId:
    """The state after InitProducerId. A new producer id is 99."""
    return initialized(state, TIMEOUT_MS, expected, lambda: 99, 1)


def test_a_new_transactional_id_has_no_producer_and_no_transaction() -> None:
    assert TransactionalId("etl", 7, -1, -1, -1, 0, TransactionState.EMPTY, -1, -1) == NEW


def error_of(step: Callable[[], object]) -> BrokerError:
    with pytest.raises(TransactionRefusedError) as caught:
        step()
    return caught.value.error


# --- states


def test_a_transaction_goes_through_its_states() -> None:
    state = begun()
    assert (state.producer_id, state.epoch, state.state) == (7, 0, TransactionState.EMPTY)
    state = extended(state, 5, places=[PLACE])
    assert (state.state, state.deadline_ms) == (TransactionState.ONGOING, 5 + TIMEOUT_MS)
    assert extended(state, 6, places=[PLACE]) is state
    state = extended(state, 9, groups=["g"])
    assert state.started_ms == 5
    assert (set(state.places), set(state.groups)) == ({PLACE}, {"g"})
    prepared = decided(state, 10, is_commit=True)
    assert prepared.state is TransactionState.PREPARE_COMMIT
    assert error_of(lambda: decided(prepared, 11, is_commit=True)) is BrokerError.CONCURRENT_TRANSACTIONS
    assert error_of(lambda: decided(prepared, 11, is_commit=False)) is BrokerError.INVALID_TXN_STATE
    assert error_of(lambda: extended(prepared, 11, places=[PLACE])) is BrokerError.CONCURRENT_TRANSACTIONS
    state = completed(prepared, 12)
    assert (state.state, state.places, state.groups) == (TransactionState.COMPLETE_COMMIT, frozenset(), frozenset())
    assert decided(state, 13, is_commit=True) is state
    assert extended(state, 14, groups=["h"]).groups == {"h"}


def test_only_the_producer_that_has_the_id_continues() -> None:
    state = begun(begun())
    assert check_producer(state, ProducerKey(7, 1)) is state
    assert error_of(lambda: check_producer(state, ProducerKey(7, 0))) is BrokerError.PRODUCER_FENCED
    assert error_of(lambda: check_producer(state, ProducerKey(8, 1))) is BrokerError.INVALID_PRODUCER_ID_MAPPING
    assert error_of(lambda: check_producer(None, ProducerKey(7, 1))) is BrokerError.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_raises_its_own_epoch_once_however_often_it_asks() -> None:
    first = begun()
    raised = begun(first, ProducerKey(7, 0))
    assert raised.epoch == 1
    assert begun(raised, ProducerKey(7, 0)).epoch == 1
    assert begun(raised, ProducerKey(7, 1)).epoch == 2
    taken = begun(raised)
    assert error_of(lambda: begun(taken, ProducerKey(7, 0))) is BrokerError.PRODUCER_FENCED
    assert error_of(lambda: begun(taken, ProducerKey(8, 2))) is BrokerError.PRODUCER_FENCED


def test_an_epoch_that_is_used_up_is_followed_by_a_new_producer_id() -> None:
    last = begun(begun()._replace(epoch=PRODUCER_EPOCH_MAX - 2))
    assert (last.producer_id, last.epoch) == (7, PRODUCER_EPOCH_MAX - 1)
    aborted = completed(fenced(extended(last, 1, places=[PLACE]), 2), 3)
    assert aborted.epoch == PRODUCER_EPOCH_MAX
    of_last = ProducerKey(7, PRODUCER_EPOCH_MAX - 1)
    for state, expected in ((last, NO_PRODUCER), (last, of_last), (aborted, NO_PRODUCER)):
        renewed = begun(state, expected)
        assert (renewed.producer_id, renewed.epoch, renewed.former_producer_id) == (99, 0, 7)
    assert begun(begun(last, of_last), of_last).producer_id == 99


# --- the file


def opened(path: Path) -> TransactionsFile:
    return TransactionsFile(os.fspath(path), is_synced=False)


def test_states_are_there_after_a_restart_and_a_torn_frame_is_not(tmp_path: Path) -> None:
    ongoing = extended(begun(), 5, places=[PLACE, TopicPartition("é", 1)], groups=["g"])
    file = opened(tmp_path)
    file.put(NEW._replace(name="other"))
    size = os.path.getsize(tmp_path / "transactional-ids")
    file.put(ongoing)
    file.close()
    content = (tmp_path / "transactional-ids").read_bytes()
    for end in range(size, len(content) + 1):
        (tmp_path / "transactional-ids").write_bytes(content[:end])
        again = opened(tmp_path)
        assert again.ids == {"other": NEW._replace(name="other")} | ({"etl": ongoing} if end == len(content) else {})
        again.forget(["other"])
        again.close()
    last = opened(tmp_path)
    assert last.ids == {"etl": ongoing}
    last.close()


def test_a_damaged_file_is_kept_aside_and_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = opened(tmp_path)
    for name in ("a", "b", "c"):
        file.put(NEW._replace(name=name))
    file.close()
    content = bytearray((tmp_path / "transactional-ids").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "transactional-ids").write_bytes(content)
    again = opened(tmp_path)
    assert sorted(again.ids) == ["a", "c"]
    again.close()
    assert "were damaged" in caplog.text
    (aside,) = tmp_path.glob("transactional-ids.damaged-*")
    assert aside.read_bytes() == content
    whole = opened(tmp_path)
    assert sorted(whole.ids) == ["a", "c"]
    whole.close()


@pytest.mark.parametrize(
    "body",
    [
        ["id", "etl", 7, 0, -1, -1, float("inf"), "Empty", -1, -1, [], []],
        ["id", "etl", 7, 0, -1, -1, 1, "Lost", -1, -1, [], []],
        ["id", "etl", 7, 0, -1, -1, 1, "Empty", -1, -1, 5, []],
        ["id", ["etl"], 7, 0, -1, -1, 1, "Empty", -1, -1, [], []],
        ["id"],
    ],
)
def test_a_frame_that_makes_no_sense_counts_for_nothing(
    body: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "transactional-ids").write_bytes(pack_frame(body))
    file = opened(tmp_path)
    assert file.ids == {}
    assert "ignored an invalid frame" in caplog.text
    file.close()


def test_a_long_file_is_rewritten(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for number in range(6000):
        file.put(NEW._replace(epoch=number))
    file.close()
    assert os.path.getsize(tmp_path / "transactional-ids") < 300_000
    again = opened(tmp_path)
    assert again.ids["etl"].epoch == 5999
    again.close()


def test_a_file_that_is_rewritten_has_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions_file, "DEAD_SIZE_MIN", 0)
    file = opened(tmp_path)
    for number in range(20):
        file.put(NEW._replace(epoch=number))
        file.put(NEW._replace(name=f"{number}"))
        file.forget([f"{number}"])
        reader = opened(tmp_path)
        assert reader.ids == {"etl": NEW._replace(epoch=number)}
        reader.close()
    file.close()


# --- the coordinator


class Host:
    """A log with a topic of two partitions, and a server's coordinators."""

    def __init__(self, path: Path) -> None:
        self.now_ms = 1000.0
        self.log: LogDirectory = open_log(path, partitions=2)
        self.groups = Coordinator(self.log.path, LogTopics(self.log.path), GroupLimits(), ConsumerLimits())
        self.transactions = TransactionCoordinator(self.log, self.groups, is_synced=False, clock_ms=lambda: self.now_ms)
        self.key: dict[str, Any] = {}

    def ask(self, handler: Callable[[Any], Any], version: int, **fields: Any) -> dict[str, Any]:
        values = {**self.key, **fields}
        values |= {f"v3_and_below_{name}": value for name, value in values.items()}
        result = handler(SimpleNamespace(message=SimpleNamespace(**values), version=version))
        response: dict[str, Any] = result if isinstance(result, dict) else take_all(result)
        return response

    def begin(self, name: str = "etl", timeout_ms: int = 60_000) -> BrokerError:
        self.key = {"transactional_id": name, "producer_id": -1, "producer_epoch": -1}
        found = self.ask(self.transactions.init_producer_id, 4, transaction_timeout_ms=timeout_ms)
        self.key |= {"producer_id": found["producer_id"], "producer_epoch": found["producer_epoch"]}
        return BrokerError(found["error_code"])

    def send(self, sequence: int, value: bytes) -> None:
        """Send the value to both partitions and an offset to the group in one transaction."""
        topics = [SimpleNamespace(name=TOPIC, partitions=[0, 1])]
        self.ask(self.transactions.add_partitions, 3, topics=topics)
        for number in range(2):
            batch = batch_of(self.key["producer_id"], sequence, value, epoch=self.key["producer_epoch"])
            offsets(self.log.partition(TOPIC, number).append([batch]))
        self.ask(self.transactions.add_offsets, 3, group_id="g")
        one = SimpleNamespace(
            partition_index=0, committed_offset=sequence + 1, committed_leader_epoch=-1, committed_metadata=""
        )
        topics = [SimpleNamespace(name=TOPIC, partitions=[one])]
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        self.ask(self.transactions.commit_offsets, 3, group_id="g", topics=topics, **member)

    def end(self, *, is_commit: bool) -> BrokerError:
        return BrokerError(self.ask(self.transactions.end, 3, committed=is_commit)["error_code"])

    def state(self, name: str = "etl") -> str:
        asked = SimpleNamespace(transactional_ids=[name])
        call: Any = SimpleNamespace(message=asked)
        found = take_all(self.transactions.describe(call))
        return str(found["transaction_states"][0]["transaction_state"])

    def committed(self) -> tuple[list[list[bytes | None]], int]:
        """Return the committed values of both partitions and the offset of the group."""
        reader = LogReader(self.log.path, isolation_level="read_committed")
        values = [[record.value for record in reader.partition(TOPIC, number).records()] for number in range(2)]
        offset = self.groups.offsets_of("g").get(PLACE)
        return values, -1 if offset is None else offset.offset

    def close(self) -> None:
        self.transactions.close()
        self.groups.close()
        self.log.close()


@pytest.mark.parametrize(
    ("version", "error"), [(3, BrokerError.INVALID_PRODUCER_EPOCH), (4, BrokerError.PRODUCER_FENCED)]
)
def test_a_producer_that_lost_its_id_does_not_get_it_back(tmp_path: Path, version: int, error: BrokerError) -> None:
    host = Host(tmp_path)
    host.begin()
    former = host.key
    host.begin()
    found = host.ask(host.transactions.init_producer_id, version, transaction_timeout_ms=60_000, **former)
    assert found["error_code"] == error
    host.close()


def test_a_time_out_aborts_and_fences(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.begin(timeout_ms=5000)
    host.send(0, b"v")
    host.now_ms += 4999
    take_all(host.transactions.tick())
    assert host.state() == "Ongoing"
    host.now_ms += 1
    take_all(host.transactions.tick())
    assert host.state() == "CompleteAbort"
    assert host.committed() == ([[], []], -1)
    assert host.end(is_commit=True) is BrokerError.PRODUCER_FENCED
    host.close()


def test_a_time_out_continues_while_no_server_runs(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.begin(timeout_ms=5000)
    host.send(0, b"v")
    host.close()
    again = Host(tmp_path)
    assert again.state() == "Ongoing"
    again.now_ms += 5000
    take_all(again.transactions.tick())
    assert again.state() == "CompleteAbort"
    again.close()


def test_a_tick_checks_ids_with_an_open_transaction_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log may have a hundred thousand ids, and a tick follows each step of a transaction."""
    host = Host(tmp_path)
    for number in range(20):
        host.begin(f"idle-{number}")
    looks: list[str] = []
    described: Any = TransactionalId.deadline_ms

    def note(self: TransactionalId) -> Any:
        looks.append(self.name)
        return described.fget(self)

    monkeypatch.setattr(TransactionalId, "deadline_ms", property(note))
    host.begin()
    host.send(0, b"v")
    take_all(host.transactions.tick())
    assert host.end(is_commit=True) is BrokerError.NONE
    take_all(host.transactions.tick())
    assert set(looks) == {"etl"}
    host.close()


def test_an_id_that_is_not_used_is_forgotten(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.begin()
    host.begin("busy")
    host.send(0, b"v")
    host.now_ms += EXPIRATION_MS + EXPIRY_INTERVAL_MS
    take_all(host.transactions.tick())
    assert (host.state("etl"), host.state("busy")) == ("", "CompleteAbort"), "the busy one took too long"
    host.close()


@pytest.mark.parametrize(("owner", "function"), [(os, "pwritev"), (LogDirectory, "partition")], ids=["write", "open"])
def test_a_marker_that_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str
) -> None:
    host = Host(tmp_path)
    host.begin()
    host.send(0, b"v")

    def full(*_: Any) -> int:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, full)
        assert host.end(is_commit=True) is BrokerError.NONE, "the decision is on file"
        assert host.state() == "PrepareCommit"
        assert host.end(is_commit=True) is BrokerError.CONCURRENT_TRANSACTIONS
        assert host.begin() is BrokerError.CONCURRENT_TRANSACTIONS
    assert host.committed()[0] == [[], []]
    host.now_ms += 2000
    take_all(host.transactions.tick())
    assert host.state() == "CompleteCommit"
    assert host.committed() == ([[b"v"], [b"v"]], 1)
    host.close()


def test_a_group_of_others_that_took_no_offsets_holds_no_transaction_up(tmp_path: Path) -> None:
    """For months, another server may coordinate the group, or local consumers may share it."""
    host = Host(tmp_path)
    path = host.log.path

    def coordinate() -> None:
        with contextlib.closing(OffsetsFile(path, "g", is_writer=True)):
            lock = GroupLock(path, "g")
            Path(path, "is-locked").touch()
            signal.pause()
            lock.release()

    child = Child(coordinate)
    try:
        wait_until(Path(path, "is-locked").exists, "another process coordinates the group")
        host.begin()
        host.send(0, b"v")
        assert host.end(is_commit=False) is BrokerError.NONE
        assert host.state() == "CompleteAbort"
        assert host.begin() is BrokerError.NONE
    finally:
        child.kill()
    host.send(0, b"w")
    assert host.end(is_commit=True) is BrokerError.NONE
    assert host.committed() == ([[b"w"], [b"w"]], 1)
    host.close()


def test_a_step_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    host.begin()
    host.send(0, b"v")

    def full(*_: Any) -> int:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert host.end(is_commit=True) is BrokerError.COORDINATOR_NOT_AVAILABLE
    assert host.state() == "Ongoing"
    assert host.end(is_commit=True) is BrokerError.NONE
    assert host.committed() == ([[b"v"], [b"v"]], 1)
    host.close()


def test_a_server_that_cannot_read_the_ids_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True):
        pass
    ids = tmp_path / "log" / "transactional-ids"
    ids.unlink()
    ids.mkdir()
    before = open_descriptors()
    with pytest.raises(OSError, match="transactional-ids"):
        LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True)
    await_no_other(before)
    ids.rmdir()
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True):
        pass


def test_a_topic_that_was_deleted_holds_no_transaction(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.begin()
    host.send(0, b"v")
    host.log.delete_topic(TOPIC)
    assert host.end(is_commit=True) is BrokerError.NONE
    assert host.state() == "CompleteCommit"
    host.close()


@pytest.mark.usefixtures("recorded_syncs")
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_a_death_at_any_system_call_leaves_all_of_a_transaction_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def live_and_die(path: Path, number: int) -> bool:
        report = os.open(path.with_suffix(".told"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        tell = os.write
        host = Host(path)
        host.begin()
        death = Interruption(number, lambda: os._exit(0))
        death.install(monkeypatch)
        for sequence, is_commit in enumerate((True, False, True)):
            host.send(sequence, b"%d" % sequence)
            host.end(is_commit=is_commit)
            tell(report, b"%d\n" % sequence)
        return death.has_acted

    for number in itertools.count(1, step):
        path = tmp_path / f"death-{number}"
        survived = Child(live_and_die, path, number).join() == "False"
        told = [int(line) for line in path.with_suffix(".told").read_text().split()]
        host = Host(path)
        assert host.begin() is BrokerError.NONE  # which aborts the open transaction
        (one, other), offset = host.committed()
        assert one == other
        assert one in ([], [b"0"], [b"0", b"2"]), number
        assert offset == (int(one[-1] or b"") + 1 if one else -1), number
        assert {sequence for sequence in told if sequence != 1} <= {int(value or b"") for value in one}, number
        assert all(host.log.partition(TOPIC, each).producers.transactions.producer_ids() == [] for each in range(2))
        host.close()
        assert check_log(path) == [], number
        shutil.rmtree(path)
        if survived:
            break
    assert number > 30


def test_a_file_that_is_rewritten_has_one_descriptor(tmp_path: Path) -> None:
    with open_log(tmp_path / "log"):
        pass
    file = TransactionsFile(os.fspath(tmp_path / "log"), is_synced=False)
    file._rewrite()
    opened = [target for _, target in open_descriptors() if target.startswith(file._path)]
    file.close()
    assert opened == [file._path]


@pytest.mark.parametrize(
    ("version", "topic", "error"),
    [
        (12, "deleted", BrokerError.UNKNOWN_TOPIC_OR_PARTITION),
        (13, "deleted", BrokerError.UNKNOWN_TOPIC_ID),
        (12, None, BrokerError.UNKNOWN_TOPIC_OR_PARTITION),
        (13, None, BrokerError.UNKNOWN_TOPIC_ID),
    ],
)
def test_batches_for_a_topic_that_was_deleted_meanwhile_are_rejected(
    tmp_path: Path, version: int, topic: str | None, error: BrokerError
) -> None:
    with open_log(tmp_path / "log") as directory:
        unused: Any = None
        handler = ProduceHandler(directory, unused, unused, unused)
        call: Any = SimpleNamespace(version=version, message=SimpleNamespace(acks=-1))
        found = handler._append(Prepared(topic, SimpleNamespace(index=0), _NO_RULES, []), call)
    assert isinstance(found, Rejection)
    assert found.error_code is error


def test_a_file_that_cannot_be_synced_stays_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_folder: str) -> None:
        raise OSError

    with open_log(tmp_path / "log"):
        pass
    monkeypatch.setattr(transactions_file, "sync_folder", fail)
    with pytest.raises(OSError):  # noqa: PT011
        TransactionsFile(os.fspath(tmp_path / "log"), is_synced=True)
    assert open_files(tmp_path / "log" / TRANSACTIONAL_IDS_FILE) == []
