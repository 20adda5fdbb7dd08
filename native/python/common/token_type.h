/* SPDX-License-Identifier: Apache-2.0
 *
 * Token: the identity of an appended record. Arena.find() returns its result. It is the base class of DeliveryFuture.
 */
#ifndef PYTHON_COMMON_TOKEN_TYPE_H
#define PYTHON_COMMON_TOKEN_TYPE_H

#include "arena/completion.h"
#include "python/common/module_state.h"

struct token_object {
    PyObject ob_base;
    uint64_t seq;
    int64_t timestamp_ms;
    uint32_t partition_index;
    uint32_t slot_index;
    uint32_t record_index;
};

static inline struct record_token token_of(const struct token_object *token)
{
    return (struct record_token){.seq = token->seq,
                                 .partition_index = token->partition_index,
                                 .slot_index = token->slot_index,
                                 .record_index = token->record_index};
}

/* Returns the tuple (result, error code, base offset, log append time, first record, record count). Arena.find() and
 * DeliveryFuture.completion have this form. */
PyObject *completion_to_tuple(const struct completion *completion);

#endif
