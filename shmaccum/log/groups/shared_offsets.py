# SPDX-License-Identifier: Apache-2.0
"""The offsets file of a group, shared by all members of one process. So a commit of another process is read once.

::

    shared_offsets    called when a member starts to use the file of its group; the first call opens the file
    release           called when a member leaves; the last call closes the file

Rules: one lock for each file protects the state that was read from it and the position of the next frame. A member that
commits locks the offsets byte first and takes this lock second, or takes both without waiting. No thread waits for the
offsets byte while it has this lock. Members are counted under a lock of the process, which the garbage collection of a
consumer may take at any point.

Deaths: a forked child first forgets the open files and makes new locks. Then it may close its copies of the parent's
consumers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from typing import ClassVar, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.groups.offsets_file import Committed, OffsetsFile


@final
class SharedOffsets:
    """The offsets of one group, for all members of this process. Created by `shared_offsets`."""

    def __init__(self, directory: str, group_id: str) -> None:
        self._key = directory, group_id
        self._user_count = 0
        self._lock = threading.Lock()
        self._file = OffsetsFile(directory, group_id, is_writer=False)

    def committed(self, place: TopicPartition) -> Committed | None:
        """The committed offset of a partition, or None.

        Raises:
            CorruptLogError, OSError: if the file cannot be read.
        """
        with self._lock:
            self._file.catch_up()
            return self._file.offsets.get(place)

    def create(self) -> None:
        """Create the file of a new group. The caller has the right to write the offsets.

        Raises:
            CorruptLogError, OSError: if the file cannot be read or written.
        """
        with self._lock:
            self._file.prepare()

    def known(self) -> dict[TopicPartition, Committed]:
        """The offsets that this process last read or wrote."""
        with self._lock:
            return dict(self._file.offsets)

    def restore(self, known: Mapping[TopicPartition, Committed], owned: Collection[TopicPartition]) -> None:
        """Add known offsets that the file lacks, and raise lower ones of owned partitions. The caller has the right to
        write.

        Raises:
            CorruptLogError, OSError: if the file cannot be read or written.
        """
        with self._lock:
            self._file.prepare()
            found = self._file.offsets
            for place, one in known.items():
                if place not in found or (place in owned and found[place].offset < one.offset):
                    self._file.commit({place: one})

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Store offsets, all of them or none. The caller has the right to write the offsets.

        Raises:
            CorruptLogError, OSError: if the file cannot be read or written.
        """
        with self._lock:
            self._file.prepare()
            self._file.commit(offsets)

    def commit_at_once(self, offsets: Mapping[TopicPartition, Committed], lock: int, byte: int) -> bool:
        """Commit without waiting. Acquires and releases the right itself; see `OffsetsFile.commit_at_once`."""
        with self._lock:
            return self._file.commit_at_once(offsets, lock, byte)

    def add_user(self) -> SharedOffsets:
        """Add a member that uses the file."""
        self._user_count += 1
        return self

    def release(self) -> None:
        """Remove a member. The last one closes the file."""
        with _OpenFiles.lock:
            self._user_count -= 1
            if not self._user_count:
                self._file.close()
                if _OpenFiles.files.get(self._key) is self:
                    del _OpenFiles.files[self._key]


class _OpenFiles:
    """The files that members of this process have open."""

    lock = threading.RLock()
    files: ClassVar[dict[tuple[str, str], SharedOffsets]] = {}


def shared_offsets(directory: str, group_id: str) -> SharedOffsets:
    """The offsets of a group. The member uses them until it calls `SharedOffsets.release`.

    Raises:
        CorruptLogError: if the file with this name belongs to another group.
        OSError: if the file cannot be read.
    """
    with _OpenFiles.lock:
        key = directory, group_id
        if key not in _OpenFiles.files:
            _OpenFiles.files[key] = SharedOffsets(directory, group_id)
        return _OpenFiles.files[key].add_user()


def _reset_in_child() -> None:
    _OpenFiles.lock = threading.RLock()
    _OpenFiles.files = {}


os.register_at_fork(after_in_child=_reset_in_child)
