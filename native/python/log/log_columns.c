/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_columns: records of batches that were read from a log -> the buffers of Arrow columns, as bytes objects, which
 * an Arrow library can take as they are. For whoever reads many records (the Spark source): no object is made per
 * record.
 *
 * The caller has checked the batches' CRCs and decompressed what was compressed. A batch's bytes may lie in a file that
 * somebody changes while we look: see record_columns.h.
 */
#include "format/record_columns.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/log/log.h"

enum { BATCH_FIELD_COUNT = 5 };

static const struct integer_range offset_range = {"an offset", 0, INT64_MAX};
static const struct integer_range timestamp_range = {"timestamp_ms", NO_TIMESTAMP, INT64_MAX};
static const struct integer_range count_range = {"record_count", 0, INT32_MAX};

/* ---- the batches to decode ---- */

struct log_batch {
    Py_buffer bytes;
    struct log_records records;
};

struct log_batches {
    const struct module_state *state;
    PyObject *sequence; /* keeps the tuples */
    struct log_batch *batches;
    Py_ssize_t count; /* of those whose bytes are held */
    struct log_range range;
};

static bool batch_parse(const struct module_state *state, PyObject *fields, struct log_batch *batch)
{
    if (!PyTuple_Check(fields) || PyTuple_GET_SIZE(fields) != BATCH_FIELD_COUNT) {
        PyErr_SetString(PyExc_TypeError, "a batch is a tuple of records, base_offset, base_timestamp_ms, record_count "
                                         "and log_append_time_ms");
        return false;
    }
    struct log_records *records = &batch->records;
    *records = (struct log_records){.log_append_time_ms = NO_TIMESTAMP};
    if (!integer_parse(state, PyTuple_GET_ITEM(fields, 1), &offset_range, &records->base_offset) ||
        !integer_parse(state, PyTuple_GET_ITEM(fields, 2), &timestamp_range, &records->base_timestamp_ms) ||
        !integer_parse(state, PyTuple_GET_ITEM(fields, 3), &count_range, &records->record_count) ||
        !integer_parse_optional(state, PyTuple_GET_ITEM(fields, 4), &timestamp_range, &records->log_append_time_ms) ||
        PyObject_GetBuffer(PyTuple_GET_ITEM(fields, 0), &batch->bytes, PyBUF_SIMPLE) < 0) {
        return false;
    }
    records->start = batch->bytes.buf;
    records->end = records->start + batch->bytes.len;
    return true;
}

static void batches_release(struct log_batches *batches)
{
    while (batches->count > 0) {
        PyBuffer_Release(&batches->batches[--batches->count].bytes);
    }
    PyMem_Free(batches->batches);
    Py_XDECREF(batches->sequence);
}

/* False with an exception set. After it, in any case: batches_release. */
static bool batches_parse(PyObject *given, struct log_batches *batches)
{
    batches->sequence = PySequence_Tuple(given);
    if (batches->sequence == NULL) {
        return false;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(batches->sequence);
    batches->batches = PyMem_Calloc((size_t)count + 1, sizeof *batches->batches);
    if (batches->batches == NULL) {
        PyErr_NoMemory();
        return false;
    }
    while (batches->count < count) {
        PyObject *fields = PyTuple_GET_ITEM(batches->sequence, batches->count);
        if (!batch_parse(batches->state, fields, &batches->batches[batches->count])) {
            return false;
        }
        batches->count++;
    }
    return true;
}

/* ---- the buffers ---- */

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

static void bytes_objects_release(struct bytes_objects *objects)
{
    Py_CLEAR(objects->validity);
    Py_CLEAR(objects->offsets);
    Py_CLEAR(objects->data);
}

static void column_objects_release(struct column_objects *objects)
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

/* The memory of a new bytes object of `count` cells; NULL with MemoryError set. */
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

static bool columns_new(const struct record_columns_room *room, struct column_objects *objects,
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

static PyObject *columns_tuple(const struct record_columns *columns, const struct column_objects *objects)
{
    return Py_BuildValue("(LOOONNN)", (long long)columns->row_count, objects->offsets, objects->timestamps_us,
                         objects->timestamp_types, bytes_column_tuple(&columns->key, &objects->key),
                         bytes_column_tuple(&columns->value, &objects->value), headers_tuple(columns, objects));
}

/* ---- the two passes ---- */

static PyObject *batch_raise(const struct log_batches *batches, Py_ssize_t index, enum status status)
{
    if (status == STATUS_RECORD_TOO_LARGE) {
        return raise_format(batches->state, STATUS_INVALID, "a column would be larger than 2 GiB: give fewer batches");
    }
    return raise_format(batches->state, STATUS_CORRUPT, "the records of the batch at offset %" PRId64 " cannot be read",
                        batches->batches[index].records.base_offset);
}

static PyObject *columns_fill(const struct log_batches *batches, const struct record_columns_room *room,
                              bool has_headers)
{
    struct column_objects objects = {0};
    struct record_columns columns = {.has_headers = has_headers};
    PyObject *answer = NULL;
    if (columns_new(room, &objects, &columns)) {
        enum status status = STATUS_OK;
        Py_ssize_t index = 0;
        while (index < batches->count && (status = record_columns_append(&batches->batches[index].records,
                                                                         &batches->range, &columns)) == STATUS_OK) {
            index++;
        }
        answer = status == STATUS_OK ? columns_tuple(&columns, &objects) : batch_raise(batches, index, status);
    }
    column_objects_release(&objects);
    return answer;
}

static PyObject *columns_decode(const struct log_batches *batches, bool has_headers)
{
    struct record_columns_room room = {0};
    for (Py_ssize_t i = 0; i < batches->count; i++) {
        enum status status = record_columns_measure(&batches->batches[i].records, &batches->range, &room);
        if (status != STATUS_OK) {
            return batch_raise(batches, i, status);
        }
    }
    return columns_fill(batches, &room, has_headers);
}

PyObject *log_columns(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        "decode_columns", {"batches", "first_offset", "end_offset", "has_headers"}, 3, 4};
    struct log_batches batches = {.state = PyModule_GetState(module)};
    PyObject *bound[ARGUMENT_COUNT_MAX];
    bool has_headers = false;
    PyObject *answer = NULL;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !integer_parse(batches.state, bound[1], &offset_range, &batches.range.first) ||
        !integer_parse(batches.state, bound[2], &offset_range, &batches.range.end) ||
        !flag_parse_optional(bound[3], &has_headers)) {
        return NULL;
    }
    if (batches_parse(bound[0], &batches)) {
        answer = columns_decode(&batches, has_headers);
    }
    batches_release(&batches);
    return answer;
}
