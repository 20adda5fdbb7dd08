# SPDX-License-Identifier: Apache-2.0
"""An upgrade with records inside: arenas that a build of the former layout left are opened, and nothing is lost.

``layout-1.tar.xz`` was made by `make_arenas.py`, which says what lies in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmaccum import _native
from shmaccum.arena import Arena, VerifyDepth, semaphore_name, upgrade
from shmaccum.arena.creation import FLOCK
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.former_layout import PROCESS_LOCK_START, RETIRED, VERSION, FormerArena
from shmaccum.exceptions import ArenaError, LayoutMismatchError
from shmaccum.observe.inspection import Inspector
from shmaccum.segment_log.reader import LogReader
from shmaccum.sender import Sender
from tests.support.accumulator import Accumulator
from tests.support.arenas import SHARED_MEMORY, check_idle, deliver_all
from tests.support.other_users import OtherUsers, needs_root
from tests.support.processes import Child, wait_until
from tests.support.system_calls import dies_at_system_call
from tests.unit.cli.conftest import Shell

ARCHIVE = Path(__file__).with_name("layout-1.tar.xz")
CASES = ("clean", "killed", "oversized", "in_flight", "dead_letter", "split", "synced", "damaged")
VERSION_AT = 8
TOPIC_COUNT_AT = 4096 + 320
NOBODY = 12345


class Left(NamedTuple):
    """The files of a case, and its ledger."""

    path: Path
    log: Path
    dead: Path
    ledger: dict[str, dict[str, list[str]]]

    def values(self, which: str) -> dict[str, list[str]]:
        return self.ledger.get(which, {})


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("former")
    with tarfile.open(ARCHIVE) as tar:
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # Python 3.12 warns without one
        tar.extractall(folder)
    return folder


@pytest.fixture
def leave(unpacked: Path, tmp_path: Path) -> Callable[[str], Left]:
    """Puts a case where the test may change it."""

    def put(case: str) -> Left:
        folder = tmp_path / case
        shutil.copytree(unpacked / case, folder)
        ledger = json.loads((unpacked / "cases.json").read_text())[case]
        return Left(folder / "x.arena", folder / "log", folder / "dead", ledger)

    return put


@pytest.fixture
def shell() -> Shell:
    return Shell()


def values_in(arena: Arena) -> dict[str, list[str]]:
    """Values of the batches that wait to be delivered, by topic and partition, in their order."""
    inspector = Inspector(arena)
    found = sorted(inspector.slots(frozenset({"READY"})), key=lambda facts: (facts.topic or "", facts.seq or 0))
    values: dict[str, list[str]] = {}
    for facts in found:
        records = inspector.records(facts)
        assert records is not None
        values.setdefault(f"{facts.topic}-{facts.partition}", []).extend(record[3].decode() for record in records)
    return values


def values_of_log(folder: Path) -> dict[str, list[str]]:
    """Values in a log, by topic and partition; empty partitions left out."""
    reader = LogReader(folder)
    values = {
        f"{topic}-{partition}": [
            (record.value or b"").decode() for record in reader.partition(topic, partition).records()
        ]
        for topic, partition in reader.topic_partitions()
    }
    return {name: found for name, found in values.items() if found}


def deliver(name: str | Path, log: Path, dead: Path) -> None:
    """A sender of this build runs until nothing waits any more."""
    with Sender(name, f"log:{log}", dead_letter=f"log:{dead}", linger_ms=0) as sender:
        sender.open()
        native = sender.arena.native

        def is_over() -> bool:
            sender.stop(0) if native.state_counts()["READY"] == 0 else sender.run_once()
            return native.state_counts()["READY"] == 0

        wait_until(is_over, "everything is delivered")


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".upgrade")]


# --- everything is delivered, once


@pytest.mark.parametrize("case", CASES)
def test_a_sender_delivers_each_record_of_the_former_build_once(case: str, leave: Callable[[str], Left]) -> None:
    left = leave(case)
    deliver(left.path, left.log, left.dead)
    assert values_of_log(left.log) == left.values("log")
    assert values_of_log(left.dead) == left.values("dead")
    with Arena.attach(left.path) as arena:
        check_idle(arena)
        assert arena.native.state_counts()["BAD"] == len(left.values("bad"))
    assert leftovers(left.path.parent) == []


@pytest.mark.parametrize("case", ["killed", "in_flight"])
def test_shared_memory_is_upgraded_as_files_are(case: str, leave: Callable[[str], Left], arena_name: str) -> None:
    left = leave(case)
    shutil.copy(left.path, SHARED_MEMORY / arena_name)
    with left.path.open("rb") as former:
        copy = f".shmaccum-{FormerArena(former.fileno()).uuid.hex()[:12]}.upgrade"
    deliver(arena_name, left.log, left.dead)
    assert values_of_log(left.log) == left.values("log")
    assert copy not in leftovers(SHARED_MEMORY)


def test_it_is_the_same_arena_with_the_same_numbers(leave: Callable[[str], Left]) -> None:
    left = leave("in_flight")
    former = FormerArena(os.open(left.path, os.O_RDONLY))
    with Arena.attach(left.path) as arena:
        assert arena.uuid == former.uuid
        assert arena.native.created_ms == int(former.superblock["created_ms"][0])
        assert arena.geometry == former.geometry | {"is_transactional": 0}
        assert arena.options == {"made_by": "beda61f"}
        assert arena.native.topic_partition_count("flights") == 3
        assert arena.native.producer_identity[:2] == (0, 0)
        assert arena.statistics().record_count == 26
        assert arena.native.counters()["batches opened"] == 11
        assert arena.verify(VerifyDepth.DEEP, is_idle=True) == []
        sequences = {(facts.topic, facts.partition, facts.seq): facts for facts in Inspector(arena).slots()}
        assert sequences["flights", 0, 0].base_sequence == 0
        assert sequences["flights", 0, 0].attempt_count == 1


def test_producers_go_on_behind_what_was_left(leave: Callable[[str], Left]) -> None:
    left = leave("in_flight")
    with Arena.attach(left.path) as arena, Accumulator(arena) as producer:
        producer.append("flights", 0, 1, None, b"after the upgrade")
    deliver(left.path, left.log, left.dead)
    assert values_of_log(left.log)["flights-0"] == [*left.values("log")["flights-0"], "after the upgrade"]


# --- nothing is lost by looking


@pytest.mark.parametrize("case", CASES)
def test_an_export_copies_what_waits_and_changes_nothing(
    case: str, leave: Callable[[str], Left], shell: Shell, tmp_path: Path
) -> None:
    left = leave(case)
    before = left.path.read_bytes()
    damaged = len(left.values("bad"))
    document = shell.json(
        "recover", str(left.path), "--export", str(tmp_path / "deep" / "export"), code=int(damaged > 0)
    )
    assert document["damaged_count"] == damaged
    with Arena.attach(left.path) as arena:
        assert values_of_log(tmp_path / "deep" / "export") == values_in(arena)
    assert before != left.path.read_bytes()


@pytest.mark.parametrize("command", [("stat",), ("inspect",), ("check",), ("top",)])
def test_commands_that_look_say_what_it_is_and_what_to_do(
    command: tuple[str, ...], leave: Callable[[str], Left], shell: Shell
) -> None:
    left = leave("killed")
    before = left.path.read_bytes()
    said = " ".join(shell(command[0], str(left.path), *command[1:], code=2).stderr.split())
    assert "it has the layout of the former build, and 10 batches with 25 records" in said
    assert f"run shmaccum recover {left.path}" in said
    assert left.path.read_bytes() == before


def test_a_unit_that_creates_the_arena_where_it_is_missing_starts_with_a_former_one(
    leave: Callable[[str], Left], shell: Shell
) -> None:
    left = leave("killed")
    before = left.path.read_bytes()
    said = " ".join(shell("create", str(left.path), "--exist-ok", code=0).stderr.split())
    assert "exists already and is left as it is" in said
    assert "it has the layout of the former build, and 10 batches with 25 records" in said
    assert left.path.read_bytes() == before


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_shows_the_plan_that_recover_carries_out(
    case: str, leave: Callable[[str], Left], shell: Shell
) -> None:
    left = leave(case)
    before, names = left.path.read_bytes(), os.listdir(left.path.parent)
    code = int(bool(left.values("bad")))
    said = shell("recover", str(left.path), "--dry-run", code=code).stdout
    assert said.startswith("it has the layout of the former build: recovery upgrades it first")
    plan = shell.json("recover", str(left.path), "--dry-run", code=code)
    assert (plan["is_upgraded_first"], plan["attached_pids"]) == (True, [])
    assert left.path.read_bytes() == before
    assert os.listdir(left.path.parent) == names
    shell("recover", str(left.path), code=None)
    with Arena.attach(left.path) as arena:
        counts = arena.native.state_counts()
    assert (counts["READY"], counts["BAD"]) == (plan["ready_count"], len(left.values("bad")))
    assert shell.json("recover", str(left.path), "--dry-run")["is_upgraded_first"] is False


def test_a_dry_run_names_the_processes_that_are_in_the_way(
    leave: Callable[[str], Left], shell: Shell, attach_as_former: Callable[[Path], int]
) -> None:
    left = leave("killed")
    attach_as_former(left.path)
    assert "processes of that build are attached" in shell("recover", str(left.path), "--dry-run", code=2).stderr


def test_recover_upgrades_it(leave: Callable[[str], Left], shell: Shell) -> None:
    left = leave("killed")
    said = shell("recover", str(left.path)).stdout
    assert "upgraded from the layout of the former build, with all of its records" in said
    assert "10 batches with 25 records to be delivered by the next sender" in said
    assert shell.json("recover", str(left.path))["was_upgraded"] is False


def test_remove_counts_what_would_be_lost_and_takes_the_companions_away(
    leave: Callable[[str], Left], shell: Shell, arena_name: str
) -> None:
    shutil.copy(leave("killed").path, SHARED_MEMORY / arena_name)
    with open(SHARED_MEMORY / arena_name, "rb") as stream:
        uuid = FormerArena(stream.fileno()).uuid
    semaphore = SHARED_MEMORY / f"sem.{semaphore_name(uuid, 0)[1:]}"
    doorbell = Path(ArenaFile.parse(arena_name).doorbell(uuid))
    semaphore.touch()
    os.mkfifo(doorbell)
    assert "10 batches with 25 records" in " ".join(shell("remove", arena_name, code=2).stderr.split())
    shell("remove", "--force", arena_name)
    assert [path.exists() for path in (SHARED_MEMORY / arena_name, semaphore, doorbell)] == [False] * 3


# --- processes in the way


def lock(descriptor: int, kind: int, byte: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


@pytest.fixture
def attach_as_former() -> Iterator[Callable[[Path], int]]:
    """Takes the kernel's locks as an attached process of the former build has them."""
    descriptors: list[int] = []

    def attach(path: Path) -> int:
        descriptor = os.open(path, os.O_RDWR)
        descriptors.append(descriptor)
        lock(descriptor, fcntl.F_RDLCK, 0)
        lock(descriptor, fcntl.F_WRLCK, PROCESS_LOCK_START)
        return descriptor

    yield attach
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_living_process_of_the_former_build_is_named_and_not_disturbed(
    leave: Callable[[str], Left], attach_as_former: Callable[[Path], int], shell: Shell, tmp_path: Path
) -> None:
    left = leave("killed")
    before = left.path.read_bytes()
    descriptor = attach_as_former(left.path)
    pid = int(FormerArena(descriptor).rows("processes")["pid"][0])
    with pytest.raises(LayoutMismatchError, match=f"attached: {pid}. Stop them, then try again"):
        Arena.attach(left.path)
    assert "Stop them" in shell("recover", str(left.path), "--export", str(tmp_path / "export"), code=2).stderr
    assert left.path.read_bytes() == before
    lock(descriptor, fcntl.F_UNLCK, 0)
    lock(descriptor, fcntl.F_UNLCK, PROCESS_LOCK_START)
    with Arena.attach(left.path) as arena:
        assert values_in(arena) == left.values("log")


