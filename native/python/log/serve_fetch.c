/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers an ordinary fetch in one call, from receiving to sending.
 *
 *   socket ──recv──> frame ──> request ──> window of each partition ──> found ──> pieces ──sendfile──> socket
 *                      └────────────┴── not ordinary: the bytes go to Python, and nothing was sent
 *
 *   heads    { (topic, partition): a LogHead }
 *   goes_on  Sessions.continued, of sessions.py: the partitions of a session that a request continues, or None
 *   windows  LogHead.windows, of log_heads.py: the segments that served the last fetches
 *
 * A fetch is ordinary if the socket has received exactly one complete request, each of its partitions has a window, and
 * enough bytes exist without waiting. The fetch of a continued session is ordinary if each of its partitions has
 * records. Only a partition without transactions has a window, so the answer does not depend on the isolation level.
 * shmaccum/log/server/fetch.py makes the same decisions, and answers any other fetch; a test compares both answers.
 *
 * The frame is untrusted: format/fetch.c checks each field. The positions of a window are also untrusted:
 * log/batch_walk.c checks the headers at them.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "python/common/items.h"
#include "python/common/module_methods.h"
#include "python/common/monotonic.h"
#include "python/log/fetch.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

enum {
    RECEIVED_MAX = 64 << 10,
    WANTED_COUNT_MAX = 1000, /* partitions of an ordinary fetch */
    NO_EPOCH = -1,
};

enum window_field {
    WINDOW_FILE,
    WINDOW_FIRST_OFFSET,
    WINDOW_LAST_OFFSET, /* the first offset after the window */
    WINDOW_FILE_END,
    WINDOW_OFFSETS,
    WINDOW_POSITIONS,
    WINDOW_START_OFFSET, /* the log start offset of the partition */
    WINDOW_END_OFFSET,   /* the log end offset of the partition */
    WINDOW_LEADER_EPOCH,
    WINDOW_FIELD_COUNT,
};

enum type_field { TYPE_REQUEST, TYPE_WANTED, TYPE_FOUND, TYPE_RANGE, TYPE_SERVED, TYPE_COUNT };

struct fetch {
    const struct serving *given;
    struct fetch_frame frame;
    int64_t bytes_left; /* bytes that the response may still contain */
    int64_t found_size;
    int64_t session_id;
    int64_t begun_ns;
    bool is_first; /* no records have been found yet */
};

static PyTypeObject *type_of(const struct fetch *fetch, enum type_field field)
{
    return (PyTypeObject *)PyTuple_GET_ITEM(fetch->given->types, field);
}

/* Returns -1 with an exception set if the field is not a number. */
static int64_t number_at(PyObject *tuple, Py_ssize_t field)
{
    return PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, field));
}

/* ---- windows ---- */

/* Returns a borrowed reference to the window that contains the offset, or NULL. */
static PyObject *window_in(PyObject *windows, int64_t offset)
{
    for (Py_ssize_t i = 0; PyTuple_Check(windows) && i < PyTuple_GET_SIZE(windows); i++) {
        PyObject *window = PyTuple_GET_ITEM(windows, i);
        bool is_window = PyTuple_Check(window) && PyTuple_GET_SIZE(window) == WINDOW_FIELD_COUNT;
        if (is_window && offset >= number_at(window, WINDOW_FIRST_OFFSET) &&
            offset < number_at(window, WINDOW_LAST_OFFSET)) {
            return window;
        }
    }
    return NULL;
}

/* Returns a new reference to the window that contains the records of a wanted partition, or NULL. */
static PyObject *window_of(const struct fetch *fetch, PyObject *wanted)
{
    PyObject *key = PyTuple_Pack(2, PyTuple_GET_ITEM(wanted, WANTED_TOPIC), PyTuple_GET_ITEM(wanted, WANTED_PARTITION));
    PyObject *head = key == NULL ? NULL : dict_item(fetch->given->heads, key);
    PyObject *windows = head == NULL ? NULL : PyObject_GetAttrString(head, "windows");
    PyObject *window = windows == NULL ? NULL : Py_XNewRef(window_in(windows, number_at(wanted, WANTED_OFFSET)));
    Py_XDECREF(key);
    Py_XDECREF(head);
    Py_XDECREF(windows);
    return window;
}

