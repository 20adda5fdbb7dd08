/* SPDX-License-Identifier: Apache-2.0
 *
 * Appender: the producers of a process append with it. Its calls are counted, so that close() raises an error while one
 * runs.
 */
#ifndef PYTHON_PRODUCER_APPENDER_TYPE_H
#define PYTHON_PRODUCER_APPENDER_TYPE_H

#include "producer/appender.h"
#include "python/common/arena_object.h"

struct appender_object {
    PyObject ob_base;
    struct module_state *state;
    struct arena_object *arena;
    struct appender *core; /* NULL once closed */
    PyObject *wait; /* wait(need, max_block_ms, deadline_ns, place or None) -> BufferWait whose slots were taken */
    PyObject *wake; /* wake(), or None */
    bool sleeps; /* the first slice of a wait is in C; otherwise, all of it is in `wait` */
    int64_t max_block_ms;
    uint32_t call_count;
    uint32_t call_owner; /* the process whose calls are counted: a forked child counts from 0 */
};

static inline PyObject *arena_of_appender(PyObject *self)
{
    return (PyObject *)((struct appender_object *)self)->arena;
}

/* Returns false with an exception set if it is closed. */
bool appender_object_is_open(const struct appender_object *self);

/* Called before and after each call that may release the GIL. Returns false with an exception set if the appender is
 * closed, or a forked child cannot attach. */
bool appender_call_begin_slow(struct appender_object *self);

static inline bool appender_call_begin(struct appender_object *self)
{
    if (UNLIKELY(self->core == NULL || self->call_owner != self->arena->core->owner) &&
        !appender_call_begin_slow(self)) {
        return false;
    }
    self->call_count++;
    return true;
}

static inline void appender_call_end(struct appender_object *self)
{
    self->call_count--;
}

#define appender_open_begin appender_object_is_open
#define appender_open_end any_end
#define METHODS_PART METHODS_DECLARED
#include "python/producer/appender_method_list.h"

#endif
