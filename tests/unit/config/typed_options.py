# SPDX-License-Identifier: Apache-2.0
"""Calls with options as a type checker sees them. They are never executed.

``make check`` runs mypy on this file and rejects unused ignores. So each ignored line is an error that an editor shows,
and each other line is no error.
"""

from __future__ import annotations

import shmaccum
from shmaccum.config.dicts import ArenaOptionsDict

ARENA: ArenaOptionsDict = {"buffer_memory": "1GiB", "durability": "sync", "mode": 0o660}


def right_calls() -> None:
    """Options of every kind, in the forms that users write."""
    shmaccum.Arena.create("a", **ARENA)
    shmaccum.Producer("a", linger_ms="5ms", max_block_ms=100, key_serializer="json", interceptors=[], client_id=None)
    shmaccum.Producer("a", value_serializer=str.encode, partitioner=lambda choice: choice.partitions[0])
    shmaccum.Producer("a", sink="kafka:h:1", retries=3, compression_type="lz4", replace_stalled_ms="30s")
    shmaccum.Sender("a", "null:", acks="all", retries=3, enable_idempotence=True, idle_exit_ms=None)
    shmaccum.ensure_sender("a", "log:events", delivery_timeout_ms="3min", mode=0o660)


def wrong_calls() -> None:
    """A misspelled name, an option of another table, an invalid choice, a value of another type."""
    shmaccum.Producer("a", linger=5)  # type: ignore[call-arg]
    shmaccum.Producer("a", buffer_memory="1GiB")  # type: ignore[call-arg]
    shmaccum.Arena.create("a", durability="often")  # type: ignore[arg-type]
    shmaccum.Sender("a", "null:", retries="many")  # type: ignore[arg-type]
    shmaccum.ensure_sender("a", "null:", lingers=1)  # type: ignore[call-arg]
