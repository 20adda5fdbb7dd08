# SPDX-License-Identifier: Apache-2.0
"""The offsets at which the partitions of a log begin when it is shipped for the first time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files import PartitionReader
from shmaccum.log.files.start import Start

ALL_OTHERS = ""


@final
class Starts:
    """The start of each partition.

    Args:
        given: a start for all partitions; or starts by "TOPIC:PARTITION", by "TOPIC", and by "" for all others. The
            default for the others is their first record. `Start.parse` has the forms.

    Raises:
        InvalidArgumentError: a start has none of the forms.
    """

    def __init__(self, given: str | int | Mapping[str, str | int]) -> None:
        texts = given if isinstance(given, Mapping) else {ALL_OTHERS: given}
        self._starts = {name: Start.parse(str(text)) for name, text in texts.items()}

    def check(self, places: Iterable[TopicPartition]) -> None:
        """Refuse names that no partition of the log has.

        Raises:
            InvalidArgumentError: there is such a name.
        """
        known = {ALL_OTHERS}.union(*(_names(place) for place in places))
        if strange := sorted(self._starts.keys() - known):
            raise InvalidArgumentError(
                f"start names {', '.join(strange)}, which the log does not have: write TOPIC or TOPIC:PARTITION"
            )

    def offset_in(self, partition: PartitionReader) -> int:
        """Return the offset at which a partition begins: the first of a batch, because batches are sent whole.

        Raises:
            OffsetOutOfRangeError: the offset was deleted by retention, or is not assigned yet.
        """
        start = next((self._starts[name] for name in _names(partition.place) if name in self._starts), Start())
        offset = start.of(partition)
        if offset in {partition.log_start_offset, partition.log_end_offset}:
            return offset
        with closing(partition.cursor(offset)) as cursor:
            batch = next(cursor.poll(), None)
        return offset if batch is None else batch.base_offset


def _names(place: TopicPartition) -> tuple[str, str, str]:
    """Return the names of a partition, the most specific one first."""
    return f"{place.topic}:{place.partition}", place.topic, ALL_OTHERS
