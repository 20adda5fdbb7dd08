/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_PRODUCER_FUTURE_TYPE_H
#define PYTHON_PRODUCER_FUTURE_TYPE_H

#include "producer/producer_batch.h"
#include "python/common/token_type.h"

/* A token and the tracker of its result. The garbage collector does not track it, because it refers only to its
 * tracker, and to a tuple of numbers after its result is known. */
struct future_object {
    struct token_object token;
    PyObject *tracker;
    PyObject *completion; /* the tuple of Arena.find(), or NULL until it is looked up */
    int32_t key_size;     /* bytes. -1 if null */
    int32_t value_size;
    int32_t headers_size; /* bytes of all header keys and values. -1 without headers */
};

/* ---- memory ----
 *
 * Most futures are freed before the next one is made. Therefore, the memory of one future is retained for the next one.
 * It has the pointer to its type, but no counted reference. A debug build of Python lists all objects, and would not
 * find that future. Without a GIL, threads would share the memory. So both builds allocate each future. */

#if defined(Py_GIL_DISABLED) || defined(Py_REF_DEBUG) || defined(Py_TRACE_REFS)
enum { SPARES_FUTURE = false };
#else
enum { SPARES_FUTURE = true };
#endif

/* Returns the retained memory as a future with one reference, or NULL. */
static inline struct future_object *spare_future_take(struct module_state *state)
{
    struct future_object *future = state->spare_future;
    if (LIKELY(future != NULL)) {
        state->spare_future = NULL;
        Py_INCREF(state->future_type);
        Py_SET_REFCNT((PyObject *)future, 1);
    }
    return future;
}

static inline void spare_future_store(struct module_state *state, PyObject *future)
{
    if (SPARES_FUTURE && LIKELY(state->spare_future == NULL)) {
        state->spare_future = future;
    } else {
        PyObject_Free(future);
    }
}

/* Does not set the numbers. The future is made before the append, and its numbers are set after it, so that no record
 * is committed without its future. */
static inline struct future_object *future_object_new(struct module_state *state, PyObject *tracker)
{
    struct future_object *self = spare_future_take(state);
    if (UNLIKELY(self == NULL)) {
        self = PyObject_New(struct future_object, state->future_type);
    }
    if (LIKELY(self != NULL)) {
        self->tracker = Py_NewRef(tracker);
        self->completion = NULL;
    }
    return self;
}

static inline void future_object_fill(struct future_object *self, uint32_t partition_index,
                                      const struct batch_place *place)
{
    self->token = (struct token_object){.ob_base = self->token.ob_base,
                                        .seq = place->seq,
                                        .timestamp_ms = place->timestamp_ms,
                                        .partition_index = partition_index,
                                        .slot_index = place->slot_index,
                                        .record_index = place->record_index};
}

#endif
