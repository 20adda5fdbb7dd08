/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer.append_rows: appends rows of Arrow data, which are read in place. The data is any object with the Arrow
 * PyCapsule interface (__arrow_c_array__, __arrow_c_stream__). No Arrow library is linked or imported.
 *
 * OWNERS. The schema and the array of a capsule belong to the capsule, which is referenced until the end. An array of a
 * stream is released before the next one is requested. A stream may run Python code, or threads that wait for the GIL,
 * so it is called without the GIL.
 *
 * UNSENT. If the arena becomes unusable and the producer has a fallback, the data is read to its end, because a stream
 * can be read only once. The attribute `unsent` of the exception has the rows that were not appended.
 */
#include "arena/closing.h"
#include "arena/counters.h"
#include "arena/lost_memory.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/producer/arrow_rows.h"
#include "python/producer/producer_many.h"

struct arrow_call {
    struct many many;
    struct topic_note *topic; /* the topic of the argument, which overrides the column, or NULL */
    PyObject *topic_given;
    struct arrow_rows *rows; /* the rows of the chunk */
    PyObject *exception; /* the reason why the rows were not appended */
    PyObject *unsent;    /* a list of rows that are not appended, or NULL while rows are appended */
};

STATIC_CHECK((int)CHUNK_COUNT_MAX <= (int)ARROW_ROWS_MAX);

static bool arrow_raise(const struct arrow_call *call, const struct error *error)
{
    raise_error(call->many.producer->state, error);
    return false;
}

/* ---- a chunk of rows ---- */

static COLD bool raise_no_topic(const struct arrow_call *call, int64_t row)
{
    raise_format(call->many.producer->state, STATUS_INVALID, "row %lld has no topic: fill the column 'topic', or "
                 "give one topic for all rows as the argument topic", (long long)row);
    return false;
}

static bool slices_are_equal(const struct arrow_slice *left, const struct arrow_slice *right)
{
    return left->size == right->size &&
           (left->start == right->start || memcmp(left->start, right->start, (size_t)left->size) == 0);
}

/* Compares the topic of the previous row first, because topics repeat. Otherwise, looks in the registry's table. */
static bool row_topic(struct arrow_call *call, int64_t start, struct chunk *chunk, uint32_t i)
{
    const struct arrow_slice *slices = call->rows->topics;
    if (i > 0 && slices_are_equal(&slices[i], &slices[i - 1])) {
        chunk->topics[i] = chunk->topics[i - 1];
        return true;
    }
    if (slices[i].size < 0) {
        return raise_no_topic(call, start + i);
    }
    return many_find_topic_by_name(&call->many, slices[i].start, (uint32_t)slices[i].size, &chunk->topics[i]);
}

/* Finds the topics of the rows. For a new topic, Python code may run, which waits. If an exception of a later row is
 * set, it is saved meanwhile. */
static void fill_topics(struct arrow_call *call, int64_t start, struct chunk *chunk)
{
    PyObject *former = PyErr_Occurred() ? exception_take() : NULL;
    for (uint32_t i = 0; i < chunk->count; i++) {
        if (UNLIKELY(!row_topic(call, start, chunk, i))) {
            (void)many_end_chunk_before(&call->many, chunk, i);
        }
    }
    if (former != NULL && !PyErr_Occurred()) {
        exception_put(former);
    } else {
        Py_XDECREF(former);
    }
}

static void row_fill(const struct arrow_call *call, struct chunk *chunk, uint32_t i)
{
    const struct arrow_rows *rows = call->rows;
    bool has_timestamp = rows->timestamps_ms[i] != NO_TIMESTAMP;
    chunk->records[i].record =
        (struct record){.key = rows->keys[i].start,
                        .value = rows->values[i].start,
                        .key_size = rows->keys[i].size,
                        .value_size = rows->values[i].size,
                        .headers = rows->runs[i].headers,
                        .header_count = rows->runs[i].count,
                        .timestamp_ms = has_timestamp ? rows->timestamps_ms[i] : call->many.now_ms};
    chunk->partitions[i] = rows->partitions[i];
    chunk->topics[i] = call->topic;
}

