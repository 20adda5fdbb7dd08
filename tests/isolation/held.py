# SPDX-License-Identifier: Apache-2.0
"""Count the buffers that each partition has, in the tables of an arena."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shmaccum.arena import Arena
from shmaccum.arena.slot_word import STATE_OF
from shmaccum.arena.tables import slot_state

Place = tuple[str, int | None]

WAITER_STATE_SHIFT = 62
"""The bits from this one up are the state of a waiter. A waiter with the state 0 does not wait."""
HEAD_STATES = [STATE_OF[name] for name in ("OPEN", "READY", "DONE")]
"""The states of the first buffer of a batch."""


def held_slots(arena: Arena) -> Counter[Place]:
    """Return a map: topic and partition -> number of its batches. A batch larger than a buffer counts as one."""
    places: list[Place] = list(arena.native.partitions())
    slots = arena.slot_table()
    is_held = np.isin(slot_state(slots["word"]), HEAD_STATES)
    indices, counts = np.unique(slots["partition_index"][is_held], return_counts=True)
    held: Counter[Place] = Counter()
    for index, count in zip(indices.tolist(), counts.tolist(), strict=True):
        held[places[index]] += count
    return held


def waiter_count(arena: Arena) -> int:
    """Return the number of threads that wait for a buffer, for any reason."""
    return sum(word >> WAITER_STATE_SHIFT != 0 for word in arena.waiter_table()["word"].tolist())


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index. It is 1 if all shares are equal, and 1 / n if one share has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
