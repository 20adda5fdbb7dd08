/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of a ConfluentProducer whose result somebody wants to be told, by their batch.
 *
 *   add           behind the append: the record joins the others of its batch. It cannot fail, because the record will
 *                 be sent: where there is no memory for a batch, the record goes into a chain that needs none
 *   take_results  from the tail of the last time to that of the arena's ring of results: takes out the records that a
 *                 result is for
 *   take_all      where that is not whole: the caller asks for the result of each, and adds what is pending
 *
 * It is not whole when the ring has gone around, when a result was there before the record was added, and when there
 * is a chain.
 *
 *   record   a tuple: DeliveryFuture, callback, topic, key, value, headers, the next of the chain or None
 *
 * The dict and the chain are seen by nobody else, so that the critical section of the producer is all that they need.
 */
#ifndef PYTHON_PRODUCER_CONFLUENT_WATCH_H
#define PYTHON_PRODUCER_CONFLUENT_WATCH_H

#include "python/common/arena_object.h"

enum {
    RECORD_FUTURE,
    RECORD_CALLBACK,
    RECORD_TOPIC,
    RECORD_KEY,
    RECORD_VALUE,
    RECORD_HEADERS,
    RECORD_NEXT,
    RECORD_ITEM_COUNT
};

struct confluent_watch {
    PyObject *batches; /* (partition index, seq) -> list of records, in order */
    PyObject *recent;  /* that of `batches` which the last record joined, or NULL */
    PyObject *chain;   /* a record, or NULL: each is in a batch */
    Py_ssize_t count;  /* of records */
    uint64_t recent_seq;
    uint64_t tail; /* results before it are for none of them */
    uint32_t recent_partition;
    bool is_late; /* the result of one was there before it was added */
};

/* False with an exception set. */
bool watch_begin(struct confluent_watch *watch);

/* `tail` of the arena, read before. */
void watch_add(struct confluent_watch *watch, PyObject *record, uint64_t tail);

/* Appends the records that have their result to a list, each with its result in the future. False with an exception
 * set. *is_whole false: some were not looked for. */
bool watch_take_results(struct confluent_watch *watch, const struct arena *arena, PyObject *found, bool *is_whole);

/* All records in a list, and none is left here. NULL with an exception set, and all are left. */
PyObject *watch_take_all(struct confluent_watch *watch);

#endif
