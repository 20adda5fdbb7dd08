# SPDX-License-Identifier: Apache-2.0
"""The committed offsets of one group, in a file of its own in the log directory.

::

    .groups/NAME.offsets   | frame | frame | frame | ... | frame being written |
    frame                  as `frames` has it

    body   ["group", group id]                                                        the first frame
           ["commit", time ms, [[topic, partition, offset, leader epoch, metadata]...]]
           ["forget", [[topic, partition]...]]
           ["generation", number, protocol type, protocol]
           ["pending", producer id, time ms, [[topic, partition, offset, leader epoch, metadata]...]]
           ["end", producer id, is committed]
           ["topic", topic, id of the topic in hexadecimal digits]

Rules: one commit of all its partitions is one frame, so a commit is in the file whole or not at all. A later frame
replaces what an earlier one said of the same partition. Pending offsets are those of a transaction of Kafka. They count
from the frame on that ends it with a commit, unless a commit of the same partition came after they were staged: as in
Kafka, the later one of both counts. So a file that is written anew keeps the order of the frames. The file is written
only under the group's lock (`GroupLock`), which the kernel frees with its holder. A deleted group leaves no file: the
holder of its lock removes them. A process that opened the lock file before has locked a file without a name, notices
that, and opens the new one.

Topics: a topic that is deleted takes its offsets with it, also those that are staged. Before the first offset of a
topic, and of one that was created again, a frame tells the id of the topic: what was said before of a topic of this
name with another id is void. Offsets whose topic is not there, or has another id by now, are given to nobody. The proof
of that is the one of `topic_ids`.

Procedure: a commit appends a frame by one write. When most of the file is said again later, it is written anew beside
the old one and renamed over it. A death in the middle of a write leaves a torn frame at the end: the next writer cuts
it, readers stop in front of it. A death in the middle of a rewrite leaves the old file, and a ``.tmp`` that the next
rewrite replaces.

Power: the records in front of an offset are on disk before the offset, where the writer of the log forces records to
disk. Else a power cut leaves a log that ends in front of the offset, and the group skips the next records.

Identity: a commit counts when the path leads to the file that has its frame. Where the file was removed, moved or
replaced, its writer writes it anew with all that it knows. Consumers that share the group without a server read what
lies there instead.

Damage: a frame that is not whole and has bytes behind its end is no interrupted write. A reader passes over the damage
to the next whole frame, so the last offsets that can be read count. The next writer copies the damaged file to
``NAME.offsets.damaged-TIME``, says so in its log, and writes the file anew from the whole frames. The copy stays until
somebody removes it.

Why it is safe: a frame counts only when its size and its CRC are right. The kernel makes a file longer only after the
bytes are in it. A writer cuts only behind the last whole frame, and cuts damage only when the copy is on disk, so it
never loses a commit that was answered.

Kafka keeps offsets in the topic ``__consumer_offsets``. Here only the writer of a log could append to a topic, and a
server that only reads has to take commits, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, final
from urllib.parse import quote, unquote

from shmaccum._native import append_frame
from shmaccum.common.durability import sync_folder
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError, GroupModeError, LogBusyError
from shmaccum.log.files.file_names import GROUPS_FOLDER, TEMPORARY
from shmaccum.log.files.lock_descriptor import LockDescriptor
from shmaccum.log.files.lock_file import is_locked
from shmaccum.log.files.permissions import make_folder
from shmaccum.log.files.record_sync import sync_records
from shmaccum.log.files.regular_files import is_file_at, open_regular
from shmaccum.log.files.small_files import append_or_cut, replace_file_synced, write_all
from shmaccum.log.files.topic_ids import TopicIds
from shmaccum.log.files.writer_level import WriterLevel
from shmaccum.log.groups.frames import (
    FRAME_SIZE_MAX,
    HEAD,
    Body,
    beginnings,
    find_frames,
    pack_body,
    pack_frame,
    whole_frame,
)

logger = logging.getLogger(__name__)

NO_NAME = "%"
"""The stem of the group without a name. No other stem has a bare percent sign."""
NAME_SIZE_MAX = 180
DIGEST_SIZE = 16
DEAD_SIZE_MIN = 256 << 10
"""Below this a rewrite is not worth it."""
OFFSETS = ".offsets"
LOCK = ".lock"
PLAN = ".plan"
JOINS = ".joins"
ADDRESS_SIZE_MAX = 300
ADDRESS = re.compile(r"[\w.:\[\]-]+:[0-9]+")
DAMAGED = ".damaged-"
BODIES = beginnings(
    [("group", 2), ("commit", 3), ("forget", 2), ("generation", 4), ("pending", 4), ("end", 3), ("topic", 3)]
)


class Committed(NamedTuple):
    """An offset that a group has committed for one partition."""

    offset: int
    """The next one to consume."""
    leader_epoch: int
    """-1: none was told."""
    metadata: str
    time_ms: int
    """The time of the commit, by the wall clock."""


def file_stem(group_id: str) -> str:
    """The name of a group's files: its id, percent-encoded; a long id is cut, and ends with a digest of all of it.

    The group without a name is one of Kafka's: it has offsets and no members (KIP-289).
    """
    if not group_id:
        return NO_NAME
    stem = quote(group_id, safe="").replace(".", "%2E")
    if len(stem) <= NAME_SIZE_MAX:
        return stem
    digest = hashlib.blake2b(group_id.encode(), digest_size=DIGEST_SIZE).hexdigest()
    return f"{stem[:NAME_SIZE_MAX]}~{digest}"


def group_ids(directory: str) -> list[str]:
    """Every group that has a file, in order. The name of a file tells its group; no file is opened but those cut."""
    return sorted(group_id for group_id in map(group_id_of, offsets_paths(directory)) if group_id is not None)


def offsets_paths(directory: str) -> list[str]:
    """The paths of all files of offsets; `group_id_of` returns the group of each."""
    folder = os.path.join(directory, GROUPS_FOLDER)
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(OFFSETS)]
    except FileNotFoundError:
        return []


def has_group(directory: str, group_id: str) -> bool:
    """True when the group has a file.

    Raises:
        OSError: nobody can tell.
    """
    try:
        os.stat(os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + OFFSETS))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def group_id_of(path: str) -> str | None:
    """The group id that the name of a file tells. A cut name tells none, and the first frame does; None: no group's."""
    stem = os.path.basename(path).removesuffix(OFFSETS)
    if not stem.isascii() or os.path.islink(path) or not os.path.isfile(path):
        return None
    if stem == NO_NAME:
        return ""
    group_id = unquote(stem) if len(stem) <= NAME_SIZE_MAX else _group_id_in(path)
    return group_id if group_id is not None and file_stem(group_id) == stem else None


