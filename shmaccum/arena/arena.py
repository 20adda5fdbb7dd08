# SPDX-License-Identifier: Apache-2.0
"""The arena: the one mapped file of a host in which all processes meet (native/arena/layout.h has the map)."""

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
import posix_ipc

from shmaccum import _native
from shmaccum.arena.creation import remove_private, wait_for_others
from shmaccum.arena.file import SHARED_MEMORY, ArenaFile, group_number
from shmaccum.common import cooperative
from shmaccum.common.durability import sync_path
from shmaccum.common.units import format_count, format_size
from shmaccum.config import ArenaOptions
from shmaccum.exceptions import (
    ArenaError,
    ArenaExistsError,
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
    """How much `Arena.verify` looks at."""

    QUICK = 0
    """The superblock and counts: O(1)."""
    NORMAL = 1
    """Every word, by itself and against its neighbours."""
    DEEP = 2
    """Also every byte: records, checksums, free slots all zeros."""


class Finding(NamedTuple):
    """One thing `Arena.verify` did not like."""

    slot_index: int | None
    text: str


SIZES = ("buffer_memory", "batch_size")
"""Options that may differ from those of an existing arena."""


EXTERNAL_SENDER = "external_sender"
"""Among the options that the arena keeps, so that each process that attaches can read it."""
TRANSACTIONAL_ID, TRANSACTION_TIMEOUT_MS = "transactional_id", "transaction_timeout_ms"
"""The same, of an arena with transactions."""


class ArenaStatistics(NamedTuple):
    """The numbers of `Arena.statistics`: sizes in bytes, counts since the arena was created."""

    size: int
    buffer_memory: int
    batch_size: int
    slot_count: int
    slots: Mapping[str, int]
    """State -> slots in it; they add up to slot_count."""
    oversized_bytes: int
    """Bytes of the buffers that records larger than a buffer hold now."""
    attached_process_count: int
    sender_is_alive: bool
    waiting_count: int
    topic_count: int
    partition_count: int
    record_count: int
    completion_count: int
    """Results ever recorded."""
    counters: Mapping[str, int]
    error_count: int
    poisoned: str | None


def remove_companions(file: ArenaFile, uuid: bytes, waiter_count: int) -> None:
    """Removes the semaphores of all waiters that an arena has room for, its two bells, and its senders' sockets."""
    for index in range(waiter_count):
        with contextlib.suppress(posix_ipc.ExistentialError, posix_ipc.PermissionsError):  # another user's
            posix_ipc.unlink_semaphore(semaphore_name(uuid, index))
    for path in (file.doorbell(uuid), file.results_bell(uuid), *file.presences(uuid)):
        with contextlib.suppress(OSError):  # it is not there, or another user's, or its name would be too long
            os.unlink(path)


def semaphore_name(uuid: bytes, waiter_index: int) -> str:
    """The POSIX semaphore on which the waiter with this entry sleeps."""
    return f"/shmaccum-{uuid.hex()[:12]}.w{waiter_index}"


def _durability(options: ArenaOptions) -> dict[str, int]:
    """The numbers of the geometry."""
    return {
        "durability": DURABILITIES.index(options.durability),
        "sync_interval_ms": 0 if options.sync_interval_ms is None else options.sync_interval_ms,
    }


def _slot_count(options: ArenaOptions) -> int:
    """How many batches fit into the memory.

    Raises:
        InvalidArgumentError: an arena has no room for so many.
    """
    count = options.buffer_memory // options.batch_size
    if count > _native.SLOT_COUNT_MAX:
        raise InvalidArgumentError(
            f"buffer_memory ({format_size(options.buffer_memory)}) is {count} batches, an arena has room for at most "
            f"{_native.SLOT_COUNT_MAX}: make batch_size larger"
        )
    return count


def _geometry(options: ArenaOptions) -> dict[str, int]:
    """The options as the native arena takes them."""
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
        "process_slot_count_max": 0 if share == WHOLE else max(slot_count * share // 100, 1),  # 0: all of them
        "topic_share_factor": int(options.topic_share_factor * _native.TOPIC_SHARE_ONE),
        "is_transactional": int(options.transactional_id is not None),
        **_durability(options),
    }


def _kept(options: ArenaOptions) -> dict[str, Any]:
    """The options that the arena keeps."""
    kept: dict[str, Any] = {EXTERNAL_SENDER: True} if options.external_sender else {}
    if options.transactional_id is not None:
        kept[TRANSACTIONAL_ID] = options.transactional_id
        kept[TRANSACTION_TIMEOUT_MS] = options.transaction_timeout_ms
    return kept


@contextlib.contextmanager
def _named(file: ArenaFile) -> Iterator[None]:
    """Errors within the block name the arena."""
    try:
        yield
    except ArenaError as error:
        raise type(error)(f"{file.text}: {error}") from None


@contextlib.contextmanager
def _room_named(file: ArenaFile, buffer_memory: int) -> Iterator[None]:
    """A full file system becomes an error that names the place and a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        place = SHARED_MEMORY if file.is_shared_memory else os.path.dirname(file.text)
        raise OSError(
            errno.ENOSPC,
            f"{place} has no room for an arena with a buffer_memory of {format_size(buffer_memory)}: make room there, "
            "or create a smaller one",
        ) from None


def _attached(file: ArenaFile, mode: int, group: int | None) -> _native.Arena:
    with file.open(read_only=False, mode_max=mode, group=group) as descriptors, _named(file):
        return _native.arena_attach(descriptors.map, descriptors.lock)


def _attached_to_close(file: ArenaFile) -> Arena:
    """For a process that removes the arena, whosever it is."""
    with file.open(read_only=False, mode_max=ANY_MODE, is_trusted=True) as descriptors, _named(file):
        return Arena(file, _native.arena_attach(descriptors.map, descriptors.lock), ANY_MODE)


@final
class Arena:
    """One process's handle of an arena; make one with `create`, `attach` or `open_read_only`.

    Usable by all threads of the process, and in children it forks: they attach by themselves at first use. Pickled, it
    attaches again by name, so it can be handed to processes started in any way. As a context manager it closes itself.

    Attributes:
        name: the name or path that it was opened by.
        group: number of the group that the arena has to belong to, as this process was told; None: it was not.
        native: the C handle.
        is_removal_told: this process has logged that the arena was removed (`removal.tell_removal`).
    """

    def __init__(self, file: ArenaFile, native: _native.Arena, mode: int, group: int | None = None) -> None:
        self._file = file
        self._mode = mode
        self.group = group
        self.native = native
        self.name = file.text
        self.is_removal_told = False
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
        """Makes a new arena, reserves all of its space, and attaches to it.

        The arena gets its name when it is complete. Another process that is creating it is waited for.

        Args:
            name: without a slash (one in front is optional): POSIX shared memory. Else the path of a file, which is
                what survives a reboot.
            topics: partition counts of topics that are known from the beginning, as `declare_topic` takes them.
            options: kept in the arena for every process that attaches; at most 2048 bytes as msgpack.
            arena_options: sizes, durability and the like: those of `shmaccum.ArenaOptions`, in either spelling
                (``shmaccum options arena`` shows all).

        Raises:
            ArenaExistsError: the name is taken.
            ArenaForbiddenError: this user may not give a file to the group that was asked for.
            InvalidArgumentError: an option is unknown or out of range, or contradicts another one; the host has no such
                group; `topics` has what `declare_topic` refuses.
            OSError: the space could not be had (ENOSPC).

        An exception leaves no arena behind.
        """
        chosen = ArenaOptions.parse(arena_options)
        geometry = _geometry(chosen)
        packed = msgpack.packb({**(options or {}), **_kept(chosen)})
        file = ArenaFile.parse(name)
        group = group_number(chosen.group, chosen.mode)
        with file.create(chosen.mode, group) as descriptors:
            with _room_named(file, chosen.buffer_memory):
                native = _native.arena_create(descriptors.map, descriptors.lock, geometry, packed)
            arena = cls(file, native, chosen.mode, group)
            try:
                for topic, count in (topics or {}).items():
                    arena.declare_topic(topic, count)
                if chosen.durability != "process":
                    os.fdatasync(descriptors.map)  # before it has its name: a power cut leaves all of it, or nothing
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
        """Attaches to an existing arena; the first to come recovers what the dead left.

        Args:
            name: as given to `create`.
            mode: the widest permissions to put up with. An arena shared on purpose needs the mode it was created with.
            group: name or number of the group that a shared arena has to belong to; None: any group of this process.

        Raises:
            ArenaNotFoundError: no arena of this name.
            ArenaForbiddenError: of another user, or open to more users than `mode` says, or of a user outside of the
                groups of this process, who may have taken the name.
            InvalidArgumentError: this host has no such group, or the mode does not let it in.
            NotAnArenaError, UnfinishedArenaError, LayoutMismatchError, CorruptArenaError: the file is no arena that
                this build can use.
            TableFullError: `process_count` processes are attached.

        A living process that recovers the arena is waited for, however long that takes.
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
        """Attaches to an arena, which is made where there is none. Of several processes at once, one creates it.

        The others wait for it, however long that takes, and attach. If it dies, one of them creates the arena.

        An arena that exists stays as it is, whatever the options say (`size_differences`).

        Args:
            name: as given to `create`.
            arena_options: as given to `create`; the mode is also the widest that an existing arena may have, and a
                group is the one that it has to belong to.

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
        """Maps a live or damaged arena without write permission, taking no lock and no entry: to look at it.

        Raises:
            ArenaError: as `attach`.
        """
        file = ArenaFile.parse(name)
        with file.open(read_only=True, mode_max=mode) as descriptors, _named(file):
            native = _native.arena_open_read_only(descriptors.map, descriptors.lock)
        return cls(file, native, mode)

    @classmethod
    def exists(cls, name: Name) -> bool:
        """True when the name is taken, by an arena or by something else."""
        return ArenaFile.parse(name).exists()

    @classmethod
    def remove(cls, name: Name, *, missing_ok: bool = False) -> None:
        """Takes the arena's name, its waiters' semaphores, its two bells and its senders' sockets away.

        The arena takes no more records when this comes back. Its sender leaves when it has delivered those that the
        arena holds.

        A damaged or unfinished arena is removed, too. A file that never was an arena is left alone.

        Raises:
            ArenaNotFoundError: no arena of this name, unless `missing_ok`.
            NotAnArenaError: something else has this name.
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
        """The arena takes no more records behind the block, so that no process appends to a file without a name.

        An arena without attached processes needs no closing. Processes of an arena that cannot be attached to look at
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
        """The uuid of an arena and its number of waiters; None, if it is damaged or has another layout."""
        try:
            with cls.open_read_only(file.text, mode=ANY_MODE) as arena:
                return arena.uuid, arena.geometry["waiter_count"]
        except (ArenaNotFoundError, NotAnArenaError):
            raise
        except (ArenaError, InvalidArgumentError, OSError):
            return None, 0

    # --- topics

    def declare_topic(self, name: str, partitions: int) -> None:
        """Makes a topic known with so many partitions, so that records can be sent before any sender has run.

        A sink that has another number of partitions for the topic tells it as soon as a sender runs; the sink's number
        holds from then on. A topic that is known with this number stays as it is.

        Args:
            name: 1 to 249 of the characters a-z A-Z 0-9 . _ - (Kafka's rule).
            partitions: at least 1, at most as many as the arena has room for (``partition_count``).

        Raises:
            InvalidArgumentError: the name or the number is impossible, or the topic is known with another number.
            TableFullError: the arena has no room for another topic (``topic_count``).
            ArenaClosedError: the arena was opened read-only.
        """
        count, room = operator.index(partitions), self.geometry["partition_count"]
        if not 1 <= count <= room:
            raise InvalidArgumentError(
                f"topic {name!r} cannot have {format_count(count, 'partition')}: give it 1 to {room}, which is what "
                "the arena has room for (partition_count)"
            )
        known = self.native.topic_partition_count(name)
        if known not in (0, count):
            raise InvalidArgumentError(
                f"topic {name!r} has {format_count(known, 'partition')} in {self.name} already, not {count}: declare "
                f"it with {known}, or change the topic where the sink has it"
            )
        if not known:
            self.native.set_topic_partition_count(name, count)

    # --- close

    def close(self) -> None:
        """Leaves the arena. Doing it twice does nothing.

        Raises:
            ArenaInUseError: accumulators are open, numpy views or memoryviews exist, or another thread is in a call.
        """
        self.close_within(math.inf)

    def close_within(self, timeout_s: float) -> None:
        """As `close`, with a time for the thread that forces the arena to disk.

        Raises:
            ArenaInUseError: as `close`, or that thread waits for the disk.
        """
        if self._flusher is None or self.native.closed:
            self.native.close()
        else:
            self._flusher.close(timeout_s)

    def ensure_threads(self) -> None:
        """Starts the thread that forces the arena to disk, where it could not start."""
        if self._flusher is not None:
            self._flusher.ensure_thread()

    def sync(self, timeout: float = SYNC_TIMEOUT_S) -> None:
        """Waits until everything this process has appended so far is on disk.

        All who wait at a time share one fdatasync. With durability=sync every append does this by itself.

        Args:
            timeout: seconds.

        Raises:
            FlushTimeoutError: not in time; probably the process that was about it is stopped.
            ArenaPoisonedError: the disk failed.
            InvalidArgumentError: the arena has durability=process.
        """
        if not cooperative.call(self.native.sync, int(timeout * 1e9)):
            raise FlushTimeoutError(
                f"after {timeout} s it is not known that the appended records are on disk; they will be delivered. "
                "Look with shmaccum stat whether the process that forces the disk is stopped, or the disk is too slow"
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
        self.close()

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
        """The numbers the creator chose, and those that follow from them."""
        return self.native.geometry

    def size_differences(self, sizes: Mapping[str, int]) -> list[str]:
        """A sentence for each of `SIZES` that is another one here."""
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
            CorruptArenaError: they are none; the rest of the arena may be sound.
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
        """True when the creator said that somebody else keeps the sender; read each time.

        Raises:
            CorruptArenaError: as `options`.
        """
        return self.options.get(EXTERNAL_SENDER) is True

    @property
    def transactional_id(self) -> str | None:
        """The name by which a sink knows the arena's transactions; None: the arena has none.

        Raises:
            CorruptArenaError: as `options`; or the arena has transactions, and the options tell no name.
        """
        if not self.geometry["is_transactional"]:
            return None
        found = self.options.get(TRANSACTIONAL_ID)
        if not isinstance(found, str) or not found:
            raise CorruptArenaError(f"the arena {self.name} has transactions, and its options tell no transactional_id")
        return found

    @property
    def transaction_timeout_ms(self) -> int:
        """The longest time that a transaction may be open, in milliseconds.

        Raises:
            CorruptArenaError: as `options`; or the options tell no time.
        """
        found = self.options.get(TRANSACTION_TIMEOUT_MS)
        if not isinstance(found, int) or found < 1:
            raise CorruptArenaError(f"the options in {self.name} tell no transaction_timeout_ms")
        return found

    @property
    def uuid(self) -> bytes:
        """16 random bytes of its creation."""
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
        """True while its name still leads to this arena."""
        try:
            with Arena.open_read_only(self.name, mode=ANY_MODE) as named:
                return named.uuid == self.uuid
        except (ArenaError, OSError):
            return False

    def statistics(self) -> ArenaStatistics:
        """A snapshot; the parts are read one after another while the arena is in use."""
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
        """Each topic with the number of partitions that the sink told last; 0: it has not told yet."""
        counts: dict[str, int] = {}
        for topic in self.native.topics():
            with contextlib.suppress(ValueError):  # a name that was damaged
                counts[topic] = self.native.topic_partition_count(topic)
        return counts

    def holds_from_before(self, moment_ns: int) -> bool:
        """True while a batch that was opened until then has no result.

        Args:
            moment_ns: a time of CLOCK_BOOTTIME.
        """
        from shmaccum.arena.tables import PENDING_STATES, slot_state

        slots = self.slot_table()
        is_pending = sum(slot_state(slots["word"]) == state for state in PENDING_STATES).astype(bool)
        return bool((is_pending & (slots["created_ns"] <= moment_ns)).any())

    def verify(self, depth: VerifyDepth = VerifyDepth.NORMAL, *, is_idle: bool = False) -> list[Finding]:
        """Checks the arena's invariants and changes nothing. An empty list is a sound arena.

        Args:
            depth: how much to look at.
            is_idle: nobody else works on the arena, so caches must agree with the words.
        """
        return [Finding(*finding) for finding in self.native.verify(int(depth), is_idle)]

    # --- tables

    def _table(self, region: str) -> Table:
        import numpy as np  # slow to import, and only whoever looks at tables needs it

        from shmaccum.arena import tables

        return np.frombuffer(self.native.region(region), dtype=tables.DTYPES[region])

    def slot_table(self) -> Table:
        """Live view of the slot headers, dtype `tables.SLOT`. Let go of it before close()."""
        return self._table("slot_headers")

    def waiter_table(self) -> Table:
        """Live view of the waiter entries, dtype `tables.WAITER`."""
        return self._table("waiters")

    def completion_table(self) -> Table:
        """Live view of the ring of results, dtype `tables.COMPLETION`."""
        return self._table("completions")


def _reopen(name: str, is_read_only: bool, mode: int, group: int | None) -> Arena:
    """The arena in the process that unpickles it."""
    return Arena.open_read_only(name, mode=mode) if is_read_only else Arena.attach(name, mode=mode, group=group)


def _flusher_of(native: _native.Arena) -> Flusher | None:
    """The thread that forces the arena to disk; None where nothing is to be forced."""
    geometry = native.geometry
    if native.is_read_only or DURABILITIES[geometry["durability"]] != "interval":
        return None
    from shmaccum.arena.flusher import Flusher  # slow to import, and a command that looks at an arena does without

    return Flusher(native, geometry["sync_interval_ms"])
