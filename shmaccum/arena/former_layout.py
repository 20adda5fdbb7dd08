# SPDX-License-Identifier: Apache-2.0
"""The layout of the former build (version 1, revision beda61f), frozen, and a reader of arenas that have it.

::

    superblock 4096 | globals 4096 | processes | waiters | topics | partitions | names | free hints | news hints |
    news groups | slot headers | completions | counters | error log | sync records | (page) slot data

Nothing here changes any more: an arena that lies on somebody's disk will not change either. The next layout that
becomes a former one gets a module like this one.

An arena is input. The reader reads by ``pread`` only, so a file that is cut short is an error and never a SIGBUS; it
checks magic, version, fingerprint, checksum, and that every region of the geometry lies in the file. The values of
the fields are copied and not followed: cold recovery of the present build judges every word of the copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from shmaccum.arena.tables import slot_record_count, slot_state
from shmaccum.exceptions import CorruptArenaError, TruncatedArenaError

Rows = npt.NDArray[Any]

MAGIC = int.from_bytes(b"smarena1", "little")
VERSION = 1
FINGERPRINT = 0xB6653AF02531B589
RETIRED = 1 << 31
"""Set in the version of an arena whose copy is about to take its name, so that no process of the former build enters
it any more. Its content is whole."""

PAGE_SIZE = 4096
CACHE_LINE = 64
SECTOR_SIZE = 512
GLOBALS_REF = 4096
PROCESSES_REF = 8192
NEWS_GROUP_WORDS = 64
OPTIONS_SIZE_MAX = 2048
COUNTER_COUNT = 32
ERROR_LOG_COUNT = 64
ATTACH_LOCK_BYTE = 0
PROCESS_LOCK_START = 64
STATE_OPEN, STATE_READY, STATE_BAD = 3, 4, 7

GEOMETRY = np.dtype(
    [
        ("buffer_memory", "<u8"),
        *[
            (name, "<u4")
            for name in (
                "batch_size",
                "slot_stride",
                "slot_count",
                "process_count",
                "waiter_count",
                "topic_count",
                "partition_count",
                "name_heap_size",
                "completion_count",
                "oversized_slot_count_max",
                "record_size_max",
                "process_slot_count_max",
                "durability",
                "sync_interval_ms",
            )
        ],
    ]
)

SUPERBLOCK = np.dtype(
    [
        ("magic", "<u8"),
        ("layout_version", "<u4"),
        ("superblock_crc", "<u4"),
        ("layout_fingerprint", "<u8"),
        ("arena_size", "<u8"),
        ("uuid", "V16"),
        ("created_ms", "<u8"),
        ("geometry", GEOMETRY),
        ("options_size", "<u4"),
        ("reserved", "<u4"),
        ("options", "V2048"),
    ]
)


def _at(size: int, /, **fields: tuple[int, str]) -> np.dtype[Any]:
    """A struct of `size` bytes of which only some fields matter: name -> (offset, format)."""
    return np.dtype(
        {
            "names": list(fields),
            "formats": [form for _, form in fields.values()],
            "offsets": [offset for offset, _ in fields.values()],
            "itemsize": size,
        }
    )


GLOBALS = _at(
    960,
    topic_count=(320, "<u4"),
    partition_count=(324, "<u4"),
    name_heap_used=(328, "<u4"),
    process_count_used=(332, "<u4"),
    sender_epoch=(384, "<u8"),
    producer_id=(408, "<u8"),
    producer_epoch=(416, "<u4"),
    sink_identity=(420, "V16"),
    completion_tail=(448, "<u8"),
    sync_wanted=(512, "<u8"),
    sync_done=(576, "<u8"),
    arena_epoch=(640, "<u8"),
    poisoned_status=(668, "<u4"),
)

PROCESS = _at(
    128,
    generation=(0, "<u4"),
    pid=(8, "<u4"),
    record_count=(72, "<u8"),
    record_bytes=(80, "<u8"),
    passed_count=(88, "<u8"),
)

WAITER = _at(64)

TOPIC = _at(64, name_index=(0, "<u4"), name_size=(4, "<u4"), partition_count=(8, "<u4"), sticky=(16, "<u8"))

PARTITION = _at(
    128,
    next_seq=(24, "<u8"),
    topic_index=(32, "<u4"),
    partition=(36, "<u4"),
    producer_id=(64, "<u8"),
    producer_epoch=(72, "<u4"),
    next_base_sequence=(76, "<u4"),
)

SLOT = _at(
    128,
    word=(0, "<u8"),
    partition_index=(8, "<u4"),
    written_end=(12, "<u4"),
    seq=(16, "<u8"),
    base_timestamp_ms=(24, "<u8"),
    meta=(32, "V32"),
    created_ns=(64, "<u8"),
    chain_next=(72, "<u4"),
    result=(76, "<u4"),
    producer_id=(80, "<u8"),
    base_sequence=(88, "<u4"),
    producer_epoch=(92, "<u4"),
    attempt_count=(96, "<u4"),
    acked_record_count=(100, "<u4"),
    last_completion=(104, "<u8"),
    linger=(112, "<u8"),
    opener=(120, "<u4"),
)

COMPLETION = _at(
    64,
    number=(0, "<u8"),
    previous=(8, "<u8"),
    seq=(16, "<u8"),
    slot_index=(24, "<u4"),
    partition_index=(28, "<u4"),
    base_offset=(32, "<u8"),
    log_append_time_ms=(40, "<u8"),
    first_record=(48, "<u4"),
    record_count=(52, "<u4"),
    result=(56, "<u4"),
    error_code=(60, "<u4"),
)

COUNTER = _at(64, label=(0, "V56"), value=(56, "<u8"))

ERROR = _at(
    256,
    key=(0, "<u8"),
    first_ns=(8, "<u8"),
    last_ns=(16, "<u8"),
    count=(24, "<u8"),
    is_readable=(32, "<u4"),
    code=(36, "<u4"),
    text=(40, "V208"),
)

SYNC_RECORD = _at(
    512,
    own_crc=(0, "<u4"),
    partition_index=(4, "<u4"),
    number=(8, "<u8"),
    seq=(16, "<u8"),
    generation=(24, "<u4"),
    count=(28, "<u4"),
    size=(32, "<u4"),
    records_crc=(36, "<u4"),
    max_timestamp_ms=(40, "<u8"),
    base_timestamp_ms=(48, "<u8"),
)

DTYPES = {
    "processes": PROCESS,
    "topics": TOPIC,
    "partitions": PARTITION,
    "slot_headers": SLOT,
    "completions": COMPLETION,
    "counters": COUNTER,
    "error_log": ERROR,
    "sync_records": SYNC_RECORD,
}


def is_former(version: int, fingerprint: int) -> bool:
    """True for the layout of this module, also of an arena whose copy was about to take its name."""
    return version & ~RETIRED == VERSION and fingerprint == FINGERPRINT


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _regions(geometry: dict[str, int]) -> tuple[dict[str, tuple[int, int]], int]:
    """(ref, size) of each region, and the size of the whole arena."""
    slot_count = geometry["slot_count"]
    bitmap_words = -(-slot_count // 64)
    has_sync_records = geometry["durability"] != 0
    sizes = {
        "processes": PROCESS.itemsize * geometry["process_count"],
        "waiters": WAITER.itemsize * geometry["waiter_count"],
        "topics": TOPIC.itemsize * geometry["topic_count"],
        "partitions": PARTITION.itemsize * geometry["partition_count"],
        "names": geometry["name_heap_size"],
        "free_hints": 8 * bitmap_words,
        "news_hints": 8 * bitmap_words,
        "news_groups": 8 * -(-bitmap_words // NEWS_GROUP_WORDS),
        "slot_headers": SLOT.itemsize * slot_count,
        "completions": COMPLETION.itemsize * geometry["completion_count"],
        "counters": COUNTER.itemsize * COUNTER_COUNT,
        "error_log": ERROR.itemsize * ERROR_LOG_COUNT,
        "sync_records": 2 * SYNC_RECORD.itemsize * slot_count if has_sync_records else 0,
        "slot_data": geometry["slot_stride"] * slot_count,
    }
    starts_at = {"sync_records": SECTOR_SIZE if has_sync_records else CACHE_LINE, "slot_data": PAGE_SIZE}
    regions: dict[str, tuple[int, int]] = {}
    end = PROCESSES_REF
    for name, size in sizes.items():
        start = _round_up(end, starts_at.get(name, CACHE_LINE))
        regions[name] = (start, size)
        end = _round_up(start + size, CACHE_LINE)
    return regions, end


class FormerArena:
    """The content of an arena of the former layout, read from a descriptor; the caller closes the descriptor.

    Attributes:
        version: as it stands in the superblock, RETIRED included.
        geometry: the numbers its creator chose, and those that follow from them.
        size: bytes of the whole arena.
        uuid, options: of its creation; the options as msgpack bytes.
        superblock: one row, of dtype SUPERBLOCK.

    Raises:
        CorruptArenaError: the superblock contradicts itself.
        TruncatedArenaError: the file is shorter than its superblock says.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.superblock = np.frombuffer(self._read(0, SUPERBLOCK.itemsize), SUPERBLOCK)
        superblock = self.superblock[0]
        self._check_checksum(superblock)
        self.version = int(superblock["layout_version"])
        self.geometry = {name: int(superblock["geometry"][name]) for name in GEOMETRY.names or ()}
        self.uuid = superblock["uuid"].tobytes()
        self.options = superblock["options"].tobytes()[: int(superblock["options_size"])]
        self._regions, self.size = _regions(self.geometry)
        self._check_geometry(int(superblock["arena_size"]))

    @staticmethod
    def found_in(descriptor: int) -> bool:
        """True when the file begins like an arena of this layout."""
        head = os.pread(descriptor, 24, 0)
        version, fingerprint = int.from_bytes(head[8:12], "little"), int.from_bytes(head[16:24], "little")
        return int.from_bytes(head[:8], "little") == MAGIC and is_former(version, fingerprint)

    def _check_checksum(self, superblock: Any) -> None:
        options_size = int(superblock["options_size"])
        fields = SUPERBLOCK.fields
        assert fields is not None
        begin, end = fields["layout_fingerprint"][1], fields["options"][1] + options_size
        content = superblock.tobytes()[begin:end]
        if options_size > OPTIONS_SIZE_MAX or crc32c.crc32c(content) != int(superblock["superblock_crc"]):
            raise CorruptArenaError("the superblock's bytes contradict its checksum: nothing in the arena can be found")

    def _check_geometry(self, claimed_size: int) -> None:
        geometry = self.geometry
        batch_size = geometry["batch_size"]
        is_consistent = (
            batch_size > 0
            and geometry["slot_stride"] == _round_up(batch_size, PAGE_SIZE)
            and geometry["slot_count"] == geometry["buffer_memory"] // batch_size
            and self.size == claimed_size
        )
        if not is_consistent:
            raise CorruptArenaError("the numbers of the arena's superblock contradict each other")
        if self.size > (found := os.fstat(self._descriptor).st_size):
            raise TruncatedArenaError(f"the arena needs {self.size} bytes, its file has {found}")

    def _read(self, ref: int, size: int) -> bytes:
        """Exactly that many bytes."""
        pieces = []
        while size > 0:
            piece = os.pread(self._descriptor, size, ref)
            if not piece:
                raise TruncatedArenaError("the arena's file ends inside a region")
            pieces.append(piece)
            ref, size = ref + len(piece), size - len(piece)
        return b"".join(pieces)

    # --- regions

    def globals(self) -> Rows:
        """One row, of dtype GLOBALS."""
        return np.frombuffer(self._read(GLOBALS_REF, GLOBALS.itemsize), GLOBALS)

    def rows(self, region: str) -> Rows:
        """The table of a region in `DTYPES`; empty where the arena has no such region."""
        return np.frombuffer(self._read(*self._regions[region]), DTYPES[region])

    def names(self) -> bytes:
        """The bytes of the topics' names."""
        return self._read(*self._regions["names"])

    def slot_bytes(self, slot_index: int) -> bytes:
        """Everything in a slot."""
        stride = self.geometry["slot_stride"]
        return self._read(self._regions["slot_data"][0] + slot_index * stride, stride)

    # --- waiting batches and attached processes

    def waiting(self) -> tuple[int, int]:
        """Batches that hold records and records in them: open, ready, and quarantined ones."""
        words = self.rows("slot_headers")["word"]
        states, counts = slot_state(words), slot_record_count(words)
        is_batch = ((states == STATE_OPEN) & (counts > 0)) | (states == STATE_READY) | (states == STATE_BAD)
        return int(is_batch.sum()), int(counts[is_batch].sum())

    def process_ids(self, is_locked: Any) -> Iterator[int]:
        """Processes whose entry's byte satisfies `is_locked`, by the number they wrote there."""
        for index, row in enumerate(self.rows("processes")):
            if is_locked(PROCESS_LOCK_START + index):
                yield int(row["pid"])
