# SPDX-License-Identifier: Apache-2.0
"""An arena of the former layout becomes one of this layout, with everything in it.

::

    the arena's name ──> former inode         beside it: .shmaccum-UUID.upgrade
    1  lock byte 0 of it exclusively: nobody is attached, nobody can attach
    2                                         a leftover is deleted; create with the same geometry, options, owner, mode
    3  read its tables and bytes ───────────> write them, field by field, by name; boot id unknown
    4                                         attach: cold recovery judges every batch by its checksum; count; sync
    5  retired: its version says that no
       process of the former build may enter
    6  the name ────────────────────────────> this inode

An upgrade is a copy, so the former arena is whole until the copy has its name. Sequences, producer id and epoch,
decisions and results travel along. So a batch that was in flight when its sender died is sent again with the bytes and
the sequence it had, and the sink drops it. The arena's uuid travels along, too: dead letters are recognised by it.

Deaths
    Before 6 the former arena has its name and all of its records. The next upgrade deletes a copy that is left over,
    and starts over. After 6 the upgrade is done. Between 5 and 6 a process of the former build is refused; a process of
    this build starts over.
Waiters
    A process that waits for byte 0 of the former inode gets it when the name leads elsewhere already. A process of
    this build then opens the name again. A process of the former build finds the retired version and is refused; it
    would append to an inode without a name otherwise.
Processes in the way
    While a process of the former build lives, nothing is done, and the error names the process. The kernel's locks tell
    which process lives, never a time-out.

Only the arena's owner or root upgrades: a copy by anybody else would belong to another user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import crc32c
import numpy as np

from shmaccum import _native, clock
from shmaccum.arena.creation import FLOCK, Descriptors, set_lock
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.former_layout import (
    ATTACH_LOCK_BYTE,
    RETIRED,
    SUPERBLOCK,
    FormerArena,
    Rows,
)
from shmaccum.arena.slot_word import SLOT_STATES
from shmaccum.arena.tables import slot_state
from shmaccum.exceptions import (
    ArenaBusyError,
    ArenaForbiddenError,
    CorruptArenaError,
    InvalidArgumentError,
    LayoutMismatchError,
)
from shmaccum.units import format_count, format_size

logger = logging.getLogger(__name__)

BUSY_S = 1.0
SLICE_S = 0.002
VERIFY_NORMAL = 1
COPIED = ("processes", "topics", "partitions", "slot_headers", "completions", "error_log", "sync_records")
UNKNOWN_BOOT = bytes(16)
NOT_TRANSACTIONAL = {"is_transactional": 0}
"""The former layout had no transactions."""
NOT_DURABLE = {"durability": 0, "sync_interval_ms": 0}


# --- the entrance


def upgrade_if_former(file: ArenaFile, mode_max: int, group: int | None = None) -> bool:
    """Upgrades an arena of the former layout. False when it has another one, which may be this build's.

    Args:
        mode_max, group: as `ArenaFile.open` takes them.

    Raises:
        LayoutMismatchError: a living process is attached; it has to leave first.
        ArenaForbiddenError: the arena belongs to another user.
        CorruptArenaError, TruncatedArenaError: its tables cannot be read; `shmaccum recover --export` may help.
        ArenaBusyError: another process upgrades or recovers it: `creation.wait_for_others` calls this again.
        OSError: there is no room for the copy.
    """
    with file.open(read_only=False, mode_max=mode_max, group=group) as descriptors:
        try:
            if not FormerArena.found_in(descriptors.lock):
                return False
            _lock_alone(file, descriptors.lock)
            if not _is_named(file, descriptors.lock):
                return True  # somebody else was first
            _check_owner(file, descriptors.lock)
            _replace(file, descriptors)
            return True
        finally:
            descriptors.close()


def advice(file: ArenaFile, descriptor: int) -> str | None:
    """The advice for a process that only looks at an arena of the former layout; None: the arena has another layout."""
    if not FormerArena.found_in(descriptor):
        return None
    batch_count, record_count = FormerArena(descriptor).waiting()
    return (
        f"it has the layout of the former build, and {format_count(batch_count, 'batch', 'batches')} with "
        f"{format_count(record_count, 'record')}. The first process of this build that attaches upgrades it, records "
        f"and all: start a sender or producer, or run shmaccum recover {file.text}. To copy the records out, run "
        f"shmaccum recover {file.text} --export DIR"
    )


def has_former_layout(file: ArenaFile) -> bool:
    """True for an arena of the former layout, which the first process to attach upgrades."""
    with file.open(read_only=True, mode_max=0o777) as descriptors, contextlib.closing(descriptors):
        return FormerArena.found_in(descriptors.lock)


def former_identity(file: ArenaFile) -> tuple[bytes, int]:
    """The uuid of an arena of the former layout, and how many waiters it has room for.

    Raises:
        LayoutMismatchError: it has another layout.
        CorruptArenaError, TruncatedArenaError: its superblock cannot be believed.
    """
    with file.open(read_only=True, mode_max=0o777) as descriptors, contextlib.closing(descriptors):
        if not FormerArena.found_in(descriptors.lock):
            raise LayoutMismatchError(f"{file.text} has neither this build's layout nor the one before it")
        former = FormerArena(descriptors.lock)
        return former.uuid, former.geometry["waiter_count"]


@contextlib.contextmanager
def copy_to_look_at(file: ArenaFile, folder: str | os.PathLike[str]) -> Iterator[_native.Arena | None]:
    """A copy without a name of an arena of the former layout, opened read-only; None: it has another layout.

    Args:
        folder: where the copy lies, which is as large as the arena, until the end.

    Raises:
        LayoutMismatchError: a living process is attached, so that the arena does not hold still.
        CorruptArenaError, TruncatedArenaError, OSError: as `upgrade_if_former`.
    """
    with file.open(read_only=True, mode_max=0o777) as descriptors, contextlib.closing(descriptors):
        if not FormerArena.found_in(descriptors.lock):
            yield None
            return
        former = FormerArena(descriptors.map)
        refuse_the_living(file, former, descriptors.lock)
        with tempfile.TemporaryFile(dir=folder) as copy:
            with _room_named(os.fspath(folder), former):
                refs = _new_arena(_opened_twice(copy.fileno()), former.geometry | NOT_DURABLE, former.options)
            _Transcript(copy.fileno(), refs, former).write()
            again = _opened_twice(copy.fileno())
            arena = _native.arena_open_read_only(again.map, again.lock)
            try:
                yield arena
            finally:
                arena.close()


def _opened_twice(descriptor: int) -> Descriptors:
    path = f"/proc/self/fd/{descriptor}"
    return Descriptors(os.open(path, os.O_RDWR | os.O_CLOEXEC), os.open(path, os.O_RDWR | os.O_CLOEXEC))


# --- alone with it


def _is_locked(descriptor: int, byte: int, kind: int = fcntl.F_RDLCK) -> bool:
    """True when another open file has a lock that a lock of `kind` would have to wait for."""
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def attached_process_ids(former: FormerArena, descriptor: int) -> list[int]:
    """Living processes of the former build, by the numbers they wrote into their entries."""
    return list(former.process_ids(lambda byte: _is_locked(descriptor, byte)))


def refuse_the_living(file: ArenaFile, former: FormerArena, descriptor: int) -> None:
    """Raises LayoutMismatchError when a process is attached."""
    if pids := attached_process_ids(former, descriptor):
        raise LayoutMismatchError(
            f"{file.text} has the layout of the former build, and processes of that build are attached: "
            f"{', '.join(map(str, pids))}. Stop them, then try again: the records stay in the arena and go along"
        )


def _lock_alone(file: ArenaFile, descriptor: int) -> None:
    """Returns with byte 0 locked exclusively. A process that upgrades or recovers the arena now is waited for.

    Raises:
        ArenaBusyError: it is not done within a second. The caller opens the name again, which may lead elsewhere then.
        LayoutMismatchError: a process of the former build is attached.
    """
    deadline_s = clock.monotonic() + BUSY_S
    while not set_lock(descriptor, fcntl.F_WRLCK, ATTACH_LOCK_BYTE):
        refuse_the_living(file, FormerArena(descriptor), descriptor)
        if clock.monotonic() >= deadline_s:
            raise ArenaBusyError(
                f"another process upgrades or recovers {file.text}: wait for it, and continue it if it is stopped"
            )
        time.sleep(SLICE_S)


def _is_named(file: ArenaFile, descriptor: int) -> bool:
    """True while the name still leads to the inode that is locked."""
    try:
        return os.path.samestat(os.stat(file.path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _check_owner(file: ArenaFile, descriptor: int) -> None:
    owner = os.fstat(descriptor).st_uid
    if os.geteuid() not in (0, owner):
        raise ArenaForbiddenError(
            f"{file.text} has the layout of the former build and belongs to user {owner}: let a process of that user "
            f"attach first, or run shmaccum recover {file.text} as that user, which upgrades it"
        )


# --- the copy


def _replace(file: ArenaFile, descriptors: Descriptors) -> None:
    """Steps 2 to 6."""
    former = FormerArena(descriptors.map)
    copy = ArenaFile(_copy_path(file, former.uuid), is_shared_memory=False)
    _delete(copy)
    try:
        with _room_named(os.path.dirname(copy.text), former):
            refs = _create(copy, former, os.fstat(descriptors.map))
        _fill(copy, former, refs)
        _check(copy, former)
        _sync(copy.text)
        _retire(former, descriptors.map)
        os.rename(copy.text, file.path)
    except BaseException:
        _delete(copy)
        raise
    _sync(os.path.dirname(file.path))
    batch_count, record_count = former.waiting()
    logger.info(
        "%s was upgraded from the layout of the former build, with %s in %s",
        file.text,
        format_count(record_count, "record"),
        format_count(batch_count, "batch", "batches"),
    )


def _copy_path(file: ArenaFile, uuid: bytes) -> str:
    return os.path.join(os.path.dirname(file.path), f".shmaccum-{uuid.hex()[:12]}.upgrade")


def _delete(copy: ArenaFile) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(copy.text)


@contextlib.contextmanager
def _room_named(folder: str, former: FormerArena) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            errno.ENOSPC,
            f"an arena of the former layout is copied, and {folder} has no room for {format_size(former.size)}: make "
            "room there, or copy the records out to another disk with shmaccum recover --export",
        ) from None


def _create(copy: ArenaFile, former: FormerArena, found: os.stat_result) -> dict[str, int]:
    """An empty arena with the former one's numbers, options, owner and mode. Answers where its regions start."""
    mode = stat.S_IMODE(found.st_mode)
    with copy.create(mode) as descriptors:
        made = os.fstat(descriptors.map)
        if (found.st_uid, found.st_gid) != (made.st_uid, made.st_gid):
            os.chown(descriptors.map, found.st_uid, found.st_gid)
            os.chmod(descriptors.map, mode)
        return _new_arena(descriptors, former.geometry, former.options)


