/* SPDX-License-Identifier: Apache-2.0
 *
 * The semaphores of waiters: one for each waiter entry, on which a process sleeps while it waits for a buffer.
 *
 * A semaphore is a hint, and the waiter word decides (buffer_pool.h). A missing semaphore or a missing post delays its
 * waiter by at most one slice (waiter_sleep.h). A parked waiter sleeps for longer, and other processes post it again
 * (parked_waiters.h). A post that comes after its wait has ended wakes the next wait of the entry, which reads its word
 * and sleeps again.
 *
 * Waiters create them, in Python, with the mode and the group of the arena (shmaccum/arena/semaphores.py). C opens them
 * on demand, by the same name as in arena.py, and closes them with the arena's handle.
 */
#ifndef ARENA_WAITER_SEMAPHORES_H
#define ARENA_WAITER_SEMAPHORES_H

#include "arena/buffer_pool.h"

/* Opens the semaphore of this waiter, unless it is open. Returns false if there is none, it cannot be opened, or its
 * file is not trusted. */
bool waiter_semaphore_open(struct arena *arena, uint32_t waiter_index);

/* Returns true if this handle has opened it. */
bool waiter_semaphore_is_open(const struct arena *arena, uint32_t waiter_index);

/* Returns true if it was posted and its waiter has not woken since. */
bool waiter_semaphore_has_post(struct arena *arena, uint32_t waiter_index);

/* Posts the semaphore of this waiter, if there is one. */
void waiter_post(struct arena *arena, uint32_t waiter_index);

/* Posts the semaphores of the waiters in the set, which is not empty. A missing semaphore has no sleeper. */
void waiters_post(struct arena *arena, struct wake_set *wakes);

/* Wakes the waiters that were served, and empties the set. Requires that no lock of the arena is held. */
static inline void waiters_wake(struct arena *arena, struct wake_set *wakes)
{
    if (UNLIKELY(wakes->count != 0)) {
        waiters_post(arena, wakes);
    }
}

/* Closes the semaphores of the handle. Requires that no thread sleeps on one. */
void waiter_semaphores_close(struct arena *arena);

#endif
