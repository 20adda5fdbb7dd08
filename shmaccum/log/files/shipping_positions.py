# SPDX-License-Identifier: Apache-2.0
"""The progress of shipping a log to another sink: the file that the shipper writes, and that retention reads.

::

    .shipping/
      .lock        the lock of the one shipper, and its process
      positions    | line | line | line | ... | line being written |

    line           the CRC-32C of the JSON as 8 hexadecimal digits, a blank, JSON
    first line     {"sink": TEXT, "identity": TEXT, "producer_id": NUMBER, "topics": [NAME...] or null}
    other lines    {"flights-0": [offset, producer epoch, origin, leader epoch, topic id]...}

Fields of a position
    offset          The sink has every batch below it.
    producer epoch  The epoch of the shipper's producer id in this partition.
    origin          The offset whose record has sequence 0 in that epoch. So a sequence follows from an offset alone:
                    sequence = (offset - origin) modulo 2^31. A batch that is sent again has its former sequence, and
                    no other batch can have it.
    leader epoch    The epoch of the last batch that was shipped, or -1 before the first one. A change shows that a
                    crash of the host removed records from the end of the log, whose offsets were assigned again.
    topic id        The id of the topic that was shipped. A topic that was deleted and created again has another one.

Rules
    Only the shipper writes, while it holds the lock. A line is one write, and is forced to disk. For its partitions, a
    line replaces all earlier lines. A file that has grown is rewritten beside the old one and renamed over it.

    Positions count only if the path leads to the file that has them. If the file was removed, moved or replaced, the
    shipper writes a new one, with all positions.

Why it is safe
    A death during a write leaves a last line without an end, or with a wrong CRC. Readers ignore that line, and the
    next shipper cuts it. A damaged line before others is an error for every reader: its position is unknown, and a
    guess would send records twice or skip them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from shmaccum._native import crc32c
from shmaccum.common.durability import sync_folder
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import LogError
from shmaccum.log.files.file_names import SHIPPING_FOLDER, parse_folder
from shmaccum.log.files.producer_state import SEQUENCE_MASK
from shmaccum.log.files.regular_files import is_file_at, open_regular
from shmaccum.log.files.small_files import replace_file_synced, write_all

POSITIONS_FILE = "positions"
DEAD_SIZE_MIN = 1 << 18
"""The size of replaced lines at which the file is rewritten, in bytes."""
ROW_SIZE = 100
OFFSET_MAX = 2**63 - 1
NO_LEADER_EPOCH = -1


class ShippedPosition(NamedTuple):
    """The shipping position of a partition."""

    offset: int
    producer_epoch: int = 0
    origin: int = 0
    leader_epoch: int = NO_LEADER_EPOCH
    topic_id: str = ""

    def sequence_at(self, offset: int) -> int:
        """The sequence of the record at this offset."""
        return (offset - self.origin) & SEQUENCE_MASK

    def started_over(self, offset: int) -> ShippedPosition:
        """The position at this offset, in the next producer epoch."""
        return self._replace(offset=offset, producer_epoch=self.producer_epoch + 1, origin=offset)


class ShippedTo(NamedTuple):
    """The sink that a log is shipped to, and the topics that are shipped."""

    sink: str
    """The name of the sink, for people."""
    identity: str
    """`Sink.identity` in hexadecimal digits: the cluster or the log of the sink."""
    producer_id: int
    topics: tuple[str, ...] | None
    """None for every topic."""


@dataclass
class Shipped:
    """The content of the file."""

    shipped_to: ShippedTo | None = None
    positions: dict[TopicPartition, ShippedPosition] = field(default_factory=dict)
    size: int = 0
    """The size of the whole lines, in bytes."""

    def kept_from(self, place: TopicPartition) -> int:
        """The offset of a partition from which on retention deletes nothing."""
        if self.shipped_to is None:
            return OFFSET_MAX
        if self.shipped_to.topics is not None and place.topic not in self.shipped_to.topics:
            return OFFSET_MAX
        position = self.positions.get(place)
        return 0 if position is None else position.offset


def read_shipped(directory: str) -> Shipped:
    """The shipping positions of a log; empty if it was never shipped.

    Raises:
        LogError: if a line before the last one is damaged.
        OSError: if the file cannot be read.
    """
    path = os.path.join(directory, SHIPPING_FOLDER, POSITIONS_FILE)
    found = Shipped()
    try:
        with open(path, "rb", opener=open_regular) as file:
            content = file.read()
    except FileNotFoundError:
        return found
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        document = _parsed(line)
        if document is None and number == len(lines):
            break  # its writer died
        if document is None or not _take(found, document):
            raise LogError(
                f"line {number} of {path} is damaged, so the shipped offsets are unknown: compare the log with the "
                "sink that it was shipped to, delete the positions (shmaccum ship DIR --forget), and ship again"
            )
        found.size += len(line)
    return found


def _line(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The document in a whole line, or None."""
    crc, blank, text = line.partition(b" ")
    if not blank or not text.endswith(b"\n") or b"%08x" % crc32c(text[:-1]) != crc:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _take(found: Shipped, document: dict[str, Any]) -> bool:
    """Add the content of a line; return False if it is invalid."""
    try:
        if found.shipped_to is None:
            topics = document["topics"]
            found.shipped_to = ShippedTo(
                str(document["sink"]),
                str(document["identity"]),
                int(document["producer_id"]),
                None if topics is None else tuple(map(str, topics)),
            )
            return True
        for name, (offset, producer_epoch, origin, leader_epoch, topic_id) in document.items():
            place = parse_folder(name)
            if place is None:
                return False
            numbers = int(offset), int(producer_epoch), int(origin), int(leader_epoch)
            found.positions[place] = ShippedPosition(*numbers, str(topic_id))
    except (KeyError, TypeError, ValueError):
        return False
    return True


