# SPDX-License-Identifier: Apache-2.0
"""The parts that questions about the segment log share: a folder in memory, and batches as the log takes them."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness.belongings import new_name

TMPFS = "/dev/shm"


@dataclass(slots=True)
class FullBatch:
    """The fields of a WireBatch that the log needs."""

    buffers: tuple[memoryview, ...]
    size: int
    record_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp_ms: int


@contextmanager
def tmpfs_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, and no garbage collection in between."""
    gc.collect()
    gc.disable()
    try:
        with lasting_folder() as folder:
            yield Path(folder)
    finally:
        gc.enable()


def lasting_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that is gone with the process."""
    return tempfile.TemporaryDirectory(dir=TMPFS, prefix=f"{new_name()}-")
