/* SPDX-License-Identifier: Apache-2.0
 *
 * Short functions of the module for the files of a log.
 */
#include "format/record_batch.h"
#include "log/batch_walk.h"
#include "log/frame_append.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/module_methods.h"
#include "python/log/fetch.h"

#include <string.h>

int64_t batch_find_unlocked(struct batch_walk *walk)
{
    int64_t size;
    Py_BEGIN_ALLOW_THREADS
    size = batch_find(walk);
    Py_END_ALLOW_THREADS
    if (size < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return size;
}

PyObject *py_module_find_batch(PyObject *module, const struct py_module_find_batch *given)
{
    struct batch_walk walk = {.descriptor = (int)given->descriptor,
                              .position = given->position,
                              .end = given->end,
                              .offset = given->offset};
    (void)module;
    int64_t size = batch_find_unlocked(&walk);
    if (size < 0) {
        return NULL;
    }
    return size == 0 ? Py_NewRef(Py_None) : Py_BuildValue("(LL)", (long long)walk.position, (long long)size);
}

PyObject *py_module_append_frame(PyObject *module, const struct py_module_append_frame *given)
{
    int64_t size;
    (void)module;
    if (!PyBytes_Check(given->body) || PyBytes_GET_SIZE(given->body) > INT32_MAX) {
        return PyErr_Format(PyExc_TypeError, "append_frame() argument 'body' must be bytes, not %.100s",
                            Py_TYPE(given->body)->tp_name);
    }
    const struct frame_append append = {.lock = (int)given->lock,
                                        .byte = given->byte,
                                        .file = (int)given->file,
                                        .size = given->size,
                                        .body = PyBytes_AS_STRING(given->body),
                                        .body_size = (size_t)PyBytes_GET_SIZE(given->body)};
    Py_BEGIN_ALLOW_THREADS
    size = frame_append(&append);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(size);
}

static bool is_header(const uint8_t *bytes, Py_ssize_t size)
{
    struct record_batch_header header;
    return size >= RECORD_BATCH_HEADER_SIZE &&
           record_batch_header_read(bytes, RECORD_BATCH_HEADER_SIZE, &header) == STATUS_OK &&
           header.batch_length >= RECORD_BATCH_HEADER_SIZE - RECORD_BATCH_UNCOUNTED_SIZE;
}

PyObject *py_module_header_for_producer(PyObject *module, const Py_buffer *bytes,
                                        const struct py_module_header_for_producer *given)
{
    uint8_t header[RECORD_BATCH_HEADER_SIZE];
    const struct record_batch_producer producer = {.id = given->producer_id,
                                                   .epoch = (int16_t)given->producer_epoch,
                                                   .base_sequence = (int32_t)given->base_sequence};
    (void)module;
    if (!is_header(bytes->buf, bytes->len)) {
        PyErr_SetString(PyExc_ValueError, "the bytes are not the header of a record batch");
        return NULL;
    }
    memcpy(header, bytes->buf, sizeof header);
    record_batch_change_producer(header, &producer);
    return PyBytes_FromStringAndSize((const char *)header, sizeof header);
}

PyObject *py_module_records_summary(PyObject *module, const Py_buffer *bytes,
                                    const struct py_module_records_summary *given)
{
    struct records_summary summary;
    struct error error = {0};
    const uint8_t *start = bytes->buf;
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = records_summarize(start, start + bytes->len, (int32_t)given->record_count, given->base_timestamp_ms,
                               &summary, &error);
    Py_END_ALLOW_THREADS
    if (status != STATUS_OK) {
        return raise_error(PyModule_GetState(module), &error);
    }
    return Py_BuildValue("(LLO)", (long long)summary.timestamp_min, (long long)summary.timestamp_max,
                         summary.has_null_key ? Py_True : Py_False);
}
