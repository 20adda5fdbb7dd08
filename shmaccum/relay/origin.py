# SPDX-License-Identifier: Apache-2.0
"""The origin of an output: a header of the record that identifies the input record it was made from.

::

    header   shmaccum-origin = GROUP/TOPIC-PARTITION/OFFSET/NUMBER

GROUP consumes the record at OFFSET of TOPIC-PARTITION; NUMBER counts the outputs of this record from 0. So an output is
identified by its header wherever it is stored, and one that is already in the log is not sent again.

A commit of a relay has a text (the metadata of Kafka's commits). It contains the arena, the log of the outputs, and the
end offsets of the output topics. The outputs of a record that is not committed are after these offsets, so a successor
reads the log from there on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogReader, PartitionReader

HEADER = "shmaccum-origin"
OUTPUT_PARTITIONS_MAX = 200
"""The text of a commit may have 4,096 bytes."""
HEADER_VALUE = re.compile(rb"(.*/)([0-9]{1,19})/([0-9]{1,19})", re.DOTALL)

Ends = Mapping[TopicPartition, int]
"""The end offset of each output partition."""


@dataclass
class Input:
    """One partition that a relay consumes."""

    prefix: bytes
    """The header value of its outputs, up to the offset."""
    position: int
    """The offset to commit: the outputs of all records before it are in the log."""
    ends: Ends
    """The outputs of records from the position on are after these offsets."""
    known: set[tuple[int, int]] = field(default_factory=set)
    """Outputs that are in the log, each as the offset of the input and the number of the output."""

    def header(self, offset: int, number: int) -> tuple[str, bytes]:
        """The header of an output."""
        return HEADER, b"%b%d/%d" % (self.prefix, offset, number)

    def advance(self, position: int) -> None:
        """Move the position. The outputs of all records before it must be in the log."""
        self.position = position
        self.known = {one for one in self.known if one[0] >= position}


def prefix_of(group_id: str, place: TopicPartition) -> bytes:
    """The start of the header value of all outputs of a partition."""
    return f"{group_id}/{place}/".encode()


class RelayProgress(NamedTuple):
    """The text of a commit."""

    arena: str
    """The path of the arena through which the outputs are sent."""
    log: str
    """The log directory to which the arena's sender delivers."""
    ends: Ends

    def text(self) -> str:
        """The metadata of the commit."""
        ends: dict[str, list[int]] = {}
        for place in sorted(self.ends):
            row = ends.setdefault(place.topic, [])
            row += [0] * (place.partition - len(row)) + [self.ends[place]]
        return json.dumps({"arena": self.arena, "log": self.log, "ends": ends}, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> RelayProgress | None:
        """Parse the metadata of a commit; return None if it was not made by a relay."""
        try:
            found: Any = json.loads(text)
            ends = {
                TopicPartition(str(topic), number): int(end)
                for topic, row in found["ends"].items()
                for number, end in enumerate(row)
            }
            return cls(str(found["arena"]), str(found["log"]), ends)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None


def ends_of(log: LogReader, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """The end offsets of topics. Topics that do not exist yet are left out."""
    wanted = set(topics)
    places = [place for place in log.topic_partitions() if place.topic in wanted]
    return {place: log.partition(*place).log_end_offset for place in places}


def find_outputs(log: LogReader, ends: Ends, inputs: Sequence[Input]) -> None:
    """Add the outputs that are in the log to these inputs.

    Args:
        log: the log directory of the outputs.
        ends: the output partitions, and the offsets up to which they are read.
        inputs: each gets the outputs after its own `Input.ends`.
    """
    by_prefix = {one.prefix: one for one in inputs}
    for place, end in ends.items():
        starts = {one.prefix: _start(one.ends.get(place, 0), end) for one in inputs}
        partition = log.partition(*place)
        for offset, value in _headers(partition, min(starts.values()), end):
            found = _parsed(value)
            if found is not None and found[0] in by_prefix and offset >= starts[found[0]]:
                by_prefix[found[0]].known.add(found[1:])


def _start(start: int, end: int) -> int:
    """The first offset to read. A partition that is now shorter belongs to a topic that was created again."""
    return start if start <= end else 0


def _headers(partition: PartitionReader, start: int, end: int) -> Iterable[tuple[int, bytes]]:
    """The origins in a range of a partition, each with the offset of its record."""
    first = max(start, partition.log_start_offset)
    if first >= end:
        return
    for batch in partition.batches(first):
        if batch.base_offset >= end:
            break
        for record in batch.records() if not batch.is_control else ():
            for name, value in record.headers:
                if name == HEADER and value is not None:
                    yield record.offset, value


def _parsed(value: bytes) -> tuple[bytes, int, int] | None:
    """The prefix, the offset and the number, or None if another program wrote the header."""
    found = HEADER_VALUE.fullmatch(value)
    return None if found is None else (found[1], int(found[2]), int(found[3]))
