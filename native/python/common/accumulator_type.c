/* SPDX-License-Identifier: Apache-2.0
 *
 * Accumulator: opening and closing. The calls in between are counted in accumulator_call.h; those of producers are in
 * accumulator_append.c, those of the sender in accumulator_sender.c.
 */
#include "python/common/arguments.h"
#include "python/common/errors.h"

static struct accumulator_object *accumulator_of(PyObject *self)
{
    return (struct accumulator_object *)self;
}

/* ---- open ---- */

static bool callable_check(PyObject *object, const char *name)
{
    if (!PyCallable_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be callable, not %.80s", name, Py_TYPE(object)->tp_name);
        return false;
    }
    return true;
}

static bool core_open(struct accumulator_object *self)
{
    struct error error;
    if (!arena_object_attach(self->arena)) {
        return false;
    }
    if (accumulator_open(self->arena->core, &self->core, &error) != STATUS_OK) {
        raise_error(self->state, &error);
        return false;
    }
    self->arena->accumulator_count++;
    self->call_owner = self->arena->core->owner;
    return true;
}

const struct integer_range accumulator_max_block_range = {"max_block_ms", 0, INT64_MAX / 1000000};

struct accumulator_times {
    int64_t max_block_ms;
    int64_t linger_ns; /* -1: says nothing about it */
};

static PyObject *accumulator_create(PyTypeObject *type, struct arena_object *arena, PyObject *const *callables,
                                    const struct accumulator_times *times)
{
    struct accumulator_object *self = (struct accumulator_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = arena->state;
    self->arena = (struct arena_object *)Py_NewRef((PyObject *)arena);
    self->wait = Py_NewRef(callables[0]);
    self->wake = Py_NewRef(callables[1]);
    self->ring = Py_NewRef(callables[2]);
    self->max_block_ms = times->max_block_ms;
    if (!core_open(self)) {
        Py_DECREF(self);
        return NULL;
    }
    self->core->linger = (uint64_t)(times->linger_ns + 1);
    return (PyObject *)self;
}

static PyObject *accumulator_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"arena", "wait", "wake", "ring", "max_block_ms", "linger_ns", NULL};
    static const struct integer_range linger_range = {"linger_ns", 0, INT64_MAX - 1};
    const struct module_state *state = PyType_GetModuleState(type);
    PyObject *arena;
    PyObject *callables[3] = {NULL, NULL, Py_None};
    PyObject *max_block = NULL;
    PyObject *linger = NULL;
    struct accumulator_times times = {.max_block_ms = 60000, .linger_ns = -1};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OO|OOO:Accumulator", names, state->arena_type, &arena,
                                     &callables[0], &callables[1], &callables[2], &max_block, &linger) ||
        !callable_check(callables[0], "wait") || !callable_check(callables[1], "wake") ||
        (callables[2] != Py_None && !callable_check(callables[2], "ring")) ||
        !integer_parse_optional(state, max_block, &accumulator_max_block_range, &times.max_block_ms) ||
        !integer_parse_optional(state, linger, &linger_range, &times.linger_ns)) {
        return NULL;
    }
    return accumulator_create(type, (struct arena_object *)arena, callables, &times);
}

/* ---- close ---- */

static void cells_clear(struct accumulator_object *self)
{
    for (int i = 0; i < PARTITION_CELL_COUNT; i++) {
        Py_CLEAR(self->cells[i].topic);
    }
}

static void accumulator_release(struct accumulator_object *self)
{
    struct accumulator *core = self->core;
    self->core = NULL;
    self->arena->accumulator_count--;
    accumulator_close(core);
    PyMem_Free(self->abandoned);
    self->abandoned = NULL;
    self->abandoned_count = 0;
}