def test_a_process_that_upgrades_is_waited_for(leave: Callable[[str], Left]) -> None:
    left = leave("killed")
    descriptor = os.open(left.path, os.O_RDWR)
    lock(descriptor, fcntl.F_WRLCK, 0)

    def attach() -> int:
        os.close(descriptor)  # the child's copy would keep the lock
        with Arena.attach(left.path) as arena:
            return arena.native.state_counts()["READY"]

    child = Child(attach)
    wait_until(lambda: has_open_twice(child, left.path), "the child waits for the lock")
    os.close(descriptor)
    assert child.join() == "10"


def has_open_twice(child: Child, path: Path) -> bool:
    """The child has opened the arena, both ways."""
    names = []
    for entry in os.scandir(f"/proc/{child.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(entry.path))
    return names.count(str(path)) == 2


def test_processes_that_come_together_upgrade_it_once_and_lose_nothing(leave: Callable[[str], Left]) -> None:
    left = leave("killed")

    def come(number: int) -> str:
        with Arena.attach(left.path) as arena, Accumulator(arena) as producer:
            producer.append("flights", 0, 1, None, b"from %d" % number)
            return arena.uuid.hex()

    children = [Child(come, number) for number in range(6)]
    assert len({child.join() for child in children}) == 1
    with Arena.attach(left.path) as arena:
        values = values_in(arena)
    assert sorted(values["flights-0"][5:]) == [f"from {number}" for number in range(6)]
    assert {name: found[:5] for name, found in values.items()} == left.values("log")
    assert leftovers(left.path.parent) == []


def test_a_process_of_the_former_build_that_waited_is_refused(leave: Callable[[str], Left]) -> None:
    left = leave("killed")
    with open(left.path, "rb") as waits:
        Arena.attach(left.path).close()
        assert int.from_bytes(os.pread(waits.fileno(), 4, VERSION_AT), "little") == VERSION | RETIRED
        assert os.fstat(waits.fileno()).st_nlink == 0


def test_an_arena_that_was_retired_and_not_replaced_is_upgraded(leave: Callable[[str], Left]) -> None:
    left = leave("killed")
    with open(left.path, "r+b") as stream:
        os.pwrite(stream.fileno(), (VERSION | RETIRED).to_bytes(4, "little"), VERSION_AT)
    with Arena.attach(left.path) as arena:
        assert values_in(arena) == left.values("log")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_owner_group_and_mode_stay(leave: Callable[[str], Left]) -> None:
    left = leave("killed")
    os.chown(left.path, NOBODY, NOBODY + 1)
    left.path.chmod(0o660)
    Arena.attach(left.path, mode=0o660, group=NOBODY + 1).close()
    found = left.path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY + 1, 0o660)


