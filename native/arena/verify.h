/* SPDX-License-Identifier: Apache-2.0
 *
 * verify checks the arena's invariants. It never writes, trusts no byte, and works on a read-only mapping of a live,
 * idle or damaged arena.
 *
 *   VERIFY_QUICK   superblock, counts within the geometry, poisoned or not           O(1)
 *   VERIFY_NORMAL  every word by itself and against related words: states, owners, chains, open words, sequences,
 *                  and on an idle arena, the caches                      O(slots + partitions)
 *   VERIFY_DEEP    also the bytes: records walked, running CRCs, headers of drained batches, free slots all zeros
 *
 * On a live arena words change while they are read, so a finding is reported only if a second check also finds it.
 * `is_idle` adds the checks that are valid only while no other process is attached (at the end of every test).
 */
#ifndef ARENA_VERIFY_H
#define ARENA_VERIFY_H

#include "arena/arena.h"

enum verify_depth { VERIFY_QUICK, VERIFY_NORMAL, VERIFY_DEEP };

enum { VERIFY_TEXT_SIZE = 160 };

struct finding {
    uint32_t slot_index; /* NO_SLOT if it is not about a slot */
    char text[VERIFY_TEXT_SIZE];
};

struct verify_options {
    enum verify_depth depth;
    bool is_idle; /* no other process uses the arena: caches must agree with the words, no slot may be OWNED or DONE */
};

/* Fills at most `findings_max`, and returns the total number of findings, which is 0 for a sound arena. */
uint32_t verify(const struct arena *arena, const struct verify_options *options, struct finding *findings,
                uint32_t findings_max);

/* Counts the slots in each state, for stat and for the leak checks of tests. */
void verify_count_states(const struct arena *arena, uint32_t counts[SLOT_BAD + 1]);

/* Returns the name of a slot's state, as in its enumerator. */
const char *slot_state_name(uint32_t state);

#endif
