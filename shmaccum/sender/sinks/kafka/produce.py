# SPDX-License-Identifier: Apache-2.0
"""Produce requests, versions 3 to 13: which version to use for which batches, and the contents of responses.

The request is `shmaccum._native.ProduceRequest` (native/format/produce.h): small pieces of private memory around the
arena's bytes, which are never copied. It also reads a response without errors, which is the usual case. The library
reads any other response, which becomes a `ProduceAnswer`.

From version 13 on, topics are identified by their ids (KIP-516).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

PRODUCE_API_KEY = 0
VERSION_MIN = 3
VERSION_MAX = 13
VERSION_ZSTD = 7
VERSION_EXPLICIT = 11
"""The newest version in which a broker adds no partition to a transaction by itself (KIP-890)."""
VERSION_TOPIC_ID = 13


def version_for(broker_range: tuple[int, int], *, has_topic_ids: bool, newest: int = VERSION_MAX) -> int:
    """Return the newest version that the broker and this sink know; below 13 while a topic's id is unknown.

    Args:
        broker_range: oldest and newest version of Produce that the broker accepts.
        newest: the newest version that may be used.
    """
    known = VERSION_MAX if has_topic_ids else VERSION_TOPIC_ID - 1
    return min(known, newest, broker_range[1])


class PartitionAnswer(NamedTuple):
    """A broker's response for one partition of a request."""

    topic: str | uuid.UUID
    """Its name, or its id from version 13 on."""
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str | None
    """The broker's error message, from version 8 on."""
    record_errors: Sequence[tuple[int, str | None]]
    """Indices of invalid records, with the broker's messages (KIP-467)."""
    leader_id: int
    """The new leader, if the request was sent to a former one (KIP-951); otherwise -1."""
    leader_epoch: int


class ProduceAnswer(NamedTuple):
    """A broker's response to a request."""

    partitions: Sequence[PartitionAnswer]
    throttle_time_ms: int
    nodes: Sequence[tuple[int, str, int, str | None]]
    """Id, host, port and rack of the new leaders in the response (KIP-951)."""


class PlainAnswer(NamedTuple):
    """A broker's response without errors: each batch is in its partition. Values are in the order of the request."""

    throttle_time_ms: int
    base_offsets: Sequence[int]
    log_append_times_ms: Sequence[int]
