/* SPDX-License-Identifier: Apache-2.0
 *
 * Returns new references to items of lists and dicts that other threads may change, and makes lists and tuples.
 */
#ifndef PYTHON_COMMON_ITEMS_H
#define PYTHON_COMMON_ITEMS_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

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

/* Appends an object to a list, and takes over the reference. Returns false if the object is NULL. */
static inline bool list_put(PyObject *list, PyObject *object)
{
    bool is_put = object != NULL && PyList_Append(list, object) == 0;
    Py_XDECREF(object);
    return is_put;
}

/* Requires a type with the layout of a tuple, because fields are stored directly in its objects. */
static inline bool is_tuple_type(PyObject *object)
{
    return PyType_Check(object) && PyType_IsSubtype((PyTypeObject *)object, &PyTuple_Type) &&
           ((PyTypeObject *)object)->tp_basicsize == PyTuple_Type.tp_basicsize;
}

typedef PyObject *container(uint32_t count, PyObject *(*make)(const void *all, uint32_t index), const void *all);

/* Makes a list of the items 0 to count - 1 that `make` returns. `make` returns NULL with an exception after a failure,
 * and NULL without an exception to omit an item. */
container list_of;

/* Makes a tuple in the same way, but omits no item. */
container tuple_of;

/* Makes a tuple of the type, and takes over its items. Returns NULL with an exception if an item is NULL. */
PyObject *tuple_make(PyTypeObject *type, PyObject *const *fields, Py_ssize_t count);

#endif
