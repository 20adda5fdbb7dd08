# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/sharing.rst, step by step: processes of several users share an arena by its group.

The users and groups are numbers that nothing else uses. Only root may become them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena, semaphore_name
from shmaccum.arena.file import ArenaFile, group_number
from shmaccum.config import ArenaOptions
from shmaccum.exceptions import ArenaForbiddenError, BufferExhaustedError, InvalidArgumentError
from shmaccum.producer import Producer
from shmaccum.segment_log.reader import LogReader
from tests.support import SHARED_MEMORY, Child, wait_until

SENDER_USER, WORKER_USER, OTHER_WORKER, STRANGER = 23451, 23452, 23453, 23454
GROUP, OWN_GROUP = 23460, 23461
SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 16, "waiter_count": 8}
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "sharing.rst"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv of util-linux"
)


def become(user: int, *groups: int) -> None:
    """This process runs as the user, in these groups, the first of them its own; and hides what it makes."""
    os.umask(0o077)
    os.setgroups(list(groups))
    os.setgid(groups[0])
    os.setuid(user)


def as_user(user: int, groups: tuple[int, ...], function: Callable[[], Any]) -> str:
    """The repr of what a function returns in a process of the user."""

    def run() -> Any:
        become(user, *groups)
        return function()

    return Child(run).join()


def setpriv(user: int, group: int, *command: str) -> list[str]:
    """A command as systemd starts it with User= and Group=."""
    return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *command]


def permissions(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return stat.S_IMODE(found.st_mode), found.st_gid


def open_folder(folder: Path) -> Path:
    """Lets every user look into the folder, and the sender's user write into the folder `log` in it."""
    for each in (folder, *folder.parents):
        each.chmod(stat.S_IMODE(each.stat().st_mode) | 0o055)
    (folder / "log").mkdir()
    os.chown(folder / "log", SENDER_USER, GROUP)
    return folder


@pytest.fixture
def shared_name(arena_name: str) -> Iterator[str]:
    """The name of an arena that belongs to the sender's user and the group."""
    yield arena_name
    Arena.remove(arena_name, missing_ok=True)  # root takes away the semaphores of all users, too


def create_as_sender_user(name: str) -> None:
    def create() -> None:
        Arena.create(name, mode=0o660, group=GROUP, topics={"flights": 2}, **SMALL).close()

    as_user(SENDER_USER, (OWN_GROUP, GROUP), create)


# --- it works


@needs_root
@pytest.mark.parametrize("worker_groups", [(GROUP,), (OWN_GROUP + 1, GROUP)], ids=["own", "supplementary"])
def test_workers_of_two_users_and_a_sender_of_a_third_share_an_arena(
    shared_name: str, worker_groups: tuple[int, ...], tmp_path: Path
) -> None:
    log = open_folder(tmp_path) / "log"
    create_as_sender_user(shared_name)
    assert permissions(SHARED_MEMORY / shared_name) == (0o660, GROUP)
    command = [sys.executable, "-m", "shmaccum", "sender", shared_name, "--sink", f"log:{log}"]
    sender = subprocess.Popen([*setpriv(SENDER_USER, GROUP, *command), "--mode", "0660"], cwd=ROOT, umask=0o077)
    try:

        def send(value: bytes) -> int:
            producer = Producer(shared_name, mode=0o660)
            try:
                return producer.send("flights", value, partition=0).get(timeout=30).partition
            finally:
                producer.close(0)

        assert as_user(WORKER_USER, worker_groups, lambda: send(b"from one")) == "0"
        assert as_user(OTHER_WORKER, worker_groups, lambda: send(b"from another")) == "0"
        with Arena.open_read_only(shared_name, mode=0o660) as arena:
            doorbell = Path(ArenaFile.parse(shared_name).doorbell(arena.uuid))
            assert arena.native.errors() == []
        assert permissions(doorbell) == (0o660, GROUP)
    finally:
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(30) == 0
    records = LogReader(log).partition("flights", 0).records()
    assert [record.value for record in records] == [b"from one", b"from another"]


@needs_root
def test_workers_of_two_users_wake_each_other_when_the_arena_is_full(shared_name: str) -> None:
    """A semaphore that one of them made is used by the other, whatever the umask of its maker was."""
    create_as_sender_user(shared_name)

    def wait_in_vain(free_count: int) -> str:
        producer = Producer(shared_name, mode=0o660, max_block_ms=50)
        for _ in range(free_count):
            producer.send("flights", b"x" * 3000, partition=0)
        with pytest.raises(BufferExhaustedError):
            producer.send("flights", b"x" * 3000, partition=0)
        producer.close(0)
        with Arena.open_read_only(shared_name, mode=0o660) as arena:
            return repr(arena.native.errors())

    assert as_user(WORKER_USER, (OWN_GROUP + 1, GROUP), lambda: wait_in_vain(16)) == repr("[]")
    with Arena.open_read_only(shared_name, mode=0o660) as arena:
        semaphore = SHARED_MEMORY / f"sem.{semaphore_name(arena.uuid, 0)[1:]}"
    assert permissions(semaphore) == (0o660, GROUP)
    assert as_user(OTHER_WORKER, (OWN_GROUP + 2, GROUP), lambda: wait_in_vain(0)) == repr("[]")
    assert semaphore.lstat().st_uid == WORKER_USER


# --- a wrong combination says what to do


@needs_root
def test_a_user_outside_the_group_is_told_the_group(shared_name: str) -> None:
    create_as_sender_user(shared_name)

    def attach() -> str:
        try:
            Producer(shared_name, mode=0o660)
        except ArenaForbiddenError as error:
            return str(error)
        return "attached"

    said = as_user(STRANGER, (OWN_GROUP + 3,), attach)
    assert f"belongs to user {SENDER_USER} and group {GROUP} and has mode 0o660" in said
    assert "Run as that user or as a member of that group" in said


@needs_root
def test_a_member_that_does_not_say_the_mode_is_told_to(shared_name: str) -> None:
    create_as_sender_user(shared_name)

    def attach() -> str:
        try:
            Producer(shared_name)
        except ArenaForbiddenError as error:
            return str(error)
        return "attached"

    assert "attach with mode=0o660 (--mode 0660) if sharing it is meant" in as_user(WORKER_USER, (GROUP,), attach)


@needs_root
def test_an_arena_that_its_group_may_only_read_says_so(shared_name: str) -> None:
    create_as_sender_user(shared_name)
    (SHARED_MEMORY / shared_name).chmod(0o640)

    def attach() -> str:
        try:
            Producer(shared_name, mode=0o660)
        except ArenaForbiddenError as error:
            return str(error)
        return "attached"

    assert "or create the arena with a group and mode 0660" in as_user(WORKER_USER, (GROUP,), attach)


@needs_root
def test_a_user_gives_an_arena_only_to_a_group_of_its_own(arena_name: str) -> None:
    def create() -> str:
        try:
            Arena.create(arena_name, mode=0o660, group=GROUP, **SMALL)
        except ArenaForbiddenError as error:
            return str(error)
        return "created"

    said = as_user(STRANGER, (OWN_GROUP,), create)
    assert f"user {STRANGER} may not give {arena_name} to group {GROUP}: make the user a member" in said
    assert not Arena.exists(arena_name)


@needs_root
def test_a_sender_that_may_not_write_beside_the_arena_says_so(tmp_path: Path) -> None:
    path = open_folder(tmp_path) / "x.arena"
    Arena.create(path, mode=0o660, group=GROUP, **SMALL).close()
    command = [sys.executable, "-m", "shmaccum", "sender", str(path), "--sink", "null:", "--mode", "0660"]
    ended = subprocess.run(setpriv(SENDER_USER, GROUP, *command), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"user {SENDER_USER} may not make the doorbell {path}.bell: let that user write" in ended.stderr


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o620])
def test_a_group_needs_a_mode_that_lets_it_in(mode: int, arena_name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"mode {mode:#o} does not let group {GROUP} use the arena"):
        Arena.create(arena_name, mode=mode, group=GROUP, **SMALL)
    assert not Arena.exists(arena_name)


