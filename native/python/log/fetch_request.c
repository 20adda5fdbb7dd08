/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts Fetch requests (format/fetch.h) to Python objects. No Python code runs per field.
 */
#include "format/fetch.h"
#include "python/common/arguments.h"
#include "python/common/items.h"
#include "python/common/module_methods.h"
#include "python/log/fetch.h"

static PyObject *topic_new(const struct fetch_part *part, int64_t version)
{
    Py_ssize_t size = (Py_ssize_t)part->topic_size;
    return version >= FETCH_TOPIC_IDS ? PyBytes_FromStringAndSize(part->topic, size)
                                      : PyUnicode_DecodeUTF8(part->topic, size, "replace");
}

static PyObject *wanted_new(PyTypeObject *type, PyObject *topic, const struct fetch_part *part)
{
    PyObject *fields[] = {[WANTED_TOPIC] = Py_NewRef(topic),
                          [WANTED_PARTITION] = PyLong_FromLong(part->partition),
                          [WANTED_OFFSET] = PyLong_FromLongLong(part->offset),
                          [WANTED_SIZE_MAX] = PyLong_FromLong(part->size_max),
                          [WANTED_LEADER_EPOCH] = PyLong_FromLong(part->leader_epoch)};
    return tuple_make(type, fields, WANTED_FIELD_COUNT);
}

/* Fills both lists. Returns false with an exception set. */
static bool parts_read(struct fetch_reader *reader, PyTypeObject *wanted_type, PyObject *wanted, PyObject *forgotten)
{
    struct fetch_part part;
    PyObject *topic = NULL;
    enum fetch_part_kind kind = FETCH_TOPIC;
    bool is_well = wanted != NULL && forgotten != NULL;
    while (is_well && (kind = fetch_next(reader, &part)) != FETCH_END && kind != FETCH_INVALID) {
        if (kind == FETCH_TOPIC) {
            Py_XSETREF(topic, topic_new(&part, reader->version));
            is_well = topic != NULL;
        } else if (kind == FETCH_PARTITION) {
            is_well = list_put(wanted, wanted_new(wanted_type, topic, &part));
        } else {
            is_well = list_put(forgotten, Py_BuildValue("(Oi)", topic, part.partition));
        }
    }
    Py_XDECREF(topic);
    if (kind == FETCH_INVALID) {
        PyErr_SetString(PyExc_ValueError, reader->error.message);
    }
    return kind == FETCH_END;
}

PyObject *fetch_request_read(const uint8_t *bytes, Py_ssize_t size, int64_t version, PyObject *request_type,
                             PyObject *wanted_type)
{
    struct fetch_reader reader;
    struct fetch_limits limits;
    if (!is_tuple_type(request_type) || !is_tuple_type(wanted_type)) {
        return PyErr_Format(PyExc_TypeError, "both types must be subclasses of tuple without instance attributes");
    }
    if (!fetch_begin(&reader, bytes, (size_t)size, version, &limits)) {
        PyErr_SetString(PyExc_ValueError, reader.error.message);
        return NULL;
    }
    PyObject *wanted = PyList_New(0);
    PyObject *forgotten = PyList_New(0);
    if (!parts_read(&reader, (PyTypeObject *)wanted_type, wanted, forgotten)) {
        Py_XDECREF(wanted);
        Py_XDECREF(forgotten);
        return NULL;
    }
    PyObject *fields[] = {[REQUEST_MAX_WAIT] = PyLong_FromLong(limits.max_wait_ms),
                          [REQUEST_MIN_BYTES] = PyLong_FromLong(limits.min_bytes),
                          [REQUEST_MAX_BYTES] = PyLong_FromLong(limits.max_bytes),
                          [REQUEST_ISOLATION_LEVEL] = PyLong_FromLong(limits.isolation_level),
                          [REQUEST_SESSION_ID] = PyLong_FromLong(limits.session_id),
                          [REQUEST_SESSION_EPOCH] = PyLong_FromLong(limits.session_epoch),
                          [REQUEST_WANTED] = wanted,
                          [REQUEST_FORGOTTEN] = forgotten};
    return tuple_make((PyTypeObject *)request_type, fields, REQUEST_FIELD_COUNT);
}

PyObject *py_module_read_fetch(PyObject *module, const Py_buffer *bytes, const struct py_module_read_fetch *given)
{
    (void)module;
    return fetch_request_read(bytes->buf, bytes->len, given->version, given->request_type, given->wanted_type);
}
