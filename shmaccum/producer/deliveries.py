# SPDX-License-Identifier: Apache-2.0
"""The results of many records sent in one call, without an object for each record.

Kafka's producer has one call and one future per record. Here, `Producer.send_many` and `Producer.append_arrow` return
a `Deliveries`, which counts, awaits and summarizes all records of the call. It creates the future of a record on
access.
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
    """The offsets of the delivered records of one partition.

    They are in the order of sending. Offsets of other producers may be in between: the range is dense only if
    `record_count == last - first + 1`.
    """

    record_count: int
    first: int
    """The smallest offset, or -1 if the sink reported none (acks=0)."""
    last: int


class DeliveryCounts(NamedTuple):
    """The number of a call's records in each state. The sum is `len(deliveries)`."""

    pending: int
    succeeded: int
    failed: int
    """Rejected by the sink, expired, aborted or corrupt. `Deliveries.exception` is the error of the first of them."""
    lost: int
    """Records whose results were overwritten in the completion ring before they were read."""


@final
class Deliveries(Sequence[DeliveryFuture]):
    """The appended records of one call, in the given order.

    It is a sequence of futures, one for each record, created on access. `wait`, `get`, `counts` and `offsets` take time
    per run of records that went into one batch, and not per record.

    These futures do not know the sizes of key, value and headers.

    Args:
        receipt: the result of the native call.
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
        """The index of each of these records in the arguments of the call. If the call succeeded, none is missing.

        After a failure, only some of the last few hundred records may have been appended, depending on their
        partitions. All records before them were appended.
        """
        count = len(self)
        if count == 0 or self._receipt.row(count - 1) == count - 1:
            return range(count)
        return tuple(self._receipt.row(i) for i in range(count))

    def read(self) -> None:
        """Copies the results that are known now, so they no longer need the arena."""
        self._receipt.totals()

    # --- waiting

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every record has a result. Returns False if the timeout expires.

        Args:
            timeout: seconds, or None for no limit.
        """
        return self._receipt.resolve() or self._tracker.wait_until(self._receipt.resolve, timeout)

    def get(self, timeout: float | None = None) -> dict[TopicPartition, OffsetRange]:
        """Waits for all records and returns their offsets.

        Args:
            timeout: seconds, or None for no limit.

        Raises:
            DeliveryError: the error of the first record that was not delivered. Its attribute `record_index` is the
                index of the record among the given records.
            ResultPendingError, a TimeoutError: some records have no result yet. Call this method again.
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
        """The current number of records in each state."""
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
        """The number and the offsets of the records delivered so far, for each topic-partition."""
        return {
            self._tracker.topic_partition(partition_index): OffsetRange(count, first, last)
            for partition_index, result, _, count, first, last in self._receipt.totals()
            if result == BatchResult.SUCCEEDED
        }

    @property
    def exception(self) -> DeliveryError | None:
        """The error of the first record, in the given order, that was not delivered, or None.

        Its attribute `record_index` is the index of the record among the given records.
        """
        self._receipt.totals()  # updates every run
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
