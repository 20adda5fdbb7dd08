/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_ready(epoll, timeout_ns, clients, ...): waits for the files of a server's loop, and answers ordinary fetches.
 *
 *   epoll ──> event ──┬── of a client ────────> fetch_serve ──────┬── answered in part ──> under way
 *                     │                                           ├── answered whole ────> noted, then waits again
 *                     │                                           └── anything else ─────> noted, and the call ends
 *                     ├── of one under way ───> served_send_more ─┴── the same three
 *                     └── of any other file ─────────────────────────────────────────────> noted, and the call ends
 *
 *   clients    { descriptor: a client without a response under way }
 *   under_way  { descriptor: (client, Served) }
 *   noted      [ (client, events, Served | bytes | OSError), (descriptor, events, None), ... ]
 *
 * A consumer that catches up is answered repeatedly, without Python code in between. Python handles the noted events
 * after the call, which ends at the timeout, after NOTED_MAX responses, or after an event that only Python can handle.
 * A fetch of a session also ends the call, because Python updates the session before its next fetch.
 *
 * A large response exceeds the buffer of a socket. Then the call waits until the socket accepts more bytes (EPOLLOUT),
 * and reads nothing from that client meanwhile. Each event sends one portion, so no client delays the others. If a
 * response is not sent completely at the end of the call, it is noted, and Python sends the rest.
 *
 * Why no event is lost: epoll reports a file as long as it is ready. After a call that ends early, the other files are
 * still ready, and the epoll is unchanged.
 *
 * Why no response begins in the middle of another one: if a call fails, its caller does not learn which responses are
 * under way. So the call shuts down their connections.
 */
#include "base/clock.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/common/module_methods.h"
#include "python/common/monotonic.h"
#include "python/log/fetch.h"

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { EVENTS_MAX = 64, NOTED_MAX = 256 };

struct loop {
    const struct py_module_serve_ready *given;
    struct serving tables;
    PyObject *noted;
    PyObject *under_way;
    bool is_over;
};

/* Takes over the outcome, which may be NULL with an exception set. */
static bool noted_append(struct loop *loop, PyObject *source, uint32_t events, PyObject *outcome)
{
    return outcome != NULL && list_put(loop->noted, Py_BuildValue("(OIN)", source, events, outcome));
}

/* Returns true for an answer that is sent completely and changes no session. */
static bool is_ended(PyObject *outcome)
{
    return PyTuple_Check(outcome) && PyTuple_GET_SIZE(PyTuple_GET_ITEM(outcome, SERVED_PIECES)) == 0 &&
           PyLong_AsLongLong(PyTuple_GET_ITEM(PyTuple_GET_ITEM(outcome, SERVED_REQUEST), REQUEST_SESSION_ID)) ==
               NO_SESSION;
}

/* Notes an outcome. Ends the call if Python has to continue with it. */
static bool outcome_handle(struct loop *loop, PyObject *client, uint32_t events, PyObject *outcome)
{
    loop->is_over |= outcome == NULL || !is_ended(outcome);
    return noted_append(loop, client, events, outcome);
}

/* Returns the outcome of a client. If OSError is set, this is the outcome. Returns NULL with any other exception. */
static PyObject *outcome_of(PyObject *served)
{
    return served == NULL && PyErr_ExceptionMatches(PyExc_OSError) ? exception_take() : served;
}

/* Sets the events for which epoll waits. */
static bool events_ask(const struct loop *loop, int descriptor, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.fd = descriptor}};
    if (epoll_ctl((int)loop->given->epoll, EPOLL_CTL_MOD, descriptor, &event) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    return true;
}

/* ---- answers under way ---- */

/* Stores a response that is under way. Takes over the Served. */
static bool under_way_store(struct loop *loop, PyObject *descriptor, PyObject *client, PyObject *served)
{
    PyObject *one = Py_BuildValue("(ON)", client, served);
    bool is_put = one != NULL && PyDict_SetItem(loop->under_way, descriptor, one) == 0;
    Py_XDECREF(one);
    return is_put;
}

static bool under_way_begin(struct loop *loop, PyObject *descriptor, PyObject *client, PyObject *served)
{
    return under_way_store(loop, descriptor, client, served) &&
           events_ask(loop, (int)PyLong_AsLong(descriptor), EPOLLOUT);
}

static bool under_way_end(struct loop *loop, PyObject *descriptor, PyObject *client, PyObject *outcome)
{
    return outcome_handle(loop, client, EPOLLOUT, outcome) && PyDict_DelItem(loop->under_way, descriptor) == 0 &&
           events_ask(loop, (int)PyLong_AsLong(descriptor), EPOLLIN);
}

/* Sends the next portion of an answer. */
static bool under_way_send_more(struct loop *loop, PyObject *descriptor, PyObject *one)
{
    PyObject *client = Py_NewRef(PyTuple_GET_ITEM(one, 0));
    PyObject *outcome = outcome_of(served_send_more((int)PyLong_AsLong(descriptor), PyTuple_GET_ITEM(one, 1)));
    bool is_right = is_under_way(outcome) ? under_way_store(loop, descriptor, client, outcome)
                                          : under_way_end(loop, descriptor, client, outcome);
    Py_DECREF(client);
    return is_right;
}

