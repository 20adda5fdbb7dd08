/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and serving logs, and the commits of their groups: functions of the module.
 */
#ifndef PYTHON_LOG_LOG_H
#define PYTHON_LOG_LOG_H

#include "python/common/module_methods.h"

/* Fields are stored straight into the objects of a type, so it must be laid out as a tuple. */
static inline bool is_tuple_type(PyObject *object)
{
    return PyType_Check(object) && PyType_IsSubtype((PyTypeObject *)object, &PyTuple_Type) &&
           ((PyTypeObject *)object)->tp_basicsize == PyTuple_Type.tp_basicsize;
}

#endif
