/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of a batch as Python objects.
 */
#ifndef PYTHON_COMMON_RECORD_DECODE_H
#define PYTHON_COMMON_RECORD_DECODE_H

#include "format/record_walk.h"
#include "python/common/items.h"
#include "python/common/module_methods.h"

static inline PyObject *bytes_or_none(const void *start, int32_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(start, size);
}

/* The headers from `cursor` on, which were read once, as pairs (str, bytes or None) in a container: list_of or
 * tuple_of. Returns NULL with an exception set. */
PyObject *headers_decode(container *make, const uint8_t *cursor, const uint8_t *end, int32_t count);

/* Raises as raise_format, after record_walk_next returned CORRUPT. */
PyObject *raise_walk(const struct module_state *state, const struct record_walk *walk);

/* The records of any uncompressed batch, for decode_batch() and Batch.decode(). */
PyObject *record_decode_bytes(const struct module_state *state, const uint8_t *bytes, size_t size);

#endif
