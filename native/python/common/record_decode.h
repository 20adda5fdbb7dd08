/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts records of a batch to Python objects.
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

/* Returns the headers from `cursor` on as pairs (str, bytes or None) in a container: list_of or tuple_of. They were
 * read before, and are valid. Returns NULL with an exception set. */
PyObject *headers_decode(container *make, const uint8_t *cursor, const uint8_t *end, int32_t count);

/* Sets the exception after record_walk_next returned CORRUPT, and returns NULL. */
PyObject *raise_walk(const struct module_state *state, const struct record_walk *walk);

/* Returns the records of any uncompressed batch, for decode_batch() and Batch.decode(). */
PyObject *record_decode_bytes(const struct module_state *state, const uint8_t *bytes, size_t size);

#endif
