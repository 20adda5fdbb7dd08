/* SPDX-License-Identifier: Apache-2.0
 *
 * The semaphores of waiters: one for each waiter entry, on which a process sleeps that waits for a buffer.
 *
 * A semaphore is a hint, the waiter word is the truth (buffer_pool.h). So a semaphore that is missing, was posted too
 * often, or whose poster was killed costs its waiter at most the slice that it sleeps. A post that came too late for
 * one wait ends a sleep of the next one, which looks at its word and sleeps on.
 *
 * A slice is measured by CLOCK_MONOTONIC. A slice by the wall clock lasts an hour longer when the clock is set back by
 * an hour and the post was lost with its poster. A C library without sem_clockwait (glibc before 2.30) has no other.
 *
 * Waiters make them, in Python, with the mode and the group of the arena (shmaccum/arena/semaphores.py). Here they are
 * opened when they are needed, by the name that arena.py knows, too, and stay open as long as the arena's handle.
 */
#ifndef ARENA_WAITER_SEMAPHORES_H
#define ARENA_WAITER_SEMAPHORES_H

#include "arena/buffer_pool.h"

/* The longest sleep of a process that goes on waiting: behind it the process looks, and repairs what the dead left. */
#define WAITER_SLICE_NS INT64_C(20000000)
/* Within its sleep it looks so often whether the arena still takes records. */
#define LOOK_SLICE_NS INT64_C(8000000)
/* The same of a parked process: it holds nothing that others wait for, and looks without waking its interpreter. */
#define PARKED_SLICE_NS INT64_C(50000000)
#define PARKED_SLEEP_NS (10 * PARKED_SLICE_NS) /* the longest sleep of a parked process, of so many slices */
_Static_assert(GRANT_NS_MAX == 2 * WAITER_SLICE_NS, "a living waiter takes its grant within two slices");
_Static_assert(WAITER_SLICE_NS < 50 * NS_PER_MS, "a dead process delays the others by at most 50 ms");

/* Opens the semaphore of this waiter, unless it is open. False when there is none, when it cannot be opened, or when a
 * user outside of the arena made it. */
bool waiter_semaphore_open(struct arena *arena, uint32_t waiter_index);

/* True when this handle has opened it. */
bool waiter_semaphore_is_open(const struct arena *arena, uint32_t waiter_index);

/* Sleeps until the grant, a signal, an interrupt, the moment when a parked waiter fits, or the end of the time. Returns
 * what buffer_pool_poll returns. */
enum status waiter_sleep(struct arena *arena, const struct buffer_wait *wait, uint64_t timeout_ns) MUST_USE;

/* Ends the sleep of a wait of this process, from any of its threads, and each later sleep of this wait. */
void waiter_interrupt(struct arena *arena, struct buffer_wait *wait);

/* Posts the semaphores of the waiters in the set, which is not empty. No process sleeps on one that is missing. */
void waiters_post(struct arena *arena, struct wake_set *wakes);

/* Wakes the waiters that were served, and empties the set. Requires that no lock of the arena is held. */
static inline void waiters_wake(struct arena *arena, struct wake_set *wakes)
{
    if (UNLIKELY(wakes->count != 0)) {
        waiters_post(arena, wakes);
    }
}

/* With the handle: nobody sleeps any more. */
void waiter_semaphores_close(struct arena *arena);

#endif
