/* SPDX-License-Identifier: Apache-2.0
 *
 * ConfluentProducer: produce() with confluent-kafka's signature, a thin variant of Producer.send() (producer_type.c).
 *
 * It sends records with only a topic, a value and a key. _produce_in_python() of the Python class handles any other
 * record, and the error of a rejected record. Each record with a callback is added to a chain, which poll() reads
 * (confluent_callbacks.py):
 *
 *   record   a tuple: index in the batch, DeliveryFuture, callback, topic, value, key, headers, batch, next
 *   batch    (partition index, seq): one object for consecutive records of a batch
 *
 * A record is made before the append, and completed after it. After the append, no step may fail, because the record
 * will be sent. A record is *late* if its result may be older than results that poll() has delivered: there was no
 * memory for its index and its batch, which are None then, or the chain was taken during the call.
 */
#include "python/producer/producer_type.h"

#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/producer/future_type.h"

#include <stddef.h>
#include <structmember.h>

struct confluent_object {
    PyObject ob_base;
    const struct module_state *state; /* NULL before the first producer */
    struct producer_object *producer; /* or NULL */
    PyObject *on_delivery;            /* the callback of records that have none, or NULL */
    PyObject *chain;                  /* the newest record with a callback, or NULL; the last one's next is None */
    Py_ssize_t chain_count;           /* the number of records in the chain */
    uint64_t take_count;              /* how often the chain was taken */
    bool has_late;                    /* a record of the chain is late */
};

enum { INDEX, FUTURE, TOLD, NAME, DATA, DATA_KEY, DATA_HEADERS, BATCH, NEXT, ITEM_COUNT };

static struct confluent_object *confluent_of(PyObject *self)
{
    return (struct confluent_object *)self;
}

static PyObject **items_of(PyObject *record)
{
    return ((PyTupleObject *)record)->ob_item;
}

static const struct token_object *token_in(PyObject *record)
{
    return &((struct future_object *)PyTuple_GET_ITEM(record, FUTURE))->token;
}

/* ---- chain ---- */

/* Returns a new reference, or NULL with an exception set. Most records are in the batch of the previous record. */
static inline PyObject *batch_of(PyObject *record, PyObject *former)
{
    const struct token_object *token = token_in(record);
    if (LIKELY(former != NULL && token_in(former)->seq == token->seq &&
               token_in(former)->partition_index == token->partition_index)) {
        return Py_NewRef(PyTuple_GET_ITEM(former, BATCH));
    }
    return Py_BuildValue("(IK)", (unsigned int)token->partition_index, (unsigned long long)token->seq);
}

static void record_join(struct confluent_object *self, PyObject *record, uint64_t take_count)
{
    PyObject **items = items_of(record);
    PyObject *index = PyLong_FromUnsignedLong(token_in(record)->record_index);
    PyObject *batch;
    ALONE_BEGIN(self);
    batch = index == NULL ? NULL : batch_of(record, self->chain);
    if (LIKELY(batch != NULL && self->take_count == take_count)) {
        Py_SETREF(items[INDEX], Py_NewRef(index));
        Py_SETREF(items[BATCH], Py_NewRef(batch));
    } else {
        self->has_late = true;
    }
    if (self->chain != NULL) {
        Py_SETREF(items[NEXT], self->chain);
    }
    self->chain = Py_NewRef(record);
    self->chain_count++;
    ALONE_END();
    Py_XDECREF(batch);
    Py_XDECREF(index);
    PyErr_Clear();
}

/* Adds a record that Python has sent. Its items are those of send_told(), except for the future. */
static PyObject *confluent_join(PyObject *object, PyObject *args)
{
    struct confluent_object *self = confluent_of(object);
    PyObject *record;
    PyObject *future;
    unsigned long long take_count;
    if (self->state == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "Producer has been closed");
    }
    if (!PyArg_ParseTuple(args, "O!O!K:_join", &PyTuple_Type, &record, self->state->future_type, &future,
                          &take_count)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(record) != ITEM_COUNT || PyTuple_GET_ITEM(record, FUTURE) != Py_None) {
        return PyErr_Format(PyExc_TypeError, "_join() takes a record of %d items without a future", ITEM_COUNT);
    }
    Py_SETREF(items_of(record)[FUTURE], Py_NewRef(future));
    record_join(self, record, take_count);
    Py_RETURN_NONE;
}