/* An invalid row sets an exception and ends the chunk before it. An earlier invalid row replaces it. */
static void chunk_fill(struct arrow_call *call, const struct arrow_batch *batch, int64_t start, struct chunk *chunk)
{
    struct error error;
    if (UNLIKELY(arrow_rows_read(batch, start, &chunk->count, call->rows, &error) != STATUS_OK)) {
        (void)arrow_raise(call, &error);
        (void)many_end_chunk_before(&call->many, chunk, chunk->count);
    }
    for (uint32_t i = 0; i < chunk->count; i++) {
        row_fill(call, chunk, i);
        (void)many_measure_record(&call->many, chunk, i);
    }
    if (call->topic == NULL) { /* the last step, because it may wait */
        fill_topics(call, start, chunk);
    }
}

/* ---- rows that the arena did not take ---- */

/* If the producer has a fallback for this exception, saves the exception. Otherwise returns false. */
static COLD bool unsent_begin(struct arrow_call *call)
{
    const struct producer_object *producer = call->many.producer;
    const struct arena *arena = producer->appender->arena->core;
    if (producer->fallback == NULL || arena == NULL ||
        (arena_takes_records(arena) && !arena_is_poisoned(arena) && !arena_is_lost(arena))) {
        return false;
    }
    call->exception = exception_take();
    call->unsent = PyList_New(0);
    return call->unsent != NULL;
}

/* Sets the saved exception, with the rows, unless another exception is set. */
static COLD void unsent_end(struct arrow_call *call)
{
    if (call->exception == NULL) {
        return;
    }
    if (PyErr_Occurred() || PyObject_SetAttrString(call->exception, "unsent", call->unsent) < 0) {
        Py_DECREF(call->exception);
    } else {
        exception_put(call->exception);
    }
    Py_XDECREF(call->unsent);
}

static COLD bool unsent_add(struct arrow_call *call, const struct arrow_batch *batch, int64_t start)
{
    return arrow_rows_add(call->many.producer->state, call->unsent, batch, start, call->rows, call->topic_given);
}

/* ---- batches ---- */

static bool batch_append(struct arrow_call *call, const struct ArrowSchema *schema, const struct ArrowArray *array)
{
    struct arrow_batch batch;
    struct error error;
    if (arrow_batch_open(schema, array, &batch, &error) != STATUS_OK) {
        return arrow_raise(call, &error);
    }
    if (call->topic_given == NULL && !batch.has_topic && batch.row_count > 0) {
        return raise_no_topic(call, 0);
    }
    batch.has_topic &= call->topic_given == NULL;
    if (UNLIKELY(call->unsent != NULL)) {
        return unsent_add(call, &batch, 0);
    }
    bool is_done = true;
    for (int64_t start = 0; start < batch.row_count && is_done; start += CHUNK_COUNT_MAX) {
        struct chunk chunk;
        int64_t left = batch.row_count - start;
        chunk.count = left < CHUNK_COUNT_MAX ? (uint32_t)left : CHUNK_COUNT_MAX;
        chunk.has_timestamps = batch.has_timestamp;
        chunk_fill(call, &batch, start, &chunk);
        is_done = many_append_chunk(&call->many, &chunk);
        if (UNLIKELY(!is_done) && unsent_begin(call)) {
            return unsent_add(call, &batch, start);
        }
    }
    return is_done;
}

