/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts a status to an exception of shmaccum/exceptions.py. errors.c has the table.
 */
#ifndef PYTHON_COMMON_ERRORS_H
#define PYTHON_COMMON_ERRORS_H

#include "base/status.h"
#include "python/common/module_state.h"

/* Imports the classes. Returns false with an exception set. */
bool errors_load(struct module_state *state);

/* Each of these sets an exception and returns NULL. */
PyObject *raise_error(const struct module_state *state, const struct error *error);
PyObject *raise_status(const struct module_state *state, enum status status);
PyObject *raise_format(const struct module_state *state, enum status status, const char *format, ...);

/* Returns None for STATUS_OK, and raises any other status. */
PyObject *none_or_raise(const struct module_state *state, enum status status);

/* Take the current exception from the interpreter, and set it again (takes over the reference). */
PyObject *exception_take(void);
void exception_put(PyObject *exception);

#endif
