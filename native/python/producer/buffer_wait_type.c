/* SPDX-License-Identifier: Apache-2.0
 *
 * BufferWait: a place in the queue of the exhausted buffer pool, and then the slots that were granted. If the wait ends
 * in any other way than by an append (an exception, Ctrl-C, garbage collection), the place is left and the slots are
 * returned. A call wakes the waiters that it has served before it returns.
 *
 *   QUEUED ── take() is True ──> TAKEN ── slots used by append, the rest returned ──> OVER
 *    │  └──── take() is False: the grant was revoked while this process was stopped, or the pool lock was refused
 *    │                                                                                 ──> QUEUED
 *    └─────── cancel() or dealloc: leaves the queue ──────────────────────────────────> OVER
 */
#include "python/producer/buffer_wait_type.h"

#include "arena/counters.h"
#include "arena/parked_waiters.h"
#include "arena/process_share.h"
#include "arena/unfinished_waits.h"
#include "arena/waiter_semaphores.h"
#include "arena/waiter_sleep.h"
#include "producer/producer_batch.h"
#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/monotonic.h"

#include <stddef.h>
#include <structmember.h>

#define SLEEP_NS_MAX INT64_C(60000000000)

static struct buffer_wait_object *wait_of(PyObject *self)
{
    return (struct buffer_wait_object *)self;
}

static PyObject *arena_of_wait(PyObject *self)
{
    return (PyObject *)wait_of(self)->arena;
}

/* Returns false after close, and in a forked child, because the place in the queue belongs to the parent. */
static bool wait_is_ours(const struct buffer_wait_object *self)
{
    const struct arena *core = self->arena->core;
    return core != NULL && core->owner == self->owner && self->stage != WAIT_OVER;
}

/* ---- join ---- */

static struct buffer_wait_object *wait_new(struct arena_object *arena, uint32_t partition_index, uint32_t need)
{
    struct buffer_wait_object *self = PyObject_NewVar(struct buffer_wait_object, arena->state->buffer_wait_type, need);
    if (self != NULL) {
        Py_INCREF(arena);
        self->arena = arena;
        self->owner = arena->core->owner;
        self->partition_index = partition_index;
        self->stage = WAIT_OVER;
    }
    return self;
}

static PyObject *raise_enqueue(const struct arena_object *arena, enum status status, int64_t need)
{
    const struct geometry *geometry = &arena->core->geometry;
    if (status == STATUS_RECORD_TOO_LARGE) {
        return raise_format(arena->state, status,
                            "the record needs %lld buffers, but a record may have at most %u: send a smaller "
                            "record, or create the arena with a larger buffer_memory, oversized_max_bytes or "
                            "max_process_share",
                            (long long)need, oversized_slot_count_max(arena->core));
    }
    if (status == STATUS_BUSY) { /* of the pool lock: the caller joins again until its deadline */
        return raise_status(arena->state, STATUS_EXHAUSTED);
    }
    if (status == STATUS_NO_WAITER) {
        return raise_format(arena->state, status,
                            "all %u waiter entries are taken: create the arena with a larger waiter_count",
                            geometry->waiter_count);
    }
    return raise_status(arena->state, status);
}

/* Removes this process from the wake set, because it checks before it sleeps. */
static enum status place_join(struct buffer_wait_object *self, uint32_t need)
{
    struct arena_object *arena = self->arena;
    struct wake_set wakes = {0};
    self->joined_ns = monotonic_ns();
    arena->call_count++;
    unfinished_waits_end(arena->core, &wakes);
    enum status status = buffer_pool_enqueue(arena->core, self->partition_index, need, &self->wait, &wakes);
    if (status == STATUS_OK) {
        self->stage = WAIT_QUEUED;
        wake_set_remove(&wakes, self->wait.waiter_index);
    }
    waiters_wake(arena->core, &wakes);
    arena->call_count--;
    return status;
}

/* Returns NULL with an exception set. */
static PyObject *arena_join(struct arena_object *arena, uint32_t need, uint32_t partition_index)
{
    if (!arena_object_attach(arena)) {
        return NULL;
    }
    struct buffer_wait_object *self = wait_new(arena, partition_index, need);
    if (self == NULL) {
        return NULL;
    }
    enum status status = place_join(self, need);
    if (status == STATUS_SHARE_USED) {
        producer_batch_seal_own(arena->core);
    }
    if (status != STATUS_OK) {
        Py_DECREF(self);
        return raise_enqueue(arena, status, need);
    }
    return (PyObject *)self;
}

