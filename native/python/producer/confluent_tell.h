/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells callbacks what became of their records, in the thread that polls.
 *
 *   delivered   a Message of confluent-kafka's, and the callback: here
 *   any other   did not go into the arena, or was not delivered: _tell() of the Python class
 *
 * A callback may produce, poll, flush or close: a record is taken out of the deque before its callback is called, and
 * nothing is kept meanwhile but the number of a partition.
 */
#ifndef PYTHON_PRODUCER_CONFLUENT_TELL_H
#define PYTHON_PRODUCER_CONFLUENT_TELL_H

#include "python/common/module_state.h"

struct confluent_teller {
    const struct module_state *state;
    PyObject *producer;     /* the ConfluentProducer */
    PyObject *reports;      /* a deque of records (confluent_watch.h) */
    PyObject *deliveries;   /* a DeliveryTracker, which knows partitions */
    PyObject *message_type; /* confluent_kafka.Message */
};

/* Until the deque is empty. The number of records that were told; -1 with an exception set, and the others stay. */
Py_ssize_t tell_reports(const struct confluent_teller *teller);

#endif
