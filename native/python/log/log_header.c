/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a batch of a log for another producer (format/record_batch.h says how).
 */
#include "format/record_batch.h"
#include "python/common/arguments.h"
#include "python/log/log.h"

#include <string.h>

struct header_call {
    PyObject *header;
    int64_t producer_id;
    int64_t producer_epoch;
    int64_t base_sequence;
};

static const struct argument_table header_table = {
    .signature = {.function = "header_for_producer",
                  .names = {"header", "producer_id", "producer_epoch", "base_sequence"},
                  .required_count = 4,
                  .count = 4},
    .arguments = {OBJECT_ARGUMENT(struct header_call, header),
                  INTEGER_ARGUMENT(struct header_call, producer_id, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct header_call, producer_epoch, 0, INT16_MAX),
                  INTEGER_ARGUMENT(struct header_call, base_sequence, 0, INT32_MAX)},
};

static bool is_header(const uint8_t *bytes, Py_ssize_t size)
{
    struct record_batch_header header;
    return size >= RECORD_BATCH_HEADER_SIZE &&
           record_batch_header_read(bytes, RECORD_BATCH_HEADER_SIZE, &header) == STATUS_OK &&
           header.batch_length >= RECORD_BATCH_HEADER_SIZE - RECORD_BATCH_UNCOUNTED_SIZE;
}

PyObject *log_header_for_producer(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct header_call given;
    Py_buffer bytes;
    uint8_t header[RECORD_BATCH_HEADER_SIZE];
    if (!arguments_parse(PyModule_GetState(module), &header_table, args, count, names, &given) ||
        PyObject_GetBuffer(given.header, &bytes, PyBUF_SIMPLE) < 0) {
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
    record_batch_change_producer(header, &(struct record_batch_producer){.id = given.producer_id,
                                                                         .epoch = (int16_t)given.producer_epoch,
                                                                         .base_sequence =
                                                                             (int32_t)given.base_sequence});
    return PyBytes_FromStringAndSize((const char *)header, sizeof header);
}
