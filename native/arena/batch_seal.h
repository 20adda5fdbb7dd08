/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealing a batch. The producer that fills it, a producer that flushes or repairs, the sender and recovery may all seal
 * one, and none of them needs a lock: a batch that is sealed early is only a shorter batch.
 *
 *   OPEN(n, size)  ->  READY(n, size)     the batch has records: it is delivered
 *   OPEN(0)        ->  DONE               the batch is empty: its slot is freed
 */
#ifndef ARENA_BATCH_SEAL_H
#define ARENA_BATCH_SEAL_H

#include "arena/arena.h"

/* Seals the OPEN slot. Returns false if its word differs from `word`. */
static inline bool batch_seal(struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    CHECK(slot_word_state(word) == SLOT_OPEN);
    enum slot_state sealed = slot_word_count(word) == 0 ? SLOT_DONE : SLOT_READY;
    return cas_u64(&arena->slots[slot_index].word, &word, slot_word_with_state(word, sealed)); /* P5 */
}

/* Seals each OPEN slot, for a process that has changed a word that openers read after OPEN (closing.h, transaction.h).
 * A CAS fails if a record was committed meanwhile, or another process sealed the batch. */
void batch_seal_all(struct arena *arena);

#endif
