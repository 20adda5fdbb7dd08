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
#include "python/log/log.h"
#include "python/log/record_parts.h"

enum { FIELD_COUNT = 5 }; /* offset, timestamp_ms, key, value, headers */

static void fields_fill(PyObject *record, const struct record_view *view, const struct batch_facts *facts)
{
    PyTuple_SET_ITEM(record, 0, PyLong_FromLongLong(facts->base_offset + view->offset_delta));
    PyTuple_SET_ITEM(record, 1, PyLong_FromLongLong(record_timestamp_ms(view, facts)));
    PyTuple_SET_ITEM(record, 2, bytes_or_none(view->key, view->key_size));
    PyTuple_SET_ITEM(record, 3, bytes_or_none(view->value, view->value_size));
    PyTuple_SET_ITEM(record, 4, headers_to_tuple(view->headers, view->headers_end, view->header_count));
}

static PyObject *record_make(PyTypeObject *type, const struct record_view *view, const struct batch_facts *facts)
{
    PyObject *record = type->tp_alloc(type, FIELD_COUNT);
    if (record == NULL) {
        return NULL;
    }
    fields_fill(record, view, facts);
    if (PyErr_Occurred() != NULL) {
        Py_CLEAR(record);
    }
    return record;
}

static PyObject *records_make(const struct module_state *state, PyTypeObject *type, const Py_buffer *bytes,
                              const struct batch_facts *facts)
{
    const uint8_t *cursor = bytes->buf;
    const uint8_t *end = cursor + bytes->len;
    struct record_view view = {.offset_delta = -1};
    if (facts->record_count > bytes->len / RECORD_SIZE_MIN) {
        return raise_count(state, facts->record_count, bytes->len);
    }
    PyObject *list = PyList_New((Py_ssize_t)facts->record_count);
    for (Py_ssize_t i = 0; i < (Py_ssize_t)facts->record_count && list != NULL; i++) {
        if (batch_record_next(&cursor, end, facts, view.offset_delta, &view) != STATUS_OK) {
            Py_DECREF(list);
            return raise_record(state, i);
        }
        PyObject *record = record_make(type, &view, facts);
        if (record == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, record);
        }
    }
    if (list != NULL && cursor != end) {
        Py_DECREF(list);
        return raise_rest(state, end - cursor);
    }
    return list;
}

PyObject *py_module_decode_records(PyObject *module, const Py_buffer *bytes,
                                   const struct py_module_decode_records *given)
{
    const struct batch_facts facts = {.base_offset = given->base_offset,
                                      .base_timestamp_ms = given->base_timestamp_ms,
                                      .record_count = given->record_count,
                                      .log_append_time_ms = given->log_append_time_ms};
    if (!is_tuple_type(given->record_type)) {
        return PyErr_Format(PyExc_TypeError, "record_type must be a subclass of tuple without fields of its own");
    }
    return records_make(PyModule_GetState(module), (PyTypeObject *)given->record_type, bytes, &facts);
}
