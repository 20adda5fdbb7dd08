/* SPDX-License-Identifier: Apache-2.0 */
#include "python/log/column_objects.h"

bool column_objects_new(const struct record_columns_room *room, bool has_headers, struct column_objects *objects,
                        struct record_columns *columns)
{
    size_t sizes[COLUMN_BUFFERS_MAX];
    void *buffers[COLUMN_BUFFERS_MAX];
    objects->count = record_columns_sizes(room, has_headers, sizes);
    for (uint32_t i = 0; i < objects->count; i++) {
        objects->bytes[i] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizes[i]);
        if (objects->bytes[i] == NULL) {
            return false;
        }
        buffers[i] = PyBytes_AS_STRING(objects->bytes[i]);
    }
    record_columns_begin(columns, room, has_headers, buffers);
    return true;
}

bool column_objects_cut(const struct record_columns *columns, struct column_objects *objects)
{
    size_t sizes[COLUMN_BUFFERS_MAX];
    const struct record_columns_room used = record_columns_used(columns);
    (void)record_columns_sizes(&used, columns->has_headers, sizes);
    for (uint32_t i = 0; i < objects->count; i++) {
        Py_ssize_t size = (Py_ssize_t)sizes[i];
        if (PyBytes_GET_SIZE(objects->bytes[i]) != size && _PyBytes_Resize(&objects->bytes[i], size) < 0) {
            return false;
        }
    }
    return true;
}

void column_objects_release(struct column_objects *objects)
{
    for (uint32_t i = 0; i < objects->count; i++) {
        Py_CLEAR(objects->bytes[i]);
    }
}

/* ---- the columns as Python objects ---- */

static PyObject *bytes_column_tuple(const struct bytes_column *column, PyObject *const bytes[3])
{
    return Py_BuildValue("(LLOOO)", (long long)column->used.cell_count, (long long)column->null_count, bytes[0],
                         bytes[1], bytes[2]);
}

static PyObject *headers_tuple(const struct record_columns *columns, PyObject *const *bytes)
{
    if (!columns->has_headers) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(LOONN)", (long long)columns->header_null_count, bytes[COLUMN_BUFFERS_HEADERS],
                         bytes[COLUMN_BUFFERS_HEADERS + 1],
                         bytes_column_tuple(&columns->header_key, &bytes[COLUMN_BUFFERS_HEADER_KEY]),
                         bytes_column_tuple(&columns->header_value, &bytes[COLUMN_BUFFERS_HEADER_VALUE]));
}

PyObject *column_objects_tuple(const struct record_columns *columns, const struct column_objects *objects)
{
    PyObject *const *bytes = objects->bytes;
    return Py_BuildValue("(LOOONNN)", (long long)columns->row_count, bytes[0], bytes[1], bytes[2],
                         bytes_column_tuple(&columns->key, &bytes[COLUMN_BUFFERS_KEY]),
                         bytes_column_tuple(&columns->value, &bytes[COLUMN_BUFFERS_VALUE]),
                         headers_tuple(columns, bytes));
}
