# SPDX-License-Identifier: Apache-2.0
"""Failed batches in the dead letter log: its content and times, a death, and a full disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.cli import main
from shmaccum.exceptions import InvalidArgumentError, LogBusyError, NotALogError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.log_batch import LogRecord
from shmaccum.log.files.partition_log import PartitionLog
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.reader import LogReader
from shmaccum.observe.health import troubles
from shmaccum.observe.observation import Observer
from shmaccum.sender import Sender
from shmaccum.sender.duties import dead_letters
from shmaccum.sender.duties.dead_letters import PREFIX
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.sender import TOPIC, Sending, refuse, retry, too_large

FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 10, "retry_backoff_max_ms": 10}
TIMEOUT_MS = 30_000
EXPIRING: dict[str, Any] = {**FAST, "delivery_timeout_ms": TIMEOUT_MS, "request_timeout_ms": 1000}
PAUSE_MS = 20
DISK_PAUSE_MS = 1100
Open = Callable[..., Sending]


@pytest.fixture
def open_sending(arena: Arena, tmp_path: Path) -> Iterator[Open]:
    opened: list[Sending] = []

    def open_one(**options: Any) -> Sending:
        if opened:
            opened[-1].sender.close()
            opened[-1].producer.close()
        opened.append(Sending(arena, **{**FAST, "dead_letter": f"log:{tmp_path}/failed", **options}))
        return opened[-1]

    yield open_one
    opened[-1].close()


def letters(tmp_path: Path, topic: str = TOPIC, partition: int = 0) -> list[LogRecord]:
    reader = LogReader(tmp_path / "failed")
    is_there = (topic, partition) in reader.topic_partitions()
    return list(reader.partition(topic, partition).records()) if is_there else []


def values(tmp_path: Path, partition: int = 0) -> list[int]:
    return [int(record.value or b"-1") for record in letters(tmp_path, partition=partition)]


def facts(record: LogRecord) -> dict[str, str]:
    return {key.removeprefix(PREFIX): (value or b"").decode() for key, value in record.headers if PREFIX in key}


# --- the records of the log


def test_what_the_sink_refused_is_a_dead_letter_before_its_result_is_set(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending()
    begun_ms = int(time.time() * 1000)
    sending.scripted.script = [refuse]
    token, _ = sending.append(count=2)
    sending.append()
    sending.run(3)
    assert sending.completion(token)[:2] == (BatchResult.FAILED, 87)
    assert values(tmp_path) == [0, 1]
    assert sending.values() == [2]
    told = facts(letters(tmp_path)[1])
    assert (told["topic"], told["partition"], told["code"], told["result"]) == (TOPIC, "0", "87", "failed")
    assert (told["message"], told["attempts"]) == ("bad record", "1")
    assert begun_ms <= int(told["time"]) <= time.time() * 1000
    assert sending.sender.metrics()["dead-letter-record-total"] == 2


def test_a_dead_letter_has_the_key_the_timestamp_and_the_headers_of_its_record(
    open_sending: Open, tmp_path: Path
) -> None:
    sending = open_sending()
    sending.scripted.script = [refuse]
    sending.producer.append(TOPIC, 3, 4711, b"key", None, [("own", b"1"), ("own", None)])
    sending.producer.append(TOPIC, 3, 4000, None, b"", [])
    sending.producer.flush_begin()
    sending.run(2)
    first, second = letters(tmp_path, partition=3)
    assert (first.timestamp_ms, first.key, first.value) == (4711, b"key", None)
    assert first.headers[:2] == (("own", b"1"), ("own", None))
    assert (second.timestamp_ms, second.key, second.value) == (4000, None, b"")


def test_what_expires_in_the_queue_is_a_dead_letter(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(**EXPIRING)
    sending.scripted.plan_filter = lambda _: False
    tokens = sending.append() + sending.append() + sending.append(partition=5)
    sending.run()
    sending.sleep(TIMEOUT_MS)
    sending.run(2)
    assert [sending.result(token) for token in tokens] == [BatchResult.EXPIRED] * 3
    assert (values(tmp_path), values(tmp_path, 5)) == ([0, 1], [2])
    told = facts(letters(tmp_path)[0])
    assert (told["result"], told["attempts"]) == ("expired", "0")
    assert sending.arena.native.state_counts()["FREE"] == sending.arena.native.geometry["slot_count"]


def test_a_dead_letter_has_the_reason_of_the_last_failure(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(**EXPIRING)
    sending.scripted.script = [retry]
    sending.append()
    sending.run(2)
    sending.scripted.plan_filter = lambda _: False
    sending.sleep(TIMEOUT_MS)
    sending.run(2)
    assert facts(letters(tmp_path)[0])["message"] == "not now"


def test_what_expires_in_flight_is_a_dead_letter_unless_it_arrived(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(**EXPIRING)
    sending.scripted.is_held = True
    tokens = sending.append(partition=0) + sending.append(partition=1)
    sending.run()
    sending.sleep(TIMEOUT_MS)
    sending.run(2)
    assert [sending.result(token) for token in tokens] == [BatchResult.EXPIRED] * 2
    assert letters(tmp_path) == letters(tmp_path, partition=1) == []
    sending.scripted.is_held = False
    sending.scripted.script = [None, retry]
    sending.run(3)
    lost = 0 if sending.values(1) else 1
    assert (values(tmp_path, lost), values(tmp_path, 1 - lost)) == ([lost], [])


def test_only_the_failed_parts_of_a_split_batch_are_dead_letters(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending()
    sending.scripted.script = [too_large, None, refuse]
    sending.append(count=6)
    sending.run(8)
    assert sending.values() == [0, 1, 2]
    assert values(tmp_path) == [3, 4, 5]


def test_the_rest_of_a_split_batch_that_expires_is_a_dead_letter(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(**EXPIRING)
    sending.scripted.script = [too_large]
    sending.append(count=6)
    sending.run(1)
    sending.scripted.is_held = True
    sending.run(2)
    sending.sleep(TIMEOUT_MS)
    sending.run(1)
    sending.scripted.is_held = False
    sending.run(3)
    assert sending.values() == [0, 1, 2]
    assert values(tmp_path) == [3, 4, 5]
    sending.append()
    for _ in range(5):
        sending.run()
        sending.sleep(PAUSE_MS)
    assert sending.values() == [0, 1, 2, 6]  # the partition continues in a new epoch


def test_what_is_aborted_is_no_dead_letter(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending()
    sending.scripted.is_held = True
    (token,) = sending.append()
    sending.run()
    sending.sender.abort()
    sending.sender.run()
    assert sending.result(token) == BatchResult.ABORTED
    assert letters(tmp_path) == []


def test_a_damaged_batch_stays_in_the_arena_and_is_no_dead_letter(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending(**EXPIRING)
    sending.scripted.plan_filter = lambda _: False
    (token,) = sending.append()
    sending.run()
    scribble(token, sending.arena)
    sending.sleep(TIMEOUT_MS)
    sending.run(2)
    assert letters(tmp_path) == []
    assert sending.arena.native.state_counts()["BAD"] == 1


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "expired"])
def test_a_batch_that_is_changed_while_its_dead_letter_is_written_is_quarantined(
    open_sending: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    sending = open_sending(**EXPIRING)
    sending.scripted.script = [refuse]
    sending.scripted.plan_filter = lambda _: is_refused
    (token,) = sending.append()
    make_headers = dead_letters._headers

    def strike(*facts: Any) -> Any:
        scribble(token, sending.arena)
        monkeypatch.undo()
        return make_headers(*facts)

    monkeypatch.setattr(dead_letters, "_headers", strike)
    sending.run()
    sending.sleep(TIMEOUT_MS)
    sending.run(3)
    assert letters(tmp_path) == []
    assert sending.result(token) is (BatchResult.CORRUPT if is_refused else BatchResult.EXPIRED)
    assert sending.arena.native.state_counts()["BAD"] == 1


def scribble(token: Token, arena: Arena) -> None:
    """Change a byte of the token's batch in the arena."""
    position = arena.native.layout["slot_data"] + token.slot_index * arena.geometry["slot_stride"] + 65
    with open(f"/dev/shm/{arena.name}", "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


# --- a full disk


class FullDisk:
    """Rejects appends to any partition's log while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        real = PartitionLog.append
        monkeypatch.setattr(PartitionLog, "append", lambda log, batches: self._append(real, log, batches))

    def _append(self, real: Any, log: Any, batches: Any) -> Any:
        if not self.is_full:
            return real(log, batches)
        return [Rejection(BrokerError.KAFKA_STORAGE_ERROR, os.strerror(errno.ENOSPC))] * len(batches)


def test_a_full_disk_keeps_refused_batches_until_there_is_room(
    open_sending: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    sending = open_sending()
    sending.scripted.script = [refuse]
    (token,) = sending.append(partition=1)
    sending.run(2)
    sending.append(partition=2)
    sending.sleep(DISK_PAUSE_MS)
    sending.run(3)
    assert sending.result(token) is None
    assert sending.values(2) == [1]  # other partitions do not wait
    (told,) = [each.sentence for each in troubles(Observer(sending.arena).observe()) if each.kind == "impaired"]
    assert told.startswith("dead letters cannot be written, and keep their memory")
    assert "No space left" in told
    disk.is_full = False
    sending.sleep(DISK_PAUSE_MS)
    sending.run(3)
    assert sending.result(token) == BatchResult.FAILED
    assert values(tmp_path, 1) == [0]


def test_no_thread_waits_longer_than_the_delivery_timeout_because_a_disk_is_full(
    open_sending: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    sending = open_sending(**EXPIRING)
    sending.scripted.script = [refuse]
    (token,) = sending.append()
    sending.run(2)
    sending.sleep(TIMEOUT_MS)
    sending.run(2)
    assert sending.completion(token)[:2] == (BatchResult.FAILED, 87)  # the decided batches
    disk.is_full = False
    sending.sleep(DISK_PAUSE_MS)
    sending.run(4)
    assert values(tmp_path) == [0]
    assert facts(letters(tmp_path)[0])["code"] == "87"


def test_what_a_full_disk_keeps_is_written_by_the_next_sender(
    open_sending: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    sending = open_sending(**EXPIRING)
    sending.scripted.script = [refuse]
    sending.append(partition=1)
    sending.run(2)
    sending.scripted.plan_filter = lambda _: False
    sending.append(partition=2)
    sending.sleep(TIMEOUT_MS)
    sending.run(2)
    sending.sender.close()
    disk.is_full = False
    later = open_sending(**EXPIRING)
    later.run(2)
    assert (values(tmp_path, 1), values(tmp_path, 2)) == ([0], [1])
    assert later.values(1) == []
    assert facts(letters(tmp_path, partition=1)[0])["code"] == "87"


def test_a_failed_sync_writes_no_dead_letter_twice(
    open_sending: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that cannot be synced is still written. The next attempt recognizes it."""
    real, fails = PartitionLog.append, [True]

    def append(log: PartitionLog, batches: Any) -> Any:
        outcomes = real(log, batches)
        return [Rejection(BrokerError.KAFKA_STORAGE_ERROR, "not synced")] if fails.pop() else outcomes

    monkeypatch.setattr(PartitionLog, "append", append)
    sending = open_sending()
    sending.scripted.script = [refuse]
    (token,) = sending.append()
    sending.run(2)
    sending.sleep(DISK_PAUSE_MS)
    sending.run(2)
    assert sending.result(token) == BatchResult.FAILED
    assert values(tmp_path) == [0]


# --- the sender dies

DYING = """
import os, signal, sys
from shmaccum.sender import Sender
from shmaccum.sender.duties import dead_letters
from shmaccum.sender.sinks.sink import Ack, Verdict
from tests.support.sender import ScriptedSink, refuse

arena, directory, moment = sys.argv[1:]
original = dead_letters.DeadLetters.write

def write(self, *arguments):
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    original(self, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)

dead_letters.DeadLetters.write = write
sink = ScriptedSink()
sink.script = [refuse] * 5
sender = Sender(arena, sink, linger_ms=0, dead_letter="log:" + directory)
sender.arena.native.set_manual_clock(1_000_000_000)  # the appender's
sender.run()
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_dead_letter_is_written_once_whenever_its_sender_dies(
    arena: Arena, open_sending: Open, tmp_path: Path, moment: str
) -> None:
    first = open_sending()
    first.sender.close()
    tokens = first.append() + first.append()
    done = subprocess.run(
        [sys.executable, "-c", DYING, arena.name, str(tmp_path / "failed"), moment], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert values(tmp_path) == ([] if moment == "before" else [0])
    second = open_sending()
    second.run(4)
    assert second.completion(tokens[0])[:2] == (BatchResult.FAILED, 87)
    assert values(tmp_path) == [0]
    assert second.values() == [1]


def test_without_the_option_the_next_sender_frees_what_was_decided(arena: Arena, open_sending: Open) -> None:
    first = open_sending()
    first.sender.close()
    (token,) = first.append()
    subprocess.run([sys.executable, "-c", DYING, arena.name, "/nonexistent/never", "before"], check=False, timeout=60)
    second = open_sending(dead_letter=None)
    second.run(2)
    assert second.result(token) is not None


# --- the directory


def test_where_dead_letters_cannot_be_stored_the_sender_does_not_begin(arena: Arena, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"dead_letter=/tmp/x is not a log: .*log:/tmp/x"):
        Sender(arena, MemorySink(), dead_letter="/tmp/x")
    with pytest.raises(InvalidArgumentError, match="needs a directory"):
        Sender(arena, MemorySink(), dead_letter="log:")
    (tmp_path / "something").write_text("else")
    with Sender(arena, MemorySink(), dead_letter=f"log:{tmp_path}") as sender, pytest.raises(NotALogError):
        sender.open()
    assert not arena.native.sender_is_alive


def test_the_sinks_own_directory_is_refused(arena: Arena, tmp_path: Path) -> None:
    with Sender(arena, f"log:{tmp_path}/log", dead_letter=f"log:{tmp_path}/log") as sender, pytest.raises(LogBusyError):
        sender.open()


def test_dead_letters_are_read_by_the_command_line_while_they_are_written(open_sending: Open, tmp_path: Path) -> None:
    sending = open_sending()
    sending.scripted.script = [refuse]
    sending.append(count=3)
    sending.run(2)
    shown = CliRunner().invoke(main, ["log", "cat", str(tmp_path / "failed"), "--topic", TOPIC, "--json"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("bad record") == 3
    checked = CliRunner().invoke(main, ["log", "verify", str(tmp_path / "failed")])
    assert checked.exit_code == 0, checked.output
