/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_PRODUCER_RESULT_WAITERS_TYPE_H
#define PYTHON_PRODUCER_RESULT_WAITERS_TYPE_H

#include "producer/result_waiters.h"
#include "python/common/arena_object.h"
#include "python/producer/future_type.h"

struct waiters_object {
    PyObject ob_base;
    struct module_state *state;
    struct result_waiters core;
};

/* A record that a callback's message repeats. It is no tuple, because the garbage collector would track each. */
struct record_parts {
    PyObject *topic; /* NULL if the waiter has no record */
    PyObject *value;
    PyObject *key;
    PyObject *headers;
};

struct waiter {
    struct result_waiter base; /* first */
    PyObject *future;          /* NULL before it is added */
    PyObject *observer;
    struct record_parts record;
};

/* Returns a waiter without a future, or NULL with an exception set. `record` may be NULL. */
struct waiter *waiter_new(PyObject *observer, const struct record_parts *record);

/* For a waiter that is in no list. */
void waiter_free(struct waiter *waiter);

/* Adds a waiter for a future. The next collect ends it if its result is known. Sets no exception. Frees the waiter if
 * the arena is closed. */
void waiters_put(struct waiters_object *self, struct arena_object *arena, struct waiter *waiter, PyObject *future);

/* Ends the waiters of the results since the last call, unless the arena is closed. Returns true if one has ended and is
 * not taken. */
bool waiters_collect(struct waiters_object *self, struct arena_object *arena);

/* Removes and returns the first ended waiter, or NULL. */
struct waiter *waiters_take(struct waiters_object *self);

/* Stores the result in the future. Without memory for it, the future queries its result. */
void waiter_complete(const struct waiter *waiter);

#endif
