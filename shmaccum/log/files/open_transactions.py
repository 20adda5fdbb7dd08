# SPDX-License-Identifier: Apache-2.0
"""The transactions of a partition that are not decided yet, and so its last stable offset.

::

    offsets              | a | b | a | c | b commit | a | ...
                           ^ last stable offset: the first record of the open transaction that began first

Rules: a producer has at most one open transaction in a partition. The first batch of a transaction begins it, its
marker ends it. Offsets ascend, so the transactions are in the order in which they began.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final


@final
class OpenTransactions:
    """The open transactions of one partition.

    Args:
        begun: producer id and first offset of each.
    """

    def __init__(self, begun: Iterable[tuple[int, int]] = ()) -> None:
        self._first_offsets = dict(sorted(begun, key=lambda pair: pair[1]))

    def begin(self, producer_id: int, offset: int) -> None:
        """A batch of a transaction came; the first one begins it."""
        self._first_offsets.setdefault(producer_id, offset)

    def end(self, producer_id: int) -> int | None:
        """A marker came: the first offset of the transaction that it ends; None: it ends none."""
        return self._first_offsets.pop(producer_id, None)

    def first_offset_of(self, producer_id: int) -> int | None:
        """The first offset of a producer's open transaction; None: it has none."""
        return self._first_offsets.get(producer_id)

    def stable_offset(self, end_offset: int) -> int:
        """The last stable offset of a log that ends here."""
        return next(iter(self._first_offsets.values()), end_offset)

    def stable_offset_without(self, producer_id: int, end_offset: int) -> int:
        """The last stable offset once this producer's transaction is ended."""
        others = (offset for key, offset in self._first_offsets.items() if key != producer_id)
        return next(others, end_offset)

    def cut(self, end_offset: int) -> None:
        """The batches from this offset on were not written after all."""
        gone = [key for key, offset in self._first_offsets.items() if offset >= end_offset]
        for key in gone:
            del self._first_offsets[key]

    def producer_ids(self) -> list[int]:
        """The producers that have an open transaction, in the order in which they began."""
        return list(self._first_offsets)

    def __len__(self) -> int:
        return len(self._first_offsets)