@needs_root
def test_another_user_leaves_the_upgrade_to_the_owner(
    other_users: OtherUsers, leave: Callable[[str], Left], arena_name: str
) -> None:
    shutil.copy(leave("killed").path, SHARED_MEMORY / arena_name)
    os.chown(SHARED_MEMORY / arena_name, 0, NOBODY)
    (SHARED_MEMORY / arena_name).chmod(0o660)
    program = (
        "import sys; from shmaccum.arena import Arena; from shmaccum.exceptions import ArenaForbiddenError\n"
        "try: Arena.attach(sys.argv[1], mode=0o660)\n"
        "except ArenaForbiddenError as error: print(error)\n"
    )
    said = other_users.output(NOBODY, (NOBODY,), program, arena_name)
    assert "belongs to user 0: let a process of that user attach first" in said
    assert FormerArena.found_in(os.open(SHARED_MEMORY / arena_name, os.O_RDONLY))
    Arena.remove(arena_name)


def test_without_room_for_the_copy_nothing_changes(leave: Callable[[str], Left], monkeypatch: Any) -> None:
    left = leave("killed")
    before = left.path.read_bytes()

    def refuse(map_descriptor: int, lock_descriptor: int, *_: Any) -> None:
        os.close(map_descriptor)
        os.close(lock_descriptor)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(_native, "arena_create", refuse)
    with pytest.raises(OSError, match=r"has no room for 104 KiB: make room there, or copy the records out") as raised:
        Arena.attach(left.path)
    assert raised.value.errno == errno.ENOSPC
    assert left.path.read_bytes() == before
    assert leftovers(left.path.parent) == []


