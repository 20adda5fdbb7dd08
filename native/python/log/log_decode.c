/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of a batch that was read from a log -> Python objects, for the reader of segment logs and for the consumer.
 *
 * The differences from record_decode.c: the batch has its place, so offsets are absolute; a broker may have written it,
 * so offset deltas may have holes (compaction) and one time may hold for all (log append time); it may have been
 * compressed, so the records come without their header. The caller has checked the batch's CRC, or does not want to.
 *
 * The records become instances of the caller's own subclass of tuple, made here field by field: that is what makes
 * reading fast, because no Python code runs per record.
 *
 * Keys and values are bytes objects, or slices of a memoryview of the records where the caller asks for them. A slice
 * holds the memory: the buffer's owner lives as long as the last slice of it.
 */
#include "format/record.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/log/log.h"

enum {
    FIELD_COUNT = 5,          /* offset, timestamp_ms, key, value, headers */
    CONSUMED_FIELD_COUNT = 13, /* those of kafka-python's ConsumerRecord */
    PLACE_FIELD_COUNT = 3,    /* topic, partition, leader_epoch */
    RECORD_SIZE_MIN = 7,      /* of bytes: every part of an empty record takes one */
};

enum timestamp_type { CREATE_TIME, LOG_APPEND_TIME };

struct batch_facts {
    int64_t base_offset;
    int64_t base_timestamp_ms;
    int64_t record_count;
    int64_t log_append_time_ms; /* NO_TIMESTAMP: each record has its own */
    PyObject *place;            /* a tuple that the caller holds; NULL: the records do not tell their partition */
    bool has_key_views;
    bool has_value_views;
};

/* The bytes of the records, and a memoryview of them; NULL: no slice is wanted. */
struct record_bytes {
    Py_buffer buffer;
    PyObject *view;
};

static const struct integer_range offset_range = {"base_offset", 0, INT64_MAX};
static const struct integer_range timestamp_range = {"timestamp_ms", NO_TIMESTAMP, INT64_MAX};
static const struct integer_range count_range = {"record_count", 0, INT32_MAX};

static PyObject *bytes_or_none(const uint8_t *start, int32_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)start, size);
}

/* A part of a record as a slice of the memoryview. */
static PyObject *view_or_none(const struct record_bytes *bytes, const uint8_t *start, int32_t size)
{
    if (size < 0) {
        return Py_NewRef(Py_None);
    }
    Py_ssize_t position = start - (const uint8_t *)bytes->buffer.buf;
    return PySequence_GetSlice(bytes->view, position, position + size);
}

static PyObject *key_object(const struct record_view *view, const struct batch_facts *facts,
                            const struct record_bytes *bytes)
{
    return facts->has_key_views ? view_or_none(bytes, view->key, view->key_size)
                                : bytes_or_none(view->key, view->key_size);
}

static PyObject *value_object(const struct record_view *view, const struct batch_facts *facts,
                              const struct record_bytes *bytes)
{
    return facts->has_value_views ? view_or_none(bytes, view->value, view->value_size)
                                  : bytes_or_none(view->value, view->value_size);
}

static PyObject *header_to_pair(const uint8_t **cursor, const uint8_t *end)
{
    struct record_header_view header;
    if (record_header_read(cursor, end, &header) != STATUS_OK) {
        return PyErr_Format(PyExc_SystemError, "a header that was read once cannot be read again");
    }
    return Py_BuildValue("(NN)", PyUnicode_DecodeUTF8((const char *)header.key, header.key_size, "replace"),
                         bytes_or_none(header.value, header.value_size));
}

static PyObject *headers_to_tuple(const struct record_view *view)
{
    const uint8_t *cursor = view->headers;
    PyObject *headers = PyTuple_New(view->header_count);
    for (int32_t i = 0; i < view->header_count && headers != NULL; i++) {
        PyObject *pair = header_to_pair(&cursor, view->headers_end);
        if (pair == NULL) {
            Py_CLEAR(headers);
        } else {
            PyTuple_SET_ITEM(headers, i, pair);
        }
    }
    return headers;
}

