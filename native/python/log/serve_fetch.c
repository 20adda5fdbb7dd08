/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_fetch(socket, heads, ...): an ordinary fetch from its first byte to the last, in one call.
 *
 *   socket ──recv──> frame ──> request ──> window of each partition ──> found ──> pieces ──sendfile──> socket
 *                      └────────────┴── not ordinary: the bytes go to Python, and nothing was sent
 *
 *   heads    { (topic, partition): a LogHead }
 *   goes_on  Sessions.goes_on, of sessions.py: the partitions of a session that goes on with a request, or None
 *   windows  LogHead.windows, of log_heads.py: the segments of which the last fetches were answered
 *
 * A fetch is ordinary when it came alone and whole, finds each of its partitions in a window, and has enough bytes
 * without waiting. A session that goes on is ordinary when each of its partitions has records. A window exists for a
 * partition without transactions, so a reader of committed records gets the same answer. The decisions are those of
 * shmaccum/serving/fetching.py, which answers any other fetch; a test holds both answers against each other.
 *
 * The frame is a stranger's. fetch_request.c checks each step through it, and the numbers of a window each place in a
 * file, whose headers find_batch.c checks.
 */
#include "base/bytes.h"
#include "python/common/arguments.h"
#include "python/log/fetch.h"
#include "python/log/log.h"

#include <errno.h>
#include <sys/socket.h>

enum {
    RECEIVED_MAX = 64 << 10,
    WANTED_COUNT_MAX = 1000, /* partitions of an ordinary fetch */
    HEAD_SIZE = 14,          /* size, api key, version, correlation id and the length of the client id */
    NO_EPOCH = -1,
};

enum window_field {
    WINDOW_FILE,
    WINDOW_FIRST_OFFSET,
    WINDOW_LAST_OFFSET, /* behind the window */
    WINDOW_FILE_END,
    WINDOW_OFFSETS,
    WINDOW_POSITIONS,
    WINDOW_START_OFFSET, /* of the partition */
    WINDOW_END_OFFSET,   /* of the partition */
    WINDOW_LEADER_EPOCH,
    WINDOW_FIELD_COUNT,
};

struct arguments {
    int64_t socket;
    PyObject *heads;
    PyObject *goes_on;
    int64_t size_max;
    PyObject *types; /* FetchRequest, Wanted, Found, FileRange */
};

enum type_field { TYPE_REQUEST, TYPE_WANTED, TYPE_FOUND, TYPE_RANGE, TYPE_COUNT };

struct fetch {
    const struct arguments *given;
    int64_t version;
    int64_t correlation_id;
    const uint8_t *body;
    Py_ssize_t body_size;
    int64_t bytes_left; /* that the answer may still have */
    int64_t found_size;
    int64_t session_id;
    bool is_first; /* no records were found yet */
};

static PyObject *type_of(const struct fetch *fetch, enum type_field field)
{
    return PyTuple_GET_ITEM(fetch->given->types, field);
}

/* -1 with an exception set where the field is no number. */
static int64_t number_at(PyObject *tuple, Py_ssize_t field)
{
    return PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, field));
}

/* ---- the frame ---- */

/* True when the bytes are one frame, of a fetch. */
static bool frame_read(const uint8_t *bytes, Py_ssize_t size, struct fetch *fetch)
{
    if (size < HEAD_SIZE || (int64_t)load_be32(bytes) != size - (int64_t)sizeof(uint32_t) ||
        size > fetch->given->size_max || load_be16(bytes + 4) != FETCH_KEY) {
        return false;
    }
    fetch->version = (int16_t)load_be16(bytes + 6);
    fetch->correlation_id = (int32_t)load_be32(bytes + 8);
    int16_t client_id_size = (int16_t)load_be16(bytes + 12);
    Py_ssize_t body = HEAD_SIZE + (client_id_size < 0 ? 0 : client_id_size);
    if (fetch->version < FETCH_VERSION_MIN || fetch->version > FETCH_VERSION_MAX || body >= size) {
        return false;
    }
    bool is_flexible = fetch->version >= FETCH_FLEXIBLE_VERSION;
    bool has_tags = is_flexible && bytes[body] != 0;
    fetch->body = bytes + body + is_flexible;
    fetch->body_size = size - body - is_flexible;
    return !has_tags;
}

/* ---- windows ---- */

/* The window of a head that has the offset, borrowed; NULL: none has it. */
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

/* The window that a wanted partition is answered from, as a new reference; NULL: there is none. */
static PyObject *window_of(const struct fetch *fetch, PyObject *wanted)
{
    PyObject *key = PyTuple_Pack(2, PyTuple_GET_ITEM(wanted, WANTED_TOPIC), PyTuple_GET_ITEM(wanted, WANTED_PARTITION));
    PyObject *head = key == NULL ? NULL : PyDict_GetItemWithError(fetch->given->heads, key);
    PyObject *windows = head == NULL ? NULL : PyObject_GetAttrString(head, "windows");
    PyObject *window = windows == NULL ? NULL : Py_XNewRef(window_in(windows, number_at(wanted, WANTED_OFFSET)));
    Py_XDECREF(key);
    Py_XDECREF(windows);
    return window;
}

