/* SPDX-License-Identifier: Apache-2.0
 *
 * ConfluentProducer: produce() in confluent-kafka's words, once per record.
 *
 *   ordinary   topic, value and key alone: goes through send() of a Producer
 *   told       has a callback, too: is watched from then on (confluent_watch.h), and told by poll (confluent_tell.h)
 *   any other  has headers, a partition or a timestamp: _produce_any() of the Python class takes it
 *   refused    send() raised: _produce_refused() of the Python class says the same in confluent-kafka's words
 *
 * It is the base of the Python class, so a program's own class may override produce(), and comes here by super().
 */
#include "python/producer/confluent_type.h"

#include "arena/completion.h"
#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/producer/confluent_tell.h"
#include "python/producer/confluent_watch.h"
#include "python/producer/future_type.h"
#include "python/producer/producer_type.h"

struct confluent_object {
    PyObject ob_base;
    struct module_state *state;
    struct producer_object *producer; /* of ordinary records; NULL: no record is ordinary */
    PyObject *on_delivery;            /* of records that have no callback of their own, or NULL */
    struct confluent_watch watch;
};

static struct confluent_object *confluent_of(PyObject *self)
{
    return (struct confluent_object *)self;
}

/* ---- watch ---- */

/* A reference, which outlives a close() in another thread; NULL: there is none. */
static inline struct producer_object *producer_hold(struct confluent_object *self)
{
    struct producer_object *producer;
    ALONE_BEGIN(self);
    producer = self->producer;
    Py_XINCREF((PyObject *)producer);
    ALONE_END();
    return producer;
}

static inline bool result_is_pending(const struct arena *core, PyObject *record)
{
    const struct token_object *token = (const struct token_object *)PyTuple_GET_ITEM(record, 0);
    const struct record_token key = {.seq = token->seq,
                                     .partition_index = token->partition_index,
                                     .slot_index = token->slot_index,
                                     .record_index = token->record_index};
    struct completion completion;
    return completion_find(core, &key, &completion) == STATUS_PENDING;
}

static inline uint64_t tail_of(struct arena_object *arena)
{
    uint64_t tail = 0;
    ALONE_BEGIN(arena);
    if (LIKELY(arena->core != NULL)) {
        tail = load_acquire_u64(&arena->core->globals->completion_tail);
    }
    ALONE_END();
    return tail;
}

static inline bool is_pending_in(struct arena_object *arena, PyObject *record)
{
    bool is_pending = true;
    ALONE_BEGIN(arena);
    if (LIKELY(arena->core != NULL)) {
        is_pending = result_is_pending(arena->core, record);
    }
    ALONE_END();
    return is_pending;
}

static void record_watch(struct confluent_object *self, struct arena_object *arena, PyObject *record)
{
    uint64_t tail = tail_of(arena);
    ALONE_BEGIN(self);
    watch_add(&self->watch, record, tail);
    ALONE_END();
    if (UNLIKELY(!is_pending_in(arena, record))) {
        ALONE_BEGIN(self);
        self->watch.is_late = true;
        ALONE_END();
    }
}

static PyObject *confluent_watch(PyObject *object, PyObject *record)
{
    struct confluent_object *self = confluent_of(object);
    if (!PyTuple_Check(record) || PyTuple_GET_SIZE(record) != RECORD_ITEM_COUNT ||
        !PyObject_TypeCheck(PyTuple_GET_ITEM(record, RECORD_FUTURE), self->state->future_type)) {
        PyErr_SetString(PyExc_TypeError, "a watched record is a tuple that begins with its DeliveryFuture");
        return NULL;
    }
    struct producer_object *producer = producer_hold(self);
    if (producer != NULL) { /* else closed meanwhile: nobody is told any more */
        record_watch(self, producer->appender->arena, record);
        Py_DECREF((PyObject *)producer);
    }
    Py_RETURN_NONE;
}

