# SPDX-License-Identifier: Apache-2.0
"""The committed offsets of one group, in its own file in the log directory.

::

    .groups/NAME.offsets   | frame | frame | frame | ... | frame being written |
    frame                  see `frames`

    body   ["group", group id]                                                        the first frame
           ["commit", time ms, [[topic, partition, offset, leader epoch, metadata]...]]
           ["forget", [[topic, partition]...]]
           ["generation", number, protocol type, protocol]
           ["pending", producer id, time ms, [[topic, partition, offset, leader epoch, metadata]...]]
           ["end", producer id, is committed]
           ["topic", topic, id of the topic in hexadecimal digits]

Rules: a commit of several partitions is one frame, so it is in the file whole or not at all. A later frame replaces the
content of earlier ones for the same partition. Pending offsets are those of a transaction of Kafka. They take effect
with the frame that ends it with a commit, unless a commit of the same partition was appended after them: as in Kafka,
the later one of the two counts. So a rewrite keeps the order of the frames. The file is only written under the group's
lock (`GroupLock`), which the kernel releases with its holder. When a group is deleted, the holder of its lock removes
its files. A process that opened the lock file before has then locked a file without a name. It detects that, and opens
the new one.

Topics: when a topic is deleted, its offsets are void, also pending ones. Before the first offset of a topic, or of one
that was created again, a frame stores the id of the topic. Earlier offsets of a topic with this name and another id are
void. Offsets whose topic does not exist, or now has another id, are never returned. `topic_ids` defines the proof.

Procedure: a commit appends a frame by one write. When most of the file is outdated, it is rewritten beside the old one
and renamed over it. A death during a write leaves a torn frame at the end: the next writer cuts it, and readers stop
before it. A death during a rewrite leaves the old file, and a ``.tmp`` that the next rewrite replaces.

Power cuts: if the writer of the log forces records to disk, the records before an offset are on disk before the offset
is. Otherwise, after a power cut the log could end before the offset, and the group would skip the next records.

Identity: a commit counts if the path leads to the file that has its frame. If the file was removed, moved or replaced,
its writer writes a new one with everything that it knows. Consumers that share the group without a server read the
file that is there instead.

Damage: a frame that is not whole but is followed by other bytes is not an interrupted write. A reader skips the damage
to the next whole frame, so the last readable offsets count. The next writer copies the damaged file to
``NAME.offsets.damaged-TIME``, logs an error, and rewrites the file from the whole frames. The copy remains until a user
removes it.

Why it is safe: a frame counts only if its size and its CRC are right. The kernel extends a file only after the bytes
are in it. A writer only cuts after the last whole frame, and removes damage only when the copy is on disk, so it
never loses a commit that was acknowledged.

Kafka stores offsets in the topic ``__consumer_offsets``. Here, only the writer of a log can append to a topic, but a
server that only reads must accept commits, too.
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
from shmaccum.log.files.regular_files import is_file_at, is_opened_at, open_regular
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
"""The stem of the files of the group without a name. No other stem has an unescaped percent sign."""
NAME_SIZE_MAX = 180
DIGEST_SIZE = 16
DEAD_SIZE_MIN = 256 << 10
"""A smaller file is not rewritten."""
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
    """An offset that a group has committed for a partition."""

    offset: int
    """The next offset to consume."""
    leader_epoch: int
    """-1 if the client sent none."""
    metadata: str
    time_ms: int
    """The time of the commit, on the wall clock."""


def file_stem(group_id: str) -> str:
    """The stem of a group's files: its id, percent-encoded. A long id is cut, and a digest of the whole id is appended.

    The group without a name is one of Kafka's. It has offsets but no members (KIP-289).
    """
    if not group_id:
        return NO_NAME
    stem = quote(group_id, safe="").replace(".", "%2E")
    if len(stem) <= NAME_SIZE_MAX:
        return stem
    digest = hashlib.blake2b(group_id.encode(), digest_size=DIGEST_SIZE).hexdigest()
    return f"{stem[:NAME_SIZE_MAX]}~{digest}"


def group_ids(directory: str) -> list[str]:
    """Every group that has a file, sorted. Only files with a cut name are opened."""
    return sorted(group_id for group_id in map(group_id_of, offsets_paths(directory)) if group_id is not None)


def offsets_paths(directory: str) -> list[str]:
    """The paths of all offsets files; `group_id_of` returns the group of each."""
    folder = os.path.join(directory, GROUPS_FOLDER)
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(OFFSETS)]
    except FileNotFoundError:
        return []


def has_group(directory: str, group_id: str) -> bool:
    """True if the group has a file.

    Raises:
        OSError: if the folder cannot be read.
    """
    try:
        os.stat(os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + OFFSETS))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def group_id_of(path: str) -> str | None:
    """The group of a file, from its name, or from its first frame if the name is cut. None if it has no group."""
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
    """The inode and the size of a file. The inode of a missing file is 0."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_size