static bool accumulator_is_unused(const struct accumulator_object *self)
{
    bool is_forked = self->call_owner != self->arena->core->owner;
    if (self->call_count > 0 && !is_forked) {
        PyErr_Format(self->state->arena_in_use, "the accumulator cannot be closed yet: %u calls are running; join the "
                     "threads that use it first", self->call_count);
        return false;
    }
    return true;
}

static PyObject *accumulator_close_call(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    (void)unused;
    if (self->core == NULL) {
        Py_RETURN_NONE;
    }
    if (!accumulator_is_unused(self) || !accumulator_sender_drop(self)) {
        return NULL;
    }
    accumulator_release(self);
    cells_clear(self);
    Py_RETURN_NONE;
}

static int accumulator_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct accumulator_object *self = accumulator_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->arena);
    Py_VISIT(self->wait);
    Py_VISIT(self->wake);
    Py_VISIT(self->ring);
    return 0;
}

static int accumulator_clear(PyObject *object)
{
    struct accumulator_object *self = accumulator_of(object);
    Py_CLEAR(self->wait);
    Py_CLEAR(self->wake);
    Py_CLEAR(self->ring);
    return 0;
}

static void accumulator_dealloc(PyObject *object)
{
    struct accumulator_object *self = accumulator_of(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->core != NULL) {
        accumulator_release(self);
    }
    cells_clear(self);
    (void)accumulator_clear(object);
    Py_XDECREF(self->arena);
    type->tp_free(object);
    Py_DECREF(type);
}

