/* SPDX-License-Identifier: Apache-2.0
 *
 * The tuples by which Python and a call of the sender understand each other: those in which Python gives the parts of a
 * pump or of a batch loop (links, streams, topics, places), and the one of what a call delivered.
 */
#ifndef PYTHON_SENDER_PART_H
#define PYTHON_SENDER_PART_H

#include <Python.h>

#include "format/produce.h"
#include "sender/delivered.h"

/* The next three are false with an exception set, where a field is not what it should be. */
bool part_is_tuple(PyObject *object, Py_ssize_t size);
bool part_take_number(PyObject *tuple, Py_ssize_t index, int64_t min, int64_t max, int64_t *value);

/* A name stays as long as its tuple. */
bool part_take_name(PyObject *tuple, Py_ssize_t index, const char **name, uint16_t *size);

/* Fields 0 and 1: the name, which stays as long as the tuple, and the id or None. */
bool part_take_topic(PyObject *tuple, struct produce_topic *topic);

/* The fields of `Delivered` (shmaccum.sender.sinks.sink) up to its rows, or None when there is no batch. Takes `rows`
 * over; NULL for them, or without memory: NULL, with an exception set. */
PyObject *delivered_report(const struct delivered *delivered, uint64_t last_begun_ns, PyObject *rows);
PyObject *delivered_row(uint32_t partition_index, uint32_t batch_count, uint64_t record_count, uint64_t size,
                        int index_error);

#endif
