/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts the records of a batch to Python objects. No Python code runs per record.
 *
 *   decode_batch     a whole batch with offsets from 0, for inspection and tests
 *   decode_records   decompressed records that were read from a log, as instances of a given subclass of tuple. The
 *                    caller checks the CRC of the batch
 */
#include "python/common/record_decode.h"

#include "format/record_batch.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"

enum { FIELD_COUNT = 5 }; /* offset, timestamp_ms, key, value, headers */

struct header_walk {
    const uint8_t **cursor;
    const uint8_t *end;
};

static PyObject *header_pair(const void *all, uint32_t index)
{
    const struct header_walk *walk = all;
    struct record_header_view header;
    if (record_header_read(walk->cursor, walk->end, &header) != STATUS_OK) {
        return PyErr_Format(PyExc_SystemError, "header %u was valid at the first read, and is invalid now", index);
    }
    return Py_BuildValue("(NN)", PyUnicode_DecodeUTF8((const char *)header.key, header.key_size, "replace"),
                         bytes_or_none(header.value, header.value_size));
}

PyObject *headers_decode(container *make, const uint8_t *cursor, const uint8_t *end, int32_t count)
{
    const struct header_walk walk = {&cursor, end};
    return make((uint32_t)count, header_pair, &walk);
}

static PyObject *record_make(PyTypeObject *type, const struct record_walk *walk, container *headers)
{
    const struct record_view *view = &walk->view;
    PyObject *fields[FIELD_COUNT] = {
        PyLong_FromLongLong(walk->offset), PyLong_FromLongLong(record_walk_timestamp_ms(walk)),
        bytes_or_none(view->key, view->key_size), bytes_or_none(view->value, view->value_size),
        headers_decode(headers, view->headers, view->headers_end, view->header_count)};
    return tuple_make(type, fields, FIELD_COUNT);
}

PyObject *raise_walk(const struct module_state *state, const struct record_walk *walk)
{
    const struct log_records *records = walk->records;
    if (records->record_count > (records->end - records->start) / RECORD_SIZE_MIN) {
        return raise_format(state, STATUS_CORRUPT, "%" PRId64 " records cannot be in %zd bytes", records->record_count,
                            (Py_ssize_t)(records->end - records->start));
    }
    if (walk->count < records->record_count) {
        return raise_format(state, STATUS_CORRUPT, "record %" PRId64 " of the batch cannot be read", walk->count);
    }
    return raise_format(state, STATUS_CORRUPT, "%zd bytes follow the last record of the batch",
                        (Py_ssize_t)(records->end - walk->cursor));
}

static PyObject *records_make(const struct module_state *state, const struct log_records *records, PyTypeObject *type,
                              container *headers)
{
    struct record_walk walk = record_walk_begin(records);
    PyObject *list = PyList_New(0);
    enum status status = STATUS_OK;
    while (list != NULL && (status = record_walk_next(&walk)) == STATUS_OK) {
        if (!list_put(list, record_make(type, &walk, headers))) {
            Py_CLEAR(list);
        }
    }
    if (list != NULL && status != STATUS_PENDING) {
        Py_DECREF(list);
        return raise_walk(state, &walk);
    }
    return list;
}

PyObject *record_decode_bytes(const struct module_state *state, const uint8_t *bytes, size_t size)
{
    struct record_batch_header header;
    struct error error;
    if (record_batch_validate(bytes, size, &error) != STATUS_OK) {
        return raise_error(state, &error);
    }
    if (record_batch_header_read(bytes, size, &header) != STATUS_OK) {
        return raise_status(state, STATUS_CORRUPT);
    }
    const struct log_records records = {.start = bytes + RECORD_BATCH_HEADER_SIZE,
                                        .end = bytes + size,
                                        .base_timestamp_ms = header.base_timestamp,
                                        .log_append_time_ms = NO_TIMESTAMP,
                                        .record_count = header.record_count};
    return records_make(state, &records, &PyTuple_Type, list_of);
}

PyObject *py_module_decode_batch(PyObject *module, const Py_buffer *bytes, const struct py_module_decode_batch *given)
{
    (void)given;
    return record_decode_bytes(PyModule_GetState(module), bytes->buf, (size_t)bytes->len);
}

PyObject *py_module_decode_records(PyObject *module, const Py_buffer *bytes,
                                   const struct py_module_decode_records *given)
{
    const uint8_t *start = bytes->buf;
    const struct log_records records = {.start = start,
                                        .end = start + bytes->len,
                                        .base_offset = given->base_offset,
                                        .base_timestamp_ms = given->base_timestamp_ms,
                                        .record_count = given->record_count,
                                        .log_append_time_ms = given->log_append_time_ms};
    if (!is_tuple_type(given->record_type)) {
        return PyErr_Format(PyExc_TypeError, "record_type must be a subclass of tuple without instance attributes");
    }
    return records_make(PyModule_GetState(module), &records, (PyTypeObject *)given->record_type, tuple_of);
}