/* Moves the records of the chain to the end of a list. After an exception, the chain is unchanged. */
static PyObject *confluent_take_told(PyObject *object, PyObject *target)
{
    struct confluent_object *self = confluent_of(object);
    PyObject *all = PyList_New(0);
    bool is_taken = all != NULL;
    for (PyObject *record = self->chain; is_taken && record != NULL && record != Py_None;
         record = PyTuple_GET_ITEM(record, NEXT)) {
        is_taken = PyList_Append(all, record) == 0;
    }
    Py_ssize_t end = is_taken ? PyList_Size(target) : -1;
    is_taken = end >= 0 && PyList_SetSlice(target, end, end, all) == 0;
    if (is_taken) {
        self->take_count++;
        self->chain_count = 0;
        self->has_late = false;
        Py_CLEAR(self->chain);
    }
    for (Py_ssize_t i = 0; is_taken && i < PyList_GET_SIZE(all); i++) {
        Py_SETREF(items_of(PyList_GET_ITEM(all, i))[NEXT], Py_NewRef(Py_None));
    }
    Py_XDECREF(all);
    return is_taken ? Py_NewRef(Py_None) : NULL;
}

/* ---- produce ---- */

enum { TOPIC, VALUE, KEY, PARTITION, CALLBACK, ON_DELIVERY, TIMESTAMP, HEADERS };

static const struct argument produce_arguments[PRODUCE_ARGUMENT_COUNT] = {
    {.name = "topic", .is_required = true}, {.name = "value"},       {.name = "key"},       {.name = "partition"},
    {.name = "callback"},                   {.name = "on_delivery"}, {.name = "timestamp"}, {.name = "headers"},
};
static const struct signature produce_signature = {
    .function = "produce", .arguments = produce_arguments, .count = PRODUCE_ARGUMENT_COUNT};

static inline bool is_none(const PyObject *given)
{
    return given == NULL || given == Py_None;
}

static inline bool is_ordinary(PyObject *const *bound)
{
    return is_none(bound[PARTITION]) && is_none(bound[TIMESTAMP]) && is_none(bound[HEADERS]);
}

/* Encodes a str as UTF-8. Returns any other object unchanged, or NULL with an exception set. */
static inline PyObject *part_encode(PyObject *given)
{
    if (is_none(given)) {
        return Py_NewRef(Py_None);
    }
    return PyUnicode_Check(given) ? PyUnicode_AsUTF8String(given) : Py_NewRef(given);
}

/* Calls _produce_in_python. If an exception is set, clears it and passes it. */
static COLD PyObject *produce_in_python(PyObject *object, PyObject *const *bound)
{
    const struct module_state *state = confluent_of(object)->state;
    PyObject *error = PyErr_Occurred() != NULL ? exception_take() : Py_NewRef(Py_None);
    PyObject *arguments[2 + PRODUCE_ARGUMENT_COUNT] = {object, error};
    for (int i = 0; i < PRODUCE_ARGUMENT_COUNT; i++) {
        arguments[2 + i] = bound[i] == NULL ? Py_None : bound[i];
    }
    PyObject *answer =
        PyObject_VectorcallMethod(state->produce_in_python, arguments, 2 + PRODUCE_ARGUMENT_COUNT, NULL);
    Py_DECREF(error);
    return answer;
}

/* Returns false with an exception set. */
static inline bool send_told(struct confluent_object *self, struct producer_object *producer, PyObject *callback,
                             PyObject *const *parts)
{
    PyObject *record = PyTuple_Pack(ITEM_COUNT, Py_None, Py_None, callback, parts[0], parts[1], parts[2], Py_None,
                                    Py_None, Py_None);
    uint64_t take_count;
    ALONE_BEGIN(self);
    take_count = self->take_count;
    ALONE_END();
    PyObject *future = record == NULL ? NULL : producer_send((PyObject *)producer, parts, 3, NULL);
    if (LIKELY(future != NULL)) {
        Py_SETREF(items_of(record)[FUTURE], future);
        record_join(self, record, take_count);
    }
    Py_XDECREF(record);
    return future != NULL;
}

