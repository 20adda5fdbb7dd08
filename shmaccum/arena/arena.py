# SPDX-License-Identifier: Apache-2.0
"""The arena: the mapped file that all processes of a host share (native/arena/layout.h has the layout)."""

from __future__ import annotations

import contextlib
import enum
import errno
import math
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, final

import msgpack

from shmaccum import _native
from shmaccum.arena.creation import remove_private, wait_for_others
from shmaccum.arena.dead_companions import remove_dead_companions
from shmaccum.arena.file import ArenaFile, group_number
from shmaccum.arena.named_objects import SHARED_MEMORY, unlink_semaphore
from shmaccum.common import cooperative
from shmaccum.common.durability import sync_path
from shmaccum.common.units import format_count, format_size
from shmaccum.config import ArenaOptions
from shmaccum.exceptions import (
    ArenaError,
    ArenaExistsError,
    ArenaInUseError,
    ArenaNotFoundError,
    CorruptArenaError,
    FlushTimeoutError,
    InvalidArgumentError,
    NotAnArenaError,
    ShmaccumError,
    UnfinishedArenaError,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmaccum.arena.flusher import Flusher
    from shmaccum.arena.tables import Table
    from shmaccum.config.dicts import ArenaOptionsDict

Name = str | os.PathLike[str]

DEFAULT_MODE = 0o600
ANY_MODE = 0o777
WHOLE = 100
DURABILITIES = ("process", "interval", "sync")
SYNC_TIMEOUT_S = 60.0
TOPIC_NAME_SIZE_MEAN = 64
TOPIC_NAME_SIZE_MAX = 249
COMPLETION_COUNT_MIN = 4096
WAITER_WAIT, WAITER_PARKED = 1, 3


class VerifyDepth(enum.IntEnum):
    """How much `Arena.verify` checks."""

    QUICK = 0
    """The superblock and counts: O(1)."""
    NORMAL = 1
    """Every word, by itself and against adjacent words."""
    DEEP = 2
    """Also every byte: records, checksums, free slots all zeros."""


class Finding(NamedTuple):
    """A violation that `Arena.verify` found."""

    slot_index: int | None
    text: str


SIZES = ("buffer_memory", "batch_size")
"""Options that may differ from those of an existing arena."""


EXTERNAL_SENDER = "external_sender"
"""A stored option, which each attached process can read."""
TRANSACTIONAL_ID, TRANSACTION_TIMEOUT_MS = "transactional_id", "transaction_timeout_ms"
"""Stored options of an arena with transactions."""


class ArenaStatistics(NamedTuple):
    """The numbers of `Arena.statistics`: sizes in bytes, counts since the arena was created."""

    size: int
    buffer_memory: int
    batch_size: int
    slot_count: int
    slots: Mapping[str, int]
    """The number of slots in each state. The sum is slot_count."""
    oversized_bytes: int
    """Bytes of the buffers that records larger than a buffer hold now."""
    attached_process_count: int
    sender_is_alive: bool
    waiting_count: int
    topic_count: int
    partition_count: int
    record_count: int
    completion_count: int
    """The number of results ever recorded."""
    counters: Mapping[str, int]
    error_count: int
    poisoned: str | None


def remove_companions(file: ArenaFile, uuid: bytes, waiter_count: int) -> None:
    """Removes the semaphores of all waiter entries, the two FIFOs, and the sockets of the senders.

    It also removes those FIFOs and sockets of other arenas in the folder that no process has open.
    """
    for index in range(waiter_count):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's
            unlink_semaphore(semaphore_name(uuid, index))
    for path in (file.wake_fifo(uuid), file.results_fifo(uuid), *file.presences(uuid)):
        with contextlib.suppress(OSError):  # it is missing, or another user's, or its name would be too long
            os.unlink(path)
    remove_dead_companions(os.path.dirname(file.path))


def semaphore_name(uuid: bytes, waiter_index: int) -> str:
    """The POSIX semaphore on which the waiter with this entry sleeps."""
    return f"/shmaccum-{uuid.hex()[:12]}.w{waiter_index}"


def _durability(options: ArenaOptions) -> dict[str, int]:
    """Returns the durability as numbers of the geometry."""
    return {
        "durability": DURABILITIES.index(options.durability),
        "sync_interval_ms": 0 if options.sync_interval_ms is None else options.sync_interval_ms,
    }


def _slot_count(options: ArenaOptions) -> int:
    """Returns the number of batches that fit into the memory.

    Raises:
        InvalidArgumentError: the number exceeds the maximum of an arena.
    """
    count = options.buffer_memory // options.batch_size
    if count > _native.SLOT_COUNT_MAX:
        raise InvalidArgumentError(
            f"buffer_memory ({format_size(options.buffer_memory)}) is {count} batches, but an arena has at most "
            f"{_native.SLOT_COUNT_MAX}: make batch_size larger"
        )
    return count


def _geometry(options: ArenaOptions) -> dict[str, int]:
    """Returns the options as the native arena takes them."""
    slot_count, share = _slot_count(options), options.max_process_share
    completion_count, oversized_bytes_max = options.completion_count, options.oversized_max_bytes
    if completion_count is None:
        completion_count = max(slot_count * 4, COMPLETION_COUNT_MIN)
    if oversized_bytes_max is None:
        oversized_bytes_max = slot_count // 2 * options.batch_size
    return {
        "buffer_memory": options.buffer_memory,
        "batch_size": options.batch_size,
        "process_count": options.process_count,
        "waiter_count": options.waiter_count,
        "topic_count": options.topic_count,
        "partition_count": options.partition_count,
        "name_heap_size": max(options.topic_count * TOPIC_NAME_SIZE_MEAN, TOPIC_NAME_SIZE_MAX),
        "completion_count": 1 << max(completion_count - 1, 1).bit_length(),  # a power of two
        "oversized_bytes_max": min(oversized_bytes_max, options.buffer_memory),
        "record_size_max": options.max_request_size,
        "process_slot_count_max": 0 if share == WHOLE else max(slot_count * share // 100, 1),  # 0 means all of them
        "topic_share_factor": int(options.topic_share_factor * _native.TOPIC_SHARE_ONE),
        "is_transactional": int(options.transactional_id is not None),
        **_durability(options),
    }


def _stored_options(options: ArenaOptions) -> dict[str, Any]:
    """Returns the options that the arena stores."""
    stored: dict[str, Any] = {EXTERNAL_SENDER: True} if options.external_sender else {}
    if options.transactional_id is not None:
        stored[TRANSACTIONAL_ID] = options.transactional_id
        stored[TRANSACTION_TIMEOUT_MS] = options.transaction_timeout_ms
    return stored


@contextlib.contextmanager
def _named(file: ArenaFile) -> Iterator[None]:
    """Adds the name of the arena to errors in the block."""
    try:
        yield
    except ArenaError as error:
        raise type(error)(f"{file.text}: {error}") from None


@contextlib.contextmanager
def _space_error_named(file: ArenaFile, buffer_memory: int) -> Iterator[None]:
    """Converts the error of a full file system to one that names the place and a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        place = SHARED_MEMORY if file.is_shared_memory else os.path.dirname(file.text)
        raise OSError(
            errno.ENOSPC,
            f"{place} has no space for an arena with a buffer_memory of {format_size(buffer_memory)}: free some there, "
            "or create a smaller one",
        ) from None


def _attached(file: ArenaFile, mode: int, group: int | None) -> _native.Arena:
    with file.open(read_only=False, mode_max=mode, group=group) as descriptors, _named(file):
        return _native.arena_attach(descriptors.map, descriptors.lock)


def _attached_to_close(file: ArenaFile) -> Arena:
    """Attaches in order to remove the arena, regardless of its owner."""
    with file.open(read_only=False, mode_max=ANY_MODE, is_trusted=True) as descriptors, _named(file):
        return Arena(file, _native.arena_attach(descriptors.map, descriptors.lock), ANY_MODE)


@final
class Arena:
    """A process's handle of an arena. Use `create`, `attach` or `open_read_only` to make one.

    All threads of the process can use it. A forked child attaches by itself at the first use. A pickled handle attaches
    again by name, so it can be passed to processes started in any way. As a context manager, it closes itself.

    Attributes:
        name: the name or path that it was opened by.
        group: the number of the group that the arena must belong to, or None if none was given.
        native: the C handle.
        is_removal_logged: True if this process has logged the removal of the arena (`removal.report_removal`).
    """

    def __init__(self, file: ArenaFile, native: _native.Arena, mode: int, group: int | None = None) -> None:
        self._file = file
        self._mode = mode
        self.group = group
        self.native = native
        self.name = file.text
        self.is_removal_logged = False
        self._flusher = _flusher_of(native)
        if self._flusher is not None:
            weakref.finalize(self, self._flusher.stop)

    # --- open

    @classmethod
    def create(
        cls,
        name: Name,
        *,
        topics: Mapping[str, int] | None = None,
        options: Mapping[str, Any] | None = None,
        **arena_options: Unpack[ArenaOptionsDict],
    ) -> Arena:
        """Creates an arena, reserves all of its space, and attaches to it.

        The arena gets its name when it is complete. If another process is creating it, this call waits.

        Args:
            name: a name without a slash (a leading one is optional) for POSIX shared memory, or the path of a file,
                which survives a reboot.
            topics: partition counts of initial topics, as for `declare_topic`.
            options: stored in the arena for every process that attaches; at most 2048 bytes as msgpack.
            arena_options: the options of `shmaccum.ArenaOptions`, such as sizes and durability, in either spelling
                (``shmaccum options arena`` lists all).

        Raises:
            ArenaExistsError: the name is taken.
            ArenaForbiddenError: this user may not give a file to the given group.
            InvalidArgumentError: an option is unknown or out of range, or contradicts another one; the host has no such
                group; `declare_topic` rejects one of `topics`.
            OSError: there is not enough space (ENOSPC).

        After an exception, there is no arena.
        """
        chosen = ArenaOptions.parse(arena_options)
        geometry = _geometry(chosen)
        packed = msgpack.packb({**(options or {}), **_stored_options(chosen)})
        file = ArenaFile.parse(name)
        group = group_number(chosen.group, chosen.mode)
        with file.create(chosen.mode, group) as descriptors:
            with _space_error_named(file, chosen.buffer_memory):
                native = _native.arena_create(descriptors.map, descriptors.lock, geometry, packed)
            arena = cls(file, native, chosen.mode, group)
            try:
                for topic, count in (topics or {}).items():
                    arena.declare_topic(topic, count)
                if chosen.durability != "process":
                    os.fdatasync(descriptors.map)  # before it gets its name, so that no power cut leaves a part of it
            except BaseException:
                arena.close()
                raise
        try:
            arena._sync_name()
        except BaseException:
            arena.close()
            cls.remove(name)
            raise
        return arena

    @classmethod
    def attach(cls, name: Name, *, mode: int = DEFAULT_MODE, group: str | int | None = None) -> Arena:
        """Attaches to an existing arena. The first process that attaches recovers what dead processes left.

        Args:
            name: as given to `create`.
            mode: the widest permissions to accept. An arena shared on purpose needs the mode it was created with.
            group: name or number of the group that a shared arena must belong to, or None for any group of this
                process.

        Raises:
            ArenaNotFoundError: no arena has this name.
            ArenaForbiddenError: the arena belongs to another user, is open to more users than `mode` allows, or belongs
                to a user who is in no group of this process, and who may have taken the name.
            InvalidArgumentError: this host has no such group, or the mode excludes it.
            NotAnArenaError, UnfinishedArenaError, LayoutMismatchError, CorruptArenaError: the file is not an arena that
                this build can use.
            TableFullError: `process_count` processes are attached.

        If a living process recovers the arena, this call waits for it, without a limit.
        """
        file = ArenaFile.parse(name)
        number = group_number(group, mode)
        native = wait_for_others(file.text, lambda: _attached(file, mode, number))
        arena = cls(file, native, mode, number)
        try:
            arena._sync_name()
        except BaseException:
            arena.close()
            raise
        return arena

    def _sync_name(self) -> None:
        """Makes the name of a durable arena as durable as its records.

        Each process does so before its first append, because the creator may have died before it did.
        """
        if self.durability != "process":
            sync_path(self.name)

    @classmethod
    def attach_or_create(cls, name: Name, **arena_options: Unpack[ArenaOptionsDict]) -> Arena:
        """Attaches to an arena, or creates it if it does not exist. Of several processes, one creates it.

        The others wait for it, without a limit, and attach. If it dies, one of them creates the arena.

        An existing arena is not changed, whatever the options are (`size_differences`).

        Args:
            name: as given to `create`.
            arena_options: as given to `create`. An existing arena may not be open to more users than the mode
                allows, and must belong to the group.
        Raises:
            Exception: as `attach` and `create`.
        """
        chosen = ArenaOptions.parse(arena_options)
        while True:
            try:
                return cls.attach(name, mode=chosen.mode, group=chosen.group)
            except (ArenaNotFoundError, UnfinishedArenaError) as error:
                missing = error
            try:
                return cls.create(name, **arena_options)
            except ArenaExistsError:
                if isinstance(missing, UnfinishedArenaError):
                    raise missing from None

    @classmethod
    def open_read_only(cls, name: Name, *, mode: int = DEFAULT_MODE) -> Arena:
        """Maps a live or damaged arena without write permission, lock or process entry, for inspection.

        Raises:
            ArenaError: as `attach`.
        """
        file = ArenaFile.parse(name)
        with file.open(read_only=True, mode_max=mode) as descriptors, _named(file):
            native = _native.arena_open_read_only(descriptors.map, descriptors.lock)
        return cls(file, native, mode)

    @classmethod
    def exists(cls, name: Name) -> bool:
        """True if any file has this name."""
        return ArenaFile.parse(name).exists()

    @classmethod
    def remove(cls, name: Name, *, missing_ok: bool = False) -> None:
        """Removes the arena's name, its waiters' semaphores, its two FIFOs and its senders' sockets.

        When this method returns, the arena accepts no more records. Its sender exits when it has delivered the records
        in the arena.

        A damaged or unfinished arena is removed, too. A file that was never an arena is left unchanged.

        Raises:
            ArenaNotFoundError: no arena of this name, unless `missing_ok`.
            NotAnArenaError: another file has this name.
        """
        file = ArenaFile.parse(name)
        remove_private(file)
        try:
            uuid, waiter_count = cls._identity(file)
            with cls._closed_at_the_end(file):
                file.unlink()
        except ArenaNotFoundError:
            if not missing_ok:
                raise
            return
        if uuid is not None:
            remove_companions(file, uuid, waiter_count)

    @classmethod
    @contextlib.contextmanager
    def _closed_at_the_end(cls, file: ArenaFile) -> Iterator[None]:
        """Closes the arena for records after the block, so that no process appends to a file without a name.

        An arena without attached processes needs no closing. If the arena cannot be attached to, its processes check
        its name themselves, once a second (native/arena/closing.h).
        """
        with contextlib.ExitStack() as stack:
            arena: Arena | None = None
            with contextlib.suppress(ShmaccumError, OSError):
                with cls.open_read_only(file.text, mode=ANY_MODE) as seen:
                    is_in_use = any(process["alive"] for process in seen.native.processes())
                if is_in_use:
                    arena = stack.enter_context(_attached_to_close(file))
            yield
            if arena is not None:
                arena.native.begin_closing()

    @classmethod
    def _identity(cls, file: ArenaFile) -> tuple[bytes | None, int]:
        """Returns uuid and number of waiters. The uuid is None if the arena is damaged or has another layout."""
        try:
            with cls.open_read_only(file.text, mode=ANY_MODE) as arena:
                return arena.uuid, arena.geometry["waiter_count"]
        except (ArenaNotFoundError, NotAnArenaError):
            raise
        except (ArenaError, InvalidArgumentError, OSError):
            return None, 0

    # --- topics

    def declare_topic(self, name: str, partitions: int) -> None:
        """Declares the partition count of a topic, so that records can be sent before any sender has run.

        If the sink has another partition count, the sender reports it as soon as it runs, and it applies from then on.
        Declaring the known count again does nothing.

        Args:
            name: 1 to 249 of the characters a-z A-Z 0-9 . _ - (Kafka's rule).
            partitions: at least 1, at most the capacity of the arena (``partition_count``).

        Raises:
            InvalidArgumentError: the name or the number is invalid, or the topic is known with another number.
            TableFullError: the arena can hold no more topics (``topic_count``).
            ArenaClosedError: the arena was opened read-only.
        """
        count, room = operator.index(partitions), self.geometry["partition_count"]
        if not 1 <= count <= room:
            raise InvalidArgumentError(
                f"topic {name!r} cannot have {format_count(count, 'partition')}: give it 1 to {room}, the capacity of "
                "the arena (partition_count)"
            )
        known = self.native.topic_partition_count(name)
        if known not in (0, count):
            raise InvalidArgumentError(
                f"topic {name!r} already has {format_count(known, 'partition')} in {self.name}, not {count}: declare "
                f"it with {known}, or change the topic in the sink"
            )
        if not known:
            self.native.set_topic_partition_count(name, count)

    # --- close

    def close(self) -> None:
        """Detaches from the arena. A second call does nothing.

        Raises:
            ArenaInUseError: producers or senders are open, numpy views or memoryviews exist, or a thread is in a call.
        """
        self.close_within(math.inf)

    def close_within(self, timeout_s: float) -> None:
        """Closes, with a timeout for the thread that forces the arena to disk.

        Raises:
            ArenaInUseError: as `close`, or that thread waits for the disk.
        """
        if self._flusher is None or self.native.closed:
            self.native.close()
        else:
            self._flusher.close(timeout_s)

    def ensure_threads(self) -> None:
        """Starts the thread that forces the arena to disk, if it could not start before."""
        if self._flusher is not None:
            self._flusher.ensure_thread()

    def sync(self, timeout: float = SYNC_TIMEOUT_S) -> None:
        """Waits until all records that this process has appended so far are on disk.

        Concurrent waits share one fdatasync. With durability=sync, every append does this by itself.

        Args:
            timeout: seconds.

        Raises:
            FlushTimeoutError: the timeout expired, probably because the process that forces the arena to disk is
                stopped.
            ArenaPoisonedError: the disk failed.
            InvalidArgumentError: the arena has durability=process.
        """
        if not cooperative.call(self.native.sync, int(timeout * 1e9)):
            raise FlushTimeoutError(
                f"after {timeout} s it is not confirmed that the appended records are on disk; they will be delivered. "
                "Check with shmaccum stat whether the process that forces the arena is stopped, or the disk is too slow"
            )

    @property
    def durability(self) -> str:
        """``process``, ``interval`` or ``sync``: the level at which records survive a crash of the host."""
        return DURABILITIES[self.geometry["durability"]]

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the arena. If the block has raised, an `ArenaInUseError` does not replace its exception."""
        try:
            self.close()
        except ArenaInUseError:
            if error is None:
                raise

    def __reduce__(self) -> tuple[Callable[..., Arena], tuple[str, bool, int, int | None]]:
        return _reopen, (self.name, not self.closed and self.native.is_read_only, self._mode, self.group)

    def __repr__(self) -> str:
        if self.closed:
            return f"<Arena {self.name!r} closed>"
        geometry = self.geometry
        kind = "read-only" if self.native.is_read_only else f"entry {self.native.entry_index}"
        return (
            f"<Arena {self.name!r} {format_size(geometry['buffer_memory'])} in "
            f"{format_count(geometry['slot_count'], 'buffer')} of "
            f"{format_size(geometry['batch_size'])}, {kind}>"
        )

    # --- facts

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self.native.closed

    @property
    def mode(self) -> int:
        """The permissions it was created or attached with."""
        return self._mode

    @property
    def geometry(self) -> dict[str, int]:
        """The numbers that the creator chose, and numbers derived from them."""
        return self.native.geometry

    def size_differences(self, sizes: Mapping[str, int]) -> list[str]:
        """Returns a sentence for each of `SIZES` that differs in this arena."""
        has = self.geometry
        return [
            f"its {name} is {format_size(has[name])}, not {format_size(wanted)}"
            for name, wanted in sizes.items()
            if has[name] != wanted
        ]

    @property
    def options(self) -> dict[str, Any]:
        """The creator's options.

        Raises:
            CorruptArenaError: the options are damaged. The rest of the arena may be intact.
        """
        try:
            unpacked = msgpack.unpackb(self.native.options)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise CorruptArenaError(f"the options in {self.name} cannot be read: {error}") from None
        if not isinstance(unpacked, dict):
            raise CorruptArenaError(f"the options in {self.name} are of type {type(unpacked).__name__}, not a mapping")
        return unpacked

    @property
    def has_external_sender(self) -> bool:
        """True if another program runs the sender, as the creator has stated. Read from the arena each time.

        Raises:
            CorruptArenaError: as `options`.
        """
        return self.options.get(EXTERNAL_SENDER) is True

    @property
    def transactional_id(self) -> str | None:
        """The name that identifies the arena's transactions to a sink, or None without transactions.

        Raises:
            CorruptArenaError: as `options`; or the arena has transactions, but its options have no name.
        """
        if not self.geometry["is_transactional"]:
            return None
        found = self.options.get(TRANSACTIONAL_ID)
        if not isinstance(found, str) or not found:
            raise CorruptArenaError(f"the arena {self.name} has transactions, but its options have no transactional_id")
        return found

    @property
    def transaction_timeout_ms(self) -> int:
        """The longest time that a transaction may be open, in milliseconds.

        Raises:
            CorruptArenaError: as `options`; or the options have no time.
        """
        found = self.options.get(TRANSACTION_TIMEOUT_MS)
        if not isinstance(found, int) or found < 1:
            raise CorruptArenaError(f"the options in {self.name} have no transaction_timeout_ms")
        return found

    @property
    def uuid(self) -> bytes:
        """16 random bytes, drawn at the creation of the arena."""
        return self.native.uuid

    @property
    def is_shared_memory(self) -> bool:
        """True for an arena in POSIX shared memory, false for one in a file."""
        return self._file.is_shared_memory

    @property
    def path(self) -> str:
        """The path of the arena's file."""
        return self._file.path

    @property
    def permissions(self) -> tuple[int, int, int]:
        """User, group and mode of the arena's file, as they are now."""
        return self.native.permissions

    def is_linked(self) -> bool:
        """True while the name still refers to this arena."""
        try:
            with Arena.open_read_only(self.name, mode=ANY_MODE) as named:
                return named.uuid == self.uuid
        except (ArenaError, OSError):
            return False

    def statistics(self) -> ArenaStatistics:
        """Returns a snapshot. Its parts are read one after another while the arena is in use."""
        geometry = self.geometry
        processes = self.native.processes()
        waiter_words = self.waiter_table()["word"].tolist()
        return ArenaStatistics(
            size=self.native.size,
            buffer_memory=geometry["buffer_memory"],
            batch_size=geometry["batch_size"],
            slot_count=geometry["slot_count"],
            slots=self.native.state_counts(),
            oversized_bytes=self.native.oversized_bytes,
            attached_process_count=sum(process["alive"] for process in processes),
            sender_is_alive=self.native.sender_is_alive,
            waiting_count=sum(word >> 62 in {WAITER_WAIT, WAITER_PARKED} for word in waiter_words),
            topic_count=len(self.native.topics()),
            partition_count=len(self.native.partitions()),
            record_count=sum(process["record_count"] for process in processes),
            completion_count=self.native.completion_tail,
            counters=self.native.counters(),
            error_count=sum(error["count"] for error in self.native.errors()),
            poisoned=self.native.poisoned,
        )

    def topics(self) -> dict[str, int]:
        """Maps each topic to the partition count that the sink last reported, or to 0 before a report."""
        counts: dict[str, int] = {}
        for topic in self.native.topics():
            with contextlib.suppress(ValueError):  # a damaged name
                counts[topic] = self.native.topic_partition_count(topic)
        return counts

    def holds_from_before(self, moment_ns: int) -> bool:
        """True while a batch that was opened at or before a moment has no result.

        Args:
            moment_ns: a time of CLOCK_BOOTTIME.
        """
        from shmaccum.arena.tables import PENDING_STATES, slot_state

        slots = self.slot_table()
        is_pending = sum(slot_state(slots["word"]) == state for state in PENDING_STATES).astype(bool)
        return bool((is_pending & (slots["created_ns"] <= moment_ns)).any())

    def verify(self, depth: VerifyDepth = VerifyDepth.NORMAL, *, is_idle: bool = False) -> list[Finding]:
        """Checks the arena's invariants and changes nothing. An empty list means that the arena is intact.

        Args:
            depth: how much to check.
            is_idle: no other process works on the arena, so caches must agree with the words.
        """
        return [Finding(*finding) for finding in self.native.verify(int(depth), is_idle)]

    # --- tables

    def _table(self, region: str) -> Table:
        import numpy as np  # slow to import, and only tables need it

        from shmaccum.arena import tables

        return np.frombuffer(self.native.region(region), dtype=tables.DTYPES[region])

    def slot_table(self) -> Table:
        """Returns a live view of the slot headers, dtype `tables.SLOT`. Release it before close()."""
        return self._table("slot_headers")

    def waiter_table(self) -> Table:
        """Returns a live view of the waiter entries, dtype `tables.WAITER`."""
        return self._table("waiters")

    def completion_table(self) -> Table:
        """Returns a live view of the results, dtype `tables.COMPLETION`."""
        return self._table("completions")


def _reopen(name: str, is_read_only: bool, mode: int, group: int | None) -> Arena:
    """Unpickles an arena."""
    return Arena.open_read_only(name, mode=mode) if is_read_only else Arena.attach(name, mode=mode, group=group)


def _flusher_of(native: _native.Arena) -> Flusher | None:
    """Returns the thread that forces the arena to disk, or None if nothing is to be forced."""
    geometry = native.geometry
    if native.is_read_only or DURABILITIES[geometry["durability"]] != "interval":
        return None
    from shmaccum.arena.flusher import Flusher  # slow to import, and not needed to inspect an arena

    return Flusher(native, geometry["sync_interval_ms"])