def _group_id_in(path: str) -> str | None:
    with contextlib.suppress(OSError), open(path, "rb", opener=open_regular) as file:
        frame = whole_frame(file.read(HEAD.size + 4 * FRAME_SIZE_MAX // 1024), 0)
        if frame is not None and frame[1][0] == "group" and len(frame[1]) == 2:
            return str(frame[1][1])
    return None


def _inode_and_size(path: str) -> tuple[int, int]:
    """Those of a file; a missing one has inode 0."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_size


@final
class GroupLock:
    """The right to write a group's files, as long as this object is open. A forked child closes its copy."""

    def __init__(self, directory: str, group_id: str) -> None:
        """Takes the lock.

        Raises:
            GroupModeError: consumers on this host share the group without a server (`member_locks`).
            LogBusyError: another process has it.
            OSError: the folder cannot be written.
        """
        folder = os.path.join(directory, GROUPS_FOLDER)
        make_folder(folder)
        self._stem = os.path.join(folder, file_stem(group_id))
        self._descriptor = LockDescriptor()
        while not self.has_its_name:
            self.release()  # the file was removed before it was locked
            self._descriptor.open(self._stem + LOCK)
            self._lock(directory, group_id)
        os.ftruncate(self._descriptor.number, 0)  # the address of a former holder

    def _lock(self, directory: str, group_id: str) -> None:
        if not self._descriptor.set(fcntl.F_WRLCK, 0, 0):
            is_local = self._descriptor.kind_at(0) == fcntl.F_RDLCK  # every local member holds this read lock
            self.release()
            if is_local:
                raise GroupModeError(
                    f"the group {group_id!r} of {directory} is shared by consumers on its host, without a server: "
                    "consume there, stop them, or name another group"
                )
            raise LogBusyError(
                f"the group {group_id!r} of {directory} is coordinated by another process: consume through that one, "
                "or stop it"
            )

    @property
    def has_its_name(self) -> bool:
        """False after the lock file was removed or replaced: another process can get the right."""
        return is_file_at(self._stem + LOCK, self._descriptor.number)

    def sign(self, address: str) -> None:
        """Tells where the holder takes requests: HOST:PORT.

        Raises:
            OSError: the file still tells nothing, or something else.
        """
        content = address.encode()
        os.pwrite(self._descriptor.number, content, 0)
        os.ftruncate(self._descriptor.number, len(content))

    def remove_files(self) -> None:
        """Takes the files of the group away, the lock file last. The holder releases the lock next.

        Raises:
            OSError: one of them is still there.
        """
        for suffix in (OFFSETS, JOINS, PLAN, LOCK):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._stem + suffix)

    def release(self) -> None:
        """Gives the right back. Doing it twice does nothing."""
        self._descriptor.close()


def coordinator_address(directory: str, group_id: str) -> str | None:
    """HOST:PORT of the server that has a group's lock; None: nobody has it, or its holder takes no requests."""
    if not is_in_use(directory, group_id):
        return None
    path = os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + LOCK)
    with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
        found = ADDRESS.fullmatch(file.read(ADDRESS_SIZE_MAX))
    return found[0] if found else None


