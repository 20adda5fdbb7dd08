# SPDX-License-Identifier: Apache-2.0
"""The record that a consumer hands out."""

from __future__ import annotations

from typing import Any, NamedTuple


class ConsumerRecord(NamedTuple):
    """One record of a partition, with the fields of kafka-python's ConsumerRecord in the same order."""

    topic: str
    partition: int
    leader_epoch: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    timestamp_type: int
    """0: the producer's time. 1: the time of the append."""
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    checksum: None
    """Record batches have a checksum since magic 2; records have none."""
    serialized_key_size: int
    """Bytes; -1: the key is null."""
    serialized_value_size: int
    """Bytes; -1: the value is null."""
    serialized_header_size: int
    """Bytes of all names and values; -1: the record has no headers."""