static PyObject *results_take(struct confluent_object *self, struct arena_object *arena, PyObject *found)
{
    bool is_whole = true;
    bool is_taken = true;
    ALONE_BOTH_BEGIN(self, arena);
    if (LIKELY(arena->core != NULL)) {
        is_taken = watch_take_results(&self->watch, arena->core, found, &is_whole);
    }
    ALONE_BOTH_END();
    return is_taken ? PyBool_FromLong(is_whole) : NULL;
}

static PyObject *confluent_take_results(PyObject *object, PyObject *found)
{
    if (!PyList_Check(found)) {
        PyErr_SetString(PyExc_TypeError, "a list is expected");
        return NULL;
    }
    struct producer_object *producer = producer_hold(confluent_of(object));
    if (producer == NULL) {
        Py_RETURN_TRUE;
    }
    PyObject *answer = results_take(confluent_of(object), producer->appender->arena, found);
    Py_DECREF((PyObject *)producer);
    return answer;
}

static PyObject *confluent_take_watched(PyObject *object, PyObject *unused)
{
    (void)unused;
    return watch_take_all(&confluent_of(object)->watch);
}

static PyObject *confluent_get_watched_count(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(confluent_of(object)->watch.count);
}

/* ---- tell ---- */

static PyObject *confluent_tell_reports(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        return PyErr_Format(PyExc_TypeError, "_tell_reports() takes 3 arguments, not %zd", count);
    }
    struct confluent_teller teller = {.state = confluent_of(object)->state,
                                      .producer = object,
                                      .reports = args[0],
                                      .deliveries = args[1],
                                      .message_type = args[2]};
    Py_ssize_t told = tell_reports(&teller);
    return told < 0 ? NULL : PyLong_FromSsize_t(told);
}

/* ---- produce ---- */

enum { TOPIC, VALUE, KEY, PARTITION, CALLBACK, ON_DELIVERY, TIMESTAMP, HEADERS };

static const struct signature produce_signature = {
    .function = "produce",
    .names = {"topic", "value", "key", "partition", "callback", "on_delivery", "timestamp", "headers"},
    .required_count = 1,
    .count = PRODUCE_ARGUMENT_COUNT};

static inline bool is_none(const PyObject *given)
{
    return given == NULL || given == Py_None;
}

static inline bool is_ordinary(PyObject *const *bound)
{
    return is_none(bound[PARTITION]) && is_none(bound[TIMESTAMP]) && is_none(bound[HEADERS]);
}

/* A reference, None for nobody. */
static inline PyObject *told_hold(struct confluent_object *self, PyObject *const *bound)
{
    PyObject *told = is_none(bound[CALLBACK]) ? bound[ON_DELIVERY] : bound[CALLBACK];
    ALONE_BEGIN(self);
    told = Py_NewRef(is_none(told) && self->on_delivery != NULL ? self->on_delivery : told == NULL ? Py_None : told);
    ALONE_END();
    return told;
}

/* A str in UTF-8; anything else as it is, for send() to judge. A reference; NULL with an exception set. */
static inline PyObject *part_encode(PyObject *given)
{
    if (is_none(given)) {
        return Py_NewRef(Py_None);
    }
    return PyUnicode_Check(given) ? PyUnicode_AsUTF8String(given) : Py_NewRef(given);
}

static PyObject *none_or_null(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer == NULL ? NULL : Py_NewRef(Py_None);
}

/* The parts of an ordinary record, in UTF-8 where one was a str. */
struct ordinary {
    PyObject *told; /* a callback, or None */
    PyObject *topic;
    PyObject *key;
    PyObject *value;
};

static COLD PyObject *produce_refused(PyObject *object, const struct ordinary *given)
{
    PyObject *error = exception_take();
    PyObject *arguments[] = {object, error, given->told, given->topic, given->key, given->value};
    PyObject *answer =
        PyObject_VectorcallMethod(confluent_of(object)->state->produce_refused, arguments, 6, NULL);
    Py_DECREF(error);
    return none_or_null(answer);
}

/* Made before the append, so that no record is committed without it. Its future comes behind. */
static inline PyObject *record_new(const struct ordinary *given)
{
    return PyTuple_Pack(RECORD_ITEM_COUNT, Py_None, given->told, given->topic, given->key, given->value, Py_None,
                        Py_None);
}

