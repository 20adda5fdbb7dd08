/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_ready(epoll, timeout_ns, clients, ...): waits for the files of a server's loop, and answers ordinary fetches.
 *
 *   epoll ──> event ──┬── of a client ──────> fetch_serve ──┬── answered whole ──> noted, and the wait goes on
 *                     │                                     └── anything else ───> noted, and the call ends
 *                     └── of any other file ──────────────────────────────────────> noted, and the call ends
 *
 *   clients  { descriptor: a client that has nothing under way }
 *   noted    [ (client, events, Served | bytes | OSError), (descriptor, events, None), ... ]
 *
 * A consumer that catches up is answered again and again, and no step of Python lies in between. Python takes over what
 * was noted when the call ends: at the time-out, behind NOTED_MAX answers, and as soon as an event is Python's own. A
 * fetch of a session ends the call, because Python takes over the session's changes before its next fetch.
 *
 * Why no event is lost: epoll tells of a file as long as it is ready. A call that ends early leaves the other files
 * ready for the next one.
 */
#include "base/clock.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/log/fetch.h"
#include "python/log/log.h"

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>

enum { EVENTS_MAX = 64, NOTED_MAX = 256 };

struct arguments {
    int64_t epoll;
    int64_t timeout_ns;
    PyObject *clients;
    struct serving tables;
};

struct loop {
    const struct arguments *given;
    PyObject *noted;
    bool is_over;
};

/* Takes over the outcome, which may be missing with an exception set. */
static bool note(struct loop *loop, PyObject *source, uint32_t events, PyObject *outcome)
{
    PyObject *one = outcome == NULL ? NULL : Py_BuildValue("(OIN)", source, events, outcome);
    bool is_noted = one != NULL && PyList_Append(loop->noted, one) == 0;
    Py_XDECREF(one);
    return is_noted;
}

/* True for an answer that left nothing to do, for the socket or for a session. */
static bool is_ended(PyObject *outcome)
{
    return PyTuple_Check(outcome) && PyTuple_GET_SIZE(PyTuple_GET_ITEM(outcome, SERVED_PIECES)) == 0 &&
           PyLong_AsLongLong(PyTuple_GET_ITEM(PyTuple_GET_ITEM(outcome, SERVED_REQUEST), REQUEST_SESSION_ID)) ==
               NO_SESSION;
}

/* False with an exception that no client is to blame for. */
static bool client_serve(struct loop *loop, PyObject *client, const struct epoll_event *event)
{
    PyObject *outcome = fetch_serve(event->data.fd, &loop->given->tables);
    if (outcome == NULL && PyErr_ExceptionMatches(PyExc_OSError)) {
        outcome = exception_take();
    }
    if (outcome == Py_None) { /* there are no bytes */
        Py_DECREF(outcome);
        return true;
    }
    loop->is_over |= outcome == NULL || !is_ended(outcome);
    return note(loop, client, event->events, outcome);
}

static bool event_take(struct loop *loop, const struct epoll_event *event)
{
    PyObject *descriptor = PyLong_FromLong(event->data.fd);
    PyObject *client = descriptor == NULL ? NULL : PyDict_GetItemWithError(loop->given->clients, descriptor);
    bool is_taken = PyErr_Occurred() == NULL;
    if (is_taken && client != NULL && event->events == EPOLLIN) {
        Py_INCREF(client);
        is_taken = client_serve(loop, client, event);
        Py_DECREF(client);
    } else if (is_taken) {
        loop->is_over = true;
        is_taken = note(loop, descriptor, event->events, Py_NewRef(Py_None));
    }
    Py_XDECREF(descriptor);
    return is_taken;
}

static int events_wait(const struct loop *loop, int64_t left_ns, struct epoll_event *events)
{
    const int64_t ms = (int64_t)NS_PER_MS;
    int64_t timeout_ms = left_ns <= 0 ? 0 : left_ns / ms + (left_ns % ms > 0);
    int count;
    Py_BEGIN_ALLOW_THREADS
    count = epoll_wait((int)loop->given->epoll, events, EVENTS_MAX, timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms);
    Py_END_ALLOW_THREADS
    return count;
}

/* Waits once, and takes the events. False with an exception, of a signal's handler for one. */
static bool turn(struct loop *loop, int64_t left_ns)
{
    struct epoll_event events[EVENTS_MAX];
    int count = events_wait(loop, left_ns, events);
    if (count < 0 && errno != EINTR) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    loop->is_over = count <= 0;
    bool is_right = true;
    for (int i = 0; i < count && is_right; i++) {
        is_right = event_take(loop, &events[i]);
    }
    loop->is_over |= PyList_GET_SIZE(loop->noted) >= NOTED_MAX;
    return is_right && PyErr_CheckSignals() == 0;
}

static const struct argument_table table = {
    {"serve_ready", {"epoll", "timeout_ns", "clients", "heads", "goes_on", "size_max", "types"}, 7, 7},
    {INTEGER_ARGUMENT(struct arguments, epoll, 0, INT32_MAX),
     INTEGER_ARGUMENT(struct arguments, timeout_ns, 0, INT64_MAX / 2), OBJECT_ARGUMENT(struct arguments, clients),
     OBJECT_ARGUMENT(struct arguments, tables.heads), OBJECT_ARGUMENT(struct arguments, tables.goes_on),
     INTEGER_ARGUMENT(struct arguments, tables.size_max, 0, INT64_MAX),
     OBJECT_ARGUMENT(struct arguments, tables.types)},
};

PyObject *log_serve_ready(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct arguments given;
    if (!arguments_parse(PyModule_GetState(module), &table, args, count, names, &given)) {
        return NULL;
    }
    if (!PyDict_Check(given.clients) || !serving_check(&given.tables)) {
        return PyErr_Format(PyExc_TypeError, "clients and heads must be dicts, and types the five types of tuples");
    }
    struct loop loop = {.given = &given, .noted = PyList_New(0)};
    int64_t end_ns = monotonic_ns() + given.timeout_ns;
    int64_t left_ns = given.timeout_ns;
    bool is_right = loop.noted != NULL;
    while (is_right && !loop.is_over) {
        is_right = turn(&loop, left_ns);
        left_ns = end_ns - monotonic_ns();
        loop.is_over |= left_ns <= 0;
    }
    if (!is_right) {
        Py_CLEAR(loop.noted);
    }
    return loop.noted;
}
