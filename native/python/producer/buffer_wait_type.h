/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_PRODUCER_BUFFER_WAIT_TYPE_H
#define PYTHON_PRODUCER_BUFFER_WAIT_TYPE_H

#include "producer/appender.h"
#include "python/common/arena_object.h"

extern PyType_Spec buffer_wait_spec;

enum buffer_wait_stage { WAIT_QUEUED, WAIT_TAKEN, WAIT_OVER };

struct buffer_wait_object {
    PyVarObject ob_base;
    struct arena_object *arena;
    uint32_t owner; /* the process that waits: after fork the child has no part in it */
    enum buffer_wait_stage stage;
    struct buffer_wait wait;
    struct reservation left; /* of `slots`, while TAKEN */
    uint32_t slots[];
};

/* Gives back what append did not use. */
void buffer_wait_finish(struct buffer_wait_object *self, struct wake_set *wakes);

#endif
