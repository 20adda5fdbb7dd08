# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/permissions.rst, step by step: processes of several users share an arena by its group.

The users and groups are numbers that nothing else uses. Only root may become them.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena, semaphore_name
from shmaccum.arena.file import ArenaFile, group_number
from shmaccum.config import ArenaOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.reader import LogReader
from shmaccum.producer import Producer
from tests.support.arenas import SHARED_MEMORY
from tests.support.other_users import OtherUsers, needs_root
from tests.support.processes import wait_until

SENDER_USER, WORKER_USER, OTHER_WORKER, STRANGER = 23451, 23452, 23453, 23454
GROUP, OWN_GROUP = 23460, 23461
SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 16, "waiter_count": 8}
ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "permissions.rst"

CREATE = """
import sys
from shmaccum.arena import Arena
from shmaccum.exceptions import ArenaForbiddenError
try:
    Arena.create(sys.argv[1], mode=0o660, group=int(sys.argv[2]), topics={"flights": 2}, buffer_memory="64KiB",
                 batch_size="4KiB", process_count=16, waiter_count=8).close()
except ArenaForbiddenError as error:
    print(error)
"""
ATTACH = """
import sys
from shmaccum.exceptions import ArenaForbiddenError
from shmaccum.producer import Producer
mode = {"mode": int(sys.argv[2], 8)} if len(sys.argv) > 2 else {}
try:
    Producer(sys.argv[1], **mode)
except ArenaForbiddenError as error:
    print(error)
else:
    print("attached")
"""
SEND = """
import sys
from shmaccum.producer import Producer
producer = Producer(sys.argv[1], mode=0o660)
try:
    print(producer.send("flights", sys.argv[2].encode(), partition=0).get(timeout=30).partition)
finally:
    producer.close(0)
"""
WAIT_IN_VAIN = """
import sys
from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError
from shmaccum.producer import Producer
producer = Producer(sys.argv[1], mode=0o660, max_block_ms=50)
for _ in range(int(sys.argv[2])):
    producer.send("flights", b"x" * 3000, partition=0)
try:
    producer.send("flights", b"x" * 3000, partition=0)
except BufferExhaustedError:
    print("exhausted")
producer.close(0)
with Arena.open_read_only(sys.argv[1], mode=0o660) as arena:
    print(arena.native.errors())
"""


