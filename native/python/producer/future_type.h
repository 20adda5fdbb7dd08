/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_PRODUCER_FUTURE_TYPE_H
#define PYTHON_PRODUCER_FUTURE_TYPE_H

#include "producer/producer_batch.h"
#include "python/common/token_type.h"

extern PyType_Spec future_spec;

/* A token that knows where to look. Not tracked by the garbage collector: it refers to its tracker, and to a tuple of
 * numbers once its result is known. */
struct future_object {
    struct token_object token;
    PyObject *tracker;
    PyObject *completion; /* a tuple as Arena.find() answers it, or NULL: not looked up yet */
    int32_t key_size;     /* bytes; -1: null */
    int32_t value_size;
    int32_t headers_size; /* bytes of all header keys and values; -1: no headers */
};

/* The numbers are not filled in. The future is made before the append and filled after it, so that no record is
 * committed without its future. */
struct future_object *future_object_new(const struct module_state *state, PyObject *tracker);

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
