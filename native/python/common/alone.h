/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that lock an object.
 *
 * This extension requires that one thread at a time runs in it: its changes are complete where it releases the GIL. A
 * Python without the GIL has critical sections instead. Each call from Python enters the critical section of one
 * object: the Arena if the call works on an arena, otherwise its own object. Like the GIL, a critical section is
 * released when the thread blocks or lets other threads run. It is also released while the thread waits for another
 * section. So after a call of Python, or after entering another section, a call must read the object again.
 *
 * With the GIL, these macros compile to nothing.
 */
#ifndef PYTHON_COMMON_ALONE_H
#define PYTHON_COMMON_ALONE_H

#include <Python.h>

/* BEGIN and END are in one block, and no jump leaves the block. BOTH locks two objects at the same time. Nested
 * sections would not lock both: the outer section may be released during the wait for the inner one. */
#ifdef Py_GIL_DISABLED
#define ALONE_BEGIN(object) Py_BEGIN_CRITICAL_SECTION(object)
#define ALONE_END() Py_END_CRITICAL_SECTION()
#define ALONE_BOTH_BEGIN(object, other) Py_BEGIN_CRITICAL_SECTION2(object, other)
#define ALONE_BOTH_END() Py_END_CRITICAL_SECTION2()
#else
#define ALONE_BEGIN(object) { (void)(object);
#define ALONE_END() }
#define ALONE_BOTH_BEGIN(object, other) { (void)(object); (void)(other);
#define ALONE_BOTH_END() }
#endif

/* Defines alone_NAME for a method with one argument or none that works only on its object. */
#define ALONE(name)                                                    \
    static PyObject *alone_##name(PyObject *self, PyObject *argument)  \
    {                                                                  \
        PyObject *result;                                              \
        ALONE_BEGIN(self);                                             \
        result = name(self, argument);                                 \
        ALONE_END();                                                   \
        return result;                                                 \
    }

#endif