def permissions(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return stat.S_IMODE(found.st_mode), found.st_gid


@pytest.fixture
def folder(other_users: OtherUsers) -> Path:
    """A folder that every user can read, with the folder `log` for the sender's user."""
    folder = other_users.new_folder()
    (folder / "log").mkdir()
    os.chown(folder / "log", SENDER_USER, GROUP)
    return folder


@pytest.fixture
def shared_name(arena_name: str) -> Iterator[str]:
    """The name of an arena that belongs to the sender's user and the group."""
    yield arena_name
    Arena.remove(arena_name, missing_ok=True)  # root also removes the semaphores of all users


def create_as_sender_user(other_users: OtherUsers, name: str) -> None:
    assert other_users.output(SENDER_USER, (OWN_GROUP, GROUP), CREATE, name, str(GROUP)) == ""


def start_as_sender_user(other_users: OtherUsers, umask: int, *arguments: str) -> subprocess.Popen[bytes]:
    """Start ``shmaccum`` as systemd does with User= and Group=."""
    command = other_users.command(SENDER_USER, (GROUP,), "-m", "shmaccum", *arguments)
    return subprocess.Popen(command, env=other_users.environment, cwd=other_users.folder, umask=umask)


# --- correct settings


@needs_root
@pytest.mark.parametrize("worker_groups", [(GROUP,), (OWN_GROUP + 1, GROUP)], ids=["own", "supplementary"])
def test_workers_of_two_users_and_a_sender_of_a_third_share_an_arena(
    other_users: OtherUsers, shared_name: str, worker_groups: tuple[int, ...], folder: Path
) -> None:
    log = folder / "log"
    create_as_sender_user(other_users, shared_name)
    assert permissions(SHARED_MEMORY / shared_name) == (0o660, GROUP)
    sender = start_as_sender_user(other_users, 0o077, "sender", shared_name, "--sink", f"log:{log}", "--mode", "0660")
    try:
        assert other_users.output(WORKER_USER, worker_groups, SEND, shared_name, "from one") == "0"
        assert other_users.output(OTHER_WORKER, worker_groups, SEND, shared_name, "from another") == "0"
        with Arena.open_read_only(shared_name, mode=0o660) as arena:
            wake_fifo = Path(ArenaFile.parse(shared_name).wake_fifo(arena.uuid))
            assert arena.native.errors() == []
        assert permissions(wake_fifo) == (0o660, GROUP)
    finally:
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(30) == 0
    records = LogReader(log).partition("flights", 0).records()
    assert [record.value for record in records] == [b"from one", b"from another"]


@needs_root
def test_workers_of_two_users_wake_each_other_when_the_arena_is_full(other_users: OtherUsers, shared_name: str) -> None:
    """A semaphore that one user created works for the other, for any umask of its creator."""
    create_as_sender_user(other_users, shared_name)
    one, another = (OWN_GROUP + 1, GROUP), (OWN_GROUP + 2, GROUP)
    assert other_users.output(WORKER_USER, one, WAIT_IN_VAIN, shared_name, "16").splitlines() == ["exhausted", "[]"]
    with Arena.open_read_only(shared_name, mode=0o660) as arena:
        semaphore = SHARED_MEMORY / f"sem.{semaphore_name(arena.uuid, 0)[1:]}"
    assert permissions(semaphore) == (0o660, GROUP)
    assert other_users.output(OTHER_WORKER, another, WAIT_IN_VAIN, shared_name, "0").splitlines() == ["exhausted", "[]"]
    assert semaphore.lstat().st_uid == WORKER_USER


# --- wrong settings raise an error with a remedy


@needs_root
def test_a_user_outside_the_group_learns_the_group(other_users: OtherUsers, shared_name: str) -> None:
    create_as_sender_user(other_users, shared_name)
    said = other_users.output(STRANGER, (OWN_GROUP + 3,), ATTACH, shared_name, "660")
    assert f"belongs to user {SENDER_USER} and group {GROUP} and has mode 0o660" in said
    assert "Run as that user or as a member of that group" in said


@needs_root
def test_a_member_without_the_mode_gets_advice(other_users: OtherUsers, shared_name: str) -> None:
    create_as_sender_user(other_users, shared_name)
    said = other_users.output(WORKER_USER, (GROUP,), ATTACH, shared_name)
    assert "attach with mode=0o660 (--mode 0660) if it is shared on purpose" in said


@needs_root
def test_an_arena_that_its_group_may_only_read_reports_it(other_users: OtherUsers, shared_name: str) -> None:
    create_as_sender_user(other_users, shared_name)
    (SHARED_MEMORY / shared_name).chmod(0o640)
    said = other_users.output(WORKER_USER, (GROUP,), ATTACH, shared_name, "660")
    assert "or create the arena with a group and mode 0660" in said


@needs_root
def test_a_user_gives_an_arena_only_to_a_group_of_its_own(other_users: OtherUsers, arena_name: str) -> None:
    said = other_users.output(STRANGER, (OWN_GROUP,), CREATE, arena_name, str(GROUP))
    assert f"user {STRANGER} may not give {arena_name} to group {GROUP}: make the user a member" in said
    assert not Arena.exists(arena_name)


@needs_root
def test_a_sender_that_may_not_write_beside_the_arena_reports_it(other_users: OtherUsers, folder: Path) -> None:
    path = folder / "x.arena"
    Arena.create(path, mode=0o660, group=GROUP, **SMALL).close()
    arguments = ("-m", "shmaccum", "sender", str(path), "--sink", "null:", "--mode", "0660")
    ended = other_users.run(SENDER_USER, (GROUP,), *arguments)
    assert ended.returncode == 2
    assert f"user {SENDER_USER} may not create the FIFO {path}.bell: let that user write" in ended.stderr


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o620])
def test_a_group_needs_a_mode_that_lets_it_in(mode: int, arena_name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"mode {mode:#o} does not let group {GROUP} use the arena"):
        Arena.create(arena_name, mode=mode, group=GROUP, **SMALL)
    assert not Arena.exists(arena_name)


def test_a_group_is_a_name_or_a_number() -> None:
    assert (group_number(None, 0o600), group_number(GROUP, 0o660)) == (None, GROUP)
    assert [ArenaOptions.parse({"group": given}).group for given in (17, "17", "own", "root")] == [17, 17, None, "root"]
    assert group_number("root", 0o660) == 0
    with pytest.raises(InvalidArgumentError, match="this host has no group 'no-such-group': create it"):
        group_number("no-such-group", 0o660)


def test_a_producer_takes_the_mode_only_with_a_name(arena: Arena) -> None:
    with pytest.raises(InvalidArgumentError, match="is already attached"):
        Producer(arena, mode=0o660)


# --- the page


@needs_root
def test_the_commands_of_the_page_do_what_it_says(other_users: OtherUsers, shared_name: str, folder: Path) -> None:
    """Numbers replace the names. The two lines that create users and start systemd are left out."""
    text = PAGE.read_text(encoding="utf-8")
    (create,) = re.findall(r"ExecStartPre=/opt/app/bin/shmaccum (.*)", text)
    (sender,) = re.findall(r"ExecStart=/opt/app/bin/shmaccum (.*)", text)
    log = folder / "log"

    def arguments(line: str) -> list[str]:
        line = line.replace("events ", f"{shared_name} ", 1).replace("--group shmaccum", f"--group {GROUP}")
        return line.replace("/var/lib/shmaccum/log", str(log)).split()

    assert start_as_sender_user(other_users, 0o022, *arguments(create)).wait(60) == 0
    running = start_as_sender_user(other_users, 0o022, *arguments(sender))
    try:
        (program,) = re.findall(r"code-block:: python\n\n((?:    .*\n|\n)+)", text)
        program = re.sub("^    ", "", program, flags=re.MULTILINE).replace('"events"', repr(shared_name))
        other_users.output(WORKER_USER, (GROUP,), program)
        wait_until(lambda: list(log.glob("flights-*/*.log")) != [], "the log has the record")
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    reader = LogReader(log)
    values = [record.value for place in reader.topic_partitions() for record in reader.partition(*place).records()]
    assert values == [b"AA11 landed"]
