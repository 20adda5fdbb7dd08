/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a status becomes an exception. The classes are Python's (shmaccum/exceptions.py); which status raises which
 * stands in one table in errors.c.
 */
#ifndef PYTHON_COMMON_ERRORS_H
#define PYTHON_COMMON_ERRORS_H

#include "base/status.h"
#include "python/common/module_state.h"

/* Imports the classes. False with an exception set. */
bool errors_load(struct module_state *state);

/* All three set an exception and answer NULL, so that a failure is one line where it happens. */
PyObject *raise_error(const struct module_state *state, const struct error *error);
PyObject *raise_status(const struct module_state *state, enum status status);
PyObject *raise_format(const struct module_state *state, enum status status, const char *format, ...);

/* The exception that is set, taken out of the interpreter's hands, and given back to be raised (steals it). */
PyObject *exception_take(void);
void exception_put(PyObject *exception);

#endif
