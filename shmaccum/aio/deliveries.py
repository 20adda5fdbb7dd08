# SPDX-License-Identifier: Apache-2.0
"""The results of many records that a task sent in one call."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, final, overload

from shmaccum._native import DeliveryFuture
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import DeliveryError, ResultPendingError
from shmaccum.producer import deliveries
from shmaccum.producer.deliveries import DeliveryCounts, OffsetRange
from shmaccum.producer.loop_results import LoopResults, WakeUps

CHECK_S = 1.0


@final
class Deliveries(Sequence[DeliveryFuture]):
    """The records of one ``await producer.send_many(...)``, in the given order.

    It is a sequence of futures, one for each record, created on access. ``await deliveries`` waits for all records and
    returns their offsets: an `OffsetRange` for each `TopicPartition`.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Sequence[int], deliveries.Deliveries]] = []
        self._places: list[tuple[int, DeliveryFuture]] | None = None

    def add(self, rows: Sequence[int], part: deliveries.Deliveries) -> None:
        """Adds the records of one native call.

        Args:
            rows: for each record of that call, its index among the records of this object.
        """
        if len(part):
            self._parts.append((rows, part))
            self._places = None

    # --- the sequence of futures

    def __len__(self) -> int:
        return sum(len(part) for _, part in self._parts)

    @overload
    def __getitem__(self, index: int) -> DeliveryFuture: ...
    @overload
    def __getitem__(self, index: slice) -> list[DeliveryFuture]: ...
    def __getitem__(self, index: int | slice) -> DeliveryFuture | list[DeliveryFuture]:
        if isinstance(index, slice):
            return [future for _, future in self._ordered()[index]]
        return self._ordered()[index][1]

    def __iter__(self) -> Iterator[DeliveryFuture]:
        return (future for _, future in self._ordered())

    def _ordered(self) -> list[tuple[int, DeliveryFuture]]:
        """Returns row and future of each record, in the given order. In a full arena, native calls end out of order."""
        if self._places is None:
            pairs = [
                (rows[row], future) for rows, part in self._parts for row, future in zip(part.rows, part, strict=True)
            ]
            self._places = sorted(pairs, key=lambda pair: pair[0])
        return self._places

    @property
    def rows(self) -> Sequence[int]:
        """The index of each of these records in the arguments. If the call completed, none is missing."""
        return [row for row, _ in self._ordered()]

    # --- waiting

    def __await__(self) -> Generator[Any, None, dict[TopicPartition, OffsetRange]]:
        return self._get().__await__()

    async def _get(self) -> dict[TopicPartition, OffsetRange]:
        """Waits for all results.

        Raises:
            DeliveryError: the error of the first record that was not delivered; `record_index` is its index.
            ResultPendingError: the producer was closed meanwhile.
        """
        await self.wait()
        if (error := self.exception) is not None:
            raise error
        return self.offsets

    async def wait(self) -> None:
        """Waits until every record has a result.

        Raises:
            ResultPendingError: the producer was closed meanwhile.
        """
        for _, part in self._parts:
            await _resolve(part)

    # --- summing up

    @property
    def is_done(self) -> bool:
        """True when every record has its result."""
        return all(part.is_done for _, part in self._parts)

    @property
    def counts(self) -> DeliveryCounts:
        """The current number of records in each state."""
        sums = [sum(column) for column in zip(*(part.counts for _, part in self._parts), strict=True)]
        return DeliveryCounts(*(sums or (0, 0, 0, 0)))

    @property
    def offsets(self) -> dict[TopicPartition, OffsetRange]:
        """The number and the offsets of the records delivered so far, for each topic-partition."""
        merged: dict[TopicPartition, OffsetRange] = {}
        for _, part in self._parts:
            for place, found in part.offsets.items():
                former = merged.get(place)
                merged[place] = found if former is None else _joined(former, found)
        return merged

    @property
    def exception(self) -> DeliveryError | None:
        """The error of the first record, in the given order, that was not delivered, or None.

        Its attribute `record_index` is the index of the record among the given records.
        """
        errors = []
        for rows, part in self._parts:
            if (error := part.exception) is not None:
                error.record_index = rows[error.record_index]  # type: ignore[attr-defined]
                errors.append(error)
        return min(errors, key=lambda error: error.record_index, default=None)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts._asdict().items() if count)
        return f"<Deliveries of {len(self)} records: {counts or 'none'}>"


def _joined(one: OffsetRange, other: OffsetRange) -> OffsetRange:
    return OffsetRange(one.record_count + other.record_count, min(one.first, other.first), max(one.last, other.last))


async def _resolve(part: deliveries.Deliveries) -> None:
    tracker = part.tracker
    with WakeUps(LoopResults.of(tracker)) as wake_ups:
        tracker.wake_waiting_sender()
        while not part.is_done:
            if tracker.arena.closed:
                raise ResultPendingError(
                    "the producer was closed before all results were known: the records stay in the arena and are sent"
                )
            await wake_ups.next(CHECK_S)
