# SPDX-License-Identifier: Apache-2.0
"""Options of a consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shmaccum.config.option import boolean, choice, count, duration_ms, function, sequence, text
from shmaccum.config.table import Options

MEMORYVIEW = "memoryview"
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
DESERIALIZERS = ("bytes", "str", "json", "msgpack", MEMORYVIEW)


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(Options):
    """Options of `Consumer`."""

    scope = "consumer"
    place = "Consumer"

    auto_offset_reset: str = choice(
        "latest",
        ("earliest", "latest", "none"),
        "The start of a partition that has no position, or whose position is not in the log. none raises an error.",
    )
    key_deserializer: str | Callable[..., Any] | None = function(
        None,
        DESERIALIZERS,
        "deserialize",
        "Converts the bytes of a key. Without a deserializer, keys are bytes; memoryview does not copy them.",
    )
    value_deserializer: str | Callable[..., Any] | None = function(
        None,
        DESERIALIZERS,
        "deserialize",
        "Converts the bytes of a value. Without a deserializer, values are bytes; memoryview does not copy them.",
    )
    max_poll_records: int = count(500, "The most records that one poll returns.")
    isolation_level: str = choice(
        READ_UNCOMMITTED,
        (READ_UNCOMMITTED, READ_COMMITTED),
        "read_committed returns no records of aborted transactions, and returns the records of an open transaction "
        "after its commit. read_uncommitted returns all records.",
    )
    check_crcs: bool = boolean(True, "Check the CRC of each batch before returning its records.")
    consumer_timeout_ms: int = duration_ms(
        -1, "The longest time that an iteration waits for a record before it ends. -1 means forever.", minimum=-1
    )
    group_id: str | None = text(
        None,
        "The group whose members share the partitions of their topics, and whose offsets are committed.",
        unset="none",
    )
    group_instance_id: str | None = text(
        None, "The name of a static member, whose partitions wait for its return.", unset="none"
    )
    session_timeout_ms: int = duration_ms(
        "45s", "The longest time that the partitions of a static member wait for its return."
    )
    replace_stalled_ms: int | None = duration_ms(
        None,
        "This member kills another member of its group whose process has been stopped (SIGSTOP) for this time. Only a "
        "process of the same user is killed.",
        minimum=1_000,
    )
    enable_auto_commit: bool = boolean(True, "Commit the positions of a group's consumer periodically.")
    auto_commit_interval_ms: int = duration_ms("5s", "The time between two automatic commits.")
    partition_assignment_strategy: Sequence[Any] = sequence(
        "Assignors in order of preference: range, roundrobin, sticky, cooperative-sticky, or an object with name and "
        "assign(subscriptions). sticky and cooperative-sticky are equivalent, because every change is incremental. "
        "The default is range, cooperative-sticky."
    )
    client_id: str | None = text(
        None, "The name of this consumer in messages. auto: consumer- and the process id.", unset="auto"
    )
    interceptors: Sequence[Any] = sequence(
        "Objects whose on_consume gets, and may replace, the records of each poll, and whose on_commit gets offsets.",
        kafka="interceptor.classes",
    )

    def contradictions(self) -> Iterator[str]:
        if self.group_id is None and self.group_instance_id is not None:
            yield "group_instance_id has no effect without group_id: set group_id, too"
        if self.group_id is None and self.replace_stalled_ms is not None:
            yield "replace_stalled_ms has no effect without group_id: set group_id, too"
