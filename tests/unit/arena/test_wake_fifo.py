# SPDX-License-Identifier: Apache-2.0
"""The wake FIFO: processes that write to it and wait for it, rejected files, and cleanup."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.fifo import CLEAR_SIZE, OPEN_FLAGS, FifoEnd, open_fifo
from shmaccum.arena.named_objects import SHARED_MEMORY
from shmaccum.arena.reports import read_reports
from shmaccum.arena.results import BatchResult
from shmaccum.arena.results_fifo import ResultsListener, ResultsWaker
from shmaccum.arena.wake_fifo import SenderWaker, WakeFifo
from shmaccum.exceptions import ArenaForbiddenError, BufferExhaustedError, FlushTimeoutError
from shmaccum.observe.health import troubles
from shmaccum.observe.observation import Observer
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all, drain
from tests.support.descriptors import open_descriptors, open_files
from tests.support.processes import run_in_child
from tests.support.sender import check_names


def has_rung(wake_fifo: WakeFifo) -> bool:
    readable, _, _ = select.select([wake_fifo], [], [], 0)
    return bool(readable)


def open_count(wake_fifo: WakeFifo) -> int:
    """Return how often this process has the wake FIFO open."""
    return len(open_files(wake_fifo.path))


@pytest.fixture
def wake_fifo(arena: Arena) -> Iterator[WakeFifo]:
    wake_fifo = WakeFifo(arena)
    yield wake_fifo
    wake_fifo.close()


def left_fifo(suffix: str) -> Path:
    """A FIFO of a removed arena that its users left more than a minute ago."""
    path = Path(SHARED_MEMORY, f"shmaccum-{secrets.token_hex(6)}.{suffix}")
    os.mkfifo(path, 0o600)
    os.utime(path, (0, 0))
    return path


@pytest.mark.parametrize("suffix", ["bell", "results"])
@pytest.mark.parametrize("act", ["remove", "send"])
def test_a_fifo_that_no_process_has_open_is_removed(arena_name: str, suffix: str, act: str) -> None:
    unused, used, new = (left_fifo(suffix) for _ in range(3))
    os.utime(new)
    descriptor = os.open(used, OPEN_FLAGS)
    try:
        with Arena.create(arena_name) as arena:
            if act == "send":
                with Sender(arena, "null:") as sender:
                    sender.open()
                    assert not unused.exists()
        Arena.remove(arena_name)
        assert [path.exists() for path in (unused, used, new)] == [False, True, True]
    finally:
        os.close(descriptor)
        for path in (unused, used, new):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("open_end", [WakeFifo, ResultsListener])
def test_a_fifo_that_is_removed_before_it_is_open_is_created_again(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, open_end: Callable[[Arena], WakeFifo | ResultsListener]
) -> None:
    removed: list[str] = []

    def remove_and_open(path: str, arena: Arena) -> int:
        monkeypatch.undo()
        os.unlink(path)
        removed.append(path)
        return open_fifo(path, arena)

    monkeypatch.setattr("shmaccum.arena.fifo.open_fifo", remove_and_open)
    end = open_end(arena)
    assert len(removed) == 1
    assert os.path.exists(removed[0])
    end.close()


def test_a_wake_up_is_seen_until_it_is_cleared(arena: Arena, wake_fifo: WakeFifo) -> None:
    waker = SenderWaker(arena)
    assert not has_rung(wake_fifo)
    waker.wake()
    waker.wake()
    assert has_rung(wake_fifo)
    wake_fifo.clear()
    assert not has_rung(wake_fifo)
    wake_fifo.wake()
    assert has_rung(wake_fifo)
    waker.close()


def test_one_append_wakes_a_sleeping_sender_once(arena: Arena, accumulator: Accumulator, wake_fifo: WakeFifo) -> None:
    accumulator.append("topic", 0, 1000, None, b"awake")
    assert not has_rung(wake_fifo)
    arena.native.set_sender_asleep(True)
    accumulator.append("topic", 1, 1000, None, b"asleep")
    accumulator.append("topic", 2, 1000, None, b"rung already")
    assert os.read(wake_fifo.fileno(), CLEAR_SIZE) == b"\0"
    accumulator.become_sender()
    deliver_all(accumulator)


def test_flush_rings(arena: Arena, accumulator: Accumulator, wake_fifo: WakeFifo) -> None:
    accumulator.append("topic", 0, 1000, None, b"lingers")
    arena.native.set_sender_asleep(True)
    assert not accumulator.flush(timeout=0)
    assert has_rung(wake_fifo)
    accumulator.become_sender()
    deliver_all(accumulator)


def test_a_wait_for_a_buffer_wakes_the_sender(arena: Arena, wake_fifo: WakeFifo) -> None:
    with Accumulator(arena, max_block_ms=1) as accumulator:
        for partition in range(arena.geometry["slot_count"]):
            accumulator.append("topic", partition, 1000, None, b"one buffer each")
        arena.native.set_sender_asleep(True)
        with pytest.raises(BufferExhaustedError):
            accumulator.append("topic", 99, 1000, None, b"no room")
        assert has_rung(wake_fifo)
        accumulator.become_sender()
        deliver_all(accumulator)


def test_without_a_wake_fifo_nothing_happens(arena: Arena, accumulator: Accumulator) -> None:
    arena.native.set_sender_asleep(True)
    accumulator.append("topic", 0, 1000, None, b"value")
    assert arena.native.errors() == []
    accumulator.become_sender()
    deliver_all(accumulator)


def test_a_producer_opens_the_wake_fifo_once(arena: Arena, wake_fifo: WakeFifo, sender: Accumulator) -> None:
    arena.native.set_topic_partition_count("topic", 1)
    producer = Producer(arena)
    own_count = open_count(wake_fifo)
    for ring in (lambda: producer.send("topic", b"value"), lambda: producer.flush(0.001)):
        arena.native.set_sender_asleep(True)
        with contextlib.suppress(FlushTimeoutError):
            ring()
        assert has_rung(wake_fifo)
        wake_fifo.clear()
        assert open_count(wake_fifo) == own_count + 1
    deliver_all(sender)
    producer.close()
    assert open_count(wake_fifo) == own_count


def test_a_full_wake_fifo_counts_as_woken(arena: Arena, wake_fifo: WakeFifo) -> None:
    waker = SenderWaker(arena)
    for _ in range(CLEAR_SIZE + 10):
        waker.wake()
    wake_fifo.clear()
    assert not has_rung(wake_fifo)
    waker.close()


def test_the_next_sender_sees_earlier_wake_ups(arena: Arena) -> None:
    first = WakeFifo(arena)
    waker = SenderWaker(arena)
    waker.wake()
    first.close()
    waker.wake()
    second = WakeFifo(arena)
    second.clear()
    waker.wake()
    assert has_rung(second)
    second.close()
    waker.close()


def test_a_closed_waker_writes_to_no_file_that_has_its_number_now(arena: Arena, tmp_path: Path) -> None:
    wake_fifo = WakeFifo(arena)
    number = wake_fifo.fileno()
    wake_fifo.close()
    with (tmp_path / "other").open("wb") as other:  # gets the lowest free number
        assert other.fileno() <= number
        wake_fifo.wake()
    assert (tmp_path / "other").read_bytes() == b""


def test_an_end_of_a_missing_fifo_closes_no_standard_stream(arena: Arena, tmp_path: Path) -> None:
    streams = {found for found in open_descriptors() if found[0] <= 2}
    assert streams
    with contextlib.suppress(FileNotFoundError):
        FifoEnd(str(tmp_path / "missing"), arena)
    assert streams <= open_descriptors()


def test_a_wake_fifo_that_was_replaced_is_opened_again(arena: Arena, wake_fifo: WakeFifo) -> None:
    waker = SenderWaker(arena)
    waker.wake()
    os.unlink(wake_fifo.path)
    other = WakeFifo(arena)
    waker.wake()
    assert has_rung(other)
    other.close()
    waker.close()


def test_no_wake_up_kills_a_process_that_dies_of_broken_pipes(arena: Arena) -> None:
    def ring_nobody() -> str:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        SenderWaker(arena).wake()
        return "alive"

    WakeFifo(arena).close()
    assert run_in_child(ring_nobody) == "'alive'"


def test_the_child_of_a_fork_rings(arena: Arena, wake_fifo: WakeFifo) -> None:
    waker = SenderWaker(arena)
    waker.wake()
    wake_fifo.clear()
    assert run_in_child(waker.wake) == "None"
    assert has_rung(wake_fifo)
    waker.close()


def test_it_belongs_to_its_user_alone(arena: Arena, wake_fifo: WakeFifo) -> None:
    found = os.lstat(wake_fifo.path)
    assert stat.S_ISFIFO(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600


def test_it_is_beside_the_file_of_an_arena_and_is_removed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "x.arena"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB") as arena:
        wake_fifo = WakeFifo(arena)
        assert wake_fifo.path == f"{path}.bell"
        wake_fifo.close()
        assert {entry.name for entry in tmp_path.iterdir()} == {"x.arena", "x.arena.bell"}
    Arena.remove(path)
    assert list(tmp_path.iterdir()) == []


def test_a_sender_removes_the_wake_fifo_of_a_removed_arena(tmp_path: Path) -> None:
    path = tmp_path / "x.arena"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB") as arena:
        Arena.remove(path)
        WakeFifo(arena).close()
        assert list(tmp_path.iterdir()) == []


OF_ANOTHER_USER = pytest.param(
    "of another user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
)


@pytest.mark.parametrize("kind", ["file", "symbolic link", OF_ANOTHER_USER])
def test_a_file_that_is_no_wake_fifo_is_rejected(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.arena"
    fake = tmp_path / "x.arena.bell"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB") as arena, Accumulator(arena) as accumulator:
        if kind == "file":
            fake.write_bytes(b"")
        elif kind == "of another user":
            os.mkfifo(fake, 0o666)
            os.chown(fake, 12345, -1)
        else:
            os.mkfifo(tmp_path / "elsewhere")
            fake.symlink_to(tmp_path / "elsewhere")
        with pytest.raises((ArenaForbiddenError, OSError), match=r"x\.arena\.bell"):
            WakeFifo(arena)
        arena.native.set_sender_asleep(True)
        accumulator.append("topic", 0, 1000, None, b"value")
        assert "the sender cannot be woken" in arena.native.errors()[0]["text"]
        accumulator.become_sender()
        for batch in drain(accumulator):
            accumulator.complete(batch, BatchResult.SUCCEEDED)
    Arena.remove(path)


def test_a_wake_up_goes_to_no_file_that_took_the_number_meanwhile(
    arena: Arena, wake_fifo: WakeFifo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread closes the waker while another one is about to write to it."""
    waker = SenderWaker(arena)
    waker.wake()
    wake_fifo.clear()
    write = os.write

    def write_late(descriptor: int, content: bytes) -> int:
        waker.close()
        with (tmp_path / "bystander").open("wb") as bystander:
            assert bystander.fileno() != descriptor
            return write(descriptor, content)

    monkeypatch.setattr(os, "write", write_late)
    waker.wake()
    assert has_rung(wake_fifo)
    assert open_count(wake_fifo) == 1


