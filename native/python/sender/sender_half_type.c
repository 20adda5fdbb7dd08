/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf: the role, and the beginning and end of every call of its holder.
 *
 * One thread at a time: the core may let other threads run while it waits for the pool's lock, and its private queues
 * are half changed then. A second thread that comes in is refused. Every call wakes the waiters that it served
 * before it returns.
 *
 * A Batch that nobody refers to any more before it was completed cannot be put back at that moment (its last reference
 * may go on any thread, in the middle of any call): it is noted, and requeued by the next call of the sender.
 */
#include "python/sender/sender_half_type.h"

#include "arena/waiter_semaphores.h"
#include "python/common/alone.h"
#include "python/common/errors.h"

static struct sender_half_object *half_of(PyObject *self)
{
    return (struct sender_half_object *)self;
}

/* ---- calls ---- */

bool half_has_role(const struct sender_half_object *self)
{
    return self->core != NULL && self->core->owner != 0 && self->core->owner == self->arena->core->owner;
}

static void abandoned_requeue(struct sender_half_object *self)
{
    while (self->abandoned_count > 0) {
        const struct abandoned_batch *batch = &self->abandoned[--self->abandoned_count];
        if (sender_requeue(self->core, batch->slot_index, batch->seq, 0, &self->wakes) != STATUS_OK) {
            continue; /* it ended by other means */
        }
    }
}

static bool half_is_free(const struct sender_half_object *self)
{
    if (self->is_in_call) {
        PyErr_SetString(self->state->arena_in_use, "another thread is in a call of the sender: use one thread for it");
        return false;
    }
    return true;
}

static void call_begin(struct sender_half_object *self)
{
    self->is_in_call = true;
    self->arena->call_count++;
}

bool half_begin(struct sender_half_object *self)
{
    if (!half_has_role(self)) {
        PyErr_SetString(self->state->not_sender, "this process is not the arena's sender: call become_sender() first");
        return false;
    }
    if (!half_is_free(self) || !arena_object_is_kept(self->arena)) {
        return false;
    }
    call_begin(self);
    abandoned_requeue(self);
    return true;
}

bool half_begin_with(struct sender_half_object *self, const struct argument_table *table, PyObject *const *args,
                     Py_ssize_t count, PyObject *names, void *fields)
{
    return arguments_parse(self->state, table, args, count, names, fields) && half_begin(self);
}

PyObject *half_end(struct sender_half_object *self, PyObject *result)
{
    self->is_in_call = false;
    waiters_wake(self->arena->core, &self->wakes);
    self->arena->call_count--;
    if (result != NULL && !arena_object_is_kept(self->arena)) {
        Py_CLEAR(result);
    }
    return result;
}

/* ---- the role ---- */

static bool abandoned_allocate(struct sender_half_object *self)
{
    if (self->abandoned == NULL) {
        self->abandoned = PyMem_Calloc(self->arena->core->geometry.slot_count, sizeof *self->abandoned);
    }
    self->abandoned_count = 0;
    return self->abandoned != NULL;
}

static void role_drop(struct sender_half_object *self)
{
    if (self->core != NULL) {
        sender_role_drop(self->core);
        self->core = NULL;
    }
}

static PyObject *role_take(struct sender_half_object *self)
{
    const struct role_options options = {.sink_name = self->sink_name, .wants_dead_letters = self->wants_dead_letters};
    struct error error;
    role_drop(self); /* a fork left a copy of the parent's queues */
    enum status status = sender_role_take(self->arena->core, &options, &self->core, &error);
    if (status != STATUS_OK) {
        return raise_error(self->state, &error);
    }
    self->stint++;
    return Py_NewRef(Py_None);
}

static PyObject *half_become_sender(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    if (self->is_closed) {
        PyErr_SetString(self->state->not_sender, "the sender is closed: make another one");
        return NULL;
    }
    if (half_has_role(self)) {
        Py_RETURN_NONE;
    }
    if (!arena_object_attach(self->arena)) {
        return NULL;
    }
    call_begin(self);
    return half_end(self, abandoned_allocate(self) ? role_take(self) : PyErr_NoMemory());
}

static bool role_may_be_left(const struct sender_half_object *self)
{
    if (!half_has_role(self)) {
        return true;
    }
    uint32_t export_count = load_acquire_u32(&self->export_count); /* V6 */
    if (export_count > 0) {
        PyErr_Format(self->state->batch_in_use, "buffers of drained batches are still in use, %u of them: release "
                     "them before the sender role is left", export_count);
        return false;
    }
    if (self->is_in_call) {
        PyErr_SetString(self->state->arena_in_use, "another thread is in a call of the sender: join it first");
        return false;
    }
    return true;
}

