# SPDX-License-Identifier: Apache-2.0
"""The buffers that each topic holds, counted in the tables of an arena."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shmaccum.arena import Arena
from shmaccum.arena.slot_word import STATE_OF
from shmaccum.arena.tables import slot_state

HEAD_STATES = [STATE_OF[name] for name in ("OPEN", "READY", "DONE")]
"""The states of the first buffer of a batch."""


def held_slots(arena: Arena) -> Counter[str]:
    """Topic -> buffers of its batches; of a batch larger than a buffer, the first one counts."""
    names = [topic for topic, _ in arena.native.partitions()]
    slots = arena.slot_table()
    is_held = np.isin(slot_state(slots["word"]), HEAD_STATES)
    indices, counts = np.unique(slots["partition_index"][is_held], return_counts=True)
    held: Counter[str] = Counter()
    for index, count in zip(indices.tolist(), counts.tolist(), strict=True):
        held[names[index]] += count
    return held


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 when all shares are equal, 1 / n when one share has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
