/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a batch of a log for another producer (format/record_batch.h).
 */
#include "format/record_batch.h"
#include "python/common/arguments.h"
#include "python/log/log.h"

#include <string.h>

static bool is_header(const uint8_t *bytes, Py_ssize_t size)
{
    struct record_batch_header header;
    return size >= RECORD_BATCH_HEADER_SIZE &&
           record_batch_header_read(bytes, RECORD_BATCH_HEADER_SIZE, &header) == STATUS_OK &&
           header.batch_length >= RECORD_BATCH_HEADER_SIZE - RECORD_BATCH_UNCOUNTED_SIZE;
}

PyObject *py_module_header_for_producer(PyObject *module, const struct py_module_header_for_producer *given)
{
    Py_buffer bytes;
    uint8_t header[RECORD_BATCH_HEADER_SIZE];
    (void)module;
    if (PyObject_GetBuffer(given->header, &bytes, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    bool is_right = is_header(bytes.buf, bytes.len);
    if (is_right) {
        memcpy(header, bytes.buf, sizeof header);
    }
    PyBuffer_Release(&bytes);
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "the bytes are no header of a record batch");
        return NULL;
    }
    const struct record_batch_producer producer = {.id = given->producer_id,
                                                   .epoch = (int16_t)given->producer_epoch,
                                                   .base_sequence = (int32_t)given->base_sequence};
    record_batch_change_producer(header, &producer);
    return PyBytes_FromStringAndSize((const char *)header, sizeof header);
}
