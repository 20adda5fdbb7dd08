# SPDX-License-Identifier: Apache-2.0
"""Arenas in tests: a simple sender, and checks that nothing is in use or left."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shmaccum._native import Batch
from shmaccum.arena import Arena, VerifyDepth
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import BufferExhaustedError, NotAnArenaError
from tests.support.accumulator import Accumulator
from tests.support.processes import WATCHDOG_S, process_exists, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

SHARED_MEMORY = Path("/dev/shm")
NAME_PATTERN = re.compile(r"shmaccum-test-(\d+)-\d+")
LIST_PATTERN = re.compile(r"shmaccum-test-(\d+)-uuids")
COMPANION_PATTERN = re.compile(r"(?:sem)?\.?shmaccum-([0-9a-f]{12})\.\w+")
"""Names of the files that an arena has in shared memory besides its own (`shmaccum.arena.file`)."""


def drain(accumulator: Accumulator) -> list[Batch]:
    """Drain everything that is ready, without lingering."""
    partitions, _ = accumulator.ready(0, True)
    batches, _ = accumulator.drain(partitions, 2**31)
    return batches


def deliver_all(accumulator: Accumulator) -> list[bytes | None]:
    """Drain and complete until nothing is left. Return the values in the order of delivery."""
    values: list[bytes | None] = []
    while batches := drain(accumulator):
        for batch in batches:
            values += [record[3] for record in batch.decode()]
            accumulator.complete(batch, BatchResult.SUCCEEDED)
    return values


def fill(accumulator: Accumulator, topic: str, value: bytes) -> None:
    """Append to partition 0 of a topic until no buffer is free."""
    with contextlib.suppress(BufferExhaustedError):
        while True:
            accumulator.append(topic, 0, 1, None, value, None, 0)


@contextlib.contextmanager
def stuck_topic(sender: Accumulator, topic: str, value: bytes) -> Iterator[None]:
    """In the block, partition 0 of a topic has no leader, and has half of the buffers. At the end, its records are
    delivered.

    Args:
        sender: the sender of the arena.
        value: the value of the records.
    """
    sender.become_sender()
    sender.append(topic, 0, 1, None, value)
    partition_index = sender.partition_index(topic, 0)
    sender.set_available(partition_index, False)
    fill(sender, topic, value)
    yield
    sender.set_available(partition_index, True)
    deliver_all(sender)


def check_idle(arena: Arena) -> None:
    """Check that an unused arena is completely sound and that no process reserves anything in it."""
    assert arena.verify(VerifyDepth.DEEP, is_idle=True) == []
    counts = arena.native.state_counts()
    assert counts["GRANT"] == counts["OWNED"] == counts["DONE"] == 0, counts
    assert sum(counts.values()) == arena.geometry["slot_count"]


def sender_pid(arena: Arena) -> int | None:
    """Return the process that has the sender's role, or None if no process has it or its entry is not known yet."""
    entry = arena.native.sender()["entry"]
    living = (row for row in arena.native.processes() if row["alive"])
    return next((int(row["pid"]) for row in living if row["entry"] == entry), None)


def end_senders(arena: Arena) -> None:
    """Ask each sender once to leave, also a stopped one, until no process has the role."""
    told: set[int] = set()

    def are_gone() -> bool:
        pid = sender_pid(arena)
        if pid is not None and pid not in told:
            told.add(pid)
            with contextlib.suppress(ProcessLookupError):  # it has already ended
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)
        return not arena.native.sender_is_alive

    wait_until(are_gone, "the sender has left")


def left_in_shared_memory(*fragments: str) -> list[str]:
    return [path.name for path in SHARED_MEMORY.iterdir() if any(fragment in path.name for fragment in fragments)]


