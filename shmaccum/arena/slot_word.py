# SPDX-License-Identifier: Apache-2.0
"""The fields of one slot word (native/arena/slot_word.h). `tables` does the same for many words."""

from __future__ import annotations

SLOT_STATES = ("FREE", "GRANT", "OWNED", "OPEN", "READY", "DONE", "CONT", "BAD")
"""The states of a slot by their number."""

STATE_OF = {name: number for number, name in enumerate(SLOT_STATES)}
STATE_SHIFT = 61
COUNT_BITS = 17
SIZE_BITS = 26


def state_of(word: int) -> str:
    """The state of the slot."""
    return SLOT_STATES[word >> STATE_SHIFT]


def record_count_of(word: int) -> int:
    """Committed records; meaningful for OPEN, READY, DONE and BAD."""
    return (word >> SIZE_BITS) & ((1 << COUNT_BITS) - 1)


def size_of(word: int) -> int:
    """Bytes up to the end of the last committed record; meaningful for OPEN, READY, DONE and BAD."""
    return word & ((1 << SIZE_BITS) - 1)
