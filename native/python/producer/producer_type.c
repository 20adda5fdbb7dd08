/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer: send(), once per record.
 *
 *   topic      a cache by the address of its str → topic index, partition count
 *   partition  the given one | by murmur2 of the key | the sticky one of the host
 *   time       the given one | the wall clock
 *   append     measure, lock, encode, commit (append.h, producer/appender.c)
 *   future     the only object that is made
 *
 * Python callables, which are arguments of __init__, do the rare work: wait for a partition count; prepare a record
 * (interceptors, serializers, a partitioner of the user); and conclude an append (interceptors, waiting for the disk).
 * Every record takes one path: prepare → append → conclude. Without these callables, a producer only appends. If a send
 * raises, `fallback` is called with its arguments.
 */
#include <stdlib.h>
#include <time.h>

#include "python/common/alone.h"
#include "python/common/errors.h"
#include "python/producer/append.h"
#include "python/producer/future_type.h"
#include "python/producer/producer_type.h"

static struct producer_object *producer_of(PyObject *self)
{
    return (struct producer_object *)self;
}

/* ---- open and close ---- */

/* The seed differs between processes, so that they draw different partitions. */
static uint64_t random_seed(const struct producer_object *self)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^ (uint64_t)(uintptr_t)self ^
           self->appender->arena->core->owner;
}

static bool topics_allocate(struct producer_object *self)
{
    uint32_t count = self->appender->arena->core->geometry.topic_count;
    self->topics = PyMem_Calloc(count, sizeof *self->topics);
    if (self->topics == NULL) {
        PyErr_NoMemory();
        return false;
    }
    self->topic_count = count;
    for (uint32_t i = 0; i < count; i++) {
        self->topics[i].sticky.topic_index = i;
    }
    return true;
}

struct producer_arguments {
    PyObject *appender;
    PyObject *tracker;
    PyObject *wait_for_partitions;
    PyObject *prepare;
    PyObject *conclude;
    PyObject *fallback;
    int is_adaptive;
    int ignores_keys;
};

static int producer_open(struct producer_object *self, const struct producer_arguments *given)
{
    self->appender = (struct appender_object *)Py_NewRef(given->appender);
    self->state = self->appender->state;
    self->tracker = Py_NewRef(given->tracker);
    self->wait_for_partitions = Py_NewRef(given->wait_for_partitions);
    self->prepare = given->prepare == Py_None ? NULL : Py_NewRef(given->prepare);
    self->conclude = given->conclude == Py_None ? NULL : Py_NewRef(given->conclude);
    self->fallback = given->fallback == Py_None ? NULL : Py_NewRef(given->fallback);
    self->is_piped = self->prepare != NULL || self->conclude != NULL || self->fallback != NULL;
    self->ignores_keys = given->ignores_keys;
    wall_clock_begin(&self->clock);
    self->partitioner = (struct partitioner){.arena = self->appender->arena->core,
                                             .registry = self->appender->arena->registry,
                                             .random_state = random_seed(self),
                                             .is_adaptive = given->is_adaptive};
    self->is_open = topics_allocate(self);
    return self->is_open ? 0 : -1;
}

static void producer_dealloc(PyObject *object);

/* Finds the native type among the bases of a subclass. */
static struct module_state *state_of(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    while (type->tp_dealloc != producer_dealloc) {
        type = type->tp_base;
    }
    return PyType_GetModuleState(type);
}

static int producer_init(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"appender", "tracker",     "wait_for_partitions", "prepare",
                            "conclude", "is_adaptive", "ignores_keys",        "fallback", NULL};
    struct module_state *state = state_of(object);
    struct producer_arguments given = {.prepare = Py_None, .conclude = Py_None, .fallback = Py_None, .is_adaptive = 1};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OO|OOppO:Producer", names, state->appender_type,
                                     &given.appender, &given.tracker, &given.wait_for_partitions, &given.prepare,
                                     &given.conclude, &given.is_adaptive, &given.ignores_keys, &given.fallback)) {
        return -1;
    }
    if (producer_of(object)->appender != NULL) {
        PyErr_SetString(PyExc_TypeError, "a producer can be initialized only once");
        return -1;
    }
    return producer_open(producer_of(object), &given);
}

