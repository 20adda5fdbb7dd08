# SPDX-License-Identifier: Apache-2.0
"""The arena's tables as numpy sees them: one dtype per struct of native/arena/layout.h, field for field.

A table is a live, read-only view of shared memory. A number may change between two reads, and the bytes of other
processes are input. The functions at the end extract the parts of 64-bit words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shmaccum.arena.slot_word import SLOT_STATES

Table = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]

_META = [("max_timestamp_ms", "<i8"), ("records_crc", "<u4"), ("reserved", "<u4")]

PROCESS = np.dtype(
    [
        ("generation", "<u4"),
        ("role", "<u4"),
        ("pid", "<u4"),
        ("fallback", "<u4"),
        ("attached_ns", "<u8"),
        ("start_time_ticks", "<u8"),
        ("name", "S16"),
        ("reserved", "V16"),
        ("writing", "<u4"),
        ("is_forcing", "<u4"),
        ("record_count", "<u8"),
        ("record_bytes", "<u8"),
        ("passed_count", "<u8"),
        ("record_count_before", "<u8"),
        ("record_bytes_before", "<u8"),
        ("passed_count_before", "<u8"),
        ("reserved_2", "V8"),
    ]
)

WAITER = np.dtype(
    [
        ("word", "<u8"),
        ("owner", "<u4"),
        ("granted_count", "<u4"),
        ("granted_first", "<u4"),
        ("partition", "<u4"),
        ("granted_ns", "<u8"),
        ("waiting_ns", "<u8"),
        ("reserved", "V24"),
    ]
)

PARTITION = np.dtype(
    [
        ("lock", "<u8"),
        ("released", "<u8"),
        ("open", "<u8"),
        ("next_seq", "<u8"),
        ("topic_index", "<u4"),
        ("partition", "<i4"),
        ("stuck", "<u8"),
        ("crc", "<u4"),
        ("reserved", "V12"),
        ("producer_id", "<i8"),
        ("producer_epoch", "<u4"),
        ("next_base_sequence", "<i4"),
        ("queued_batch_count", "<u4"),
        ("reserved_2", "V4"),
        ("spilled_first_seq", "<u8"),
        ("spilled_end_seq", "<u8"),
        ("reserved_3", "V24"),
    ]
)

TOPIC = np.dtype(
    [
        ("name_index", "<u4"),
        ("name_size", "<u4"),
        ("partition_count", "<u4"),
        ("queued_batch_count_max", "<u4"),
        ("sticky", "<u8"),
        ("wanted_partition_count", "<u4"),
        ("crc", "<u4"),
        ("reserved_2", "V32"),
        ("opened", "<u8"),
        ("released", "<u8"),
        ("is_parked_for", "<u4"),
        ("reserved_3", "V4"),
        ("reserved_4", "V40"),
    ]
)

SLOT = np.dtype(
    [
        ("word", "<u8"),
        ("partition_index", "<u4"),
        ("written_end", "<u4"),
        ("seq", "<u8"),
        ("base_timestamp_ms", "<i8"),
        ("meta", _META, 2),
        ("created_ns", "<u8"),
        ("chain_next", "<u4"),
        ("result", "<u4"),
        ("producer_id", "<i8"),
        ("base_sequence", "<i4"),
        ("producer_epoch", "<u4"),
        ("attempt_count", "<u4"),
        ("acked_record_count", "<u4"),
        ("last_completion", "<u8"),
        ("linger", "<u8"),
        ("opener", "<u4"),
        ("delivery_stamp_ms", "<u4"),
    ]
)

COMPLETION = np.dtype(
    [
        ("number", "<u8"),
        ("previous", "<u8"),
        ("seq", "<u8"),
        ("slot_index", "<u4"),
        ("partition_index", "<u4"),
        ("base_offset", "<i8"),
        ("log_append_time_ms", "<i8"),
        ("first_record", "<u4"),
        ("record_count", "<u4"),
        ("result", "<u4"),
        ("error_code", "<i4"),
    ]
)

DTYPES = {
    "processes": PROCESS,
    "waiters": WAITER,
    "topics": TOPIC,
    "partitions": PARTITION,
    "slot_headers": SLOT,
    "completions": COMPLETION,
}

PENDING_STATES = (SLOT_STATES.index("OPEN"), SLOT_STATES.index("READY"))
"""The states of a batch that has records and no result."""


def _bits(words: Words, lowest: int, count: int) -> Words:
    """`count` bits of each word, from bit `lowest` up."""
    taken: Words = np.bitwise_and(np.right_shift(words, np.uint64(lowest)), np.uint64(2**count - 1))
    return taken


def slot_state(words: Words) -> Words:
    """The state of each slot word, as an index into SLOT_STATES."""
    return _bits(words, 61, 3)


def slot_generation(words: Words) -> Words:
    """The number of times each slot was freed, 18 bits."""
    return _bits(words, 43, 18)


def slot_record_count(words: Words) -> Words:
    """Committed records; meaningful for OPEN, READY, DONE and BAD."""
    return _bits(words, 26, 17)


def slot_size(words: Words) -> Words:
    """Bytes up to the end of the last committed record; meaningful for OPEN, READY, DONE and BAD."""
    return _bits(words, 0, 26)