static PyObject *half_resign(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    if (!role_may_be_left(self)) {
        return NULL;
    }
    if (half_has_role(self)) {
        sender_role_leave(self->core);
        self->core = NULL;
    }
    Py_RETURN_NONE;
}

/* ---- open and close ---- */

static PyObject *half_open(PyTypeObject *type, struct arena_object *arena)
{
    if (!arena_object_attach(arena)) {
        return NULL;
    }
    struct sender_half_object *self = (struct sender_half_object *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->arena = (struct arena_object *)Py_NewRef((PyObject *)arena);
        self->state = arena->state;
        arena->half_count++;
    }
    return (PyObject *)self;
}

static PyObject *half_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"arena", NULL};
    const struct module_state *state = PyType_GetModuleState(type);
    PyObject *arena;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!:SenderHalf", names, state->arena_type, &arena)) {
        return NULL;
    }
    PyObject *half;
    ALONE_BEGIN(arena);
    half = half_open(type, (struct arena_object *)arena);
    ALONE_END();
    return half;
}

static void half_release(struct sender_half_object *self)
{
    if (!self->is_closed) {
        self->is_closed = true;
        role_drop(self);
        self->arena->half_count--;
        PyMem_Free(self->abandoned);
        self->abandoned = NULL;
        self->abandoned_count = 0;
    }
}

static PyObject *half_close(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    if (!self->is_closed && !role_may_be_left(self)) {
        return NULL;
    }
    half_release(self);
    Py_RETURN_NONE;
}

static int half_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)half_of(object)->arena);
    return 0;
}

static void half_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    ALONE_BEGIN(arena_of_half(object));
    half_release(half_of(object));
    ALONE_END();
    Py_DECREF((PyObject *)half_of(object)->arena);
    type->tp_free(object);
    Py_DECREF(type);
}

