/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers of Arrow columns as bytes objects, which an Arrow library uses without a copy.
 */
#ifndef PYTHON_LOG_COLUMN_OBJECTS_H
#define PYTHON_LOG_COLUMN_OBJECTS_H

#include "format/record_columns.h"
#include "python/common/module_state.h"

struct column_objects {
    uint32_t count;
    PyObject *bytes[COLUMN_BUFFERS_MAX];
};

/* Makes objects of these sizes, and columns that write into them. Returns false with an exception set. Requires that
 * `objects` is all zeros. Call column_objects_release afterwards in either case. */
bool column_objects_new(const struct record_columns_room *room, bool has_headers, struct column_objects *objects,
                        struct record_columns *columns);

/* Truncates the objects to the bytes that the columns use. Returns false with an exception set. */
bool column_objects_cut(const struct record_columns *columns, struct column_objects *objects);

/* Returns the columns in the order of log/files/columns.py, or NULL with an exception set. */
PyObject *column_objects_tuple(const struct record_columns *columns, const struct column_objects *objects);

void column_objects_release(struct column_objects *objects);

#endif
