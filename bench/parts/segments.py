# SPDX-License-Identifier: Apache-2.0
"""Parts of questions about the segment log: a folder in memory, and batches for the log."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness.cleanup import new_name
from shmaccum.config import LogSinkOptions
from shmaccum.log.files import LogDirectory

TMPFS = "/dev/shm"


@dataclass(slots=True)
class FullBatch:
    """The fields of a WireBatch that the log reads."""

    buffers: tuple[memoryview, ...]
    size: int
    record_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp_ms: int


@contextmanager
def tmpfs_folder() -> Iterator[Path]:
    """Yield a temporary folder in memory. Garbage collection is disabled in the block."""
    gc.collect()
    gc.disable()
    try:
        with lasting_folder() as folder:
            yield Path(folder)
    finally:
        gc.enable()


def lasting_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed at the end of the process."""
    return tempfile.TemporaryDirectory(dir=TMPFS, prefix=f"{new_name()}-")


def create_log(folder: str | Path, topic: str, partition_count: int = 1) -> None:
    """Create a log without records that has a topic."""
    with LogDirectory(folder, LogSinkOptions(partitions=partition_count)) as directory:
        directory.create_topic(topic)
        for number in range(partition_count):
            directory.partition(topic, number)
