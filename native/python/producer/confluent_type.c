/* SPDX-License-Identifier: Apache-2.0
 *
 * ConfluentProducer: produce() with confluent-kafka's signature, a thin variant of Producer.send() (producer_type.c).
 *
 * It sends records with only a topic, a value and a key. _produce_in_python() of the Python class handles any other
 * record, and the error of a rejected record. For each record with a callback, a waiter is added to a ResultWaiters,
 * also if Python has sent the record. The callback is the observer.
 *
 * A waiter is made before the append, and added after it. After the append, no step may fail, because the record will
 * be sent.
 */
#include "python/producer/producer_type.h"

#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/producer/result_waiters_type.h"

#include <stddef.h>
#include <time.h>

struct confluent_object {
    PyObject ob_base;
    const struct module_state *state; /* NULL before the first producer */
    struct producer_object *producer; /* or NULL */
    PyObject *on_delivery;            /* the callback of records that have none, or NULL */
    struct waiters_object *waiters;   /* for records with a callback. NULL before the first producer */
};

static struct confluent_object *confluent_of(PyObject *self)
{
    return (struct confluent_object *)self;
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

/* References of one call. */
struct sending {
    struct producer_object *producer; /* or NULL */
    struct waiters_object *waiters;   /* not NULL if there is a producer */
    PyObject *callback;               /* or None */
};

static inline void sending_begin(struct sending *sending, struct confluent_object *self, PyObject *callback)
{
    ALONE_BEGIN((PyObject *)self);
    callback = is_none(callback) ? self->on_delivery : callback;
    sending->callback = Py_NewRef(callback == NULL ? Py_None : callback);
    sending->producer = (struct producer_object *)Py_XNewRef((PyObject *)self->producer);
    sending->waiters = (struct waiters_object *)Py_XNewRef((PyObject *)self->waiters);
    ALONE_END();
}

static inline void sending_end(struct sending *sending)
{
    Py_DECREF(sending->callback);
    Py_XDECREF((PyObject *)sending->producer);
    Py_XDECREF((PyObject *)sending->waiters);
}

static struct arena_object *arena_of(const struct sending *sending)
{
    return sending->producer->appender->arena;
}

/* Returns false with an exception set. */
static inline bool send_with_callback(const struct sending *sending, PyObject *const *parts)
{
    const struct record_parts record = {parts[0], parts[1], parts[2], Py_None};
    struct waiter *waiter = waiter_new(sending->callback, &record);
    PyObject *future = waiter == NULL ? NULL : producer_send((PyObject *)sending->producer, parts, 3, NULL);
    if (LIKELY(future != NULL)) {
        waiters_put(sending->waiters, arena_of(sending), waiter, future);
    } else if (waiter != NULL) {
        waiter_free(waiter);
    }
    Py_XDECREF(future);
    return future != NULL;
}

/* Adds a record that Python has sent: (future, callback, topic, value, key, headers). */
static PyObject *confluent_join(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    const struct module_state *state = confluent_of(object)->state;
    if (state == NULL || count != 6 || !PyObject_TypeCheck(args[0], state->future_type)) {
        return PyErr_Format(PyExc_TypeError, "_join() takes a DeliveryFuture, a callback, and 4 parts of a record");
    }
    const struct record_parts record = {args[2], args[3], args[4], args[5]};
    struct waiter *waiter = waiter_new(args[1], &record);
    if (waiter == NULL) {
        return NULL;
    }
    struct sending sending;
    sending_begin(&sending, confluent_of(object), Py_None);
    if (sending.producer == NULL) { /* closed by another thread: no callback is called */
        waiter_free(waiter);
    } else {
        waiters_put(sending.waiters, arena_of(&sending), waiter, args[0]);
    }
    sending_end(&sending);
    Py_RETURN_NONE;
}

static inline bool produce(const struct sending *sending, PyObject *const *bound)
{
    PyObject *value = part_encode(bound[VALUE]);
    PyObject *key = value == NULL ? NULL : part_encode(bound[KEY]);
    PyObject *parts[] = {bound[TOPIC], value, key};
    bool is_sent = false;
    if (LIKELY(key != NULL) && sending->callback != Py_None) {
        is_sent = send_with_callback(sending, parts);
    } else if (LIKELY(key != NULL)) {
        PyObject *future = producer_send((PyObject *)sending->producer, parts, 3, NULL);
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
    struct sending sending;
    sending_begin(&sending, self, callback);
    bool is_sent = sending.producer != NULL && is_ordinary(bound) && produce(&sending, bound);
    sending_end(&sending);
    return LIKELY(is_sent) ? Py_NewRef(Py_None) : produce_in_python(object, bound);
}

static bool is_producer(const struct module_state *state, PyObject *given)
{
    return PyObject_TypeCheck(given, state->producer_type) && ((struct producer_object *)given)->appender != NULL;
}

static PyObject *confluent_produce_through(PyObject *object, PyTypeObject *type, PyObject *const *args,
                                           Py_ssize_t count, PyObject *names)
{
    const struct module_state *state = PyType_GetModuleState(type);
    struct confluent_object *self = confluent_of(object);
    bool is_valid = names == NULL && count == 3 && PyObject_TypeCheck(args[2], state->result_waiters_type);
    if (!is_valid || !(args[0] == Py_None || is_producer(state, args[0]))) {
        return PyErr_Format(PyExc_TypeError, "_produce_through() takes a Producer or None, a callback or None, and "
                                             "a ResultWaiters");
    }
    ALONE_BEGIN(self); /* the producer is set last: a thread that sees it also needs the other two */
    self->state = state;
    Py_XSETREF(self->waiters, (struct waiters_object *)Py_NewRef(args[2]));
    Py_XSETREF(self->on_delivery, args[1] == Py_None ? NULL : Py_NewRef(args[1]));
    Py_XSETREF(self->producer, args[0] == Py_None ? NULL : (struct producer_object *)Py_NewRef(args[0]));
    ALONE_END();
    Py_RETURN_NONE;
}

/* ---- call ---- */

/* The objects that all messages of a batch use. */
struct calling {
    PyObject *message_type;   /* confluent_kafka.Message */
    PyObject *time_kind;      /* TIMESTAMP_CREATE_TIME */
    PyObject *records;        /* CallbackRecords */
    PyObject *partition;      /* of the batch; NULL before the first one */
    uint32_t partition_index;
    uint64_t seq;
    double now_s;
};

/* Returns false with an exception set. */
static inline bool batch_prepare(struct calling *calling, const struct record_token *token)
{
    if (LIKELY(calling->partition != NULL && calling->seq == token->seq &&
               calling->partition_index == token->partition_index)) {
        return true;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    calling->now_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    calling->seq = token->seq;
    calling->partition_index = token->partition_index;
    PyObject *partition = PyObject_CallMethod(calling->records, "partition_of", "I", token->partition_index);
    Py_XSETREF(calling->partition, partition);
    return calling->partition != NULL;
}

/* Returns a new reference, or NULL with an exception set. */
static inline PyObject *message_new(const struct calling *calling, const struct waiter *waiter)
{
    const struct completion *completion = &waiter->base.completion;
    int64_t timestamp_ms = ((const struct future_object *)waiter->future)->token.timestamp_ms;
    int64_t place = (int64_t)waiter->base.token.record_index - completion->first_record;
    double latency_s = calling->now_s - (double)timestamp_ms / 1e3;
    PyObject *offset = PyLong_FromLongLong(completion->base_offset < 0 ? -1 : completion->base_offset + place);
    PyObject *time_ms = PyLong_FromLongLong(timestamp_ms);
    PyObject *timestamp = time_ms == NULL ? NULL : PyTuple_Pack(2, calling->time_kind, time_ms);
    PyObject *latency = PyFloat_FromDouble(latency_s > 0 ? latency_s : 0);
    const struct record_parts *record = &waiter->record;
    PyObject *parts[] = {record->topic,   calling->partition, offset,    record->key, record->value,
                         record->headers, Py_None,            timestamp, latency};
    bool is_whole = offset != NULL && timestamp != NULL && latency != NULL;
    PyObject *message = is_whole ? PyObject_Vectorcall(calling->message_type, parts, 9, NULL) : NULL;
    Py_XDECREF(offset);
    Py_XDECREF(time_ms);
    Py_XDECREF(timestamp);
    Py_XDECREF(latency);
    return message;
}

/* Returns a new reference, or NULL with an exception set. */
static inline PyObject *callback_call(struct calling *calling, const struct waiter *waiter)
{
    if (UNLIKELY(waiter->record.topic == NULL)) {
        return PyErr_Format(PyExc_TypeError, "a waiter that another object added has no record");
    }
    if (UNLIKELY(!waiter->base.has_completion || waiter->base.completion.result != RESULT_SUCCEEDED)) {
        waiter_complete(waiter);
        return PyObject_CallMethod(calling->records, "report", "O(OOOOO)", waiter->future, waiter->observer,
                                   waiter->record.topic, waiter->record.value, waiter->record.key,
                                   waiter->record.headers);
    }
    PyObject *message = batch_prepare(calling, &waiter->base.token) ? message_new(calling, waiter) : NULL;
    PyObject *arguments[] = {Py_None, message};
    PyObject *answer = message == NULL ? NULL : PyObject_Vectorcall(waiter->observer, arguments, 2, NULL);
    Py_XDECREF(message);
    return answer;
}

/* Returns NULL if the waiters were replaced: a callback may have forked, and a child has its own waiters. */
static struct waiter *waiter_take_next(struct confluent_object *self, struct waiters_object *waiters)
{
    bool is_current;
    ALONE_BEGIN((PyObject *)self);
    is_current = self->waiters == waiters;
    ALONE_END();
    return is_current ? waiters_take(waiters) : NULL;
}

/* Returns -1 with an exception set. The next call continues with the other waiters. */
static Py_ssize_t call_all(struct confluent_object *self, struct waiters_object *waiters, struct calling *calling)
{
    Py_ssize_t count = 0;
    struct waiter *waiter;
    while ((waiter = waiter_take_next(self, waiters)) != NULL) {
        PyObject *answer = callback_call(calling, waiter);
        waiter_free(waiter);
        if (answer == NULL) {
            return -1;
        }
        Py_DECREF(answer);
        count++;
    }
    return count;
}

static PyObject *confluent_collect(PyObject *object, PyObject *Py_UNUSED(argument))
{
    struct sending sending;
    sending_begin(&sending, confluent_of(object), Py_None);
    bool has_ended = sending.producer != NULL && waiters_collect(sending.waiters, arena_of(&sending));
    sending_end(&sending);
    return PyBool_FromLong(has_ended);
}

static PyObject *confluent_call(PyObject *object, PyObject *args)
{
    struct confluent_object *self = confluent_of(object);
    struct calling calling = {.partition = NULL};
    struct sending sending;
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(args, "OOO:_call", &calling.records, &calling.message_type, &calling.time_kind)) {
        return NULL;
    }
    sending_begin(&sending, self, Py_None);
    if (sending.producer != NULL && waiters_collect(sending.waiters, arena_of(&sending))) {
        count = call_all(self, sending.waiters, &calling);
    }
    sending_end(&sending);
    Py_XDECREF(calling.partition);
    return count < 0 ? NULL : PyLong_FromSsize_t(count);
}

/* ---- the type ---- */

static int confluent_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)confluent_of(object)->producer);
    Py_VISIT(confluent_of(object)->on_delivery);
    Py_VISIT((PyObject *)confluent_of(object)->waiters);
    return 0;
}

