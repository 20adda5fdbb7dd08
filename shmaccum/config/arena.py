# SPDX-License-Identifier: Apache-2.0
"""Options of an arena."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from shmaccum import _native
from shmaccum.common.units import spell_size
from shmaccum.config.option import (
    INT_MAX,
    boolean,
    choice,
    count,
    duration_ms,
    factor,
    group,
    mode,
    percent,
    size,
    text,
)
from shmaccum.config.table import Options

BATCH_SIZE_MIN = 62
TRANSACTIONAL_ID_SIZE_MAX = 249


@dataclass(frozen=True, kw_only=True)
class ArenaOptions(Options):
    """Options of `Arena.create`."""

    scope = "arena"
    place = "Arena.create or ``shmaccum create``"

    buffer_memory: int = size("32MiB", "Bytes of memory for the batches of all processes together.")
    batch_size: int = size(
        "16KiB",
        "Bytes of one batch, including its header of 61 bytes. This is also the size of a buffer.",
        minimum=BATCH_SIZE_MIN,
        maximum=_native.BATCH_SIZE_MAX,
    )
    max_request_size: int = size("1MiB", "The largest record, including the header of its batch.", maximum=INT_MAX)
    oversized_max_bytes: int | None = size(
        None,
        "The maximum bytes of the buffers that records larger than a batch may hold together. auto: half of the "
        "buffers. Stuck partitions leave half of these bytes to other partitions, and topic_share_factor also applies "
        "to these bytes.",
        minimum=0,
        unset="auto",
    )
    max_process_share: int = percent(
        100, "The share of the buffers that one process may hold, so that a runaway process cannot starve the others."
    )
    topic_share_factor: Fraction = factor(
        4,
        "All topics together may hold this many times the buffers that are free, in equal parts if they need them, and "
        "each topic may always hold its first batch. So no topic takes the memory of others. With 4, busy topics leave "
        "a fifth of the buffers free. 0 turns the limit off. It is also off in an arena with one topic, with fewer "
        "than 9 buffers, or with a transactional_id.",
    )
    durability: str = choice(
        "process",
        ("process", "interval", "sync"),
        "The records that survive a crash of the host. process: only records that the kernel has written to disk on "
        "its own (all records survive the death of processes). interval: all except the records of the last "
        "sync_interval_ms. sync: all sent records. interval and sync require a file on a disk.",
    )
    sync_interval_ms: int | None = duration_ms(
        None,
        "With durability=interval, a crash of the host may lose the records of this much time.",
        minimum=1,
        maximum=INT_MAX,
    )
    process_count: int = count(
        1024, "The maximum number of processes attached at the same time.", maximum=_native.PROCESS_COUNT_MAX
    )
    waiter_count: int = count(
        1024, "The maximum number of threads waiting for a buffer.", maximum=_native.WAITER_COUNT_MAX
    )
    topic_count: int = count(1024, "The maximum number of topics.")
    partition_count: int = count(4096, "The maximum number of partitions of all topics together.")
    completion_count: int | None = count(
        None,
        "The number of batches whose results are retained, rounded up to a power of two. Read a future before its "
        "result is overwritten. auto: four for each buffer, at least 4096.",
        unset="auto",
    )
    transactional_id: str | None = text(
        None,
        "The name that identifies the transactions of this arena to a sink. If it is set, records can be sent only in "
        "a transaction, which all processes of the arena share.",
    )
    transaction_timeout_ms: int = duration_ms(
        "60s",
        "With transactional_id, the sender aborts a transaction that is open for longer than this.",
        minimum=1,
        maximum=INT_MAX,
    )
    external_sender: bool = boolean(
        False, "Another program runs the sender, for example systemd. Producers and ensure_sender do not start one."
    )
    mode: int = mode(0o600, "Permissions of the arena's file. Its users trust every user who may write to it.")
    group: str | int | None = group(
        "The group that shares the arena, by name or number. The mode must let the group write, such as 0660."
    )

    def contradictions(self) -> Iterator[str]:
        if self.buffer_memory < self.batch_size:
            yield (
                f"buffer_memory ({spell_size(self.buffer_memory)}) is smaller than batch_size "
                f"({spell_size(self.batch_size)}): make it large enough for many batches"
            )
        if self.transactional_id is not None and not _may_be_transactional_id(self.transactional_id):
            yield f"transactional_id must have 1 to {TRANSACTIONAL_ID_SIZE_MAX} bytes of UTF-8"
        if (self.durability == "interval") != (self.sync_interval_ms is not None):
            yield "durability=interval and sync_interval_ms belong together: give both, or neither"


def _may_be_transactional_id(given: str) -> bool:
    try:
        return 0 < len(given.encode()) <= TRANSACTIONAL_ID_SIZE_MAX
    except UnicodeEncodeError:
        return False
