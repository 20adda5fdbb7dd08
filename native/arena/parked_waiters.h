/* SPDX-License-Identifier: Apache-2.0
 *
 * Parked waiters (buffer_pool.h) check for each other in turns, so each of them may sleep for long.
 *
 *   post   The sender posts as many as now fit when it has freed slots, and at each maintenance. A post is a hint: the
 *          sender may be dead or stopped, it may have died between FREE and the post, and a repair frees slots, too.
 *   turn   A parked waiter has a turn again and again. At its turn it checks its own limits, and posts the others that
 *          fit.
 *
 * TURNS. `count` waiters are parked. The turns of one waiter are a period apart: count / 8 * 50 ms, at least 50 ms and
 *   at most 1 s. Its place in the period is the rank of its entry among the parked ones, multiplied by the golden ratio
 *   (modulo 1), so the turns of adjacent ranks are spread evenly. Each waiter computes its next turn from the waiter
 *   words and the arena's clock. No shared word is written, and no process is elected.
 *
 *   rank   0        2        4     1        3      0        5 are parked: each of them checks every 50 ms,
 *          ┴────────┴────────┴─────┴────────┴──────┴──> time     and one of them at least every 12 ms
 *
 * DEATHS. The turns of a dead or stopped waiter do not come until a repair makes its word IDLE. Up to 8 parked waiters
 *   check every 50 ms each. If there are more, a turn comes at least every 50 ms even without any four of them, or
 *   without three quarters of adjacent ranks. If more die or leave at once, each of the others checks at its next turn.
 * LOST WAKE-UPS. A post is repeated at the next turn of another waiter, unless the semaphore still has a post. Its
 *   waiter is then stopped, dead, or about to wake and check.
 * A change of `count` moves all turns. The turns that were computed before still come, each within its period.
 * Killed anywhere here: the waiter words are only read, and the next turn makes the missing posts.
 * tests/model/pool_model.py explores the checks, tests/native/arena/parked_waiters_test.c tests the turns.
 */
#ifndef ARENA_PARKED_WAITERS_H
#define ARENA_PARKED_WAITERS_H

#include "arena/buffer_pool.h"

/* One of the parked waiters checks at least this often. */
#define PARKED_SLICE_NS INT64_C(50000000)
#define PARKED_PERIOD_NS_MAX (20 * PARKED_SLICE_NS)
/* The longest sleep of a parked waiter without its interpreter, which then checks the name of the arena. */
#define PARKED_SLEEP_NS (100 * PARKED_SLICE_NS)
_Static_assert(PARKED_SLICE_NS <= 50 * NS_PER_MS, "a dead process delays the others by at most 50 ms");

/* The number of turns within a slice. */
enum { PARKED_TURNS = 8 };

/* The sender posts a parked waiter when this part of the slots is free beyond what it needs. */
enum { FREE_MARGIN_SHARE = 64 };

/* Returns the first turn after `now_ns` of the waiter of this rank among `count` parked ones. */
uint64_t parked_turn_after(uint32_t rank, uint32_t count, uint64_t now_ns);

/* Returns how long this waiter may sleep: until its next turn. */
uint64_t parked_waiter_sleep_ns(const struct arena *arena, struct buffer_wait *wait);

/* Returns true while the waiter may sleep on: it is parked and does not fit, and if its turn has come, no other one
 * fits. Needs no lock of the interpreter, because it opens no semaphore. */
bool parked_waiter_may_sleep(const struct arena *arena, struct buffer_wait *wait);

/* Posts the others that fit besides this waiter, if it is parked and its turn has come. */
void parked_waiter_take_turn(struct arena *arena, struct buffer_wait *wait, struct wake_set *wakes);

/* Sender only: posts as many as now fit, from the entry *posted_end on. Sets it to the entry after the last one. */
void parked_waiters_post(struct arena *arena, uint32_t *posted_end, struct wake_set *wakes);

/* Posts all parked waiters, because the arena takes no more records. */
void parked_waiters_post_all(struct arena *arena);

#endif
