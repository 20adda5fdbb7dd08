/* SPDX-License-Identifier: Apache-2.0
 *
 * Items of lists and dicts that other threads may change: as references of our own.
 */
#ifndef PYTHON_COMMON_ITEMS_H
#define PYTHON_COMMON_ITEMS_H

#include <Python.h>

/* A new reference; NULL: there is none, or an exception is set. */
static inline PyObject *dict_item(PyObject *dict, PyObject *key)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *item;
    (void)PyDict_GetItemRef(dict, key, &item);
    return item;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
}

/* A new reference; NULL with IndexError set: the list is shorter. */
static inline PyObject *list_item(PyObject *list, Py_ssize_t index)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyList_GetItemRef(list, index);
#else
    return Py_XNewRef(PyList_GetItem(list, index));
#endif
}

#endif