static bool array_append(struct arrow_call *call, PyObject *batch)
{
    PyObject *pair = PyObject_CallMethod(batch, "__arrow_c_array__", NULL);
    bool is_done = false;
    if (pair == NULL) {
        return false;
    }
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_SetString(PyExc_TypeError, "__arrow_c_array__() must return two capsules");
    } else {
        const struct ArrowSchema *schema = PyCapsule_GetPointer(PyTuple_GET_ITEM(pair, 0), "arrow_schema");
        const struct ArrowArray *array =
            schema == NULL ? NULL : PyCapsule_GetPointer(PyTuple_GET_ITEM(pair, 1), "arrow_array");
        is_done = array != NULL && batch_append(call, schema, array);
    }
    Py_DECREF(pair);
    return is_done;
}

/* ---- streams ---- */

static COLD bool raise_stream(struct ArrowArrayStream *stream, int code)
{
    const char *message = stream->get_last_error == NULL ? NULL : stream->get_last_error(stream);
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_OSError, "the Arrow stream failed (%d): %s", code, message == NULL ? "" : message);
    }
    return false;
}

static bool stream_next(struct ArrowArrayStream *stream, struct ArrowArray *array)
{
    int code;
    *array = (struct ArrowArray){0};
    Py_BEGIN_ALLOW_THREADS
    code = stream->get_next(stream, array);
    Py_END_ALLOW_THREADS
    return code == 0 || raise_stream(stream, code);
}

static bool batches_append(struct arrow_call *call, struct ArrowArrayStream *stream, const struct ArrowSchema *schema)
{
    struct error error;
    bool is_done = true;
    if (arrow_schema_check(schema, &error) != STATUS_OK) {
        return arrow_raise(call, &error);
    }
    while (is_done) {
        struct ArrowArray array;
        if (!stream_next(stream, &array)) {
            return false;
        }
        if (array.release == NULL) {
            return true;
        }
        is_done = batch_append(call, schema, &array);
        array.release(&array);
    }
    return false;
}

static bool stream_append(struct arrow_call *call, PyObject *table)
{
    PyObject *capsule = PyObject_CallMethod(table, "__arrow_c_stream__", NULL);
    struct ArrowArrayStream *stream = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "arrow_array_stream");
    struct ArrowSchema schema = {0};
    bool is_done = false;
    if (stream != NULL && stream->release != NULL) {
        int code;
        Py_BEGIN_ALLOW_THREADS
        code = stream->get_schema(stream, &schema);
        Py_END_ALLOW_THREADS
        is_done = code == 0 ? batches_append(call, stream, &schema) : raise_stream(stream, code);
    } else if (stream != NULL) {
        PyErr_SetString(PyExc_ValueError, "the Arrow stream was released: it can be read once");
    }
    if (schema.release != NULL) {
        schema.release(&schema);
    }
    Py_XDECREF(capsule);
    return is_done;
}

/* ---- the call ---- */

static bool source_append(struct arrow_call *call, PyObject *source)
{
    if (PyObject_HasAttrString(source, "__arrow_c_array__")) {
        return array_append(call, source);
    }
    if (PyObject_HasAttrString(source, "__arrow_c_stream__")) {
        return stream_append(call, source);
    }
    PyErr_Format(PyExc_TypeError, "append_arrow() takes a record batch, a table or another object with "
                 "__arrow_c_array__ or __arrow_c_stream__, not %.80s", Py_TYPE(source)->tp_name);
    return false;
}

PyObject *py_producer_append_rows(struct producer_object *self, const struct py_producer_append_rows *given)
{
    struct arrow_rows rows;
    struct arrow_call call = {.topic_given = given->topic == Py_None ? NULL : given->topic, .rows = &rows};
    arrow_rows_begin(&rows);
    bool has_begun = many_begin(self, &call.many);
    bool is_ready =
        has_begun && (call.topic_given == NULL || many_find_topic(&call.many, call.topic_given, &call.topic));
    if (is_ready || unsent_begin(&call)) {
        (void)source_append(&call, given->batch);
    }
    arrow_rows_free(&rows);
    unsent_end(&call);
    return has_begun ? many_end(&call.many, !PyErr_Occurred()) : NULL;
}