static PyObject *timestamp_object(const struct record_view *view, const struct batch_facts *facts)
{
    int64_t timestamp_ms = facts->log_append_time_ms;
    if (timestamp_ms == NO_TIMESTAMP &&
        __builtin_add_overflow(facts->base_timestamp_ms, view->timestamp_delta, &timestamp_ms)) {
        timestamp_ms = NO_TIMESTAMP;
    }
    return PyLong_FromLongLong(timestamp_ms);
}

/* The fields of a LogRecord. */
static void fields_fill(PyObject *record, const struct record_view *view, const struct batch_facts *facts,
                        const struct record_bytes *bytes)
{
    PyTuple_SET_ITEM(record, 0, PyLong_FromLongLong(facts->base_offset + view->offset_delta));
    PyTuple_SET_ITEM(record, 1, timestamp_object(view, facts));
    PyTuple_SET_ITEM(record, 2, key_object(view, facts, bytes));
    PyTuple_SET_ITEM(record, 3, value_object(view, facts, bytes));
    PyTuple_SET_ITEM(record, 4, headers_to_tuple(view));
}

/* Bytes of all names and values of a record's headers; -1 when it has none. */
static long long headers_size(const struct record_view *view)
{
    long long size = view->header_count == 0 ? -1 : 0;
    const uint8_t *cursor = view->headers;
    struct record_header_view header;
    for (int32_t i = 0; i < view->header_count && record_header_read(&cursor, view->headers_end, &header) == STATUS_OK;
         i++) {
        size += header.key_size + (header.value_size > 0 ? header.value_size : 0);
    }
    return size;
}

/* The fields of a ConsumerRecord, in kafka-python's order. A record has no checksum since magic 2. */
static void consumed_fields_fill(PyObject *record, const struct record_view *view, const struct batch_facts *facts,
                                 const struct record_bytes *bytes)
{
    bool has_log_time = facts->log_append_time_ms != NO_TIMESTAMP;
    for (Py_ssize_t i = 0; i < PLACE_FIELD_COUNT; i++) {
        PyTuple_SET_ITEM(record, i, Py_NewRef(PyTuple_GET_ITEM(facts->place, i)));
    }
    PyTuple_SET_ITEM(record, 3, PyLong_FromLongLong(facts->base_offset + view->offset_delta));
    PyTuple_SET_ITEM(record, 4, timestamp_object(view, facts));
    PyTuple_SET_ITEM(record, 5, PyLong_FromLong(has_log_time ? LOG_APPEND_TIME : CREATE_TIME));
    PyTuple_SET_ITEM(record, 6, key_object(view, facts, bytes));
    PyTuple_SET_ITEM(record, 7, value_object(view, facts, bytes));
    PyTuple_SET_ITEM(record, 8, headers_to_tuple(view));
    PyTuple_SET_ITEM(record, 9, Py_NewRef(Py_None));
    PyTuple_SET_ITEM(record, 10, PyLong_FromLong(view->key_size));
    PyTuple_SET_ITEM(record, 11, PyLong_FromLong(view->value_size));
    PyTuple_SET_ITEM(record, 12, PyLong_FromLongLong(headers_size(view)));
}

static PyObject *record_make(PyTypeObject *type, const struct record_view *view, const struct batch_facts *facts,
                             const struct record_bytes *bytes)
{
    PyObject *record = type->tp_alloc(type, facts->place == NULL ? FIELD_COUNT : CONSUMED_FIELD_COUNT);
    if (record == NULL) {
        return NULL;
    }
    if (facts->place == NULL) {
        fields_fill(record, view, facts, bytes);
    } else {
        consumed_fields_fill(record, view, facts, bytes);
    }
    if (PyErr_Occurred() != NULL) {
        Py_CLEAR(record);
    }
    return record;
}

/* Reads the next record, whose offset must lie above `last_delta`. */
static enum status record_next(const uint8_t **cursor, const uint8_t *end, const struct batch_facts *facts,
                               int32_t last_delta, struct record_view *view)
{
    RETURN_IF_FAILED(record_read(cursor, end, view));
    bool is_in_order = view->offset_delta > last_delta && view->offset_delta <= INT64_MAX - facts->base_offset;
    return is_in_order ? STATUS_OK : STATUS_CORRUPT;
}