def _new_arena(descriptors: Descriptors, geometry: dict[str, int], options: bytes) -> dict[str, int]:
    try:
        arena = _native.arena_create(descriptors.map, descriptors.lock, geometry | NOT_TRANSACTIONAL, options)
    except InvalidArgumentError as error:
        raise CorruptArenaError(f"the numbers of the arena's superblock are impossible: {error}") from None
    try:
        return arena.layout
    finally:
        arena.close()


def _fill(copy: ArenaFile, former: FormerArena, refs: dict[str, int]) -> None:
    descriptor = os.open(copy.text, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _Transcript(descriptor, refs, former).write()
    finally:
        os.close(descriptor)


def _check(copy: ArenaFile, former: FormerArena) -> None:
    """Recovers the copy. Raises CorruptArenaError when a batch is missing in it."""
    with copy.open(read_only=False, mode_max=0o777, is_trusted=True) as descriptors:
        arena = _native.arena_attach(descriptors.map, descriptors.lock)
    try:
        for _, finding in arena.verify(VERIFY_NORMAL, True):
            logger.error("%s: %s", copy.text, finding)
        counts = arena.state_counts()
        found, expected = counts["READY"] + counts["BAD"], former.waiting()[0]
    finally:
        arena.close()
    if found != expected:
        raise CorruptArenaError(
            f"{format_count(expected, 'batch', 'batches')} should be in the arena's copy, which has {found}: the arena "
            "was left as it was. Copy the records out with shmaccum recover --export"
        )


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _retire(former: FormerArena, descriptor: int) -> None:
    """The former inode says that nobody may enter; on disk before the name leads elsewhere."""
    fields = SUPERBLOCK.fields
    assert fields is not None
    os.pwrite(descriptor, (former.version | RETIRED).to_bytes(4, "little"), fields["layout_version"][1])
    os.fsync(descriptor)


class _Transcript:
    """Writes what a former arena holds into an empty arena of this layout.

    Args:
        descriptor: of the empty arena's file, which nobody else uses.
        refs: where the regions of the empty arena start.
    """

    def __init__(self, descriptor: int, refs: dict[str, int], former: FormerArena) -> None:
        self._descriptor = descriptor
        self._refs = refs
        self._former = former
        self._dtypes = {region: _dtype(fields) for region, fields in _native.layout_fields().items()}

    def write(self) -> None:
        """Everything; the superblock last."""
        for region in COPIED:
            with self._rows(region, self._former.rows(region)) as (source, target):
                _copy_fields(source, target)
        with self._rows("counters", self._former.rows("counters")) as (source, target):
            _copy_counters(source, target)
        self._put(self._refs["names"], self._former.names())
        self._copy_slots()
        with self._rows("globals", self._former.globals()) as (source, target):
            _copy_fields(source, target)
            target["boot_id"] = np.void(UNKNOWN_BOOT)
        with self._rows("superblock", self._former.superblock) as (source, target):
            _copy_identity(source, target, len(self._former.options))

    def _put(self, ref: int, content: bytes | bytearray) -> None:
        view = memoryview(content)
        while view:
            written = os.pwrite(self._descriptor, view, ref)
            ref, view = ref + written, view[written:]

    @contextlib.contextmanager
    def _rows(self, region: str, source: Rows) -> Iterator[tuple[Rows, Rows]]:
        """The former rows of a region, and those of the empty arena, which are written back at the end."""
        dtype, ref = self._dtypes[region], self._refs[region]
        if region == "sync_records" and not ref:  # this one has no such region
            source = source[:0]
        content = bytearray(os.pread(self._descriptor, dtype.itemsize * len(source), ref))
        yield source, np.frombuffer(content, dtype)
        self._put(ref, content)

    def _copy_slots(self) -> None:
        """The bytes of every slot that is not free."""
        stride = self._former.geometry["slot_stride"]
        words = self._former.rows("slot_headers")["word"]
        for slot_index in np.flatnonzero(slot_state(words) != SLOT_STATES.index("FREE")).tolist():
            self._put(self._refs["slot_data"] + slot_index * stride, self._former.slot_bytes(slot_index))


def _copy_counters(source: Rows, target: Rows) -> None:
    """By label: a build may count something at another place than the build before it."""
    values = {row["label"].tobytes(): row["value"] for row in source}
    for row in target:
        row["value"] = values.get(row["label"].tobytes(), 0)


def _copy_identity(source: Rows, target: Rows, options_size: int) -> None:
    """The copy is the same arena: it has the uuid and the birthday of the former one."""
    target["uuid"], target["created_ms"] = source["uuid"], source["created_ms"]
    fields = target.dtype.fields
    assert fields is not None
    begin, end = fields["layout_fingerprint"][1], fields["options"][1] + options_size
    target["superblock_crc"] = crc32c.crc32c(target.tobytes()[begin:end])


def _dtype(rows: list[tuple[str, int, int, int]]) -> np.dtype[Any]:
    """A struct of this build: numbers are unsigned, whatever they are, for only their bits matter here."""
    return np.dtype(
        {
            "names": [name for name, _, _, _ in rows],
            "formats": [f"<u{size}" if size in (4, 8) else f"V{size}" for _, _, size, _ in rows],
            "offsets": [offset for _, offset, _, _ in rows],
            "itemsize": rows[0][3],
        }
    )


def _copy_fields(source: Rows, target: Rows) -> None:
    """Every field that both structs have."""
    for name in source.dtype.names or ():
        if name in (target.dtype.names or ()):
            target[name] = source[name]
