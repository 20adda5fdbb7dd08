/* SPDX-License-Identifier: Apache-2.0
 *
 * ProduceRequest: a Produce request (format/produce.h) that is written to a socket from buffers that are not copied.
 *
 *   pieces   own │ buffer │ own │ buffer file │ own ...      (broker/pieces.h)
 *
 * The pump and the batch loop send ordinary batches by links (broker/link.h). This type is for other cases: a batch of
 * many buffers, a connection with TLS, and a response with an error.
 *
 * It holds its buffers until its last byte is written or `release` is called. After that, it has only the data that a
 * response is compared with. While one thread sends it, without the GIL, calls of other threads raise an error.
 */
#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/items.h"

#include "base/bytes.h"
#include "broker/pieces.h"
#include "format/produce.h"

enum { PEEK_SIZE = 16384 /* the largest size of a TLS record */ };

struct produce_request_object {
    PyObject ob_base;
    struct module_state *state;
    struct produce_request request;
    struct produce_topic *topics;
    struct produce_batch *batches;
    struct produce_answer answer;
    PyObject *names; /* the strings of the request and the topics' names point into these */
    uint8_t *own;
    Py_buffer *buffers;
    uint32_t buffer_count; /* the number of held buffers */
    struct pieces pieces;
    uint64_t size;
    bool is_sending;
    bool is_touched;
};

static struct produce_request_object *request_of(PyObject *self)
{
    return (struct produce_request_object *)self;
}

/* ---- the parts of a request ---- */

static const struct integer_range version_range = {"version", PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX};
static const struct integer_range acks_range = {"acks", -1, 1};
static const struct integer_range timeout_range = {"timeout_ms", 0, INT32_MAX};
static const struct integer_range partition_range = {"a partition", 0, INT32_MAX};
static const struct integer_range position_range = {"position", 0, INT64_MAX};
static const struct integer_range size_range = {"size", 0, INT32_MAX / 2};

/* Gets the UTF-8 of a name, which is valid while `names` contains the name. */
static bool name_take(struct produce_request_object *self, PyObject *object, const char **name, uint16_t *size)
{
    Py_ssize_t length;
    const char *bytes = PyUnicode_AsUTF8AndSize(object, &length);
    if (bytes == NULL || PyList_Append(self->names, object) < 0) {
        return false;
    }
    if (length > PRODUCE_NAME_SIZE_MAX) {
        PyErr_Format(PyExc_ValueError, "a name of %zd bytes is too long for a request", length);
        return false;
    }
    *name = bytes;
    *size = (uint16_t)length;
    return true;
}

static bool transactional_id_take(struct produce_request_object *self, PyObject *id)
{
    struct produce_request *request = &self->request;
    return id == Py_None || name_take(self, id, &request->transactional_id, &request->transactional_id_size);
}

static bool id_take(const struct produce_request_object *self, PyObject *object, struct produce_topic *topic)
{
    if (self->request.version < PRODUCE_TOPIC_IDS) {
        return true;
    }
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != TOPIC_ID_SIZE) {
        PyErr_SetString(PyExc_ValueError, "from version 13 on, a topic needs an id of 16 bytes");
        return false;
    }
    memcpy(topic->id, PyBytes_AS_STRING(object), TOPIC_ID_SIZE);
    return true;
}

/* Reads (name, id, partitions, tuples of buffers), and stores the number of batches in the topic. */
static bool topic_take(struct produce_request_object *self, PyObject *object, struct produce_topic *topic)
{
    if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 4 ||
        !PyTuple_CheckExact(PyTuple_GET_ITEM(object, 2)) || !PyTuple_CheckExact(PyTuple_GET_ITEM(object, 3)) ||
        PyTuple_GET_SIZE(PyTuple_GET_ITEM(object, 2)) != PyTuple_GET_SIZE(PyTuple_GET_ITEM(object, 3)) ||
        PyTuple_GET_SIZE(PyTuple_GET_ITEM(object, 2)) > INT32_MAX) {
        PyErr_SetString(PyExc_TypeError, "a topic must be (name, id, (partition, ...), ((buffer, ...), ...))");
        return false;
    }
    topic->batch_count = (uint32_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(object, 2));
    return name_take(self, PyTuple_GET_ITEM(object, 0), &topic->name, &topic->name_size) &&
           id_take(self, PyTuple_GET_ITEM(object, 1), topic);
}

