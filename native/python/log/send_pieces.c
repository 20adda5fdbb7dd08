/* SPDX-License-Identifier: Apache-2.0
 *
 * The pieces of an answer -> a socket that does not block.
 *
 *   pieces    ( bytes | range of a file | bytes | range of a file | ... | bytes )
 *
 *   bytes, small range  ──> parts ──> one sendmsg     a small range is read: one packet, and one wake of the client
 *   large range         ──> sendfile                  its bytes go from the page cache, and nobody copies them
 *
 * Rules: no call waits for the client. A call sends one portion, because a client may read as fast as the server sends,
 * and the others have requests, too. The socket holds bytes back that have more behind them (MSG_MORE), so the last
 * ones go without it. A file that ended too early ends the connection: its bytes are never made up. An error behind
 * bytes that were sent is told by the next call, which meets it again.
 */
#include "python/common/arguments.h"
#include "python/log/fetch.h"
#include "python/log/log.h"

#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    PARTS_MAX = 64,
    COPIED_MAX = 16 << 10, /* bytes of ranges that are read; sendfile is cheaper for a larger one */
    PORTION_SIZE = 2 << 20, /* the kernel copies so much for loopback in a millisecond */
};

struct sending {
    int socket;
    int part_count;
    struct iovec parts[PARTS_MAX];
    size_t gathered; /* bytes of all parts */
    size_t copied;
    size_t gone; /* bytes at the front of the next pieces that went before this call */
    Py_ssize_t sent;
    uint8_t copies[COPIED_MAX];
};

struct range {
    int descriptor;
    off_t position;
    size_t size;
};

/* Ends the sending with an exception, unless bytes were sent before; answers false. */
static bool sending_end(struct sending *sending, ssize_t failed)
{
    if (sending->sent > 0) {
        return false;
    }
    if (failed < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        PyErr_SetString(PyExc_ConnectionError, "a file ended too early");
    }
    return false;
}

/* Sends the parts; true when the socket took them all. */
static bool parts_send(struct sending *sending, bool has_more)
{
    struct msghdr message = {.msg_iov = sending->parts, .msg_iovlen = (size_t)sending->part_count};
    if (sending->gathered == 0) {
        return true;
    }
    ssize_t sent = sendmsg(sending->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (has_more ? MSG_MORE : 0));
    if (sent < 0) {
        return sending_end(sending, sent);
    }
    sending->sent += sent;
    bool is_whole = (size_t)sent == sending->gathered;
    sending->part_count = 0;
    sending->gathered = sending->copied = 0;
    return is_whole;
}

/* How many bytes of a piece went before this call. */
static size_t piece_skip(struct sending *sending, size_t size)
{
    size_t gone = sending->gone < size ? sending->gone : size;
    sending->gone -= gone;
    return gone;
}

static size_t portion_left(const struct sending *sending)
{
    size_t used = (size_t)sending->sent + sending->gathered;
    return used < PORTION_SIZE ? PORTION_SIZE - used : 0;
}

/* Makes room for another part of which so many bytes are to be copied. */
static bool room_make(struct sending *sending, size_t copied_size)
{
    bool has_room = sending->part_count < PARTS_MAX && copied_size <= COPIED_MAX - sending->copied;
    return has_room || parts_send(sending, true);
}

/* Adds bytes that stay where they are until they are sent. */
static void part_put(struct sending *sending, const void *bytes, size_t size)
{
    sending->parts[sending->part_count++] = (struct iovec){.iov_base = (void *)bytes, .iov_len = size};
    sending->gathered += size;
}

static bool bytes_put(struct sending *sending, PyObject *bytes)
{
    size_t size = (size_t)PyBytes_GET_SIZE(bytes);
    size_t gone = piece_skip(sending, size);
    bool has_room = gone == size || room_make(sending, 0);
    if (has_room && gone < size) {
        part_put(sending, PyBytes_AS_STRING(bytes) + gone, size - gone);
    }
    return has_room;
}

