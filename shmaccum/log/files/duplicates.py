# SPDX-License-Identifier: Apache-2.0
"""Check that a batch with the sequences of an appended batch is the same batch.

A broker only compares sequences. But a producer that survives a crash of its host can assign a sequence twice: an arena
on disk loses the sequences that were assigned after the last sync, and the log may have batches with them. If the log
only compared sequences, it would acknowledge such a batch without writing it. So a duplicate must have the same
sequences, the same first timestamp and the same records, compressed or not. Another batch is rejected as out of
sequence, and its sender begins a new epoch for it.

The check reads the log, but only for duplicates, which are sent after a death or a lost response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shmaccum.common.format.batch_header import CODEC_MASK, HEADER_SIZE, BatchHeader, read_header
from shmaccum.exceptions import CodecMissingError
from shmaccum.log.files.codecs import decompress
from shmaccum.log.files.segment_view import Missing, SegmentView
from shmaccum.log.files.walk import at_least

if TYPE_CHECKING:
    from shmaccum.log.files.log_batch import LogBatch
    from shmaccum.log.files.producer_state import Appendable

COMPARED_SIZE_MAX = 32 << 20
"""Records with different compression are compared up to this size. Larger ones count as different."""


def is_appended_batch(batch: Appendable, folder: str, segments: Sequence[int], offset: int) -> bool:
    """True if the log has this batch at an offset, or if that cannot be read, because a segment is damaged or deleted.

    Args:
        batch: a batch with the sequences of the one at `offset`.
        folder: the folder of the partition.
        segments: the base offsets of its segments, ascending.
        offset: the base offset of the batch that was appended.
    """
    try:
        found = _batch_at(folder, segments, offset)
    except OSError:
        return True
    content = memoryview(b"".join(batch.buffers))
    if found is None or len(content) < batch.size:
        return True
    header = read_header(content)
    return header.base_timestamp_ms == found.header.base_timestamp_ms and _have_same_records(
        (header, content[HEADER_SIZE:]), (found.header, found.view[HEADER_SIZE:])
    )


def _batch_at(folder: str, segments: Sequence[int], offset: int) -> LogBatch | None:
    base_offset = max((base for base in segments if base <= offset), default=None)
    if base_offset is None:
        return None
    view = SegmentView(folder, base_offset, is_finished=False, is_crc_checked=False)
    try:
        position, expected = view.position_before(offset), at_least(base_offset, base_offset)
        while True:
            found = view.batch(position, expected)
            if isinstance(found, Missing) or found.base_offset >= offset:
                break
            position += found.size
    finally:
        view.close()
    return None if isinstance(found, Missing) or found.base_offset > offset else found


def _have_same_records(one: tuple[BatchHeader, memoryview], other: tuple[BatchHeader, memoryview]) -> bool:
    (header, records), (other_header, other_records) = one, other
    codec, other_codec = header.attributes & CODEC_MASK, other_header.attributes & CODEC_MASK
    if codec == other_codec and records == other_records:
        return True
    if not codec and not other_codec:
        return False
    try:
        return _plain(codec, records) == _plain(other_codec, other_records)
    except CodecMissingError:
        return True
    except ValueError:  # damaged, or too large
        return False


def _plain(codec: int, records: memoryview) -> bytes | memoryview:
    return decompress(codec, records, COMPARED_SIZE_MAX) if codec else records
