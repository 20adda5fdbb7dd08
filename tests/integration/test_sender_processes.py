# SPDX-License-Identifier: Apache-2.0
"""Sender processes that are killed, stopped, replaced, or started by many at once deliver everything exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shmaccum import Producer
from shmaccum._native import decode_batch
from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError, OtherSinkError, SenderNotStartedError
from shmaccum.sender import Sender
from shmaccum.supervisor import ensure_sender
from tests.support.accumulator import Accumulator
from tests.support.arenas import end_senders
from tests.support.processes import WATCHDOG_S, Child, process_exists, wait_until

TOPIC = "topic"
KILLS = 8
PRODUCERS = 3
RECORDS = 4000


def log_values(folder: Path, partition: int = 0) -> list[bytes]:
    """Every value of a partition's log, in file order. Checks that offsets have no gap."""
    values: list[bytes] = []
    for segment in sorted((folder / f"{TOPIC}-{partition}").glob("*.log")):
        content = segment.read_bytes()
        position = 0
        while position < len(content):
            assert int.from_bytes(content[position : position + 8], "big") == len(values)
            end = position + 12 + int.from_bytes(content[position + 8 : position + 12], "big")
            values += [record[3] or b"" for record in decode_batch(bytes(8) + content[position + 8 : end])]
            position = end
    return values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def started() -> Iterator[Callable[..., Child]]:
    """Forked children, killed at the end if they are still alive."""
    children: list[Child] = []

    def start(function: Callable[..., object], *arguments: object) -> Child:
        children.append(Child(function, *arguments))
        return children[-1]

    yield start
    for child in children:
        child.kill()


def run_sender(arena_name: str, folder: Path, is_standby: bool = False) -> None:
    with Sender(arena_name, f"log:{folder}", standby=is_standby, linger_ms=1) as sender:
        signal.signal(signal.SIGTERM, lambda *_: sender.stop())
        sender.run()


def append_numbers(arena_name: str, producer: int, count: int) -> None:
    with Arena.attach(arena_name) as arena, Accumulator(arena) as accumulator:
        for number in range(count):
            accumulator.append(TOPIC, 0, 1000, None, b"%d:%d" % (producer, number))


def expect_each_once_in_order(values: list[bytes]) -> None:
    for producer in range(PRODUCERS):
        prefix = b"%d:" % producer
        numbers = [int(value.split(b":")[1]) for value in values if value.startswith(prefix)]
        assert numbers == list(range(RECORDS)), f"of producer {producer} came {len(numbers)}"
    assert len(values) == PRODUCERS * RECORDS


def test_senders_killed_one_after_the_other_deliver_each_record_once(
    arena: Arena, folder: Path, started: Callable[..., Child], seeded: Callable[[], random.Random]
) -> None:
    chance = seeded()
    producers = [started(append_numbers, arena.name, producer, RECORDS) for producer in range(PRODUCERS)]
    for _ in range(KILLS):
        killed = started(run_sender, arena.name, folder)
        wait_until(lambda: arena.native.sender_is_alive, "a sender has the role")
        wait_for_results(arena, arena.native.completion_tail + chance.randrange(30), producers)
        killed.kill()
    last = started(run_sender, arena.name, folder)
    for producer in producers:
        producer.join()
    wait_until(lambda: arena.native.sender_is_alive, "the last one has the role")
    os.kill(last.pid, signal.SIGTERM)
    last.join()
    expect_each_once_in_order(log_values(folder))


def wait_for_results(arena: Arena, count: int, producers: list[Child]) -> None:
    wait_until(
        lambda: arena.native.completion_tail >= count or all(producer.has_ended() for producer in producers),
        "it has worked",
    )


