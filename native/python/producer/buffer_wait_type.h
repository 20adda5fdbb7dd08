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
    uint32_t owner; /* the process that waits, which is the parent in a forked child */
    enum buffer_wait_stage stage;
    int64_t joined_ns; /* CLOCK_MONOTONIC */
    uint32_t partition_index; /* the partition for which it waits, or NO_PARTITION */
    struct buffer_wait wait;
    struct reservation left; /* the slots that are not used yet, while TAKEN */
    uint32_t slots[];
};

/* Joins the queue. The result is QUEUED, or OVER if Python has to wait for the share or raise an error. Returns NULL
 * with an exception set. */
struct buffer_wait_object *buffer_wait_begin(struct arena_object *arena, uint32_t partition_index, uint32_t need);

/* Sleeps until the grant, and takes the slots. Returns false if Python must continue: after the timeout, after a
 * signal, or without a semaphore. */
bool buffer_wait_sleep(struct buffer_wait_object *self, int64_t timeout_ns);

/* Returns true while it is parked because its partition is stuck. */
bool buffer_wait_is_stuck(const struct buffer_wait_object *self);

/* Takes the slots. Returns false if they are not granted. */
bool buffer_wait_take(struct buffer_wait_object *self);

/* Returns the slots that append did not use. */
void buffer_wait_finish(struct buffer_wait_object *self);

#endif
