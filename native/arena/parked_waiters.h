/* SPDX-License-Identifier: Apache-2.0
 *
 * Parked waiters (buffer_pool.h) take turns in checking the limits of all of them. So each may sleep for a long time. A
 * waiter *fits* if the limits of its topic and partition allow its slots and enough slots are free.
 *
 *   post   The sender posts as many waiters as fit after it has freed slots, and at each maintenance. A post may be
 *          missing: the sender may be dead or stopped, or another process may have freed the slots in a repair.
 *   turn   A parked waiter has turns at regular intervals. At its turn, it posts the others that fit.
 *
 * TURNS. `count` waiters are parked. A waiter has one turn per period, which is count / 8 * 50 ms, at least 50 ms and
 *   at most 1 s. The phase of its turn is the rank of its entry among the parked ones, multiplied by the golden ratio
 *   (modulo 1), so adjacent ranks have turns far apart. Each waiter computes its next turn from the waiter words and
 *   the arena's clock. No shared word is written, and no process is elected.
 *
 *   rank   0        2        4     1        3      0        5 are parked: each of them checks every 50 ms,
 *          ┴────────┴────────┴─────┴────────┴──────┴──> time     and one of them at least every 12 ms
 *
 * DEATHS. A dead or stopped waiter misses its turns until a repair makes its word IDLE. Up to 8 parked waiters check
 *   every 50 ms each. With more waiters, the longest time between two turns is 50 ms, even if any four of them, or
 *   three quarters of adjacent ranks, are dead. If more die at once, the others still check at their own next turns.
 * LOST WAKE-UPS. The next turn of another waiter repeats a post, unless the semaphore still has one: then its waiter is
 *   stopped, dead, or about to wake and check.
 * A change of `count` moves all turns. Each waiter takes the turn that it has computed, and then computes the next one.
 * If a process is killed during its turn, nothing has to be repaired: it only reads waiter words and posts semaphores.
 * The next turn makes the missing posts.
 * tests/model/pool_model.py explores the checks, tests/native/arena/parked_waiters_test.c tests the turns.
 */
#ifndef ARENA_PARKED_WAITERS_H
#define ARENA_PARKED_WAITERS_H

#include "arena/buffer_pool.h"

/* The longest time between two successive turns. */
#define PARKED_SLICE_NS INT64_C(50000000)
#define PARKED_PERIOD_NS_MAX (20 * PARKED_SLICE_NS)
/* The longest sleep of a parked waiter in C. Then Python checks whether the arena still has its name. */
#define PARKED_SLEEP_NS (100 * PARKED_SLICE_NS)
_Static_assert(PARKED_SLICE_NS <= 50 * NS_PER_MS, "a dead process delays the others by at most 50 ms");

/* The number of turns within a slice. */
enum { PARKED_TURNS = 8 };

/* The sender posts a parked waiter if, after it gets its slots, 1/64 of all slots are still free. */
enum { FREE_MARGIN_SHARE = 64 };

/* Returns the first turn after `now_ns` of the waiter with this rank among `count` parked ones. */
uint64_t parked_turn_after(uint32_t rank, uint32_t count, uint64_t now_ns);

/* Returns how long this waiter may sleep: until its next turn. */
uint64_t parked_waiter_sleep_ns(const struct arena *arena, struct buffer_wait *wait);

/* Returns true while the waiter may continue to sleep: it is parked and does not fit, and if its turn has come, no
 * other waiter fits. May be called without the interpreter lock. */
bool parked_waiter_may_sleep(const struct arena *arena, struct buffer_wait *wait);

/* If this waiter is parked and its turn has come, posts the other waiters that fit together with it. */
void parked_waiter_take_turn(struct arena *arena, struct buffer_wait *wait, struct wake_set *wakes);

/* Sender only: posts as many waiters as fit, from *posted_end on, which becomes the entry after the last one. */
void parked_waiters_post(struct arena *arena, uint32_t *posted_end, struct wake_set *wakes);

/* Posts all parked waiters, because the arena takes no more records. */
void parked_waiters_post_all(struct arena *arena);

#endif
