/* SPDX-License-Identifier: Apache-2.0
 *
 * Ready hints: the batches that the sender has not seen. The slot words are the truth, and a new sender reads them all.
 *
 *   ready_groups   . . . . . 1 . . . .     a bit for each word of ready_hints
 *                            |
 *   ready_hints    0 0 0 0 0 w 0 0 0 0     a bit for each slot
 *
 * So a scan of a large arena with few new batches reads one word for 4096 slots.
 *
 *   producer  bit of the slot, then bit of its word; both before OPEN
 *   sender    takes the bits of a group, then those of each word that they name
 *
 * If a bit is set during a scan, its group's bit is set after it, so the next scan finds it. If a producer dies or is
 * stopped between the two stores, its slot is not OPEN: it becomes OPEN only after the second one. The sender finds the
 * remaining bit together with the next batch of that word, and ignores it.
 */
#ifndef ARENA_READY_HINTS_H
#define ARENA_READY_HINTS_H

#include "arena/arena.h"
#include "base/point.h"

static inline void ready_hint_set(struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint32_t word_index = slot_index / 64;
    uint32_t group_index = word_index / READY_GROUP_WORDS;
    or_bits_u64(&arena->ready_hints[word_index], UINT64_C(1) << (slot_index % 64)); /* B1 */
    POINT(ready_bit_set);
    or_bits_u64(&arena->ready_groups[group_index], UINT64_C(1) << (word_index % READY_GROUP_WORDS)); /* B2 */
}

/* Usually there are none: then the cost is one load. */
static inline uint64_t ready_hints_take(atomic_u64 *cell)
{
    return load_relaxed_u64(cell) == 0 ? 0 : exchange_u64(cell, 0); /* B3 */
}

#endif
