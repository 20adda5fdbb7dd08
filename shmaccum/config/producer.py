# SPDX-License-Identifier: Apache-2.0
"""Options of a producer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shmaccum.config.option import INT_MAX, boolean, duration_ms, function, sequence, text
from shmaccum.config.table import Options

SERIALIZERS = ("bytes", "str", "json", "msgpack")
PARTITIONERS = ("builtin", "round_robin")


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(Options):
    """What `Producer` takes."""

    scope = "producer"
    place = "Producer"

    linger_ms: int = duration_ms("5ms", "How long a batch that this producer opens waits for company.", maximum=INT_MAX)
    max_block_ms: int = duration_ms(
        "60s", "How long send may wait for a buffer, and for the partition count of a topic; both together."
    )
    key_serializer: str | Callable[..., Any] | None = function(
        None, SERIALIZERS, "serialize", "Makes bytes of a key; without one, keys are bytes already."
    )
    value_serializer: str | Callable[..., Any] | None = function(
        None, SERIALIZERS, "serialize", "Makes bytes of a value; without one, values are bytes already."
    )
    partitioner: str | Callable[..., Any] = function(
        "builtin",
        PARTITIONERS,
        "partition",
        "Chooses the partition of a record that names none: builtin takes murmur2 of the key, or without a key the "
        "partition all processes fill at the moment (KIP-480, KIP-794).",
        kafka="partitioner.class",
    )
    partitioner_ignore_keys: bool = boolean(False, "The builtin partitioner treats keyed records like those without.")
    partitioner_adaptive_partitioning_enable: bool = boolean(
        True, "Partitions with a shorter queue get more of the records without a key (KIP-794)."
    )
    interceptors: Sequence[Any] = sequence(
        "Objects whose on_send sees, and may replace, every record before it is serialized.",
        kafka="interceptor.classes",
    )
    close_timeout_ms: int = duration_ms(
        "10s", "How long the end of the process waits for what was sent and is not delivered."
    )
    client_id: str | None = text(
        None, "A name for metrics and errors; auto: made of the name and number of the process.", unset="auto"
    )
