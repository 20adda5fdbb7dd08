# SPDX-License-Identifier: Apache-2.0
"""The arena is cut, removed or poisoned under processes at full rate. No process dies, and no record disappears.

A record is in the log that the sender wrote, or in the fallback of its process, or its send raised an error. If the
file of the arena was cut, its memory is lost. Then records that were acknowledged before the cut and not yet delivered
are lost. Records that were sent after the cut are not.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum import Producer, Sender, _native
from shmaccum.arena import Arena
from shmaccum.exceptions import ArenaError, CorruptArenaError
from shmaccum.log.files import LogReader
from shmaccum.observe.observation import Observer
from tests.support.arenas import SHARED_MEMORY, each_semaphore
from tests.support.processes import Child, wait_until

TOPIC = "flights"
PROCESS_COUNT = 4
RECORDS_BEFORE = 2000
RECORDS_AFTER = 200
VALUE_SIZE = 200


def cut(arena: Arena) -> None:
    os.truncate(SHARED_MEMORY / arena.name, 0)


def cut_the_end(arena: Arena) -> None:
    os.truncate(SHARED_MEMORY / arena.name, arena.native.layout["slot_data"])


def remove(arena: Arena) -> None:
    Arena.remove(arena.name)


def poison(arena: Arena) -> None:
    (place,) = (row[2] for row in _native.layout_fields() if row[:2] == ("globals", "poisoned_status"))
    with open(SHARED_MEMORY / arena.name, "r+b") as file:
        file.seek(arena.native.layout["globals"] + place)
        file.write((13).to_bytes(4, sys.byteorder))


class FileFallback:
    """Writes the value of each record as a line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def send(self, _topic: str, value: bytes) -> None:
        self._file.write(value.rstrip(b".") + b"\n")


