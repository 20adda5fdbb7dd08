/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf: the sender role, and the beginning and end of each call that needs it.
 *
 * One thread at a time: the core may release the GIL while it waits for the pool lock, and its private queues may be
 * inconsistent then. So a call of a second thread raises an error. Each call wakes the waiters that it has served
 * before it returns.
 *
 * The last reference to a Batch may be released before its completion, on any thread and during any call. So the batch
 * is not requeued at once, but noted, and the next call of the sender requeues it.
 */
#include "python/sender/sender_half_type.h"

#include "arena/spilled.h"
#include "arena/waiter_semaphores.h"
#include "python/common/alone.h"
#include "python/common/errors.h"

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
            continue; /* the batch already has a result */
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
    if (!half_is_free(self) || !arena_object_check_memory(self->arena)) {
        return false;
    }
    call_begin(self);
    abandoned_requeue(self);
    return true;
}

PyObject *half_end(struct sender_half_object *self, PyObject *result)
{
    self->is_in_call = false;
    waiters_wake(self->arena->core, &self->wakes);
    self->arena->call_count--;
    if (result != NULL && !arena_object_check_memory(self->arena)) {
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
    role_drop(self); /* in a forked child, frees the copy of the parent's queues */
    enum status status = sender_role_take(self->arena->core, &options, &self->core, &error);
    if (status != STATUS_OK) {
        return raise_error(self->state, &error);
    }
    self->role_number++;
    Py_RETURN_NONE;
}

PyObject *py_half_become_sender(struct sender_half_object *self)
{
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

PyObject *py_half_resign(struct sender_half_object *self)
{
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

PyObject *py_half_close(struct sender_half_object *self)
{
    if (!self->is_closed && !role_may_be_left(self)) {
        return NULL;
    }
    half_release(self);
    Py_RETURN_NONE;
}

static int half_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((struct sender_half_object *)object)->arena);
    return 0;
}

static void half_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    ALONE_BEGIN(arena_of_half(object));
    half_release((struct sender_half_object *)object);
    ALONE_END();
    Py_DECREF(arena_of_half(object));
    type->tp_free(object);
    Py_DECREF(type);
}

/* ---- the type ---- */

#define METHODS_LIST "python/sender/sender_half_method_list.h"
#include "python/common/method_tables.h"

static PyType_Slot half_slots[] = {
    {Py_tp_doc, "The sender's side of an arena: readiness, draining, results."},
    {Py_tp_new, half_new},
    {Py_tp_dealloc, half_dealloc},
    {Py_tp_traverse, half_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec sender_half_spec = NATIVE_TYPE("SenderHalf", struct sender_half_object, half_slots, Py_TPFLAGS_HAVE_GC);
