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

PyObject *raise_record(const struct module_state *state, Py_ssize_t index)
{
    return raise_format(state, STATUS_CORRUPT, "record %zd of the batch cannot be read", index);
}

PyObject *raise_rest(const struct module_state *state, ptrdiff_t rest)
{
    return raise_format(state, STATUS_CORRUPT, "%zd bytes follow the last record of the batch", (Py_ssize_t)rest);
}

PyObject *raise_count(const struct module_state *state, int64_t record_count, Py_ssize_t size)
{
    return raise_format(state, STATUS_CORRUPT, "%" PRId64 " records cannot be in %zd bytes", record_count, size);
}
