/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of a batch that was read from a log -> Python objects, for the reader of segment logs.
 *
 * The differences from record_decode.c: the batch has a base offset, so offsets are absolute; a broker may have written
 * it, so offset deltas may have gaps (compaction) and all records may have one time (log append time); it may have been
 * compressed, so the records come without their header. The caller has checked the batch's CRC, or does not want to.
 *
 * The records become instances of the caller's own subclass of tuple, made here field by field, so no Python code runs
 * per record.
 */
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/log/log.h"
#include "python/log/record_parts.h"

enum { FIELD_COUNT = 5 }; /* offset, timestamp_ms, key, value, headers */

static PyObject *record_make(PyTypeObject *type, const struct record_walk *walk)
{
    const struct record_view *view = &walk->view;
    PyObject *fields[FIELD_COUNT] = {
        PyLong_FromLongLong(walk->offset), PyLong_FromLongLong(record_walk_timestamp_ms(walk)),
        bytes_or_none(view->key, view->key_size), bytes_or_none(view->value, view->value_size),
        headers_to_tuple(view->headers, view->headers_end, view->header_count)};
    return tuple_make(type, fields, FIELD_COUNT);
}

static PyObject *records_make(const struct module_state *state, PyTypeObject *type, const struct log_records *records)
{
    struct record_walk walk = record_walk_begin(records);
    PyObject *list = PyList_New(0);
    enum status status = STATUS_OK;
    while (list != NULL && (status = record_walk_next(&walk)) == STATUS_OK) {
        if (!list_put(list, record_make(type, &walk))) {
            Py_CLEAR(list);
        }
    }
    if (list != NULL && status != STATUS_PENDING) {
        Py_DECREF(list);
        return raise_walk(state, &walk);
    }
    return list;
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
        return PyErr_Format(PyExc_TypeError, "record_type must be a subclass of tuple without fields of its own");
    }
    return records_make(PyModule_GetState(module), (PyTypeObject *)given->record_type, &records);
}
