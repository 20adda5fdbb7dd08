/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of a ConfluentProducer whose result somebody wants to be told, by their batch.
 *
 *   add           behind the append: the record joins the others of its batch. Its result may be known already, even
 *                 taken by another thread; then all are looked for anew
 *   take_results  from the tail of the last time to that of the arena's ring of results: takes out the records that a
 *                 result is for
 *   take_all      when the ring has gone around: the caller asks for each, and adds what is pending
 *
 * A record is a tuple that begins with its DeliveryFuture. The dict is seen by nobody else, so that the critical
 * section of the producer is all that it needs.
 */
#ifndef PYTHON_PRODUCER_CONFLUENT_WATCH_H
#define PYTHON_PRODUCER_CONFLUENT_WATCH_H

#include "python/common/arena_object.h"

struct confluent_watch {
    PyObject *batches; /* (partition index, seq) -> list of records, in order */
    Py_ssize_t count;  /* of records */
    uint64_t tail;     /* results before it are for none of them */
};

/* False with an exception set. */
bool watch_begin(struct confluent_watch *watch);

/* `tail` of the arena, read before. False with an exception set. */
bool watch_add(struct confluent_watch *watch, PyObject *record, uint64_t tail);

/* Appends the records that have their result to a list, each with its result in the future. False with an exception
 * set. *is_whole false: results were overwritten before they were read. */
bool watch_take_results(struct confluent_watch *watch, const struct arena *arena, PyObject *found, bool *is_whole);

/* The dict of all, and nothing is left in this one. A reference; NULL with an exception set. */
PyObject *watch_take_all(struct confluent_watch *watch);

#endif
