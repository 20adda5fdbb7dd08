/* SPDX-License-Identifier: Apache-2.0 */
#include "python/common/items.h"

PyObject *list_of(uint32_t count, PyObject *(*make)(const void *all, uint32_t index), const void *all)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = make(all, i);
        if (!list_put(list, item) && PyErr_Occurred() != NULL) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *tuple_of(uint32_t count, PyObject *(*make)(const void *all, uint32_t index), const void *all)
{
    PyObject *tuple = PyTuple_New(count);
    for (uint32_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *item = make(all, i);
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, i, item);
        }
    }
    return tuple;
}

PyObject *tuple_make(PyTypeObject *type, PyObject *const *fields, Py_ssize_t count)
{
    PyObject *tuple = type->tp_alloc(type, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (tuple != NULL) {
            PyTuple_SET_ITEM(tuple, i, fields[i]);
        } else {
            Py_XDECREF(fields[i]);
        }
    }
    if (PyErr_Occurred() != NULL) {
        Py_CLEAR(tuple);
    }
    return tuple;
}
