/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that have an object alone.
 *
 * The code of this extension relies on one thread at a time: its changes are whole again wherever it lets go of the
 * GIL. A Python without the GIL has critical sections instead. Each of our entries takes that of one object, its owner:
 * the Arena for everything that works on an arena, else the object itself. A critical section is let go of wherever the
 * GIL would be, when a thread blocks or lets others run, and it ends when another thread holds the next one too long to
 * spin for. So a call must not rely on what it read of its owner before it called Python, or took another section.
 *
 * With the GIL, nothing is left of this.
 */
#ifndef PYTHON_COMMON_ALONE_H
#define PYTHON_COMMON_ALONE_H

#include <Python.h>

/* In pairs, in one block; nothing jumps out between them. BOTH for a call that works on two objects at once: a section
 * within another one has only the inner object for certain, because a wait for it lets go of the outer one. */
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
