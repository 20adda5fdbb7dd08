/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer, many records in one call: from their rows to the runs of a receipt.
 *
 *   rows (columns of Python objects, or an Arrow batch)
 *     -> chunk      a partition for each record, and groups (producer/record_chunk.h)
 *     -> runs       what one batch took of a group (producer/receipt.h)
 *
 * No Python object is made per record. The GIL is released while a call waits, and briefly every few thousand records,
 * so that a long call does not block other threads.
 *
 * If a call fails midway, the attribute `appended` of its exception is a Receipt of the records that were appended. If
 * a record is invalid (its place is the attribute `record_index`), these are all records before it. If memory is
 * exhausted, these are all earlier chunks, and the first groups of the last one.
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
    PyObject *tracker; /* of the futures it makes */
    struct receipt receipt;
};

/* Returns NULL with an exception set. */
struct receipt_object *receipt_object_new(const struct producer_object *producer);

/* One call. */
struct many {
    struct producer_object *producer;
    struct receipt_object *receipt;
    int64_t now_ms;      /* of records without a timestamp */
    int64_t deadline_ns; /* of all waits of this call. 0 until the first wait */
};

/* Returns false with an exception set. After true: many_end. */
bool many_begin(struct producer_object *producer, struct many *many);

/* Returns the receipt, or NULL with an exception that has it as an attribute. */
PyObject *many_end(struct many *many, bool is_done);

/* Finds the producer's data of a topic, and waits for its partition count. Returns false with an exception set. */
bool many_topic(struct many *many, PyObject *topic, struct topic_note **note);

/* The same for a name of any type. */
bool many_topic_by_name(struct many *many, const char *name, uint32_t name_size, struct topic_note **note);

/* Ends the chunk before record i, and stores its index in the exception that is set. Drops an exception of a later
 * record. Returns false. */
bool many_row_failed(const struct many *many, struct chunk *chunk, uint32_t i);

/* Measures record i of the chunk, or ends the chunk before it. */
static inline bool many_measure(const struct many *many, struct chunk *chunk, uint32_t i)
{
    const struct appender_object *appender = many->producer->appender;
    struct measured_record *measured = &chunk->records[i];
    enum status status = appender_measure(appender->core, &measured->record, &measured->size);
    if (LIKELY(status == STATUS_OK)) {
        return true;
    }
    return raise_measure(appender, measured, status) || many_row_failed(many, chunk, i);
}

/* Appends the whole chunk. Returns false with an exception set. A pending exception is kept. */
bool many_chunk(struct many *many, struct chunk *chunk);

#endif
