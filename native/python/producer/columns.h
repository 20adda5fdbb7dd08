/* SPDX-License-Identifier: Apache-2.0
 *
 * Many records given as columns: a sequence of values and, of the same length, sequences of the other parts or none.
 * They are copied into tuples, so that no thread changes them while a call waits.
 */
#ifndef PYTHON_PRODUCER_COLUMNS_H
#define PYTHON_PRODUCER_COLUMNS_H

#include "python/common/arguments.h"

struct columns {
    PyObject *values;
    PyObject *keys; /* each may be NULL or None */
    PyObject *timestamps;
    PyObject *headers;
};

/* Returns false with an exception set if a column is not a sequence as long as the values. columns_release follows. */
bool columns_parse(const struct columns *given, struct columns *columns);
void columns_release(struct columns *columns);

/* Parses one more column by the same rules, which must have `count` cells. */
bool column_parse(PyObject *object, const char *name, Py_ssize_t count, PyObject **column);

static inline PyObject *column_item(PyObject *column, Py_ssize_t index)
{
    return column == NULL ? Py_None : PyTuple_GET_ITEM(column, index);
}

static inline struct record_objects columns_row(const struct columns *columns, Py_ssize_t index)
{
    return (struct record_objects){.key = column_item(columns->keys, index),
                                   .value = PyTuple_GET_ITEM(columns->values, index),
                                   .headers = column_item(columns->headers, index),
                                   .timestamp_ms = column_item(columns->timestamps, index)};
}

#endif
