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

/* Fills in the result, the base offset and the first record, which a message tells. False with an exception set. */
static inline bool completion_from_tuple(PyObject *known, struct completion *completion)
{
    if (UNLIKELY(PyTuple_GET_SIZE(known) != 6)) {
        PyErr_SetString(PyExc_ValueError, "a completion has six numbers");
        return false;
    }
    completion->result = (enum batch_result)PyLong_AsLong(PyTuple_GET_ITEM(known, 0));
    completion->base_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(known, 2));
    completion->first_record = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(known, 4));
    return PyErr_Occurred() == NULL;
}

#endif
