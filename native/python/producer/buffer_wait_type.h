/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_PRODUCER_BUFFER_WAIT_TYPE_H
#define PYTHON_PRODUCER_BUFFER_WAIT_TYPE_H

#include "producer/appender.h"
#include "python/common/arena_object.h"

enum buffer_wait_stage { WAIT_QUEUED, WAIT_TAKEN, WAIT_OVER };

struct buffer_wait_object {
    PyVarObject ob_base;
    struct arena_object *arena;
    uint32_t owner; /* the process that waits: after fork the child has no part in it */
    enum buffer_wait_stage stage;
    int64_t joined_ns; /* CLOCK_MONOTONIC */
    uint32_t partition_index; /* that the slots are for, or NO_PARTITION */
    struct buffer_wait wait;
    struct reservation left; /* of `slots`, while TAKEN */
    uint32_t slots[];
};

/* Makes a place in the queue, which is QUEUED, or OVER if Python has to wait for the share or raise. Returns NULL with
 * an exception set. */
struct buffer_wait_object *buffer_wait_begin(struct arena_object *arena, uint32_t partition_index, uint32_t need);

/* Sleeps until the grant, at most for this time, and takes the slots. Returns false if Python must continue: after the
 * time, after a signal, or without a semaphore. */
bool buffer_wait_sleep(struct buffer_wait_object *self, int64_t timeout_ns);

/* Returns true while it is parked because its partition is stuck. */
bool buffer_wait_is_stuck(const struct buffer_wait_object *self);

/* Returns true if the grant has come, and the slots are taken. */
bool buffer_wait_take(struct buffer_wait_object *self);

/* Returns the slots that append did not use. */
void buffer_wait_finish(struct buffer_wait_object *self);

#endif
