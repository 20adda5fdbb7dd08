/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of the tuples in which Python gives the parts of a pump or of a convoy: links, lanes, topics, places.
 * Each function is false with an exception set, where a field is not what it should be.
 */
#ifndef PYTHON_SENDER_PART_H
#define PYTHON_SENDER_PART_H

#include <Python.h>

#include "format/produce.h"

bool part_is_tuple(PyObject *object, Py_ssize_t size);
bool part_take_number(PyObject *tuple, Py_ssize_t index, int64_t min, int64_t max, int64_t *value);

/* A name stays as long as its tuple. */
bool part_take_name(PyObject *tuple, Py_ssize_t index, const char **name, uint16_t *size);

/* Fields 0 and 1: the name, which stays as long as the tuple, and the id or None. */
bool part_take_topic(PyObject *tuple, struct produce_topic *topic);

#endif
