/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that lock an object.
 *
 * The code of this extension relies on one thread at a time: its changes are complete wherever it releases the GIL. A
 * Python without the GIL has critical sections instead. Each call from Python enters the critical section of one
 * object, its owner. This is the Arena if the call works on an arena, and otherwise the object itself. Like the GIL, a
 * critical section is released when a thread blocks or lets others run, and also when the thread must wait for the next
 * section. So a call must not rely on what it read of its owner before it called Python or entered another section.
 *
 * With the GIL, these macros compile to nothing.
 */
#ifndef PYTHON_COMMON_ALONE_H
#define PYTHON_COMMON_ALONE_H

#include <Python.h>

/* BEGIN and END are in one block, and no jump leaves it. BOTH locks two objects at once. Nested sections do not,
 * because a wait for the inner object may release the outer one. */
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

/* alone_NAME for a method that takes one argument, or none, and works on the object itself. */
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
