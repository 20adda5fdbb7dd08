/* SPDX-License-Identifier: Apache-2.0
 *
 * The waiters of one process for results. A waiter belongs to a record, and is part of an object of the caller.
 *
 *   add ──> table: buckets by (partition, seq) ──> ended: in the order of a partition's records ──> take
 *           waiters without a result               waiters with a result
 *
 *   add      queries the result first. A waiter of a record that has it is not added, or the next collect ends it.
 *   wait     reads the results that were recorded since the last call, and sleeps if no waiter waits for one of them
 *   collect  moves the waiters of these results to the other list
 *   take     removes the first waiter of that list
 *
 * A result that is recorded after the query in `add` has a number of at least `tail`: when the table was empty, `tail`
 * was set before the query, and since then it has only advanced past results that were read. So no result of a waiter
 * is missed. If results were overwritten before they were read, collect queries each record.
 *
 * THREADS. Each function locks `mutex`, except `close` and `visit`, which require that no other thread changes the
 * object. A fork may happen while another thread is in `wait`, which only reads the lists: the child's lists are
 * consistent. A fork never happens during another function: its thread has the GIL, or without a GIL, fork waits for
 * it. The child only closes the object. Its copy of `mutex` may be locked forever, so `close` initializes it again.
 */
#ifndef PRODUCER_RESULT_WAITERS_H
#define PRODUCER_RESULT_WAITERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "arena/completion.h"

/* Part of an object of the caller, which sets the token. */
struct result_waiter {
    struct result_waiter *next;
    struct record_token token;
    struct completion completion; /* set if a result ended the wait */
    bool has_completion;          /* if it is false after the end, the result is overwritten or unreadable */
    bool may_be_late;             /* set by the caller: it is added even if there is nothing to wait for */
    uint64_t number;              /* the number of the call of result_waiters_add */
};

struct result_waiter_list {
    struct result_waiter *first;
    struct result_waiter *last;
    size_t count;
};

struct result_waiters {
    struct result_waiter_list *buckets; /* the waiters of a bucket are in the order of their addition */
    size_t bucket_count;                /* a power of 2, or 0 */
    size_t waiting_count;               /* waiters in the table */
    struct result_waiter_list ended;
    uint64_t tail;                      /* no waiter in the table waits for a result before this number */
    uint64_t added_count;
    bool has_late; /* the query of a waiter in the table found something */
    bool is_woken;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
};

/* Returns STATUS_OS if the system has no memory. */
enum status result_waiters_init(struct result_waiters *waiters) MUST_USE;

/* Frees the memory of the table. All waiters are ended, and the caller removes them. */
void result_waiters_close(struct result_waiters *waiters);

/* Adds a waiter, and wakes a thread that waits for the first one. Returns STATUS_PENDING if it was added, STATUS_OS if
 * there is no memory, or the status of completion_find if the record has a result or its result has expired. With one
 * of these statuses, a waiter that may be late was added, too, and the next collect ends it. */
enum status result_waiters_add(struct result_waiters *waiters, const struct arena *arena,
                               struct result_waiter *waiter) MUST_USE;

/* Sleeps at most idle_ns until there is a waiter, and then at most timeout_ns until a waiter has a result. Returns
 * false after a timeout, and if the thread is woken. Requires arena->owner != 0. */
bool result_waiters_wait(struct result_waiters *waiters, struct arena *arena, uint64_t idle_ns, uint64_t timeout_ns);

/* Ends the current or the next wait. The current one may take up to COMPLETION_SLICE_NS more. */
void result_waiters_wake(struct result_waiters *waiters);

/* Ends the waiters whose results were recorded since the last call. */
void result_waiters_collect(struct result_waiters *waiters, const struct arena *arena);

/* Ends the waiters that have a result, or none to wait for, after a query for each of them. */
void result_waiters_check(struct result_waiters *waiters, const struct arena *arena);

/* Ends all waiters for which `is_over` returns true, without a completion unless `is_over` sets one. */
typedef bool (*result_waiter_test)(struct result_waiter *waiter, const void *argument);
void result_waiters_end_if(struct result_waiters *waiters, result_waiter_test is_over, const void *argument);

/* Returns true. An argument for result_waiters_end_if. */
bool result_waiter_is_any(struct result_waiter *waiter, const void *argument);

/* Removes and returns the first ended waiter, or NULL. */
struct result_waiter *result_waiters_take(struct result_waiters *waiters);

/* Removes and returns the first waiter for which `is_it` returns true among those with this token, ended or not. */
struct result_waiter *result_waiters_remove(struct result_waiters *waiters, const struct record_token *token,
                                            bool (*is_it)(const struct result_waiter *, const void *), const void *it);

/* Calls `visit` for each waiter until it returns a value that is not 0, and returns that value. */
int result_waiters_visit(const struct result_waiters *waiters, int (*visit)(struct result_waiter *, void *), void *arg);

#endif
