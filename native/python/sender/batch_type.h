/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_SENDER_BATCH_TYPE_H
#define PYTHON_SENDER_BATCH_TYPE_H

#include "python/sender/sender_half_type.h"

struct batch_object {
    PyVarObject ob_base;
    struct sender_half_object *half;
    struct drained_batch facts;
    uint64_t role_number;
    atomic_u32 export_count;
    uint32_t slot_count;
    bool is_over; /* completed, requeued or quarantined */
    uint32_t slots[]; /* head first */
};

PyObject *batch_object_new(struct sender_half_object *half, const struct drained_batch *facts);

/* Returns false with an exception set if the batch is over, of an earlier role or of another process. */
bool batch_object_is_current(const struct batch_object *self);

#endif
