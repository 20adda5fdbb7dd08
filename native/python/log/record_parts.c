/* SPDX-License-Identifier: Apache-2.0 */
#include "python/log/record_parts.h"

#include "python/common/arguments.h"
#include "python/common/errors.h"

static PyObject *header_to_pair(const uint8_t **cursor, const uint8_t *end)
{
    struct record_header_view header;
    if (record_header_read(cursor, end, &header) != STATUS_OK) {
        return PyErr_Format(PyExc_SystemError, "a header that was read once cannot be read again");
    }
    return Py_BuildValue("(NN)", PyUnicode_DecodeUTF8((const char *)header.key, header.key_size, "replace"),
                         bytes_or_none(header.value, header.value_size));
}

PyObject *headers_to_tuple(const uint8_t *cursor, const uint8_t *end, int32_t count)
{
    PyObject *headers = PyTuple_New(count);
    for (int32_t i = 0; i < count && headers != NULL; i++) {
        PyObject *pair = header_to_pair(&cursor, end);
        if (pair == NULL) {
            Py_CLEAR(headers);
        } else {
            PyTuple_SET_ITEM(headers, i, pair);
        }
    }
    return headers;
}

PyObject *raise_walk(const struct module_state *state, const struct record_walk *walk)
{
    const struct log_records *records = walk->records;
    if (records->record_count > (records->end - records->start) / RECORD_SIZE_MIN) {
        return raise_format(state, STATUS_CORRUPT, "%" PRId64 " records cannot be in %zd bytes", records->record_count,
                            (Py_ssize_t)(records->end - records->start));
    }
    if (walk->count < records->record_count) {
        return raise_format(state, STATUS_CORRUPT, "record %" PRId64 " of the batch cannot be read", walk->count);
    }
    return raise_format(state, STATUS_CORRUPT, "%zd bytes follow the last record of the batch",
                        (Py_ssize_t)(records->end - walk->cursor));
}
