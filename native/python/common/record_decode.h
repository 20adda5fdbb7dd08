/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_COMMON_RECORD_DECODE_H
#define PYTHON_COMMON_RECORD_DECODE_H

#include "python/common/module_state.h"

/* decode_batch(buffer): the records of any uncompressed batch, and Batch.decode(). */
PyObject *record_decode_buffer(PyObject *module, PyObject *buffer);
PyObject *record_decode_bytes(struct module_state *state, const uint8_t *bytes, size_t size);

#endif
