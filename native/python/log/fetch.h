/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of a fetch. One function of C calls them one after another (serve_fetch.c), and Python calls each by
 * itself.
 *
 *   body ──> fetch_request_read ──> request ──> batch_find ──> found ──> fetch_response_pieces ──> pieces_send
 *                                                                      again, while the socket is full  └──┘
 *
 * Each tuple is laid out as its type in shmaccum/log/server: FetchRequest, Wanted, PartitionRecords and Served in
 * fetch_frames.py, Window in log_heads.py, FileRange in log/files/log_file.py.
 */
#ifndef PYTHON_LOG_FETCH_H
#define PYTHON_LOG_FETCH_H

#include <Python.h>
#include <stdbool.h>

#include "format/fetch.h"
#include "log/batch_walk.h"

enum request_field {
    REQUEST_MAX_WAIT,
    REQUEST_MIN_BYTES,
    REQUEST_MAX_BYTES,
    REQUEST_ISOLATION_LEVEL,
    REQUEST_SESSION_ID,
    REQUEST_SESSION_EPOCH,
    REQUEST_WANTED,
    REQUEST_FORGOTTEN,
    REQUEST_FIELD_COUNT,
};

enum wanted_field {
    WANTED_TOPIC,
    WANTED_PARTITION,
    WANTED_OFFSET,
    WANTED_SIZE_MAX,
    WANTED_LEADER_EPOCH,
    WANTED_FIELD_COUNT,
};

enum found_field {
    FOUND_WANTED,
    FOUND_ERROR,
    FOUND_END_OFFSET,
    FOUND_START_OFFSET,
    FOUND_RECORDS,
    FOUND_STABLE_OFFSET,
    FOUND_ABORTED,
    FOUND_FIELD_COUNT,
};

enum served_field { SERVED_SENT, SERVED_PIECES, SERVED_FOUND, SERVED_REQUEST, SERVED_TIME, SERVED_FIELD_COUNT };

enum range_field { RANGE_FILE, RANGE_POSITION, RANGE_SIZE, RANGE_FIELD_COUNT };

/* Decodes the body of a request. Returns NULL with ValueError if the bytes are no request. */
PyObject *fetch_request_read(const uint8_t *bytes, Py_ssize_t size, int64_t version, PyObject *request_type,
                             PyObject *wanted_type);

/* Returns the pieces of a response to a list of PartitionRecords, a list, or NULL with an exception set. During the
 * call, response->found is valid. */
PyObject *fetch_response_pieces(struct fetch_response *response, PyObject *found);

/* batch_find while other threads run, since the disk is slow. Returns -1 with an exception set. */
int64_t batch_find_unlocked(struct batch_walk *walk);

/* Sends a tuple of pieces after the first `gone` bytes, which were sent before. Returns the bytes that the socket took,
 * or -1 with an exception set if it took none. */
Py_ssize_t pieces_send(int socket, PyObject *pieces, Py_ssize_t gone);

/* The tables for ordinary fetches (serve_fetch.c). */
struct serving {
    PyObject *heads;
    PyObject *goes_on;
    int64_t size_max; /* of a request */
    PyObject *types;  /* FetchRequest, Wanted, PartitionRecords, FileRange, Served */
};

/* Returns false if the objects are of other types. */
bool serving_check(const struct serving *given);

/* Receives from a client. Returns a Served if it was an ordinary fetch, which is sent; the bytes of any other request;
 * no bytes at the end of the connection; None if nothing has arrived; NULL with OSError if the socket broke, or a file
 * ended before its range. */
PyObject *fetch_serve(int socket, const struct serving *given);

/* Returns true for a Served of which the socket has not taken every byte. */
bool is_under_way(PyObject *outcome);

/* Sends more of a Served, as far as the socket takes it. Returns its replacement, or NULL with OSError as above. */
PyObject *served_go_on(int socket, PyObject *served);

#endif
