# SPDX-License-Identifier: Apache-2.0
"""Verifies that every flight is in the log, once, in order, unchanged, with the readers of shmaccum and kafka-python.

The ledger has a checksum of the value of each row of the file. A reader enters the records that it finds. At the end,
every row must have been entered once, with that checksum, and the rows of each key in order.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from examples.flights.data import events
from shmaccum.log.files import LogReader

PROBLEMS_MAX = 5


def expected_checksums(flight_count: int) -> npt.NDArray[np.uint32]:
    """Returns the CRC-32 of each row's value, shape (flight_count,)."""
    checksums = np.zeros(flight_count, dtype=np.uint32)
    for event in events(flight_count=flight_count):
        checksums[event.row] = zlib.crc32(event.value)
    return checksums


@dataclass
class Ledger:
    """The records that one reader found, compared with the records that were sent."""

    expected: npt.NDArray[np.uint32]
    entered: npt.NDArray[np.uint32] = field(init=False)
    """The number of times that each row was found."""
    batch_count: int = 0
    byte_count: int = 0
    problems: list[str] = field(default_factory=list)
    _last_rows: dict[tuple[str, bytes], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.entered = np.zeros_like(self.expected)

    def enter(self, topic: str, key: bytes | None, value: bytes) -> None:
        """Enters one record. Records of a partition must be entered in its order."""
        row = msgpack.unpackb(value)["row"]
        self.entered[row] += 1
        if zlib.crc32(value) != self.expected[row]:
            self.problems.append(f"flight {row} is not what was sent")
        if key is None:
            return
        if row <= self._last_rows.get((topic, key), -1):
            self.problems.append(f"flight {row} of aircraft {key.decode()} came after a later one")
        self._last_rows[topic, key] = row

    def findings(self) -> list[str]:
        """Returns the first few faults. Empty if every flight is there exactly once, in order and unchanged."""
        missing = int((self.entered == 0).sum())
        repeated = int((self.entered > 1).sum())
        found = [f"{missing:,} flights are missing"] if missing else []
        found += [f"{repeated:,} flights are there more than once"] if repeated else []
        return found + self.problems[:PROBLEMS_MAX]


def read_with_shmaccum(directory: Path, ledger: Ledger) -> None:
    """Enters every record, checking each batch's CRC-32C.

    Raises:
        CorruptLogError: a batch contradicts its checksum.
    """
    log = LogReader(directory)
    for topic, partition in log.topic_partitions():
        for batch in log.partition(topic, partition).batches():
            ledger.batch_count += 1
            ledger.byte_count += batch.size
            for record in batch.records():
                ledger.enter(topic, record.key, record.value or b"")


def read_with_kafka_python(directory: Path, ledger: Ledger) -> None:
    """Enters every record with another reader: kafka-python's MemoryRecords over the segment files."""
    from kafka.record import MemoryRecords

    for segment in sorted(directory.glob("*/*.log")):
        topic = segment.parent.name.rpartition("-")[0]
        records: Any = MemoryRecords(segment.read_bytes())
        while (batch := records.next_batch()) is not None:
            if not batch.validate_crc():
                ledger.problems.append(f"{segment.name}: kafka-python finds a wrong checksum")
            for record in batch:
                ledger.enter(topic, record.key, record.value)


def readers() -> dict[str, Callable[[Path, Ledger], None]]:
    """Returns the installed readers, by the name to print."""
    found: dict[str, Callable[[Path, Ledger], None]] = {"shmaccum": read_with_shmaccum}
    if importlib.util.find_spec("kafka") is not None:
        found["kafka-python"] = read_with_kafka_python
    return found


def next_row_of(directory: Path, is_own: Callable[[str | None], bool]) -> int:
    """Returns the row after the last one in the log whose tail number satisfies `is_own`. A new worker starts there."""
    log = LogReader(directory)
    last = -1
    for topic, partition in log.topic_partitions():
        for record in log.partition(topic, partition).records():
            flight = msgpack.unpackb(record.value or b"")
            if flight["row"] > last and is_own(flight["tailnum"]):
                last = flight["row"]
    return last + 1
