/* SPDX-License-Identifier: Apache-2.0 */
#include "python/log/column_objects.h"

#include <string.h>

static void bytes_objects_release(struct bytes_objects *objects)
{
    Py_CLEAR(objects->validity);
    Py_CLEAR(objects->offsets);
    Py_CLEAR(objects->data);
}

void column_objects_release(struct column_objects *objects)
{
    Py_CLEAR(objects->offsets);
    Py_CLEAR(objects->timestamps_us);
    Py_CLEAR(objects->timestamp_types);
    Py_CLEAR(objects->header_validity);
    Py_CLEAR(objects->header_offsets);
    bytes_objects_release(&objects->key);
    bytes_objects_release(&objects->value);
    bytes_objects_release(&objects->header_key);
    bytes_objects_release(&objects->header_value);
}

/* Returns the memory of a new bytes object of `count` cells, or NULL with MemoryError set. */
static void *buffer_new(PyObject **object, int64_t count, size_t cell_size)
{
    *object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((size_t)count * cell_size));
    return *object == NULL ? NULL : PyBytes_AS_STRING(*object);
}

static uint8_t *bits_new(PyObject **object, int64_t count)
{
    int64_t size = (count + 7) / 8;
    uint8_t *bits = buffer_new(object, size, 1);
    return bits == NULL ? NULL : memset(bits, 0, (size_t)size);
}

/* One number more than there are cells, the first of them 0. */
static int32_t *ends_new(PyObject **object, int64_t count)
{
    int32_t *ends = buffer_new(object, count + 1, sizeof *ends);
    if (ends != NULL) {
        ends[0] = 0;
    }
    return ends;
}

static bool bytes_column_new(const struct bytes_room *room, struct bytes_objects *objects, struct bytes_column *column)
{
    *column = (struct bytes_column){.room = *room};
    return (column->validity = bits_new(&objects->validity, room->cell_count)) != NULL &&
           (column->offsets = ends_new(&objects->offsets, room->cell_count)) != NULL &&
           (column->data = buffer_new(&objects->data, room->data_size, 1)) != NULL;
}

static bool headers_new(const struct record_columns_room *room, struct column_objects *objects,
                        struct record_columns *columns)
{
    return (columns->header_validity = bits_new(&objects->header_validity, room->row_count)) != NULL &&
           (columns->header_offsets = ends_new(&objects->header_offsets, room->row_count)) != NULL &&
           bytes_column_new(&room->header_key, &objects->header_key, &columns->header_key) &&
           bytes_column_new(&room->header_value, &objects->header_value, &columns->header_value);
}

bool column_objects_new(const struct record_columns_room *room, struct column_objects *objects,
                        struct record_columns *columns)
{
    columns->row_capacity = room->row_count;
    return (columns->offsets = buffer_new(&objects->offsets, room->row_count, sizeof *columns->offsets)) != NULL &&
           (columns->timestamps_us =
                buffer_new(&objects->timestamps_us, room->row_count, sizeof *columns->timestamps_us)) != NULL &&
           (columns->timestamp_types =
                buffer_new(&objects->timestamp_types, room->row_count, sizeof *columns->timestamp_types)) != NULL &&
           bytes_column_new(&room->key, &objects->key, &columns->key) &&
           bytes_column_new(&room->value, &objects->value, &columns->value) &&
           (!columns->has_headers || headers_new(room, objects, columns));
}

/* ---- shrinking ---- */

static bool buffer_cut(PyObject **object, int64_t count, size_t cell_size)
{
    Py_ssize_t size = (Py_ssize_t)((size_t)count * cell_size);
    return PyBytes_GET_SIZE(*object) == size || _PyBytes_Resize(object, size) == 0;
}

static bool bytes_objects_cut(const struct bytes_column *column, struct bytes_objects *objects)
{
    int64_t count = column->used.cell_count;
    return buffer_cut(&objects->validity, (count + 7) / 8, 1) &&
           buffer_cut(&objects->offsets, count + 1, sizeof *column->offsets) &&
           buffer_cut(&objects->data, column->used.data_size, 1);
}

static bool headers_cut(const struct record_columns *columns, struct column_objects *objects)
{
    int64_t count = columns->row_count;
    return buffer_cut(&objects->header_validity, (count + 7) / 8, 1) &&
           buffer_cut(&objects->header_offsets, count + 1, sizeof *columns->header_offsets) &&
           bytes_objects_cut(&columns->header_key, &objects->header_key) &&
           bytes_objects_cut(&columns->header_value, &objects->header_value);
}

static bool numbers_cut(const struct record_columns *columns, struct column_objects *objects)
{
    int64_t count = columns->row_count;
    return buffer_cut(&objects->offsets, count, sizeof *columns->offsets) &&
           buffer_cut(&objects->timestamps_us, count, sizeof *columns->timestamps_us) &&
           buffer_cut(&objects->timestamp_types, count, sizeof *columns->timestamp_types);
}

bool column_objects_cut(const struct record_columns *columns, struct column_objects *objects)
{
    return numbers_cut(columns, objects) && bytes_objects_cut(&columns->key, &objects->key) &&
           bytes_objects_cut(&columns->value, &objects->value) &&
           (!columns->has_headers || headers_cut(columns, objects));
}

/* ---- the columns as Python objects ---- */

static PyObject *bytes_column_tuple(const struct bytes_column *column, const struct bytes_objects *objects)
{
    return Py_BuildValue("(LLOOO)", (long long)column->used.cell_count, (long long)column->null_count,
                         objects->validity, objects->offsets, objects->data);
}

static PyObject *headers_tuple(const struct record_columns *columns, const struct column_objects *objects)
{
    if (!columns->has_headers) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(LOONN)", (long long)columns->header_null_count, objects->header_validity,
                         objects->header_offsets, bytes_column_tuple(&columns->header_key, &objects->header_key),
                         bytes_column_tuple(&columns->header_value, &objects->header_value));
}

PyObject *column_objects_tuple(const struct record_columns *columns, const struct column_objects *objects)
{
    return Py_BuildValue("(LOOONNN)", (long long)columns->row_count, objects->offsets, objects->timestamps_us,
                         objects->timestamp_types, bytes_column_tuple(&columns->key, &objects->key),
                         bytes_column_tuple(&columns->value, &objects->value), headers_tuple(columns, objects));
}