static int producer_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct producer_object *self = producer_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->appender);
    Py_VISIT(self->tracker);
    Py_VISIT(self->wait_for_partitions);
    Py_VISIT(self->prepare);
    Py_VISIT(self->conclude);
    Py_VISIT(self->fallback);
    return 0;
}

/* Does not clear the appender, because every method needs it. The appender clears its own callables. */
static int producer_clear(PyObject *object)
{
    struct producer_object *self = producer_of(object);
    self->is_open = false;
    Py_CLEAR(self->tracker);
    Py_CLEAR(self->wait_for_partitions);
    Py_CLEAR(self->prepare);
    Py_CLEAR(self->conclude);
    Py_CLEAR(self->fallback);
    return 0;
}

static void topics_free(struct producer_object *self)
{
    for (uint32_t i = 0; self->topics != NULL && i < self->topic_count; i++) {
        partition_indices_close(&self->topics[i].indices);
    }
    PyMem_Free(self->topics);
}

static void producer_dealloc(PyObject *object)
{
    struct producer_object *self = producer_of(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)producer_clear(object);
    for (int i = 0; i < TOPIC_CELL_COUNT; i++) {
        Py_CLEAR(self->cells[i].topic);
    }
    topics_free(self);
    Py_XDECREF((PyObject *)self->appender);
    type->tp_free(object);
    Py_DECREF(type);
}

/* Returns false with an exception set. */
static inline bool producer_is_open(struct producer_object *self)
{
    if (UNLIKELY(!self->is_open)) {
        PyErr_SetString(state_of((PyObject *)self)->producer_closed,
                        "the producer is closed: nothing was sent; make another one");
    }
    return self->is_open;
}

/* Called before each call that sends. Returns false with an exception set if the producer is closed. */
static inline bool producer_call_begin(struct producer_object *self)
{
    return producer_is_open(self) && appender_call_begin(self->appender);
}

static inline void producer_call_end(struct producer_object *self)
{
    appender_call_end(self->appender);
}

bool producer_begin(struct producer_object *self)
{
    return producer_call_begin(self);
}

void producer_end(struct producer_object *self)
{
    producer_call_end(self);
}

/* ---- topic ---- */

static struct topic_cell *topic_cell(struct producer_object *self, PyObject *topic)
{
    uint64_t mixed = ((uint64_t)(uintptr_t)topic >> 4) * UINT64_C(0x9e3779b97f4a7c15);
    return &self->cells[mixed >> 58];
}

STATIC_CHECK(TOPIC_CELL_COUNT == 1 << (64 - 58));

static COLD bool topic_find_slow(struct producer_object *self, PyObject *topic, const struct append_target *target,
                                 uint32_t *topic_index)
{
    struct topic_cell *cell = topic_cell(self, topic);
    if (!arena_object_topic_within(self->appender->arena, topic, append_registry_limit(target), topic_index)) {
        return false;
    }
    PyObject *former = cell->topic;
    *cell = (struct topic_cell){Py_NewRef(topic), *topic_index};
    Py_XDECREF(former);
    return true;
}

/* Called if the partition count of the topic is unknown or too small. The sender then queries the sink. */
COLD bool producer_wait_for_partitions(struct producer_object *self, PyObject *topic, struct append_target *target,
                                       int64_t least, uint32_t *partition_count)
{
    const struct integer_range range = {"the partition count", least, INT32_MAX};
    int64_t count = 0;
    PyObject *answer =
        PyObject_CallFunction(self->wait_for_partitions, "OLLL", topic, (long long)target->max_block_ms,
                              (long long)append_deadline(target), (long long)least);
    bool is_known = answer != NULL && integer_parse(self->state, answer, &range, &count);
    Py_XDECREF(answer);
    *partition_count = (uint32_t)count;
    return is_known;
}