static inline bool produce(struct confluent_object *self, struct producer_object *producer, PyObject *callback,
                           PyObject *const *bound)
{
    PyObject *value = part_encode(bound[VALUE]);
    PyObject *key = value == NULL ? NULL : part_encode(bound[KEY]);
    PyObject *parts[] = {bound[TOPIC], value, key};
    bool is_sent = false;
    if (LIKELY(key != NULL) && callback != Py_None) {
        is_sent = send_told(self, producer, callback, parts);
    } else if (LIKELY(key != NULL)) {
        PyObject *future = producer_send((PyObject *)producer, parts, 3, NULL);
        is_sent = future != NULL;
        Py_XDECREF(future);
    }
    Py_XDECREF(value);
    Py_XDECREF(key);
    return is_sent;
}

static PyObject *confluent_produce(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct confluent_object *self = confluent_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    if (self->state == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "Producer has been closed");
    }
    if (!arguments_bind_interned(&produce_signature, self->state->produce_names, args, count, names, bound)) {
        return NULL;
    }
    PyObject *callback = is_none(bound[CALLBACK]) ? bound[ON_DELIVERY] : bound[CALLBACK];
    struct producer_object *producer;
    ALONE_BEGIN(self);
    callback = is_none(callback) ? self->on_delivery : callback;
    callback = Py_NewRef(callback == NULL ? Py_None : callback);
    producer = self->producer;
    Py_XINCREF((PyObject *)producer);
    ALONE_END();
    bool is_sent = producer != NULL && is_ordinary(bound) && produce(self, producer, callback, bound);
    Py_DECREF(callback);
    Py_XDECREF((PyObject *)producer);
    return LIKELY(is_sent) ? Py_NewRef(Py_None) : produce_in_python(object, bound);
}

static PyObject *confluent_produce_through(PyObject *object, PyTypeObject *type, PyObject *const *args,
                                           Py_ssize_t count, PyObject *names)
{
    const struct module_state *state = PyType_GetModuleState(type);
    struct confluent_object *self = confluent_of(object);
    if (names != NULL || count != 2 || !(args[0] == Py_None || PyObject_TypeCheck(args[0], state->producer_type))) {
        return PyErr_Format(PyExc_TypeError, "_produce_through() takes a Producer or None, and a callback or None");
    }
    ALONE_BEGIN(self);
    self->state = state;
    Py_XSETREF(self->producer, args[0] == Py_None ? NULL : (struct producer_object *)Py_NewRef(args[0]));
    Py_XSETREF(self->on_delivery, args[1] == Py_None ? NULL : Py_NewRef(args[1]));
    ALONE_END();
    Py_RETURN_NONE;
}

/* ---- call ---- */

struct delivered {
    PyObject *records;      /* iterator of a list */
    PyObject *message_type; /* confluent_kafka.Message */
    PyObject *partition;
    PyObject *time_kind;
    long long base_offset; /* the offset of record `first`, or -1 */
    unsigned int first;
    double now_s;
};

/* Returns a new reference, or NULL with an exception set. */
static inline PyObject *message_new(const struct delivered *given, PyObject *record)
{
    PyObject **items = items_of(record);
    const struct token_object *token = token_in(record);
    long long offset = given->base_offset < 0 ? -1 : given->base_offset + token->record_index - given->first;
    double latency_s = given->now_s - (double)token->timestamp_ms / 1e3;
    PyObject *parts[] = {items[NAME],         given->partition, PyLong_FromLongLong(offset), items[DATA_KEY],
                         items[DATA],         items[DATA_HEADERS], Py_None,                  NULL,
                         NULL};
    PyObject *time_ms = PyLong_FromLongLong(token->timestamp_ms);
    parts[7] = time_ms == NULL ? NULL : PyTuple_Pack(2, given->time_kind, time_ms);
    parts[8] = PyFloat_FromDouble(latency_s > 0 ? latency_s : 0);
    bool is_whole = parts[2] != NULL && parts[7] != NULL && parts[8] != NULL;
    PyObject *message = is_whole ? PyObject_Vectorcall(given->message_type, parts, 9, NULL) : NULL;
    Py_XDECREF(parts[2]);
    Py_XDECREF(parts[7]);
    Py_XDECREF(parts[8]);
    Py_XDECREF(time_ms);
    return message;
}

