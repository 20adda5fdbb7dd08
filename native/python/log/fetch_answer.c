/* SPDX-License-Identifier: Apache-2.0
 *
 * The response to a fetch (Kafka's FetchResponse, versions 4 to 17): the bytes around the records, which are sent from
 * their file.
 *
 *   frame      size i32 | correlation id i32 | (tags) | throttle time i32 | (error i16 | session id i32, from 7 on) |
 *              topics | (tags)
 *   topic      name: text, or id: 16 bytes from 13 on | partitions | (tags)
 *   partition  number i32 | error i16 | high watermark i64 | last stable offset i64 |
 *              (log start offset i64, from 5 on) | aborted transactions | (nearer replica i32, from 11 on) |
 *              length of the records | records | (tags)
 *   aborted    producer id i64 | first offset i64 | (tags)
 *
 *   pieces     [ bytes | range of a file | bytes | range of a file | ... | bytes ]
 *
 * Lengths and tags are those of fetch_request.c. No records have length 0, never null. Partitions of one topic that
 * follow each other share one name, as in Kafka's own responses.
 */
#include "base/bytes.h"
#include "format/varint.h"
#include "python/common/arguments.h"
#include "python/log/fetch.h"
#include "python/log/log.h"

enum {
    TOPIC_ID_SIZE = 16,
    ABORTED_FIELD_COUNT = 2,
    NO_REPLICA = -1,
    FRAME_SIZE_MAX = 40,     /* of bytes around the topics */
    PARTITION_SIZE_MAX = 80, /* of bytes around a topic's name, aborted transactions and one partition's records */
    ABORTED_SIZE_MAX = 17,   /* of bytes of one aborted transaction */
};

/* One partition of the answer: borrowed from the caller's objects. */
struct found {
    PyObject *topic; /* str, or bytes of TOPIC_ID_SIZE */
    const char *name;
    Py_ssize_t name_size;
    PyObject *records; /* a range of a file, or None */
    PyObject *aborted; /* a tuple: of each transaction its producer id and its first offset */
    int64_t records_size;
    int64_t end_offset;
    int64_t start_offset;
    int64_t stable_offset;
    int32_t partition;
    int16_t error;
};

struct writer {
    int64_t version;
    uint8_t *cursor;
    uint8_t *piece; /* the first byte that is in no piece yet */
    PyObject *pieces;
    int64_t frame_size;
};

/* ---- the caller's objects ---- */

static bool is_tuple_of(PyObject *object, Py_ssize_t size)
{
    return PyTuple_Check(object) && PyTuple_GET_SIZE(object) == size;
}

static bool topic_read(PyObject *topic, struct found *found)
{
    found->topic = topic;
    if (PyBytes_Check(topic)) {
        found->name = PyBytes_AS_STRING(topic);
        found->name_size = PyBytes_GET_SIZE(topic);
        return found->name_size == TOPIC_ID_SIZE;
    }
    found->name = PyUnicode_Check(topic) ? PyUnicode_AsUTF8AndSize(topic, &found->name_size) : NULL;
    return found->name != NULL && found->name_size <= INT16_MAX;
}

static bool aborted_read(PyObject *aborted, struct found *found)
{
    bool is_right = PyTuple_Check(aborted);
    for (Py_ssize_t i = 0; is_right && i < PyTuple_GET_SIZE(aborted); i++) {
        is_right = is_tuple_of(PyTuple_GET_ITEM(aborted, i), ABORTED_FIELD_COUNT);
    }
    found->aborted = aborted;
    return is_right;
}

/* Returns false if the object is not a PartitionRecords (log/server/fetch_frames.py), or with an exception set. */
static bool found_read(PyObject *object, struct found *found)
{
    if (!is_tuple_of(object, FOUND_FIELD_COUNT) || !is_tuple_of(PyTuple_GET_ITEM(object, 0), WANTED_FIELD_COUNT)) {
        return false;
    }
    PyObject *wanted = PyTuple_GET_ITEM(object, 0);
    found->partition = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(wanted, 1));
    found->error = (int16_t)PyLong_AsLong(PyTuple_GET_ITEM(object, 1));
    found->end_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(object, 2));
    found->start_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(object, 3));
    found->records = PyTuple_GET_ITEM(object, 4);
    found->records_size = 0;
    if (found->records != Py_None) {
        if (!is_tuple_of(found->records, RANGE_FIELD_COUNT)) {
            return false;
        }
        found->records_size = PyLong_AsLongLong(PyTuple_GET_ITEM(found->records, 2));
    }
    found->stable_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(object, 5));
    return topic_read(PyTuple_GET_ITEM(wanted, 0), found) && aborted_read(PyTuple_GET_ITEM(object, 6), found) &&
           found->records_size >= 0 && PyErr_Occurred() == NULL;
}