static inline bool topic_find(struct producer_object *self, PyObject *topic, struct append_target *target,
                              uint32_t *topic_index, uint32_t *partition_count)
{
    const struct topic_cell *cell = topic_cell(self, topic);
    *topic_index = cell->topic_index;
    if (UNLIKELY(cell->topic != topic) && !topic_find_slow(self, topic, target, topic_index)) {
        return false;
    }
    *partition_count = topic_partition_count(self->partitioner.arena, *topic_index);
    return LIKELY(*partition_count > 0) || producer_wait_for_partitions(self, topic, target, 1, partition_count);
}

bool producer_topic(struct producer_object *self, PyObject *topic, struct append_target *target, uint32_t *topic_index,
                    uint32_t *partition_count)
{
    return topic_find(self, topic, target, topic_index, partition_count);
}

/* ---- partition ---- */

struct send_target {
    struct append_target append; /* first: the append gives it back to choose_again */
    struct producer_object *producer;
    struct topic_note *topic;
    uint32_t partition_count;
};

static inline bool partition_set(struct send_target *target, uint32_t partition)
{
    return partition_find(target->producer, target->topic, partition, &target->append);
}

static inline bool sticky_choose(struct send_target *target)
{
    struct sticky *sticky = &target->topic->sticky;
    return partition_set(target, partitioner_sticky(&target->producer->partitioner, sticky, target->partition_count));
}

static bool sticky_choose_again(struct append_target *target)
{
    return sticky_choose((struct send_target *)target);
}

static COLD bool partition_explicit(struct send_target *target, PyObject *topic, PyObject *partition)
{
    struct producer_object *self = target->producer;
    int32_t number;
    if (!partition_parse(self->state, partition, &number)) {
        return false;
    }
    if ((uint32_t)number >= target->partition_count &&
        !producer_wait_for_partitions(self, topic, &target->append, (int64_t)number + 1, &target->partition_count)) {
        return false;
    }
    return partition_set(target, (uint32_t)number);
}

static inline bool partition_choose(struct send_target *target, PyObject *topic, PyObject *partition,
                                    const struct record *record)
{
    const struct producer_object *self = target->producer;
    if (UNLIKELY(partition != NULL && partition != Py_None)) {
        return partition_explicit(target, topic, partition);
    }
    if (record->key_size >= 0 && !self->ignores_keys) {
        return partition_set(target,
                             partition_of_key(record->key, (uint32_t)record->key_size, target->partition_count));
    }
    target->append.sticky = LIKELY(target->partition_count > 1) ? &target->topic->sticky : NULL;
    return sticky_choose(target);
}

/* ---- send ---- */

enum { TOPIC, VALUE, KEY, HEADERS, PARTITION, TIMESTAMP };

static const struct argument send_arguments[SEND_ARGUMENT_COUNT] = {
    {.name = "topic", .is_required = true}, {.name = "value"},     {.name = "key"},
    {.name = "headers"},                    {.name = "partition"}, {.name = "timestamp_ms"},
};
static const struct signature send_signature = {
    .function = "send", .arguments = send_arguments, .count = SEND_ARGUMENT_COUNT};

static COLD int32_t headers_size(const struct record *record)
{
    int64_t size = 0;
    for (int32_t i = 0; i < record->header_count; i++) {
        const struct record_header *header = &record->headers[i];
        size += (int64_t)header->key_size + (header->value_size > 0 ? header->value_size : 0);
    }
    return (int32_t)size;
}

static inline void send_count_appended(struct producer_object *self, struct future_object *future,
                                       const struct measured_record *measured, const struct append_target *target,
                                       const struct append_result *result)
{
    future_object_fill(future, target->partition_index, &result->first);
    future->key_size = measured->record.key_size;
    future->value_size = measured->record.value_size;
    future->headers_size = LIKELY(measured->record.header_count == 0) ? -1 : headers_size(&measured->record);
    self->record_count++;
    self->record_bytes += record_size_upper_bound(&measured->size);
}

