/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of an Accumulator: what every one of them begins and ends with, so that close() knows whether it may.
 */
#ifndef PYTHON_COMMON_ACCUMULATOR_CALL_H
#define PYTHON_COMMON_ACCUMULATOR_CALL_H

#include "python/common/types.h"

/* False, with an exception set, when it is closed. */
bool accumulator_object_is_open(const struct accumulator_object *self);

/* Around every call that may let go of the GIL. False, with an exception set, when the accumulator is closed or this
 * process, after fork, cannot attach. */
bool accumulator_call_begin_slow(struct accumulator_object *self);

static inline bool accumulator_call_begin(struct accumulator_object *self)
{
    if (UNLIKELY(self->core == NULL || self->call_owner != self->arena->core->owner) &&
        !accumulator_call_begin_slow(self)) {
        return false;
    }
    self->call_count++;
    return true;
}

static inline void accumulator_call_end(struct accumulator_object *self)
{
    self->call_count--;
}

/* Hands the waiters that the last calls served to `wake`. False with an exception set. */
bool accumulator_object_wake(struct accumulator_object *self);

#endif
