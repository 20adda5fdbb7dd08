# SPDX-License-Identifier: Apache-2.0
"""Batches whose records get the time of their append (Kafka's LogAppendTime) instead of the time of their producer.

::

    header   | ... attributes + LOG_APPEND_TIME ... | max timestamp = now | ... CRC of header and records |
    records  | unchanged: readers ignore the records' own timestamps                                      |

No record is copied or read, because the new CRC is computed from the former one. If a batch was damaged before, or
another process changes it meanwhile, the new CRC does not match, so the damage is detected.
"""

from __future__ import annotations

from typing import final

from shmaccum.common.format.batch_header import HEADER_SIZE, LOG_APPEND_TIME, changed_header, read_header
from shmaccum.log.files.producer_state import Appendable, shared_crc


@final
class StampedBatch:
    """A batch that is appended with another time than its own.

    Args:
        batch: the original batch.
        time_ms: the time of all its records, in milliseconds since 1970.
    """

    __slots__ = (
        "base_sequence",
        "buffers",
        "max_timestamp_ms",
        "producer_epoch",
        "producer_id",
        "record_count",
        "shared_crc",
        "size",
    )

    def __init__(self, batch: Appendable, time_ms: int) -> None:
        first, *others = batch.buffers
        crc = shared_crc(batch)
        header = read_header(first)
        header = header if crc is None else header._replace(crc=crc)
        changed = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp_ms=time_ms)
        content = changed_header(header, changed)
        self.buffers = (memoryview(content), first[HEADER_SIZE:], *others)
        self.shared_crc = None if crc is None else read_header(content).crc
        self.size = batch.size
        self.record_count = batch.record_count
        self.producer_id = batch.producer_id
        self.producer_epoch = batch.producer_epoch
        self.base_sequence = batch.base_sequence
        self.max_timestamp_ms = time_ms