/* Makes the future first, so that no record is committed without one. */
static inline PyObject *record_send(struct producer_object *self, struct append_target *target,
                                    const struct measured_record *measured)
{
    struct append_result result;
    struct future_object *future = future_object_new(self->state, self->tracker);
    if (UNLIKELY(future == NULL)) {
        return NULL;
    }
    if (UNLIKELY(!append_run(self->appender, target, measured, 1, &result))) {
        Py_DECREF(future);
        return NULL;
    }
    send_count_appended(self, future, measured, target, &result);
    return (PyObject *)future;
}

static inline PyObject *null_or(PyObject *given)
{
    return given == NULL ? Py_None : given;
}

static inline PyObject *send_bound(struct producer_object *self, PyObject **bound)
{
    struct send_target target = {.append = {.max_block_ms = self->appender->max_block_ms,
                                            .choose_again = sticky_choose_again},
                                 .producer = self};
    const struct record_objects objects = {.key = null_or(bound[KEY]),
                                           .value = null_or(bound[VALUE]),
                                           .headers = bound[HEADERS],
                                           .timestamp_ms = bound[TIMESTAMP]};
    struct measured_record measured;
    struct held held = {NULL};
    uint32_t topic_index;
    PyObject *future = NULL;
    if (!topic_find(self, bound[TOPIC], &target.append, &topic_index, &target.partition_count)) {
        return NULL;
    }
    target.topic = &self->topics[topic_index];
    if (record_prepare(self->appender, &self->clock, &objects, &measured, &held) &&
        partition_choose(&target, bound[TOPIC], bound[PARTITION], &measured.record)) {
        future = record_send(self, &target.append, &measured);
    }
    held_release(&held);
    return future;
}

static inline PyObject *send_with_arguments(struct producer_object *self, PyObject *const *args, Py_ssize_t count,
                                            PyObject *names)
{
    PyObject *bound[ARGUMENT_COUNT_MAX];
    if (UNLIKELY(!producer_call_begin(self))) {
        return NULL;
    }
    PyObject *future = arguments_bind_interned(&send_signature, self->state->send_names, args, count, names, bound)
                           ? send_bound(self, bound)
                           : NULL;
    producer_call_end(self);
    return future;
}

static inline PyObject *send_exclusively(struct producer_object *self, PyObject *const *args, Py_ssize_t count,
                                         PyObject *names)
{
    PyObject *future;
    ALONE_BEGIN(arena_of_producer((PyObject *)self));
    future = send_with_arguments(self, args, count, names);
    ALONE_END();
    return future;
}

/* `prepare` runs code of the user. It is called outside of counted calls, so that it may take long or close the
 * producer. Without the GIL, other threads run meanwhile. */
static PyObject *send_prepared(struct producer_object *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *record = PyObject_Vectorcall(self->prepare, args, (size_t)count, names);
    if (record != NULL && !PyTuple_Check(record)) {
        PyErr_SetString(PyExc_TypeError, "prepare must return the arguments of a send as a tuple");
        Py_CLEAR(record);
    }
    if (record == NULL) {
        return NULL;
    }
    PyObject *future = send_exclusively(self, ((PyTupleObject *)record)->ob_item, PyTuple_GET_SIZE(record), NULL);
    Py_DECREF(record);
    return future;
}

/* Takes over the future. If it is NULL, raises the exception of the append, or that of conclude. */
static PyObject *send_conclude(const struct producer_object *self, PyObject *future)
{
    PyObject *error = future == NULL ? exception_take() : NULL;
    PyObject *answer = PyObject_CallFunctionObjArgs(self->conclude, future == NULL ? Py_None : future,
                                                    error == NULL ? Py_None : error, NULL);
    if (answer == NULL) {
        Py_CLEAR(future);
        Py_XDECREF(error);
    } else if (error != NULL) {
        exception_put(error);
    }
    Py_XDECREF(answer);
    return future;
}

static bool producer_is_open_alone(struct producer_object *self)
{
    bool is_open;
    ALONE_BEGIN(arena_of_producer((PyObject *)self));
    is_open = producer_is_open(self);
    ALONE_END();
    return is_open;
}

