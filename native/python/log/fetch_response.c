/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts Python objects to the response to a fetch (format/fetch.h). The records are ranges of files.
 *
 *   pieces     [ bytes | range of a file | bytes | range of a file | ... | bytes ]
 */
#include "format/fetch.h"
#include "python/common/arguments.h"
#include "python/common/items.h"
#include "python/common/module_methods.h"
#include "python/log/fetch.h"

enum { ABORTED_FIELD_COUNT = 2 };

/* ---- the caller's objects ---- */

static bool is_tuple_of(PyObject *object, Py_ssize_t size)
{
    return PyTuple_Check(object) && PyTuple_GET_SIZE(object) == size;
}

static bool topic_read(PyObject *topic, struct fetch_found *found)
{
    Py_ssize_t size = 0;
    found->is_topic_id = PyBytes_Check(topic);
    if (found->is_topic_id) {
        found->topic = PyBytes_AS_STRING(topic);
        found->topic_size = (size_t)PyBytes_GET_SIZE(topic);
        return found->topic_size == FETCH_TOPIC_ID_SIZE;
    }
    found->topic = PyUnicode_Check(topic) ? PyUnicode_AsUTF8AndSize(topic, &size) : NULL;
    found->topic_size = (size_t)size;
    return found->topic != NULL && size <= INT16_MAX;
}

/* Returns false if the object is not a tuple of transactions, or with an exception set. */
static bool aborted_read(PyObject *object, struct fetch_found *found)
{
    Py_ssize_t count = PyTuple_Check(object) ? PyTuple_GET_SIZE(object) : -1;
    struct fetch_aborted *aborted = count > 0 ? PyMem_New(struct fetch_aborted, (size_t)count) : NULL;
    if (count > 0 && aborted == NULL) {
        PyErr_NoMemory();
    }
    found->aborted = aborted;
    for (; aborted != NULL && (Py_ssize_t)found->aborted_count < count; found->aborted_count++) {
        PyObject *one = PyTuple_GET_ITEM(object, (Py_ssize_t)found->aborted_count);
        if (!is_tuple_of(one, ABORTED_FIELD_COUNT)) {
            return false;
        }
        aborted[found->aborted_count] =
            (struct fetch_aborted){.producer_id = PyLong_AsLongLong(PyTuple_GET_ITEM(one, 0)),
                                   .first_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(one, 1))};
    }
    return (Py_ssize_t)found->aborted_count == count;
}

/* Returns false if the object is not a PartitionRecords (log/server/fetch_frames.py), or with an exception set. */
static bool found_read(PyObject *object, struct fetch_found *found)
{
    if (!is_tuple_of(object, FOUND_FIELD_COUNT) ||
        !is_tuple_of(PyTuple_GET_ITEM(object, FOUND_WANTED), WANTED_FIELD_COUNT)) {
        return false;
    }
    PyObject *wanted = PyTuple_GET_ITEM(object, FOUND_WANTED);
    PyObject *records = PyTuple_GET_ITEM(object, FOUND_RECORDS);
    found->partition = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(wanted, WANTED_PARTITION));
    found->error = (int16_t)PyLong_AsLong(PyTuple_GET_ITEM(object, FOUND_ERROR));
    found->end_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(object, FOUND_END_OFFSET));
    found->start_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(object, FOUND_START_OFFSET));
    found->stable_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(object, FOUND_STABLE_OFFSET));
    if (records != Py_None) {
        if (!is_tuple_of(records, RANGE_FIELD_COUNT)) {
            return false;
        }
        found->records_size = PyLong_AsLongLong(PyTuple_GET_ITEM(records, RANGE_SIZE));
    }
    return topic_read(PyTuple_GET_ITEM(wanted, WANTED_TOPIC), found) &&
           aborted_read(PyTuple_GET_ITEM(object, FOUND_ABORTED), found) && found->records_size >= 0 &&
           PyErr_Occurred() == NULL;
}

/* Reads and counts the partitions. Returns false with an exception set. */
static bool all_found_read(PyObject *tuple, struct fetch_response *response)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    response->found = PyMem_Calloc((size_t)count + 1, sizeof *response->found);
    bool is_read = response->found != NULL;
    for (Py_ssize_t i = 0; is_read && i < count; i++) {
        response->count++;
        is_read = found_read(PyTuple_GET_ITEM(tuple, i), &response->found[i]);
        if (!is_read && PyErr_Occurred() == NULL) {
            PyErr_Format(PyExc_TypeError, "item %zd is not a PartitionRecords", i);
        }
    }
    if (response->found == NULL) {
        PyErr_NoMemory();
    }
    return is_read;
}

static void all_found_free(struct fetch_response *response)
{
    for (size_t i = 0; i < response->count; i++) {
        PyMem_Free((void *)response->found[i].aborted);
    }
    PyMem_Free(response->found);
}

/* ---- the pieces ---- */

/* Returns the list of the pieces. */
static PyObject *pieces_new(const struct fetch_response *response, PyObject *found, const char *bytes, size_t size)
{
    PyObject *pieces = PyList_New(0);
    size_t start = 0;
    bool is_well = pieces != NULL;
    for (size_t i = 0; is_well && i < response->count; i++) {
        PyObject *records = PyTuple_GET_ITEM(PyTuple_GET_ITEM(found, (Py_ssize_t)i), FOUND_RECORDS);
        if (records != Py_None) {
            size_t cut = response->found[i].cut;
            is_well = list_put(pieces, PyBytes_FromStringAndSize(bytes + start, (Py_ssize_t)(cut - start))) &&
                      PyList_Append(pieces, records) == 0;
            start = cut;
        }
    }
    if (is_well && start < size) {
        is_well = list_put(pieces, PyBytes_FromStringAndSize(bytes + start, (Py_ssize_t)(size - start)));
    }
    if (!is_well) {
        Py_CLEAR(pieces);
    }
    return pieces;
}

static PyObject *response_write(const struct fetch_response *response, PyObject *found)
{
    int64_t frame_size;
    PyObject *pieces = NULL;
    uint8_t *bytes = PyMem_Malloc(fetch_response_size_max(response));
    if (bytes == NULL) {
        return PyErr_NoMemory();
    }
    size_t size = fetch_response_write(response, bytes, &frame_size);
    if (frame_size > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "the response would have %lld bytes, which is too large", (long long)frame_size);
    } else {
        pieces = pieces_new(response, found, (const char *)bytes, size);
    }
    PyMem_Free(bytes);
    return pieces;
}

PyObject *fetch_response_pieces(struct fetch_response *response, PyObject *found)
{
    if (!PyList_Check(found)) {
        return PyErr_Format(PyExc_TypeError, "found must be a list");
    }
    PyObject *tuple = PyList_AsTuple(found); /* `response` points into its items */
    PyObject *pieces = tuple != NULL && all_found_read(tuple, response) ? response_write(response, tuple) : NULL;
    all_found_free(response);
    Py_XDECREF(tuple);
    return pieces;
}

PyObject *py_module_write_fetch(PyObject *module, const struct py_module_write_fetch *given)
{
    struct fetch_response response = {.version = given->version,
                                      .correlation_id = (int32_t)given->correlation_id,
                                      .session_id = (int32_t)given->session_id,
                                      .error = (int16_t)given->error};
    (void)module;
    return fetch_response_pieces(&response, given->found);
}
