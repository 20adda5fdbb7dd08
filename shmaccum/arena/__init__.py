# SPDX-License-Identifier: Apache-2.0
"""The arena: its file, its tables, the doorbell of its sender, and the thread that forces it to disk.

Producers and the sender meet here; nothing in this folder knows either of them.
"""

from shmaccum.arena.arena import (
    DEFAULT_MODE,
    SIZES,
    WAITER_WAIT,
    Arena,
    ArenaStatistics,
    VerifyDepth,
    semaphore_name,
)

__all__ = [
    "DEFAULT_MODE",
    "SIZES",
    "WAITER_WAIT",
    "Arena",
    "ArenaStatistics",
    "VerifyDepth",
    "semaphore_name",
]