/* Returns an array of all partitions, and the most bytes around their records, or NULL with an exception set. */
static struct found *all_found_read(PyObject *tuple, Py_ssize_t count, size_t *size_max)
{
    struct found *found = PyMem_New(struct found, (size_t)count + 1);
    *size_max = FRAME_SIZE_MAX;
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        if (!found_read(PyTuple_GET_ITEM(tuple, i), &found[i])) {
            PyMem_Free(found);
            return PyErr_Occurred()
                       ? NULL
                       : (void *)PyErr_Format(PyExc_TypeError, "item %zd is no PartitionRecords", i);
        }
        size_t aborted_count = (size_t)PyTuple_GET_SIZE(found[i].aborted);
        *size_max += PARTITION_SIZE_MAX + (size_t)found[i].name_size + aborted_count * ABORTED_SIZE_MAX;
    }
    return found != NULL ? found : (void *)PyErr_NoMemory();
}

/* ---- fields ---- */

static bool is_flexible(const struct writer *writer)
{
    return writer->version >= FETCH_FLEXIBLE_VERSION;
}

static void int16_write(struct writer *writer, int16_t value)
{
    store_be16(writer->cursor, (uint16_t)value);
    writer->cursor += sizeof value;
}

static void int32_write(struct writer *writer, int32_t value)
{
    store_be32(writer->cursor, (uint32_t)value);
    writer->cursor += sizeof value;
}

static void int64_write(struct writer *writer, int64_t value)
{
    store_be64(writer->cursor, (uint64_t)value);
    writer->cursor += sizeof value;
}

/* The length of an array or of records. */
static void length_write(struct writer *writer, int64_t length)
{
    if (is_flexible(writer)) {
        writer->cursor = varint_write_groups(writer->cursor, (uint64_t)length + 1);
    } else {
        int32_write(writer, (int32_t)length);
    }
}

static void no_tags_write(struct writer *writer)
{
    if (is_flexible(writer)) {
        *writer->cursor++ = 0;
    }
}

static void topic_write(struct writer *writer, const struct found *found)
{
    if (PyUnicode_Check(found->topic)) {
        if (is_flexible(writer)) {
            length_write(writer, found->name_size);
        } else {
            int16_write(writer, (int16_t)found->name_size);
        }
    }
    memcpy(writer->cursor, found->name, (size_t)found->name_size);
    writer->cursor += found->name_size;
}

/* ---- pieces ---- */

static bool piece_put(struct writer *writer, PyObject *piece, int64_t size)
{
    writer->frame_size += size;
    return PyList_Append(writer->pieces, piece) == 0;
}

/* Ends the piece of bytes that is being written. */
static bool bytes_put(struct writer *writer)
{
    Py_ssize_t size = writer->cursor - writer->piece;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)writer->piece, size);
    bool is_put = bytes != NULL && piece_put(writer, bytes, size);
    Py_XDECREF(bytes);
    writer->piece = writer->cursor;
    return is_put;
}

/* Returns false with an exception set. */
static bool aborted_write(struct writer *writer, PyObject *aborted)
{
    length_write(writer, PyTuple_GET_SIZE(aborted));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(aborted); i++) {
        PyObject *one = PyTuple_GET_ITEM(aborted, i);
        int64_write(writer, PyLong_AsLongLong(PyTuple_GET_ITEM(one, 0)));
        int64_write(writer, PyLong_AsLongLong(PyTuple_GET_ITEM(one, 1)));
        no_tags_write(writer);
    }
    return PyErr_Occurred() == NULL;
}

static bool partition_write(struct writer *writer, const struct found *found)
{
    int32_write(writer, found->partition);
    int16_write(writer, found->error);
    int64_write(writer, found->end_offset);
    int64_write(writer, found->stable_offset);
    if (writer->version >= 5) {
        int64_write(writer, found->start_offset);
    }
    if (!aborted_write(writer, found->aborted)) {
        return false;
    }
    if (writer->version >= 11) {
        int32_write(writer, NO_REPLICA);
    }
    length_write(writer, found->records_size);
    bool is_put = found->records == Py_None ||
                  (bytes_put(writer) && piece_put(writer, found->records, found->records_size));
    no_tags_write(writer);
    return is_put;
}

