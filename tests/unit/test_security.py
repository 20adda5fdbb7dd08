# SPDX-License-Identifier: Apache-2.0
"""Checks each sentence of SECURITY.rst: access of users, damage by other processes, and places without passwords."""

from __future__ import annotations

import mmap
import os
import posix
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shmaccum import _native
from shmaccum.arena import Arena, semaphore_name
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.results import BatchResult
from shmaccum.arena.semaphores import make_semaphore
from shmaccum.arena.wake_fifo import SenderWaker, WakeFifo
from shmaccum.config import KafkaSinkOptions, command_line_value
from shmaccum.config.secret import Secret
from shmaccum.exceptions import ArenaForbiddenError, InvalidArgumentError, NotAnArenaError
from shmaccum.producer.buffer_wait import BufferWaiter
from shmaccum.supervisor import ensure_sender
from tests.support.accumulator import Accumulator
from tests.support.arenas import SHARED_MEMORY, drain
from tests.support.other_users import OtherUsers, needs_root
from tests.unit.cli.conftest import Shell

SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 8, "waiter_count": 8}
PASSWORD = "correct-horse-battery"
LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "ann"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.arena"


@pytest.fixture
def liberal_umask() -> Any:
    former = os.umask(0)
    yield
    os.umask(former)


@pytest.fixture
def shell() -> Shell:
    return Shell()


def bytes_of(arena: Arena) -> bytes:
    return (SHARED_MEMORY / arena.name.removeprefix("/")).read_bytes()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- the boundary: users that may open it


@pytest.mark.usefixtures("liberal_umask")
def test_everything_an_arena_makes_is_its_users_alone(arena_name: str) -> None:
    with Arena.create(arena_name, **SMALL) as arena:
        wake_fifo = WakeFifo(arena)
        waiter = BufferWaiter(arena, SenderWaker(arena))
        with pytest.raises(InvalidArgumentError):
            _native.BufferWait.join(arena.native, 0)
        make_semaphore(arena, 0)
        made = [SHARED_MEMORY / arena_name, Path(wake_fifo.path)]
        made.append(SHARED_MEMORY / f"sem.{semaphore_name(arena.uuid, 0)[1:]}")
        assert [mode_of(each) for each in made] == [0o600] * 3
        assert {each.lstat().st_uid for each in made} == {os.geteuid()}
        waiter.close()
        wake_fifo.close()


@pytest.mark.usefixtures("liberal_umask")
def test_sharing_with_a_group_is_asked_for_twice(path: Path) -> None:
    Arena.create(path, mode=0o660, **SMALL).close()
    assert mode_of(path) == 0o660
    with pytest.raises(ArenaForbiddenError, match="if it is shared on purpose"):
        Arena.attach(path)
    with Arena.attach(path, mode=0o660) as arena:
        wake_fifo = WakeFifo(arena)
        assert mode_of(Path(wake_fifo.path)) == 0o660
        wake_fifo.close()


@pytest.mark.parametrize("mode", [0o602, 0o606, 0o666, 0o777])
def test_no_arena_is_writable_by_all_users(path: Path, mode: int) -> None:
    with pytest.raises(InvalidArgumentError, match="every user of this host"):
        Arena.create(path, mode=mode, **SMALL)
    assert not path.exists()
    Arena.create(path, **SMALL).close()
    path.chmod(mode)
    with pytest.raises(ArenaForbiddenError, match="nothing in it can be trusted"):
        Arena.attach(path, mode=mode)
    with Arena.open_read_only(path, mode=mode) as looked_at:
        assert looked_at.verify() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_another_users_arena_is_entered_only_when_that_is_meant(path: Path) -> None:
    Arena.create(path, mode=0o660, **SMALL).close()
    os.chown(path, 12345, -1)
    with pytest.raises(ArenaForbiddenError, match="belongs to user 12345"):
        Arena.attach(path)
    Arena.attach(path, mode=0o660).close()


@needs_root
@pytest.mark.parametrize("opener", ["attach", "open_read_only"])
def test_another_user_cannot_even_look(other_users: OtherUsers, arena_name: str, opener: str) -> None:
    program = (
        "import sys; from shmaccum.arena import Arena; from shmaccum.exceptions import ArenaForbiddenError\n"
        f"try: Arena.{opener}(sys.argv[1], mode=0o660)\n"
        "except ArenaForbiddenError as error: print(error)\n"
    )
    with Arena.create(arena_name, **SMALL):
        said = other_users.output(12345, (12345,), program, arena_name)
    assert "may not be opened by user 12345" in said


def test_links_lead_nowhere(path: Path, tmp_path: Path) -> None:
    Arena.create(path, **SMALL).close()
    link = tmp_path / "link.arena"
    link.symlink_to(path)
    for opener in (Arena.attach, Arena.open_read_only):
        with pytest.raises(NotAnArenaError, match="symbolic link"):
            opener(link)


def test_a_link_in_shared_memory_leads_nowhere(arena_name: str, path: Path) -> None:
    Arena.create(path, **SMALL).close()
    link = SHARED_MEMORY / arena_name
    link.symlink_to(path)
    try:
        with pytest.raises(NotAnArenaError, match="symbolic link"):
            Arena.attach(arena_name)
    finally:
        link.unlink()


def test_nothing_is_written_to_a_wake_fifo_that_is_a_link(path: Path, tmp_path: Path) -> None:
    with Arena.create(path, **SMALL) as arena:
        fifo = Path(f"{path}.bell")
        target = tmp_path / "target"
        os.mkfifo(target, 0o600)
        fifo.symlink_to(target)
        listener = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
        SenderWaker(arena).wake()
        assert os.read(listener, 1) == b""
        os.close(listener)
        fifo.unlink()


