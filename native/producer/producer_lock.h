/* SPDX-License-Identifier: Apache-2.0
 *
 * The producer lock of a partition. No process sleeps for it or asks whether its holder lives. A holder that is dead,
 * stopped or merely off its core is passed when the patience of a waiter is over. Only for sections that are written
 * for it (producer_batch.h says why theirs are).
 *
 *   word:      acquisition number 32 | 0 | owner 31     who took it last
 *   released:  the same, or of an older acquisition     who left it last
 *
 *   free      released == word
 *   acquire   free, and CAS word (a, X) -> (a + 1, me), and `released` says (a, X) still. If it does not, the lock
 *             looks held, by us: we pass ourselves, as anybody else.
 *   pass      not free, and the word was one and the same for a whole patience: CAS word (a, X) -> (a + 1, me); to
 *             (a + 2, me) where `released` says (a + 1, me).
 *   release   if the word is ours still: released = it, a plain store. Otherwise we were passed: nothing to do.
 *
 * A process that passed is told so (LOCK_TAKEN_OVER) and repairs before it does anything else. If it dies before it is
 * finished, the next one is told the same; if it is stopped, it can be passed in turn.
 *
 * WHY A STORE MAY RELEASE IT. A process that is passed between its look at the word and its store puts an older word
 * over a newer one. Then the lock looks held while nobody has it: somebody's patience goes by and it repairs for
 * nothing. The lock never looks free while somebody has it, however late that store is, and though the numbers start
 * over every few minutes:
 *   N1  A word that names X is stored by X alone, in both cells: a handle is used by one thread at a time, and a name
 *       passes on only when its process is dead.
 *   N2  X takes no word that `released` says. From then on only X could store it there, and X does when it leaves.
 *       So while X is inside, `released` says something else.
 *   N3  Whoever found the lock free, and was away until the numbers came round to the same word, takes it from a
 *       holder who is inside. By N2 it finds something else in `released` afterwards: it passes itself, and repairs.
 *
 * Why passing ends: with a patience longer than the critical section nobody is passed who runs. Where sections take
 * longer than anybody foresaw, processes could pass each other for ever; so the caller doubles its patience each time
 * it was itself passed, until one of them waits long enough for another to finish (docs/decisions/0007).
 *
 * L3 release (release) pairs with L4 acquire, load of `released` (acquire): the stores of the last holder are visible
 * to the next. A process that passes knows no more than the passed one knew when it acquired.
 */
#ifndef PRODUCER_PRODUCER_LOCK_H
#define PRODUCER_PRODUCER_LOCK_H

#include "arena/lock.h"
#include "base/point.h"

static inline bool producer_lock_is_free(const struct producer_lock *lock, uint64_t word)
{
    return load_acquire_u64(&lock->released) == word; /* L4 */
}

/* `held` receives the word that now names us; release and is_held compare with it. */
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

/* False when we were passed meanwhile: then there was nothing left to release. */
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
