# SPDX-License-Identifier: Apache-2.0
"""A stranger, who is a user outside of the group, takes the names of a shared arena and of the files beside it first.

The users and groups are numbers that nothing else uses. Only root may become them. A child of this process becomes the
other user after all imports, because another user may be unable to read the checkout.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import pkgutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import shmaccum
from shmaccum import Producer, Sender, ensure_sender
from shmaccum.arena import Arena
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.presence import Presence
from shmaccum.arena.results_fifo import ResultsListener
from shmaccum.arena.wake_fifo import WakeFifo
from shmaccum.cli import main
from shmaccum.exceptions import ArenaForbiddenError
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.arenas import SHARED_MEMORY, end_senders
from tests.support.other_users import needs_root
from tests.support.processes import Child

SENDER_USER, WORKER_USER, STRANGER = 23451, 23452, 23454
GROUP, OWN_GROUP = 23460, 23461
NO_ID = 0xFFFFFFFF
SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 16, "waiter_count": 8}


def become(user: int, *groups: int) -> None:
    """Run this process as the user in these groups, the first as its own, with a private umask."""
    os.umask(0o077)
    os.setgroups(list(groups))
    os.setgid(groups[0])
    os.setuid(user)


def as_user(user: int, groups: tuple[int, ...], function: Callable[[], Any]) -> str:
    """Return the repr of a function's result in a process of the user."""

    def run() -> Any:
        become(user, *groups)
        return function()

    import_at_once()
    return Child(run).join()


@functools.cache
def import_at_once() -> None:
    """Import modules that the package imports at first use, because another user may be unable to read them."""
    for found in pkgutil.walk_packages(shmaccum.__path__, "shmaccum."):
        if found.name.split(".")[1] in {"arena", "cli", "config", "observe", "producer", "sender", "supervisor"}:
            with contextlib.suppress(ImportError):  # an optional package is missing
                importlib.import_module(found.name)


@pytest.fixture
def shared_name(arena_name: str) -> Iterator[str]:
    """The name of an arena that several users may create."""
    yield arena_name
    Arena.remove(arena_name, missing_ok=True)  # root also removes the semaphores of all users


def create_as_sender_user(name: str) -> None:
    def create() -> None:
        Arena.create(name, mode=0o660, group=GROUP, topics={"flights": 2}, **SMALL).close()

    as_user(SENDER_USER, (OWN_GROUP, GROUP), create)


def take_name(name: str, granted: tuple[int, ...] = (SENDER_USER, WORKER_USER), mode: int = 0o660) -> None:
    """Create the arena as a user outside of the group, and grant these users access by a file ACL."""

    def create() -> None:
        Arena.create(name, mode=mode, topics={"flights": 2}, **SMALL).close()
        if granted:
            rows = [
                (1, 6, NO_ID),
                *((2, 6, user) for user in granted),
                (4, 6, NO_ID),
                (16, 6, NO_ID),
                (32, 0, NO_ID),
            ]
            packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
            os.setxattr(SHARED_MEMORY / name, "system.posix_acl_access", packed)

    as_user(STRANGER, (OWN_GROUP + 3,), create)


def command_line(*arguments: str) -> Callable[[str], str]:
    importlib.import_module(f"shmaccum.cli.{arguments[0]}")  # another user may not be able to read the interpreter's

    def run(name: str) -> str:
        found = CliRunner().invoke(main, [argument.replace("NAME", name) for argument in arguments])
        return found.output if found.exit_code == 2 else f"accepted: {found.exit_code} {found.output}"

    return run


def refused(call: Callable[[str], Any]) -> Callable[[str], str]:
    def run(name: str) -> str:
        try:
            call(name)
        except ArenaForbiddenError as error:
            return str(error)
        return "accepted"

    return run


def pickled(name: str) -> None:
    shmaccum.arena.arena._reopen(name, False, 0o660, None)


USES: dict[str, Callable[[str], str]] = {
    "attach": refused(lambda name: Arena.attach(name, mode=0o660)),
    "any mode": refused(lambda name: Arena.attach(name, mode=0o777)),
    "attach with the group": refused(lambda name: Arena.attach(name, mode=0o660, group=GROUP)),
    "attach_or_create": refused(lambda name: Arena.attach_or_create(name, mode=0o660, **SMALL)),
    "attach_or_create with the group": refused(
        lambda name: Arena.attach_or_create(name, mode=0o660, group=GROUP, **SMALL)
    ),
    "pickled": refused(pickled),
    "producer": refused(lambda name: Producer(name, mode=0o660)),
    "sender": refused(lambda name: Sender(name, MemorySink(), mode=0o660)),
    "ensure_sender": refused(lambda name: ensure_sender(name, "memory:", mode=0o660)),
    "create": command_line("create", "NAME", "--exist-ok", "--mode", "0660"),
    "create for the group": command_line("create", "NAME", "--exist-ok", "--mode", "0660", "--group", str(GROUP)),
    "create for one user": command_line("create", "NAME", "--exist-ok"),
    "shmaccum sender": command_line("sender", "NAME", "--mode", "0660", "--sink", "memory:"),
    "shmaccum sender --detach": command_line("sender", "NAME", "--mode", "0660", "--sink", "memory:", "--detach"),
    "shmaccum produce": command_line("produce", "NAME", "-t", "flights", "--mode", "0660"),
    "shmaccum recover": command_line("recover", "NAME", "--mode", "0660"),
}
"""The ways to use a shared arena."""