/* Notes the responses that are still under way, so that Python sends the rest. */
static bool under_way_list(struct loop *loop)
{
    PyObject *descriptor;
    PyObject *one;
    Py_ssize_t position = 0;
    bool is_right = true;
    while (is_right && PyDict_Next(loop->under_way, &position, &descriptor, &one)) {
        PyObject *served = Py_NewRef(PyTuple_GET_ITEM(one, 1));
        is_right = noted_append(loop, PyTuple_GET_ITEM(one, 0), EPOLLOUT, served) &&
                   events_ask(loop, (int)PyLong_AsLong(descriptor), EPOLLIN);
    }
    return is_right;
}

/* Shuts down the connections of the responses that are under way. Python then finds them closed. */
static void under_way_break(const struct loop *loop)
{
    PyObject *descriptor;
    PyObject *one;
    Py_ssize_t position = 0;
    PyObject *failure = exception_take();
    while (PyDict_Next(loop->under_way, &position, &descriptor, &one)) {
        int socket = (int)PyLong_AsLong(descriptor);
        (void)shutdown(socket, SHUT_RDWR);
        if (!events_ask(loop, socket, EPOLLIN)) {
            PyErr_Clear();
        }
    }
    exception_put(failure);
}

/* ---- events ---- */

/* Serves a client. Failures of its connection are outcomes. Returns false with any other exception set. */
static bool client_serve(struct loop *loop, PyObject *descriptor, PyObject *client)
{
    PyObject *outcome = outcome_of(fetch_serve((int)PyLong_AsLong(descriptor), &loop->tables));
    if (outcome == Py_None) { /* no bytes have arrived */
        Py_DECREF(outcome);
        return true;
    }
    if (is_under_way(outcome)) {
        return under_way_begin(loop, descriptor, client, outcome);
    }
    return outcome_handle(loop, client, EPOLLIN, outcome);
}

static bool other_note(struct loop *loop, PyObject *descriptor, uint32_t events)
{
    loop->is_over = true;
    return noted_append(loop, descriptor, events, Py_NewRef(Py_None));
}

/* Returns a new reference to the value of a descriptor, or NULL if there is none or an exception is set. */
static PyObject *value_of(PyObject *dict, PyObject *descriptor)
{
    return dict_item(dict, descriptor);
}

static bool descriptor_take(struct loop *loop, PyObject *descriptor, uint32_t events)
{
    PyObject *one = value_of(loop->under_way, descriptor);
    PyObject *client = one == NULL ? value_of(loop->given->clients, descriptor) : NULL;
    bool is_taken = PyErr_Occurred() == NULL;
    if (is_taken && one != NULL) {
        is_taken = under_way_send_more(loop, descriptor, one);
    } else if (is_taken && client != NULL && events == EPOLLIN) {
        is_taken = client_serve(loop, descriptor, client);
    } else if (is_taken) {
        is_taken = other_note(loop, descriptor, events);
    }
    Py_XDECREF(one);
    Py_XDECREF(client);
    return is_taken;
}

static bool event_take(struct loop *loop, const struct epoll_event *event)
{
    PyObject *descriptor = PyLong_FromLong(event->data.fd);
    bool is_taken = descriptor != NULL && descriptor_take(loop, descriptor, event->events);
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

/* Waits once, and handles the events. Returns false with an exception, for example that of a signal handler. */
static bool loop_wait_once(struct loop *loop, int64_t left_ns)
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

/* Waits repeatedly until the call ends. */
static bool loop_run(struct loop *loop)
{
    int64_t end_ns = monotonic_ns() + loop->given->timeout_ns;
    int64_t left_ns = loop->given->timeout_ns;
    bool is_right = true;
    while (is_right && !loop->is_over) {
        is_right = loop_wait_once(loop, left_ns);
        left_ns = end_ns - monotonic_ns();
        loop->is_over |= left_ns <= 0;
    }
    return is_right;
}

PyObject *py_module_serve_ready(PyObject *module, const struct py_module_serve_ready *given)
{
    struct loop loop = {.given = given,
                        .tables = {.heads = given->heads,
                                   .goes_on = given->goes_on,
                                   .size_max = given->size_max,
                                   .types = given->types}};
    (void)module;
    if (!PyDict_Check(given->clients) || !serving_check(&loop.tables)) {
        return PyErr_Format(PyExc_TypeError, "clients and heads must be dicts, and types must be the five tuple types");
    }
    loop.noted = PyList_New(0);
    loop.under_way = PyDict_New();
    bool is_right = loop.noted != NULL && loop.under_way != NULL;
    if (is_right && !(loop_run(&loop) && under_way_list(&loop))) {
        under_way_break(&loop);
        is_right = false;
    }
    if (!is_right) {
        Py_CLEAR(loop.noted);
    }
    Py_XDECREF(loop.under_way);
    return loop.noted;
}
