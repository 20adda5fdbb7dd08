# SPDX-License-Identifier: Apache-2.0
"""The place where reading a partition starts, in the syntax of ``kcat -o``."""

from __future__ import annotations

import re
from typing import NamedTuple

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.reader import PartitionReader

BEGINNING = frozenset({"beginning", "earliest"})
END = frozenset({"end", "latest"})
"""The words of kcat and of Kafka's own tools."""
FROM_END = re.compile(r"-([0-9]+)")
AT_TIME = re.compile(r"s@([0-9]+)")
OFFSET_FORMS = "beginning, end, an offset, -N for the last N records, or s@MS for a timestamp"


class Start(NamedTuple):
    """A start: an offset, a number of records before the end, or a timestamp. Without any, the start of the log."""

    offset: int | None = None
    before_end: int | None = None
    timestamp_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> Start:
        """Parse what a user wrote.

        Raises:
            InvalidArgumentError: if it has none of these forms.
        """
        if text in BEGINNING | END:
            return cls() if text in BEGINNING else cls(before_end=0)
        if text.isdecimal():
            return cls(offset=int(text))
        if found := FROM_END.fullmatch(text):
            return cls(before_end=int(found[1]))
        if found := AT_TIME.fullmatch(text):
            return cls(timestamp_ms=int(found[1]))
        raise InvalidArgumentError(f"{text!r} is not an offset: write {OFFSET_FORMS}")

    def of(self, partition: PartitionReader) -> int:
        """The offset at which reading this partition starts."""
        if self.offset is not None:
            return self.offset
        if self.before_end is not None:
            return max(partition.log_end_offset - self.before_end, partition.log_start_offset)
        if self.timestamp_ms is not None:
            found = partition.offset_for_timestamp(self.timestamp_ms)
            return partition.log_end_offset if found is None else found.offset
        return partition.log_start_offset
