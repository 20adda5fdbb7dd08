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
    int64_t joined_ns; /* CLOCK_MONOTONIC */
    uint32_t partition_index; /* that the slots are for; NO_PARTITION: none */
    struct buffer_wait wait;
    struct reservation left; /* of `slots`, while TAKEN */
    uint32_t slots[];
};

/* A place in the queue, QUEUED. It is OVER if Python has to join; Python then waits for the share or raises. NULL
 * with an exception set. */
struct buffer_wait_object *buffer_wait_begin(struct arena_object *arena, uint32_t partition_index, uint32_t need);

/* Sleeps, for no longer than this, until the grant, and takes the slots then. False when Python has to go on: the time
 * was over, a signal came, or there is no semaphore yet. */
bool buffer_wait_sleep(struct buffer_wait_object *self, int64_t timeout_ns);

/* True while it is parked because its partition is stuck. */
bool buffer_wait_is_stuck(const struct buffer_wait_object *self);

/* True when the grant has come, and the slots are taken. */
bool buffer_wait_take(struct buffer_wait_object *self);

/* Gives back what append did not use. */
void buffer_wait_finish(struct buffer_wait_object *self);

#endif
