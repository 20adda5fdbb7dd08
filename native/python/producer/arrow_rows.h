/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of Arrow data as Python objects. Producer.append_rows passes the rows that an unusable arena did not take to the
 * program, which sends them elsewhere. Nothing here reads an arena.
 */
#ifndef PYTHON_PRODUCER_ARROW_ROWS_H
#define PYTHON_PRODUCER_ARROW_ROWS_H

#include "format/arrow_rows.h"
#include "python/common/module_state.h"

/* Adds the rows from `start` on to a list, as tuples of the arguments of Producer.send. They are read by way of `rows`.
 * `topic` replaces the column, or is NULL. Returns false with an exception set. */
bool arrow_rows_add(const struct module_state *state, PyObject *list, const struct arrow_batch *batch, int64_t start,
                    struct arrow_rows *rows, PyObject *topic);

#endif
