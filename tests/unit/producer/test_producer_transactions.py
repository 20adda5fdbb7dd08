# SPDX-License-Identifier: Apache-2.0
"""Transactions of a producer, with a running sender and its sink."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shmaccum import Producer, Sender, Transaction
from shmaccum.arena import Arena
from shmaccum.arena.results_fifo import ResultsListener
from shmaccum.cli import main
from shmaccum.cli.drawing import Screen, drawn
from shmaccum.cli.inspect import overview
from shmaccum.cli.stat_view import stat_view
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    ArenaBusyError,
    DeliveryAbortedError,
    DeliveryFailedError,
    InvalidArgumentError,
    LogError,
    NoTransactionError,
    OtherSinkError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
)
from shmaccum.log.files.file_names import TRANSACTIONAL_ARENAS_FILE
from shmaccum.log.files.partition_log import PartitionLog
from shmaccum.log.files.reader import LogReader
from shmaccum.observe.observation import Observer, Rates
from shmaccum.observe.picture import PageObserver
from shmaccum.observe.prometheus import ArenaCollector, exposition
from shmaccum.producer import transaction as transaction_module
from shmaccum.producer.transaction import CHECK_NS
from shmaccum.sender.sinks import log_transactions
from shmaccum.sender.sinks.log import LogSink
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Ack, Sink, Verdict, WireBatch
from tests.support.arenas import boot_again
from tests.support.processes import WATCHDOG_S, Child, run_in_child, wait_until
from tests.support.segment_log import values_of
from tests.support.transactions import fence, running
from tests.unit.observe.test_prometheus import samples

TOPIC = "t"


class MistakeError(Exception):
    """Ends a block early."""


@pytest.fixture
def transactional(arena_name: str) -> Iterator[Arena]:
    with make(arena_name) as arena:
        yield arena


def make(name: str, **options: Any) -> Arena:
    sizes: dict[str, Any] = {"buffer_memory": 16 * 1024, "batch_size": 1024, "process_count": 8, "waiter_count": 8}
    return Arena.create(name, topics={TOPIC: 4}, **{**sizes, "transactional_id": "orders-1", **options})


@contextlib.contextmanager
def sending(arena: Arena, sink: Sink | str, **options: Any) -> Iterator[Sender]:
    """A sender in a thread."""
    with running(Sender(arena, sink, **{"linger_ms": 0, **options})) as sender:
        yield sender


def values(sink: MemorySink) -> list[bytes | None]:
    return [value for place in sink.topic_partitions() for value in sink.values(*place)]


def state_of(arena: Arena) -> str:
    return arena.native.transaction[1]


# --- the calls of a user


def test_records_are_visible_at_once_and_only_when_their_block_ends(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    with sending(transactional, sink), Producer(transactional) as producer:
        with producer.transaction() as transaction:
            assert isinstance(transaction, Transaction)
            futures = [producer.send(TOPIC, b"%d" % index, partition=index % 4) for index in range(8)]
            assert [future.get(WATCHDOG_S).partition for future in futures] == [index % 4 for index in range(8)]
            assert values(sink) == []
        assert sorted(filter(None, values(sink))) == [b"%d" % index for index in range(8)]
        assert transaction.is_over
        with contextlib.suppress(MistakeError), producer.transaction():
            lost = producer.send(TOPIC, b"lost", partition=0)
            raise MistakeError
        with producer.transaction():
            producer.send(TOPIC, b"last", partition=0)
        assert values(sink).count(b"last") == 1
        assert b"lost" not in values(sink)
        assert lost.done()


def test_the_names_of_kafka(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    with sending(transactional, sink), Producer(transactional) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"kept", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        thrown_away = producer.send(TOPIC, b"thrown away", partition=0)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.commit_transaction()
        assert values(sink) == [b"kept"]
        with contextlib.suppress(DeliveryAbortedError):  # it may have been delivered before
            thrown_away.get(WATCHDOG_S)
        times = producer.metrics()["producer-metrics"]
        steps = ("txn-init", "txn-begin", "txn-commit", "txn-abort")
        assert all(times[f"{step}-time-ns-total"] > 0 for step in steps)


def test_workers_send_and_the_coordinator_alone_ends(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)

    def work(name: str) -> str:
        with Producer(name) as producer:
            producer.send(TOPIC, b"by a worker", partition=1)
            for call in (producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(NoTransactionError, match="has begun no transaction"):
                    call()
            with pytest.raises(ArenaBusyError, match="another transaction"):
                producer.begin_transaction()
        return "sent"

    with sending(transactional, sink), Producer(transactional) as producer, producer.transaction():
        assert run_in_child(work, transactional.name) == "'sent'"
    assert values(sink) == [b"by a worker"]


def test_a_child_of_the_coordinator_does_not_end_its_transaction(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    producer = Producer(transactional)
    producer.begin_transaction()

    def try_to_end() -> str:
        with pytest.raises(NoTransactionError, match="the process that begins a transaction ends it"):
            producer.commit_transaction()
        producer.close(0)
        return state_of(transactional)

    assert run_in_child(try_to_end) == "'open'"
    with sending(transactional, sink):
        producer.send(TOPIC, b"1", partition=0)
        producer.commit_transaction()
        producer.close()
    assert values(sink) == [b"1"]


def test_a_worker_that_joined_sends_in_that_transaction_alone(transactional: Arena) -> None:
    with (
        sending(transactional, MemorySink(partitions=4)),
        Producer(transactional) as producer,
        Producer(transactional) as worker,
    ):
        with producer.transaction() as first:
            worker.join(first.number)
            worker.send(TOPIC, b"1", partition=0)
        with producer.transaction() as second:
            with pytest.raises(TransactionEndedError):
                worker.send(TOPIC, b"2", partition=0)
            worker.join(second.number)
            worker.send(TOPIC, b"2", partition=0)
        for wrong in (0, -1, 2**40):
            with pytest.raises(InvalidArgumentError):
                worker.join(wrong)
        with producer.transaction():
            worker.join(None)
            worker.send(TOPIC, b"3", partition=0)


# --- calls out of order


def test_a_send_outside_a_transaction_is_refused(transactional: Arena) -> None:
    with Producer(transactional) as producer:
        for call in (
            lambda: producer.send(TOPIC, b"1", partition=0),
            lambda: producer.send_many(TOPIC, [b"1"], partition=0),
            lambda: producer.send(TOPIC, b"1" * 4000, partition=0),
        ):
            with pytest.raises(NoTransactionError, match="begin one before you send"):
                call()


def test_a_plain_arena_refuses_transactions(arena: Arena) -> None:
    with Producer(arena) as producer:
        for call in (
            producer.init_transactions,
            producer.begin_transaction,
            lambda: producer.join(1),
            lambda: producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 1}, "readers"),
            lambda: producer.send_offsets_to_transaction({}, "readers"),
        ):
            with pytest.raises(InvalidArgumentError, match="has no transactional_id"):
                call()
        with pytest.raises(NoTransactionError):
            producer.commit_transaction()
    assert arena.transactional_id is None


def test_calls_out_of_order(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    with sending(transactional, sink), Producer(transactional) as producer, Producer(transactional) as other:
        producer.begin_transaction()
        for begin in (producer.begin_transaction, other.begin_transaction):
            with pytest.raises(ArenaBusyError, match="already"):
                begin()
        producer.commit_transaction()
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(NoTransactionError, match="is over"):
                call()
    with pytest.raises(ProducerClosedError):
        producer.begin_transaction()
    with pytest.raises(ProducerClosedError):
        producer.join(1)


def test_a_producer_that_is_closed_aborts_what_it_began(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    with sending(transactional, sink):
        with Producer(transactional) as producer:
            producer.begin_transaction()
            producer.send(TOPIC, b"1", partition=0)
        with Producer(transactional) as producer:
            producer.begin_transaction()
            producer.commit_transaction()
    assert values(sink) == []


# --- failures


class Refusing(MemorySink):
    """Rejects batches that have a certain word."""

    def write(self, batches: Any) -> list[Ack]:
        return [ack for wire in batches for ack in self._judged(wire)]

    def _judged(self, wire: WireBatch) -> list[Ack]:
        if b"wrong" in b"".join(wire.buffers):
            return [Ack(wire, Verdict.REFUSED, error_code=2, message="the word is wrong")]
        return list(super().write([wire]))


def test_a_block_whose_producer_was_closed_in_it_does_not_look_committed(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    with sending(transactional, sink):
        producer = Producer(transactional)

        def close_early() -> None:
            with producer.transaction():
                producer.send(TOPIC, b"1", partition=0)
                producer.close()

        with pytest.raises(TransactionEndedError, match="the close of its producer"):
            close_early()
        wait_until(lambda: state_of(transactional) == "none", "the transaction is over")
    assert values(sink) == []


def test_a_refused_batch_makes_the_commit_fail_with_its_reason(transactional: Arena) -> None:
    sink = Refusing(partitions=4)
    with sending(transactional, sink), Producer(transactional) as producer:
        producer.begin_transaction()
        producer.send(TOPIC, b"right", partition=1)
        refused = producer.send(TOPIC, b"wrong", partition=0)
        with pytest.raises(TransactionEndedError, match=r"could not be delivered .*the word is wrong.*; abort it"):
            producer.commit_transaction()
        with pytest.raises(DeliveryFailedError, match="the word is wrong"):
            refused.get(WATCHDOG_S)
        with pytest.raises(NoTransactionError):
            producer.send(TOPIC, b"late", partition=0)
        producer.abort_transaction()
        with pytest.raises(TransactionEndedError), producer.transaction():
            producer.send(TOPIC, b"wrong", partition=0)
        with producer.transaction():
            producer.send(TOPIC, b"again", partition=0)
            producer.send(TOPIC, b"again", partition=1)
    assert values(sink) == [b"again", b"again"]


def test_a_failed_transaction_does_not_report_the_reason_of_an_earlier_one(transactional: Arena) -> None:
    with sending(transactional, Refusing(partitions=4)), Producer(transactional) as producer:
        with pytest.raises(TransactionEndedError, match="the word is wrong"), producer.transaction():
            producer.send(TOPIC, b"wrong", partition=0)
        producer.begin_transaction()
        transactional.native.abort_transaction(transactional.native.transaction[0])
        with pytest.raises(TransactionEndedError, match="aborted") as failed:
            producer.commit_transaction()
        assert "the word is wrong" not in str(failed.value)


def test_a_transaction_that_is_open_for_too_long_is_aborted(arena_name: str) -> None:
    sink = MemorySink(partitions=4)
    with make(arena_name, transaction_timeout_ms=50) as arena, sending(arena, sink), Producer(arena) as producer:
        producer.begin_transaction()
        wait_until(lambda: state_of(arena) == "none", "the sender has aborted the transaction")
        with pytest.raises(TransactionEndedError, match="longer than transaction_timeout_ms"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(TOPIC, b"1", partition=0)
    assert values(sink) == [b"1"]


def test_without_a_sender_a_commit_reports_that_its_outcome_is_unknown(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    producer = Producer(transactional, max_block_ms=20)
    producer.begin_transaction()
    producer.send(TOPIC, b"1", partition=0)
    with pytest.raises(TransactionOutcomeUnknownError, match="No sender runs"):
        producer.commit_transaction(0.01)
    with pytest.raises(TransactionEndedError, match="its commit has begun"):
        producer.abort_transaction()
    with sending(transactional, sink):
        producer.commit_transaction()
        assert values(sink) == [b"1"]
    producer.begin_transaction()
    producer.send(TOPIC, b"2", partition=0)
    producer.abort_transaction()
    with pytest.raises(ArenaBusyError, match="is not over"):
        producer.begin_transaction()
    producer.close(0)


def test_a_commit_in_its_block_that_learns_no_outcome_can_be_asked_again(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    producer = Producer(transactional)

    def send_and_commit() -> None:
        with producer.transaction() as transaction:
            producer.send(TOPIC, b"1", partition=0)
            transaction.commit(0.01)

    with pytest.raises(TransactionOutcomeUnknownError, match="call commit_transaction"):
        send_and_commit()
    with sending(transactional, sink):
        producer.commit_transaction()
        assert values(sink) == [b"1"]
        with pytest.raises(TransactionOutcomeUnknownError, match="of others"), producer.transaction():
            raise TransactionOutcomeUnknownError("of others")
        with producer.transaction():
            producer.send(TOPIC, b"2", partition=0)
    assert values(sink) == [b"1", b"2"]
    producer.close(0)


def test_a_coordinator_that_dies_leaves_a_transaction_that_the_sender_aborts(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)

    def begin_and_die(name: str) -> None:
        producer = Producer(name)
        producer.begin_transaction()
        producer.send(TOPIC, b"lost", partition=0)
        os.kill(os.getpid(), signal.SIGKILL)

    with sending(transactional, sink), Producer(transactional) as producer:
        child = Child(begin_and_die, transactional.name)
        wait_until(child.has_ended, "the coordinator has died")
        child.kill()
        wait_until(lambda: state_of(transactional) == "none", "the sender has aborted the transaction")
        with producer.transaction():
            producer.send(TOPIC, b"1", partition=0)
    assert values(sink) == [b"1"]


def test_a_sender_that_stops_ends_a_commit_and_leaves_an_open_transaction(transactional: Arena, tmp_path: Path) -> None:
    with Producer(transactional) as producer:
        with sending(transactional, f"log:{tmp_path}"):
            producer.begin_transaction()
            producer.send(TOPIC, b"1", partition=0).get(WATCHDOG_S)
        assert state_of(transactional) == "open"
        assert values_of(tmp_path, TOPIC) == []
        with sending(transactional, f"log:{tmp_path}"):
            producer.send(TOPIC, b"2", partition=1)
            producer.commit_transaction()
    assert sorted(values_of(tmp_path, TOPIC)) == [b"1", b"2"]


# --- the log


def test_a_log_shows_committed_records_alone(transactional: Arena, tmp_path: Path) -> None:
    with sending(transactional, f"log:{tmp_path}"), Producer(transactional) as producer:
        for turn in range(6):
            with contextlib.suppress(MistakeError), producer.transaction():
                for partition in range(4):
                    producer.send(TOPIC, b"%d" % turn, partition=partition)
                if turn % 2:
                    raise MistakeError
    assert sorted(values_of(tmp_path, TOPIC)) == sorted([b"0", b"2", b"4"] * 4)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_sender_that_leaves_between_two_markers_is_followed_by_one_that_writes_the_others(
    transactional: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_commit: bool
) -> None:
    producer = Producer(transactional)
    with sending(transactional, f"log:{tmp_path}"):
        producer.begin_transaction()
        for future in [producer.send(TOPIC, b"1", partition=partition) for partition in range(4)]:
            future.get(WATCHDOG_S)
    native = transactional.native
    (native.commit_transaction if is_commit else native.abort_transaction)(native.transaction[0])
    marked: list[PartitionLog] = []

    def mark_two(log: PartitionLog, *given: Any, **named: Any) -> None:
        if len(marked) == 2:
            raise OSError(errno.ENOSPC, "no marker fits")
        marked.append(log)
        mark(log, *given, **named)

    mark = log_transactions._mark
    monkeypatch.setattr(log_transactions, "_mark", mark_two)
    with Sender(transactional, f"log:{tmp_path}") as sender:
        sender.open()
        wait_until(lambda: sender.run_once() >= 0 and len(marked) == 2, "two markers are written")
        assert state_of(transactional) == ("decided" if is_commit else "aborting")
    assert values_of(tmp_path, TOPIC) == [b"1"] * 2 * is_commit
    monkeypatch.setattr(log_transactions, "_mark", mark)
    with sending(transactional, f"log:{tmp_path}"):
        wait_until(lambda: state_of(transactional) == "none", "the transaction is over")
        producer.close(0)
    assert values_of(tmp_path, TOPIC) == [b"1"] * 4 * is_commit
    ends = [LogReader(tmp_path).partition(TOPIC, partition).log_end_offset for partition in range(4)]
    assert ends == [2] * 4  # a record and one marker


def test_the_end_of_a_transaction_opens_its_own_partitions_alone(
    transactional: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    is_open = log_transactions._is_open

    def noted(log: PartitionLog, producer_id: int) -> bool:
        opened.append(log.place.partition)
        return is_open(log, producer_id)

    monkeypatch.setattr(log_transactions, "_is_open", noted)
    with sending(transactional, f"log:{tmp_path}"), Producer(transactional) as producer:
        for partition in range(3):
            opened.clear()
            with producer.transaction():
                producer.send(TOPIC, b"1", partition=partition)
            assert partition in opened
    assert opened == [2]


def test_damage_in_the_file_of_the_ids_is_reported(transactional: Arena, tmp_path: Path) -> None:
    with sending(transactional, f"log:{tmp_path}"), Producer(transactional) as producer, producer.transaction():
        pass
    (tmp_path / TRANSACTIONAL_ARENAS_FILE).write_bytes(b'{"orders-1": ')
    with pytest.raises(LogError, match="is damaged"), sending(transactional, f"log:{tmp_path}"):
        pass


@pytest.fixture
def second(arena_name: str) -> Iterator[Arena]:
    """Another arena with the same transactional_id."""
    name = f"{arena_name}-2"
    try:
        with make(name) as arena:
            yield arena
    finally:
        Arena.remove(name, missing_ok=True)


def test_another_arena_with_the_id_fences_the_first_one(transactional: Arena, second: Arena, tmp_path: Path) -> None:
    sink = f"log:{tmp_path}"
    producer = Producer(transactional)
    with sending(transactional, sink):
        producer.begin_transaction()
        producer.send(TOPIC, b"of the first", partition=0).get(WATCHDOG_S)
    with sending(second, sink), Producer(second) as other, other.transaction():
        other.send(TOPIC, b"of the second", partition=0)
    assert values_of(tmp_path, TOPIC) == [b"of the second"]
    with pytest.raises(ProducerFencedError, match="another arena has"), sending(transactional, sink):
        pass
    producer.close(0)


def test_a_commit_sleeps_until_the_transaction_changes(transactional: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[tuple[int, int]] = []

    class Clock:
        """A clock that advances only in waits, independent of this machine."""

        def monotonic(self) -> float:
            return sum(rest_ns for _, rest_ns in rests) / 1e9

    class Native:
        """The core, with waits that return at once."""

        def __getattr__(self, name: str) -> Any:
            return getattr(transactional.native, name)

        def wait_transaction(self, word: int, timeout_ns: int) -> int:
            rests.append((word, timeout_ns))
            return transactional.native.wait_transaction(word, 0)

    with Producer(transactional) as producer:
        transaction = producer.transaction()
        producer.send(TOPIC, b"one", partition=0)
        monkeypatch.setattr(transaction_module, "clock", Clock())
        monkeypatch.setattr(transaction, "_native", Native())
        open_word = transactional.native.transaction_word
        with pytest.raises(TransactionOutcomeUnknownError):
            transaction.commit(0.1)
        monkeypatch.undo()
        producer.close(0)
    committing_word = transactional.native.transaction_word
    words = [word for word, _ in rests]
    assert words == [open_word] + [committing_word] * (len(words) - 1), "the change to COMMITTING came after a check"
    assert {rest_ns for _, rest_ns in rests} == {CHECK_NS}


def test_a_wait_for_the_transaction_ends_with_the_next_change(transactional: Arena) -> None:
    native = transactional.native
    word = native.transaction_word
    assert native.wait_transaction(word, 0) == word
    with Producer(transactional) as producer:
        producer.begin_transaction()
        begun_word = native.wait_transaction(word, 10**18)
        assert begun_word == native.transaction_word != word
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(native.wait_transaction, begun_word, 10**18)
            producer.commit_transaction()
            assert waiting.result(WATCHDOG_S) == native.transaction_word
    for wrong in ("1", -1, 2**64, None):
        with pytest.raises((TypeError, OverflowError)):
            native.wait_transaction(wrong, 0)  # type: ignore[arg-type]


class UnwaitingSink(MemorySink):
    """A sink that records the times for which it was to wait, and does not wait."""

    def __init__(self) -> None:
        super().__init__(partitions=4)
        self.waits_s: list[float] = []

    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack]:
        self.waits_s.append(timeout_s)
        return super().poll(0, wake_fd)


def test_a_sender_waits_until_the_transaction_changes_and_wakes_event_loops_at_its_end(transactional: Arena) -> None:
    sink, listener = UnwaitingSink(), ResultsListener(transactional)
    with Producer(transactional) as producer, Sender(transactional, sink, linger_ms=0) as sender:
        sender.open()
        producer.begin_transaction()
        future = producer.send(TOPIC, b"1", partition=0)
        wait_until(lambda: sender.run_once() >= 0 and future.done(), "the record is delivered")
        for _ in range(4):
            sender.run_once()
        assert sink.waits_s[-1] > 0
        listener.take_wake_up()
        assert select.select([listener], [], [], 0) == ([], [], [])
        transactional.native.commit_transaction(transactional.native.transaction[0])
        wait_until(lambda: sender.run_once() >= 0 and state_of(transactional) == "none", "the transaction is over")
        assert select.select([listener], [], [], 0)[0]
        producer.commit_transaction()
    listener.close()


def test_an_empty_transaction_needs_no_sender(transactional: Arena) -> None:
    with Producer(transactional) as producer:
        for number in range(1, 4):
            with producer.transaction() as transaction:
                assert transaction.number == number
            assert transaction.is_over
            assert transactional.native.transaction == (number, "none", "")
        assert transactional.native.counters()["transactions committed"] == 3
        sink = MemorySink(partitions=4)
        with sending(transactional, sink), producer.transaction():
            producer.send(TOPIC, b"one", partition=0)
    assert sink.values(TOPIC, 0) == [b"one"]


def test_every_process_learns_of_a_fence_until_the_id_is_taken_back(transactional: Arena) -> None:
    with Producer(transactional) as producer, Producer(transactional) as worker, Producer(transactional) as joined:
        joined.join(producer.transaction().number)
        worker.send(TOPIC, b"before", partition=0)
        fence(transactional)
        for one in (producer, worker, joined):
            with pytest.raises(ProducerFencedError, match="init_transactions"):
                one.send(TOPIC, b"too late", partition=0)
            with pytest.raises(ProducerFencedError):
                one.send_many(TOPIC, [b"too late"] * 3, partition=1)
            with pytest.raises(ProducerFencedError):
                one.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 1}, "readers")
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction()
        with pytest.raises(ArenaBusyError, match="abort that one first"):
            producer.init_transactions()
        producer.abort_transaction()
        with sending(transactional, MemorySink(partitions=4)):
            wait_until(lambda: state_of(transactional) == "none", "the transaction is over")
            with pytest.raises(ProducerFencedError):
                worker.send(TOPIC, b"too late", partition=0)
            producer.init_transactions()
            with producer.transaction():
                worker.send(TOPIC, b"again", partition=0)
                with pytest.raises(TransactionEndedError):
                    joined.send(TOPIC, b"too late", partition=0)


def test_an_id_is_taken_back_after_the_end_of_the_last_transaction(transactional: Arena) -> None:
    with Producer(transactional) as producer, Producer(transactional, max_block_ms=1) as hasty:
        hasty.init_transactions()  # the id is free
        producer.begin_transaction()
        producer.send(TOPIC, b"before", partition=0)
        fence(transactional)
        producer.abort_transaction()
        with pytest.raises(ArenaBusyError, match=r"not over, so its transactional_id.*No sender"):
            hasty.init_transactions()
        with pytest.raises(ProducerFencedError):
            producer.begin_transaction()
        with ThreadPoolExecutor(1) as pool:
            taken_back = pool.submit(producer.init_transactions)
            with sending(transactional, MemorySink(partitions=4)):
                taken_back.result(WATCHDOG_S)
                assert transactional.native.transaction_recovery_state == 0
                with producer.transaction():
                    producer.send(TOPIC, b"again", partition=0)


def test_a_removed_arena_aborts_its_open_transaction(arena_name: str, tmp_path: Path) -> None:
    with make(arena_name) as arena:
        producer = Producer(arena)
        producer.begin_transaction()
        sender = Sender(arena, LogSink(str(tmp_path)), linger_ms=0)
        sender.open()
        sent = producer.send(TOPIC, b"1", partition=0)
        wait_until(lambda: sender.run_once() >= 0 and sent.done(), "the record is in the log")
        Arena.remove(arena_name)
        with pytest.raises(Exception, match="removed"):
            sender.run()
        assert state_of(arena) == "none"
        with contextlib.suppress(Exception):
            producer.close(0)
    assert values_of(tmp_path, TOPIC) == []
    assert LogReader(tmp_path).partition(TOPIC, 0).log_end_offset == 2  # the record, and the marker


# --- durability


@pytest.mark.parametrize("level", ["process", "interval", "sync"])
def test_an_open_transaction_is_aborted_after_a_crash_of_the_host_at_each_durability(
    tmp_path: Path, level: str
) -> None:
    path, log = tmp_path / "x.arena", f"log:{tmp_path / 'log'}"
    interval = {"sync_interval_ms": 10} if level == "interval" else {}
    try:
        make(str(path), durability=level, **interval).close()
    except InvalidArgumentError:
        pytest.skip("the folder of temporary files lies in memory, where no arena is durable")

    def send_and_die() -> None:
        producer = Producer(str(path))
        producer.begin_transaction()
        producer.send(TOPIC, b"open", partition=0)
        os.kill(os.getpid(), signal.SIGKILL)

    with Arena.attach(path) as arena, sending(arena, log), Producer(arena) as producer:
        with producer.transaction():
            producer.send(TOPIC, b"before", partition=0)
        with contextlib.suppress(MistakeError), producer.transaction():
            producer.send(TOPIC, b"thrown away", partition=1)
            raise MistakeError
    child = Child(send_and_die)
    wait_until(child.has_ended, "the process has died")
    child.kill()
    boot_again(path)
    with Arena.attach(path) as arena:
        assert arena.native.transaction[1:] == ("aborting", "the host crashed")
        with sending(arena, log), Producer(arena) as producer, producer.transaction():
            producer.send(TOPIC, b"behind", partition=0)
    assert values_of(tmp_path / "log", TOPIC) == [b"before", b"behind"]


# --- looking


def test_stat_and_inspect_show_the_transaction(transactional: Arena) -> None:
    def shown() -> str:
        seen = Observer(transactional).observe()
        return "\n".join(drawn(stat_view(seen, Rates.between(seen, seen)), Screen(100)))

    def inspected() -> str:
        return str(CliRunner().invoke(main, ["inspect", transactional.name]).stdout)

    assert "none so far" in shown()
    producer = Producer(transactional)
    with sending(transactional, MemorySink(partitions=4)):
        producer.begin_transaction()
        assert re.search(r"1 is open, begun \S+ \S+ ago", shown())
        facts = overview(transactional)["transaction"]
        assert {**facts, "age_ns": facts["age_ns"] > 0} == {"number": 1, "state": "open", "why": "", "age_ns": True}
        assert "begun" in inspected()
        producer.commit_transaction()
    assert "the last one was committed" in shown()
    assert overview(transactional)["transaction"]["age_ns"] is None
    producer.begin_transaction()
    producer.send(TOPIC, b"1", partition=0)
    producer.abort_transaction()
    assert re.search(r"2 is aborting, begun .* ago: its coordinator aborted it", shown())
    producer.close(0)


def test_prometheus_and_the_page_show_the_transaction(transactional: Arena) -> None:
    collector = ArenaCollector(transactional)
    page_observer = PageObserver(transactional)

    def told() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return samples(exposition(collector))

    def state() -> list[str]:
        return [dict(labels)["state"] for name, labels in told() if name == "shmaccum_transaction_state"]

    assert (state(), told()["shmaccum_transaction_age_seconds", ()]) == (["none"], 0)
    producer = Producer(transactional)
    with sending(transactional, MemorySink(partitions=4)) as sender:
        producer.begin_transaction()
        assert (state(), told()["shmaccum_transaction_age_seconds", ()] > 0) == (["open"], True)
        page = page_observer.picture()["transaction"]
        assert (page["number"], page["state"], page["age_ns"] > 0) == (1, "open", True)
        producer.commit_transaction()
        with producer.transaction() as second:
            second.abort()
        with producer.transaction():
            pass
        times = sender._ask_metrics()
        steps = ("txn-init", "txn-begin", "txn-commit", "txn-abort")
        assert all(times[f"{step}-time-ns-total"] > 0 for step in steps)
    events = {dict(labels)["event"]: number for (name, labels), number in told().items() if "events" in name}
    assert (events["transactions_committed"], events["transactions_aborted"]) == (2, 1)
    assert not [event for event in events if event.startswith("nanoseconds")]
    assert page_observer.picture()["transaction"]["age_ns"] is None
    producer.close(0)


def test_a_plain_arena_reports_no_transaction(arena: Arena) -> None:
    told = samples(exposition(ArenaCollector(arena)))
    assert not [name for name, _ in told if name == "shmaccum_transaction_state"]
    assert PageObserver(arena).picture()["transaction"] is None


# --- rejections by the sender


@pytest.mark.parametrize(
    "options", [{"overflow": "log:DIR"}, {"dead_letter": "log:DIR"}, {"enable_idempotence": False}], ids=str
)
def test_options_that_do_not_fit_are_refused(transactional: Arena, tmp_path: Path, options: dict[str, Any]) -> None:
    given = {name: f"log:{tmp_path}" if value == "log:DIR" else value for name, value in options.items()}
    with (
        pytest.raises(InvalidArgumentError, match="does not fit"),
        sending(transactional, MemorySink(partitions=4), **given),
    ):
        pass


def test_a_sink_without_transactions_is_refused(transactional: Arena) -> None:
    sink = MemorySink(partitions=4)
    sink.transactions = None
    with pytest.raises(InvalidArgumentError, match="takes no transactions"), sending(transactional, sink):
        pass


def test_another_sink_does_not_get_the_rest_of_an_open_transaction(transactional: Arena, tmp_path: Path) -> None:
    with Producer(transactional) as producer:
        with sending(transactional, f"log:{tmp_path}"):
            producer.begin_transaction()
            producer.send(TOPIC, b"1", partition=0).get(WATCHDOG_S)
        with (
            pytest.raises(OtherSinkError, match="is open in another sink"),
            sending(transactional, MemorySink(partitions=4)),
        ):
            pass
        with sending(transactional, f"log:{tmp_path}"):
            producer.commit_transaction()
    assert values_of(tmp_path, TOPIC) == [b"1"]


@pytest.mark.parametrize("name", ["", "x" * 250, "\ud800"])
def test_an_impossible_id_is_refused(arena_name: str, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="transactional_id"):
        make(arena_name, transactional_id=name)
    assert not Arena.exists(arena_name)


@pytest.mark.parametrize("timeout", [0, -1, "soon", None])
def test_an_impossible_time_is_refused(arena_name: str, timeout: Any) -> None:
    """Kafka's protocol has 31 bits for it."""
    with pytest.raises(InvalidArgumentError, match="transaction_timeout_ms"):
        make(arena_name, transaction_timeout_ms=timeout)
    assert not Arena.exists(arena_name)
