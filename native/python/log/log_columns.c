/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_columns: reads records of batches of a log into buffers of Arrow columns. These are bytes objects, which an
 * Arrow library uses without a copy. The Spark source reads records this way. No object is made per record.
 *
 * The caller has checked the CRCs and has decompressed the batches. The bytes may be in a file that another process
 * changes during the call: see record_columns.h.
 */
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/module_methods.h"
#include "python/log/column_objects.h"

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
    PyObject *sequence; /* holds the tuples */
    struct log_batch *batches;
    Py_ssize_t count; /* the number of batches whose bytes are held */
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

/* Returns false with an exception set. Call batches_release afterwards in either case. */
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

/* ---- the two passes ---- */

static PyObject *batch_raise(const struct log_batches *batches, Py_ssize_t index, enum status status)
{
    if (status == STATUS_RECORD_TOO_LARGE) {
        return raise_format(batches->state, STATUS_INVALID, "a column would be larger than 2 GiB: pass fewer batches");
    }
    return raise_format(batches->state, STATUS_CORRUPT, "the records of the batch at offset %" PRId64 " cannot be read",
                        batches->batches[index].records.base_offset);
}

static PyObject *columns_fill(const struct log_batches *batches, const struct record_columns_room *room,
                              bool has_headers)
{
    struct column_objects objects = {0};
    struct record_columns columns;
    PyObject *answer = NULL;
    if (column_objects_new(room, has_headers, &objects, &columns)) {
        enum status status = STATUS_OK;
        Py_ssize_t index = 0;
        while (index < batches->count && (status = record_columns_append(&batches->batches[index].records,
                                                                         &batches->range, &columns)) == STATUS_OK) {
            index++;
        }
        answer = status == STATUS_OK ? column_objects_tuple(&columns, &objects) : batch_raise(batches, index, status);
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

PyObject *py_module_decode_columns(PyObject *module, const struct py_module_decode_columns *given)
{
    struct log_batches batches = {.state = PyModule_GetState(module),
                                  .range = {.first = given->first_offset, .end = given->end_offset}};
    PyObject *result = batches_parse(given->batches, &batches) ? columns_decode(&batches, given->has_headers) : NULL;
    batches_release(&batches);
    return result;
}