/* Reads a small range. Another thread may run meanwhile: the disk is slow. */
static bool range_put(struct sending *sending, const struct range *range)
{
    ssize_t size;
    if (!room_make(sending, range->size)) {
        return false;
    }
    uint8_t *copy = sending->copies + sending->copied;
    do {
        Py_BEGIN_ALLOW_THREADS
        size = pread(range->descriptor, copy, range->size, range->position);
        Py_END_ALLOW_THREADS
    } while (size < 0 && errno == EINTR);
    if (size < (ssize_t)range->size) {
        return sending_end(sending, size);
    }
    sending->copied += range->size;
    part_put(sending, copy, range->size);
    return true;
}

/* Sends a large range behind all parts. A range that does not go whole has filled the socket, or the portion. */
static bool range_send(struct sending *sending, const struct range *range)
{
    ssize_t sent;
    off_t position = range->position;
    bool is_going = parts_send(sending, true);
    size_t left = portion_left(sending);
    size_t size = range->size < left ? range->size : left;
    if (!is_going || size == 0) {
        return false;
    }
    do {
        Py_BEGIN_ALLOW_THREADS
        sent = sendfile(sending->socket, range->descriptor, &position, size);
        Py_END_ALLOW_THREADS
    } while (sent < 0 && errno == EINTR);
    if (sent <= 0) {
        return sending_end(sending, sent);
    }
    sending->sent += sent;
    return (size_t)sent == range->size;
}

/* file, position, size; false with an exception set. */
static bool range_read(PyObject *piece, struct range *range)
{
    if (!PyTuple_Check(piece) || PyTuple_GET_SIZE(piece) != RANGE_FIELD_COUNT) {
        PyErr_SetString(PyExc_TypeError, "a piece is bytes or a range of a file");
        return false;
    }
    range->descriptor = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(piece, 0));
    range->position = PyLong_AsLong(PyTuple_GET_ITEM(piece, 1));
    range->size = PyLong_AsSize_t(PyTuple_GET_ITEM(piece, 2));
    return PyErr_Occurred() == NULL;
}

static bool piece_send(struct sending *sending, PyObject *piece)
{
    struct range range;
    if (PyBytes_Check(piece)) {
        return bytes_put(sending, piece);
    }
    if (!range_read(piece, &range)) {
        return false;
    }
    size_t gone = piece_skip(sending, range.size);
    range.position += (off_t)gone;
    range.size -= gone;
    if (range.size == 0) {
        return true;
    }
    return range.size <= COPIED_MAX ? range_put(sending, &range) : range_send(sending, &range);
}

struct arguments {
    int64_t socket;
    PyObject *pieces;
};

static const struct argument_table table = {
    {"send_pieces", {"socket", "pieces"}, 2, 2},
    {INTEGER_ARGUMENT(struct arguments, socket, 0, INT32_MAX), OBJECT_ARGUMENT(struct arguments, pieces)},
};

Py_ssize_t pieces_send(int socket, PyObject *pieces, Py_ssize_t gone)
{
    struct sending sending;
    sending.socket = socket;
    sending.part_count = 0;
    sending.gathered = sending.copied = 0;
    sending.gone = (size_t)gone;
    sending.sent = 0;
    Py_ssize_t piece_count = PyTuple_GET_SIZE(pieces);
    bool is_going = true;
    for (Py_ssize_t i = 0; i < piece_count && is_going && portion_left(&sending) > 0; i++) {
        is_going = piece_send(&sending, PyTuple_GET_ITEM(pieces, i));
    }
    if (is_going) {
        (void)parts_send(&sending, false);
    }
    return PyErr_Occurred() != NULL ? -1 : sending.sent;
}

/* The pieces are a tuple: no other thread can change it while this one sends. */
PyObject *log_send_pieces(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct arguments given;
    if (!arguments_parse(PyModule_GetState(module), &table, args, count, names, &given)) {
        return NULL;
    }
    if (!PyTuple_Check(given.pieces)) {
        return PyErr_Format(PyExc_TypeError, "pieces must be a tuple");
    }
    Py_ssize_t sent = pieces_send((int)given.socket, given.pieces, 0);
    return sent < 0 ? NULL : PyLong_FromSsize_t(sent);
}
