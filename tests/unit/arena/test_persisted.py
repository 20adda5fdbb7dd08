# SPDX-License-Identifier: Apache-2.0
"""Arenas that outlive their processes: delivered and saved records, messages, and errors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shmaccum.arena import Arena
from shmaccum.exceptions import LayoutMismatchError
from shmaccum.log.files.reader import LogReader
from tests.support.accumulator import Accumulator
from tests.support.arenas import check_idle, deliver_all
from tests.support.processes import Child, wait_until
from tests.unit.cli.conftest import Shell

SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 16, "waiter_count": 8}
READY = [b"ready-%d" % number for number in range(6)]
OPEN = [b"open-%d" % number for number in range(4)]
DAMAGED = b"to be scribbled on"
LAYOUT_VERSION_AT = 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.arena"


@pytest.fixture
def shell() -> Shell:
    return Shell()


def leave_behind(path: Path) -> None:
    """Leave two sealed batches, an open one, and one to be damaged. Then kill all processes."""
    with Arena.create(path, **SMALL) as arena, Accumulator(arena) as accumulator:
        for half in (READY[:3], READY[3:]):
            for value in half:
                accumulator.append("flights", 0, 1_700_000_000_000, None, value)
            accumulator.flush_begin()
        for value in OPEN:
            accumulator.append("flights", 1, 1_700_000_000_000, None, value)
        accumulator.append("cargo", 0, 1_700_000_000_000, None, DAMAGED)
        os.kill(os.getpid(), signal.SIGKILL)


def scribble(path: Path) -> None:
    data = path.read_bytes()
    with open(path, "r+b") as stream:
        stream.seek(data.index(DAMAGED))
        stream.write(b"T")


def boot_again(path: Path) -> None:
    """Make the arena look last used in another boot, as after a crash of the host."""
    boot_id = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "").strip())
    at = path.read_bytes().index(boot_id)
    with open(path, "r+b") as stream:
        stream.seek(at)
        stream.write(bytes(range(16)))


@pytest.fixture
def left(path: Path) -> Path:
    child = Child(leave_behind, path)
    os.waitpid(child.pid, 0)
    return path


# --- every process died


def test_the_plan_is_reported_and_nothing_is_done(left: Path, shell: Shell) -> None:
    before = left.read_bytes()
    said = shell("recover", str(left), "--dry-run").stdout
    assert "last used in this boot: its state is trusted" in said
    assert "2 open batches to seal at the last committed record" in said
    assert "4 batches with 11 records for the next sender to deliver" in said
    assert left.read_bytes() == before


def test_the_next_sender_delivers_all_of_it_in_order(left: Path) -> None:
    with Arena.attach(left) as arena:
        assert arena.native.was_recovered
        with Accumulator(arena) as sender:
            sender.become_sender()
            values = deliver_all(sender)
        assert [value for value in values if value in READY] == READY
        assert [value for value in values if value in OPEN] == OPEN
        assert sorted(filter(None, values)) == sorted([*READY, *OPEN, DAMAGED])
        check_idle(arena)


def test_producers_continue_after_what_was_left(left: Path) -> None:
    with Arena.attach(left) as arena, Accumulator(arena) as accumulator:
        accumulator.append("flights", 0, 1_700_000_000_000, None, b"after")
        accumulator.become_sender()
        values = deliver_all(accumulator)
        assert [value for value in values if value in [*READY, b"after"]] == [*READY, b"after"]


def test_a_process_that_waits_for_a_recovery_recovers_when_the_other_one_died(left: Path) -> None:
    descriptor = os.open(left, os.O_RDWR)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))

    def attach() -> tuple[bool, int]:
        os.close(descriptor)  # the child's copy would keep the lock
        with Arena.attach(left) as arena:
            return arena.native.was_recovered, arena.native.state_counts()["OPEN"]

    child = Child(attach)
    wait_until(lambda: sleeps_with(child, left), "the child waits for the lock")
    os.close(descriptor)
    assert child.join() == repr((True, 0))


def sleeps_with(child: Child, path: Path) -> bool:
    """Return whether the child has opened the arena in both ways, and sleeps."""
    names = []
    for entry in os.scandir(f"/proc/{child.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(entry.path))
    has_both = names.count(str(path)) == 2
    return has_both and "S (sleeping)" in Path(f"/proc/{child.pid}/status").read_text()


# --- the host crashed


def test_only_bytes_that_match_their_checksum_are_trusted(left: Path, shell: Shell) -> None:
    scribble(left)
    boot_again(left)
    said = shell("recover", str(left), "--dry-run", code=1).stdout
    assert "last used in another boot: only checksums are trusted" in said
    assert "3 batches with 10 records for the next sender to deliver" in said
    assert "1 damaged batch to keep for inspection" in said
    document = shell.json("recover", str(left), code=1)
    assert (document["quarantined_count"], document["record_count"], document["findings"]) == (1, 10, [])


def test_what_is_damaged_is_kept_shown_and_exported_and_stops_no_other(
    left: Path, shell: Shell, tmp_path: Path
) -> None:
    scribble(left)
    boot_again(left)
    with Arena.attach(left) as arena, Accumulator(arena) as sender:
        sender.become_sender()
        assert sorted(filter(None, deliver_all(sender))) == sorted([*READY, *OPEN])
        assert arena.native.state_counts()["BAD"] == 1
        sender.append("cargo", 0, 1, None, b"the partition goes on")
        assert deliver_all(sender) == [b"the partition goes on"]
        check_idle(arena)
    (shown,) = shell.json("inspect", str(left), "--state", "BAD")
    assert (shown["topic"], shown["record_count"], shown["is_checksum_right"]) == ("cargo", 1, False)
    shell("recover", str(left), "--export", str(tmp_path / "export"), code=1)
    (entry,) = msgpack.unpackb((tmp_path / "export" / "index.msgpack").read_bytes())
    raw = (tmp_path / "export" / entry["file"]).read_bytes()
    assert b"To be scribbled on" in raw
    again = shell.json("recover", str(left))
    assert again["quarantined_count"] == 0, "a batch that is BAD already is no news"


def test_what_is_sound_is_exported_as_a_log(left: Path, shell: Shell, tmp_path: Path) -> None:
    shell("recover", str(left), "--export", str(tmp_path / "export"))
    reader = LogReader(tmp_path / "export")
    assert [record.value for record in reader.partition("flights", 0).records()] == READY
    assert [record.value for record in reader.partition("flights", 1).records()] == OPEN


# --- another layout


@pytest.mark.parametrize("opener", [Arena.attach, Arena.open_read_only])
def test_another_layout_is_refused_with_a_remedy(left: Path, opener: Any, shell: Shell) -> None:
    with open(left, "r+b") as stream:
        stream.seek(LAYOUT_VERSION_AT)
        stream.write((99).to_bytes(4, "little"))
    before = left.read_bytes()
    with pytest.raises(
        LayoutMismatchError, match=r"layout version 99.*drain the arena with the version that made it, or remove it"
    ):
        opener(left)
    for command in (("recover",), ("stat", "--once"), ("check",), ("remove",)):
        told = " ".join(shell(command[0], str(left), *command[1:], code=2).stderr.split())
        assert "drain the arena with the version that made it, or remove it" in told, command
    assert left.read_bytes() == before
