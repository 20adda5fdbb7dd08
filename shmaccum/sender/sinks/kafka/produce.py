# SPDX-License-Identifier: Apache-2.0
"""Produce requests, versions 3 to 13: which version, for which batches; and what their answers say.

The request is `shmaccum._native.ProduceRequest` (native/format/produce.h): small pieces of our own around the arena's
bytes, which are never copied. It also reads an answer in which all is well, which nearly every one is; any other is
read by the library, and is a `ProduceAnswer`.

From version 13 on topics are named by their ids (KIP-516).
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
    """The newest version that the broker and we both know; below 13 while a topic's id is unknown.

    Args:
        broker_range: oldest and newest version of Produce that the broker takes.
        newest: the newest version that may be used.
    """
    known = VERSION_MAX if has_topic_ids else VERSION_TOPIC_ID - 1
    return min(known, newest, broker_range[1])


class PartitionAnswer(NamedTuple):
    """A broker's answer for one partition of a request."""

    topic: str | uuid.UUID
    """Its name; since version 13 its id."""
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str | None
    """The broker's words about the error, since version 8."""
    record_errors: Sequence[tuple[int, str | None]]
    """Places of records that are to blame, with what is wrong with them (KIP-467)."""
    leader_id: int
    """The leader, where the broker knows better than we (KIP-951); else -1."""
    leader_epoch: int


class ProduceAnswer(NamedTuple):
    """A broker's answer to a request."""

    partitions: Sequence[PartitionAnswer]
    throttle_time_ms: int
    nodes: Sequence[tuple[int, str, int, str | None]]
    """Id, host, port and rack of the leaders it told of (KIP-951)."""


class PlainAnswer(NamedTuple):
    """A broker's answer to a request of which every batch is in its partition: in the request's order."""

    throttle_time_ms: int
    base_offsets: Sequence[int]
    log_append_times_ms: Sequence[int]
