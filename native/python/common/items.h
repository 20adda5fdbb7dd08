/* SPDX-License-Identifier: Apache-2.0
 *
 * New references to items of lists and dicts that other threads may change.
 */
#ifndef PYTHON_COMMON_ITEMS_H
#define PYTHON_COMMON_ITEMS_H

#include <Python.h>

/* Returns a new reference, or NULL if there is none or an exception is set. */
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

/* Returns a new reference, or NULL with IndexError set. */
static inline PyObject *list_item(PyObject *list, Py_ssize_t index)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyList_GetItemRef(list, index);
#else
    return Py_XNewRef(PyList_GetItem(list, index));
#endif
}

#endif