static inline PyObject *produce_told(PyObject *object, struct producer_object *producer,
                                     const struct ordinary *given)
{
    PyObject *record = record_new(given);
    if (record == NULL) {
        return NULL;
    }
    PyObject *parts[] = {given->topic, given->value, given->key};
    PyObject *future = producer_send((PyObject *)producer, parts, 3, NULL);
    PyObject *answer = future == NULL ? produce_refused(object, given) : Py_NewRef(Py_None);
    if (LIKELY(future != NULL)) {
        Py_SETREF(((PyTupleObject *)record)->ob_item[RECORD_FUTURE], future);
        record_watch(confluent_of(object), producer->appender->arena, record);
    }
    Py_DECREF(record);
    return answer;
}

static inline PyObject *produce_untold(PyObject *object, struct producer_object *producer,
                                       const struct ordinary *given)
{
    PyObject *parts[] = {given->topic, given->value, given->key};
    PyObject *future = producer_send((PyObject *)producer, parts, 3, NULL);
    if (UNLIKELY(future == NULL)) {
        return produce_refused(object, given);
    }
    Py_DECREF(future);
    Py_RETURN_NONE;
}

static inline PyObject *produce_ordinary(PyObject *object, struct producer_object *producer, PyObject *const *bound)
{
    struct ordinary given = {.topic = bound[TOPIC], .value = part_encode(bound[VALUE])};
    PyObject *answer = NULL;
    given.key = given.value == NULL ? NULL : part_encode(bound[KEY]);
    if (LIKELY(given.key != NULL)) {
        given.told = told_hold(confluent_of(object), bound);
        answer = given.told == Py_None ? produce_untold(object, producer, &given)
                                       : produce_told(object, producer, &given);
        Py_DECREF(given.told);
    }
    Py_XDECREF(given.value);
    Py_XDECREF(given.key);
    return answer;
}

/* All arguments in confluent-kafka's order; one that was left out is None. */
static PyObject *produce_any(PyObject *object, PyObject *const *bound)
{
    const struct module_state *state = confluent_of(object)->state;
    PyObject *arguments[1 + PRODUCE_ARGUMENT_COUNT] = {object};
    for (int i = 0; i < PRODUCE_ARGUMENT_COUNT; i++) {
        arguments[1 + i] = bound[i] == NULL ? Py_None : bound[i];
    }
    return none_or_null(
        PyObject_VectorcallMethod(state->produce_any, arguments, 1 + PRODUCE_ARGUMENT_COUNT, NULL));
}

static PyObject *confluent_produce(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct confluent_object *self = confluent_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    if (!arguments_bind_interned(&produce_signature, self->state->produce_names, args, count, names, bound)) {
        return NULL;
    }
    struct producer_object *producer = is_ordinary(bound) ? producer_hold(self) : NULL;
    if (producer == NULL) {
        return produce_any(object, bound);
    }
    PyObject *answer = produce_ordinary(object, producer, bound);
    Py_DECREF((PyObject *)producer);
    return answer;
}

static PyObject *confluent_produce_through(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                           PyObject *names)
{
    static const struct signature signature = {
        .function = "_produce_through", .names = {"producer", "on_delivery"}, .required_count = 1, .count = 2};
    struct confluent_object *self = confluent_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    if (!arguments_bind(&signature, args, count, names, bound)) {
        return NULL;
    }
    PyObject *producer = is_none(bound[0]) ? NULL : bound[0];
    if (producer != NULL && !PyObject_TypeCheck(producer, self->state->producer_type)) {
        PyErr_Format(PyExc_TypeError, "a Producer or None is expected, not %.80s", Py_TYPE(producer)->tp_name);
        return NULL;
    }
    Py_XSETREF(self->producer, (struct producer_object *)Py_XNewRef(producer));
    Py_XSETREF(self->on_delivery, is_none(bound[1]) ? NULL : Py_NewRef(bound[1]));
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static void confluent_dealloc(PyObject *object);

/* That of the native type, which is among the bases of a class derived from it. */
static struct module_state *state_of_class(PyTypeObject *type)
{
    while (type->tp_dealloc != confluent_dealloc) {
        type = type->tp_base;
    }
    return PyType_GetModuleState(type);
}

static PyObject *confluent_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *object = PyType_GenericNew(type, args, keywords);
    if (object != NULL) {
        confluent_of(object)->state = state_of_class(type);
    }
    if (object != NULL && !watch_begin(&confluent_of(object)->watch)) {
        Py_CLEAR(object);
    }
    return object;
}

