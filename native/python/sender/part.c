/* SPDX-License-Identifier: Apache-2.0 */
#include "python/sender/part.h"

#include <string.h>

bool part_is_tuple(PyObject *object, Py_ssize_t size)
{
    bool is_right = PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == size;
    if (!is_right) {
        PyErr_Format(PyExc_TypeError, "a part must be a tuple of %zd items", size);
    }
    return is_right;
}

bool part_take_number(PyObject *tuple, Py_ssize_t index, int64_t min, int64_t max, int64_t *value)
{
    *value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, index));
    if (*value == -1 && PyErr_Occurred() != NULL) {
        return false;
    }
    if (*value < min || *value > max) {
        PyErr_Format(PyExc_ValueError, "field %zd of a part is %lld", index, (long long)*value);
        return false;
    }
    return true;
}

bool part_take_name(PyObject *tuple, Py_ssize_t index, const char **name, uint16_t *size)
{
    Py_ssize_t length;
    *name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(tuple, index), &length);
    if (*name != NULL && length > PRODUCE_NAME_SIZE_MAX) {
        PyErr_Format(PyExc_ValueError, "a name of %zd bytes is too long for a request", length);
        return false;
    }
    *size = (uint16_t)length;
    return *name != NULL;
}

bool part_take_topic(PyObject *tuple, struct produce_topic *topic)
{
    PyObject *id = PyTuple_GET_ITEM(tuple, 1);
    if (!part_take_name(tuple, 0, &topic->name, &topic->name_size)) {
        return false;
    }
    if (id == Py_None) {
        return true;
    }
    if (!PyBytes_Check(id) || PyBytes_GET_SIZE(id) != TOPIC_ID_SIZE) {
        PyErr_SetString(PyExc_TypeError, "the id of a topic must be 16 bytes");
        return false;
    }
    memcpy(topic->id, PyBytes_AS_STRING(id), TOPIC_ID_SIZE);
    return true;
}

PyObject *delivered_report(const struct delivered *delivered, uint64_t last_begun_ns, PyObject *rows)
{
    if (delivered->batch_count == 0) {
        Py_XDECREF(rows);
        return Py_NewRef(Py_None);
    }
    return Py_BuildValue("(KKKKKKKKKLKN)", (unsigned long long)delivered->batch_count,
                         (unsigned long long)delivered->record_count, (unsigned long long)delivered->size,
                         (unsigned long long)delivered->size_largest, (unsigned long long)delivered->age_sum_ns,
                         (unsigned long long)delivered->age_max_ns, (unsigned long long)delivered->latency_sum_ns,
                         (unsigned long long)delivered->latency_max_ns, (unsigned long long)delivered->largest_record,
                         (long long)delivered->linger_min_ns, (unsigned long long)last_begun_ns, rows);
}

PyObject *delivered_row(uint32_t partition_index, uint32_t batch_count, uint64_t record_count, uint64_t size,
                        int index_error)
{
    return Py_BuildValue("(IIKKi)", partition_index, batch_count, (unsigned long long)record_count,
                         (unsigned long long)size, index_error);
}
