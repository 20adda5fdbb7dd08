# SPDX-License-Identifier: Apache-2.0
"""The offsets file of a group, which all members of one process share. So a commit of another process is read once.

::

    shared_offsets    a member begins to use the file of its group; the first one of the process opens it
    release           a member leaves; the last one of the process closes the file

Rules: one lock for each file covers what was read of it and where the next frame goes. A member that commits has the
pen first and takes this lock next, or takes both without a wait. Nobody waits for the pen with this lock. Members are
counted under a lock of the process, which a consumer that is collected as garbage may take in the middle of anything.

Deaths: a forked child has none of these files and new locks, before its copies of the parent's consumers let go.
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
    """The offsets of one group, for all members of this process; made by `shared_offsets`."""

    def __init__(self, directory: str, group_id: str) -> None:
        self._key = directory, group_id
        self._user_count = 0
        self._lock = threading.Lock()
        self._file = OffsetsFile(directory, group_id, is_writer=False)

    def committed(self, place: TopicPartition) -> Committed | None:
        """The committed offset of a partition; None without one.

        Raises:
            CorruptLogError, OSError: the file cannot be read.
        """
        with self._lock:
            self._file.catch_up()
            return self._file.offsets.get(place)

    def found(self) -> None:
        """Makes the file of a new group; the caller has the pen.

        Raises:
            CorruptLogError, OSError: the file cannot be read or written.
        """
        with self._lock:
            self._file.prepare()

    def known(self) -> dict[TopicPartition, Committed]:
        """The offsets as this process read or wrote them last."""
        with self._lock:
            return dict(self._file.offsets)

    def restore(self, known: Mapping[TopicPartition, Committed], owned: Collection[TopicPartition]) -> None:
        """Writes known offsets that the file lacks, and those of owned partitions that it has lower; with the pen.

        Raises:
            CorruptLogError, OSError: the file cannot be read or written.
        """
        with self._lock:
            self._file.prepare()
            found = self._file.offsets
            for place, one in known.items():
                if place not in found or (place in owned and found[place].offset < one.offset):
                    self._file.commit({place: one})

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Writes offsets down, all of them or none; the caller has the pen.

        Raises:
            CorruptLogError, OSError: the file cannot be read or written.
        """
        with self._lock:
            self._file.prepare()
            self._file.commit(offsets)

    def commit_at_once(self, offsets: Mapping[TopicPartition, Committed], lock: int, byte: int) -> bool:
        """As `commit`, without a wait: takes the pen and drops it; see `OffsetsFile.commit_at_once`."""
        with self._lock:
            return self._file.commit_at_once(offsets, lock, byte)

    def add_user(self) -> SharedOffsets:
        """One more member uses the file."""
        self._user_count += 1
        return self

    def release(self) -> None:
        """One member leaves. The last one closes the file."""
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
    """The offsets of a group, which a member uses from now on until `SharedOffsets.release`.

    Raises:
        CorruptLogError: another group's file lies under this name.
        OSError: the file cannot be read.
    """
    with _OpenFiles.lock:
        key = directory, group_id
        if key not in _OpenFiles.files:
            _OpenFiles.files[key] = SharedOffsets(directory, group_id)
        return _OpenFiles.files[key].add_user()


def _start_anew_in_child() -> None:
    _OpenFiles.lock = threading.RLock()
    _OpenFiles.files = {}


os.register_at_fork(after_in_child=_start_anew_in_child)
