# SPDX-License-Identifier: Apache-2.0
"""The reason for which nothing can be delivered to a partition, by its number in the stuck word of the partition
(native/arena/slot_word.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from shmaccum.common.clock import NS_PER_MS
from shmaccum.common.units import format_duration_ns

if TYPE_CHECKING:
    from shmaccum import _native


REASONS: Final[Mapping[int, tuple[str, str]]] = {
    1: ("no_leader", "it has no leader"),
    2: ("refused", "its broker refuses its batches ({error})"),
    3: ("silent", "its broker does not answer, while brokers of other partitions do"),
}
"""Number -> a stable word for machines, and the reason for people."""

REPLICAS_MISSING: Final[Mapping[int, str]] = {
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    56: "KAFKA_STORAGE_ERROR",
}
"""Kafka's errors of a leader that can take no batches of a partition for now. The partition is stuck until it takes
one again."""


def stuck_reason(number: int, error_code: int) -> tuple[str, str]:
    """The word for machines and the reason for people. The number may be one that this version does not know."""
    word, why = REASONS.get(number, ("unknown", "its sender is a newer version and knows the reason"))
    return word, why.format(error=REPLICAS_MISSING.get(error_code, f"error code {error_code}"))


def stuck_age_ns(now_ns: int, since_ms: int) -> int:
    """For how long a partition has been stuck, on the arena's clock."""
    return max(now_ns - since_ms * NS_PER_MS, 0)


def stuck_clause(native: _native.Arena, partition_index: int) -> str:
    """For how long nothing could be delivered to a partition, and the reason; empty while something can."""
    for index, number, error_code, since_ms, _ in native.stuck_partitions():
        if index == partition_index:
            age_ns = stuck_age_ns(native.now_ns(), since_ms)
            return (
                f"its partition has been stuck for {format_duration_ns(age_ns)}: {stuck_reason(number, error_code)[1]}"
            )
    return ""