@final
class GroupLock:
    """The right to write a group's files, while this object is open. A forked child closes its copy."""

    def __init__(self, directory: str, group_id: str) -> None:
        """Acquire the lock.

        Raises:
            GroupModeError: if consumers on this host share the group without a server (`member_locks`).
            LogBusyError: if another process has it.
            OSError: if the folder cannot be written.
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
            is_local = self._descriptor.kind_at(0) == fcntl.F_RDLCK  # every local member has this read lock
            self.release()
            if is_local:
                raise GroupModeError(
                    f"the group {group_id!r} of {directory} is shared by consumers on its host, without a server: "
                    "consume there, stop them, or name another group"
                )
            raise LogBusyError(
                f"the group {group_id!r} of {directory} is coordinated by another process: consume through that "
                "process, or stop it"
            )

    @property
    def has_its_name(self) -> bool:
        """False after the lock file was removed or replaced. Then another process can get the right, too."""
        return is_file_at(self._stem + LOCK, self._descriptor.number)

    def write_address(self, address: str) -> None:
        """Store the address at which the holder accepts requests (HOST:PORT).

        Raises:
            OSError: if it was not stored.
        """
        content = address.encode()
        os.pwrite(self._descriptor.number, content, 0)
        os.ftruncate(self._descriptor.number, len(content))

    def remove_files(self) -> None:
        """Remove the files of the group, the lock file last. The holder must then release the lock.

        Raises:
            OSError: if one of them still exists.
        """
        for suffix in (OFFSETS, JOINS, PLAN, LOCK):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._stem + suffix)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        self._descriptor.close()


def coordinator_address(directory: str, group_id: str) -> str | None:
    """HOST:PORT of the server that has a group's lock, or None if no process has it or its holder has no address."""
    if not is_in_use(directory, group_id):
        return None
    path = os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + LOCK)
    with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
        found = ADDRESS.fullmatch(file.read(ADDRESS_SIZE_MAX))
    return found[0] if found else None


def is_in_use(directory: str, group_id: str) -> bool:
    """True while a server coordinates the group, or consumers on the host of the log share it."""
    return is_locked(os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + LOCK))


