/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock in shared memory that names its owner and survives the death of its owner.
 *
 *   word:  acquisition number 32 | waiters 1 | owner 31        futex: the low half
 *
 *   acquire   CAS (a, none) -> (a + 1, me). Spins a little, then sets `waiters` and sleeps on the futex in slices of
 *             LOCK_SLICE_NS.
 *   steal     a slice has passed and the owner is proven dead (process.h): CAS (a, dead) -> (a + 1, me).
 *   refuse    a living owner, stopped or very slow, has had the same acquisition for LOCK_PATIENCE_NS. The caller
 *             continues without the lock: no call waits for a stopped process longer than that.
 *   release   CAS (a, me) -> (a, none), wake one sleeper.
 *
 * A process that stole the lock gets LOCK_TAKEN_OVER, and repairs before it does anything else. If it dies before the
 * repair is complete, the next process steals the lock and repairs.
 *
 * A robust pthread mutex does not detect a death across pid namespaces. With a semaphore, a process that is killed
 * between the decrement and the wake leaves the others asleep forever. Both were measured; see docs/decisions/0003.
 *
 * L1 acquire CAS (acquire) pairs with L2 release CAS (release): the stores of the last holder are visible to the next.
 */
#ifndef ARENA_LOCK_H
#define ARENA_LOCK_H

#include "arena/arena.h"

#define LOCK_SLICE_NS (UINT64_C(15) * NS_PER_MS)
#define LOCK_PATIENCE_NS (UINT64_C(100) * NS_PER_MS)

enum lock_outcome { LOCK_ACQUIRED, LOCK_TAKEN_OVER, LOCK_REFUSED };

/* Waits for the lock. The arena's blocking hooks enclose each sleep, never the acquisition. A dead owner is detected
 * within two slices of LOCK_SLICE_NS. `held` receives the word that now names this process. After LOCK_REFUSED, it is
 * the word of the acquisition that lasts, with the waiters bit. Requires arena->owner != 0. */
enum lock_outcome lock_acquire(struct arena *arena, atomic_u64 *lock, uint64_t *held) MUST_USE;

/* Returns true if the lock still has this acquisition (`held` of a refusal), and its owner lives. */
bool lock_is_kept(const struct arena *arena, const atomic_u64 *lock, uint64_t refused);

void lock_release(atomic_u64 *lock, uint64_t held);

/* An acquisition by another process that a waiter observes. */
struct lock_watch {
    uint64_t word;
    uint64_t since_ns;
};

/* Returns true if the same acquisition was observed for this long. A change of the waiters bit alone does not count. */
bool lock_watch_is_over(struct lock_watch *watch, uint64_t word, uint64_t patience_ns);

#endif
