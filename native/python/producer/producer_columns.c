/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer.append_columns: rows from sequences of Python objects.
 */
#include "python/common/errors.h"
#include "python/producer/columns.h"
#include "python/producer/producer_many.h"

/* One number for all records, or a column of numbers and None. */
struct partition_argument {
    int32_t number; /* -1 if none was given */
    PyObject *column;
};

static bool partition_argument_parse(const struct module_state *state, PyObject *object, Py_ssize_t count,
                                     struct partition_argument *partition)
{
    *partition = (struct partition_argument){.number = -1};
    if (object == NULL || object == Py_None) {
        return true;
    }
    if (PyLong_Check(object)) {
        return partition_parse(state, object, &partition->number);
    }
    return column_parse(object, "partition", count, &partition->column);
}

static bool row_partition(const struct module_state *state, const struct partition_argument *argument,
                          Py_ssize_t index, int32_t *partition)
{
    PyObject *object = argument->column == NULL ? Py_None : PyTuple_GET_ITEM(argument->column, index);
    *partition = argument->number;
    return LIKELY(object == Py_None) || partition_parse(state, object, partition);
}

struct columns_call {
    struct many many;
    struct columns columns;
    struct partition_argument partition;
    struct topic_note *topic;
};

static inline bool row_fill(const struct columns_call *call, Py_ssize_t index, struct chunk *chunk, uint32_t i,
                            struct held *held)
{
    const struct module_state *state = call->many.producer->state;
    struct record_objects objects = columns_row(&call->columns, index);
    struct record *record = &chunk->records[i].record;
    bool has_timestamp = objects.timestamp_ms != Py_None;
    record->headers = NULL;
    record->header_count = 0;
    record->timestamp_ms = call->many.now_ms;
    chunk->topics[i] = call->topic;
    return (LIKELY(!has_timestamp) || timestamp_parse(state, objects.timestamp_ms, &record->timestamp_ms)) &&
           bytes_parse(state, objects.key, "key", &record->key, &record->key_size, held) &&
           bytes_parse(state, objects.value, "value", &record->value, &record->value_size, held) &&
           (LIKELY(objects.headers == Py_None) || headers_parse(state, objects.headers, record, held)) &&
           row_partition(state, &call->partition, index, &chunk->partitions[i]);
}

/* Fills the chunk up to the first wrong record, for which it sets an exception. */
static void chunk_fill(const struct columns_call *call, Py_ssize_t start, struct chunk *chunk, struct held *held)
{
    for (uint32_t i = 0; i < chunk->count; i++) {
        if (UNLIKELY(!row_fill(call, start + (Py_ssize_t)i, chunk, i, held))) {
            (void)many_row_failed(&call->many, chunk, i);
        } else {
            (void)many_measure(&call->many, chunk, i);
        }
    }
}

static bool columns_append(struct columns_call *call)
{
    Py_ssize_t left = PyTuple_GET_SIZE(call->columns.values);
    bool is_done = true;
    for (Py_ssize_t start = 0; left > 0 && is_done; start += CHUNK_COUNT_MAX, left -= CHUNK_COUNT_MAX) {
        struct chunk chunk;
        struct held held = {NULL};
        chunk.count = left < CHUNK_COUNT_MAX ? (uint32_t)left : CHUNK_COUNT_MAX;
        chunk.has_timestamps = call->columns.timestamps != NULL;
        chunk_fill(call, start, &chunk, &held);
        is_done = many_chunk(&call->many, &chunk);
        held_release(&held);
    }
    return is_done;
}

PyObject *py_producer_append_columns(struct producer_object *self, const struct py_producer_append_columns *given)
{
    struct columns_call call = {.topic = NULL};
    const struct columns columns = {
        .values = given->values, .keys = given->keys, .timestamps = given->timestamps_ms, .headers = given->headers};
    if (!columns_parse(&columns, &call.columns)) {
        return NULL;
    }
    PyObject *receipt = NULL;
    Py_ssize_t value_count = PyTuple_GET_SIZE(call.columns.values);
    if (partition_argument_parse(self->state, given->partition, value_count, &call.partition) &&
        many_begin(self, &call.many)) {
        bool is_done = many_topic(&call.many, given->topic, &call.topic) && columns_append(&call);
        receipt = many_end(&call.many, is_done);
    }
    Py_XDECREF(call.partition.column);
    columns_release(&call.columns);
    return receipt;
}
