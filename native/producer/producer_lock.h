/* SPDX-License-Identifier: Apache-2.0
 *
 * The producer lock of a partition. No process sleeps on it or checks whether its holder lives. A holder that is dead,
 * stopped or merely off its core is passed after the patience of a waiter. Only for sections that are written for it
 * (producer_batch.h explains why its sections are safe).
 *
 *   word:      acquisition number 32 | 0 | owner 31     the last process that took it
 *   released:  the same, or of an older acquisition     the last process that left it
 *
 *   free      released == word
 *   acquire   free, and CAS word (a, X) -> (a + 1, me), and `released` is still (a, X). If it is not, the lock appears
 *             held, by this process: it passes itself like any other holder.
 *   pass      not free, and the word was unchanged for a whole patience: CAS word (a, X) -> (a + 1, me); to (a + 2, me)
 *             if `released` is (a + 1, me).
 *   release   if the word is unchanged: released = it, a plain store. Otherwise this process was passed: nothing to do.
 *
 * A process that passed receives LOCK_TAKEN_OVER, and repairs before it does anything else. If it dies before it is
 * finished, the next process receives the same; if it is stopped, it can itself be passed.
 *
 * WHY A STORE MAY RELEASE IT. A process that is passed between its read of the word and its store replaces a newer word
 * by an older one. Then the lock appears held while no process has it: a waiter's patience passes, and it repairs for
 * nothing. The lock never appears free while a process has it, however late that store is, and although the numbers
 * start over every few minutes:
 *   N1  A word that names X is stored by X alone, in both cells: a handle is used by one thread at a time, and a name
 *       is reused only when its process is dead.
 *   N2  X takes no word that equals `released`. From then on only X could store it there, and X does when it leaves.
 *       So while X is inside, `released` has another value.
 *   N3  A process that found the lock free, and was away until the numbers reached the same word again, takes it from a
 *       holder that is inside. By N2 it then finds another value in `released`: it passes itself, and repairs.
 *
 * Why passing ends: if the patience is longer than the critical section, no running process is passed. If sections take
 * longer than expected, processes could pass each other forever. So the caller doubles its patience each time it was
 * itself passed, until one of them waits long enough for another to finish (docs/decisions/0007).
 *
 * L3 release (release) pairs with L4 acquire, load of `released` (acquire): the stores of the last holder are visible
 * to the next. A process that passes sees no more than the passed one saw when it acquired.
 */
#ifndef PRODUCER_PRODUCER_LOCK_H
#define PRODUCER_PRODUCER_LOCK_H

#include "arena/lock.h"
#include "base/point.h"

static inline bool producer_lock_is_free(const struct producer_lock *lock, uint64_t word)
{
    return load_acquire_u64(&lock->released) == word; /* L4 */
}

/* `held` receives the word that now names this process; release and is_held compare with it. */
static inline bool producer_lock_try_acquire(struct producer_lock *lock, uint32_t owner, uint64_t *held)
{
    CHECK(owner != 0);
    const uint64_t last = load_relaxed_u64(&lock->word);
    uint64_t word = last;
    if (UNLIKELY(!producer_lock_is_free(lock, last))) {
        return false;
    }
    POINT(producer_lock_found_free);
    *held = lock_word(lock_word_acquisition(last) + 1, owner);
    return cas_u64(&lock->word, &word, *held) && producer_lock_is_free(lock, last); /* N3 */
}

/* Requires arena->owner != 0. */
enum lock_outcome producer_lock_acquire(struct arena *arena, struct producer_lock *lock, uint64_t patience_ns,
                                        uint64_t *held);

static inline bool producer_lock_is_held(const struct producer_lock *lock, uint64_t held)
{
    return load_acquire_u64(&lock->word) == held; /* L6 */
}

/* Returns false if this process was passed meanwhile: then there was nothing left to release. */
static inline bool producer_lock_release(struct producer_lock *lock, uint64_t held)
{
    CHECK(lock_word_owner(held) != 0);
    if (UNLIKELY(!producer_lock_is_held(lock, held))) {
        return false;
    }
    POINT(producer_lock_still_held);
    store_release_u64(&lock->released, held); /* L3 */
    return true;
}

#endif
