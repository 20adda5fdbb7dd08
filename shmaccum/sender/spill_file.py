# SPDX-License-Identifier: Apache-2.0
"""The file of each partition of an overflow: how far it was shipped, and which batches of the arena it has.

::

    .overflow/
      flights-0        | position 64 | position 64 | zeros to 4096 | row 32 | row 32 | ...

    position   number u64, offset i64, producer id i64, producer epoch i32, origin i64, identity 16 bytes, CRC u32
    row        base offset i64, seq u64, slot index u32, record count u32, arena u64

Rules, per field
    number          The position with the larger number and a correct CRC is valid. The next one replaces the other.
    offset          The sink has every record of the log below it. It may be inside a batch that is delivered in parts.
    producer epoch  If -1, the batches are sent with the ids and sequences of their headers. Otherwise they are sent
                    with this producer id and epoch, and the sequence of a record is its offset minus the origin.
    identity        Of the sink that knows the ids; zeros if nothing was shipped yet.
    base offset     Of the batch in the log. Rows ascend by it.
    seq, slot index The batch in the arena, for which the result is recorded.
    arena           The first 8 bytes of the arena's uuid. No process waits for the result of another arena's batch.

Why it is safe
    The sender alone writes, while it has the lock of the log. A row is appended after its batch, and before the batch
    leaves the arena. A death during a write leaves a partial row at the end, which the next sender truncates.
    The head is allocated with the file, so a position needs no space on a full disk. The head is written together with
    its first position. A file that is shorter than a head, because its creator died, has no rows and is initialized.
    A head of zeros without rows is initialized, too: the host crashed after the size of the file had reached the disk,
    and before the head had.
    Rows of zeros at the end are cut off. A crash of the host leaves them in two cases: only the size of the file had
    reached the disk, and not the rows; or the rows were cut off after their delivery, and the disk had their bytes
    cleared, but the size unchanged.
    Once a second, the sender checks that the path leads to its file. A file that was removed, moved or replaced is
    recreated, so the next sender knows what was delivered.
    Hostile bytes: a row that fits no batch is ignored, and the arena checks every number in it.

C writes the rows and positions of ordinary batches (native/sender/log_run.c, native/sender/spill_recorder.c), in the
same format. This module opens the file, reads it, and writes those of the other batches.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

from shmaccum._native import crc32c
from shmaccum.common.durability import sync_folder
from shmaccum.exceptions import LogError
from shmaccum.log.files.producer_state import SEQUENCE_MASK
from shmaccum.log.files.regular_files import is_file_at, open_regular
from shmaccum.log.files.small_files import replace_file_synced, write_all

HEAD_SIZE = 4096
POSITION_SIZE = 64
POSITION = struct.Struct("<Qqqiq16s")
CRC = struct.Struct("<I")
ROW = struct.Struct("<qQIIQ")
NO_IDENTITY = bytes(16)
ROWS_READ = 4096
"""Rows per read."""


class OverflowPosition(NamedTuple):
    """How far a partition of the overflow was shipped."""

    offset: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    origin: int = 0
    identity: bytes = NO_IDENTITY

    @property
    def has_own_sequences(self) -> bool:
        """True if the batches are sent with the ids and sequences of their headers."""
        return self.producer_epoch < 0

    def sequence_at(self, offset: int) -> int:
        """Return the sequence of the record with this offset, if it does not follow from the headers."""
        return (offset - self.origin) & SEQUENCE_MASK


class OverflowBatch(NamedTuple):
    """A batch of the log, and its identification in the arena."""

    base_offset: int
    seq: int
    slot_index: int
    record_count: int
    arena: int


def _packed(number: int, position: OverflowPosition) -> bytes:
    """Return the bytes of a position in the file."""
    content = POSITION.pack(number, *position)
    return content + CRC.pack(crc32c(content))


def _place_of(number: int) -> int:
    """Return the place in the file of the position with this number."""
    return number % 2 * POSITION_SIZE


@final
class SpillFile:
    """The file, opened by its only writer.

    Attributes:
        position: the valid one.
        row_count: rows in the file.
    """

    def __init__(self, path: str, *, is_synced: bool) -> None:
        """Open the file, or create it.

        Args:
            path: of the file, in an existing folder.
            is_synced: force writes to disk.

        Raises:
            LogError: both positions are damaged.
            OSError: it cannot be opened or created.
        """
        self._path = path
        self._is_synced = is_synced
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        if self._is_synced:
            sync_folder(os.path.dirname(self._path))
        size = os.fstat(self._descriptor).st_size
        is_without_head = size == HEAD_SIZE and not any(os.pread(self._descriptor, HEAD_SIZE, 0))
        if size < HEAD_SIZE or is_without_head:  # new, or its creator died or its host crashed
            self._make_head()
            return
        self.row_count = self._written_row_count((size - HEAD_SIZE) // ROW.size)
        os.ftruncate(self._descriptor, HEAD_SIZE + self.row_count * ROW.size)
        self._number, self.position = self._read_position()

    def _written_row_count(self, row_count: int) -> int:
        """Return the number of these rows without the zeros at the end."""
        while row_count:
            first = max(row_count - ROWS_READ, 0)
            content = os.pread(self._descriptor, (row_count - first) * ROW.size, HEAD_SIZE + first * ROW.size)
            if written := content.rstrip(b"\0"):
                return first + -(-len(written) // ROW.size)
            row_count = first
        return 0

    def _make_head(self) -> None:
        """Write the head together with its first position, so that no death leaves a head without a position."""
        self._number, self.position, self.row_count = 1, OverflowPosition(), 0
        before = bytes(_place_of(self._number))
        write_all(self._descriptor, (before + _packed(self._number, self.position)).ljust(HEAD_SIZE, b"\0"))
        self._force()

    def _read_position(self) -> tuple[int, OverflowPosition]:
        found: list[tuple[int, OverflowPosition]] = []
        for place in (0, POSITION_SIZE):
            content = os.pread(self._descriptor, POSITION_SIZE, place)
            (crc,) = CRC.unpack_from(content, POSITION.size)
            number, *fields = POSITION.unpack_from(content)
            if number and crc == crc32c(content[: POSITION.size]):
                found.append((number, OverflowPosition(*fields)))
        if not found:
            raise LogError(
                f"{self._path} is damaged, so it is unknown what of the overflow was delivered: compare the log beside "
                "it with the sink, move the directory away, and start the sender with a new one"
            )
        return max(found)

    def write_position(self, position: OverflowPosition) -> None:
        """Write a position.

        Raises:
            OSError: either the former position is valid, or this one.
        """
        number = self._number + 1
        os.pwrite(self._descriptor, _packed(number, position), _place_of(number))
        self._force()
        self._number, self.position = number, position

    def recreate_if_moved(self) -> bool:
        """Recreate the file if it was removed, moved or replaced. Return True if it was.

        Raises:
            OSError: it has no name yet.
        """
        if is_file_at(self._path, self._descriptor):
            return False
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        replace_file_synced(self._path, content)
        self.close()
        self._descriptor = open_regular(self._path, os.O_RDWR | os.O_NOFOLLOW)
        return True

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def position_for_native_call(self) -> tuple[int, int, bytes]:
        """Return the descriptor, the number of the valid position, and its bytes without the checksum."""
        return self._descriptor, self._number, POSITION.pack(self._number, *self.position)

    def moved(self, number: int, offset: int) -> None:
        """Set the position that the native batch loop has written last, and its number."""
        self._number, self.position = number, self.position._replace(offset=offset)

    def _force(self) -> None:
        if self._is_synced:
            os.fdatasync(self._descriptor)

    # --- rows

    def append(self, rows: Sequence[OverflowBatch]) -> None:
        """Append rows, all or none.

        Raises:
            OSError: no row was appended.
        """
        end = HEAD_SIZE + self.row_count * ROW.size
        os.lseek(self._descriptor, end, os.SEEK_SET)
        try:
            write_all(self._descriptor, b"".join([ROW.pack(*row) for row in rows]))
            self._force()
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, end)
            raise
        self.row_count += len(rows)

    def row(self, index: int) -> OverflowBatch | None:
        """Return the row at an index; None after the last one."""
        if not 0 <= index < self.row_count:
            return None
        content = os.pread(self._descriptor, ROW.size, HEAD_SIZE + index * ROW.size)
        return OverflowBatch._make(ROW.unpack(content)) if len(content) == ROW.size else None

    def rows(self, first: int) -> Iterator[OverflowBatch]:
        for place in range(first, self.row_count, ROWS_READ):
            content = os.pread(self._descriptor, ROWS_READ * ROW.size, HEAD_SIZE + place * ROW.size)
            yield from map(OverflowBatch._make, ROW.iter_unpack(content[: len(content) // ROW.size * ROW.size]))

    def find(self, offset: int) -> int:
        """Return the index of the first row whose batch begins at or after an offset."""
        low, high = 0, self.row_count
        while low < high:
            middle = (low + high) // 2
            row = self.row(middle)
            if row is not None and row.base_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def cut(self, row_count: int) -> None:
        """Truncate the file to this many rows.

        Raises:
            OSError: all rows are still there.
        """
        os.ftruncate(self._descriptor, HEAD_SIZE + row_count * ROW.size)
        self.row_count = row_count

    def close(self) -> None:
        """Close the file. A second call has no effect."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
