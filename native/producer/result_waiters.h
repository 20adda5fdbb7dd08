/* SPDX-License-Identifier: Apache-2.0
 *
 * The waiters of one process for results: records, each with an object of the caller that is due when the record's
 * result is known.
 *
 *   add ──> table: buckets by (partition, seq) ──> ended: in the order of a partition's records ──> take
 *           waiters without a result               waiters with a result
 *
 *   add      queries the result first. A record that has it does not wait.
 *   wait     reads the results that came since the last call, and sleeps while none of them is of a waiter
 *   collect  moves the waiters of these results to the other list
 *   take     removes the first waiter of that list
 *
 * A result that is recorded after the query in `add` has a number of at least `tail`: the tail of the ring was read
 * before the query when the table was empty, and has only been raised to the ends of what was read since. So no result
 * of a waiter is missed. Results that were overwritten before they were read are reported to the caller, who queries
 * each record.
 *
 * THREADS. Each function holds `mutex`, except `close` and `visit`: no other thread changes the object then. In
 * Python, all threads but the one in `wait` hold the GIL, or run without a GIL, where fork stops them outside. `wait`
 * only reads the lists. So a thread that forks while another one is in `wait` copies whole lists. The child only closes
 * the object: `mutex` may be locked for ever in its copy, and `close` makes a new one.
 */
#ifndef PRODUCER_RESULT_WAITERS_H
#define PRODUCER_RESULT_WAITERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "arena/completion.h"

/* Part of an object of the caller, who fills the token in. */
struct result_waiter {
    struct result_waiter *next;
    struct record_token token;
    struct completion completion; /* once ended by a result */
    bool has_completion;
    uint64_t number; /* of add */
};

struct result_waiter_list {
    struct result_waiter *first;
    struct result_waiter *last;
};

struct result_waiters {
    struct result_waiter_list *buckets; /* a waiter is behind all waiters of its bucket that were added before */
    size_t bucket_count;                /* a power of 2, or 0 */
    size_t waiting_count;               /* waiters in the table */
    size_t ended_count;
    struct result_waiter_list ended;
    uint64_t tail;                      /* no result before this number is of a waiter in the table */
    uint64_t added_count;
    bool is_woken;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
};

/* Returns STATUS_OS if the system has no memory. */
enum status result_waiters_init(struct result_waiters *waiters) MUST_USE;

/* Frees the memory of the table. All waiters are ended, and the caller takes them. */
void result_waiters_close(struct result_waiters *waiters);

/* Adds a waiter, and wakes a thread that waits for the first one. Returns STATUS_PENDING, or STATUS_OS if there is no
 * memory, or, if the record has no result to wait for, the status of completion_find. */
enum status result_waiters_add(struct result_waiters *waiters, const struct arena *arena,
                               struct result_waiter *waiter) MUST_USE;

/* Sleeps at most idle_ns until there is a waiter, and then at most timeout_ns until there is something to collect.
 * Returns false after a timeout, and if the thread is woken. Requires arena->owner != 0. */
bool result_waiters_wait(struct result_waiters *waiters, struct arena *arena, uint64_t idle_ns, uint64_t timeout_ns);

/* Ends the next wait, or the current one, which may continue for COMPLETION_SLICE_NS if there is a waiter. */
void result_waiters_wake(struct result_waiters *waiters);

/* Ends the waiters of the results that came since the last call. Returns false if some of these results were
 * overwritten, or the memory of the arena is lost: the caller queries the results of all waiters. */
bool result_waiters_collect(struct result_waiters *waiters, const struct arena *arena) MUST_USE;

/* Ends all waiters for which `is_known` returns true. */
void result_waiters_end_if(struct result_waiters *waiters, bool (*is_known)(const struct result_waiter *));

/* Returns true: for result_waiters_end_if. */
bool result_waiter_is_any(const struct result_waiter *waiter);

/* Removes and returns the first ended waiter, or NULL. */
struct result_waiter *result_waiters_take(struct result_waiters *waiters);

/* Removes and returns the first waiter for which `is_it` returns true among those with this token, ended or not. */
struct result_waiter *result_waiters_remove(struct result_waiters *waiters, const struct record_token *token,
                                            bool (*is_it)(const struct result_waiter *, const void *), const void *it);

/* Calls `visit` for each waiter until it returns a value that is not 0, and returns that value. */
int result_waiters_visit(const struct result_waiters *waiters, int (*visit)(struct result_waiter *, void *), void *arg);

#endif
