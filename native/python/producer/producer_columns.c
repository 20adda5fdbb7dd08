/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer.append_columns: appends rows from sequences of Python objects.
 */
#include "python/common/errors.h"
#include "python/producer/producer_many.h"

/* The sequences have one length. They are copied to tuples, so that no thread changes them while a call waits. */
enum column { VALUES, KEYS, TIMESTAMPS, HEADERS, PARTITIONS, COLUMN_COUNT };

struct columns_call {
    struct many many;
    PyObject *columns[COLUMN_COUNT]; /* NULL if it was not given */
    int32_t partition;               /* the partition of all records, or -1 if the argument is not one number */
    struct topic_note *topic;
};

static PyObject *cell(const struct columns_call *call, enum column column, Py_ssize_t index)
{
    return call->columns[column] == NULL ? Py_None : PyTuple_GET_ITEM(call->columns[column], index);
}

/* Returns false with an exception set if it is not a sequence with as many items as the values. */
static bool column_parse(struct columns_call *call, enum column column, PyObject *given, const char *name)
{
    if (given == NULL || (given == Py_None && column != VALUES)) {
        return true;
    }
    PyObject *tuple = call->columns[column] = PySequence_Tuple(given);
    Py_ssize_t count = tuple == NULL ? 0 : PyTuple_GET_SIZE(call->columns[VALUES]);
    if (tuple != NULL && PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_ValueError, "%s has %zd items for %zd values", name, PyTuple_GET_SIZE(tuple), count);
        return false;
    }
    return tuple != NULL;
}

static bool columns_parse(struct columns_call *call, const struct module_state *state,
                          const struct py_producer_append_columns *given)
{
    bool has_number = given->partition != NULL && PyLong_Check(given->partition);
    call->partition = -1;
    return column_parse(call, VALUES, given->values, "values") && column_parse(call, KEYS, given->keys, "keys") &&
           column_parse(call, TIMESTAMPS, given->timestamps_ms, "timestamps_ms") &&
           column_parse(call, HEADERS, given->headers, "headers") &&
           (has_number ? partition_parse(state, given->partition, &call->partition)
                       : column_parse(call, PARTITIONS, given->partition, "partition"));
}

static inline bool row_partition(const struct columns_call *call, Py_ssize_t index, int32_t *partition)
{
    PyObject *object = cell(call, PARTITIONS, index);
    *partition = call->partition;
    return LIKELY(object == Py_None) || partition_parse(call->many.producer->state, object, partition);
}

static inline bool row_fill(const struct columns_call *call, Py_ssize_t index, struct chunk *chunk, uint32_t i,
                            struct held *held)
{
    const struct module_state *state = call->many.producer->state;
    struct record *record = &chunk->records[i].record;
    PyObject *value = PyTuple_GET_ITEM(call->columns[VALUES], index);
    PyObject *timestamp_ms = cell(call, TIMESTAMPS, index);
    PyObject *headers = cell(call, HEADERS, index);
    record->headers = NULL;
    record->header_count = 0;
    record->timestamp_ms = call->many.now_ms;
    chunk->topics[i] = call->topic;
    return (LIKELY(timestamp_ms == Py_None) || timestamp_parse(state, timestamp_ms, &record->timestamp_ms)) &&
           bytes_parse(state, cell(call, KEYS, index), "key", &record->key, &record->key_size, held) &&
           bytes_parse(state, value, "value", &record->value, &record->value_size, held) &&
           (LIKELY(headers == Py_None) || headers_parse(state, headers, record, held)) &&
           row_partition(call, index, &chunk->partitions[i]);
}

/* Fills the chunk up to the first wrong record, for which it sets an exception. */
static void chunk_fill(const struct columns_call *call, Py_ssize_t start, struct chunk *chunk, struct held *held)
{
    for (uint32_t i = 0; i < chunk->count; i++) {
        if (UNLIKELY(!row_fill(call, start + (Py_ssize_t)i, chunk, i, held))) {
            (void)many_end_chunk_before(&call->many, chunk, i);
        } else {
            (void)many_measure_record(&call->many, chunk, i);
        }
    }
}

static bool columns_append(struct columns_call *call)
{
    Py_ssize_t left = PyTuple_GET_SIZE(call->columns[VALUES]);
    bool is_done = true;
    for (Py_ssize_t start = 0; left > 0 && is_done; start += CHUNK_COUNT_MAX, left -= CHUNK_COUNT_MAX) {
        struct chunk chunk;
        struct held held = {NULL};
        chunk.count = left < CHUNK_COUNT_MAX ? (uint32_t)left : CHUNK_COUNT_MAX;
        chunk.has_timestamps = call->columns[TIMESTAMPS] != NULL;
        chunk_fill(call, start, &chunk, &held);
        is_done = many_append_chunk(&call->many, &chunk);
        held_release(&held);
    }
    return is_done;
}

PyObject *py_producer_append_columns(struct producer_object *self, const struct py_producer_append_columns *given)
{
    struct columns_call call = {.topic = NULL};
    PyObject *receipt = NULL;
    if (columns_parse(&call, self->state, given) && many_begin(self, &call.many)) {
        bool is_done = many_find_topic(&call.many, given->topic, &call.topic) && columns_append(&call);
        receipt = many_end(&call.many, is_done);
    }
    for (int i = 0; i < COLUMN_COUNT; i++) {
        Py_XDECREF(call.columns[i]);
    }
    return receipt;
}