def test_a_standby_takes_over_from_the_killed_and_not_from_the_stopped(
    arena: Arena, folder: Path, started: Callable[..., Child]
) -> None:
    first = started(run_sender, arena.name, folder)
    wait_until(lambda: arena.native.sender()["entry"] is not None, "the first one has the role and publishes its sink")
    owner = arena.native.sender()["entry"]
    standby = started(run_sender, arena.name, folder, True)
    wait_until(lambda: sum(process["alive"] for process in arena.native.processes()) == 3, "the standby is there")
    os.kill(first.pid, signal.SIGSTOP)
    with Accumulator(arena) as accumulator:
        accumulator.append(TOPIC, 0, 1000, None, b"0")
        assert not accumulator.flush(timeout=0.2)
        assert arena.native.sender()["entry"] == owner
        os.kill(first.pid, signal.SIGCONT)
        assert accumulator.flush(timeout=WATCHDOG_S)
        first.kill()
        accumulator.append(TOPIC, 0, 1000, None, b"1")
        assert accumulator.flush(timeout=WATCHDOG_S)
    assert arena.native.sender()["entry"] != owner
    os.kill(standby.pid, signal.SIGTERM)
    standby.join()
    assert log_values(folder) == [b"0", b"1"]


def test_sigterm_delivers_what_is_there_and_ends_with_nought(arena: Arena, folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "shmaccum.sender", arena.name, f"--sink=log:{folder}", "--set=linger_ms=60s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == b""  # returns after its start
        assert psutil.Process(process.pid).name() == "shmaccum-sender"
        with Accumulator(arena) as accumulator:
            for number in range(100):
                accumulator.append(TOPIC, 0, 1000, None, b"%d" % number)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WATCHDOG_S) == 0, process.stderr.read()
    assert log_values(folder) == [b"%d" % number for number in range(100)]


# --- ensure_sender


def ensure(arena_name: str, folder: Path) -> tuple[bool, int]:
    with Arena.attach(arena_name) as arena:
        has_started = ensure_sender(arena, f"log:{folder}", idle_exit="100ms", linger_ms=0)
        with Accumulator(arena) as accumulator:
            accumulator.append(TOPIC, 0, 1000, None, b"%d" % os.getpid())
            assert accumulator.flush(timeout=WATCHDOG_S)
        owner = arena.native.sender()["entry"]
        return has_started, next(process["pid"] for process in arena.native.processes() if process["entry"] == owner)


def test_eight_processes_start_one_sender_which_leaves_after_them(arena_name: str, folder: Path) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 64, "waiter_count": 64}
    with Arena.create(arena_name, **sizes) as arena:  # this attach prevents the sender's exit until all have called
        children = [Child(ensure, arena_name, folder) for _ in range(8)]
        reports = [eval(child.join()) for child in children]
        assert arena.native.is_attached
    assert [has_started for has_started, _ in reports].count(True) == 1
    (pid,) = {pid for _, pid in reports}
    wait_until(lambda: not process_exists(pid), "the sender has left")
    assert len(log_values(folder)) == 8


def test_where_there_is_a_sender_none_is_started(arena: Arena) -> None:
    with Sender(arena.name, "memory:") as sender:
        sender.open()
        assert not ensure_sender(arena, "memory:")
        assert not ensure_sender(arena.name, "memory:")


def test_what_a_dead_sender_left_may_be_delivered_elsewhere(
    arena: Arena, folder: Path, tmp_path: Path, started: Callable[..., Child]
) -> None:
    first = started(run_sender, arena.name, folder)
    wait_until(lambda: arena.native.sender()["sink_name"] == f"log:{folder}".encode(), "it publishes its sink")
    with pytest.raises(OtherSinkError, match=f"delivers to log:{folder}, and log:{tmp_path}/other was asked for"):
        ensure_sender(arena, f"log:{tmp_path}/other")
    os.kill(first.pid, signal.SIGSTOP)
    with pytest.raises(OtherSinkError):
        ensure_sender(arena, f"log:{tmp_path}/other")
    with Accumulator(arena) as accumulator:
        accumulator.append(TOPIC, 0, 1000, None, b"left")
        first.kill()
        assert ensure_sender(arena, f"log:{tmp_path}/other", idle_exit="100ms", linger_ms=0)
        assert accumulator.flush(timeout=WATCHDOG_S)
    assert arena.native.sender()["sink_name"] == f"log:{tmp_path}/other".encode()
    pid = next(process["pid"] for process in arena.native.processes() if process["role"] == "sender")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not process_exists(pid), "it has left")
    assert log_values(tmp_path / "other") == [b"left"]