class Drainer:
    """A sender in a thread. It delivers everything, with offsets from 0 in each partition.

    Attributes:
        records: maps (topic, partition) to (key, value) of each record, in the order of delivery.
        batch_sizes: record counts of the batches.
    """

    def __init__(self, arena: Arena, *, result: BatchResult = BatchResult.SUCCEEDED, error_code: int = 0) -> None:
        self.records: dict[tuple[str, int], list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
        self.batch_sizes: list[int] = []
        self.failure: BaseException | None = None
        self._result = result
        self._error_code = error_code
        self._arena = arena
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with Accumulator(self._arena) as accumulator:
                accumulator.become_sender()
                while not (self._drain(accumulator) == 0 and self._is_over.wait(0.001)):
                    pass
        except BaseException as failure:  # noqa: BLE001 - raised again at the end
            self.failure = failure

    def _drain(self, accumulator: Accumulator) -> int:
        batches = drain(accumulator)
        for batch in batches:
            delivered = self.records[batch.topic, batch.partition]
            base_offset = len(delivered)
            delivered += [(record[2], record[3]) for record in batch.decode()]
            self.batch_sizes.append(batch.record_count)
            accumulator.complete(batch, self._result, base_offset, None, self._error_code)
        accumulator.maintain()
        return len(batches)

    def values(self) -> list[bytes | None]:
        """All values, partition by partition."""
        return [value for delivered in self.records.values() for _, value in delivered]

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._arena.native.sender_is_alive or self.failure is not None, "the drainer is the sender")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(WATCHDOG_S)
        if self.failure is not None:
            raise self.failure


def each_semaphore(uuid: bytes) -> Iterator[str]:
    yield from left_in_shared_memory(f"shmaccum-{uuid.hex()[:12]}.w")


def boot_again(path: Path) -> None:
    """Make the arena file appear to be from another boot of this host."""
    with Arena.open_read_only(path) as arena:
        start = arena.native.layout["globals"]
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "").strip()
    with open(path, "r+b") as stream:
        page = stream.read(start + 4096)
        at = page.index(bytes.fromhex(boot_id), start)
        stream.seek(at)
        stream.write(bytes(range(16)))


def is_own(name: str) -> bool:
    """True if the file exists in shared memory and belongs to this user."""
    try:
        return (SHARED_MEMORY / name).lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def list_arenas(path: Path) -> None:
    """List the uuid of each arena that this process or a fork of it creates as this user.

    The companions of an arena have only its uuid in their names. If the arena is removed while its processes live, and
    they are killed afterwards, only this list shows which test has left the companions. Those of other users are never
    removed.
    """
    create: Any = Arena.create.__func__  # type: ignore[attr-defined]
    user = os.geteuid()

    @functools.wraps(create)
    def listed(*arguments: Any, **options: Any) -> Arena:
        arena: Arena = create(*arguments, **options)
        if os.geteuid() == user:
            with path.open("a") as file:
                file.write(f"{arena.uuid.hex()[:12]}\n")
        return arena

    Arena.create = classmethod(listed)  # type: ignore[method-assign, assignment]


def remove_companions_of_listed(path: Path) -> None:
    """Remove the companions of arenas that `list_arenas` has listed, and the list."""
    uuids = set(path.read_text().split()) if path.exists() else set()
    for name in left_in_shared_memory("shmaccum-"):
        found = COMPANION_PATTERN.fullmatch(name)
        if found and found[1] in uuids and is_own(name):
            with contextlib.suppress(FileNotFoundError):  # another session has removed it
                remove = os.rmdir if (SHARED_MEMORY / name).is_dir() else os.unlink
                remove(SHARED_MEMORY / name)
    path.unlink(missing_ok=True)


def remove_arenas_of_the_dead() -> None:
    """Remove this user's arenas that killed test processes have left, and their companions."""
    for name in left_in_shared_memory("shmaccum-test-"):
        found = NAME_PATTERN.fullmatch(name)
        if found and not process_exists(int(found[1])) and is_own(name):
            try:
                Arena.remove(name, missing_ok=True)  # another session has removed it
            except NotAnArenaError:  # its first bytes are damaged
                (SHARED_MEMORY / name).unlink(missing_ok=True)
    for name in left_in_shared_memory("-uuids"):
        found = LIST_PATTERN.fullmatch(name)
        if found and not process_exists(int(found[1])) and is_own(name):
            remove_companions_of_listed(SHARED_MEMORY / name)
