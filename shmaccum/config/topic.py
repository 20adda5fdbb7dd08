# SPDX-License-Identifier: Apache-2.0
"""Settings of a topic that are not options of its log: the cleanup policy, and settings without effect.

A program that was written for Kafka may create its topics with any of Kafka's settings. Those without effect concern
work that the log does not do: compaction, the election of a leader, and the delayed deletion of files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shmaccum.config.option import INT_MAX, LONG_MAX, Option, boolean, duration_ms, size
from shmaccum.config.table import Options

COMPACT, DELETE = "compact", "delete"


def _parse_policies(given: Any) -> str:
    names = [name.strip() for name in str(given).split(",")]
    if not set(names) <= {COMPACT, DELETE}:
        raise TypeError(f"{given!r} is not delete, compact, or compact,delete")
    return ",".join(dict.fromkeys(names))


def _parse_ratio(given: Any) -> float:
    value = float(given)
    if not 0 <= value <= 1:
        raise ValueError(f"{given!r} is not a number from 0 to 1")
    return value


def _policies(sentence: str) -> Any:
    return field(default=DELETE, metadata={"option": Option("list", _parse_policies, DELETE, sentence)})


def _ratio(default: float, sentence: str) -> Any:
    return field(default=default, metadata={"option": Option("ratio", _parse_ratio, default, sentence)})


@dataclass(frozen=True, kw_only=True)
class TopicOptions(Options):
    """The settings of a topic that no option of its log corresponds to."""

    scope = "topic"
    place = "``shmaccum topics create --set`` or an administrator's client"

    cleanup_policy: str = _policies("With delete, retention applies. With compact alone, every record is kept.")
    delete_retention_ms: int = duration_ms("1d", "Without effect: every tombstone is kept.", maximum=LONG_MAX)
    file_delete_delay_ms: int = duration_ms("1min", "Without effect: files are deleted at once.", maximum=LONG_MAX)
    max_compaction_lag_ms: int = duration_ms(
        LONG_MAX, "Without effect: no record is compacted.", minimum=1, maximum=LONG_MAX
    )
    min_cleanable_dirty_ratio: float = _ratio(0.5, "Without effect: no record is compacted.")
    min_compaction_lag_ms: int = duration_ms(0, "Without effect: no record is compacted.", maximum=LONG_MAX)
    preallocate: bool = boolean(False, "Without effect: no file is preallocated.")
    segment_index_bytes: int = size(
        "10MiB", "Without effect: an index has the size that its segment needs.", minimum=4, maximum=INT_MAX
    )
    segment_jitter_ms: int = duration_ms(0, "Without effect: new segments are not delayed.", maximum=LONG_MAX)
    unclean_leader_election_enable: bool = boolean(False, "Without effect: one host needs no election.")
