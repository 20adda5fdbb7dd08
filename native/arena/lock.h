/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock in shared memory that names its owner and survives the death of its owner.
 *
 *   word:  acquisition number 32 | waiters 1 | owner 31        futex: the low half
 *
 *   acquire   CAS (a, nobody) -> (a + 1, me). Spins a little, then sets `waiters` and sleeps on the futex in slices of
 *             LOCK_SLICE_NS.
 *   steal     a slice went by and the owner is proven dead (process.h): CAS (a, dead) -> (a + 1, me).
 *   release   CAS (a, me) -> (a, nobody), wake one sleeper.
 *
 * A process that stole the lock is told so (LOCK_TAKEN_OVER) and repairs before it does anything else. If it dies
 * before it is finished, the next one is told the same, because it steals in turn.
 *
 * Why not a robust pthread mutex: its death notice breaks across pid namespaces. Why not a semaphore: killed between
 * its decrement and its wake it sleeps for ever. Measured in both cases; see docs/decisions/0003.
 *
 * L1 acquire CAS (acquire) pairs with L2 release CAS (release): the stores of the last holder are visible to the next.
 */
#ifndef ARENA_LOCK_H
#define ARENA_LOCK_H

#include "arena/arena.h"

#define LOCK_SLICE_NS (UINT64_C(15) * NS_PER_MS)

enum lock_outcome { LOCK_ACQUIRED, LOCK_TAKEN_OVER };

/* Blocks until the lock is ours; the arena's blocking hooks stand around each sleep, never around the acquisition.
 * Somebody waits at most two slices behind an owner that is dead. `held` receives the word that now names us. Requires
 * arena->owner != 0. */
enum lock_outcome lock_acquire(struct arena *arena, atomic_u64 *lock, uint64_t *held);

void lock_release(atomic_u64 *lock, uint64_t held);

/* One acquisition of somebody else, as a waiter has watched it. */
struct lock_watch {
    uint64_t word;
    uint64_t since_ns;
};

/* True when one and the same acquisition was watched for so long. The waiters bit does not make it another one. */
bool lock_watch_is_over(struct lock_watch *watch, uint64_t word, uint64_t patience_ns);

#endif
