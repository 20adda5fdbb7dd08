/* SPDX-License-Identifier: Apache-2.0
 *
 * A poisoned arena takes no more work: something in it contradicts itself where nobody can tell what is true, or the
 * disk refused it. What is in it is kept for `inspect` and `recover`; a cold recovery takes the word back.
 */
#ifndef ARENA_POISON_H
#define ARENA_POISON_H

#include "arena/arena.h"

/* The first failure wins; later work answers STATUS_POISONED. */
void arena_poison(struct arena *arena, enum status status, const char *what);

static inline bool arena_is_poisoned(const struct arena *arena)
{
    return load_relaxed_u32(&arena->globals->poisoned_status) != 0;
}

#endif
