/* SPDX-License-Identifier: Apache-2.0
 *
 * A result as Python has it: (result, error code, base offset, log append time, first record, record count).
 */
#ifndef PYTHON_COMMON_COMPLETION_TUPLE_H
#define PYTHON_COMMON_COMPLETION_TUPLE_H

#include <Python.h>

#include "arena/completion.h"

static inline PyObject *completion_to_tuple(const struct completion *completion)
{
    return Py_BuildValue("(iiLLII)", (int)completion->result, completion->error_code,
                         (long long)completion->base_offset, (long long)completion->log_append_time_ms,
                         completion->first_record, completion->record_count);
}

#endif
