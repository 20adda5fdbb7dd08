/* SPDX-License-Identifier: Apache-2.0
 *
 * The pieces of a response -> a socket that does not block.
 *
 *   pieces    ( bytes | range of a file | bytes | range of a file | ... | bytes )
 *
 *   bytes, small range  ──> memory ──> one sendmsg    a small range is read: one packet, and one wake of the client
 *   large range         ──> sendfile                  its bytes go from the page cache without a copy
 *
 * Rules: no call waits for the client. A call sends one portion, because a client may read as fast as the server sends,
 * and the others have requests, too. The socket delays bytes that are followed by others (MSG_MORE), so the last ones
 * are sent without it. A file that ended too early ends the connection: no other bytes are sent in their place. An
 * error after bytes that were sent is raised by the next call, where it occurs again.
 */
#include "broker/pieces.h"
#include "python/common/arguments.h"
#include "python/log/fetch.h"
#include "python/log/log.h"

#include <errno.h>
#include <unistd.h>

enum {
    GATHERED_MAX = 64,
    COPIED_MAX = 16 << 10, /* bytes of ranges that are read; sendfile is cheaper for a larger one */
    PORTION_SIZE = 2 << 20, /* the kernel copies so much for loopback in a millisecond */
};

struct sending {
    struct pieces gathered;
    struct iovec iovecs[GATHERED_MAX];
    struct piece_range ranges[GATHERED_MAX];
    size_t left; /* bytes of the portion that are not gathered */
    size_t gone; /* bytes at the front of the next pieces that went before this call */
    size_t copied;
    uint8_t copies[COPIED_MAX];
};

/* Returns false, with an exception. */
static bool failure_set(ssize_t failed)
{
    if (failed < 0 && errno != ENODATA) {
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        PyErr_SetString(PyExc_ConnectionError, "a file ended too early");
    }
    return false;
}

/* ---- to gather pieces ---- */

/* Reads a small range. Another thread may run meanwhile: the disk is slow. */
static bool range_copy(struct sending *sending, int descriptor, off_t position, size_t size)
{
    uint8_t *copy = sending->copies + sending->copied;
    ssize_t read_size;
    do {
        Py_BEGIN_ALLOW_THREADS
        read_size = pread(descriptor, copy, size, position);
        Py_END_ALLOW_THREADS
    } while (read_size < 0 && errno == EINTR);
    if (read_size < (ssize_t)size) {
        return failure_set(read_size);
    }
    sending->copied += size;
    pieces_add_memory(&sending->gathered, copy, size);
    return true;
}

/* file, position, size; false with an exception set. */
static bool range_read(PyObject *piece, struct piece_range *range)
{
    if (!PyTuple_Check(piece) || PyTuple_GET_SIZE(piece) != RANGE_FIELD_COUNT) {
        PyErr_SetString(PyExc_TypeError, "a piece is bytes or a range of a file");
        return false;
    }
    range->file = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(piece, 0));
    range->position = PyLong_AsLong(PyTuple_GET_ITEM(piece, 1));
    range->size = PyLong_AsSize_t(PyTuple_GET_ITEM(piece, 2));
    return PyErr_Occurred() == NULL;
}

/* Adds what is left of a piece. Sets `is_full` if there is no room for it. Returns false with an exception set. */
static bool piece_gather(struct sending *sending, PyObject *piece, bool *is_full)
{
    struct piece_range range;
    bool is_bytes = PyBytes_Check(piece);
    if (!is_bytes && !range_read(piece, &range)) {
        return false;
    }
    size_t size = is_bytes ? (size_t)PyBytes_GET_SIZE(piece) : range.size;
    size_t gone = sending->gone < size ? sending->gone : size;
    size -= gone;
    bool is_copied = !is_bytes && size <= COPIED_MAX;
    *is_full = sending->gathered.count + sending->gathered.range_count == GATHERED_MAX ||
               (is_copied && size > COPIED_MAX - sending->copied);
    if (*is_full) {
        return true;
    }
    sending->gone -= gone;
    bool is_cut = !is_bytes && !is_copied && size > sending->left;
    size = is_cut ? sending->left : size;
    sending->left -= size < sending->left ? size : sending->left;
    if (is_bytes) {
        pieces_add_memory(&sending->gathered, PyBytes_AS_STRING(piece) + gone, size);
    } else if (!is_copied) {
        pieces_add_range(&sending->gathered, range.file, range.position + (off_t)gone, size);
    }
    return !is_copied || size == 0 || range_copy(sending, range.file, range.position + (off_t)gone, size);
}

/* Gathers pieces from the next one on, as many as fit. Returns false with an exception set. */
static bool pieces_gather(struct sending *sending, PyObject *pieces, Py_ssize_t *next)
{
    bool is_full = false;
    sending->gathered = (struct pieces){.iovecs = sending->iovecs, .ranges = sending->ranges};
    sending->copied = 0;
    while (*next < PyTuple_GET_SIZE(pieces) && sending->left > 0) {
        if (!piece_gather(sending, PyTuple_GET_ITEM(pieces, *next), &is_full)) {
            return false;
        }
        if (is_full) {
            break;
        }
        ++*next;
    }
    sending->gathered.has_more = is_full;
    return true;
}

/* ---- to send them ---- */

/* Sends what was gathered. False when the socket takes no more, or with an exception set. */
static bool gathered_send(struct pieces *gathered, int socket, Py_ssize_t *sent)
{
    PyThreadState *state = gathered->range_count > 0 ? PyEval_SaveThread() : NULL;
    bool is_well = pieces_write(gathered, socket);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    *sent += (Py_ssize_t)gathered->sent_size;
    bool is_left = pieces_are_left(gathered);
    if (!is_well || (is_left && gathered->sent_size == 0)) {
        return failure_set(-1); /* EAGAIN if the socket takes nothing */
    }
    return !is_left;
}

Py_ssize_t pieces_send(int socket, PyObject *pieces, Py_ssize_t gone)
{
    struct sending sending;
    sending.left = PORTION_SIZE;
    sending.gone = (size_t)gone;
    Py_ssize_t sent = 0;
    Py_ssize_t next = 0;
    bool is_going = true;
    while (is_going && next < PyTuple_GET_SIZE(pieces) && sending.left > 0) {
        is_going = pieces_gather(&sending, pieces, &next) && gathered_send(&sending.gathered, socket, &sent);
    }
    if (PyErr_Occurred() != NULL && sent > 0) {
        PyErr_Clear();
    }
    return PyErr_Occurred() != NULL ? -1 : sent;
}

/* ---- the call ---- */

/* The pieces are a tuple: no other thread can change it while this one sends. */
PyObject *py_module_send_pieces(PyObject *module, const struct py_module_send_pieces *given)
{
    (void)module;
    if (!PyTuple_Check(given->pieces)) {
        return PyErr_Format(PyExc_TypeError, "pieces must be a tuple");
    }
    Py_ssize_t sent = pieces_send((int)given->socket, given->pieces, 0);
    return sent < 0 ? NULL : PyLong_FromSsize_t(sent);
}