/* Returns the number of buffers of a topic's batches, or -1 with an exception set. */
static Py_ssize_t buffers_count(PyObject *bodies)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bodies); i++) {
        PyObject *body = PyTuple_GET_ITEM(bodies, i);
        if (!PyTuple_CheckExact(body)) {
            PyErr_SetString(PyExc_TypeError, "a batch must be a tuple of buffers");
            return -1;
        }
        count += PyTuple_GET_SIZE(body);
    }
    return count;
}

static bool topics_take(struct produce_request_object *self, PyObject *tuple, Py_ssize_t *buffer_count)
{
    struct produce_request *request = &self->request;
    uint64_t batch_count = 0;
    request->topics = self->topics = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, sizeof *self->topics);
    if (self->topics == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        if (!topic_take(self, PyTuple_GET_ITEM(tuple, i), &self->topics[i])) {
            return false;
        }
        Py_ssize_t count = buffers_count(PyTuple_GET_ITEM(PyTuple_GET_ITEM(tuple, i), 3));
        if (count < 0) {
            return false;
        }
        *buffer_count += count;
        batch_count += self->topics[i].batch_count;
        request->topic_count++;
    }
    if (batch_count + (uint64_t)*buffer_count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many batches for a request");
        return false;
    }
    request->batch_count = (uint32_t)batch_count;
    return true;
}

static bool memory_take(struct pieces *pieces, PyObject *object, Py_buffer *buffer, uint64_t *size)
{
    if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) < 0) {
        return false;
    }
    pieces_add_memory(pieces, buffer->buf, (size_t)buffer->len);
    *size += (uint64_t)buffer->len;
    return true;
}

/* Reads (file, position, size). `buffer` holds the tuple, so that the file stays open. */
static bool range_take(const struct module_state *state, struct pieces *pieces, PyObject *tuple, Py_buffer *buffer,
                       uint64_t *batch_size)
{
    int64_t position;
    int64_t size;
    if (PyTuple_GET_SIZE(tuple) != 3) {
        PyErr_SetString(PyExc_TypeError, "a piece of a file must be (file, position, size)");
        return false;
    }
    int descriptor = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(tuple, 0));
    if (descriptor < 0 || !integer_parse(state, PyTuple_GET_ITEM(tuple, 1), &position_range, &position) ||
        !integer_parse(state, PyTuple_GET_ITEM(tuple, 2), &size_range, &size) ||
        PyBuffer_FillInfo(buffer, tuple, NULL, 0, 1, PyBUF_SIMPLE) < 0) {
        return false;
    }
    pieces_add_range(pieces, descriptor, (off_t)position, (size_t)size);
    *batch_size += (uint64_t)size;
    return true;
}

/* Holds a piece of a batch, and adds it to the pieces. */
static bool piece_take(struct produce_request_object *self, PyObject *piece, uint64_t *size)
{
    Py_buffer *buffer = &self->buffers[self->buffer_count];
    if (PyTuple_Check(piece) ? !range_take(self->state, &self->pieces, piece, buffer, size)
                             : !memory_take(&self->pieces, piece, buffer, size)) {
        return false;
    }
    self->buffer_count++;
    return true;
}

/* Holds the buffers of a batch, and adds them to the pieces. */
static bool batch_take(struct produce_request_object *self, PyObject *partition, PyObject *body,
                       struct produce_batch *batch)
{
    int64_t number;
    uint64_t size = 0;
    if (!integer_parse(self->state, partition, &partition_range, &number)) {
        return false;
    }
    pieces_add_gap(&self->pieces);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(body); i++) {
        if (!piece_take(self, PyTuple_GET_ITEM(body, i), &size)) {
            return false;
        }
    }
    self->size += size;
    if (self->size > INT32_MAX / 2) {
        PyErr_SetString(PyExc_ValueError, "a request has at most 1 GiB");
        return false;
    }
    *batch = (struct produce_batch){.partition = (int32_t)number, .size = (uint32_t)size};
    return true;
}

static bool batches_take(struct produce_request_object *self, PyObject *tuple)
{
    struct produce_batch *batch = self->batches;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *partitions = PyTuple_GET_ITEM(PyTuple_GET_ITEM(tuple, i), 2);
        PyObject *bodies = PyTuple_GET_ITEM(PyTuple_GET_ITEM(tuple, i), 3);
        for (uint32_t j = 0; j < self->topics[i].batch_count; j++) {
            if (!batch_take(self, PyTuple_GET_ITEM(partitions, j), PyTuple_GET_ITEM(bodies, j), batch++)) {
                return false;
            }
        }
    }
    return true;
}

