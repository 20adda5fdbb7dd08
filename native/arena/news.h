/* SPDX-License-Identifier: Apache-2.0
 *
 * News: which batches the sender has not seen. Hints; the slot words are the truth, and a new sender reads them all.
 *
 *   news_groups   . . . . . 1 . . . .     a bit for each word of news_hints
 *                           |
 *   news_hints    0 0 0 0 0 w 0 0 0 0     a bit for each slot
 *
 * So a pass over a large arena, of which nearly nothing is news, reads one word for 4096 slots.
 *
 *   producer  bit of the slot, then bit of its word; all this before OPEN
 *   sender    takes the bits of a group, then those of each word that they name
 *
 * A bit that is set behind the sender's back is followed by its group's bit, so the next pass finds it. A producer dies
 * or is stopped between the two: its slot is not OPEN, and never becomes so without the second one. The bit that is
 * left is found together with the next batch of that word, and means nothing to the sender.
 */
#ifndef ARENA_NEWS_H
#define ARENA_NEWS_H

#include "arena/arena.h"
#include "base/point.h"

static inline void news_set(struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint32_t word_index = slot_index / 64;
    uint32_t group_index = word_index / NEWS_GROUP_WORDS;
    or_bits_u64(&arena->news_hints[word_index], UINT64_C(1) << (slot_index % 64)); /* B1 */
    POINT(news_hint_set);
    or_bits_u64(&arena->news_groups[group_index], UINT64_C(1) << (word_index % NEWS_GROUP_WORDS)); /* B2 */
}

/* Nearly always there are none, which costs a load and no more. */
static inline uint64_t news_take(atomic_u64 *cell)
{
    return load_relaxed_u64(cell) == 0 ? 0 : exchange_u64(cell, 0); /* B3 */
}

#endif