@final
class PositionsFile:
    """The file, opened for writing by the shipper. The caller holds the lock of the folder.

    Attributes:
        shipped: the content of the file.
    """

    def __init__(self, directory: str, shipped: Shipped, shipped_to: ShippedTo) -> None:
        """Rewrite the file with this sink and the known positions.

        Raises:
            OSError: if that failed. The former file remains.
        """
        self._path = os.path.join(directory, SHIPPING_FOLDER, POSITIONS_FILE)
        self.shipped = shipped
        shipped.shipped_to = shipped_to
        self._descriptor = -1
        self._rewrite()

    def write(self, positions: Mapping[TopicPartition, ShippedPosition]) -> None:
        """Store positions on disk, either all of them or none.

        Raises:
            OSError: if it is unknown whether they are stored. It is correct to write them again.
        """
        if not positions:
            return
        content = _line({str(place): list(position) for place, position in positions.items()})
        try:
            write_all(self._descriptor, content)
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self.shipped.size)
            raise
        if not self.appended(self.shipped.size + len(content), positions):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)

    @property
    def descriptor(self) -> int:
        """For another writer that appends synced lines, and then calls `appended`."""
        return self._descriptor

    @property
    def size_max(self) -> int:
        """The size in bytes above which the file is rewritten."""
        return DEAD_SIZE_MIN + ROW_SIZE * len(self.shipped.positions)

    def appended(self, size: int, positions: Mapping[TopicPartition, ShippedPosition]) -> bool:
        """Account for lines with these positions that were appended up to this size.

        A file that was removed, moved or replaced is rewritten with all positions. Returns False if that failed.
        """
        self.shipped.size = size
        self.shipped.positions.update(positions)
        if size > self.size_max or not self.has_its_name:
            with contextlib.suppress(OSError):  # the former file is sufficient while it has its name
                self._rewrite()
        return self.has_its_name

    @property
    def has_its_name(self) -> bool:
        """True while the path leads to the file that is open."""
        return is_file_at(self._path, self._descriptor)

    def _rewrite(self) -> None:
        assert self.shipped.shipped_to is not None
        content = _line(self.shipped.shipped_to._asdict())
        if self.shipped.positions:
            content += _line({str(place): list(position) for place, position in self.shipped.positions.items()})
        replace_file_synced(self._path, content)
        self.close()
        self._descriptor = open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        self.shipped.size = len(content)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def forget_shipped(directory: str) -> bool:
    """Delete the positions; return False if there were none. The caller holds the lock of the folder.

    Raises:
        OSError: if they still exist.
    """
    folder = os.path.join(directory, SHIPPING_FOLDER)
    try:
        os.unlink(os.path.join(folder, POSITIONS_FILE))
    except FileNotFoundError:
        return False
    sync_folder(folder)
    return True
