/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts a status to an exception of shmaccum/exceptions.py, by a table in errors.c.
 */
#ifndef PYTHON_COMMON_ERRORS_H
#define PYTHON_COMMON_ERRORS_H

#include "base/status.h"
#include "python/common/module_state.h"

/* Imports the classes. Returns false with an exception set. */
bool errors_load(struct module_state *state);

/* Each sets an exception and returns NULL. */
PyObject *raise_error(const struct module_state *state, const struct error *error);
PyObject *raise_status(const struct module_state *state, enum status status);
PyObject *raise_format(const struct module_state *state, enum status status, const char *format, ...);

/* Returns None for STATUS_OK. Any other status is raised. */
PyObject *none_or_raise(const struct module_state *state, enum status status);

/* Take the exception that is set from the interpreter, and raise it again (takes it over). */
PyObject *exception_take(void);
void exception_put(PyObject *exception);

#endif
