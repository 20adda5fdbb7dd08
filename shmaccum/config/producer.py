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
    """Options of `Producer`."""

    scope = "producer"
    place = "Producer"

    linger_ms: int = duration_ms(
        "5ms",
        "The time that a batch opened by this producer waits for more records before it is sent.",
        maximum=INT_MAX,
    )
    max_block_ms: int = duration_ms(
        "60s", "The longest time that send waits for a buffer and for the topic's partitions, both together."
    )
    stuck_block_ms: int | None = duration_ms(
        None,
        "The longest time that send waits for a buffer of a stuck partition, while the arena reserves its buffers for "
        "other partitions. If it is 0, send raises immediately. auto: max_block_ms.",
        unset="auto",
    )
    key_serializer: str | Callable[..., Any] | None = function(
        None, SERIALIZERS, "serialize", "Converts a key to bytes. Without a serializer, keys have to be bytes."
    )
    value_serializer: str | Callable[..., Any] | None = function(
        None, SERIALIZERS, "serialize", "Converts a value to bytes. Without a serializer, values have to be bytes."
    )
    partitioner: str | Callable[..., Any] = function(
        "builtin",
        PARTITIONERS,
        "partition",
        "Chooses the partition of a record that names none. builtin: by the murmur2 hash of the key. A record without "
        "a key goes to the partition that all processes of the host currently fill (KIP-480, KIP-794).",
        kafka="partitioner.class",
    )
    partitioner_ignore_keys: bool = boolean(
        False, "The builtin partitioner treats records with a key like records without one."
    )
    partitioner_adaptive_partitioning_enable: bool = boolean(
        True, "A partition with a shorter queue gets more of the records without a key (KIP-794)."
    )
    interceptors: Sequence[Any] = sequence(
        "Objects whose on_send method receives, and may replace, every record before it is serialized.",
        kafka="interceptor.classes",
    )
    close_timeout_ms: int | None = duration_ms(
        None,
        "The longest time that the end of a with block, or of the process, waits until all records are delivered. "
        "The default is 2 minutes for a with block, and 10 s for the process.",
        unset="none",
    )
    client_id: str | None = text(
        None,
        "The name of this producer in metrics and messages. auto: producer- and the process id.",
        unset="auto",
    )