@needs_root
@pytest.mark.parametrize("user", [SENDER_USER, 0], ids=["user", "root"])
@pytest.mark.parametrize("use", USES)
def test_an_arena_of_another_user_is_not_used(shared_name: str, use: str, user: int) -> None:
    take_name(shared_name)
    found = as_user(user, (GROUP if user else 0, OWN_GROUP), lambda: USES[use](shared_name))
    assert "file ACL" in found
    assert "setfacl -b" in found


@needs_root
@pytest.mark.parametrize("use", USES)
def test_an_arena_of_another_user_without_a_list_is_not_used(shared_name: str, use: str) -> None:
    """The test uses root, because the kernel grants it access."""
    take_name(shared_name, granted=())
    found = as_user(0, (0, GROUP), lambda: USES[use](shared_name))
    assert f"belongs to user {STRANGER} and group {OWN_GROUP + 3}" in found
    assert "accepted" not in found


@needs_root
def test_the_group_that_a_process_names_is_the_one_that_counts(shared_name: str) -> None:
    """A process that names its group rejects a stranger's arena, even if both are in a group such as `users`."""
    as_user(STRANGER, (OWN_GROUP,), lambda: Arena.create(shared_name, mode=0o660, **SMALL).close())

    def attach(group: int | None) -> str:
        return refused(lambda name: Arena.attach(name, mode=0o660, group=group).close())(shared_name)

    groups = (GROUP, OWN_GROUP)
    assert as_user(WORKER_USER, groups, lambda: attach(OWN_GROUP)) == repr("accepted")
    assert f"not to group {GROUP}" in as_user(WORKER_USER, groups, lambda: attach(GROUP))


@needs_root
def test_an_arena_that_root_made_for_the_group_is_used_by_its_members(shared_name: str) -> None:
    Arena.create(shared_name, mode=0o660, group=GROUP, **SMALL).close()

    def attach() -> str:
        with Arena.attach(shared_name, mode=0o660, group=GROUP) as arena:
            return str(arena.permissions)

    assert as_user(WORKER_USER, (OWN_GROUP, GROUP), attach) == repr(str((0, GROUP, 0o660)))


@needs_root
def test_root_uses_an_arena_of_another_user_when_it_names_the_group(shared_name: str) -> None:
    create_as_sender_user(shared_name)
    with pytest.raises(ArenaForbiddenError, match="name the group"):
        Arena.attach(shared_name, mode=0o660)
    with Arena.attach(shared_name, mode=0o660, group=GROUP) as arena:
        with pickle.loads(pickle.dumps(arena)) as again:
            assert again.group == GROUP
        with Producer(arena, sink="null:") as producer:  # its sender gets the group, too
            assert producer.send("flights", b"x").get(timeout=60).topic == "flights"
        end_senders(arena)


@needs_root
def test_a_list_of_the_folder_does_not_reach_an_arena_and_the_files_beside_it(tmp_path: Path) -> None:
    rows = [(1, 7, NO_ID), (2, 7, STRANGER), (4, 7, NO_ID), (16, 7, NO_ID), (32, 5, NO_ID)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    os.setxattr(tmp_path, "system.posix_acl_default", packed)
    with Arena.create(tmp_path / "arena", mode=0o660, group=GROUP, **SMALL) as arena:
        wake_fifo, present = WakeFifo(arena), Presence(arena)
        for path in (Path(arena.path), Path(wake_fifo.path), Path(present.path or "")):
            assert "system.posix_acl_access" not in os.listxattr(path)
        wake_fifo.close()
        present.close()


@needs_root
def test_a_wake_fifo_of_another_user_is_not_used(shared_name: str) -> None:
    """Its owner could keep the sender awake or asleep."""
    create_as_sender_user(shared_name)
    with Arena.attach(shared_name, mode=0o660, group=GROUP) as arena:
        paths = [
            ArenaFile.parse(shared_name).wake_fifo(arena.uuid),
            ArenaFile.parse(shared_name).results_fifo(arena.uuid),
        ]

    def take() -> None:
        for path in paths:
            os.mkfifo(path)
            os.chmod(path, 0o666)

    as_user(STRANGER, (OWN_GROUP,), take)

    def use() -> str:
        with Arena.attach(shared_name, mode=0o660) as arena:
            return " ".join(refused(kind)(arena) for kind in (WakeFifo, ResultsListener))  # type: ignore[arg-type]

    found = as_user(WORKER_USER, (GROUP,), use)
    assert found.count(f"belongs to user {STRANGER} and is not a FIFO") == 2