static inline bool callback_call(const struct delivered *given, PyObject *record)
{
    PyObject *arguments[] = {Py_None, message_new(given, record)};
    PyObject *answer =
        arguments[1] == NULL ? NULL : PyObject_Vectorcall(items_of(record)[TOLD], arguments, 2, NULL);
    Py_XDECREF(arguments[1]);
    Py_XDECREF(answer);
    return answer != NULL;
}

/* Returns the number of called callbacks. After an exception of one, the iterator still has the other records. */
static PyObject *confluent_call(PyObject *Py_UNUSED(object), PyObject *args)
{
    struct delivered given;
    if (!PyArg_ParseTuple(args, "O!OOOLId:_call", &PyListIter_Type, &given.records, &given.message_type,
                          &given.partition, &given.time_kind, &given.base_offset, &given.first, &given.now_s)) {
        return NULL;
    }
    Py_ssize_t count = 0;
    PyObject *record;
    bool is_called = true;
    while (is_called && (record = PyIter_Next(given.records)) != NULL) {
        is_called = callback_call(&given, record);
        count += is_called;
        Py_DECREF(record);
    }
    return is_called ? PyLong_FromSsize_t(count) : NULL;
}

/* ---- the type ---- */

static int confluent_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)confluent_of(object)->producer);
    Py_VISIT(confluent_of(object)->on_delivery);
    Py_VISIT(confluent_of(object)->chain);
    return 0;
}

static int confluent_clear(PyObject *object)
{
    Py_CLEAR(confluent_of(object)->producer);
    Py_CLEAR(confluent_of(object)->on_delivery);
    Py_CLEAR(confluent_of(object)->chain);
    return 0;
}

static void confluent_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)confluent_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

ALONE(confluent_take_told)

static PyMethodDef confluent_methods[] = {
    {"produce", FAST(confluent_produce), METH_FASTCALL | METH_KEYWORDS,
     "produce($self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, timestamp=0,\n"
     "        headers=None)\n--\n\nAppends a record to the arena. A sender delivers it."},
    {"_call", confluent_call, METH_VARARGS,
     "_call(records, message type, partition, time kind, base offset, first, now)"},
    {"_join", confluent_join, METH_VARARGS,
     "_join($self, record, future, take_count, /)\n--\n\nAdds a record that Python has sent to the chain.\n\n"
     "take_count is _take_count before the record was sent."},
    {"_produce_through", FAST(confluent_produce_through), METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     "_produce_through($self, producer, on_delivery, /)\n--\n\nSends through this producer; None closes."},
    {"_take_told", alone_confluent_take_told, METH_O, "Moves the records with a callback to the end of a list."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef confluent_members[] = {
    {"_chain_count", T_PYSSIZET, offsetof(struct confluent_object, chain_count), READONLY,
     "The number of records that _take_told() would move."},
    {"_has_late", T_BOOL, offsetof(struct confluent_object, has_late), READONLY, "True if one of them is late."},
    {"_take_count", T_ULONGLONG, offsetof(struct confluent_object, take_count), READONLY,
     "The number of calls of _take_told()."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot confluent_slots[] = {
    {Py_tp_doc, "The produce() of shmaccum.compat.confluent."},
    {Py_tp_dealloc, confluent_dealloc},
    {Py_tp_traverse, confluent_traverse},
    {Py_tp_clear, confluent_clear},
    {Py_tp_methods, confluent_methods},
    {Py_tp_members, confluent_members},
    {0, NULL},
};

PyType_Spec confluent_spec = NATIVE_TYPE("ConfluentProducer", struct confluent_object, confluent_slots,
                                         Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
