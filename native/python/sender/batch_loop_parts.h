/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a batch loop (sender/batch_loop.h) and their progress, as Python tuples.
 *
 *   link    (socket, version, client, acks, requests_max, request_size_max, stream count)
 *   stream  (topic, topic id or None, partition, file, position, offset, limit offset, producer id, epoch, origin,
 *            leader epoch, name, topic id as text)      the streams of a link are adjacent. If origin is -1, the
 *            producer of the batches stays
 *   found   a list to which the call appends (stream ...), (link ...) and (the report of the recorder, has failed). The
 *           progress is not the result of the call, which would be lost if a signal handler raises an exception.
 *
 * shipper_batch_loop.c has the call of a shipper, and sender_half_batch_loop.c that of an overflow.
 */
#ifndef PYTHON_SENDER_BATCH_LOOP_PARTS_H
#define PYTHON_SENDER_BATCH_LOOP_PARTS_H

#include "python/common/arguments.h"
#include "sender/batch_loop.h"

/* The arguments that both calls have. */
struct batch_loop_arguments {
    PyObject *links;
    PyObject *streams;
    PyObject *found;
    int64_t wake_fd;
    int64_t time_ms;
    int64_t answer_time_ms;
};

/* Runs a batch loop without the GIL, and appends the progress of streams and links to `found`. `thread` is the thread
 * state with which a recorder acquires the GIL. Returns false with an exception set. */
bool batch_loop_run_unlocked(const struct batch_loop_arguments *given, struct ship_recorder *recorder,
                             PyThreadState **thread);

/* Appends the report of the recorder, or NULL, to `found`, and takes it over. Returns false with an exception set. */
bool batch_loop_report_kept(const struct batch_loop_arguments *given, PyObject *kept, bool has_failed);

#endif
