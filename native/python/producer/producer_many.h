/* SPDX-License-Identifier: Apache-2.0
 *
 * Appends many records in one call: from rows to the runs of a receipt.
 *
 *   rows (columns of Python objects, or an Arrow batch)
 *     -> chunk      a partition for each record, and groups (producer/record_chunk.h)
 *     -> runs         the records of a group in one batch (producer/receipt.h)
 *
 * No Python object is made per record. The GIL is released while a call waits, and briefly every few thousand records,
 * so that a long call does not block other threads.
 *
 * If a call fails, the attribute `appended` of its exception is a Receipt of the records that were appended. If a
 * record is invalid, these are all records before it, and the attribute `record_index` is its place. If no buffer is
 * free, these are all earlier chunks and the first groups of the last one.
 */
#ifndef PYTHON_PRODUCER_PRODUCER_MANY_H
#define PYTHON_PRODUCER_PRODUCER_MANY_H

#include "producer/receipt.h"
#include "producer/record_chunk.h"
#include "python/producer/append.h"
#include "python/producer/producer_type.h"

struct receipt_object {
    PyObject ob_base;
    struct arena_object *arena;
    PyObject *tracker; /* the tracker of the futures that it makes */
    struct receipt receipt;
};

/* Returns NULL with an exception set. */
struct receipt_object *receipt_object_new(const struct producer_object *producer);

/* The state of one call. */
struct many {
    struct producer_object *producer;
    struct receipt_object *receipt;
    int64_t now_ms;      /* the timestamp of records without one */
    int64_t deadline_ns; /* the deadline of all waits of this call; 0 until the first wait */
};

/* Returns false with an exception set. If it returns true, call many_end. */
bool many_begin(struct producer_object *producer, struct many *many);

/* Returns the receipt. If the call failed, sets the attribute of the exception instead, and returns NULL. */
PyObject *many_end(struct many *many, bool is_done);

/* Finds the producer's data of a topic, and waits for its partition count. Returns false with an exception set. */
bool many_find_topic(struct many *many, PyObject *topic, struct topic_note **note);

/* The same for a name of any type. */
bool many_find_topic_by_name(struct many *many, const char *name, uint32_t name_size, struct topic_note **note);

/* Ends the chunk before record i, and stores its index in the exception that is set. Replaces an exception of a later
 * record. Returns false. */
bool many_end_chunk_before(const struct many *many, struct chunk *chunk, uint32_t i);

/* Measures record i of the chunk, or ends the chunk before it. */
static inline bool many_measure_record(const struct many *many, struct chunk *chunk, uint32_t i)
{
    const struct appender_object *appender = many->producer->appender;
    struct measured_record *measured = &chunk->records[i];
    enum status status = appender_measure(appender->core, &measured->record, &measured->size);
    if (LIKELY(status == STATUS_OK)) {
        return true;
    }
    return raise_measure(appender, measured, status) || many_end_chunk_before(many, chunk, i);
}

/* Appends the whole chunk. Returns false with an exception set. A pending exception stays. */
bool many_append_chunk(struct many *many, struct chunk *chunk);

#endif
