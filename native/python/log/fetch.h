/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of a fetch. fetch_serve (serve_fetch.c) calls them one after another, and Python can call each of them.
 *
 *   body ──> fetch_request_read ──> request ──> batch_find ──> found ──> fetch_response_pieces ──> pieces_send
 *                                                                      repeated while the socket is full  └──┘
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

/* Decodes the body of a request. Returns NULL with ValueError if the bytes are not a valid request. */
PyObject *fetch_request_read(const uint8_t *bytes, Py_ssize_t size, int64_t version, PyObject *request_type,
                             PyObject *wanted_type);

/* Returns the list of the pieces of a response with the PartitionRecords in `found`, or NULL with an exception set.
 * response->found is valid only during the call. */
PyObject *fetch_response_pieces(struct fetch_response *response, PyObject *found);

/* Calls batch_find without the GIL, because the disk may be slow. Returns -1 with an exception set. */
int64_t batch_find_unlocked(struct batch_walk *walk);

/* Sends a tuple of pieces after the first `gone` bytes, which were sent before. Returns the number of bytes that the
 * socket accepted, or -1 with an exception set if it accepted none. */
Py_ssize_t pieces_send(int socket, PyObject *pieces, Py_ssize_t gone);

/* The tables for ordinary fetches (serve_fetch.c). */
struct serving {
    PyObject *heads;
    PyObject *goes_on;
    int64_t size_max; /* the largest size of a request */
    PyObject *types;  /* FetchRequest, Wanted, PartitionRecords, FileRange, Served */
};

/* Returns false if an object has a wrong type. */
bool serving_check(const struct serving *given);

/* Receives a request from a client. Answers an ordinary fetch, and returns a Served. Returns the bytes of any other
 * request, empty bytes at the end of the connection, and None if nothing has arrived. Returns NULL with OSError if the
 * socket failed, or a file ended before its range. */
PyObject *fetch_serve(int socket, const struct serving *given);

/* Returns true for a Served that is not sent completely. */
bool is_under_way(PyObject *outcome);

/* Sends more bytes of a Served. Returns the Served for the rest, or NULL with OSError as above. */
PyObject *served_send_more(int socket, PyObject *served);

#endif
