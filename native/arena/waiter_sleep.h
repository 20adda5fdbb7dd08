/* SPDX-License-Identifier: Apache-2.0
 *
 * The sleep of a process that waits for a buffer, on the semaphore of its waiter (waiter_semaphores.h), in slices.
 *
 * After each slice the process checks its word. After a slice of WAITER_SLICE_NS it also helps the pool
 * (buffer_pool_wait_on). A parked waiter sleeps until its turn (parked_waiters.h) without returning to Python.
 *
 * A slice is measured by CLOCK_MONOTONIC. With the wall clock, a slice would last an hour longer if the clock were set
 * back by an hour and no process posted. A C library without sem_clockwait (glibc before 2.30) uses the wall clock.
 */
#ifndef ARENA_WAITER_SLEEP_H
#define ARENA_WAITER_SLEEP_H

#include "arena/buffer_pool.h"

/* The longest sleep of a waiting process. Then it checks its word, and repairs the pool after deaths. */
#define WAITER_SLICE_NS INT64_C(20000000)
/* The interval at which a sleeping process checks whether the arena still takes records. */
#define CHECK_SLICE_NS INT64_C(8000000)
_Static_assert(GRANT_NS_MAX == 2 * WAITER_SLICE_NS, "a living waiter takes its grant within two slices");
_Static_assert(WAITER_SLICE_NS < 50 * NS_PER_MS, "a dead process delays the others by at most 50 ms");

/* Sleeps until the grant, a signal, waiter_interrupt or the timeout. A parked waiter also wakes if any parked waiter
 * fits. Returns the result of buffer_pool_poll. */
enum status waiter_sleep(struct arena *arena, struct buffer_wait *wait, uint64_t timeout_ns) MUST_USE;

/* Ends the current and each later sleep of a wait of this process. Any of its threads may call it. Requires that the
 * wait has joined the queue, because joining clears the flag. */
void waiter_interrupt(struct arena *arena, struct buffer_wait *wait);

#endif