@final
class OffsetsFile:
    """The offsets of one group.

    Attributes:
        group_id: the group.
        pending: the offsets of undecided transactions, by producer id.
        generation, protocol_type, protocol: the values of the group when it was last stable.
        is_missing: True for a writer that has not created the file yet.
    """

    def __init__(
        self, directory: str, group_id: str, *, is_writer: bool, is_created: bool = True, is_synced: bool = False
    ) -> None:
        """Read the file. A missing file is empty.

        Args:
            directory: the log directory.
            group_id: the group.
            is_writer: True if the caller holds the group's lock. A torn frame is then cut, and a damaged file copied.
            is_created: If True, a writer creates a missing file now. Otherwise, its first append does.
            is_synced: If True, a commit returns when it is on disk. Otherwise, the level of the log's writer decides.

        Raises:
            OSError: if the file cannot be read, or cannot be written by a writer.
            CorruptLogError: if the file with this name belongs to another group.
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
        self._opened: os.stat_result
        """The status of the file when it was opened."""
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
        """Read the frames that other processes wrote since the last call.

        Returns:
            The damage in the file: the start and the end of each range of bytes that is not a frame.

        Raises:
            OSError: if the file cannot be read.
            CorruptLogError: if a frame is invalid.
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
        self._seen_inode, self._seen_size = inode, size  # an invalid file raises an error at each call
        return damages

    def _read(self) -> list[tuple[int, int]]:
        """Replay the whole frames after those that were read; return the damage."""
        start = self._size
        frames = find_frames(self._content(start), BODIES)
        for position, body in frames.bodies:
            self._replay(body, start + position)
        self._size = start + frames.end
        return [(start + begin, start + end) for begin, end in frames.damages]

    def _content(self, start: int = 0) -> bytes:
        """The content of the file from this position on, or empty if there is no file."""
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
                self._path, position, position, f"it is not a frame of group {self.group_id!r}: {error}"
            ) from None

    def _apply(self, body: Body) -> None:
        kind, *rest = body
        if kind == "group":
            if rest != [self.group_id]:
                raise ValueError(f"the file belongs to group {rest}")
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
        """Commit the pending offsets that are later than the committed ones, or drop all of them."""
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
        """The committed offset of each partition whose topic exists.

        Raises:
            OSError: if the log cannot be read, so that the topics are unknown.
        """
        former = {topic for topic in self._topic_ids if self._is_former(topic)}
        if not former:
            return self._offsets
        return {place: one for place, one in self._offsets.items() if place.topic not in former}

    def _is_former(self, topic: str) -> bool:
        """True if the offsets belong to a topic that was deleted."""
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
        """The topics whose ids are not in the file, and these ids."""
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
        """Become the writer after other processes were. The caller has the right to write.

        Raises:
            OSError: if the file cannot be read or written.
            CorruptLogError: as `catch_up`.
        """
        if self._descriptor >= 0 and self._is_unchanged():
            return
        if self._descriptor < 0:
            self._seen_inode = -1  # a new writer reads the whole file, and copies a damaged one
        damages = self.catch_up()
        is_opened = self._descriptor >= 0 and self._seen_inode == self._opened.st_ino
        if damages or not is_opened or self._seen_size != self._size:
            self.close()
            self._open(damages)

    def _is_unchanged(self) -> bool:
        """True if the file is as this process left it. Every other writer extends or replaces it."""
        return os.fstat(self._descriptor).st_size == self._size and is_opened_at(self._path, self._opened)

    def _open(self, damages: list[tuple[int, int]]) -> None:
        make_folder(self._folder)
        if damages:
            self._copy_damaged(damages)
        self._descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        self._opened = os.fstat(self._descriptor)
        self.is_missing = False
        os.ftruncate(self._descriptor, self._size)
        if damages:
            self._rewrite()
        elif not self._size:
            self._append(["group", self.group_id])
        self._name_topics(place for place in self._offsets if place.topic not in self._topic_ids)  # from old versions
        if self._is_synced:
            sync_folder(self._folder)
            sync_folder(self._directory)
        self._seen_inode, self._seen_size = self._opened.st_ino, self._size

    def _copy_damaged(self, damages: list[tuple[int, int]]) -> None:
        """Copy the damaged file, and log that."""
        copy = f"{self._path}{DAMAGED}{time.time_ns()}"
        replace_file_synced(copy, self._content())
        where = ", ".join(f"{begin} to {end}" for begin, end in damages[:3])
        logger.error(
            "the offsets of group %r were damaged: %s, bytes %s. The group continues with the offsets that could be "
            "read; a copy of the damaged file is %s",
            self.group_id,
            self._path,
            where,
            copy,
        )

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Store offsets, all of them or none.

        Args:
            offsets: the offsets of one commit. All get the time of the first.

        Raises:
            OSError: if none is committed.
        """
        if not offsets:
            return
        self._append_offsets(["commit"], offsets)
        self._commit(offsets)
        self._rewrite_if_outdated()

    def commit_at_once(self, offsets: Mapping[TopicPartition, Committed], lock: int, byte: int) -> bool:
        """As `commit`, in one call of native code, which acquires the right to write and releases it.

        Args:
            offsets: the offsets of one commit, at least one.
            lock: a descriptor of the lock file.
            byte: the byte of the lock file that gives the right to write.

        Returns:
            False if nothing was written: another process is writing or has written, or the file needs other changes.
        """
        if self._descriptor < 0 or self._is_synced or self._is_mostly_outdated() or self._unnamed(offsets):
            return False
        size = append_frame(lock, byte, self._descriptor, self._size, pack_body(["commit", *_rows(offsets)]))
        if not size or not is_opened_at(self._path, self._opened):
            return False
        self._size = self._seen_size = size
        self._commit(offsets)
        return True

    def _is_mostly_outdated(self) -> bool:
        """True if most of the file is outdated, and it is large enough for a rewrite."""
        return self._size >= DEAD_SIZE_MIN + 200 * (len(self._offsets) + sum(map(len, self.pending.values())))

    def _rewrite_if_outdated(self) -> None:
        """Rewrite the file if most of it is outdated."""
        if self._is_mostly_outdated():
            with contextlib.suppress(OSError):  # the old file is equivalent
                self._rewrite()

    def commit_pending(self, producer_id: int, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Store offsets that take effect if the transaction of a producer is committed, all of them or none.

        Raises:
            OSError: if none is pending.
        """
        if offsets:
            self._append_offsets(["pending", producer_id], offsets)
            self._stage(producer_id, offsets)

    def end_pending(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply or drop the pending offsets of a producer, whose transaction is decided. A second call does nothing.

        Raises:
            OSError: if they are still pending.
        """
        if producer_id in self.pending:
            self._append(["end", producer_id, is_commit])
            self._end(producer_id, is_commit)
            self._rewrite_if_outdated()

    def is_pending(self, place: TopicPartition) -> bool:
        """True while the next offset of a partition depends on a transaction (KIP-447)."""
        return any(place in offsets for offsets in self.pending.values()) and not self._is_former(place.topic)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Delete offsets. Duplicate partitions, and those without an offset, are ignored.

        Raises:
            OSError: if all are still there.
        """
        known = [place for place in dict.fromkeys(places) if place in self._offsets]
        if known:
            self._append(["forget", [list(place) for place in known]])
            for place in known:
                self._forget(place)

    def store_generation(self, generation: int, protocol_type: str | None, protocol: str | None) -> None:
        """Store the generation with which the group is stable.

        Raises:
            OSError: if it was not stored. The former one is still there.
        """
        self._append(["generation", generation, protocol_type, protocol])
        self.generation, self.protocol_type, self.protocol = generation, protocol_type, protocol

    def _append_offsets(self, head: Body, offsets: Mapping[TopicPartition, Committed]) -> None:
        self._name_topics(offsets)
        is_durable = self._level.is_durable
        if is_durable:
            sync_records(self._directory, {place: one.offset for place, one in offsets.items()})
        self._append_frame(pack_frame([*head, *_rows(offsets)]), is_synced=is_durable or self._is_always_synced)

    def _append(self, body: Body) -> None:
        self._append_frame(pack_frame(body), is_synced=self._is_synced)

    def _append_frame(self, content: bytes, *, is_synced: bool) -> None:
        if self.is_missing:
            self._open([])
        append_or_cut(self._descriptor, content, self._size, is_synced=is_synced)
        if not is_opened_at(self._path, self._opened):
            os.ftruncate(self._descriptor, self._size)
            self._restore()
            append_or_cut(self._descriptor, content, self._size, is_synced=is_synced)
        self._size += len(content)
        self._seen_size = self._size

    def _restore(self) -> None:
        """Write the file again after it was removed, moved or replaced under its writer."""
        if not os.path.isdir(self._directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._directory)
        make_folder(self._folder)
        self._rewrite()
        logger.error("%s was removed or replaced under its writer. It is written again", self._path)

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
        self._opened = os.fstat(descriptor)
        self._seen_inode, self._seen_size = self._opened.st_ino, self._size
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
        """The committed offsets, as (order, head of the frame, time, rows). If none is pending, each order is 0."""
        by_key: dict[tuple[int, int], list[list[Any]]] = {}
        for place, one in self._offsets.items():
            order = self._committed_order[place] if self.pending else 0
            by_key.setdefault((order, one.time_ms), []).append(_row(place, one))
        return [(order, ["commit"], time_ms, rows) for (order, time_ms), rows in by_key.items()]

    def _staged(self) -> list[Any]:
        """The same for pending offsets, whose frame begins with the producer id."""
        by_key: dict[tuple[int, int, int], list[list[Any]]] = {}
        for producer_id, offsets in self.pending.items():
            for place, one in offsets.items():
                order = self._pending_order[producer_id, place]
                by_key.setdefault((order, producer_id, one.time_ms), []).append(_row(place, one))
        return [
            (order, ["pending", producer_id], time_ms, rows) for (order, producer_id, time_ms), rows in by_key.items()
        ]

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _row(place: TopicPartition, one: Committed) -> list[Any]:
    return [*place, one.offset, one.leader_epoch, one.metadata]


def _rows(offsets: Mapping[TopicPartition, Committed]) -> tuple[int, list[list[Any]]]:
    """Offsets of one commit in the form of a frame: the time of the first, and one row for each."""
    rows = [_row(place, one) for place, one in offsets.items()]
    return next(iter(offsets.values())).time_ms, rows


def _committed_in(time_ms: int, rows: list[list[Any]]) -> dict[TopicPartition, Committed]:
    """The offsets in a frame."""
    return {
        TopicPartition(str(topic), int(partition)): Committed(int(offset), int(epoch), str(metadata), int(time_ms))
        for topic, partition, offset, epoch, metadata in rows
    }
