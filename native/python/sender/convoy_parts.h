/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a convoy (sender/convoy.h) as Python gives them, and how far they came.
 *
 *   link   (socket, version, client, acks, requests_max, request_size_max, lane count)
 *   lane   (topic, topic id or None, partition, file, position, offset, limit offset, producer id, epoch, origin,
 *           leader epoch, name, topic id as text)      those of a link in a row; origin -1: it keeps the producer
 *   found  a list that gets (lane ...), (link ...) and (what the keeper has to tell, has failed) before the call
 *          returns. A signal handler that raises would lose an answer of the call, and with it how far the files are.
 */
#ifndef PYTHON_LOG_CONVOY_PARTS_H
#define PYTHON_LOG_CONVOY_PARTS_H

#include "python/common/arguments.h"
#include "sender/convoy.h"

/* The arguments that each call has. */
struct convoy_arguments {
    PyObject *links;
    PyObject *lanes;
    PyObject *found;
    int64_t bell;
    int64_t time_ms;
    int64_t answer_time_ms;
};

/* Runs a convoy without the GIL, and tells of lanes and links. `thread` is the state that a keeper restores where it
 * needs the GIL. False with an exception set. */
bool convoy_ship(const struct convoy_arguments *given, struct ship_keeper *keeper, PyThreadState **thread);

/* Tells what the keeper has to tell, which may be NULL, and takes it over. False with an exception set. */
bool convoy_tell_kept(const struct convoy_arguments *given, PyObject *kept, bool has_failed);

/* A tuple of what `make` returns for each index; NULL with an exception set. */
PyObject *convoy_tuple(uint32_t count, PyObject *(*make)(const void *all, uint32_t index), const void *all);

#endif
