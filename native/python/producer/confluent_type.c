/* SPDX-License-Identifier: Apache-2.0
 *
 * ConfluentProducer: produce() in confluent-kafka's words, once per record.
 *
 *   ordinary   topic, value and key alone, and nobody wants to be told: goes through send() of a Producer
 *   any other  has a callback, headers, a partition or a timestamp: _produce_any() of the Python class takes it
 *   refused    send() raised: _produce_refused() of the Python class says the same in confluent-kafka's words
 *
 * It is the base of the Python class, so a program's own class may override produce(), and comes here by super().
 */
#include "python/producer/confluent_type.h"

#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/producer/producer_type.h"

struct confluent_object {
    PyObject ob_base;
    struct module_state *state;
    struct producer_object *producer; /* of ordinary records; NULL: no record is ordinary */
};

static struct confluent_object *confluent_of(PyObject *self)
{
    return (struct confluent_object *)self;
}

/* ---- produce ---- */

enum { TOPIC, VALUE, KEY }; /* the places of what an ordinary record has */

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
    int i = KEY + 1;
    while (i < PRODUCE_ARGUMENT_COUNT && is_none(bound[i])) {
        i++;
    }
    return i == PRODUCE_ARGUMENT_COUNT;
}

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

static COLD PyObject *produce_refused(PyObject *object)
{
    PyObject *error = exception_take();
    PyObject *answer = PyObject_CallMethodOneArg(object, confluent_of(object)->state->produce_refused, error);
    Py_DECREF(error);
    return none_or_null(answer);
}

static inline PyObject *produce_ordinary(PyObject *object, struct producer_object *producer, PyObject *const *bound)
{
    PyObject *value = part_encode(bound[VALUE]);
    PyObject *key = value == NULL ? NULL : part_encode(bound[KEY]);
    PyObject *answer = NULL;
    if (LIKELY(key != NULL)) {
        PyObject *record[] = {bound[TOPIC], value, key};
        PyObject *future = producer_send((PyObject *)producer, record, 3, NULL);
        answer = LIKELY(future != NULL) ? none_or_null(future) : produce_refused(object);
    }
    Py_XDECREF(value);
    Py_XDECREF(key);
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

static PyObject *confluent_produce_through(PyObject *object, PyObject *producer)
{
    struct confluent_object *self = confluent_of(object);
    if (producer != Py_None && !PyObject_TypeCheck(producer, self->state->producer_type)) {
        PyErr_Format(PyExc_TypeError, "a Producer or None is expected, not %.80s", Py_TYPE(producer)->tp_name);
        return NULL;
    }
    Py_XSETREF(self->producer, producer == Py_None ? NULL : (struct producer_object *)Py_NewRef(producer));
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
    return object;
}

static int confluent_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)confluent_of(object)->producer);
    return 0;
}

static int confluent_clear(PyObject *object)
{
    Py_CLEAR(confluent_of(object)->producer);
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

ALONE(confluent_produce_through, itself)

static PyMethodDef confluent_methods[] = {
    {"produce", FAST(confluent_produce), METH_FASTCALL | METH_KEYWORDS, produce_text},
    {"_produce_through", alone_confluent_produce_through, METH_O,
     "Sends ordinary records through this producer from now on, without _produce_any(); None: through none."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot confluent_slots[] = {
    {Py_tp_doc, "The produce() of shmaccum.compat.confluent."},
    {Py_tp_new, confluent_new},
    {Py_tp_dealloc, confluent_dealloc},
    {Py_tp_traverse, confluent_traverse},
    {Py_tp_clear, confluent_clear},
    {Py_tp_methods, confluent_methods},
    {0, NULL},
};

PyType_Spec confluent_spec = {
    .name = "shmaccum._native.ConfluentProducer",
    .basicsize = sizeof(struct confluent_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = confluent_slots,
};
