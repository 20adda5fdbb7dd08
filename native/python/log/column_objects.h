/* SPDX-License-Identifier: Apache-2.0
 *
 * The buffers of Arrow columns as bytes objects, which an Arrow library can take as they are.
 */
#ifndef PYTHON_LOG_COLUMN_OBJECTS_H
#define PYTHON_LOG_COLUMN_OBJECTS_H

#include "format/record_columns.h"
#include "python/common/module_state.h"

struct bytes_objects {
    PyObject *validity;
    PyObject *offsets;
    PyObject *data;
};

struct column_objects {
    PyObject *offsets;
    PyObject *timestamps_us;
    PyObject *timestamp_types;
    PyObject *header_validity;
    PyObject *header_offsets;
    struct bytes_objects key;
    struct bytes_objects value;
    struct bytes_objects header_key;
    struct bytes_objects header_value;
};

/* Makes objects of these sizes, and columns that are filled in them. Returns false with an exception set. Call
 * column_objects_release afterwards in either case. */
bool column_objects_new(const struct record_columns_room *room, struct column_objects *objects,
                        struct record_columns *columns);

/* Shrinks the objects to the bytes that the columns use. Returns false with an exception set. */
bool column_objects_cut(const struct record_columns *columns, struct column_objects *objects);

/* The columns as log/files/columns.py names them. Returns NULL with an exception set. */
PyObject *column_objects_tuple(const struct record_columns *columns, const struct column_objects *objects);

void column_objects_release(struct column_objects *objects);

#endif
