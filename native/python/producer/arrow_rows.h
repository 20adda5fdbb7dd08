/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts rows of Arrow data to Python objects. If an arena becomes unusable, Producer.append_rows passes the rows
 * that were not appended to the program, which sends them elsewhere. This code reads no arena.
 */
#ifndef PYTHON_PRODUCER_ARROW_ROWS_H
#define PYTHON_PRODUCER_ARROW_ROWS_H

#include "format/arrow_rows.h"
#include "python/common/module_state.h"

/* Adds the rows from `start` on to a list, as tuples of the arguments of Producer.send. `rows` is used as a buffer.
 * `topic` overrides the column, or is NULL. Returns false with an exception set. */
bool arrow_rows_add(const struct module_state *state, PyObject *list, const struct arrow_batch *batch, int64_t start,
                    struct arrow_rows *rows, PyObject *topic);

#endif
