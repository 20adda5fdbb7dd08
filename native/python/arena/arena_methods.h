/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of Arena. Their guards, from weak to strong: `arena_own` requires an open handle; `arena_open` also
 * requires that the memory is not lost before and after the call; `arena_locks` also that this process can query byte
 * locks; `arena_attached` also that it is attached, so that it may write.
 */
#ifndef PYTHON_ARENA_ARENA_METHODS_H
#define PYTHON_ARENA_ARENA_METHODS_H

#include "arena/transaction.h"
#include "arena/verify.h"
#include "python/common/arena_object.h"
#include "python/common/items.h"

/* The steps of a transaction whose times a producer reports (shmaccum/producer/producer.py). */
enum { TRANSACTION_STEP_COUNT = 5 };

static inline bool arena_own_begin(const struct arena_object *self)
{
    return !arena_object_is_closed(self);
}

static inline PyObject *arena_own_end(const struct arena_object *self, PyObject *result)
{
    (void)self;
    return result;
}

static inline bool arena_open_begin(const struct arena_object *self)
{
    return arena_object_is_open(self);
}

/* If the memory was lost during the call, its result is invalid. */
static inline PyObject *arena_open_end(const struct arena_object *self, PyObject *result)
{
    if (self->core != NULL && UNLIKELY(arena_is_lost(self->core))) {
        Py_CLEAR(result);
        (void)arena_object_raise_lost(self);
    }
    return result;
}

/* A forked child has no descriptor until it attaches. */
static inline bool arena_locks_begin(struct arena_object *self)
{
    return arena_object_is_open(self) && (self->core->is_read_only || arena_object_attach(self));
}

#define arena_locks_end arena_open_end

static inline bool arena_attached_begin(struct arena_object *self)
{
    return arena_object_attach(self);
}

#define arena_attached_end arena_open_end

#define METHODS_PART METHODS_DECLARED
#include "python/arena/arena_method_list.h"

#endif