class Worker:
    """A process that sends numbered records until its fallback has received some."""

    def __init__(self, name: str, folder: Path, number: int) -> None:
        self._name, self._number = name, number
        self._fallback = folder / f"fallback-{number}"
        self._acknowledged = folder / f"acknowledged-{number}"
        self._raised = folder / f"raised-{number}"
        self.child = Child(self._run)

    def _run(self) -> int:
        producer = Producer(self._name, on_unusable=lambda: FileFallback(self._fallback), max_block_ms=60_000)
        threads = [threading.Thread(target=self._send, args=(producer, part)) for part in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with contextlib.suppress(ArenaError):
            producer.close(0)
        return 0

    def _send(self, producer: Producer, part: int) -> None:
        left = RECORDS_AFTER
        with (
            self._acknowledged.open("ab", buffering=0) as acknowledged,
            self._raised.open("ab", buffering=0) as raised,
        ):
            for number in range(10**9):
                name = b"%d-%d-%d" % (self._number, part, number)
                try:
                    is_fallen_back = producer.send(TOPIC, name.ljust(VALUE_SIZE, b".")) is None
                except ArenaError:
                    raised.write(name + b"\n")
                    is_fallen_back = True
                else:
                    acknowledged.write(b"%b %d\n" % (name, not is_fallen_back))
                left -= is_fallen_back
                if left == 0:
                    return

    @property
    def acknowledged_count(self) -> int:
        """The count of records that were sent so far."""
        return len(_lines(self._acknowledged))

    @property
    def in_arena(self) -> set[bytes]:
        """Records that were acknowledged as being in the arena."""
        return {line.split()[0] for line in _lines(self._acknowledged) if line.endswith(b" 1")}

    @property
    def elsewhere(self) -> set[bytes]:
        """Records that were acknowledged as being in the fallback."""
        return {line.split()[0] for line in _lines(self._acknowledged) if line.endswith(b" 0")}

    @property
    def fallback(self) -> set[bytes]:
        """Records in the fallback."""
        return set(_lines(self._fallback))


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def serve(name: str, folder: Path) -> str:
    """Run a sender to a log. Return the type name of the exception that ended it."""
    with Sender(name, f"log:{folder}", linger_ms=0) as sender:
        signal.signal(signal.SIGTERM, lambda _number, _frame: sender.stop())
        try:
            sender.run()
        except Exception as error:  # noqa: BLE001 - told to the parent
            return type(error).__name__
    return ""


def watch(name: str, stop: Path) -> int:
    """Observe until the test stops it or the arena is lost."""
    count = 0
    with Arena.open_read_only(name) as arena, contextlib.suppress(CorruptArenaError):
        observer = Observer(arena)
        while not stop.exists():
            observer.observe()
            count += 1
    return count


def in_log(folder: Path) -> tuple[set[bytes], int]:
    """The records of the log, and the count of its values that no worker wrote."""
    reader = LogReader(folder)
    values = [record.value for place in reader.topic_partitions() for record in reader.partition(*place).records()]
    good = [value for value in values if value is not None and len(value) == VALUE_SIZE and b"-" in value]
    return {value.rstrip(b".") for value in good}, len(values) - len(good)


@pytest.mark.parametrize("way", [cut, cut_the_end, remove, poison])
def test_no_process_dies_and_each_record_has_a_place(
    arena_name: str, tmp_path: Path, way: Callable[[Arena], None]
) -> None:
    arena = Arena.create(arena_name, buffer_memory="1MiB", batch_size="4KiB", topics={TOPIC: 3})
    sender = Child(serve, arena_name, tmp_path / "log")
    wait_until(lambda: arena.native.sender_is_alive, "the sender works")
    watcher = Child(watch, arena_name, tmp_path / "stop")
    workers = [Worker(arena_name, tmp_path, number) for number in range(PROCESS_COUNT)]
    wait_until(lambda: all(worker.acknowledged_count > RECORDS_BEFORE for worker in workers), "all send")
    way(arena)
    for worker in workers:
        assert worker.child.join() == "0"  # SIGBUS did not kill it
    (tmp_path / "stop").touch()
    watcher.join()
    if way is poison:
        os.kill(sender.pid, signal.SIGTERM)
    reason = sender.join()
    assert reason.strip("'") == {"remove": "ArenaRemovedError", "poison": ""}.get(way.__name__, "CorruptArenaError")
    delivered, wrong_count = in_log(tmp_path / "log")
    assert wrong_count == 0  # no page of zeros went to the sink
    for worker in workers:
        assert worker.elsewhere
        assert worker.elsewhere <= worker.fallback
        if way in (remove, poison):
            assert worker.in_arena <= delivered
    uuid = arena.uuid
    arena.close()
    if Arena.exists(arena_name):
        Arena.remove(arena_name)
    assert list(each_semaphore(uuid)) == []


def test_a_fault_elsewhere_in_the_program_still_ends_it(arena_name: str) -> None:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB"):
        child = Child(fault_elsewhere)
        _, status = os.waitpid(child.pid, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGBUS


def fault_elsewhere() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
            file.truncate(0)
            mapped[0]


PROGRAM = """
import faulthandler, mmap, os, sys, tempfile
name, when, where = sys.argv[1:]
if when == "before":
    faulthandler.enable()
from shmaccum.arena import Arena
arena = Arena.attach(name)
if when == "after":
    faulthandler.enable()
if where == "elsewhere":
    file = tempfile.TemporaryFile()
    file.truncate(mmap.PAGESIZE)
    mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    file.truncate(0)
    mapped[0]
os.truncate("/dev/shm/" + name, 0)
try:
    arena.topics()
    arena.topics()
except Exception as error:
    print(type(error).__name__, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_faulthandler_is_reached(arena_name: str, when: str) -> None:
    """A handler that is enabled after the first arena runs first, and ends the process, as it does without an arena."""
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topics={TOPIC: 1}):
        elsewhere, arena = (
            subprocess.run(
                [sys.executable, "-c", PROGRAM, arena_name, when, where], capture_output=True, text=True, check=False
            )
            for where in ("elsewhere", "arena")
        )
    Arena.remove(arena_name)
    assert elsewhere.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in elsewhere.stderr
    if when == "before":
        assert (arena.returncode, arena.stdout) == (0, "CorruptArenaError\n")
    else:
        assert arena.returncode == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in arena.stderr