def test_a_kept_sender_gets_the_overflow_that_its_producer_names(arena: Arena, folder: Path, tmp_path: Path) -> None:
    with Producer(arena, sink=f"log:{folder}", overflow=f"log:{tmp_path}/overflow", linger_ms=0) as producer:
        assert producer.send(TOPIC, b"x").get(WATCHDOG_S).offset == 0
    assert is_log_of(arena, tmp_path / "overflow")


def test_a_sender_that_is_ensured_gets_an_overflow(arena: Arena, folder: Path, tmp_path: Path) -> None:
    assert ensure_sender(arena, f"log:{folder}", idle_exit="100ms", overflow=f"log:{tmp_path}/overflow")
    assert is_log_of(arena, tmp_path / "overflow")


def is_log_of(arena: Arena, overflow: Path) -> bool:
    """True if the sender has opened the directory as its overflow. Ends the sender."""
    end_senders(arena)
    return (overflow / ".overflow").is_dir()


def ensure_at(arena_name: str, folder: Path) -> str:
    with Arena.attach(arena_name) as arena:
        try:
            return f"started {ensure_sender(arena, f'log:{folder}', linger_ms=0)}"
        except OtherSinkError as error:
            return str(error)


def test_one_of_many_concurrent_requests_gets_both_places(arena: Arena, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    children = [(folder, Child(ensure_at, arena.name, folder)) for folder in folders * 4]
    answers = [(folder, child.join()) for folder, child in children]
    chosen = arena.native.sender()["sink_name"].decode()
    assert [answer.count("started True") for _, answer in answers].count(1) == 1
    for folder, answer in answers:
        assert ("was asked for" in answer) == (chosen != f"log:{folder}"), answer
    pid = next(process["pid"] for process in arena.native.processes() if process["role"] == "sender")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not process_exists(pid), "it has left")


def stand_by(arena_name: str, folder: Path) -> str:
    try:
        run_sender(arena_name, folder, True)
    except OtherSinkError as error:
        return str(error)
    return "it had the role"


def test_a_standby_leaves_when_the_sender_it_stands_by_is_followed_by_one_that_delivers_elsewhere(
    arena: Arena, folder: Path, tmp_path: Path, started: Callable[..., Child]
) -> None:
    first = started(run_sender, arena.name, folder)
    wait_until(lambda: arena.native.sender_is_alive, "the first one has the role")
    standby = started(stand_by, arena.name, folder)
    wait_until(lambda: sum(process["alive"] for process in arena.native.processes()) == 3, "the standby is there")
    os.kill(standby.pid, signal.SIGSTOP)
    first.kill()
    other = started(run_sender, arena.name, tmp_path / "other")
    wait_until(lambda: arena.native.sender()["sink_name"] == f"log:{tmp_path}/other".encode(), "another one has it")
    os.kill(standby.pid, signal.SIGCONT)
    assert f"delivers to log:{tmp_path}/other, and log:{folder} was asked for" in standby.join()
    os.kill(other.pid, signal.SIGTERM)
    other.join()


def test_why_a_sender_could_not_begin_is_reported(arena: Arena, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"not a directory")
    with pytest.raises(SenderNotStartedError, match=r"could not start: .*file"):
        ensure_sender(arena, f"log:{place}")
    log_path = tmp_path / "sender.log"
    with pytest.raises(SenderNotStartedError, match="could not start"):
        ensure_sender(arena, f"log:{place}", log_path=log_path)
    assert str(place) in log_path.read_text()
    with pytest.raises(InvalidArgumentError, match="did you mean linger_ms"):
        ensure_sender(arena, "null:", linger_mss=3)  # type: ignore[call-arg]


def test_a_sender_that_takes_too_long_is_reported(arena: Arena) -> None:
    with pytest.raises(SenderNotStartedError, match="in time"):
        ensure_sender(arena, "null:", timeout_s=0, idle_exit="50ms")
    wait_until(lambda: arena.native.sender()["entry"] is not None, "it begins nevertheless")
    owner = arena.native.sender()["entry"]
    pid = next(process["pid"] for process in arena.native.processes() if process["entry"] == owner)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not process_exists(pid), "it has left")
