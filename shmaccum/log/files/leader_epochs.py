# SPDX-License-Identifier: Apache-2.0
"""The leader epochs of a partition (KIP-320), which show consumers that offsets they read were assigned again.

::

    leader-epoch-checkpoint    version, count, then "epoch first-offset" a line, both ascending (Kafka's file)

    epoch    0 ............. 1 ........ 2 ...
    offset   0               4711       4702?   no: raising at 4702 drops epoch 1, which began after it

Rules: every batch is stamped with the latest epoch. When the log is opened and records may have been lost, the epoch is
raised: after a torn tail was cut, and after a crash of the host. The file is on disk before a cut or an append.

Why it is safe: a death after the raise leaves an epoch without batches, and the next open raises the epoch again. A
damaged file is replaced by the epoch of the last batch in the log, so an epoch never decreases.
"""

from __future__ import annotations

import itertools
import os
from typing import final

from shmaccum.log.files.file_names import LEADER_EPOCHS_FILE
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import CHECKPOINT_VERSION, replace_file_synced

FIRST_EPOCH = 0
NO_EPOCH = -1
NO_OFFSET = -1

Entry = tuple[int, int]
"""An epoch and its first offset."""


@final
class LeaderEpochs:
    """The epochs of one partition.

    Attributes:
        entries: the epochs, oldest first; at least one.

    Args:
        folder: the path of the partition's folder.
    """

    def __init__(self, folder: str) -> None:
        """Read the file. If it is missing or damaged, only the first epoch is known.

        Raises:
            OSError: if the file cannot be read.
        """
        self._path = os.path.join(folder, LEADER_EPOCHS_FILE)
        self.entries: list[Entry] = _read(self._path) or [(FIRST_EPOCH, 0)]

    @property
    def latest(self) -> int:
        """The epoch that batches are stamped with."""
        return self.entries[-1][0]

    def raise_at(self, offset: int) -> None:
        """Begin a new epoch at an offset. Former epochs that begin at it or after it are dropped.

        Raises:
            OSError: if the epoch was not stored. The former epoch is still the latest.
        """
        self._write(self.latest + 1, offset)

    def learn(self, epoch: int, offset: int) -> None:
        """Add the epoch of a batch in the log if it is missing in the file.

        Raises:
            OSError: if the epoch was not stored. The former epoch is still the latest.
        """
        if epoch > self.latest:
            self._write(epoch, offset)

    def _write(self, epoch: int, offset: int) -> None:
        entries = [entry for entry in self.entries if entry[1] < offset] + [(epoch, offset)]
        lines = [CHECKPOINT_VERSION, str(len(entries)), *(f"{one} {start}" for one, start in entries)]
        replace_file_synced(self._path, "".join(line + "\n" for line in lines).encode())
        self.entries = entries

    def at(self, offset: int) -> int:
        """The epoch of an offset, or the first epoch for an offset before the log."""
        return max((epoch for epoch, start in self.entries if start <= offset), default=self.entries[0][0])

    def end_of(self, epoch: int, end_offset: int) -> Entry:
        """The end of an epoch, as returned by OffsetForLeaderEpoch (Kafka's LeaderEpochFileCache.endOffsetFor).

        Args:
            epoch: the requested epoch.
            end_offset: the end offset of the log.

        Returns:
            The largest known epoch that is not later than the requested one, and its end offset. (-1, -1) for a future
            epoch.
        """
        if epoch == self.latest:
            return epoch, end_offset
        later = [entry for entry in self.entries if entry[0] > epoch]
        if epoch < FIRST_EPOCH or not later:
            return NO_EPOCH, NO_OFFSET
        known = [one for one, _ in self.entries if one <= epoch]
        return (known[-1] if known else epoch), later[0][1]


def _read(path: str) -> list[Entry]:
    try:
        with open(path, encoding="ascii", errors="replace", opener=open_regular) as file:
            version, count, *lines = file.read().splitlines()
        entries = [(int(epoch), int(offset)) for epoch, offset in map(str.split, lines)]
        is_whole = version == CHECKPOINT_VERSION and int(count) == len(entries)
    except (FileNotFoundError, ValueError):
        return []
    ascends = all(one[0] < other[0] and one[1] < other[1] for one, other in itertools.pairwise(entries))
    return entries if is_whole and ascends and all(min(entry) >= 0 for entry in entries) else []