static int confluent_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)confluent_of(object)->producer);
    Py_VISIT(confluent_of(object)->on_delivery);
    Py_VISIT(confluent_of(object)->watch.batches);
    Py_VISIT(confluent_of(object)->watch.recent);
    Py_VISIT(confluent_of(object)->watch.chain);
    return 0;
}

static int confluent_clear(PyObject *object)
{
    Py_CLEAR(confluent_of(object)->producer);
    Py_CLEAR(confluent_of(object)->on_delivery);
    Py_CLEAR(confluent_of(object)->watch.batches);
    Py_CLEAR(confluent_of(object)->watch.recent);
    Py_CLEAR(confluent_of(object)->watch.chain);
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

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static const char produce_text[] =
    "produce($self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, timestamp=0,\n"
    "        headers=None)\n"
    "--\n\n"
    "Puts a record into the arena; a sender delivers it.\n\n"
    "Args:\n"
    "    value, key: bytes-like, a str, or None for null.\n"
    "    partition: -1: the partitioner's.\n"
    "    callback, on_delivery: called by `poll` or `flush` with an error or None, and with the message.\n"
    "    timestamp: milliseconds since 1970; 0: now.\n"
    "    headers: a dict, or a list of pairs.\n\n"
    "Raises:\n"
    "    BufferError: the arena is full: poll, and try again.\n"
    "    KafkaException: the record is too large, or there is no such partition.\n"
    "    RuntimeError: the producer is closed.\n"
    "    TypeError: a part has a wrong type.";

ALONE(confluent_take_watched, itself)
ALONE_FAST(confluent_produce_through, itself)
ALONE_GET(confluent_get_watched_count, itself)

static PyMethodDef confluent_methods[] = {
    {"produce", FAST(confluent_produce), METH_FASTCALL | METH_KEYWORDS, produce_text},
    {"_produce_through", FAST(alone_confluent_produce_through), METH_FASTCALL | METH_KEYWORDS,
     "_produce_through($self, producer, on_delivery=None)\n--\n\n"
     "Sends ordinary records through this producer from now on, without _produce_any(); None: through none."},
    {"_take_results", confluent_take_results, METH_O,
     "Appends the watched records that have a result by now to a list. False: look at all, some were not looked for."},
    {"_take_watched", alone_confluent_take_watched, METH_NOARGS,
     "The watched records in a list. They are watched no more."},
    {"_tell_reports", FAST(confluent_tell_reports), METH_FASTCALL,
     "_tell_reports($self, reports, deliveries, message_type, /)\n--\n\n"
     "Takes records out of a deque until it is empty, and calls the callback of each; their number."},
    {"_watch", confluent_watch, METH_O,
     "Watches a record: a tuple that begins with its future, and ends with None."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef confluent_properties[] = {
    {"_watched_count", alone_confluent_get_watched_count, NULL, "The number of watched records.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot confluent_slots[] = {
    {Py_tp_doc, "The produce() of shmaccum.compat.confluent."},
    {Py_tp_new, confluent_new},
    {Py_tp_dealloc, confluent_dealloc},
    {Py_tp_traverse, confluent_traverse},
    {Py_tp_clear, confluent_clear},
    {Py_tp_methods, confluent_methods},
    {Py_tp_getset, confluent_properties},
    {0, NULL},
};

PyType_Spec confluent_spec = {
    .name = "shmaccum._native.ConfluentProducer",
    .basicsize = sizeof(struct confluent_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = confluent_slots,
};
