# SPDX-License-Identifier: Apache-2.0
"""The reasons why a partition is stuck, by their number in its stuck word (native/arena/slot_word.h)."""

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
"""Maps the number to a stable word for programs, and to the reason for people."""

REPLICAS_MISSING: Final[Mapping[int, str]] = {
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    56: "KAFKA_STORAGE_ERROR",
}
"""Kafka's errors of a leader that temporarily accepts no batches of a partition. Until then, the partition is stuck."""


def stuck_reason(number: int, error_code: int) -> tuple[str, str]:
    """Returns the word for programs and the reason for people. This version may not know the number."""
    word, why = REASONS.get(number, ("unknown", "its sender is a newer version and knows the reason"))
    return word, why.format(error=REPLICAS_MISSING.get(error_code, f"error code {error_code}"))


def stuck_age_ns(now_ns: int, since_ms: int) -> int:
    """Returns how long a partition has been stuck, on the arena's clock."""
    return max(now_ns - since_ms * NS_PER_MS, 0)


def stuck_clause(native: _native.Arena, partition_index: int) -> str:
    """Describes for how long a partition has been stuck, and why. Empty if it is not stuck."""
    for index, number, error_code, since_ms, _ in native.stuck_partitions():
        if index == partition_index:
            age_ns = stuck_age_ns(native.now_ns(), since_ms)
            return (
                f"its partition has been stuck for {format_duration_ns(age_ns)}: {stuck_reason(number, error_code)[1]}"
            )
    return ""
