/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends the pieces of a response, which are Python objects, to a socket (broker/portion.h).
 *
 *   pieces    ( bytes | range of a file | bytes | range of a file | ... | bytes )
 */
#include "broker/portion.h"
#include "python/common/arguments.h"
#include "python/common/module_methods.h"
#include "python/log/fetch.h"

#include <errno.h>

/* Returns false with an exception set. */
static bool piece_read(PyObject *object, struct response_piece *piece)
{
    if (PyBytes_Check(object)) {
        *piece = (struct response_piece){.bytes = PyBytes_AS_STRING(object), .size = (size_t)PyBytes_GET_SIZE(object)};
        return true;
    }
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != RANGE_FIELD_COUNT) {
        PyErr_SetString(PyExc_TypeError, "a piece is bytes or a range of a file");
        return false;
    }
    *piece = (struct response_piece){.file = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(object, RANGE_FILE))};
    piece->position = piece->file < 0 ? 0 : PyLong_AsLong(PyTuple_GET_ITEM(object, RANGE_POSITION));
    piece->size = piece->file < 0 ? 0 : PyLong_AsSize_t(PyTuple_GET_ITEM(object, RANGE_SIZE));
    return PyErr_Occurred() == NULL;
}

/* Releases the GIL, because the disk may be slow. Returns -1 with an exception set. */
static Py_ssize_t all_send(int socket, const struct response_piece *pieces, size_t count, size_t gone, bool has_range)
{
    PyThreadState *thread = has_range ? PyEval_SaveThread() : NULL;
    ssize_t sent = portion_send(socket, pieces, count, gone);
    if (thread != NULL) {
        PyEval_RestoreThread(thread);
    }
    if (sent < 0 && errno == ENODATA) {
        PyErr_SetString(PyExc_ConnectionError, "a file ended too early");
    } else if (sent < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return sent;
}

Py_ssize_t pieces_send(int socket, PyObject *pieces, Py_ssize_t gone)
{
    Py_ssize_t count = PyTuple_GET_SIZE(pieces);
    struct response_piece *all = PyMem_New(struct response_piece, (size_t)count + 1);
    bool is_read = all != NULL;
    bool has_range = false;
    for (Py_ssize_t i = 0; is_read && i < count; i++) {
        is_read = piece_read(PyTuple_GET_ITEM(pieces, i), &all[i]);
        has_range |= is_read && all[i].bytes == NULL;
    }
    if (all == NULL) {
        PyErr_NoMemory();
    }
    Py_ssize_t sent = is_read ? all_send(socket, all, (size_t)count, (size_t)gone, has_range) : -1;
    PyMem_Free(all);
    return sent;
}

/* The pieces are a tuple, so that no other thread changes them during the call. */
PyObject *py_module_send_pieces(PyObject *module, const struct py_module_send_pieces *given)
{
    (void)module;
    if (!PyTuple_Check(given->pieces)) {
        return PyErr_Format(PyExc_TypeError, "pieces must be a tuple");
    }
    Py_ssize_t sent = pieces_send((int)given->socket, given->pieces, 0);
    return sent < 0 ? NULL : PyLong_FromSsize_t(sent);
}
