/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a partition's log, as objects of Python: the numbers of log/segment_end.h, and LogEnd, which has
 * everything that an append needs.
 *
 *   Segment    is a SegmentEnd      the open .log file
 *   Indexer    is an IndexPosition  what the next index entry depends on
 *   IndexFile  is an IndexFileEnd   an open index
 *   LogEnd     refers to all of them and to the producers' table
 *
 *   known   {producer id: [row, ...]}   a row is (epoch, first sequence, last sequence, base offset, last offset,
 *                                       timestamp), the newest last: producer_state.py owns it and has the rules
 *
 * A LogEnd is open until the log rolls, is closed, or gets other options. It takes ordinary batches: batches that fit,
 * each with the sequence that follows. The writer in Python appends any other batch.
 */
#ifndef PYTHON_LOG_LOG_END_TYPE_H
#define PYTHON_LOG_LOG_END_TYPE_H

#include "log/segment_end.h"
#include "python/common/module_state.h"

struct log_end_object {
    PyObject ob_base;
    PyObject *parts[4]; /* segment, index position, offset index, time index: `core` points into them */
    PyObject *known;
    PyTypeObject *row_type;
    PyObject *path; /* bytes, for `core` */
    struct log_end core;
    bool is_open;
    bool is_in_call; /* a call has planned an append already */
};

/* Begins a call. Returns false if another call is running. */
bool log_end_take(struct log_end_object *log);
void log_end_leave(struct log_end_object *log);

/* Returns how many of the batches, from the first on, are ordinary. */
uint32_t log_end_fit(const struct log_end_object *log, const struct log_batch *batches, uint32_t count);

/* Adds batches that fit to the producers' table, before they are written. Returns false with an exception set, after
 * which none is there. */
bool log_end_remember(struct log_end_object *log, const struct log_batch *batches, uint32_t count);

/* The first `written_count` of the `count` batches that were entered are in the file: takes the others out again, and
 * forgets what is older than the producers' table remembers. */
void log_end_settle(struct log_end_object *log, const struct log_batch *batches, uint32_t count,
                     uint32_t written_count);

#endif
