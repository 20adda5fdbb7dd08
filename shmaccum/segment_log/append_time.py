# SPDX-License-Identifier: Apache-2.0
"""Batches whose records have the time of their append (Kafka's LogAppendTime), and not that of their producer.

::

    header   | ... attributes + LOG_APPEND_TIME ... | max timestamp = now | ... CRC of header and records |
    records  | as they came: readers pass over the records' own timestamps                             |

No record is copied; the records are summed twice, for the former CRC and for the new one. A batch that came damaged
keeps a CRC that does not fit, so its damage shows.
"""

from __future__ import annotations

from typing import final

from shmaccum.format.batch_header import HEADER_SIZE, LOG_APPEND_TIME, changed_header, read_header
from shmaccum.segment_log.producer_state import Appendable


@final
class StampedBatch:
    """A batch to be appended with another time than its own.

    Args:
        batch: as it came.
        time_ms: the time of all its records, in milliseconds since 1970.
    """

    __slots__ = (
        "base_sequence",
        "buffers",
        "max_timestamp_ms",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
    )

    def __init__(self, batch: Appendable, time_ms: int) -> None:
        first, *others = batch.buffers
        header = read_header(first)
        changed = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp_ms=time_ms)
        records = first[HEADER_SIZE:], *others
        self.buffers = (memoryview(changed_header(header, changed, records)), *records)
        self.size = batch.size
        self.record_count = batch.record_count
        self.producer_id = batch.producer_id
        self.producer_epoch = batch.producer_epoch
        self.base_sequence = batch.base_sequence
        self.max_timestamp_ms = time_ms