static bool own_bytes_encode(struct produce_request_object *self)
{
    struct produce_request *request = &self->request;
    size_t *cuts = PyMem_Malloc(((size_t)request->batch_count + 1) * sizeof *cuts);
    self->own = PyMem_Malloc(produce_own_size_max(request));
    if (cuts == NULL || self->own == NULL) {
        PyMem_Free(cuts);
        PyErr_NoMemory();
        return false;
    }
    size_t own_size = produce_encode(request, self->own, cuts);
    pieces_fill_gaps(&self->pieces, self->own, cuts, own_size);
    PyMem_Free(cuts);
    self->size += own_size;
    return true;
}

static bool request_fill(struct produce_request_object *self, PyObject *topics)
{
    struct produce_request *request = &self->request;
    Py_ssize_t buffer_count = 0;
    if (!topics_take(self, topics, &buffer_count)) {
        return false;
    }
    size_t batch_count = request->batch_count;
    request->batches = self->batches = PyMem_Calloc(batch_count + 1, sizeof *self->batches);
    self->answer.results = PyMem_Calloc(batch_count + 1, sizeof *self->answer.results);
    self->answer.tables = PyMem_Malloc(produce_tables_size(request) * sizeof *self->answer.tables);
    self->buffers = PyMem_Calloc((size_t)buffer_count + 1, sizeof *self->buffers);
    self->pieces.iovecs = PyMem_Calloc((size_t)buffer_count + batch_count + 1, sizeof *self->pieces.iovecs);
    self->pieces.ranges = PyMem_Calloc((size_t)buffer_count + 1, sizeof *self->pieces.ranges);
    bool has_room = self->batches != NULL && self->answer.results != NULL && self->answer.tables != NULL;
    if (!has_room || self->buffers == NULL || self->pieces.iovecs == NULL || self->pieces.ranges == NULL) {
        PyErr_NoMemory();
        return false;
    }
    return batches_take(self, topics) && own_bytes_encode(self);
}