/* Returns a number of a list that another thread may append to, or -1 with an exception set. */
static int64_t list_number(PyObject *list, Py_ssize_t index)
{
    PyObject *item = list_item(list, index);
    int64_t number = item == NULL ? -1 : PyLong_AsLongLong(item);
    Py_XDECREF(item);
    return number;
}

/* Returns the position from which to search for an offset, or -1 with an exception set. */
static int64_t position_before(PyObject *window, int64_t offset)
{
    PyObject *offsets = PyTuple_GET_ITEM(window, WINDOW_OFFSETS);
    PyObject *positions = PyTuple_GET_ITEM(window, WINDOW_POSITIONS);
    if (!PyList_Check(offsets) || !PyList_Check(positions) || PyList_GET_SIZE(positions) < PyList_GET_SIZE(offsets)) {
        PyErr_SetString(PyExc_TypeError, "a window must have a list of offsets, and a list of their positions");
        return -1;
    }
    Py_ssize_t first = 0;
    Py_ssize_t end = PyList_GET_SIZE(offsets);
    while (first < end) {
        Py_ssize_t middle = first + (end - first) / 2;
        int64_t number = list_number(offsets, middle);
        if (number == -1 && PyErr_Occurred() != NULL) {
            return -1;
        }
        if (number <= offset) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first == 0 ? 0 : list_number(positions, first - 1);
}

/* ---- records ---- */

static int64_t at_least(int64_t value, int64_t min)
{
    return value < min ? min : value;
}

static int64_t at_most(int64_t value, int64_t max)
{
    return value > max ? max : value;
}

/* Returns the range of a batch and the following ones, or None if the request does not allow so many bytes. Returns
 * NULL if there is no batch, or with an exception set. */
static PyObject *records_find(struct fetch *fetch, PyObject *window, int64_t offset, int64_t size_max)
{
    PyObject *file = PyTuple_GET_ITEM(window, WINDOW_FILE);
    struct batch_walk walk = {.descriptor = PyObject_AsFileDescriptor(file),
                              .position = position_before(window, offset),
                              .end = number_at(window, WINDOW_FILE_END),
                              .offset = offset};
    int64_t first_size = PyErr_Occurred() == NULL ? batch_find_unlocked(&walk) : -1;
    if (first_size <= 0) {
        return NULL;
    }
    if (!fetch->is_first && first_size > size_max) {
        return Py_NewRef(Py_None);
    }
    int64_t size = at_least(at_most(size_max, walk.end - walk.position), first_size);
    fetch->is_first = false;
    fetch->found_size += size;
    fetch->bytes_left = at_least(fetch->bytes_left - size, 0);
    PyObject *fields[] = {Py_NewRef(file), PyLong_FromLongLong(walk.position), PyLong_FromLongLong(size)};
    return tuple_make(type_of(fetch, TYPE_RANGE), fields, RANGE_FIELD_COUNT);
}

/* Returns the PartitionRecords for one partition, or NULL if it is not ordinary or an exception is set. */
static PyObject *found_in(struct fetch *fetch, PyObject *window, PyObject *wanted)
{
    int64_t epoch = number_at(wanted, WANTED_LEADER_EPOCH);
    if (epoch != NO_EPOCH && epoch != number_at(window, WINDOW_LEADER_EPOCH)) {
        return NULL;
    }
    int64_t size_max = at_least(at_most(number_at(wanted, WANTED_SIZE_MAX), fetch->bytes_left), 0);
    bool is_asked = size_max > 0 || fetch->is_first;
    PyObject *records =
        is_asked ? records_find(fetch, window, number_at(wanted, WANTED_OFFSET), size_max) : Py_NewRef(Py_None);
    if (records == NULL) {
        return NULL;
    }
    PyObject *end_offset = PyTuple_GET_ITEM(window, WINDOW_END_OFFSET);
    PyObject *fields[] = {Py_NewRef(wanted),
                          PyLong_FromLong(0),
                          Py_NewRef(end_offset),
                          Py_NewRef(PyTuple_GET_ITEM(window, WINDOW_START_OFFSET)),
                          records,
                          Py_NewRef(end_offset),
                          PyTuple_New(0)};
    return tuple_make(type_of(fetch, TYPE_FOUND), fields, FOUND_FIELD_COUNT);
}

/* ---- the fetch ---- */

/* Returns the partitions of the request or its session, or NULL if the fetch is not ordinary or an exception is set. */
static PyObject *all_wanted(struct fetch *fetch, PyObject *request)
{
    bool is_alone = number_at(request, REQUEST_SESSION_EPOCH) == FINAL_EPOCH;
    fetch->session_id = number_at(request, REQUEST_SESSION_ID);
    if (is_alone != (fetch->session_id == NO_SESSION)) {
        return NULL;
    }
    PyObject *wanted = is_alone ? Py_NewRef(PyTuple_GET_ITEM(request, REQUEST_WANTED))
                                : PyObject_CallOneArg(fetch->given->goes_on, request);
    bool is_ordinary = wanted != NULL && PyList_CheckExact(wanted) && PyList_GET_SIZE(wanted) > 0 &&
                       PyList_GET_SIZE(wanted) <= WANTED_COUNT_MAX;
    if (!is_ordinary) {
        Py_CLEAR(wanted);
    }
    return wanted;
}

static bool has_records(PyObject *found)
{
    return PyTuple_GET_ITEM(found, FOUND_RECORDS) != Py_None;
}

/* Appends the PartitionRecords of a partition to the list. Returns false if it is not ordinary or after an error. */
static bool wanted_answer(struct fetch *fetch, PyObject *wanted, PyObject *list)
{
    PyObject *window = window_of(fetch, wanted);
    PyObject *found = window == NULL ? NULL : found_in(fetch, window, wanted);
    bool is_told = found != NULL && (fetch->session_id == NO_SESSION || has_records(found));
    bool is_added = is_told && PyList_Append(list, found) == 0;
    Py_XDECREF(window);
    Py_XDECREF(found);
    return is_added;
}

/* Returns the PartitionRecords of all partitions, or NULL if the fetch is not ordinary or an exception is set. */
static PyObject *all_find(struct fetch *fetch, PyObject *request)
{
    PyObject *wanted = all_wanted(fetch, request);
    PyObject *list = wanted == NULL ? NULL : PyList_New(0);
    bool is_whole = list != NULL;
    fetch->bytes_left = number_at(request, REQUEST_MAX_BYTES);
    for (Py_ssize_t i = 0; is_whole && i < PyList_GET_SIZE(wanted); i++) {
        is_whole = wanted_answer(fetch, PyList_GET_ITEM(wanted, i), list);
    }
    Py_XDECREF(wanted);
    if (!is_whole || fetch->found_size < number_at(request, REQUEST_MIN_BYTES)) {
        Py_CLEAR(list);
    }
    return list;
}

/* An answer and its parts. Each is a new reference. */
struct made {
    PyObject *request;
    PyObject *found;  /* a list */
    PyObject *pieces; /* a tuple */
};

/* Returns false if the fetch is not ordinary, or after an error. Python then repeats the fetch. */
static bool answer_make(struct fetch *fetch, struct made *made)
{
    const struct fetch_frame *frame = &fetch->frame;
    PyObject *const *types = ((PyTupleObject *)fetch->given->types)->ob_item;
    made->request = fetch_request_read(frame->body, (Py_ssize_t)frame->body_size, frame->version, types[TYPE_REQUEST],
                                       types[TYPE_WANTED]);
    made->found = made->request == NULL ? NULL : all_find(fetch, made->request);
    struct fetch_response response = {.version = frame->version,
                                      .correlation_id = frame->correlation_id,
                                      .session_id = (int32_t)fetch->session_id};
    PyObject *list = made->found == NULL ? NULL : fetch_response_pieces(&response, made->found);
    made->pieces = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    if (made->pieces == NULL) {
        PyErr_Clear();
        Py_CLEAR(made->request);
        Py_CLEAR(made->found);
    }
    return made->pieces != NULL;
}

static bool is_whole(Py_ssize_t sent, PyObject *pieces)
{
    uint32_t size = load_be32((const uint8_t *)PyBytes_AS_STRING(PyTuple_GET_ITEM(pieces, 0)));
    return sent == (Py_ssize_t)(sizeof size + size);
}

/* Returns the number of bytes of the response that are sent so far, or -1 with an exception set. */
static Py_ssize_t answer_send_more(int socket, PyObject *pieces, Py_ssize_t gone)
{
    Py_ssize_t sent = pieces_send(socket, pieces, gone);
    if (sent < 0 && PyErr_ExceptionMatches(PyExc_BlockingIOError)) {
        PyErr_Clear();
        sent = 0;
    }
    return sent < 0 ? -1 : gone + sent;
}

/* Returns the pieces that are not sent completely, for the Served. */
static PyObject *pieces_left(PyObject *pieces, Py_ssize_t sent)
{
    return is_whole(sent, pieces) ? PyTuple_New(0) : Py_NewRef(pieces);
}

static void made_drop(struct made *made)
{
    Py_CLEAR(made->pieces);
    Py_CLEAR(made->found);
    Py_CLEAR(made->request);
}

/* Sends the answer. Returns a Served, which takes over the parts, or NULL with an exception set. */
static PyObject *answer_send(const struct fetch *fetch, int socket, struct made *made)
{
    Py_ssize_t sent = answer_send_more(socket, made->pieces, 0);
    PyObject *served = NULL;
    if (sent >= 0) {
        double took_s = (double)(monotonic_ns() - fetch->begun_ns) / (double)NS_PER_S;
        PyObject *fields[] = {PyLong_FromSsize_t(sent), pieces_left(made->pieces, sent), Py_NewRef(made->found),
                              Py_NewRef(made->request), PyFloat_FromDouble(took_s)};
        served = tuple_make(type_of(fetch, TYPE_SERVED), fields, SERVED_FIELD_COUNT);
    }
    made_drop(made);
    return served;
}

bool is_under_way(PyObject *outcome)
{
    return outcome != NULL && PyTuple_Check(outcome) && PyTuple_GET_SIZE(PyTuple_GET_ITEM(outcome, SERVED_PIECES)) > 0;
}

PyObject *served_send_more(int socket, PyObject *served)
{
    PyObject *pieces = PyTuple_GET_ITEM(served, SERVED_PIECES);
    Py_ssize_t sent = answer_send_more(socket, pieces, PyLong_AsSsize_t(PyTuple_GET_ITEM(served, SERVED_SENT)));
    if (sent < 0) {
        return NULL;
    }
    PyObject *fields[] = {PyLong_FromSsize_t(sent), pieces_left(pieces, sent),
                          Py_NewRef(PyTuple_GET_ITEM(served, SERVED_FOUND)),
                          Py_NewRef(PyTuple_GET_ITEM(served, SERVED_REQUEST)),
                          Py_NewRef(PyTuple_GET_ITEM(served, SERVED_TIME))};
    return tuple_make(Py_TYPE(served), fields, SERVED_FIELD_COUNT);
}

/* ---- the call ---- */

/* Returns the received bytes, or None if there are none yet, or NULL with OSError if the socket failed. */
static PyObject *bytes_receive(int socket)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, RECEIVED_MAX);
    if (bytes == NULL) {
        return NULL;
    }
    ssize_t size;
    do {
        size = recv(socket, PyBytes_AS_STRING(bytes), RECEIVED_MAX, MSG_DONTWAIT);
    } while (size < 0 && errno == EINTR);
    if (size < 0) {
        Py_DECREF(bytes);
        return errno == EAGAIN ? Py_NewRef(Py_None) : PyErr_SetFromErrno(PyExc_OSError);
    }
    (void)_PyBytes_Resize(&bytes, size); /* sets `bytes` to NULL if it fails */
    return bytes;
}

bool serving_check(const struct serving *given)
{
    bool is_right = PyDict_Check(given->heads) && PyTuple_Check(given->types) &&
                    PyTuple_GET_SIZE(given->types) == TYPE_COUNT;
    for (Py_ssize_t i = 0; is_right && i < TYPE_COUNT; i++) {
        is_right = is_tuple_type(PyTuple_GET_ITEM(given->types, i));
    }
    return is_right;
}

PyObject *fetch_serve(int socket, const struct serving *given)
{
    struct fetch fetch = {.given = given, .is_first = true, .begun_ns = monotonic_ns()};
    struct made made;
    PyObject *bytes = bytes_receive(socket);
    if (bytes == NULL || bytes == Py_None ||
        PyBytes_GET_SIZE(bytes) > given->size_max ||
        !fetch_frame_read((const uint8_t *)PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes), &fetch.frame) ||
        !answer_make(&fetch, &made)) {
        return bytes;
    }
    Py_DECREF(bytes);
    return answer_send(&fetch, socket, &made);
}
