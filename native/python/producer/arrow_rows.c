/* SPDX-License-Identifier: Apache-2.0 */
#include "python/producer/arrow_rows.h"

#include "python/common/errors.h"
#include "python/common/items.h"

enum { ROWS_AT_ONCE = 64 };

/* Some rows of a batch, column by column. A missing column is null in each row. */
struct columns {
    struct arrow_slice values[ROWS_AT_ONCE];
    struct arrow_slice keys[ROWS_AT_ONCE];
    struct arrow_slice topics[ROWS_AT_ONCE];
    int32_t partitions[ROWS_AT_ONCE];
    int64_t timestamps_ms[ROWS_AT_ONCE];
    struct arrow_header_run runs[ROWS_AT_ONCE];
    struct record_header *headers; /* PyMem; or NULL */
};

/* ---- read ---- */

static void columns_clear(struct columns *columns)
{
    for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) {
        columns->keys[i].size = columns->topics[i].size = -1;
        columns->partitions[i] = -1;
        columns->timestamps_ms[i] = NO_TIMESTAMP;
        columns->runs[i].count = 0;
    }
    columns->headers = NULL;
}

static enum status headers_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                struct columns *columns, struct error *error)
{
    int64_t header_count;
    RETURN_IF_FAILED(arrow_headers_count(batch, start, count, &header_count, error));
    if (header_count >= PY_SSIZE_T_MAX / (int64_t)sizeof *columns->headers) {
        return error_set(error, STATUS_INVALID, "the rows have too many headers");
    }
    columns->headers = PyMem_Malloc((size_t)header_count * sizeof *columns->headers);
    if (columns->headers == NULL) {
        return error_set(error, STATUS_OS, "there is no memory for the headers of rows");
    }
    return arrow_headers_read(batch, start, count, columns->headers, columns->runs, error);
}

static enum status columns_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                struct columns *columns, struct error *error)
{
    columns_clear(columns);
    RETURN_IF_FAILED(arrow_text_read(&batch->value, start, count, columns->values, error));
    if (batch->has_key) {
        RETURN_IF_FAILED(arrow_text_read(&batch->key, start, count, columns->keys, error));
    }
    if (batch->has_topic) {
        RETURN_IF_FAILED(arrow_text_read(&batch->topic, start, count, columns->topics, error));
    }
    if (batch->has_partition) {
        RETURN_IF_FAILED(arrow_partitions_read(batch, start, count, columns->partitions, error));
    }
    if (batch->has_timestamp) {
        RETURN_IF_FAILED(arrow_timestamps_read(batch, start, count, columns->timestamps_ms, error));
    }
    return batch->has_headers ? headers_read(batch, start, count, columns, error) : STATUS_OK;
}

/* ---- objects ---- */

static PyObject *bytes_of(const void *start, int32_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(start, size);
}

static PyObject *text_of(const void *start, int32_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyUnicode_DecodeUTF8(start, size, "backslashreplace");
}

static PyObject *number_of(int64_t number, int64_t none)
{
    return number == none ? Py_NewRef(Py_None) : PyLong_FromLongLong(number);
}

/* Returns None without headers. */
static PyObject *headers_of(const struct arrow_header_run *run)
{
    if (run->count == 0) {
        return Py_NewRef(Py_None);
    }
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; i < run->count && list != NULL; i++) {
        const struct record_header *header = &run->headers[i];
        PyObject *pair = Py_BuildValue("(NN)", text_of(header->key, header->key_size),
                                       bytes_of(header->value, header->value_size));
        if (!list_put(list, pair)) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static bool row_add(PyObject *list, const struct columns *columns, uint32_t i, PyObject *topic)
{
    PyObject *name = topic != NULL ? Py_NewRef(topic) : text_of(columns->topics[i].start, columns->topics[i].size);
    return list_put(list, Py_BuildValue("(NNNNNN)", name, bytes_of(columns->values[i].start, columns->values[i].size),
                                        bytes_of(columns->keys[i].start, columns->keys[i].size),
                                        headers_of(&columns->runs[i]), number_of(columns->partitions[i], -1),
                                        number_of(columns->timestamps_ms[i], NO_TIMESTAMP)));
}

static bool some_rows_add(const struct module_state *state, PyObject *list, const struct arrow_batch *batch,
                          int64_t start, uint32_t count, PyObject *topic)
{
    struct columns columns;
    struct error error;
    bool is_done = columns_read(batch, start, &count, &columns, &error) == STATUS_OK;
    if (!is_done) {
        raise_error(state, &error);
    }
    for (uint32_t i = 0; i < count && is_done; i++) {
        is_done = row_add(list, &columns, i, topic);
    }
    PyMem_Free(columns.headers);
    return is_done;
}

bool arrow_rows_add(const struct module_state *state, PyObject *list, const struct arrow_batch *batch, int64_t start,
                    PyObject *topic)
{
    bool is_done = true;
    for (int64_t left = batch->row_count - start; left > 0 && is_done; left -= ROWS_AT_ONCE) {
        uint32_t count = left < ROWS_AT_ONCE ? (uint32_t)left : ROWS_AT_ONCE;
        is_done = some_rows_add(state, list, batch, batch->row_count - left, count, topic);
    }
    return is_done;
}
