# SPDX-License-Identifier: Apache-2.0
"""The transactions of a partition for its readers: which are open, and which were aborted.

::

    offsets    0 ............. S ................. end
    open       newest snapshot | batches and markers after it
    aborted    .txnindex files | markers after it

A reader loads the newest snapshot of the producers' state, which is valid below the offset S, and passes every batch of
a transaction from S on. So the index is only needed for aborted transactions that ended below S. It is read when it is
first needed.
"""

from __future__ import annotations

import bisect
import itertools
import os
from typing import NamedTuple, final

from shmaccum.common.format.batch_header import CONTROL, BatchHeader
from shmaccum.log.files.file_names import LOG, SNAPSHOT, offset_file, offsets_with
from shmaccum.log.files.open_transactions import OpenTransactions
from shmaccum.log.files.producer_state import ProducerState
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.transaction_index import Aborted, read_aborted
from shmaccum.log.files.transaction_marker import decision_in

TRIES_MAX = 5
"""Tries to read a snapshot: the writer may replace the newest ones meanwhile."""


class _KnownTransactions(NamedTuple):
    """The open transactions at an offset."""

    transactions: OpenTransactions
    offset: int


def _newest_known(folder: str) -> _KnownTransactions:
    """The open transactions of the newest readable snapshot; without one, none at the start of the log."""
    if not os.path.isdir(folder):
        return _KnownTransactions(OpenTransactions(), 0)
    for _ in range(TRIES_MAX):
        for offset in reversed(offsets_with(folder, SNAPSHOT)):
            try:
                with open(offset_file(folder, offset, SNAPSHOT), "rb", opener=open_regular) as file:
                    state = ProducerState.from_snapshot(file.read())
            except FileNotFoundError:
                break
            if state is not None:
                return _KnownTransactions(state.transactions, offset)
        else:
            break
    return _KnownTransactions(OpenTransactions(), min(offsets_with(folder, LOG), default=0))


@final
class TransactionView:
    """The transactions of one partition.

    Attributes:
        start_offset: `add_batch` must be called for batches from this offset on.

    Args:
        folder: the path of the partition's folder.

    Raises:
        OSError: if the folder cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._open, self.start_offset = _newest_known(folder)
        self._aborted: list[Aborted] = []
        self._is_index_read = False

    def add_batch(self, header: BatchHeader, batch: memoryview) -> None:
        """Process a batch of a transaction, or a control batch. Batches must be passed in the order of offsets.

        Args:
            header: the header of the batch.
            batch: its bytes.
        """
        offset, producer_id = header.base_offset, header.producer_id
        if offset < self.start_offset:
            return
        if not header.attributes & CONTROL:
            self._open.begin(producer_id, offset)
        elif (is_commit := decision_in(batch, header)) is not None:
            first_offset = self._open.end(producer_id)
            if first_offset is not None and not is_commit:
                stable_offset = self._open.stable_offset(offset + 1)
                self._aborted.append(Aborted(producer_id, first_offset, offset, stable_offset))

    def stable_offset(self, end_offset: int) -> int:
        """The last stable offset of a log with this end offset. No record below it belongs to an open transaction."""
        return self._open.stable_offset(end_offset)

    def has_any(self) -> bool:
        """True if a transaction is open or was aborted, so that a reader of committed records skips records.

        Raises:
            OSError: if an index cannot be read.
        """
        self._read_index()
        return bool(self._aborted) or bool(self.open_transactions())

    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by producer id."""
        return {
            key: first for key in self._open.producer_ids() if (first := self._open.first_offset_of(key)) is not None
        }

    def aborted(self, first_offset: int, end_offset: int) -> list[Aborted]:
        """The aborted transactions that may have records in [first_offset, end_offset).

        Raises:
            OSError: if an index cannot be read.
        """
        self._read_index()
        entries = self._aborted
        found = []
        for slot in range(bisect.bisect_left(entries, first_offset, key=lambda entry: entry.last_offset), len(entries)):
            entry = entries[slot]
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.stable_offset >= end_offset:
                break
        return found

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """True if the record at this offset belongs to an aborted transaction of this producer.

        Raises:
            OSError: if an index cannot be read.
        """
        return any(entry.producer_id == producer_id for entry in self.aborted(offset, offset + 1))

    def _read_index(self) -> None:
        if self._is_index_read:
            return
        base_offsets = [offset for offset in offsets_with(self._folder, LOG) if offset < self.start_offset]
        older = [
            entry
            for base_offset, end_offset in itertools.pairwise([*base_offsets, self.start_offset])
            for entry in read_aborted(self._folder, base_offset)
            if entry.last_offset < end_offset  # otherwise the entry is damaged and refers to another segment
        ]
        self._aborted = older + self._aborted
        self._is_index_read = True

    def forget_before(self, log_start_offset: int) -> None:
        """Forget the aborted transactions that ended below the log start offset."""
        count = bisect.bisect_left(self._aborted, log_start_offset, key=lambda entry: entry.last_offset)
        del self._aborted[:count]
