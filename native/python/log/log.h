/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading logs: the functions of the module.
 */
#ifndef PYTHON_LOG_LOG_H
#define PYTHON_LOG_LOG_H

#include "python/common/module_state.h"

/* decode_records(records, record_type, base_offset, ...): the records of a batch of a segment log. */
PyObject *log_decode(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* decode_columns(batches, first_offset, end_offset, has_headers): the records of many such batches as Arrow columns. */
PyObject *log_columns(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

#endif