def test_a_group_is_a_name_or_a_number() -> None:
    assert (group_number(None, 0o600), group_number(GROUP, 0o660)) == (None, GROUP)
    assert [ArenaOptions.parse({"group": given}).group for given in (17, "17", "own", "root")] == [17, 17, None, "root"]
    assert group_number("root", 0o660) == 0
    with pytest.raises(InvalidArgumentError, match="this host has no group 'no-such-group': make it"):
        group_number("no-such-group", 0o660)


def test_a_producer_takes_the_mode_only_with_a_name(arena: Arena) -> None:
    with pytest.raises(InvalidArgumentError, match="is attached already"):
        Producer(arena, mode=0o660)


# --- the page


@needs_root
def test_the_commands_of_the_page_do_what_it_says(shared_name: str, tmp_path: Path) -> None:
    """With numbers in the place of names, and without the two lines that make users and start systemd."""
    text = PAGE.read_text(encoding="utf-8")
    (create,) = re.findall(r"ExecStartPre=/opt/app/bin/shmaccum (.*)", text)
    (sender,) = re.findall(r"ExecStart=/opt/app/bin/shmaccum (.*)", text)
    log = open_folder(tmp_path) / "log"

    def command(line: str) -> list[str]:
        line = line.replace("events ", f"{shared_name} ", 1).replace("--group shmaccum", f"--group {GROUP}")
        line = line.replace("/var/lib/shmaccum/log", str(log))
        return setpriv(SENDER_USER, GROUP, sys.executable, "-m", "shmaccum", *line.split())

    subprocess.run(command(create), cwd=ROOT, check=True, umask=0o022, timeout=60)
    running = subprocess.Popen(command(sender), cwd=ROOT, umask=0o022)
    try:
        (program,) = re.findall(r"code-block:: python\n\n((?:    .*\n|\n)+)", text)
        program = re.sub("^    ", "", program, flags=re.MULTILINE).replace('"events"', repr(shared_name))
        worker = setpriv(WORKER_USER, GROUP, sys.executable, "-c", program)
        subprocess.run(worker, cwd=ROOT, check=True, timeout=60)
        wait_until(lambda: list(log.glob("flights-*/*.log")) != [], "the log has the record")
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    reader = LogReader(log)
    values = [record.value for place in reader.topic_partitions() for record in reader.partition(*place).records()]
    assert values == [b"AA11 landed"]