static COLD PyObject *send_through_pipeline(struct producer_object *self, PyObject *const *args, Py_ssize_t count,
                                             PyObject *names)
{
    if (!producer_is_open_alone(self)) {
        return NULL;
    }
    PyObject *future = self->prepare == NULL ? send_exclusively(self, args, count, names)
                                             : send_prepared(self, args, count, names);
    return self->conclude == NULL ? future : send_conclude(self, future);
}

/* Returns the result of fallback(exception, *args, **names), or raises. Called outside of counted calls. */
static COLD PyObject *send_through_fallback(const struct producer_object *self, PyObject *const *args, Py_ssize_t count,
                                            PyObject *names)
{
    PyObject *passed[1 + SEND_ARGUMENT_COUNT];
    Py_ssize_t total = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    if (self->fallback == NULL || total > SEND_ARGUMENT_COUNT) {
        return NULL;
    }
    passed[0] = exception_take();
    for (Py_ssize_t i = 0; i < total; i++) {
        passed[1 + i] = args[i];
    }
    PyObject *fallback = Py_NewRef(self->fallback);
    PyObject *answer = PyObject_Vectorcall(fallback, passed, (size_t)count + 1, names);
    Py_DECREF(fallback);
    Py_DECREF(passed[0]);
    return answer;
}

PyObject *producer_send(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct producer_object *self = producer_of(object);
    if (UNLIKELY(self->is_piped)) {
        PyObject *future = send_through_pipeline(self, args, count, names);
        return future != NULL ? future : send_through_fallback(self, args, count, names);
    }
    return send_exclusively(self, args, count, names);
}

/* ---- the type ---- */

static const char send_text[] =
    "send($self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None)\n"
    "--\n\n"
    "Puts a record into the arena and returns. A sender delivers it, even if this process dies.\n\n"
    "Args:\n"
    "    topic: 1 to 249 of the characters a-z A-Z 0-9 . _ -.\n"
    "    value, key: bytes-like, or None for null. With serializers, any object that they accept.\n"
    "    headers: a list of (str, bytes or None).\n"
    "    partition: its number, from 0. If it is None, the hash of the key chooses the partition, as in\n"
    "        Kafka. A record without a key goes to the partition that all processes of the host currently fill.\n"
    "    timestamp_ms: milliseconds since 1970, or None for the current time.\n\n"
    "Returns:\n"
    "    A DeliveryFuture. Call get(timeout), await it, add callbacks, or ignore it.\n\n"
    "Unlike Java's producer, it raises an error instead of returning a failed future. After an error, the arena\n"
    "is unchanged, except for the errors in the last line.\n\n"
    "Raises:\n"
    "    BufferExhaustedError: no memory became free within max_block_ms.\n"
    "    PartitionCountUnknownError: no sender reported the topic's partition count within max_block_ms.\n"
    "    UnknownPartitionError: the topic has no such partition.\n"
    "    RecordTooLargeError: the record is larger than the arena allows.\n"
    "    InvalidArgumentError, TypeError: the topic name, the timestamp, or a type is invalid.\n"
    "    ProducerClosedError: after close.\n"
    "    FlushTimeoutError, ArenaPoisonedError: with durability=sync, the record was appended, but may not be\n"
    "        on disk.";

#define OTHER_METHODS {"send", FAST(producer_send), METH_FASTCALL | METH_KEYWORDS, send_text},
#define METHODS_LIST "python/producer/producer_method_list.h"
#include "python/common/method_tables.h"

PyObject *py_producer_tracker(struct producer_object *self)
{
    PyObject *tracker = self->tracker;
    return Py_NewRef(tracker == NULL ? Py_None : tracker);
}

static PyType_Slot producer_slots[] = {
    {Py_tp_doc, "Sends records into an arena."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, producer_init},
    {Py_tp_dealloc, producer_dealloc},
    {Py_tp_traverse, producer_traverse},
    {Py_tp_clear, producer_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec producer_spec = NATIVE_TYPE("NativeProducer", struct producer_object, producer_slots,
                                        Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
