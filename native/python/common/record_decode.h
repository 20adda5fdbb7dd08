/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_COMMON_RECORD_DECODE_H
#define PYTHON_COMMON_RECORD_DECODE_H

#include "python/common/module_methods.h"

/* The records of any uncompressed batch, for decode_batch() and Batch.decode(). */
PyObject *record_decode_bytes(struct module_state *state, const uint8_t *bytes, size_t size);

#endif
