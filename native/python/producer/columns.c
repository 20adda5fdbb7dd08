/* SPDX-License-Identifier: Apache-2.0 */
#include "python/producer/columns.h"

bool column_parse(PyObject *object, const char *name, Py_ssize_t count, PyObject **column)
{
    *column = NULL;
    if (object == NULL || object == Py_None) {
        return true;
    }
    *column = PySequence_Tuple(object);
    if (*column != NULL && PyTuple_GET_SIZE(*column) != count) {
        PyErr_Format(PyExc_ValueError, "%s has %zd items for %zd values", name, PyTuple_GET_SIZE(*column), count);
        Py_CLEAR(*column);
    }
    return *column != NULL;
}

void columns_release(struct columns *columns)
{
    Py_CLEAR(columns->values);
    Py_CLEAR(columns->keys);
    Py_CLEAR(columns->timestamps);
    Py_CLEAR(columns->headers);
}

bool columns_parse(const struct columns *given, struct columns *columns)
{
    *columns = (struct columns){.values = PySequence_Tuple(given->values)};
    if (columns->values == NULL) {
        return false;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(columns->values);
    bool is_parsed = column_parse(given->keys, "keys", count, &columns->keys) &&
                     column_parse(given->timestamps, "timestamps_ms", count, &columns->timestamps) &&
                     column_parse(given->headers, "headers", count, &columns->headers);
    if (!is_parsed) {
        columns_release(columns);
    }
    return is_parsed;
}
