# SPDX-License-Identifier: Apache-2.0
"""The results of many records sent in one call, without an object for each record.

Kafka has nothing like it: there a call per record gives a future per record. Here `Producer.send_many` and
`Producer.append_arrow` give a `Deliveries`, which counts, waits for, and sums up all records of the call, and makes a
future of its own for a record only when somebody asks for that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, final, overload

from shmaccum._native import DeliveryFuture, Receipt
from shmaccum.arena.results import BatchResult
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.exceptions import DeliveryError, ResultPendingError
from shmaccum.producer.delivery import DeliveryTracker


class OffsetRange(NamedTuple):
    """The offsets that delivered records of one partition were given.

    They are in the order of sending, but records of other producers may lie between them: the range is dense only if
    `record_count == last - first + 1`.
    """

    record_count: int
    first: int
    """The smallest offset; -1 where the sink told none (acks=0)."""
    last: int


class DeliveryCounts(NamedTuple):
    """The numbers of a call's records in each state. Together they are `len(deliveries)`."""

    pending: int
    succeeded: int
    failed: int
    """Refused by the sink, expired, aborted or found corrupt: `Deliveries.exception` tells which was first."""
    lost: int
    """Records whose results were overwritten in the completion ring before they were read. Their results are lost."""


@final
class Deliveries(Sequence[DeliveryFuture]):
    """The records of one call, in the order they were given; of a call that failed midway, those that were appended.

    As a sequence it has a future for each record, made when asked for. All of `wait`, `get`, `counts` and `offsets`
    cost a look per run of records that went into one batch together, and nothing per record.

    A record's future does not know the sizes of its key, value and headers: they were not kept.

    Args:
        receipt: the answer of the native call.
        tracker: knows the arena and the names of its partitions.
    """

    __slots__ = ("__weakref__", "_receipt", "_tracker")

    def __init__(self, receipt: Receipt, tracker: DeliveryTracker) -> None:
        self._receipt = receipt
        self._tracker = tracker

    @property
    def tracker(self) -> DeliveryTracker:
        """The object that looks up the results."""
        return self._tracker

    # --- the sequence of futures

    def __len__(self) -> int:
        return len(self._receipt)

    @overload
    def __getitem__(self, index: int) -> DeliveryFuture: ...
    @overload
    def __getitem__(self, index: slice) -> list[DeliveryFuture]: ...
    def __getitem__(self, index: int | slice) -> DeliveryFuture | list[DeliveryFuture]:
        if isinstance(index, slice):
            return [self._receipt[i] for i in range(*index.indices(len(self)))]
        return self._receipt[index]

    def __iter__(self) -> Iterator[DeliveryFuture]:
        return iter(self._receipt)

    @property
    def rows(self) -> Sequence[int]:
        """Which of the records given these are: all of them, unless the call failed.

        Of the last few hundred that a failed call began with, those of one partition may be there and those of another
        not; before them, all are.
        """
        count = len(self)
        if count == 0 or self._receipt.row(count - 1) == count - 1:
            return range(count)
        return tuple(self._receipt.row(i) for i in range(count))

    def read(self) -> None:
        """Copies the results that are known now, which need the arena no more."""
        self._receipt.totals()

    # --- waiting

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every record has its result, whatever it is. False when the time is over.

        Args:
            timeout: seconds; None waits as long as it takes.
        """
        return self._receipt.resolve() or self._tracker.wait_until(self._receipt.resolve, timeout)

    def get(self, timeout: float | None = None) -> dict[TopicPartition, OffsetRange]:
        """Waits for all records and answers where they are.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            DeliveryError: one of its subclasses, for the first record that was not delivered; the attribute
                `record_index` is its place among those that were given.
            ResultPendingError: a TimeoutError; some have no result yet, and may be asked for again.
        """
        if not self.wait(timeout):
            raise ResultPendingError(
                f"{self.counts.pending:,} of {format_count(len(self), 'record')} have no result after {timeout} s: "
                "they are in the arena and will be sent; ask again"
            )
        if (error := self.exception) is not None:
            raise error
        return self.offsets

    # --- summing up

    @property
    def is_done(self) -> bool:
        """True when every record has its result."""
        return self._receipt.resolve()

    @property
    def counts(self) -> DeliveryCounts:
        """How many records are in which state at this moment."""
        pending = succeeded = failed = lost = 0
        for _, result, _, count, _, _ in self._receipt.totals():
            if result is None:
                pending += count
            elif result == BatchResult.SUCCEEDED:
                succeeded += count
            elif result == 0:
                lost += count
            else:
                failed += count
        return DeliveryCounts(pending, succeeded, failed, lost)

    @property
    def offsets(self) -> dict[TopicPartition, OffsetRange]:
        """Of the records delivered so far: how many per topic-partition, and the offsets they were given."""
        return {
            self._tracker.topic_partition(partition_index): OffsetRange(count, first, last)
            for partition_index, result, _, count, first, last in self._receipt.totals()
            if result == BatchResult.SUCCEEDED
        }

    @property
    def exception(self) -> DeliveryError | None:
        """The error of the first record, in the order given, that is known not to have been delivered; None.

        Its attribute `record_index` is the record's place among those that were given.
        """
        self._receipt.totals()  # looks at every run
        index = self._receipt.first_failed()
        if index is None:
            return None
        error = self._tracker.exception_of(self._receipt[index])
        assert error is not None
        error.record_index = self._receipt.row(index)  # type: ignore[attr-defined]
        return error

    def __repr__(self) -> str:
        if self._tracker.arena.closed:
            return f"<Deliveries of {format_count(len(self), 'record')}, arena closed>"
        counts = ", ".join(f"{count} {name}" for name, count in self.counts._asdict().items() if count)
        return f"<Deliveries of {format_count(len(self), 'record')}: {counts or 'none'}>"
