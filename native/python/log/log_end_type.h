/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a partition's log as Python objects: the numbers of log/segment_end.h, and LogEnd, which has all parts for
 * an append.
 *
 *   Segment    is a SegmentEnd      the open .log file
 *   Indexer    is an IndexPosition  the numbers for the next index entry
 *   IndexFile  is an IndexFileEnd   an open index
 *   LogEnd     refers to all of them and to the producers' table
 *
 *   known   {producer id: [row, ...]}   a row is (epoch, first sequence, last sequence, base offset, last offset,
 *                                       timestamp), the newest is last. producer_state.py has the rules
 *
 * A LogEnd is valid until the log rolls, is closed, or gets other options. It appends ordinary batches: they fit in the
 * segment, and their sequences follow. The writer in Python appends any other batch.
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
    bool is_in_call; /* a running call appends, or is about to append */
};

/* Begins a call. Returns false if another call is running. */
bool log_end_begin_call(struct log_end_object *log);
void log_end_end_call(struct log_end_object *log);

/* Returns how many of the batches, from the first on, are ordinary. */
uint32_t log_end_fit(const struct log_end_object *log, const struct log_batch *batches, uint32_t count);

/* Adds batches that fit to the producers' table before they are written. Returns false with an exception set, and
 * without added rows. */
bool log_end_add_rows(struct log_end_object *log, const struct log_batch *batches, uint32_t count);

/* Call after the write: the first `written_count` of the `count` added batches are in the file. Removes the rows of the
 * others, and the oldest rows of a producer that has too many. */
void log_end_keep_written(struct log_end_object *log, const struct log_batch *batches, uint32_t count,
                     uint32_t written_count);

#endif
