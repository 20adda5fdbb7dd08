# SPDX-License-Identifier: Apache-2.0
"""Durability levels through the public API. tests/native/arena/durability_test.c tests a disk that fails."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from shmaccum.arena import Arena
from shmaccum.config import ArenaOptions
from shmaccum.exceptions import ArenaInUseError, FlushTimeoutError, InvalidArgumentError
from shmaccum.producer import Producer
from tests.support.accumulator import Accumulator
from tests.support.arenas import boot_again, deliver_all
from tests.support.processes import Child, wait_until
from tests.unit.cli.conftest import Shell

Level: TypeAlias = Literal["interval", "sync"]

SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 16, "waiter_count": 8}
SYNCS = "times the arena was forced to disk"
F_OFD_SETLK = 37
SYNC_LOCK_BYTE = 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.arena"
    try:
        Arena.create(path, durability="sync", **SMALL).close()
    except InvalidArgumentError:
        pytest.skip("the folder of temporary files lies in memory, where no arena is durable")
    path.unlink()
    return path


@pytest.fixture
def durable(path: Path) -> Iterator[Callable[[Level], Arena]]:
    opened: list[Arena] = []

    def make(level: Level) -> Arena:
        interval: dict[str, Any] = {"sync_interval_ms": 10} if level == "interval" else {}
        opened.append(Arena.create(path, durability=level, **interval, **SMALL))
        return opened[-1]

    yield make
    for arena in opened:
        arena.close()


@pytest.fixture
def shell() -> Shell:
    return Shell()


def syncs(arena: Arena) -> int:
    return arena.native.counters()[SYNCS]


# --- levels


@pytest.mark.parametrize("level", ["interval", "sync"])
def test_memory_is_refused_loudly(arena_name: str, level: Level, shell: Shell) -> None:
    interval: dict[str, Any] = {"sync_interval_ms": 10} if level == "interval" else {}
    with pytest.raises(InvalidArgumentError, match=r"is in memory .*: give it a path on a disk"):
        Arena.create(arena_name, durability=level, **interval, **SMALL)
    assert not Arena.exists(arena_name)
    options = ["--durability", level, *(["--sync-interval-ms", "10ms"] if interval else [])]
    assert "give it a path on a disk" in shell("create", arena_name, *options, code=2).stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"durability": "forever"}, "one of process, interval, sync"),
        ({"durability": "interval"}, "belong together"),
        ({"durability": "sync", "sync_interval_ms": 5}, "belong together"),
        ({"sync_interval_ms": 5}, "belong together"),
    ],
)
def test_options_that_cannot_be(arena_name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        Arena.create(arena_name, **SMALL, **options)
    with pytest.raises(InvalidArgumentError, match=sentence):
        ArenaOptions.parse(options)


def test_nothing_is_forced_without_a_request(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.append("t", 0, 1, None, b"v")
        assert (arena.durability, syncs(arena)) == ("process", 0)
        with pytest.raises(InvalidArgumentError, match="durability=process"):
            arena.sync()
        accumulator.become_sender()
        deliver_all(accumulator)


# --- sync


def test_an_append_returns_when_it_is_on_disk(durable: Callable[[Level], Arena]) -> None:
    arena = durable("sync")
    with Accumulator(arena) as accumulator:
        for number in range(3):
            accumulator.append("t", 0, 1, None, b"v")
            assert syncs(arena) == number + 1


def test_a_send_of_any_kind_does(durable: Callable[[Level], Arena]) -> None:
    arena = durable("sync")
    arena.native.set_topic_partition_count("t", 2)
    with Producer(arena, close_timeout_ms=0) as producer:
        producer.send("t", b"v")
        assert syncs(arena) == 1
        producer.send_many("t", [b"v"] * 100)
        assert syncs(arena) == 2
        with Producer(arena, value_serializer="str", close_timeout_ms=0) as serializing:
            serializing.send("t", "v")
            assert syncs(arena) == 3
            serializing.close(0)
        producer.close(0)


def test_sends_that_are_synced_together_share_one_force(durable: Callable[[Level], Arena]) -> None:
    arena = durable("sync")
    arena.native.set_topic_partition_count("t", 2)
    with Producer(arena, close_timeout_ms=0) as producer, Producer(arena, close_timeout_ms=0) as other:
        with producer.synced_together():
            with producer.synced_together():
                producer.send("t", b"v")
                producer.send_many("t", [b"v"] * 10)
            assert syncs(arena) == 0
            other.send("t", b"v")  # not part of the block
            assert syncs(arena) == 1
            thread = threading.Thread(target=producer.send, args=("t", b"v"))  # nor are other threads
            thread.start()
            thread.join()
            assert syncs(arena) == 2
            producer.send("t", b"v")
        assert syncs(arena) == 3
        with pytest.raises(TypeError), producer.synced_together():
            producer.send_many("t", [b"v", 3])
        assert syncs(arena) == 4
        producer.send("t", b"v")
        assert syncs(arena) == 5
        producer.close(0)
        other.close(0)


def test_a_block_changes_nothing_where_nothing_is_synced(arena: Arena) -> None:
    arena.native.set_topic_partition_count("t", 2)
    with Producer(arena, close_timeout_ms=0) as producer:
        with producer.synced_together():
            producer.send("t", b"v")
        assert syncs(arena) == 0
        producer.close(0)
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        deliver_all(accumulator)


def append_often(path: str, count: int) -> int:
    with Arena.attach(path) as arena, Accumulator(arena) as accumulator:
        for _ in range(count):
            accumulator.append("t", 0, 1, None, b"v")
    return count


def test_processes_share_their_syncs(durable: Callable[[Level], Arena]) -> None:
    arena = durable("sync")
    children = [Child(append_often, arena.name, 30) for _ in range(4)]
    assert [child.join() for child in children] == ["30"] * 4
    assert 30 <= syncs(arena) <= 120
    assert arena.verify() == []


def test_a_sync_that_waits_for_a_stopped_process_ends_with_a_sentence(durable: Callable[[Level], Arena]) -> None:
    arena = durable("sync")

    def hold_the_lead() -> None:
        taken = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, SYNC_LOCK_BYTE, 1, 0)
        fcntl.fcntl(os.open(arena.name, os.O_RDWR), F_OFD_SETLK, taken)
        os.kill(os.getpid(), signal.SIGSTOP)

    child = Child(hold_the_lead)
    os.waitpid(child.pid, os.WUNTRACED)
    with pytest.raises(FlushTimeoutError, match="will be delivered"):
        arena.sync(timeout=0.05)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    arena.sync()


# --- interval


def test_the_interval_is_kept_by_every_attached_process(durable: Callable[[Level], Arena]) -> None:
    arena = durable("interval")
    seen = syncs(arena)
    wait_until(lambda: syncs(arena) > seen + 2, "it was forced some times")

    def watched() -> bool:
        assert not arena.native.sender_is_alive  # this process is attached
        assert arena.native.is_attached
        before = syncs(arena)
        wait_until(lambda: syncs(arena) > before + 2, "it was forced in the child, too")
        return any(thread.name == "shmaccum-flusher" for thread in threading.enumerate())

    assert Child(watched).join() == "True"


def test_one_that_leaves_forces_once_more_and_its_thread_ends(path: Path) -> None:
    threads = set(threading.enumerate())
    arena = Arena.create(path, durability="interval", sync_interval_ms="1h", **SMALL)
    with Accumulator(arena) as accumulator:
        accumulator.append("t", 0, 1, None, b"v")
        with pytest.raises(ArenaInUseError):
            arena.close()
        before = syncs(arena)
    arena.close()
    with Arena.open_read_only(path) as looked_at:
        assert syncs(looked_at) == before + 1
    assert set(threading.enumerate()) <= threads


# --- after a crash of the host


def test_what_was_not_forced_is_cut_off_and_reported(
    durable: Callable[[Level], Arena], path: Path, shell: Shell
) -> None:
    arena = durable("sync")
    with Accumulator(arena) as accumulator:
        for number in range(5):
            accumulator.append("t", 0, 1, None, b"%d" % number)
        token = accumulator.append_unforced("t", 0, 1, None, b"never forced")  # bypasses the wait for the disk
    stride, count = arena.geometry["slot_stride"], arena.geometry["slot_count"]
    slot = arena.native.size - count * stride + token.slot_index * stride
    arena.close()
    data = path.read_bytes()
    at = data.index(b"never forced", slot)
    with open(path, "r+b") as stream:
        stream.seek(at)
        stream.write(b"\0" * 12)
    boot_again(path)
    assert "1 batch to cut back to the records forced to disk" in shell("recover", str(path), "--dry-run").stdout
    document = shell.json("recover", str(path))
    assert (document["cut_count"], document["quarantined_count"], document["record_count"]) == (1, 0, 5)
    with Arena.attach(path) as again, Accumulator(again) as sender:
        sender.become_sender()
        assert deliver_all(sender) == [b"%d" % number for number in range(5)]