def is_in_use(directory: str, group_id: str) -> bool:
    """True while a server coordinates the group, or consumers on the log's host share it."""
    return is_locked(os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + LOCK))


@final
class OffsetsFile:
    """The offsets of one group.

    Attributes:
        group_id: the group.
        pending: by producer id, the offsets of transactions that are not decided.
        generation, protocol_type, protocol: of the group when it was stable last.
        is_missing: True for a writer that has still to create the file.
    """

    def __init__(
        self, directory: str, group_id: str, *, is_writer: bool, is_created: bool = True, is_synced: bool = False
    ) -> None:
        """Read the file. A missing file is empty.

        Args:
            directory: the log directory.
            group_id: the group.
            is_writer: the caller holds the group's lock; a torn frame is cut, a damaged file is kept aside.
            is_created: a writer creates a missing file now. Otherwise, the first frame that it appends does.
            is_synced: a commit returns when it is on disk. Otherwise, that depends on the level of the log's writer.

        Raises:
            OSError: the file cannot be read, or not be written by a writer.
            CorruptLogError: another group's file lies under this name.
        """
        self.group_id = group_id
        self._offsets: dict[TopicPartition, Committed] = {}
        self._ids = TopicIds(directory)
        self._topic_ids: dict[str, bytes] = {}
        self.pending: dict[int, dict[TopicPartition, Committed]] = {}
        self._order = 0
        self._committed_order: dict[TopicPartition, int] = {}
        self._pending_order: dict[tuple[int, TopicPartition], int] = {}
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self._is_always_synced = is_synced
        self._level = WriterLevel(directory)
        self._directory = directory
        self._folder = os.path.join(directory, GROUPS_FOLDER)
        self._path = os.path.join(self._folder, file_stem(group_id) + OFFSETS)
        self._descriptor = -1
        self._size = 0
        self._seen_inode = self._seen_size = 0
        damages = self.catch_up()
        self.is_missing = is_writer and not is_created and not self._seen_inode
        if is_writer and not self.is_missing:
            self._open(damages)

    @property
    def _is_synced(self) -> bool:
        return self._is_always_synced or self._level.is_durable

    # --- reading

    def catch_up(self) -> list[tuple[int, int]]:
        """Reads the frames that other processes wrote since the last call.

        Returns:
            Damage that was found in the file: positions of bytes that are no frame, and those behind them.

        Raises:
            OSError: the file cannot be read.
            CorruptLogError: a frame makes no sense.
        """
        inode, size = _inode_and_size(self._path)
        if inode == self._seen_inode and size == self._seen_size:
            return []
        if inode != self._seen_inode or size < self._size:
            self._offsets.clear()
            self.pending.clear()
            self._committed_order.clear()
            self._pending_order.clear()
            self._topic_ids.clear()
            self._size = 0
        damages = self._read()
        self._seen_inode, self._seen_size = inode, size  # a file that makes no sense is told of at each call
        return damages

    def _read(self) -> list[tuple[int, int]]:
        """Replays the whole frames behind those that were read; answers what is damaged."""
        start = self._size
        frames = find_frames(self._content(start), BODIES)
        for position, body in frames.bodies:
            self._replay(body, start + position)
        self._size = start + frames.end
        return [(start + begin, start + end) for begin, end in frames.damages]

    def _content(self, start: int = 0) -> bytes:
        """The file from this position on; empty where there is none."""
        try:
            with open(self._path, "rb", buffering=0, opener=open_regular) as file:
                file.seek(start)
                return file.readall()
        except FileNotFoundError:
            return b""

    def _replay(self, body: Body, position: int) -> None:
        try:
            self._apply(body)
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            raise CorruptLogError(
                self._path, position, position, f"no frame of group {self.group_id!r}: {error}"
            ) from None

    def _apply(self, body: Body) -> None:
        kind, *rest = body
        if kind == "group":
            if rest != [self.group_id]:
                raise ValueError(f"the file is of group {rest}")
        elif kind == "commit":
            self._commit(_committed_in(*rest))
        elif kind == "pending":
            producer_id, *offsets = rest
            self._stage(int(producer_id), _committed_in(*offsets))
        elif kind == "end":
            self._end(*rest)
        elif kind == "forget":
            for topic, partition in rest[0]:
                self._forget(TopicPartition(topic, partition))
        elif kind == "topic":
            topic, topic_id = rest
            self._name_topic(str(topic), bytes.fromhex(topic_id))
        elif kind == "generation":
            self.generation, self.protocol_type, self.protocol = rest

    def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self._order += 1
        self._offsets.update(offsets)
        self._committed_order.update(dict.fromkeys(offsets, self._order))

    def _stage(self, producer_id: int, offsets: Mapping[TopicPartition, Committed]) -> None:
        self._order += 1
        self.pending.setdefault(producer_id, {}).update(offsets)
        self._pending_order.update({(producer_id, place): self._order for place in offsets})

    def _end(self, producer_id: int, is_commit: bool) -> None:
        """Commits the staged offsets that are later than what is committed, or drops all of them."""
        for place, staged in self.pending.pop(producer_id, {}).items():
            order = self._pending_order.pop((producer_id, place))
            if is_commit and order > self._committed_order.get(place, 0):
                self._offsets[place] = staged
                self._committed_order[place] = order

    def _forget(self, place: TopicPartition) -> None:
        self._offsets.pop(place, None)
        self._committed_order.pop(place, None)

    # --- topics

    @property
    def offsets(self) -> Mapping[TopicPartition, Committed]:
        """The committed offset of each partition, of topics that are there.

        Raises:
            OSError: the log cannot be read, so nobody knows which topics are there.
        """
        former = {topic for topic in self._topic_ids if self._is_former(topic)}
        if not former:
            return self._offsets
        return {place: one for place, one in self._offsets.items() if place.topic not in former}

    def _is_former(self, topic: str) -> bool:
        """True when the offsets are of a topic that was deleted."""
        return topic in self._topic_ids and self._ids.is_another(topic, self._topic_ids[topic])

    def _name_topic(self, topic: str, topic_id: bytes) -> None:
        former_id = self._topic_ids.get(topic, topic_id)
        self._topic_ids[topic] = topic_id
        if former_id == topic_id:
            return
        for place in [place for place in self._offsets if place.topic == topic]:
            self._forget(place)
        for producer_id, staged in self.pending.items():
            for place in [place for place in staged if place.topic == topic]:
                del staged[place], self._pending_order[producer_id, place]

    def _unnamed(self, offsets: Iterable[TopicPartition]) -> dict[str, bytes]:
        """The topics whose ids are not told by the file, and these ids."""
        ids = {topic: self._ids.of(topic) for topic in {place.topic for place in offsets}}
        return {
            topic: found for topic, found in ids.items() if found is not None and found != self._topic_ids.get(topic)
        }

    def _name_topics(self, offsets: Iterable[TopicPartition]) -> None:
        for topic, topic_id in self._unnamed(offsets).items():
            self._append(["topic", topic, topic_id.hex()])
            self._name_topic(topic, topic_id)

    # --- writing

    def prepare(self) -> None:
        """Makes this process the writer, after others were; the caller holds the right to write.

        Raises:
            OSError: the file cannot be read or written.
            CorruptLogError: as `catch_up`.
        """
        if self._descriptor >= 0 and self._is_unchanged():
            return
        if self._descriptor < 0:
            self._seen_inode = -1  # a new writer reads all of it, and keeps damage aside
        damages = self.catch_up()
        is_opened = self._descriptor >= 0 and self._seen_inode == self._opened_inode()
        if damages or not is_opened or self._seen_size != self._size:
            self.close()
            self._open(damages)

    def _is_unchanged(self) -> bool:
        """True when the file is as this process left it: every other writer makes it longer, or replaces it."""
        return os.fstat(self._descriptor).st_size == self._size and is_file_at(self._path, self._descriptor)

    def _opened_inode(self) -> int:
        return os.fstat(self._descriptor).st_ino

    def _open(self, damages: list[tuple[int, int]]) -> None:
        make_folder(self._folder)
        if damages:
            self._keep_aside(damages)
        self._descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        self.is_missing = False
        os.ftruncate(self._descriptor, self._size)
        if damages:
            self._rewrite()
        elif not self._size:
            self._append(["group", self.group_id])
        self._name_topics(place for place in self._offsets if place.topic not in self._topic_ids)  # of a former version
        if self._is_synced:
            sync_folder(self._folder)
            sync_folder(self._directory)
        self._seen_inode, self._seen_size = self._opened_inode(), self._size

    def _keep_aside(self, damages: list[tuple[int, int]]) -> None:
        """Copies the damaged file, and says so."""
        copy = f"{self._path}{DAMAGED}{time.time_ns()}"
        replace_file_synced(copy, self._content())
        where = ", ".join(f"{begin} to {end}" for begin, end in damages[:3])
        logger.error(
            "the offsets of group %r were damaged: %s, bytes %s. The group goes on with the offsets that could be "
            "read; the damaged file is kept as %s",
            self.group_id,
            self._path,
            where,
            copy,
        )

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Writes offsets down, all of them or none.

        Args:
            offsets: those of one commit; they share the time of the first.

        Raises:
            OSError: none is committed.
        """
        if not offsets:
            return
        self._append_offsets(["commit"], offsets)
        self._commit(offsets)
        self._shorten()

    def commit_at_once(self, offsets: Mapping[TopicPartition, Committed], lock: int, byte: int) -> bool:
        """As `commit`, by one call of the native core, which takes the right to write and gives it back.

        Args:
            offsets: those of one commit, one at least.
            lock: a descriptor of the lock file.
            byte: the byte of it that gives the right to write.

        Returns:
            False when nothing was written: another process writes, or wrote since this one did, or there is more to do.
        """
        if self._descriptor < 0 or self._is_synced or self._is_mostly_dead() or self._unnamed(offsets):
            return False
        size = append_frame(lock, byte, self._descriptor, self._size, pack_body(["commit", *_rows(offsets)]))
        if not size or not is_file_at(self._path, self._descriptor):
            return False
        self._size = self._seen_size = size
        self._commit(offsets)
        return True

    def _is_mostly_dead(self) -> bool:
        """True when most of the file is said again later, and enough of it that a rewrite is worth it."""
        return self._size >= DEAD_SIZE_MIN + 200 * (len(self._offsets) + sum(map(len, self.pending.values())))

    def _shorten(self) -> None:
        """Writes the file anew when most of it is said again later."""
        if self._is_mostly_dead():
            with contextlib.suppress(OSError):  # the old file is as good
                self._rewrite()

    def commit_pending(self, producer_id: int, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Writes offsets down that count when the transaction of a producer is committed; all of them or none.

        Raises:
            OSError: none is pending.
        """
        if offsets:
            self._append_offsets(["pending", producer_id], offsets)
            self._stage(producer_id, offsets)

    def end_pending(self, producer_id: int, *, is_commit: bool) -> None:
        """The transaction of a producer is decided: its offsets count, or are dropped. Doing it twice does nothing.

        Raises:
            OSError: they are still pending.
        """
        if producer_id in self.pending:
            self._append(["end", producer_id, is_commit])
            self._end(producer_id, is_commit)
            self._shorten()

    def is_pending(self, place: TopicPartition) -> bool:
        """True while the next offset of a partition depends on a transaction (KIP-447)."""
        return any(place in offsets for offsets in self.pending.values()) and not self._is_former(place.topic)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Takes offsets back. A place that is named twice, or has none, makes no difference.

        Raises:
            OSError: all are still there.
        """
        known = [place for place in dict.fromkeys(places) if place in self._offsets]
        if known:
            self._append(["forget", [list(place) for place in known]])
            for place in known:
                self._forget(place)

    def note_generation(self, generation: int, protocol_type: str | None, protocol: str | None) -> None:
        """Writes down that the group is stable with this generation.

        Raises:
            OSError: the former one is still there.
        """
        self._append(["generation", generation, protocol_type, protocol])
        self.generation, self.protocol_type, self.protocol = generation, protocol_type, protocol

    def _append_offsets(self, head: Body, offsets: Mapping[TopicPartition, Committed]) -> None:
        self._name_topics(offsets)
        if self._level.is_durable:
            sync_records(self._directory, {place: one.offset for place, one in offsets.items()})
        self._append([*head, *_rows(offsets)])

    def _append(self, body: Body) -> None:
        if self.is_missing:
            self._open([])
        content = pack_frame(body)
        append_or_cut(self._descriptor, content, self._size, is_synced=self._is_synced)
        if not is_file_at(self._path, self._descriptor):
            os.ftruncate(self._descriptor, self._size)
            self._restore()
            append_or_cut(self._descriptor, content, self._size, is_synced=self._is_synced)
        self._size += len(content)
        self._seen_size = self._size

    def _restore(self) -> None:
        """Writes the file anew after it was removed, moved or replaced under its writer."""
        if not os.path.isdir(self._directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._directory)
        make_folder(self._folder)
        self._rewrite()
        logger.error("%s was removed or replaced under its writer. It is written anew", self._path)

    def _rewrite(self) -> None:
        content = b"".join(pack_frame(body) for body in self._bodies())
        temporary = self._path + TEMPORARY
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
        descriptor = open_regular(temporary, flags)
        try:
            write_all(descriptor, content)
            os.fdatasync(descriptor)
            os.replace(temporary, self._path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, len(content)
        self._seen_inode, self._seen_size = self._opened_inode(), self._size
        if self._is_synced:
            sync_folder(self._folder)

    def _bodies(self) -> Iterator[Body]:
        yield ["group", self.group_id]
        yield ["generation", self.generation, self.protocol_type, self.protocol]
        for topic, topic_id in self._topic_ids.items():
            yield ["topic", topic, topic_id.hex()]
        for _, kind, key, rows in sorted(self._commits() + self._staged()):
            yield [*kind, key, rows]

    def _commits(self) -> list[Any]:
        """What is committed, as (order, head of the frame, time, rows). While nothing is staged, each order is 0."""
        by_key: dict[tuple[int, int], list[list[Any]]] = {}
        for place, one in self._offsets.items():
            order = self._committed_order[place] if self.pending else 0
            by_key.setdefault((order, one.time_ms), []).append(_row(place, one))
        return [(order, ["commit"], time_ms, rows) for (order, time_ms), rows in by_key.items()]

    def _staged(self) -> list[Any]:
        """The same of what is staged; the frame begins with the producer id."""
        by_key: dict[tuple[int, int, int], list[list[Any]]] = {}
        for producer_id, offsets in self.pending.items():
            for place, one in offsets.items():
                order = self._pending_order[producer_id, place]
                by_key.setdefault((order, producer_id, one.time_ms), []).append(_row(place, one))
        return [
            (order, ["pending", producer_id], time_ms, rows) for (order, producer_id, time_ms), rows in by_key.items()
        ]

    def close(self) -> None:
        """Lets go of the file. Doing it twice does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _row(place: TopicPartition, one: Committed) -> list[Any]:
    return [*place, one.offset, one.leader_epoch, one.metadata]


def _rows(offsets: Mapping[TopicPartition, Committed]) -> tuple[int, list[list[Any]]]:
    """Offsets that are committed together, as a frame has them: the time of the first, and a row for each."""
    rows = [_row(place, one) for place, one in offsets.items()]
    return next(iter(offsets.values())).time_ms, rows


def _committed_in(time_ms: int, rows: list[list[Any]]) -> dict[TopicPartition, Committed]:
    """The offsets that a frame tells."""
    return {
        TopicPartition(str(topic), int(partition)): Committed(int(offset), int(epoch), str(metadata), int(time_ms))
        for topic, partition, offset, epoch, metadata in rows
    }