# --- dying


@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("in_flight", 9),
        ("oversized", 9),
        *(pytest.param(case, 1, marks=pytest.mark.exhaustive) for case in CASES),
    ],
)
def test_a_death_at_any_system_call_of_an_upgrade_loses_and_doubles_nothing(
    case: str, step: int, leave: Callable[[str], Left], tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    """At every `step`-th of them, from a random one on."""
    left = leave(case)
    whole = tmp_path / "whole.arena"
    shutil.copy(left.path, whole)
    with Arena.attach(whole) as arena:
        expected = values_in(arena)
    former = left.path.read_bytes()
    number = -seeded().randrange(step)
    path = left.path

    def upgrade_it() -> None:
        upgrade.upgrade_if_former(ArenaFile.parse(path), 0o600)

    is_cut_off = True
    while is_cut_off:
        number += step
        path.write_bytes(former)
        is_cut_off = dies_at_system_call(lambda: upgrade_it, number)
        with Arena.attach(path) as arena:
            assert values_in(arena) == expected, f"killed at system call {number}"
            counts = arena.native.state_counts()
            bad_count = len(left.values("bad"))
            assert (counts["BAD"], counts["OPEN"]) == (bad_count, 0), f"killed at system call {number}"
        assert leftovers(path.parent) == [], f"killed at system call {number}"
    assert number > 50
    deliver(path, left.log, left.dead)
    assert values_of_log(left.log) == left.values("log")


# --- any bytes


def attach_whatever(path: Path) -> str:
    """Attaches to what may be damaged, and delivers what can be delivered. An error has a sentence for it."""
    try:
        with Arena.attach(path) as arena:
            arena.verify(VerifyDepth.DEEP)
            with Accumulator(arena) as accumulator:
                accumulator.become_sender()
                deliver_all(accumulator)
    except (ArenaError, OSError) as error:
        return str(error)
    return "it was attached to"


def test_damaged_bytes_are_refused_or_kept_and_crash_nobody(
    leave: Callable[[str], Left], seeded: Callable[[], random.Random]
) -> None:
    left = leave("oversized")
    former = left.path.read_bytes()
    generator = seeded()

    def try_some() -> int:
        for _ in range(60):
            content = bytearray(former)
            for _ in range(generator.choice([1, 4, 64])):
                content[generator.choice([generator.randrange(4096, 40960), generator.randrange(len(content))])] = (
                    generator.randrange(256)
                )
            left.path.write_bytes(content)
            assert len(attach_whatever(left.path)) > 10
        return 0

    assert Child(try_some).join() == "0"
    assert leftovers(left.path.parent) == []


@pytest.mark.parametrize("size", [0, 7, 24, 100, 4095, 4096, 8192, 20000, 106495])
def test_a_file_that_was_cut_short_is_refused(size: int, leave: Callable[[str], Left]) -> None:
    left = leave("killed")
    os.truncate(left.path, size)
    with pytest.raises(ArenaError):
        Arena.attach(left.path)
    with pytest.raises(ArenaError):
        Arena.open_read_only(left.path)


def test_a_table_that_claims_too_much_is_refused_and_left_alone(leave: Callable[[str], Left]) -> None:
    left = leave("killed")
    with open(left.path, "r+b") as stream:
        os.pwrite(stream.fileno(), (1000).to_bytes(4, "little"), TOPIC_COUNT_AT)
    before = left.path.read_bytes()
    with pytest.raises(ArenaError, match="claims more entries than it has room for"):
        Arena.attach(left.path)
    assert left.path.read_bytes() == before
    assert leftovers(left.path.parent) == []