struct buffer_wait_object *buffer_wait_begin(struct arena_object *arena, uint32_t partition_index, uint32_t need)
{
    struct buffer_wait_object *self = wait_new(arena, partition_index, need);
    if (self != NULL) {
        (void)place_join(self, need); /* after a failure, it is OVER */
    }
    return self;
}

static PyObject *wait_join(PyObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument arguments[] = {
        {.name = "arena", .is_required = true},
        {.name = "need", .kind = ARGUMENT_INTEGER, .is_required = true, .min = 1, .max = SLOT_COUNT_MAX},
        {.name = "partition_index", .kind = ARGUMENT_INTEGER, .otherwise = NO_PARTITION, .max = UINT32_MAX},
    };
    static const struct signature signature = {.function = "join", .arguments = arguments, .count = 3};
    const struct module_state *state = PyType_GetModuleState((PyTypeObject *)type);
    struct {
        PyObject *arena;
        int64_t need;
        int64_t partition_index;
    } given;
    PyObject *place;
    if (!arguments_parse(state, &signature, args, count, names, &given)) {
        return NULL;
    }
    if (!Py_IS_TYPE(given.arena, state->arena_type)) {
        return PyErr_Format(PyExc_TypeError, "an Arena is needed, not %.80s", Py_TYPE(given.arena)->tp_name);
    }
    ALONE_BEGIN(given.arena);
    place = arena_join((struct arena_object *)given.arena, (uint32_t)given.need, (uint32_t)given.partition_index);
    ALONE_END();
    return place;
}

#define wait_queued_begin wait_is_queued
#define wait_queued_end any_end

#define METHODS_PART METHODS_DECLARED
#include "python/producer/buffer_wait_method_list.h"

/* ---- leave ---- */

/* Leaves the queue, or returns the slots that were granted meanwhile. */
static void place_end(struct buffer_wait_object *self)
{
    struct arena *core = self->arena->core;
    enum buffer_wait_stage stage = self->stage;
    struct wake_set wakes = {0};
    self->stage = WAIT_OVER;
    self->arena->call_count++;
    if (stage == WAIT_QUEUED) {
        wait_end(core, &self->wait, self->slots, 0, &wakes);
    } else if (self->left.count > 0) {
        wait_end(core, &self->wait, self->left.slots, self->left.count, &wakes);
    }
    waiters_wake(core, &wakes);
    self->arena->call_count--;
}

void buffer_wait_finish(struct buffer_wait_object *self)
{
    if (wait_is_ours(self)) {
        place_end(self);
    }
}

