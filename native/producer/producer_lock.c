/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/producer_lock.h"

#include "arena/counters.h"

/* Each check takes the lock's cache line from its holder. Continuous checks slow the holder down, and rarely find the
 * lock free, because another process acquires it within nanoseconds. Measured from 1 to 128: docs/decisions/0002. */
enum { PAUSES_BETWEEN_CHECKS = 32 };

static void producer_lock_back_off(void)
{
    for (int i = 0; i < PAUSES_BETWEEN_CHECKS; i++) {
        spin_pause();
    }
}

static bool producer_lock_pass(struct producer_lock *lock, uint64_t word, uint32_t owner, uint64_t *held)
{
    CHECK(owner != 0);
    uint32_t next = lock_word_acquisition(word) + 1;
    if (producer_lock_is_free(lock, lock_word(next, owner))) {
        next++; /* N2 */
    }
    *held = lock_word(next, owner);
    return cas_u64(&lock->word, &word, *held); /* L5 */
}

enum lock_outcome producer_lock_acquire(struct arena *arena, struct producer_lock *lock, uint64_t patience_ns,
                                        uint64_t *held)
{
    CHECK(patience_ns > 0);
    CHECK(arena->owner != 0);
    struct lock_watch watch = {0};
    while (!producer_lock_try_acquire(lock, arena->owner, held)) {
        uint64_t word = load_acquire_u64(&lock->word); /* L6 */
        if (!producer_lock_is_free(lock, word) && lock_watch_is_over(&watch, word, patience_ns) &&
            producer_lock_pass(lock, word, arena->owner, held)) {
            counter_add(arena, COUNTER_LOCKS_PASSED, 1);
            return LOCK_TAKEN_OVER;
        }
        producer_lock_back_off();
    }
    return LOCK_ACQUIRED;
}
