/* SPDX-License-Identifier: Apache-2.0
 *
 * Fetch requests (Kafka's FetchRequest, versions 4 to 17) -> Python objects. A consumer sends one repeatedly, so no
 * Python code runs for each of its fields.
 *
 *   request    limits | topics | forgotten topics, from 7 on | rack: text, from 11 on | tags
 *   limits     (replica i32, below 15) | longest wait i32 | fewest bytes i32 | most bytes i32 | isolation level i8 |
 *              (session id i32 | session epoch i32, from 7 on)
 *   topic      name: text, or id: 16 bytes from 13 on | partitions | tags
 *   partition  number i32 | (leader epoch i32, from 9 on) | offset i64 | (last fetched epoch i32, from 12 on) |
 *              (log start offset i64, from 5 on) | most bytes i32 | tags
 *   forgotten  name or id | numbers i32 | tags
 *
 * A length is an i32, that of a text an i16. From version 12 on, a length is an unsigned varint of one more, and 0
 * stands for null. Only then do structures end with tags (KIP-482), none of which concerns a log on one host.
 *
 * The bytes are input. Each step checks the end of the request, all arrays together have at most ELEMENTS_MAX elements,
 * and the last byte has to be used. The ValueError names the fault.
 */
#include "base/bytes.h"
#include "format/varint.h"
#include "python/common/arguments.h"
#include "python/log/fetch.h"
#include "python/log/log.h"

enum {
    ELEMENTS_MAX = 50000,
    TAGS_MAX = 32, /* in one place */
    TOPIC_ID_SIZE = 16,
    FORGOTTEN_FIELD_COUNT = 2,
    LENGTH_WIDTH = 32, /* bits of a varint */
    NO_EPOCH = -1,
};

struct reader {
    const uint8_t *cursor;
    const uint8_t *end;
    Py_ssize_t size;
    int64_t version;
    int64_t elements_left;
    PyTypeObject *wanted_type;
};

static bool is_since(const struct reader *reader, int64_t version)
{
    return reader->version >= version;
}

static bool is_flexible(const struct reader *reader)
{
    return is_since(reader, FETCH_FLEXIBLE_VERSION);
}

/* Returns NULL with ValueError set if there are fewer bytes. */
static const uint8_t *bytes_take(struct reader *reader, size_t size)
{
    const uint8_t *start = reader->cursor;
    if ((size_t)(reader->end - start) < size) {
        PyErr_SetString(PyExc_ValueError, "a fetch that ends too early");
        return NULL;
    }
    reader->cursor += size;
    return start;
}

static bool varint_take(struct reader *reader, uint64_t *value)
{
    if (varint_read_bits(&reader->cursor, reader->end, LENGTH_WIDTH, value) != STATUS_OK) {
        PyErr_SetString(PyExc_ValueError, "a number of a fetch that does not end");
        return false;
    }
    return true;
}

static bool tags_skip(struct reader *reader)
{
    uint64_t count = 0;
    if (is_flexible(reader) && !varint_take(reader, &count)) {
        return false;
    }
    if (count > TAGS_MAX) {
        PyErr_Format(PyExc_ValueError, "%llu tags in a fetch, of which at most %d may come", (unsigned long long)count,
                     TAGS_MAX);
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t tag, size;
        if (!varint_take(reader, &tag) || !varint_take(reader, &size) || bytes_take(reader, size) == NULL) {
            return false;
        }
    }
    return true;
}

/* Reads a length of fixed size, or a varint. -1 is null. */
static bool length_take(struct reader *reader, size_t fixed_size, int64_t *length)
{
    uint64_t one_more;
    if (is_flexible(reader)) {
        bool is_read = varint_take(reader, &one_more);
        *length = is_read ? (int64_t)one_more - 1 : 0;
        return is_read;
    }
    const uint8_t *bytes = bytes_take(reader, fixed_size);
    if (bytes != NULL) {
        *length = fixed_size == sizeof(int16_t) ? (int16_t)load_be16(bytes) : (int32_t)load_be32(bytes);
    }
    return bytes != NULL;
}

/* The length of an array; each element takes a byte at least. */
static bool count_take(struct reader *reader, int64_t *count)
{
    if (!length_take(reader, sizeof(int32_t), count)) {
        return false;
    }
    *count = *count < 0 ? 0 : *count;
    reader->elements_left -= *count;
    if (*count > reader->end - reader->cursor || reader->elements_left < 0) {
        PyErr_Format(PyExc_ValueError, "an array of %lld elements in a fetch of %zd bytes", (long long)*count,
                     reader->size);
        return false;
    }
    return true;
}

