/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock in shared memory that names its owner, survives the death of its owner, and in one of its two forms lets a
 * living owner be passed.
 *
 *   word:  acquisition number 32 | waiters 1 | owner 31        futex: the low half
 *
 *   acquire   CAS (a, nobody) -> (a + 1, me).
 *   release   CAS (a, me) -> (a, nobody), wake one sleeper. If the CAS fails we were passed: nothing is left to do.
 *
 * What a waiter does depends on the form:
 *
 *   lock_acquire            spins a little, then sets `waiters` and sleeps on the futex in slices of LOCK_SLICE_NS. A
 *                           slice went by and the owner is proven dead (process.h): CAS (a, dead) -> (a + 1, me).
 *   lock_acquire_or_pass    spins, never sleeps. Its patience went by within one acquisition, and whoever has it,
 *                           dead, stopped or merely off its core, is passed: CAS (a, H) -> (a + 1, me). Only for locks
 *                           all of whose critical sections are written for it (producer_batch.h says why theirs is).
 *
 * Whoever stole or passed is told so (LOCK_TAKEN_OVER) and repairs before it does anything else. If it dies before it
 * is finished, the next one is told the same, because it steals in turn; if it is stopped, it can be passed in turn.
 *
 * Why passing ends: with a patience longer than the critical section nobody is passed who runs. Where sections take
 * longer than anybody foresaw, processes could pass each other for ever; so the caller doubles its patience each time
 * it was itself passed, until one of them waits long enough for another to finish (docs/decisions/0007).
 *
 * Why not a robust pthread mutex: its death notice breaks across pid namespaces. Why not a semaphore: killed between
 * its decrement and its wake it sleeps for ever. Measured in both cases; see docs/decisions/0003.
 *
 * L1 acquire CAS (acquire) pairs with L2 release CAS (release): what the last holder stored is visible to the next.
 */
#ifndef SHM_LOCK_H
#define SHM_LOCK_H

#include "shm/arena.h"

enum { LOCK_SPIN_COUNT = 50 };
#define LOCK_SLICE_NS (UINT64_C(15) * NS_PER_MS)

enum lock_outcome { LOCK_ACQUIRED, LOCK_TAKEN_OVER };

/* `held` receives the word that now names us; release and is_held compare with it. */
static inline bool lock_try_acquire(atomic_u64 *lock, uint32_t owner, uint64_t *held)
{
    uint64_t word = load_relaxed_u64(lock);
    if (UNLIKELY((uint32_t)word != 0)) {
        return false;
    }
    *held = lock_word(lock_word_acquisition(word) + 1, owner);
    return cas_u64(lock, &word, *held); /* L1 */
}

/* Blocks until the lock is ours; the arena's blocking hooks stand around each sleep, never around the acquisition.
 * Somebody waits at most two slices behind an owner that is dead. Both require arena->owner != 0; a lock is always
 * acquired by the same of the two. */
enum lock_outcome lock_acquire(struct arena *arena, atomic_u64 *lock, uint64_t *held);
enum lock_outcome lock_acquire_or_pass(struct arena *arena, atomic_u64 *lock, uint64_t patience_ns, uint64_t *held);

/* Out of line: there are sleepers to wake, or we were passed. */
bool lock_release_slow(atomic_u64 *lock, uint64_t held);

static inline bool lock_is_held(const atomic_u64 *lock, uint64_t held)
{
    return (load_acquire_u64(lock) & ~LOCK_WAITERS) == held;
}

/* False when we were passed meanwhile: then there was nothing left to release. */
static inline bool lock_release(atomic_u64 *lock, uint64_t held)
{
    uint64_t word = held;
    if (LIKELY(cas_u64(lock, &word, lock_word(lock_word_acquisition(held), 0)))) { /* L2 */
        return true;
    }
    return lock_release_slow(lock, held);
}

#endif
