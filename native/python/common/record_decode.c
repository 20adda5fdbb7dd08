/* SPDX-License-Identifier: Apache-2.0
 *
 * Wire bytes of an uncompressed batch -> Python records. Only for inspection and tests: a sender does not decode.
 */
#include "python/common/record_decode.h"

#include "format/record.h"
#include "format/record_batch.h"
#include "python/common/errors.h"
#include "python/common/items.h"

static PyObject *bytes_or_none(const uint8_t *start, int32_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)start, size);
}

static PyObject *headers_to_list(const struct record_view *view)
{
    const uint8_t *cursor = view->headers;
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; i < view->header_count && list != NULL; i++) {
        struct record_header_view header;
        PyObject *pair = NULL;
        if (record_header_read(&cursor, view->headers_end, &header) == STATUS_OK) {
            pair = Py_BuildValue("(NN)", PyUnicode_DecodeUTF8((const char *)header.key, header.key_size, "replace"),
                                 bytes_or_none(header.value, header.value_size));
        }
        if (!list_put(list, pair)) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *record_to_tuple(const struct record_view *view, int64_t base_timestamp)
{
    return Py_BuildValue("(iLNNN)", view->offset_delta, (long long)(base_timestamp + view->timestamp_delta),
                         bytes_or_none(view->key, view->key_size), bytes_or_none(view->value, view->value_size),
                         headers_to_list(view));
}

/* The bytes were validated: every record can be read. */
static PyObject *records_to_list(const uint8_t *cursor, const uint8_t *end, int64_t base_timestamp)
{
    PyObject *list = PyList_New(0);
    while (cursor < end && list != NULL) {
        struct record_view view;
        PyObject *record = NULL;
        if (record_read(&cursor, end, &view) == STATUS_OK) {
            record = record_to_tuple(&view, base_timestamp);
        }
        if (!list_put(list, record)) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *record_decode_bytes(struct module_state *state, const uint8_t *bytes, size_t size)
{
    struct record_batch_header header;
    struct error error;
    if (record_batch_validate(bytes, size, &error) != STATUS_OK) {
        return raise_error(state, &error);
    }
    if (record_batch_header_read(bytes, size, &header) != STATUS_OK) {
        return raise_status(state, STATUS_CORRUPT);
    }
    return records_to_list(bytes + RECORD_BATCH_HEADER_SIZE, bytes + size, header.base_timestamp);
}

PyObject *py_module_decode_batch(PyObject *module, const Py_buffer *bytes, const struct py_module_decode_batch *given)
{
    (void)given;
    return record_decode_bytes(PyModule_GetState(module), bytes->buf, (size_t)bytes->len);
}
