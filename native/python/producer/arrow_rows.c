/* SPDX-License-Identifier: Apache-2.0 */
#include "python/producer/arrow_rows.h"

#include "python/common/errors.h"
#include "python/common/record_decode.h"

static PyObject *text_of(const void *start, int32_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyUnicode_DecodeUTF8(start, size, "backslashreplace");
}

static PyObject *number_of(int64_t number, int64_t none)
{
    return number == none ? Py_NewRef(Py_None) : PyLong_FromLongLong(number);
}

static PyObject *header_pair(const void *headers, uint32_t index)
{
    const struct record_header *header = (const struct record_header *)headers + index;
    return Py_BuildValue("(NN)", text_of(header->key, header->key_size),
                         bytes_or_none(header->value, header->value_size));
}

/* Returns None without headers. */
static PyObject *headers_of(const struct arrow_header_run *run)
{
    return run->count == 0 ? Py_NewRef(Py_None) : list_of((uint32_t)run->count, header_pair, run->headers);
}

static bool row_add(PyObject *list, const struct arrow_rows *rows, uint32_t i, PyObject *topic)
{
    PyObject *name = topic != NULL ? Py_NewRef(topic) : text_of(rows->topics[i].start, rows->topics[i].size);
    return list_put(list, Py_BuildValue("(NNNNNN)", name, bytes_or_none(rows->values[i].start, rows->values[i].size),
                                        bytes_or_none(rows->keys[i].start, rows->keys[i].size),
                                        headers_of(&rows->runs[i]), number_of(rows->partitions[i], -1),
                                        number_of(rows->timestamps_ms[i], NO_TIMESTAMP)));
}

bool arrow_rows_add(const struct module_state *state, PyObject *list, const struct arrow_batch *batch, int64_t start,
                    struct arrow_rows *rows, PyObject *topic)
{
    bool is_done = true;
    for (uint32_t count; start < batch->row_count && is_done; start += count) {
        struct error error;
        count = (uint32_t)(batch->row_count - start < ARROW_ROWS_MAX ? batch->row_count - start : ARROW_ROWS_MAX);
        is_done = arrow_rows_read(batch, start, &count, rows, &error) == STATUS_OK;
        if (!is_done) {
            raise_error(state, &error);
        }
        for (uint32_t i = 0; i < count && is_done; i++) {
            is_done = row_add(list, rows, i, topic);
        }
    }
    return is_done;
}