@pytest.mark.parametrize("way", ["removed", "moved", "replaced"])
def test_a_living_sender_creates_its_wake_fifo_again(arena: Arena, accumulator: Accumulator, way: str) -> None:
    """A report names the new file. A producer that has the old one open writes to the new one."""
    sender = Sender(arena, "null:")
    sender.open()
    wake_fifo = sender._wake_fifo
    assert wake_fifo is not None
    waker = SenderWaker(arena)
    waker.wake()
    path = Path(wake_fifo.path)
    if way == "removed":
        path.unlink()
    else:
        path.rename(path.with_name(path.name + ".away"))
    if way == "replaced":
        os.mkfifo(path, 0o600)
    check_names(sender)
    wake_fifo.clear()
    waker.wake()
    assert has_rung(wake_fifo)
    assert any(wake_fifo.path in report.sentence for report in read_reports(arena.native))
    check_names(sender)
    assert wake_fifo.check() is False
    waker.close()
    sender.close()
    path.with_name(path.name + ".away").unlink(missing_ok=True)


def test_health_reports_a_wake_fifo_that_cannot_be_created_again(arena: Arena, accumulator: Accumulator) -> None:
    sender = Sender(arena, "null:")
    sender.open()
    assert sender._wake_fifo is not None
    path = Path(sender._wake_fifo.path)
    path.unlink()
    path.mkdir()
    check_names(sender)
    (trouble,) = troubles(Observer(arena).observe())
    path.rmdir()
    assert trouble.kind == "impaired"
    assert f"{path} was removed or replaced, and cannot be recreated" in trouble.sentence
    sender.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_waiting_loop_creates_the_results_fifo_again(arena: Arena, is_replaced: bool) -> None:
    listener, waker = ResultsListener(arena), ResultsWaker(arena)
    waker.wake()
    assert select.select([listener], [], [], 0)[0]
    listener.take_wake_up()
    path = Path(listener._path)
    path.unlink()
    waker.wake()  # to the listener at the old path
    assert select.select([listener], [], [], 0)[0]
    listener.take_wake_up()
    if is_replaced:
        os.mkfifo(path, 0o600)
    listener.check()
    waker.wake()
    assert select.select([listener], [], [], 0)[0]
    waker.close()
    listener.close()