static PyObject *request_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"version", "client", "acks", "timeout_ms", "topics", "transactional_id", NULL};
    struct module_state *state = PyType_GetModuleState(type);
    PyObject *given[3];
    PyObject *client;
    PyObject *topics;
    PyObject *transactional_id = Py_None;
    int64_t version;
    int64_t acks;
    int64_t timeout_ms;
    if (!PyArg_ParseTupleAndKeywords(args, names, "OUOOO!|O:ProduceRequest", keywords, &given[0], &client, &given[1],
                                     &given[2], &PyTuple_Type, &topics, &transactional_id) ||
        !integer_parse(state, given[0], &version_range, &version) ||
        !integer_parse(state, given[1], &acks_range, &acks) ||
        !integer_parse(state, given[2], &timeout_range, &timeout_ms)) {
        return NULL;
    }
    struct produce_request_object *self = (struct produce_request_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = state;
    self->request.version = (int16_t)version;
    self->request.acks = (int16_t)acks;
    self->request.timeout_ms = (int32_t)timeout_ms;
    self->names = PyList_New(0);
    if (self->names == NULL || !name_take(self, client, &self->request.client, &self->request.client_size) ||
        !transactional_id_take(self, transactional_id) || !request_fill(self, topics)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* ---- its end ---- */

static void buffers_release(struct produce_request_object *self)
{
    self->pieces.next = self->pieces.count;
    self->pieces.range_next = self->pieces.range_count;
    while (self->buffer_count > 0) {
        PyBuffer_Release(&self->buffers[--self->buffer_count]);
    }
}

static void request_dealloc(PyObject *object)
{
    struct produce_request_object *self = request_of(object);
    PyTypeObject *type = Py_TYPE(object);
    buffers_release(self);
    Py_XDECREF(self->names);
    PyMem_Free(self->topics);
    PyMem_Free(self->batches);
    PyMem_Free(self->answer.results);
    PyMem_Free(self->answer.tables);
    PyMem_Free(self->own);
    PyMem_Free(self->buffers);
    PyMem_Free(self->pieces.iovecs);
    PyMem_Free(self->pieces.ranges);
    type->tp_free(object);
    Py_DECREF(type);
}

static bool request_check_idle(const struct produce_request_object *self)
{
    if (self->is_sending) {
        PyErr_SetString(self->state->arena_in_use, "another thread sends the request");
    }
    return !self->is_sending;
}

#define request_own_begin request_check_idle
#define request_own_end any_end
#define METHODS_PART METHODS_DECLARED
#include "python/sender/produce_request_method_list.h"

/* ---- sending ---- */

/* The flag prevents another thread from changing the pieces during the system call. */
static bool is_written(const struct produce_request_object *self)
{
    return !self->is_sending && !pieces_are_left(&self->pieces);
}

static void request_note_written(struct produce_request_object *self)
{
    self->is_touched |= self->pieces.sent_size > 0;
    if (is_written(self)) {
        buffers_release(self);
    }
}

/* Sets an exception for a request with ranges, which only a plain socket can send. */
static bool request_is_memory(const struct produce_request_object *self)
{
    if (self->pieces.range_count > 0) {
        PyErr_SetString(PyExc_ValueError, "a piece of a file can only be sent to a plain socket: use send");
    }
    return self->pieces.range_count == 0;
}

PyObject *py_request_send(struct produce_request_object *self, const struct py_request_send *given)
{
    bool is_well;
    uint64_t before = self->pieces.sent_size;
    self->is_sending = true;
    Py_BEGIN_ALLOW_THREADS
    is_well = pieces_write(&self->pieces, (int)given->descriptor);
    Py_END_ALLOW_THREADS
    self->is_sending = false;
    request_note_written(self);
    return is_well ? PyLong_FromUnsignedLongLong(self->pieces.sent_size - before)
                   : PyErr_SetFromErrno(PyExc_OSError);
}

/* Copies up to PEEK_SIZE of the next bytes. The caller writes them. */
PyObject *py_request_peek(struct produce_request_object *self)
{
    size_t size = 0;
    if (!request_is_memory(self)) {
        return NULL;
    }
    self->is_touched = true;
    for (uint32_t i = self->pieces.next; i < self->pieces.count && size < PEEK_SIZE; i++) {
        size += self->pieces.iovecs[i].iov_len;
    }
    size = size < PEEK_SIZE ? size : PEEK_SIZE;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    char *target = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    for (uint32_t i = self->pieces.next; bytes != NULL && size > 0; i++) {
        const struct iovec *iovec = &self->pieces.iovecs[i];
        size_t part = iovec->iov_len < size ? iovec->iov_len : size;
        memcpy(target, iovec->iov_base, part);
        target += part;
        size -= part;
    }
    return bytes;
}

PyObject *py_request_skip(struct produce_request_object *self, const struct py_request_skip *given)
{
    if (!request_is_memory(self)) {
        return NULL;
    }
    pieces_advance(&self->pieces, (size_t)given->count);
    request_note_written(self);
    Py_RETURN_NONE;
}

/* ---- its answer ---- */

static PyObject *base_offset(const void *results, uint32_t index)
{
    return PyLong_FromLongLong(((const struct produce_result *)results)[index].base_offset);
}

static PyObject *log_append_time(const void *results, uint32_t index)
{
    return PyLong_FromLongLong(((const struct produce_result *)results)[index].log_append_time_ms);
}

PyObject *py_request_read_answer(struct produce_request_object *self, const Py_buffer *bytes,
                                 const struct py_request_read_answer *given)
{
    (void)given;
    bool is_well = produce_answer_read(&self->request, load_be32(self->own + PRODUCE_CORRELATION), bytes->buf,
                                       (size_t)bytes->len, &self->answer);
    if (!is_well) {
        Py_RETURN_NONE;
    }
    const struct produce_answer *answer = &self->answer;
    uint32_t count = self->request.batch_count;
    return Py_BuildValue("(iNN)", (int)answer->throttle_ms, list_of(count, base_offset, answer->results),
                         list_of(count, log_append_time, answer->results));
}

static PyObject *request_repr(PyObject *object)
{
    const struct produce_request_object *self = request_of(object);
    return PyUnicode_FromFormat("ProduceRequest(version=%d, batch_count=%u, size=%llu)", (int)self->request.version,
                                self->request.batch_count, (unsigned long long)self->size);
}

#define METHODS_LIST "python/sender/produce_request_method_list.h"
#include "python/common/method_tables.h"

static PyType_Slot request_slots[] = {
    {Py_tp_doc, "A Produce request with buffers that are not copied."},
    {Py_tp_new, request_new},
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_repr, request_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec produce_request_spec = NATIVE_TYPE("ProduceRequest", struct produce_request_object, request_slots, 0);