static PyObject *text_take(struct reader *reader)
{
    int64_t size;
    if (!length_take(reader, sizeof(int16_t), &size)) {
        return NULL;
    }
    if (size < 0) {
        return PyErr_Format(PyExc_ValueError, "a text of a fetch is null");
    }
    const uint8_t *bytes = bytes_take(reader, (size_t)size);
    return bytes == NULL ? NULL : PyUnicode_DecodeUTF8((const char *)bytes, (Py_ssize_t)size, "replace");
}

static PyObject *topic_take(struct reader *reader)
{
    if (!is_since(reader, 13)) {
        return text_take(reader);
    }
    const uint8_t *bytes = bytes_take(reader, TOPIC_ID_SIZE);
    return bytes == NULL ? NULL : PyBytes_FromStringAndSize((const char *)bytes, TOPIC_ID_SIZE);
}

/* Appends an object to a list, and takes over the reference. NULL is passed on as a failure. */
static bool list_put(PyObject *list, PyObject *object)
{
    bool is_put = object != NULL && PyList_Append(list, object) == 0;
    Py_XDECREF(object);
    return is_put;
}

/* Leaves the value of a missing field unchanged. */
static bool int32_take(struct reader *reader, bool is_there, int32_t *value)
{
    const uint8_t *bytes = is_there ? bytes_take(reader, sizeof *value) : NULL;
    if (bytes != NULL) {
        *value = (int32_t)load_be32(bytes);
    }
    return bytes != NULL || !is_there;
}

static bool int64_take(struct reader *reader, bool is_there, int64_t *value)
{
    const uint8_t *bytes = is_there ? bytes_take(reader, sizeof *value) : NULL;
    if (bytes != NULL) {
        *value = (int64_t)load_be64(bytes);
    }
    return bytes != NULL || !is_there;
}

/* ---- partitions ---- */

struct wanted {
    int32_t partition;
    int32_t leader_epoch;
    int64_t offset;
    int32_t size_max;
};

static bool wanted_take(struct reader *reader, struct wanted *wanted)
{
    int32_t last_fetched_epoch;
    int64_t log_start_offset;
    wanted->leader_epoch = NO_EPOCH;
    return int32_take(reader, true, &wanted->partition) &&
           int32_take(reader, is_since(reader, 9), &wanted->leader_epoch) &&
           int64_take(reader, true, &wanted->offset) &&
           int32_take(reader, is_since(reader, 12), &last_fetched_epoch) &&
           int64_take(reader, is_since(reader, 5), &log_start_offset) &&
           int32_take(reader, true, &wanted->size_max) && tags_skip(reader);
}

/* topic, partition, offset, size_max, leader_epoch */
static PyObject *wanted_make(PyTypeObject *type, PyObject *topic, const struct wanted *wanted)
{
    PyObject *made = type->tp_alloc(type, WANTED_FIELD_COUNT);
    if (made != NULL) {
        PyTuple_SET_ITEM(made, 0, Py_NewRef(topic));
        PyTuple_SET_ITEM(made, 1, PyLong_FromLong(wanted->partition));
        PyTuple_SET_ITEM(made, 2, PyLong_FromLongLong(wanted->offset));
        PyTuple_SET_ITEM(made, 3, PyLong_FromLong(wanted->size_max));
        PyTuple_SET_ITEM(made, 4, PyLong_FromLong(wanted->leader_epoch));
    }
    if (PyErr_Occurred() != NULL) {
        Py_CLEAR(made);
    }
    return made;
}

static bool wanted_list_fill(struct reader *reader, PyObject *topic, PyObject *list)
{
    int64_t count;
    bool is_read = count_take(reader, &count);
    for (int64_t i = 0; is_read && i < count; i++) {
        struct wanted wanted;
        is_read = wanted_take(reader, &wanted) && list_put(list, wanted_make(reader->wanted_type, topic, &wanted));
    }
    return is_read;
}

static bool forgotten_list_fill(struct reader *reader, PyObject *topic, PyObject *list)
{
    int64_t count;
    bool is_read = count_take(reader, &count);
    for (int64_t i = 0; is_read && i < count; i++) {
        int32_t partition;
        is_read = int32_take(reader, true, &partition) && list_put(list, Py_BuildValue("(Oi)", topic, partition));
    }
    return is_read;
}

/* ---- topics ---- */

typedef bool partitions_fill(struct reader *reader, PyObject *topic, PyObject *list);

