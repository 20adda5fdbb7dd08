/* SPDX-License-Identifier: Apache-2.0
 *
 * The tuples that Python passes to a pump or a batch loop (links, streams, topics, places), and the report of the
 * delivered batches.
 */
#ifndef PYTHON_SENDER_PART_H
#define PYTHON_SENDER_PART_H

#include <Python.h>

#include "format/produce.h"
#include "sender/delivered.h"

/* The next three return false with an exception set if a field is invalid. */
bool part_is_tuple(PyObject *object, Py_ssize_t size);
bool part_take_number(PyObject *tuple, Py_ssize_t index, int64_t min, int64_t max, int64_t *value);

/* Reads a name, which is valid as long as the tuple. */
bool part_take_name(PyObject *tuple, Py_ssize_t index, const char **name, uint16_t *size);

/* Reads fields 0 and 1: the name, which is valid as long as the tuple, and the id or None. */
bool part_take_topic(PyObject *tuple, struct produce_topic *topic);

/* Returns the fields of `Delivered` (shmaccum.sender.sinks.sink) up to its rows, or None if there is no batch. Takes
 * over `rows`. Returns NULL with an exception set if `rows` is NULL, or if there is no memory. */
PyObject *delivered_report(const struct delivered *delivered, uint64_t last_begun_ns, PyObject *rows);
PyObject *delivered_row(uint32_t partition_index, uint32_t batch_count, uint64_t record_count, uint64_t size,
                        int index_error);

#endif