/* ---- the type ---- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef accumulator_methods[] = {
    {"abort", FAST(accumulator_sender_abort), METH_FASTCALL | METH_KEYWORDS, "Fails every batch: how many."},
    {"append", FAST(accumulator_append_one), METH_FASTCALL | METH_KEYWORDS, "Appends one record: its Token."},
    {"append_many", FAST(accumulator_append_many), METH_FASTCALL | METH_KEYWORDS,
     "Appends records to one partition: a list of (Token of the first, count) per batch."},
    {"become_sender", accumulator_sender_become, METH_NOARGS, "Takes the sender role or raises SenderBusyError."},
    {"close", accumulator_close_call, METH_NOARGS, "No more appends; leaves the sender role."},
    {"complete", FAST(accumulator_sender_complete), METH_FASTCALL | METH_KEYWORDS, "Ends a drained batch."},
    {"complete_many", FAST(accumulator_sender_complete_many), METH_FASTCALL | METH_KEYWORDS,
     "Batches that have all succeeded; answers the places of those that are no ordinary ones, and were left as they "
     "are."},
    {"complete_part", FAST(accumulator_sender_complete_part), METH_FASTCALL | METH_KEYWORDS,
     "Records the result of the next records of a batch that was split."},
    {"dead_letters", accumulator_sender_dead_letters, METH_NOARGS,
     "Failed batches whose bytes are still to be written: list of (Batch, result, error code)."},
    {"decide", FAST(accumulator_sender_decide), METH_FASTCALL | METH_KEYWORDS,
     "Notes how a batch will end: it is not sent any more, whoever is the sender."},
    {"drain", FAST(accumulator_sender_drain), METH_FASTCALL | METH_KEYWORDS,
     "A batch for each time a partition is given: (batches, how many partitions were looked at)."},
    {"end_backoff", accumulator_sender_end_backoff, METH_O, "Retried batches of a partition need not wait any longer."},
    {"expire", FAST(accumulator_sender_expire), METH_FASTCALL | METH_KEYWORDS,
     "Fails what is too old: (how many, nanoseconds until the next or None)."},
    {"flush_begin", flush_ticket_begin, METH_NOARGS, "Seals what this process appended to: a FlushTicket."},
    {"show_life", accumulator_sender_show_life, METH_NOARGS,
     "Shows the sender's sign of life, as each drain does."},
    {"maintain", accumulator_sender_maintain, METH_NOARGS, "Clears up after dead processes."},
    {"mute", FAST(accumulator_sender_mute), METH_FASTCALL | METH_KEYWORDS, "Keeps a partition from being drained."},
    {"partition_index", FAST(accumulator_partition_index), METH_FASTCALL | METH_KEYWORDS,
     "The index of a topic-partition, created if it is new."},
    {"publish_outage", FAST(accumulator_sender_publish_outage), METH_FASTCALL | METH_KEYWORDS,
     "Tells everybody since when the sink does not work, and why, as bytes; 0: it works."},
    {"publish_queues", accumulator_sender_publish_queues, METH_NOARGS,
     "Tells producers how many batches wait in each partition."},
    {"quarantine", accumulator_sender_quarantine, METH_O, "Ends a batch whose bytes are damaged and keeps them."},
    {"ready", FAST(accumulator_sender_ready), METH_FASTCALL | METH_KEYWORDS,
     "(partitions that may be drained now, nanoseconds until the next or None)."},
    {"requeue", FAST(accumulator_sender_requeue), METH_FASTCALL | METH_KEYWORDS, "Puts a batch back to be sent again."},
    {"resequence", FAST(accumulator_sender_resequence), METH_FASTCALL | METH_KEYWORDS,
     "Takes the sequences back of batches that are not in flight, of one partition or of all."},
    {"resign", accumulator_sender_resign, METH_NOARGS,
     "Leaves the sender role in order; what is in flight will be resent."},
    {"set_available", FAST(accumulator_sender_set_available), METH_FASTCALL | METH_KEYWORDS,
     "Tells producers without a key whether a partition can be delivered to."},
    {"set_producer_id", FAST(accumulator_sender_set_producer_id), METH_FASTCALL | METH_KEYWORDS,
     "Kafka's idempotence pair, (-1, -1): none, and the 16 bytes of the sink that gave it."},
    {"statistics", accumulator_sender_statistics_dict, METH_NOARGS, "The sender's own counts."},
    {"set_sink_name", accumulator_sender_set_sink_name, METH_O,
     "What the arena is told of where this sender delivers, as bytes; said before the role is taken."},
    {"take_expired", accumulator_sender_take_expired, METH_NOARGS,
     "How many records expired since it was asked last: {partition index: count}."},
    {"run_delivery_clock", accumulator_sender_run_delivery_clock, METH_O,
     "Adds nanoseconds in which the sink worked to the delivery clock."},
    {"tell_delivery_timeout", FAST(accumulator_sender_tell_delivery_timeout), METH_FASTCALL | METH_KEYWORDS,
     "What the delivery timeout of this sender is, and whether it counts the time in which nobody could deliver."},
    {"want_dead_letters", accumulator_sender_want_dead_letters, METH_O,
     "Whether the bytes of failed batches are kept for dead_letters(); said before the role is taken."},
    {NULL, NULL, 0, NULL},
};

static PyObject *accumulator_get_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(accumulator_of(object)->core == NULL);
}

static PyGetSetDef accumulator_properties[] = {
    {"closed", accumulator_get_closed, NULL, "True after close().", NULL},
    {"is_sender", accumulator_sender_is_sender, NULL, "True while this accumulator holds the sender role.", NULL},
    {"oldest_created_ns", accumulator_sender_get_oldest_created_ns, NULL,
     "When the oldest batch without a result was opened, as the last expire() saw it; None: there is none.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot accumulator_slots[] = {
    {Py_tp_doc, "All partition queues of an arena and the rules of readiness."},
    {Py_tp_new, accumulator_new},
    {Py_tp_dealloc, accumulator_dealloc},
    {Py_tp_traverse, accumulator_traverse},
    {Py_tp_clear, accumulator_clear},
    {Py_tp_methods, accumulator_methods},
    {Py_tp_getset, accumulator_properties},
    {0, NULL},
};

PyType_Spec accumulator_spec = {
    .name = "shmaccum._native.Accumulator",
    .basicsize = sizeof(struct accumulator_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = accumulator_slots,
};