static void wait_dealloc(PyObject *object)
{
    struct buffer_wait_object *self = wait_of(object);
    PyTypeObject *type = Py_TYPE(object);
    ALONE_BEGIN(arena_of_wait(object));
    buffer_wait_finish(self);
    ALONE_END();
    Py_DECREF(self->arena);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* ---- wait ---- */

static enum status place_take(struct buffer_wait_object *self)
{
    self->arena->call_count++;
    enum status status = buffer_pool_take(self->arena->core, &self->wait, self->slots);
    self->arena->call_count--;
    if (status == STATUS_OK) {
        self->stage = WAIT_TAKEN;
        self->left = (struct reservation){.slots = self->slots, .count = self->wait.need};
    }
    return status;
}

static enum status place_sleep(struct buffer_wait_object *self, int64_t timeout_ns)
{
    self->arena->call_count++;
    enum status status = waiter_sleep(self->arena->core, &self->wait, (uint64_t)timeout_ns);
    self->arena->call_count--;
    return status;
}

bool buffer_wait_take(struct buffer_wait_object *self)
{
    struct arena *core = self->arena->core;
    if (buffer_pool_poll(core, &self->wait) != STATUS_OK || place_take(self) != STATUS_OK) {
        return false; /* Python calls again, and reports the status */
    }
    counter_add(core, COUNTER_WAIT_NS, (uint64_t)(monotonic_ns() - self->joined_ns));
    return true;
}

static void place_help(struct buffer_wait_object *self)
{
    struct wake_set wakes = {0};
    self->arena->call_count++;
    parked_waiter_take_turn(self->arena->core, &self->wait, &wakes);
    buffer_pool_wait_on(self->arena->core, &self->wait, &wakes);
    wake_set_remove(&wakes, self->wait.waiter_index);
    waiters_wake(self->arena->core, &wakes);
    self->arena->call_count--;
}

bool buffer_wait_sleep(struct buffer_wait_object *self, int64_t timeout_ns)
{
    if (timeout_ns <= 0 || !waiter_semaphore_open(self->arena->core, self->wait.waiter_index)) {
        return false;
    }
    enum status status = place_sleep(self, timeout_ns);
    if (status == STATUS_EXHAUSTED && buffer_pool_is_parked(self->arena->core, &self->wait)) {
        place_help(self); /* a parked waiter may fit now */
    }
    return buffer_wait_take(self);
}

bool buffer_wait_is_stuck(const struct buffer_wait_object *self)
{
    const struct arena *core = self->arena->core;
    return self->partition_index != NO_PARTITION && buffer_pool_is_parked(core, &self->wait) &&
           partition_is_stuck(core, self->partition_index);
}

static bool wait_is_queued(const struct buffer_wait_object *self)
{
    if (!wait_is_ours(self) || self->stage != WAIT_QUEUED) {
        raise_format(self->arena->state, STATUS_INVALID, "this wait for buffers is over");
        return false;
    }
    return true;
}

/* Converts a status of buffer_pool_poll to a bool. Returns NULL with an exception set. */
static PyObject *poll_status_to_bool(struct buffer_wait_object *self, enum status status)
{
    if (!arena_object_check_memory(self->arena)) {
        return NULL;
    }
    switch (status) {
    case STATUS_OK:
        Py_RETURN_TRUE;
    case STATUS_EXHAUSTED:
        Py_RETURN_FALSE;
    default:
        self->stage = WAIT_OVER;
        return raise_format(self->arena->state, STATUS_CORRUPT, "the place in the queue for buffers was lost");
    }
}

PyObject *py_wait_interrupt(struct buffer_wait_object *self)
{
    if (wait_is_ours(self) && self->stage == WAIT_QUEUED) {
        waiter_interrupt(self->arena->core, &self->wait);
    }
    Py_RETURN_NONE;
}

PyObject *py_wait_take(struct buffer_wait_object *self)
{
    enum status status = place_take(self);
    if (status != STATUS_OK && status != STATUS_EXHAUSTED) {
        return raise_status(self->arena->state, status);
    }
    return PyBool_FromLong(status == STATUS_OK);
}

/* ---- the type ---- */

#define OTHER_METHODS \
    {"join", (PyCFunction)(void (*)(void))wait_join, METH_FASTCALL | METH_KEYWORDS | METH_CLASS, \
     "Join the queue for this number of slots of a partition."},
#define METHODS_LIST "python/producer/buffer_wait_method_list.h"
#include "python/common/method_tables.h"

static PyMemberDef wait_members[] = {
    {"waiter_index", T_UINT, offsetof(struct buffer_wait_object, wait) + offsetof(struct buffer_wait, waiter_index),
     READONLY, "The index of the waiter entry, and of the semaphore to sleep on."},
    {"joined_ns", T_LONGLONG, offsetof(struct buffer_wait_object, joined_ns), READONLY,
     "The time at which it joined the queue, on the clock of time.monotonic_ns()."},
    {"partition_index", T_UINT, offsetof(struct buffer_wait_object, partition_index), READONLY,
     "The index of the partition for which it waits, or 2**32 - 1."},
    {"need", T_UINT, offsetof(struct buffer_wait_object, wait) + offsetof(struct buffer_wait, need), READONLY,
     "The number of slots for which it waits."},
    {"ticket", T_ULONGLONG, offsetof(struct buffer_wait_object, wait) + offsetof(struct buffer_wait, ticket), READONLY,
     "The place in the queue: lower tickets come first."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot wait_slots[] = {
    {Py_tp_doc, "A place in the queue of the exhausted buffer pool."},
    {Py_tp_dealloc, wait_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, wait_members},
    {0, NULL},
};

PyType_Spec buffer_wait_spec = {
    .name = "shmaccum._native.BufferWait",
    .basicsize = offsetof(struct buffer_wait_object, slots),
    .itemsize = sizeof(uint32_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = wait_slots,
};
