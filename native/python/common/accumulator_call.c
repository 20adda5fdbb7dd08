/* SPDX-License-Identifier: Apache-2.0 */
#include "python/common/accumulator_call.h"

#include "python/common/errors.h"

bool accumulator_object_is_open(const struct accumulator_object *self)
{
    if (self->core == NULL) {
        raise_format(self->state, STATUS_CLOSED, "the accumulator is closed: open another one");
        return false;
    }
    return true;
}

bool accumulator_call_begin_slow(struct accumulator_object *self)
{
    if (!accumulator_object_is_open(self) || !arena_object_attach(self->arena)) {
        return false;
    }
    if (self->call_owner != self->arena->core->owner) {
        self->call_owner = self->arena->core->owner;
        self->call_count = 0;
    }
    return true;
}

bool accumulator_object_wake(struct accumulator_object *self)
{
    if (LIKELY(self->core->wakes.count == 0) || self->wake == NULL) {
        return true;
    }
    PyObject *indices = wake_set_to_tuple(&self->core->wakes);
    PyObject *answer = indices == NULL ? NULL : PyObject_CallOneArg(self->wake, indices);
    Py_XDECREF(indices);
    Py_XDECREF(answer);
    return answer != NULL;
}
