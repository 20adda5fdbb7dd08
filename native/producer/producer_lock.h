/* SPDX-License-Identifier: Apache-2.0
 *
 * The producer lock of a partition. No process sleeps on it, or checks whether its holder lives. A waiter whose
 * patience is over passes the holder, which may be dead, stopped or preempted. So the lock may protect only sections
 * that are safe if their holder is passed (producer_batch.h explains this for its own).
 *
 *   word:      acquisition number 32 | 0 | owner 31     the last process that took it
 *   released:  the same, or an older one                the last process that released it
 *
 *   free      released == word
 *   acquire   free, and CAS word (a, X) -> (a + 1, me), and `released` is still (a, X). If it is not, the lock appears
 *             held by this process, which passes itself like any other holder.
 *   pass      not free, and the word was unchanged for a whole patience: CAS word (a, X) -> (a + 1, me); to (a + 2, me)
 *             if `released` is (a + 1, me).
 *   release   if the word is unchanged: released = word, a plain store. Otherwise it was passed.
 *
 * A process that passed another one gets LOCK_TAKEN_OVER, and repairs before it does anything else. If it dies before
 * the repair is complete, the next process repairs. If it is stopped, it can itself be passed.
 *
 * WHY A STORE MAY RELEASE IT. A process that is passed between its read of the word and its store replaces a newer word
 * by an older one. Then the lock appears held while no process has it: a waiter waits for its patience, and repairs
 * without need. The lock never appears free while a process has it, even if that store is very late, and although the
 * numbers wrap around every few minutes:
 *   N1  Only X stores a word that names X, in both cells: one thread at a time uses a handle, and a name is reused only
 *       after a death.
 *   N2  X acquires with a word that differs from `released`. After that, only X stores this word in `released`, when it
 *       releases. So while X has the lock, `released` differs from the word.
 *   N3  A process may find the lock free, and be stopped until the numbers reach the same word again. Its CAS then
 *       succeeds although another process has the lock. By N2, `released` differs: it passes itself, and repairs.
 *
 * WHY PASSING ENDS. If the patience is longer than the critical section, no running process is passed. If sections take
 * longer than expected, processes could pass each other forever. So a process doubles its patience each time it was
 * passed, until one waits long enough for another to finish (docs/decisions/0007).
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

/* `held` receives the word that names this process, for producer_lock_release and producer_lock_is_held. */
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

/* Returns false if this process was passed meanwhile. */
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