/* Returns how many partitions from the first on are of the same topic. */
static Py_ssize_t neighbour_count(const struct found *found, Py_ssize_t count)
{
    Py_ssize_t neighbours = 1;
    while (neighbours < count && PyObject_RichCompareBool(found[neighbours].topic, found->topic, Py_EQ) == 1) {
        neighbours++;
    }
    return neighbours;
}

static Py_ssize_t topic_count(const struct found *found, Py_ssize_t count)
{
    Py_ssize_t topics = 0;
    for (Py_ssize_t i = 0; i < count; i += neighbour_count(found + i, count - i)) {
        topics++;
    }
    return topics;
}

static bool topics_write(struct writer *writer, const struct found *found, Py_ssize_t count)
{
    bool is_written = true;
    length_write(writer, topic_count(found, count));
    for (Py_ssize_t i = 0; i < count && is_written;) {
        Py_ssize_t end = i + neighbour_count(found + i, count - i);
        topic_write(writer, &found[i]);
        length_write(writer, end - i);
        for (; i < end && is_written; i++) {
            is_written = partition_write(writer, &found[i]);
        }
        no_tags_write(writer);
    }
    return is_written;
}

/* ---- the frame ---- */

static void frame_begin(struct writer *writer, const struct fetch_answer *given)
{
    int32_write(writer, 0); /* frame_end writes the size */
    int32_write(writer, (int32_t)given->correlation_id);
    no_tags_write(writer);
    int32_write(writer, 0);
    if (writer->version >= 7) {
        int16_write(writer, (int16_t)given->error);
        int32_write(writer, (int32_t)given->session_id);
    }
}

/* The first piece is a bytes object that no other code has seen yet. */
static bool frame_end(struct writer *writer)
{
    bool has_rest = writer->cursor > writer->piece;
    if (has_rest && !bytes_put(writer)) {
        return false;
    }
    int64_t size = writer->frame_size - (int64_t)sizeof(int32_t);
    if (size > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "an answer of %lld bytes", (long long)size);
        return false;
    }
    store_be32((uint8_t *)PyBytes_AS_STRING(PyList_GET_ITEM(writer->pieces, 0)), (uint32_t)size);
    return true;
}

static PyObject *answer_write(struct writer *writer, const struct fetch_answer *given, const struct found *found,
                              Py_ssize_t count)
{
    writer->pieces = PyList_New(0);
    if (writer->pieces == NULL) {
        return NULL;
    }
    frame_begin(writer, given);
    if (!topics_write(writer, found, count)) {
        Py_CLEAR(writer->pieces);
        return NULL;
    }
    no_tags_write(writer);
    if (!frame_end(writer)) {
        Py_CLEAR(writer->pieces);
    }
    return writer->pieces;
}

PyObject *fetch_answer_write(const struct fetch_answer *given)
{
    size_t size_max;
    if (!PyList_Check(given->found)) {
        return PyErr_Format(PyExc_TypeError, "found must be a list");
    }
    PyObject *tuple = PyList_AsTuple(given->found); /* `found` points into its items */
    if (tuple == NULL) {
        return NULL;
    }
    Py_ssize_t found_count = PyTuple_GET_SIZE(tuple);
    struct found *found = all_found_read(tuple, found_count, &size_max);
    uint8_t *bytes = found != NULL ? PyMem_Malloc(size_max) : NULL;
    PyObject *pieces = NULL;
    if (bytes != NULL) {
        struct writer writer = {.version = given->version, .cursor = bytes, .piece = bytes};
        pieces = answer_write(&writer, given, found, found_count);
    } else if (found != NULL) {
        PyErr_NoMemory();
    }
    PyMem_Free(bytes);
    PyMem_Free(found);
    Py_DECREF(tuple);
    return pieces;
}

PyObject *py_module_write_fetch(PyObject *module, const struct py_module_write_fetch *given)
{
    const struct fetch_answer answer = {.version = given->version,
                                        .correlation_id = given->correlation_id,
                                        .error = given->error,
                                        .session_id = given->session_id,
                                        .found = given->found};
    (void)module;
    return fetch_answer_write(&answer);
}