/* Reads a list of the items of each topic. */
static PyObject *topics_take(struct reader *reader, partitions_fill *fill)
{
    int64_t count;
    PyObject *list = count_take(reader, &count) ? PyList_New(0) : NULL;
    for (int64_t i = 0; list != NULL && i < count; i++) {
        PyObject *topic = topic_take(reader);
        if (topic == NULL || !fill(reader, topic, list) || !tags_skip(reader)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(topic);
    }
    return list;
}

/* ---- the request ---- */

struct limits {
    int32_t max_wait_ms;
    int32_t min_bytes;
    int32_t max_bytes;
    int32_t isolation_level;
    int32_t session_id;
    int32_t session_epoch;
};

static bool limits_take(struct reader *reader, struct limits *limits)
{
    int32_t replica_id;
    const uint8_t *isolation_level = NULL;
    *limits = (struct limits){.session_id = NO_SESSION, .session_epoch = FINAL_EPOCH};
    bool is_read = int32_take(reader, !is_since(reader, 15), &replica_id) &&
                   int32_take(reader, true, &limits->max_wait_ms) && int32_take(reader, true, &limits->min_bytes) &&
                   int32_take(reader, true, &limits->max_bytes) &&
                   (isolation_level = bytes_take(reader, sizeof *isolation_level)) != NULL &&
                   int32_take(reader, is_since(reader, 7), &limits->session_id) &&
                   int32_take(reader, is_since(reader, 7), &limits->session_epoch);
    limits->isolation_level = isolation_level == NULL ? 0 : (int8_t)*isolation_level;
    return is_read;
}

static bool end_take(struct reader *reader)
{
    if (is_since(reader, 11)) {
        PyObject *rack = text_take(reader);
        if (rack == NULL) {
            return false;
        }
        Py_DECREF(rack);
    }
    if (!tags_skip(reader)) {
        return false;
    }
    if (reader->cursor != reader->end) {
        PyErr_Format(PyExc_ValueError, "a fetch of %zd bytes, of which %zd are used", reader->size,
                     reader->size - (reader->end - reader->cursor));
        return false;
    }
    return true;
}

/* max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, wanted, forgotten: takes over both
 * lists. */
static PyObject *request_make(PyTypeObject *type, const struct limits *limits, PyObject *wanted, PyObject *forgotten)
{
    PyObject *request = type->tp_alloc(type, REQUEST_FIELD_COUNT);
    if (request == NULL) {
        Py_DECREF(wanted);
        Py_DECREF(forgotten);
        return NULL;
    }
    PyTuple_SET_ITEM(request, 0, PyLong_FromLong(limits->max_wait_ms));
    PyTuple_SET_ITEM(request, 1, PyLong_FromLong(limits->min_bytes));
    PyTuple_SET_ITEM(request, 2, PyLong_FromLong(limits->max_bytes));
    PyTuple_SET_ITEM(request, 3, PyLong_FromLong(limits->isolation_level));
    PyTuple_SET_ITEM(request, 4, PyLong_FromLong(limits->session_id));
    PyTuple_SET_ITEM(request, 5, PyLong_FromLong(limits->session_epoch));
    PyTuple_SET_ITEM(request, 6, wanted);
    PyTuple_SET_ITEM(request, 7, forgotten);
    if (PyErr_Occurred() != NULL) {
        Py_CLEAR(request);
    }
    return request;
}

static PyObject *request_take(struct reader *reader, PyTypeObject *type)
{
    struct limits limits;
    PyObject *wanted = limits_take(reader, &limits) ? topics_take(reader, wanted_list_fill) : NULL;
    if (wanted == NULL) {
        return NULL;
    }
    PyObject *forgotten = is_since(reader, 7) ? topics_take(reader, forgotten_list_fill) : PyList_New(0);
    if (forgotten == NULL || !end_take(reader)) {
        Py_DECREF(wanted);
        Py_XDECREF(forgotten);
        return NULL;
    }
    return request_make(type, &limits, wanted, forgotten);
}

PyObject *fetch_request_read(const uint8_t *bytes, Py_ssize_t size, int64_t version, PyObject *request_type,
                             PyObject *wanted_type)
{
    if (!is_tuple_type(request_type) || !is_tuple_type(wanted_type)) {
        return PyErr_Format(PyExc_TypeError, "both types must be subclasses of tuple without fields of their own");
    }
    struct reader reader = {.cursor = bytes,
                            .end = bytes + size,
                            .size = size,
                            .version = version,
                            .elements_left = ELEMENTS_MAX,
                            .wanted_type = (PyTypeObject *)wanted_type};
    return request_take(&reader, (PyTypeObject *)request_type);
}

PyObject *py_module_read_fetch(PyObject *module, const struct py_module_read_fetch *given)
{
    Py_buffer body;
    (void)module;
    if (PyObject_GetBuffer(given->body, &body, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *request =
        fetch_request_read(body.buf, body.len, given->version, given->request_type, given->wanted_type);
    PyBuffer_Release(&body);
    return request;
}