/* Where the walk to an offset begins: offsets and positions of some batches ascend. -1: an exception is set. */
static int64_t position_before(PyObject *window, int64_t offset)
{
    PyObject *offsets = PyTuple_GET_ITEM(window, WINDOW_OFFSETS);
    PyObject *positions = PyTuple_GET_ITEM(window, WINDOW_POSITIONS);
    if (!PyList_Check(offsets) || !PyList_Check(positions) || PyList_GET_SIZE(positions) < PyList_GET_SIZE(offsets)) {
        PyErr_SetString(PyExc_TypeError, "a window has a list of offsets, and one of their positions");
        return -1;
    }
    Py_ssize_t first = 0;
    Py_ssize_t end = PyList_GET_SIZE(offsets);
    while (first < end) {
        Py_ssize_t middle = first + (end - first) / 2;
        if (PyLong_AsLongLong(PyList_GET_ITEM(offsets, middle)) <= offset) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first == 0 ? 0 : PyLong_AsLongLong(PyList_GET_ITEM(positions, first - 1));
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

/* A tuple of the type, of new references that it takes over; NULL with an exception when one is missing. */
static PyObject *tuple_make(PyObject *type, PyObject *const *fields, Py_ssize_t count)
{
    PyObject *tuple = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (tuple != NULL) {
            PyTuple_SET_ITEM(tuple, i, fields[i]);
        } else {
            Py_XDECREF(fields[i]);
        }
    }
    if (PyErr_Occurred() != NULL) {
        Py_CLEAR(tuple);
    }
    return tuple;
}

/* The bytes of a batch and of those behind it; None where they are more than the request allows. NULL: there is no
 * batch, or an exception is set. */
static PyObject *records_find(struct fetch *fetch, PyObject *window, int64_t offset, int64_t size_max)
{
    PyObject *file = PyTuple_GET_ITEM(window, WINDOW_FILE);
    struct batch_walk walk = {.descriptor = PyObject_AsFileDescriptor(file),
                              .position = position_before(window, offset),
                              .end = number_at(window, WINDOW_FILE_END),
                              .offset = offset};
    int64_t first_size = PyErr_Occurred() == NULL ? batch_find(&walk) : -1;
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

/* The answer for one partition; NULL: it is not ordinary, or an exception is set. */
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

/* The partitions of the request, or of its session; NULL: the request is not ordinary, or an exception is set. */
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

/* Adds the answer of a partition to the list; false: it is not ordinary, or an exception is set. */
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

/* The answers for all partitions; NULL: the fetch is not ordinary, or an exception is set. */
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

/* The answer in pieces, and what it was made of: each is a new reference. */
struct made {
    PyObject *request;
    PyObject *found;  /* a list */
    PyObject *pieces; /* a tuple */
};

/* False: the fetch is not ordinary. Python meets an error of the log, or of the request, once more, and says it. */
static bool answer_make(struct fetch *fetch, struct made *made)
{
    made->request = fetch_request_read(fetch->body, fetch->body_size, fetch->version, type_of(fetch, TYPE_REQUEST),
                                       type_of(fetch, TYPE_WANTED));
    made->found = made->request == NULL ? NULL : all_find(fetch, made->request);
    struct fetch_answer answer = {.version = fetch->version,
                                  .correlation_id = fetch->correlation_id,
                                  .session_id = fetch->session_id,
                                  .found = made->found};
    PyObject *list = made->found == NULL ? NULL : fetch_answer_write(&answer);
    made->pieces = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    if (made->pieces == NULL) {
        PyErr_Clear();
        Py_CLEAR(made->request);
        Py_CLEAR(made->found);
    }
    return made->pieces != NULL;
}

/* (bytes that went, pieces, found, request): takes over all of them; NULL with an exception when the socket broke. */
static PyObject *answer_send(const struct fetch *fetch, const struct made *made)
{
    Py_ssize_t sent = pieces_send((int)fetch->given->socket, made->pieces);
    if (sent < 0 && PyErr_ExceptionMatches(PyExc_BlockingIOError)) {
        PyErr_Clear();
        sent = 0;
    }
    if (sent < 0) {
        Py_DECREF(made->pieces);
        Py_DECREF(made->found);
        Py_DECREF(made->request);
        return NULL;
    }
    return Py_BuildValue("(nNNN)", sent, made->pieces, made->found, made->request);
}

/* ---- the call ---- */

/* The bytes that came; None: the client has not said more; NULL with OSError: the socket broke. */
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
    (void)_PyBytes_Resize(&bytes, size); /* sets `bytes` to NULL where it fails */
    return bytes;
}

static const struct argument_table table = {
    {"serve_fetch", {"socket", "heads", "goes_on", "size_max", "types"}, 5, 5},
    {INTEGER_ARGUMENT(struct arguments, socket, 0, INT32_MAX), OBJECT_ARGUMENT(struct arguments, heads),
     OBJECT_ARGUMENT(struct arguments, goes_on), INTEGER_ARGUMENT(struct arguments, size_max, 0, INT64_MAX),
     OBJECT_ARGUMENT(struct arguments, types)},
};

static bool are_types(PyObject *types)
{
    bool are_right = PyTuple_Check(types) && PyTuple_GET_SIZE(types) == TYPE_COUNT;
    for (Py_ssize_t i = 0; are_right && i < TYPE_COUNT; i++) {
        are_right = is_tuple_type(PyTuple_GET_ITEM(types, i));
    }
    return are_right;
}

PyObject *log_serve_fetch(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct arguments given;
    struct fetch fetch = {.given = &given, .is_first = true};
    struct made made;
    if (!arguments_parse(PyModule_GetState(module), &table, args, count, names, &given)) {
        return NULL;
    }
    if (!PyDict_Check(given.heads) || !are_types(given.types)) {
        return PyErr_Format(PyExc_TypeError, "heads must be a dict, and types the four types of tuples");
    }
    PyObject *bytes = bytes_receive((int)given.socket);
    if (bytes == NULL || bytes == Py_None ||
        !frame_read((const uint8_t *)PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes), &fetch) ||
        !answer_make(&fetch, &made)) {
        return bytes;
    }
    Py_DECREF(bytes);
    return answer_send(&fetch, &made);
}
