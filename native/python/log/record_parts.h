/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a record that was read from a log, as Python objects, for every function here that makes records.
 */
#ifndef PYTHON_LOG_RECORD_PARTS_H
#define PYTHON_LOG_RECORD_PARTS_H

#include "format/record_walk.h"
#include "python/common/module_state.h"

static inline PyObject *bytes_or_none(const uint8_t *start, int32_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)start, size);
}

/* The headers from `cursor` on, as a tuple of pairs (str, bytes or None). Returns NULL with an exception set. */
PyObject *headers_to_tuple(const uint8_t *cursor, const uint8_t *end, int32_t count);

/* Raises as raise_format, after record_walk_next returned CORRUPT. */
PyObject *raise_walk(const struct module_state *state, const struct record_walk *walk);

#endif
