/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a convoy (sender/convoy.h) as Python gives them, and how far they came.
 *
 *   link   (socket, version, client, acks, requests_max, request_size_max, lane count)
 *   lane   (topic, topic id or None, partition, file, position, offset, limit offset, producer id, epoch, origin,
 *           leader epoch, name, topic id as text)      those of a link in a row; origin -1: it keeps the producer
 *   found  a list that gets (lane ...), (link ...) and what the keeper has to tell before the call returns. A signal
 *          handler that raises would lose an answer of the call, and with it how far the files are.
 */
#ifndef PYTHON_LOG_CONVOY_PARTS_H
#define PYTHON_LOG_CONVOY_PARTS_H

#include "python/log/log.h"
#include "sender/convoy.h"

/* Makes links and lanes; `answer_time_ns` is there already. False with an exception set; free them in either case. */
bool convoy_make_parts(PyObject *links, PyObject *lanes, PyObject *found, struct ship_convoy *convoy);
void convoy_free_parts(struct ship_convoy *convoy);

/* Tells of lanes and links. False with an exception set, as the next one. */
bool convoy_tell_parts(const struct ship_convoy *convoy, PyObject *found);

/* Adds an object, which may be NULL, and takes it over. */
bool convoy_tell(PyObject *found, PyObject *object);

#endif
