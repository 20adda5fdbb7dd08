/* SPDX-License-Identifier: Apache-2.0
 *
 * Token: the identity of an appended record. Arena.find() returns its result. It is the base class of DeliveryFuture.
 */
#ifndef PYTHON_COMMON_TOKEN_TYPE_H
#define PYTHON_COMMON_TOKEN_TYPE_H

#include "python/common/module_state.h"

extern PyType_Spec token_spec;

struct token_object {
    PyObject ob_base;
    uint64_t seq;
    int64_t timestamp_ms;
    uint32_t partition_index;
    uint32_t slot_index;
    uint32_t record_index;
};

#endif
