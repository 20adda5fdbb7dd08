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

    buffer_memory: int = size("32MiB", "Bytes for batches, of all processes together.")
    batch_size: int = size(
        "16KiB",
        "Bytes of one batch, its header of 61 bytes included; also the size of a buffer.",
        minimum=BATCH_SIZE_MIN,
        maximum=_native.BATCH_SIZE_MAX,
    )
    max_request_size: int = size("1MiB", "The largest record, with the header of its batch.", maximum=INT_MAX)
    oversized_max_bytes: int | None = size(
        None,
        "Bytes of the buffers that records larger than a batch may hold together; auto: half of them. Partitions to "
        "which nothing can be delivered now leave half of these bytes to others, and topic_share_factor holds for "
        "them, too.",
        minimum=0,
        unset="auto",
    )
    max_process_share: int = percent(
        100, "The share of the buffers that one process may hold, so that a runaway process cannot starve the others."
    )
    topic_share_factor: Fraction = factor(
        4,
        "The topics may together hold this many times the buffers that are free, in equal parts where they need them, "
        "and each its first batch always: no topic takes the memory of the others. With 4, heavy topics leave a fifth "
        "of the buffers free. 0 turns the limit off; it is off in an arena with one topic, with fewer than 9 buffers, "
        "or with a transactional_id.",
    )
    durability: str = choice(
        "process",
        ("process", "interval", "sync"),
        "The records that survive a crash of the host. process: those that the kernel had written by itself; every "
        "death of processes is survived. interval: all but those of the last sync_interval_ms. sync: all that were "
        "sent. interval and sync need a file on a disk.",
    )
    sync_interval_ms: int | None = duration_ms(
        None,
        "With durability=interval: a crash of the host may cost the records of this time.",
        minimum=1,
        maximum=INT_MAX,
    )
    process_count: int = count(
        1024, "The most processes that may be attached at once.", maximum=_native.PROCESS_COUNT_MAX
    )
    waiter_count: int = count(
        1024, "The most threads that may wait for a buffer at once.", maximum=_native.WAITER_COUNT_MAX
    )
    topic_count: int = count(1024, "The most topics that the arena has room for.")
    partition_count: int = count(4096, "The most partitions, of all topics together, that the arena has room for.")
    completion_count: int | None = count(
        None,
        "Results are kept for this many last batches, rounded up to a power of two; read a future before then. auto: "
        "four for each buffer, at least 4096.",
        unset="auto",
    )
    transactional_id: str | None = text(
        None,
        "The name by which a sink knows the transactions of this arena. With it, records are sent inside transactions "
        "alone, each of which all processes of the arena share.",
    )
    transaction_timeout_ms: int = duration_ms(
        "60s",
        "With transactional_id: the sender aborts a transaction that is open for longer.",
        minimum=1,
        maximum=INT_MAX,
    )
    external_sender: bool = boolean(
        False, "Somebody else keeps the sender, for example systemd: no producer and no ensure_sender starts one."
    )
    mode: int = mode(0o600, "Permissions of the arena's file. All users of the arena trust everybody who may write it.")
    group: str | int | None = group(
        "The group that shares the arena, by name or number; needs a mode that lets the group write, such as 0660."
    )

    def contradictions(self) -> Iterator[str]:
        if self.buffer_memory < self.batch_size:
            yield (
                f"buffer_memory ({spell_size(self.buffer_memory)}) is smaller than batch_size "
                f"({spell_size(self.batch_size)}): give it room for many batches"
            )
        if self.transactional_id is not None and not _may_be_transactional_id(self.transactional_id):
            yield f"transactional_id has to have 1 to {TRANSACTIONAL_ID_SIZE_MAX} bytes of UTF-8"
        if (self.durability == "interval") != (self.sync_interval_ms is not None):
            yield "durability=interval and sync_interval_ms belong together: give both, or neither"


def _may_be_transactional_id(given: str) -> bool:
    try:
        return 0 < len(given.encode()) <= TRANSACTIONAL_ID_SIZE_MAX
    except UnicodeEncodeError:
        return False