static PyObject *records_make(const struct module_state *state, PyTypeObject *type, const struct record_bytes *bytes,
                              const struct batch_facts *facts)
{
    const uint8_t *cursor = bytes->buffer.buf;
    const uint8_t *end = cursor + bytes->buffer.len;
    struct record_view view = {.offset_delta = -1};
    if (facts->record_count > bytes->buffer.len / RECORD_SIZE_MIN) {
        return raise_format(state, STATUS_CORRUPT, "%" PRId64 " records cannot be in %zd bytes", facts->record_count,
                            bytes->buffer.len);
    }
    PyObject *list = PyList_New((Py_ssize_t)facts->record_count);
    for (Py_ssize_t i = 0; i < (Py_ssize_t)facts->record_count && list != NULL; i++) {
        if (record_next(&cursor, end, facts, view.offset_delta, &view) != STATUS_OK) {
            Py_DECREF(list);
            return raise_format(state, STATUS_CORRUPT, "record %zd of the batch cannot be read", i);
        }
        PyObject *record = record_make(type, &view, facts, bytes);
        if (record == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, record);
        }
    }
    if (list != NULL && cursor != end) {
        Py_DECREF(list);
        return raise_format(state, STATUS_CORRUPT, "%td bytes follow the last record of the batch", end - cursor);
    }
    return list;
}

/* NULL or None: no place. */
static bool place_parse(PyObject *given, PyObject **place)
{
    *place = given == Py_None ? NULL : given;
    if (*place != NULL && (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != PLACE_FIELD_COUNT)) {
        PyErr_SetString(PyExc_TypeError, "place is a tuple of topic, partition and leader_epoch");
        return false;
    }
    return true;
}

static bool facts_parse(const struct module_state *state, PyObject *const *bound, struct batch_facts *facts)
{
    facts->log_append_time_ms = NO_TIMESTAMP;
    facts->has_key_views = facts->has_value_views = false;
    return integer_parse(state, bound[2], &offset_range, &facts->base_offset) &&
           integer_parse(state, bound[3], &timestamp_range, &facts->base_timestamp_ms) &&
           integer_parse(state, bound[4], &count_range, &facts->record_count) &&
           integer_parse_optional(state, bound[5], &timestamp_range, &facts->log_append_time_ms) &&
           place_parse(bound[6], &facts->place) && flag_parse_optional(bound[7], &facts->has_key_views) &&
           flag_parse_optional(bound[8], &facts->has_value_views);
}

/* False with an exception set; bytes_release undoes it. */
static bool bytes_open(PyObject *object, const struct batch_facts *facts, struct record_bytes *bytes)
{
    bytes->view = NULL;
    if (PyObject_GetBuffer(object, &bytes->buffer, PyBUF_SIMPLE) < 0) {
        return false;
    }
    if (facts->has_key_views || facts->has_value_views) {
        bytes->view = PyMemoryView_FromObject(object);
        if (bytes->view == NULL) {
            PyBuffer_Release(&bytes->buffer);
            return false;
        }
    }
    return true;
}

static void bytes_release(struct record_bytes *bytes)
{
    Py_XDECREF(bytes->view);
    PyBuffer_Release(&bytes->buffer);
}

PyObject *log_decode(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        "decode_records",
        {"records", "record_type", "base_offset", "base_timestamp_ms", "record_count", "log_append_time_ms",
         "place", "has_key_views", "has_value_views"},
        5,
        9};
    const struct module_state *state = PyModule_GetState(module);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct batch_facts facts;
    struct record_bytes bytes;
    if (!arguments_bind(&signature, args, count, names, bound) || !facts_parse(state, bound, &facts)) {
        return NULL;
    }
    if (!is_tuple_type(bound[1])) {
        return PyErr_Format(PyExc_TypeError, "record_type must be a subclass of tuple without fields of its own");
    }
    if (!bytes_open(bound[0], &facts, &bytes)) {
        return NULL;
    }
    PyObject *records = records_make(state, (PyTypeObject *)bound[1], &bytes, &facts);
    bytes_release(&bytes);
    return records;
}
