# SPDX-License-Identifier: Apache-2.0
"""The open transactions of a partition, which determine its last stable offset.

::

    offsets              | a | b | a | c | b commit | a | ...
                           ^ last stable offset: the first record of the oldest open transaction

Rules: a producer has at most one open transaction in a partition. The first batch of a transaction opens it, and its
marker ends it. Offsets ascend, so the transactions are stored in the order in which they began.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final


@final
class OpenTransactions:
    """The open transactions of one partition.

    Args:
        begun: the producer id and the first offset of each.
    """

    def __init__(self, begun: Iterable[tuple[int, int]] = ()) -> None:
        self._first_offsets = dict(sorted(begun, key=lambda pair: pair[1]))

    def begin(self, producer_id: int, offset: int) -> None:
        """Open a transaction with its first batch. Later batches change nothing."""
        self._first_offsets.setdefault(producer_id, offset)

    def end(self, producer_id: int) -> int | None:
        """End a transaction with its marker; return its first offset, or None if none was open."""
        return self._first_offsets.pop(producer_id, None)

    def first_offset_of(self, producer_id: int) -> int | None:
        """The first offset of a producer's open transaction, or None."""
        return self._first_offsets.get(producer_id)

    def stable_offset(self, end_offset: int) -> int:
        """The last stable offset of a log with this end offset."""
        return next(iter(self._first_offsets.values()), end_offset)

    def stable_offset_without(self, producer_id: int, end_offset: int) -> int:
        """The last stable offset after this producer's transaction ends."""
        others = (offset for key, offset in self._first_offsets.items() if key != producer_id)
        return next(others, end_offset)

    def cut(self, end_offset: int) -> None:
        """Remove the transactions that began at this offset or after it, because their batches were not written."""
        gone = [key for key, offset in self._first_offsets.items() if offset >= end_offset]
        for key in gone:
            del self._first_offsets[key]

    def producer_ids(self) -> list[int]:
        """The producers with an open transaction, in the order in which these began."""
        return list(self._first_offsets)

    def __len__(self) -> int:
        return len(self._first_offsets)
