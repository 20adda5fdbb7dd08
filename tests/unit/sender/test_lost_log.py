# SPDX-License-Identifier: Apache-2.0
"""Files of a log that are removed, moved, cut or replaced under a living sender. The sender acknowledges only what
readers see, reports the loss, and delivers the waiting records when the files exist again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import LogBusyError, LogLostError
from shmaccum.log.files import LogDirectory, LogReader, check_log
from shmaccum.log.files.lock_file import server_of_holder
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.small_files import read_topic_id
from shmaccum.sender import Sender
from shmaccum.sender.sinks.log import LogSink
from shmaccum.sender.sinks.sink import logs_of
from tests.support.processes import wait_until
from tests.support.segment_log import TOPIC as LOG_TOPIC
from tests.support.segment_log import log_files, make_batches, offsets, open_log, partition_folder
from tests.support.sender import TOPIC, Sending

FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
Open = Callable[..., Sending]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "place" / "log"


@pytest.fixture
def open_sending(arena: Arena, log: Path) -> Iterator[Open]:
    opened: list[Sending] = []

    def open_one(**options: Any) -> Sending:
        opened.append(Sending(arena, LogSink(str(log), **options), **FAST))
        return opened[-1]

    yield open_one
    for sending in opened:
        sending.close()


def active(log: Path, partition: int = 0) -> Path:
    """The active segment."""
    return max((log / f"{TOPIC}-{partition}").glob("*.log"))


def remove_log(log: Path) -> None:
    shutil.rmtree(log)


def move_log(log: Path) -> None:
    log.rename(log.with_name("moved"))


def move_parent(log: Path) -> None:
    log.parent.rename(log.parent.with_name("moved"))


def put_another_log(log: Path) -> None:
    move_log(log)
    with LogDirectory(log) as other:
        other.create_topic(TOPIC)
        other.partition(TOPIC, 0)


def remove_folder(log: Path) -> None:
    shutil.rmtree(log / f"{TOPIC}-0")


def move_folder(log: Path) -> None:
    (log / f"{TOPIC}-0").rename(log / "moved")


def remove_segment(log: Path) -> None:
    active(log).unlink()


def empty_segment(log: Path) -> None:
    os.truncate(active(log), 0)


def cut_segment(log: Path) -> None:
    os.truncate(active(log), os.path.getsize(active(log)) - 1)


LOSSES = [
    remove_log,
    move_log,
    move_parent,
    put_another_log,
    remove_folder,
    move_folder,
    remove_segment,
    empty_segment,
    cut_segment,
]


def read(path: Path, partition: int = 0) -> list[int]:
    """Return the values that a reader finds."""
    try:
        partition_reader = LogReader(path).partition(TOPIC, partition)
        return [int(record.value or b"-1") for record in partition_reader.records()]
    except (OSError, LookupError, ValueError):
        return []


def run_until(sending: Sending, is_true: Callable[[], bool], what: str) -> None:
    """Run rounds until the condition is true. The log checks its names once a second of the real clock."""

    def check() -> bool:
        sending.sleep(10)
        sending.run()
        return is_true()

    wait_until(check, what)


def is_delivered(sending: Sending, token: Token) -> bool:
    return sending.result(token) is BatchResult.SUCCEEDED


@pytest.mark.parametrize("sync", ["none", "batch"])
@pytest.mark.parametrize("way", ["native", "python"])
@pytest.mark.parametrize("lose", LOSSES)
def test_nothing_is_acknowledged_that_no_reader_sees(
    open_sending: Open, log: Path, lose: Callable[[Path], None], way: str, sync: str
) -> None:
    """Python code appends the first batch of a partition, or all of them if sync=batch."""
    sending = open_sending(sync=sync)
    before = [sending.append()[0] for _ in range(3)]
    sending.run(5)
    assert all(is_delivered(sending, token) for token in before)
    if way == "python":
        logs = logs_of(sending.sink)
        assert logs is not None
        logs.log_ends = {}
    lose(log)
    tokens = [sending.append()[0] for _ in range(3)]
    for _ in range(20):
        sending.sleep(10)
        sending.run()
    assert [sending.result(token) for token in tokens] == [None] * 3
    told = [sentence for sentence in sending.errors() if str(log) in sentence]
    assert told
    assert sending.sink.peer.outage is not None
    assert str(log) in sending.sink.peer.outage


@pytest.mark.parametrize("lose", [move_log, move_parent, move_folder])
def test_what_waits_is_delivered_when_the_folder_is_back(
    open_sending: Open, log: Path, lose: Callable[[Path], None]
) -> None:
    sending = open_sending()
    sending.append()
    sending.run(3)
    lose(log)
    token = sending.append()[0]
    run_until(sending, lambda: sending.sink.peer.outage is not None, "the outage")
    if lose is move_parent:
        log.parent.with_name("moved").rename(log.parent)
    elif lose is move_log:
        log.with_name("moved").rename(log)
    else:
        (log / "moved").rename(log / f"{TOPIC}-0")
    run_until(sending, lambda: is_delivered(sending, token), "the batch")
    assert read(log) == [0, 1]
    assert sending.sink.peer.outage is None
    assert check_log(log) == []


@pytest.mark.parametrize("lose", [remove_log, remove_folder])
def test_an_empty_folder_in_its_place_starts_again(open_sending: Open, log: Path, lose: Callable[[Path], None]) -> None:
    sending = open_sending()
    sending.append()
    sending.run(3)
    former_id = read_topic_id(str(log / f"{TOPIC}-0"))
    lose(log)
    token = sending.append()[0]
    run_until(sending, lambda: sending.sink.peer.outage is not None, "the outage")
    (log if lose is remove_log else log / f"{TOPIC}-0").mkdir()
    run_until(sending, lambda: is_delivered(sending, token), "the batch")
    assert read(log) == [1]
    assert read_topic_id(str(log / f"{TOPIC}-0")) not in (None, former_id)
    assert check_log(log) == []


@pytest.mark.parametrize("lose", [put_another_log, remove_segment, empty_segment, cut_segment, remove_folder])
def test_the_next_sender_continues_with_what_is_there(
    open_sending: Open, log: Path, arena: Arena, lose: Callable[[Path], None]
) -> None:
    sending = open_sending()
    sending.append()
    sending.run(3)
    lose(log)
    token = sending.append()[0]
    run_until(sending, lambda: sending.sink.peer.outage is not None, "the outage")
    sending.sender.close()
    with Sender(arena, LogSink(str(log)), **FAST) as following:
        following.open()
        for _ in range(5):
            sending.sleep(10)
            following.run_once()
    assert is_delivered(sending, token)
    assert read(log)[-1] == 1


def test_another_log_in_the_place_is_left_alone(open_sending: Open, log: Path) -> None:
    sending = open_sending()
    sending.append()
    sending.run(3)
    put_another_log(log)
    files = {path: path.read_bytes() for path in log.rglob("*") if path.is_file()}
    sending.append()
    run_until(sending, lambda: sending.sink.peer.outage is not None, "the outage")
    sending.sender.close()
    assert {path: path.read_bytes() for path in log.rglob("*") if path.is_file()} == files


def test_other_partitions_continue(open_sending: Open, log: Path) -> None:
    sending = open_sending(partitions=2)
    sending.append(0)
    sending.append(1)
    sending.run(3)
    remove_folder(log)
    lost, other = sending.append(0)[0], sending.append(1)[0]
    run_until(sending, lambda: is_delivered(sending, other), "the other partition")
    assert sending.result(lost) is None
    assert read(log, 1) == [1, 3]


def test_two_folders_that_change_places_are_noticed(open_sending: Open, log: Path) -> None:
    sending = open_sending(partitions=2)
    sending.append(0)
    sending.append(1)
    sending.append(1)
    sending.run(3)
    first, second, aside = log / f"{TOPIC}-0", log / f"{TOPIC}-1", log / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    tokens = [sending.append(0)[0], sending.append(1)[0]]
    run_until(sending, lambda: sending.sink.peer.outage is not None, "the outage")
    assert sending.result(tokens[1]) is None  # the folder has less than was written


def test_an_idle_log_reports_its_loss(open_sending: Open, log: Path) -> None:
    sending = open_sending()
    sending.append()
    sending.run(3)
    remove_log(log)
    run_until(sending, lambda: any(str(log) in sentence for sentence in sending.errors()), "the sentence")


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_lost_index_is_reported_and_created_again(open_sending: Open, log: Path, suffix: str) -> None:
    sending = open_sending()
    sending.append()
    sending.run(3)
    active(log).with_suffix(suffix).unlink()
    run_until(sending, lambda: any(suffix in sentence for sentence in sending.errors()), "the sentence")
    token = sending.append()[0]
    run_until(sending, lambda: is_delivered(sending, token), "the batch")
    assert read(log) == [0, 1]
    assert check_log(log) == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_lock_file_that_is_removed_lets_no_second_writer_in(log: Path, is_replaced: bool) -> None:
    with open_log(log) as first:
        (log / ".lock").unlink()
        if is_replaced:
            (log / ".lock").touch()
        with pytest.raises(LogBusyError):
            LogDirectory(log)
        first.check_paths()
        assert any(".lock" in sentence for sentence in first.findings)
        assert offsets(first.partition(LOG_TOPIC, 0).append(make_batches(1))) == [0]
        with pytest.raises(LogBusyError):
            LogDirectory(log)


def test_a_batch_that_came_before_is_not_acknowledged_when_its_file_is_gone(log: Path) -> None:
    batches = make_batches(2)
    with open_log(log) as directory:
        partition = directory.partition(LOG_TOPIC, 0)
        assert offsets(partition.append(batches)) == [0, 3]
        log_files(log)[0].unlink()
        assert all(isinstance(outcome, Rejection) for outcome in partition.append(batches))


@pytest.mark.parametrize("is_there_again", [False, True])
def test_nothing_is_written_by_names_into_a_folder_that_was_replaced(log: Path, is_there_again: bool) -> None:
    """Rolls, snapshots, retention and deletions of records use file names."""
    with open_log(log, segment_bytes=1000) as directory:
        partition = directory.partition(LOG_TOPIC, 0)
        partition.append(make_batches(2))
        partition_folder(log).rename(log / "moved")
        if is_there_again:
            partition_folder(log).mkdir()
        for action in (partition.roll, partition.retain, partition.sync, lambda: partition.delete_before(3)):
            with pytest.raises(LogLostError):
                action()
        partition.close()
        assert not is_there_again or os.listdir(partition_folder(log)) == []


def test_a_new_log_in_an_empty_folder_has_other_topics_and_the_same_server(log: Path) -> None:
    with open_log(log) as directory:
        directory.publish_server("localhost:9092")
        directory.partition(LOG_TOPIC, 0)
        former_id = read_topic_id(str(partition_folder(log)))
        shutil.rmtree(log)
        log.mkdir()
        directory.check_paths()

        def is_there() -> bool:
            directory.check_paths()
            return directory.lost is None

        wait_until(is_there, "the new log")
        assert server_of_holder(str(log / ".lock")) == "localhost:9092"
        assert directory.topics() == []
        directory.create_topic(LOG_TOPIC)
        directory.partition(LOG_TOPIC, 0)
        assert read_topic_id(str(partition_folder(log))) not in (None, former_id)