def test_a_file_that_is_exchanged_while_it_is_opened_is_opened_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.arena"
    Arena.create(path, **SMALL).close()
    with Arena.create(other, **SMALL) as arena:
        uuid = arena.uuid
    real_open = ArenaFile._open_once

    def open_and_exchange(self: ArenaFile, *, read_only: bool) -> int:
        descriptor = real_open(self, read_only=read_only)
        if other.exists():
            posix.replace(other, path)
        return descriptor

    monkeypatch.setattr(ArenaFile, "_open_once", open_and_exchange)
    with Arena.attach(path) as arena:
        assert arena.uuid == uuid


# --- inside: a stray write of another process


def scribble(arena: Arena, slot_index: int, at: int) -> None:
    """Flip one bit of a batch, as a stray pointer of another process could."""
    geometry = arena.geometry
    with (SHARED_MEMORY / arena.name).open("r+b") as file, mmap.mmap(file.fileno(), arena.native.size) as mapped:
        start = arena.native.size - geometry["slot_count"] * geometry["slot_stride"]
        mapped[start + slot_index * geometry["slot_stride"] + at] ^= 0x10


def test_bytes_that_another_process_changed_are_found_before_they_are_sent(arena: Arena, sender: Accumulator) -> None:
    token = sender.append("flights", 0, 1, b"key", b"value" * 50)
    scribble(arena, token.slot_index, 100)
    assert [finding.slot_index for finding in arena.verify(depth=2)] == [token.slot_index]  # type: ignore[arg-type]
    (batch,) = drain(sender)
    sender.quarantine(batch)
    found = sender.find(token)
    assert found is not None
    assert found.result is BatchResult.CORRUPT
    assert arena.native.state_counts()["BAD"] == 1


def test_nothing_of_a_batch_is_left_in_its_slot(arena: Arena, sender: Accumulator) -> None:
    sender.append("flights", 0, 1, None, PASSWORD.encode())
    assert PASSWORD.encode() in bytes_of(arena)
    for batch in drain(sender):
        sender.complete(batch, BatchResult.SUCCEEDED)
    assert PASSWORD.encode() not in bytes_of(arena)


# --- credentials


@pytest.mark.parametrize("name", ["sasl_plain_password", "sasl.plain.password", "ssl_password"])
def test_a_command_line_takes_the_place_of_a_password_and_not_the_password(name: str) -> None:
    assert command_line_value(name, "env:SECRET") == command_line_value(name, Secret("env:SECRET")) == "env:SECRET"
    assert command_line_value("sasl_plain_username", "ann") == "ann"
    for given in (PASSWORD, Secret(PASSWORD)):
        with pytest.raises(InvalidArgumentError, match="env:NAME or file:PATH") as caught:
            command_line_value(name, given)
        assert PASSWORD not in str(caught.value)


def test_no_sender_is_started_with_a_password_on_its_command_line(arena: Arena) -> None:
    with pytest.raises(InvalidArgumentError, match="command line"):
        ensure_sender(arena, "kafka:127.0.0.1:1", sink_options={**LOGIN, "sasl_plain_password": PASSWORD})
    assert not arena.native.sender_is_alive


def test_the_commands_refuse_it_too(arena: Arena, shell: Shell) -> None:
    given = ("-X", f"sasl_plain_password={PASSWORD}")
    refused = shell("sender", arena.name, "--sink", "kafka:127.0.0.1:1", *given, code=2)
    assert "env:NAME or file:PATH" in refused.stderr
    assert PASSWORD not in refused.output
    command = [sys.executable, "-m", "shmaccum.sender", arena.name, "--sink=null:"]
    ended = subprocess.run([*command, f"--sink-set=ssl_password={PASSWORD}"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "env:NAME or file:PATH" in ended.stderr
    assert PASSWORD not in ended.stderr


def test_a_running_sender_shows_its_password_nowhere(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: Shell
) -> None:
    monkeypatch.setenv("SHMACCUM_TEST_PASSWORD", PASSWORD)
    log = tmp_path / "sender.log"
    login = {**LOGIN, "sasl_plain_password": "env:SHMACCUM_TEST_PASSWORD"}
    pytest.importorskip("kafka")
    ensure_sender(arena, "kafka:127.0.0.1:1", log_path=log, sink_options=login)
    process = next(each for each in arena.native.processes() if each["role"] == "sender")
    facts = Path(f"/proc/{process['pid']}")
    try:
        shown = (facts / "cmdline").read_bytes() + (facts / "comm").read_bytes() + log.read_bytes()
        shown += bytes_of(arena)
        for look in ("stat", "inspect", "check"):
            shown += shell(look, arena.name, "--json", code=None).output.encode()
    finally:
        os.kill(process["pid"], 9)
    assert PASSWORD.encode() not in shown
    assert b"env:SHMACCUM_TEST_PASSWORD" in shown, "it does not show what it should"


def test_a_password_is_in_no_error() -> None:
    for wrong in ({"sasl_plain_username": 17}, {"sasl_mechanism": "none such"}, {"reconnect_backoff_ms": "99d"}):
        with pytest.raises(InvalidArgumentError) as caught:
            KafkaSinkOptions.parse({**LOGIN, "sasl_plain_password": PASSWORD, **wrong})
        assert PASSWORD not in str(caught.value)


def test_the_page_is_in_the_distribution() -> None:
    root = Path(__file__).parents[2]
    assert "SECURITY.rst" in (root / "MANIFEST.in").read_text()