static int confluent_clear(PyObject *object)
{
    Py_CLEAR(confluent_of(object)->producer);
    Py_CLEAR(confluent_of(object)->on_delivery);
    Py_CLEAR(confluent_of(object)->waiters);
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

static PyMethodDef confluent_methods[] = {
    {"produce", FAST(confluent_produce), METH_FASTCALL | METH_KEYWORDS,
     "produce($self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, timestamp=0,\n"
     "        headers=None)\n--\n\nAppends a record to the arena. A sender delivers it."},
    {"_call", confluent_call, METH_VARARGS,
     "_call($self, records, message_type, time_kind, /)\n--\n\n"
     "Calls the callbacks of all records that have a result, and returns their number."},
    {"_collect", confluent_collect, METH_NOARGS,
     "_collect($self)\n--\n\nFinds the results since the last call. Returns True if a callback is due."},
    {"_join", FAST(confluent_join), METH_FASTCALL,
     "_join($self, future, callback, topic, value, key, headers, /)\n--\n\nAdds a record that Python has sent."},
    {"_produce_through", FAST(confluent_produce_through), METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     "_produce_through($self, producer, on_delivery, waiters, /)\n--\n\n"
     "Sends through this producer; None closes. Records with a callback join these waiters."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot confluent_slots[] = {
    {Py_tp_doc, "The produce() of shmaccum.compat.confluent."},
    {Py_tp_dealloc, confluent_dealloc},
    {Py_tp_traverse, confluent_traverse},
    {Py_tp_clear, confluent_clear},
    {Py_tp_methods, confluent_methods},
    {0, NULL},
};

PyType_Spec confluent_spec = NATIVE_TYPE("ConfluentProducer", struct confluent_object, confluent_slots,
                                         Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