/* ---- the type ---- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

ALONE_FAST(half_abort, arena_of_half)
ALONE_FAST(half_append_to_log, arena_of_half)
ALONE(half_become_sender, arena_of_half)
ALONE(half_close, arena_of_half)
ALONE_FAST(half_complete, arena_of_half)
ALONE_FAST(half_complete_many, arena_of_half)
ALONE_FAST(half_complete_part, arena_of_half)
ALONE_FAST(half_complete_spilled, arena_of_half)
ALONE(half_dead_letters, arena_of_half)
ALONE_FAST(half_decide, arena_of_half)
ALONE_FAST(half_drain, arena_of_half)
ALONE(half_end_backoff, arena_of_half)
ALONE_FAST(half_expire, arena_of_half)
ALONE(half_interrupt, arena_of_half)
ALONE(half_maintain, arena_of_half)
ALONE_FAST(half_mute, arena_of_half)
ALONE_FAST(half_partition_index, arena_of_half)
ALONE_FAST(half_pump, arena_of_half)
ALONE_FAST(half_publish_outage, arena_of_half)
ALONE(half_publish_queues, arena_of_half)
ALONE_FAST(half_pressure, arena_of_half)
ALONE_FAST(half_publish_spilled, arena_of_half)
ALONE(half_quarantine, arena_of_half)
ALONE_FAST(half_ready, arena_of_half)
ALONE_FAST(half_requeue, arena_of_half)
ALONE_FAST(half_resequence, arena_of_half)
ALONE(half_resign, arena_of_half)
ALONE_FAST(half_set_available, arena_of_half)
ALONE_FAST(half_set_refused, arena_of_half)
ALONE_FAST(half_set_producer_id, arena_of_half)
ALONE(half_set_sink_name, arena_of_half)
ALONE_FAST(half_set_spilled, arena_of_half)
ALONE_FAST(half_run_batch_loop, arena_of_half)
ALONE(half_show_life, arena_of_half)
ALONE(half_spill, arena_of_half)
ALONE(half_spill_in_flight, arena_of_half)
ALONE(half_stuck_partitions, arena_of_half)
ALONE(half_statistics, arena_of_half)
ALONE(half_next_transaction_task, arena_of_half)
ALONE_FAST(half_end_transaction, arena_of_half)
ALONE(half_fail_transaction, arena_of_half)
ALONE(half_keep_transaction_standing, arena_of_half)
ALONE(half_run_delivery_clock, arena_of_half)
ALONE_FAST(half_publish_delivery_timeout, arena_of_half)
ALONE(half_take_expired, arena_of_half)
ALONE(half_want_dead_letters, arena_of_half)

static PyMethodDef half_methods[] = {
    {"abort", FAST(alone_half_abort), METH_FASTCALL | METH_KEYWORDS, "Fails every batch: how many."},
    {"append_to_log", FAST(alone_half_append_to_log), METH_FASTCALL | METH_KEYWORDS,
     "Drains, and appends ordinary batches to their logs: (batches that were left, how many partitions were looked at, "
     "numbers of what was appended or None)."},
    {"become_sender", alone_half_become_sender, METH_NOARGS, "Takes the sender role or raises ArenaBusyError."},
    {"close", alone_half_close, METH_NOARGS, "Gives up the sender role, as a death does: resign() leaves it in order."},
    {"complete", FAST(alone_half_complete), METH_FASTCALL | METH_KEYWORDS, "Ends a drained batch."},
    {"complete_many", FAST(alone_half_complete_many), METH_FASTCALL | METH_KEYWORDS,
     "Ends batches that have all succeeded. Answers the places of those that are no ordinary ones, and leaves them as "
     "they are."},
    {"complete_part", FAST(alone_half_complete_part), METH_FASTCALL | METH_KEYWORDS,
     "Records the result of the next records of a batch that was split."},
    {"complete_spilled", FAST(alone_half_complete_spilled), METH_FASTCALL | METH_KEYWORDS,
     "Records the result of records of a batch that lies in the overflow."},
    {"dead_letters", alone_half_dead_letters, METH_NOARGS,
     "Failed batches whose bytes are still to be written: list of (Batch, result, error code)."},
    {"decide", FAST(alone_half_decide), METH_FASTCALL | METH_KEYWORDS,
     "Notes the result of a batch before its end: no sender sends it any more."},
    {"drain", FAST(alone_half_drain), METH_FASTCALL | METH_KEYWORDS,
     "A batch for each time a partition is given: (batches, how many partitions were looked at)."},
    {"end_backoff", alone_half_end_backoff, METH_O, "Retried batches of a partition need not wait any longer."},
    {"expire", FAST(alone_half_expire), METH_FASTCALL | METH_KEYWORDS,
     "Fails batches that are too old: (how many, nanoseconds until the next or None)."},
    {"interrupt", alone_half_interrupt, METH_NOARGS, "Ends a running pump soon; from any thread."},
    {"maintain", alone_half_maintain, METH_NOARGS, "Clears up after dead processes."},
    {"mute", FAST(alone_half_mute), METH_FASTCALL | METH_KEYWORDS, "Keeps a partition from being drained."},
    {"partition_index", FAST(alone_half_partition_index), METH_FASTCALL | METH_KEYWORDS,
     "The index of a partition in the arena's table, which gets it where it has none."},
    {"pump", FAST(alone_half_pump), METH_FASTCALL | METH_KEYWORDS,
     "Runs ordinary rounds by lent sockets, and adds the outcome to a list."},
    {"publish_outage", FAST(alone_half_publish_outage), METH_FASTCALL | METH_KEYWORDS,
     "Tells every observer since when the sink does not work, and why, as bytes; 0: it works."},
    {"publish_queues", alone_half_publish_queues, METH_NOARGS,
     "Tells producers how many batches wait in each partition."},
    {"pressure", FAST(alone_half_pressure), METH_FASTCALL | METH_KEYWORDS,
     "(used buffers, processes that wait for one, when a batch was acknowledged last, since when one waits for that or "
     "None, the last sign of life of the sender before this one)."},
    {"publish_spilled", FAST(alone_half_publish_spilled), METH_FASTCALL | METH_KEYWORDS,
     "Tells every observer what lies in the overflow, and since when; 0: nothing does."},
    {"quarantine", alone_half_quarantine, METH_O, "Ends a batch whose bytes are damaged and keeps them."},
    {"ready", FAST(alone_half_ready), METH_FASTCALL | METH_KEYWORDS,
     "(partitions that may be drained now, nanoseconds until the next or None)."},
    {"requeue", FAST(alone_half_requeue), METH_FASTCALL | METH_KEYWORDS, "Puts a batch back to be sent again."},
    {"resequence", FAST(alone_half_resequence), METH_FASTCALL | METH_KEYWORDS,
     "Takes the sequences back of batches that are not in flight, of one partition or of all."},
    {"resign", alone_half_resign, METH_NOARGS,
     "Leaves the sender role in order; the next sender resends what is in flight."},
    {"set_refused", FAST(alone_half_set_refused), METH_FASTCALL | METH_KEYWORDS,
     "Says that the broker of a partition refuses its batches for now; 0: no more."},
    {"set_available", FAST(alone_half_set_available), METH_FASTCALL | METH_KEYWORDS,
     "Tells producers without a key whether a partition can be delivered to."},
    {"set_producer_id", FAST(alone_half_set_producer_id), METH_FASTCALL | METH_KEYWORDS,
     "Kafka's idempotence pair, (-1, -1): none, and the 16 bytes of the sink that gave it."},
    {"set_sink_name", alone_half_set_sink_name, METH_O,
     "The name of this sender's sink for the arena, as bytes; said before the role is taken."},
    {"set_spilled", FAST(alone_half_set_spilled), METH_FASTCALL | METH_KEYWORDS,
     "Which batches of a partition lie in the overflow: from a number on, below another one."},
    {"run_batch_loop", FAST(alone_half_run_batch_loop), METH_FASTCALL | METH_KEYWORDS,
     "The ordinary rounds of an overflow on its way to brokers."},
    {"show_life", alone_half_show_life, METH_NOARGS, "Shows the sender's sign of life, as each drain does."},
    {"spill", alone_half_spill, METH_O, "Frees a drained batch that lies in the overflow now; its result is to come."},
    {"spill_in_flight", alone_half_spill_in_flight, METH_O,
     "The same while the sink has the batch: it is freed with the sink's answer."},
    {"stuck_partitions", alone_half_stuck_partitions, METH_NOARGS,
     "Indexes of the partitions to which nothing can be delivered while the sink works."},
    {"statistics", alone_half_statistics, METH_NOARGS, "The sender's own counts."},
    {"next_transaction_task", alone_half_next_transaction_task, METH_O,
     "Goes on with the end of the arena's transaction; answers (is it a commit, number) for the sink, or None."},
    {"end_transaction", FAST(alone_half_end_transaction), METH_FASTCALL | METH_KEYWORDS,
     "The sink is done with the transaction of this number; with a reason, a decided one was not committed."},
    {"fail_transaction", alone_half_fail_transaction, METH_O,
     "An open or committing transaction may only be aborted from now on, for this reason."},
    {"keep_transaction_standing", alone_half_keep_transaction_standing, METH_O,
     "Keeps how far the transaction has come in the sink, for the next sender."},
    {"run_delivery_clock", alone_half_run_delivery_clock, METH_O,
     "Adds nanoseconds in which the sink worked to the delivery clock."},
    {"publish_delivery_timeout", FAST(alone_half_publish_delivery_timeout), METH_FASTCALL | METH_KEYWORDS,
     "The delivery timeout of this sender, and whether it counts the time in which no sink worked."},
    {"take_expired", alone_half_take_expired, METH_NOARGS,
     "The number of records that expired since the last call: {partition index: count}."},
    {"want_dead_letters", alone_half_want_dead_letters, METH_O,
     "Says whether the bytes of failed batches are kept for dead_letters(), before the role is taken."},
    {NULL, NULL, 0, NULL},
};

static PyObject *half_get_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(half_of(object)->is_closed);
}

static PyObject *half_get_is_sender(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(half_has_role(half_of(object)));
}

ALONE_GET(half_get_closed, arena_of_half)
ALONE_GET(half_get_is_sender, arena_of_half)
ALONE_GET(half_get_oldest_created_ns, arena_of_half)

static PyGetSetDef half_properties[] = {
    {"closed", alone_half_get_closed, NULL, "True after close().", NULL},
    {"is_sender", alone_half_get_is_sender, NULL, "True while this object holds the sender role.", NULL},
    {"oldest_created_ns", alone_half_get_oldest_created_ns, NULL,
     "The time at which the oldest batch without a result was opened, as of the last expire(); or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot half_slots[] = {
    {Py_tp_doc, "The sender's side of an arena: readiness, draining, results."},
    {Py_tp_new, half_new},
    {Py_tp_dealloc, half_dealloc},
    {Py_tp_traverse, half_traverse},
    {Py_tp_methods, half_methods},
    {Py_tp_getset, half_properties},
    {0, NULL},
};

PyType_Spec sender_half_spec = {
    .name = "shmaccum._native.SenderHalf",
    .basicsize = sizeof(struct sender_half_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = half_slots,
};
