# SPDX-License-Identifier: Apache-2.0
"""Transactions of a log directory: after deaths, delays and repetitions, batches of winners are in the log once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import (
    InvalidArgumentError,
    LogBusyError,
    LogError,
    LogLostError,
    NotALogError,
    TransactionNotAppliedError,
    TransactionOverError,
)
from shmaccum.log.files import (
    LogDirectory,
    LogReader,
    StagedAttempt,
    TransactionId,
    Winner,
    check_log,
    transaction_applier,
    transaction_files,
    transactions,
)
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.small_files import properties
from shmaccum.log.files.transaction_applier import STAGING_KEPT_S, RestampedBatch, remove_tree, sweep
from shmaccum.log.files.transaction_files import Decision, TransactionFiles
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from tests.support.processes import WATCHDOG_S, Child, wait_until
from tests.support.segment_log import START_MS, TOPIC, make_batch
from tests.support.system_calls import SOME_OR_EACH, Interruption, some_of_all

pytestmark = pytest.mark.usefixtures("recorded_syncs")

SEVENTH = TransactionId("query", 7)
ONLY = TransactionId("job")
RECORDS_PER_BATCH = 3


def stage(
    path: Path, transaction: TransactionId, word: str, *, batch_count: int = 2, partitions: int = 2, **options: Any
) -> Winner:
    """Stage an attempt with *batch_count* batches in each partition. Each record has `word` and a number."""
    with StagedAttempt(path, transaction, word) as attempt:
        with LogDirectory(attempt.log, LogSinkOptions(partitions=partitions, **options)) as log:
            log.create_topic(TOPIC)
            numbers = itertools.count()
            for partition, index in itertools.product(range(partitions), range(batch_count)):
                values = [b"%s %d" % (word.encode(), next(numbers)) for _ in range(RECORDS_PER_BATCH)]
                producer = (1, 0, index * RECORDS_PER_BATCH)
                log.partition(TOPIC, partition).append(
                    [make_batch(values, timestamp_ms=START_MS + index, producer=producer)]
                )
        attempt.keep(is_synced=True)
    return Winner(attempt.name, batch_count * partitions * RECORDS_PER_BATCH)


def words(path: Path) -> Counter[str]:
    """Return the number of records of each attempt in the log, and check that none is repeated."""
    with contextlib.suppress(LogError):
        reader = LogReader(path)
        values = [
            (record.value or b"").decode()
            for place in reader.topic_partitions()
            for record in reader.partition(*place).records()
        ]
        assert len(set(values)) == len(values)
        return Counter(value.partition(" ")[0] for value in values)
    return Counter()


def check_clean(path: Path, overs: set[str]) -> None:
    """Check that the log is sound, and that only the files of finished transactions are left."""
    assert check_log(path) == []
    assert os.listdir(path / ".staging") == []
    assert set(os.listdir(path / ".transactions")) == {f"{series}.over" for series in overs}


# --- the plain case


def test_records_of_winners_are_in_the_log_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "log"
    winner, _loser, other = (stage(log, SEVENTH, word) for word in ("a", "b", "c"))
    assert words(log) == {}
    transactions.conclude(log, SEVENTH, [winner, other])
    assert words(log) == {"a": 12, "c": 12}
    check_clean(log, {"query"})


def test_records_come_in_the_order_of_the_winners_with_one_producer_and_all_else_as_it_was(tmp_path: Path) -> None:
    winners = [stage(tmp_path, SEVENTH, word) for word in ("b", "a")]
    transactions.conclude(tmp_path, SEVENTH, winners)
    batches = list(LogReader(tmp_path).partition(TOPIC, 1).batches())
    assert [batch.records()[0].value for batch in batches] == [b"b 6", b"b 9", b"a 6", b"a 9"]
    assert [batch.records()[2].timestamp_ms for batch in batches] == [START_MS + n for n in (2, 3, 2, 3)]
    assert [batch.header.base_sequence for batch in batches] == [0, 3, 6, 9]
    assert {batch.producer_id for batch in batches} == {0}
    assert all(batch.crc_problem() is None for batch in batches)


def test_a_transaction_that_is_concluded_again_stays_as_it_is(tmp_path: Path) -> None:
    first, second = stage(tmp_path, SEVENTH, "first"), stage(tmp_path, SEVENTH, "second")
    transactions.conclude(tmp_path, SEVENTH, [first])
    for winners in ([first], [second], []):
        transactions.conclude(tmp_path, SEVENTH, winners)
    assert words(tmp_path) == {"first": 12}
    transactions.conclude(tmp_path, TransactionId("query", 6), [])  # a number includes the previous ones
    transactions.conclude(tmp_path, TransactionId("query", 8), [stage(tmp_path, TransactionId("query", 8), "third")])
    assert words(tmp_path) == {"first": 12, "third": 12}
    check_clean(tmp_path, {"query"})


def test_what_earlier_numbers_left_is_cleared(tmp_path: Path) -> None:
    stage(tmp_path, TransactionId("query", 5), "old")
    stage(tmp_path, TransactionId("query", 8), "new")
    stage(tmp_path, ONLY, "another")
    transactions.conclude(tmp_path, SEVENTH, [])
    left = {name.partition("-")[0] for name in os.listdir(tmp_path / ".staging")}
    assert left == {"query.8.new", "job.only.another"}


def test_topics_are_made_with_as_many_partitions_as_were_staged(tmp_path: Path) -> None:
    winner = stage(tmp_path, ONLY, "a", partitions=5, batch_count=0)
    transactions.conclude(tmp_path, ONLY, [winner])
    assert LogReader(tmp_path).partitions(TOPIC) == [0, 1, 2, 3, 4]


def test_producers_of_transactions_are_forgotten(tmp_path: Path) -> None:
    for number in range(5):
        transaction = TransactionId("query", number)
        transactions.conclude(tmp_path, transaction, [stage(tmp_path, transaction, f"w{number}")])
    with LogDirectory(tmp_path) as log:
        assert log.partition(TOPIC, 0).producers.producer_ids() == []
        assert log.new_producer_id() == 5


def test_a_log_with_segments_and_syncs_of_its_own(tmp_path: Path) -> None:
    winner = stage(tmp_path, SEVENTH, "a", batch_count=600, sync="batch")
    size = next(LogReader(next((tmp_path / ".staging").iterdir()) / "log").partition(TOPIC, 0).batches()).size
    options = LogSinkOptions(segment_bytes=100 * size, sync="interval", sync_interval_ms=10_000)
    transactions.conclude(tmp_path, SEVENTH, [winner], options)
    assert words(tmp_path) == {"a": 3600}
    assert len(list((tmp_path / f"{TOPIC}-0").glob("*.log"))) > 5


# --- refusals


@pytest.mark.parametrize("transaction", [TransactionId("a.b"), TransactionId(""), TransactionId("a", -1)])
def test_names_that_cannot_be_files_are_refused(tmp_path: Path, transaction: TransactionId) -> None:
    with pytest.raises(InvalidArgumentError):
        StagedAttempt(tmp_path / "log", transaction, "a")
    with pytest.raises(InvalidArgumentError):
        transactions.conclude(tmp_path / "log", transaction, [])
    assert not (tmp_path / "log").exists()


def test_nothing_is_staged_where_no_log_can_be(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotALogError, match=r"has other files \(notes.txt\)"):
        StagedAttempt(tmp_path, SEVENTH, "a")
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_staging_for_kafka_is_no_log_and_a_log_is_no_staging_for_kafka(tmp_path: Path, arena: Arena) -> None:
    staging, log = tmp_path / "staging", tmp_path / "log"
    for _ in range(2):
        StagedAttempt(staging, SEVENTH, "a", is_for_kafka=True).keep(is_synced=False)
    transactions.decide(TransactionFiles(str(staging)), SEVENTH, Decision())
    before = sorted(os.listdir(staging))
    sender = Sender(arena, f"log:{staging}")
    for refused in (sender.open, lambda: LogDirectory(staging), lambda: stage(staging, ONLY, "b")):
        with pytest.raises(NotALogError, match="is the stagingPath of a query that writes to Kafka"):
            refused()
    assert sorted(os.listdir(staging)) == before
    LogDirectory(log).close()
    with pytest.raises(NotALogError, match="is a log, and cannot be the stagingPath"):
        StagedAttempt(log, SEVENTH, "a", is_for_kafka=True)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotALogError, match=r"has other files \(log, notes.txt, staging\)"):
        StagedAttempt(tmp_path, SEVENTH, "a", is_for_kafka=True)


@pytest.mark.parametrize("injury", ["gone", "short", "empty"])
def test_a_winner_that_is_not_whole_decides_nothing(tmp_path: Path, injury: str) -> None:
    winner = stage(tmp_path, SEVENTH, "a")
    (log,) = (tmp_path / ".staging").glob(f"*/log/{TOPIC}-0/*.log")
    if injury == "gone":
        shutil.rmtree(tmp_path / ".staging")
    else:
        os.truncate(log, 0 if injury == "empty" else log.stat().st_size // 2)
    with pytest.raises(TransactionNotAppliedError, match=winner.attempt):
        transactions.conclude(tmp_path, SEVENTH, [winner])
    again = stage(tmp_path, SEVENTH, "b")
    transactions.conclude(tmp_path, SEVENTH, [again])
    assert words(tmp_path) == {"b": 12}


def test_winners_with_too_many_records_of_a_partition_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_applier, "SEQUENCE_MASK", 2 * RECORDS_PER_BATCH)
    winners = [stage(tmp_path, SEVENTH, word, batch_count=1) for word in ("a", "b", "c")]
    with pytest.raises(TransactionNotAppliedError, match=r"6 records of a partition, but this one has 9 of flights-0"):
        transactions.conclude(tmp_path, SEVENTH, winners)
    transactions.conclude(tmp_path, SEVENTH, winners[:2])
    assert words(tmp_path) == {"a": 6, "b": 6}


def test_a_damaged_file_is_named_and_affects_no_other(tmp_path: Path) -> None:
    winner = stage(tmp_path, SEVENTH, "a")
    TransactionFiles(str(tmp_path)).decide(SEVENTH, Decision((winner,)))
    decided = tmp_path / ".transactions" / "query.7.decided"
    content = decided.read_bytes()
    decided.write_bytes(b"{}")
    with LogDirectory(tmp_path) as log:
        assert any("query.7.applying is damaged" in finding for finding in log.findings)
    transactions.conclude(tmp_path, ONLY, [stage(tmp_path, ONLY, "other")])
    with pytest.raises(LogError, match=r"query.7.applying is damaged"):
        transactions.conclude(tmp_path, SEVENTH, [winner])
    (tmp_path / ".transactions" / "query.7.applying").write_bytes(content)
    transactions.conclude(tmp_path, SEVENTH, [winner])
    assert words(tmp_path) == {"other": 12, "a": 12}


# --- abort


def test_abort_before_a_decision_leaves_nothing(tmp_path: Path) -> None:
    stage(tmp_path, SEVENTH, "a")
    stage(tmp_path, TransactionId("query", 8), "b")
    transactions.abort(tmp_path, SEVENTH)
    assert [folder.transaction.number for folder in TransactionFiles(str(tmp_path)).staged()] == [8]
    transactions.abort(tmp_path, TransactionId("query", 8))
    assert os.listdir(tmp_path / ".staging") == []
    transactions.conclude(tmp_path, SEVENTH, [stage(tmp_path, SEVENTH, "c")])  # a series may be repeated
    assert words(tmp_path) == {"c": 12}


def test_abort_of_a_single_transaction_is_permanent(tmp_path: Path) -> None:
    winner = stage(tmp_path, ONLY, "a")
    transactions.abort(tmp_path, ONLY)
    transactions.abort(tmp_path, ONLY)
    with pytest.raises(TransactionOverError, match="was aborted") as caught:
        StagedAttempt(tmp_path, ONLY, "late")
    assert caught.value.is_aborted
    with pytest.raises(TransactionOverError, match="was aborted"):
        transactions.conclude(tmp_path, ONLY, [winner])
    assert words(tmp_path) == {}
    check_clean(tmp_path, {"job"})


@pytest.mark.parametrize("transaction", [SEVENTH, ONLY])
def test_abort_after_a_decision_does_nothing(tmp_path: Path, transaction: TransactionId) -> None:
    winner = stage(tmp_path, transaction, "a")
    files = TransactionFiles(str(tmp_path))
    assert files.decide(transaction, Decision((winner,)))
    transactions.abort(tmp_path, transaction)
    transactions.conclude(tmp_path, transaction, [])
    transactions.abort(tmp_path, transaction)
    assert words(tmp_path) == {"a": 12}


def test_abort_of_what_was_never_begun_makes_no_log(tmp_path: Path) -> None:
    transactions.abort(tmp_path / "log", ONLY)
    assert not (tmp_path / "log").exists()


# --- late attempts


def test_a_zombie_can_write_nothing_any_more(tmp_path: Path) -> None:
    """The zombie has open files and creates others."""
    winner = stage(tmp_path, SEVENTH, "winner")
    zombie = StagedAttempt(tmp_path, SEVENTH, "zombie")
    log = LogDirectory(zombie.log, LogSinkOptions(partitions=2, segment_bytes=300))
    log.create_topic(TOPIC)
    log.partition(TOPIC, 0).append([make_batch([b"zombie 0"])])
    transactions.conclude(tmp_path, SEVENTH, [winner])
    with pytest.raises(TransactionOverError, match="is over"):
        zombie.check()
    (outcome,) = log.partition(TOPIC, 0).append([make_batch([b"zombie 1"])])
    assert isinstance(outcome, Rejection)
    for partition in (0, 1):
        with pytest.raises(LogLostError, match="removed"):
            log.partition(TOPIC, partition)
    log.abandon()
    with pytest.raises(TransactionOverError):
        zombie.keep(is_synced=False)
    zombie.discard()
    assert words(tmp_path) == {"winner": 12}
    check_clean(tmp_path, {"query"})


def test_an_attempt_at_what_is_over_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    transactions.conclude(tmp_path, SEVENTH, [stage(tmp_path, SEVENTH, "a")])
    with pytest.raises(TransactionOverError, match=r"query\.7 is over") as caught:
        StagedAttempt(tmp_path, SEVENTH, "late")
    assert not caught.value.is_aborted
    check_clean(tmp_path, {"query"})


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with StagedAttempt(tmp_path, SEVENTH, "a") as attempt, LogDirectory(attempt.log) as log:
            log.create_topic(TOPIC)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(tmp_path / ".staging") == []


def test_an_attempt_without_a_decision_for_a_week_is_deleted_unless_it_is_written(tmp_path: Path) -> None:
    stage(tmp_path, SEVENTH, "old")
    decided = stage(tmp_path, ONLY, "decided")
    alive = StagedAttempt(tmp_path, SEVENTH, "alive")
    with LogDirectory(alive.log):
        long_ago_s = time.time() - STAGING_KEPT_S - 60
        for folder in (tmp_path / ".staging").iterdir():
            os.utime(folder, (long_ago_s, long_ago_s))
        TransactionFiles(str(tmp_path)).decide(ONLY, Decision((decided,)))
        LogDirectory(tmp_path).close()
    assert words(tmp_path) == {"decided": 12}
    assert os.listdir(tmp_path / ".staging") == [f"query.7.{alive.name}"]
    alive.discard()
    over = tmp_path / ".transactions" / "job.over"
    os.utime(over, (0, 0))
    LogDirectory(tmp_path).close()
    assert not over.exists()


# --- other writers


def test_a_sender_that_writes_the_directory_applies_what_is_decided(tmp_path: Path, arena: Arena) -> None:
    log = tmp_path / "log"
    sender = Sender(arena, f"log:{log}", linger_ms=1)
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        with Producer(arena) as producer:
            for number in range(50):
                producer.send(TOPIC, b"sender %d" % number).get(WATCHDOG_S)
                if number % 10 == 0:
                    transaction = TransactionId("query", number)
                    winner = stage(log, transaction, f"w{number}", partitions=1)
                    transactions.conclude(log, transaction, [winner], timeout_s=WATCHDOG_S)
                    assert words(log)[f"w{number}"] == 6
    finally:
        sender.stop()
        thread.join(WATCHDOG_S)
    assert words(log) == {"sender": 50, **{f"w{number}": 6 for number in range(0, 50, 10)}}
    check_clean(log, {"query"})


def test_a_writer_that_does_nothing_makes_it_give_up_and_nothing_was_written(tmp_path: Path) -> None:
    winner = stage(tmp_path, SEVENTH, "a")
    with LogDirectory(tmp_path):
        with pytest.raises(LogBusyError, match="nothing was written"):
            transactions.conclude(tmp_path, SEVENTH, [winner], timeout_s=0.05)
        assert os.listdir(tmp_path / ".transactions") == []
    LogDirectory(tmp_path).close()
    assert words(tmp_path) == {}
    transactions.conclude(tmp_path, SEVENTH, [winner])
    assert words(tmp_path) == {"a": 12}


def test_what_another_has_begun_is_not_taken_back(tmp_path: Path) -> None:
    winner = stage(tmp_path, SEVENTH, "a")
    files = TransactionFiles(str(tmp_path))
    with LogDirectory(tmp_path):
        files.decide(SEVENTH, Decision((winner,)))
        files.take(SEVENTH)
        with pytest.raises(LogBusyError, match="do not write the records again"):
            transactions.conclude(tmp_path, SEVENTH, [winner], timeout_s=0)
    LogDirectory(tmp_path).close()
    assert words(tmp_path) == {"a": 12}
    check_clean(tmp_path, {"query"})


def test_two_series_into_one_directory(tmp_path: Path) -> None:
    count = 15

    def run(series: str) -> None:
        for number in range(count):
            transaction = TransactionId(series, number)
            transactions.conclude(tmp_path, transaction, [stage(tmp_path, transaction, f"{series}{number}")])

    children = [Child(run, series) for series in ("left", "right", "third")]
    for child in children:
        child.join()
    assert words(tmp_path) == {f"{s}{n}": 12 for s in ("left", "right", "third") for n in range(count)}
    check_clean(tmp_path, {"left", "right", "third"})


def test_one_of_many_concurrent_decisions_counts(tmp_path: Path) -> None:
    winners = [stage(tmp_path, SEVENTH, f"w{number}") for number in range(6)]
    children = [Child(transactions.conclude, tmp_path, SEVENTH, [winner]) for winner in winners]
    for child in children:
        child.join()
    assert list(words(tmp_path).values()) == [12]
    check_clean(tmp_path, {"query"})


def test_a_transaction_without_a_decision_is_not_taken(tmp_path: Path) -> None:
    stage(tmp_path, SEVENTH, "a")
    assert TransactionFiles(str(tmp_path)).take(SEVENTH) is None


def test_a_rejection_of_the_disk_is_raised_and_the_next_call_makes_it_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    winner = stage(tmp_path, SEVENTH, "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", reject)
        with pytest.raises(LogError, match="No space left"):
            transactions.conclude(tmp_path, SEVENTH, [winner])
    transactions.conclude(tmp_path, SEVENTH, [winner])
    assert words(tmp_path) == {"a": 12}
    check_clean(tmp_path, {"query"})


@pytest.mark.parametrize(
    "delete",
    [lambda path: LogDirectory(path).close(), lambda path: sweep(TransactionFiles(str(path)))],
    ids=["open", "sweep"],
)
def test_a_decision_that_remains_after_its_transaction_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delete: Callable[[Path], object]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    winner = stage(tmp_path, SEVENTH, "a")
    with monkeypatch.context() as patch:
        patch.setattr(TransactionFiles, "end", fail)
        with contextlib.suppress(OSError, LogError):
            transactions.conclude(tmp_path, SEVENTH, [winner])
    assert TransactionFiles(str(tmp_path)).is_unfinished(SEVENTH)
    delete(tmp_path)
    assert words(tmp_path) == {"a": 12}
    check_clean(tmp_path, {"query"})


# --- death and failure at every system call


def prepared(path: Path, transaction: TransactionId) -> tuple[list[Winner], list[Winner]]:
    """Stage two attempts. The first process names the first one as the winner, the next process the other."""
    first = stage(path, transaction, "first", batch_count=1)
    return [first], [stage(path, transaction, "second", batch_count=2, partitions=1)]


def check_one_of_them(path: Path) -> None:
    """Check that the log has exactly one of the winners, complete."""
    found = words(path)
    found.pop("between", None)
    assert found in ({"first": 6}, {"second": 6})


def write_between(path: Path) -> None:
    """Write to the directory as another process after the death."""
    with LogDirectory(path, LogSinkOptions(partitions=2)) as log:
        log.create_topic(TOPIC)
        log.partition(TOPIC, 0).append([make_batch([b"between 0"])])


@SOME_OR_EACH
@pytest.mark.parametrize(("transaction", "is_written_between"), [(SEVENTH, True), (ONLY, False)])
def test_a_death_at_any_system_call_is_made_good_by_the_next_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transaction: TransactionId,
    stride: int,
    *,
    is_written_between: bool,
) -> None:
    image = tmp_path / "image"
    first, second = prepared(image, transaction)

    def conclude_and_die(path: Path, number: int) -> bool:
        death = Interruption(number, lambda: os._exit(0))
        death.install(monkeypatch)
        transactions.conclude(path, transaction, first)
        return death.has_acted

    for number in some_of_all(stride):
        path = tmp_path / f"death-{number}"
        shutil.copytree(image, path)
        survived = Child(conclude_and_die, path, number).join() == "False"
        assert set(words(path)) <= {"first"}
        is_decided = TransactionFiles(str(path)).is_unfinished(transaction) or bool(words(path))
        if is_written_between:
            write_between(path)
        transactions.conclude(path, transaction, second)
        assert ("first" in words(path)) == is_decided
        check_one_of_them(path)
        check_clean(path, {transaction.series})
        shutil.rmtree(path)
        if survived:
            break
    assert number > 100


@SOME_OR_EACH
def test_a_failure_of_any_system_call_is_made_good_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    image = tmp_path / "image"
    first, second = prepared(image, SEVENTH)
    errors = itertools.cycle([errno.ENOSPC, errno.EIO])

    def fail() -> None:
        error = next(errors)
        raise OSError(error, os.strerror(error))

    for number in some_of_all(stride):
        path = tmp_path / f"failure-{number}"
        shutil.copytree(image, path)
        with monkeypatch.context() as patch:
            failure = Interruption(number, fail)
            failure.install(patch)
            with contextlib.suppress(LogError, OSError):
                transactions.conclude(path, SEVENTH, first)
        write_between(path)
        transactions.conclude(path, SEVENTH, second)
        check_one_of_them(path)
        LogDirectory(path).close()
        check_clean(path, {"query"})
        shutil.rmtree(path)
        if not failure.has_acted:
            break
    assert number > 100


def test_killed_at_any_moment_a_series_is_in_the_log_once(tmp_path: Path, seeded: Callable[[], Random]) -> None:
    """Repeat the last number, as a query does that restarts from its checkpoint."""
    random = seeded()
    log = tmp_path / "log"

    def live(first: int) -> None:
        for number in itertools.count(first):
            run_number(log, number)
            os.write(report, b"%d\n" % number)

    report = os.open(tmp_path / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(10):
        kill_after_one(live, lambda: told(tmp_path), random)
        found = words(log)
        assert all(found[f"n{number}_{task}"] == 12 for number in range(told(tmp_path) + 1) for task in range(2))
    os.close(report)
    last = told(tmp_path) + 1
    run_number(log, last)
    assert words(log) == {f"n{number}_{task}": 12 for number in range(last + 1) for task in range(2)}
    check_clean(log, {"query"})


def run_number(log: Path, number: int) -> None:
    """Stage two tasks and conclude. The transaction may be over already."""
    transaction = TransactionId("query", number)
    try:
        winners = [stage(log, transaction, f"n{number}_{task}") for task in range(2)]
    except TransactionOverError:
        winners = []
    transactions.conclude(log, transaction, winners)


def told(path: Path) -> int:
    """Return the last number that a child concluded."""
    return int(([b"-1", *(path / "told").read_bytes().split()])[-1])


def kill_after_one(live: Callable[[int], None], told: Callable[[], int], random: Random) -> None:
    """Kills a child during a transaction, after it has concluded at least one."""
    known = told()
    child = Child(live, known + 1)
    wait_until(lambda: told() > known or child.has_ended(), "one was concluded")
    time.sleep(random.random() * 0.03)  # the moment of death, not a wait
    child.kill()


def test_a_folder_that_cannot_be_deleted_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "staged"
    folder.mkdir()

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        read_only.setattr(os, "rmdir", refuse)
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            remove_tree(str(folder))
    remove_tree(str(folder))
    assert not folder.exists()


# --- crash of the host


def forget_boot(path: Path) -> None:
    (path / ".lock").write_bytes(properties({"pid": "1", "boot.id": "another"}))


def half_applied(path: Path) -> Winner:
    """Apply one of the two partitions of a transaction."""
    LogDirectory(path).close()
    winner = stage(path, SEVENTH, "a")
    files = TransactionFiles(str(path))
    files.decide(SEVENTH, Decision((winner,)))
    staged = LogReader(files.staged_log(SEVENTH, winner.attempt)).partition(TOPIC, 0).batches()
    held = path.parent / "held"
    shutil.move(path / ".transactions", held)
    with LogDirectory(path, LogSinkOptions(partitions=2)) as log:
        log.create_topic(TOPIC)
        producer_id = log.new_producer_id()
        log.partition(TOPIC, 0).append([RestampedBatch(next(staged), producer_id, 0)])
    shutil.move(held, path / ".transactions")
    decision = files.take(SEVENTH)
    assert decision is not None
    files.begin(SEVENTH, decision, producer_id)
    return winner


def test_what_was_applied_in_part_is_gone_on_with(tmp_path: Path) -> None:
    half_applied(tmp_path / "log")
    write_between(tmp_path / "log")
    assert words(tmp_path / "log") == {"a": 12, "between": 1}
    check_clean(tmp_path / "log", {"query"})


def test_a_decision_whose_staging_went_in_a_crash_of_the_host_is_dropped(tmp_path: Path) -> None:
    LogDirectory(tmp_path).close()
    winner = stage(tmp_path, SEVENTH, "a")
    TransactionFiles(str(tmp_path)).decide(SEVENTH, Decision((winner,)))
    (log,) = (tmp_path / ".staging").glob(f"*/log/{TOPIC}-0/*.log")
    content = bytearray(log.read_bytes())
    content[70] ^= 1  # damages the first of two batches
    log.write_bytes(content)
    forget_boot(tmp_path)
    with LogDirectory(tmp_path) as directory:
        (finding,) = directory.findings
    assert "query.7 was dropped, nothing of it was applied" in finding
    transactions.conclude(tmp_path, SEVENTH, [stage(tmp_path, SEVENTH, "again")])
    assert words(tmp_path) == {"again": 12}
    check_clean(tmp_path, {"query"})


def test_one_that_is_in_the_log_in_part_is_kept_and_delays_only_retention(tmp_path: Path) -> None:
    log = tmp_path / "log"
    winner = half_applied(log)
    staged = next((log / ".staging").iterdir())
    shutil.move(staged, tmp_path / "lost")
    forget_boot(log)
    with LogDirectory(log, LogSinkOptions(retention_ms=0, partitions=2)) as directory:
        assert any("query.7 is decided and could not be applied" in finding for finding in directory.findings)
        assert directory.retain() == 0
    with pytest.raises(LogError, match="could not be applied"):
        transactions.conclude(log, SEVENTH, [])
    transactions.conclude(log, ONLY, [stage(log, ONLY, "other")])
    assert words(log) == {"a": 3, "other": 12}
    shutil.move(tmp_path / "lost", staged)
    transactions.conclude(log, SEVENTH, [winner])
    assert words(log) == {"a": 12, "other": 12}
    with LogDirectory(log, LogSinkOptions(retention_ms=0, partitions=2)) as directory:
        assert directory.retain() > 0
    check_clean(log, {"query", "job"})


def test_a_kill_leaves_the_right_to_write_to_the_next_one(tmp_path: Path) -> None:
    """Make a decision while a writer runs that is killed before it reads the decision."""
    winner = stage(tmp_path, SEVENTH, "a")
    reader, writer = os.pipe()

    def write() -> None:
        with LogDirectory(tmp_path):
            os.write(writer, b".")
            signal.pause()

    child = Child(write)
    os.read(reader, 1)
    thread = threading.Thread(target=transactions.conclude, args=(tmp_path, SEVENTH, [winner]))
    thread.start()
    wait_until(lambda: TransactionFiles(str(tmp_path)).is_unfinished(SEVENTH), "it is decided")
    child.kill()
    thread.join(WATCHDOG_S)
    assert words(tmp_path) == {"a": 12}


def test_decided_transactions_are_sorted_by_series_and_number(tmp_path: Path) -> None:
    files = TransactionFiles(str(tmp_path))
    Path(files.folder).mkdir(parents=True, exist_ok=True)
    decided = [TransactionId("a"), *(TransactionId("a", number) for number in (0, 2, 10)), TransactionId("b", 1)]
    for each in reversed(decided):
        Path(files._path(each, transaction_files.DECIDED)).touch()
    assert files.unfinished() == decided
