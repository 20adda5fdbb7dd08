/* SPDX-License-Identifier: Apache-2.0
 *
 * ResultWaiters: futures without a result, each with an observer that is called with the future when its result is
 * known (producer/result_waiters.h).
 *
 * A tracker's thread waits without the GIL until one of its futures has a result. Python decides when to call observers
 * (shmaccum/producer/delivery.py). A waiter is removed before its observer is called, so each observer is called once.
 */
#include "python/producer/result_waiters_type.h"

#include "python/common/alone.h"
#include "python/common/arena_object.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/items.h"

static struct waiters_object *waiters_of(PyObject *self)
{
    return (struct waiters_object *)self;
}

static struct future_object *future_of(const struct result_waiter *waiter)
{
    return (struct future_object *)((const struct waiter *)waiter)->future;
}

static bool waiter_is_known(struct result_waiter *waiter, const void *Py_UNUSED(argument))
{
    return future_of(waiter)->completion != NULL;
}

struct waiter *waiter_new(PyObject *observer, const struct record_parts *record)
{
    struct waiter *waiter = PyMem_Malloc(sizeof *waiter);
    if (waiter == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    waiter->base.next = NULL;
    waiter->base.may_be_late = false;
    waiter->future = NULL;
    waiter->observer = Py_NewRef(observer);
    waiter->record = record == NULL ? (struct record_parts){NULL} : *record;
    Py_XINCREF(waiter->record.topic);
    Py_XINCREF(waiter->record.value);
    Py_XINCREF(waiter->record.key);
    Py_XINCREF(waiter->record.headers);
    return waiter;
}

void waiter_free(struct waiter *waiter)
{
    Py_XDECREF(waiter->future);
    Py_DECREF(waiter->observer);
    Py_XDECREF(waiter->record.topic);
    Py_XDECREF(waiter->record.value);
    Py_XDECREF(waiter->record.key);
    Py_XDECREF(waiter->record.headers);
    PyMem_Free(waiter);
}

static void waiter_set(struct waiter *waiter, PyObject *future)
{
    waiter->future = Py_NewRef(future);
    waiter->base.token = token_of(&((struct future_object *)future)->token);
}

#define METHODS_PART METHODS_DECLARED
#include "python/producer/result_waiters_method_list.h"

/* ---- arguments ---- */

/* Returns NULL with an exception set if the object is not an Arena, or is closed. Allows lost memory. */
static struct arena_object *arena_take(const struct waiters_object *self, PyObject *given)
{
    struct arena_object *arena = (struct arena_object *)given;
    if (!PyObject_TypeCheck(given, self->state->arena_type)) {
        PyErr_Format(PyExc_TypeError, "expected an Arena, not %.80s", Py_TYPE(given)->tp_name);
        return NULL;
    }
    return arena_object_is_closed(arena) ? NULL : arena;
}

/* Returns NULL with an exception set if the object is not a DeliveryFuture. */
static struct future_object *future_take(const struct waiters_object *self, PyObject *given)
{
    if (!PyObject_TypeCheck(given, self->state->future_type)) {
        PyErr_Format(PyExc_TypeError, "expected a DeliveryFuture, not %.80s", Py_TYPE(given)->tp_name);
        return NULL;
    }
    return (struct future_object *)given;
}

/* ---- waiters ---- */

static PyObject *waiters_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, ":ResultWaiters", names)) {
        return NULL;
    }
    struct waiters_object *self = (struct waiters_object *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->state = PyType_GetModuleState(type);
        if (result_waiters_init(&self->core) != STATUS_OK) {
            Py_CLEAR(self);
            return PyErr_NoMemory();
        }
    }
    return (PyObject *)self;
}

PyObject *py_waiters_add(struct waiters_object *self, const struct py_waiters_add *given)
{
    const struct arena_object *arena = arena_take(self, given->arena);
    const struct future_object *future = arena == NULL ? NULL : future_take(self, given->future);
    if (future == NULL || future->completion != NULL) {
        return future == NULL ? NULL : Py_NewRef(Py_False);
    }
    struct waiter *waiter = waiter_new(given->observer, NULL);
    if (waiter == NULL) {
        return NULL;
    }
    waiter_set(waiter, given->future);
    enum status status;
    ALONE_BEGIN(given->arena);
    status = arena->core == NULL ? STATUS_INVALID : result_waiters_add(&self->core, arena->core, &waiter->base);
    ALONE_END();
    if (status != STATUS_PENDING) {
        waiter_free(waiter);
    }
    return status == STATUS_OS ? PyErr_NoMemory() : PyBool_FromLong(status == STATUS_PENDING);
}

void waiters_put(struct waiters_object *self, struct arena_object *arena, struct waiter *waiter, PyObject *future)
{
    waiter_set(waiter, future);
    waiter->base.may_be_late = true;
    enum status status;
    ALONE_BEGIN((PyObject *)arena);
    status = arena->core == NULL ? STATUS_OS : result_waiters_add(&self->core, arena->core, &waiter->base);
    ALONE_END();
    if (status == STATUS_OS) {
        waiter_free(waiter);
    }
}

static bool waiter_is(const struct result_waiter *waiter, const void *given)
{
    const struct py_waiters_discard *wanted = given;
    return ((const struct waiter *)waiter)->future == wanted->future &&
           ((const struct waiter *)waiter)->observer == wanted->observer;
}

PyObject *py_waiters_discard(struct waiters_object *self, const struct py_waiters_discard *given)
{
    const struct future_object *future = future_take(self, given->future);
    if (future == NULL) {
        return NULL;
    }
    struct record_token token = token_of(&future->token);
    struct result_waiter *removed = result_waiters_remove(&self->core, &token, waiter_is, given);
    if (removed != NULL) {
        waiter_free((struct waiter *)removed);
    }
    Py_RETURN_NONE;
}

/* Freeing an object may run code that calls methods of this one. */
static Py_ssize_t ended_free(struct waiters_object *self)
{
    Py_ssize_t count = 0;
    struct result_waiter *waiter;
    while ((waiter = result_waiters_take(&self->core)) != NULL) {
        waiter_free((struct waiter *)waiter);
        count++;
    }
    return count;
}

PyObject *py_waiters_clear(struct waiters_object *self)
{
    result_waiters_end_if(&self->core, result_waiter_is_any, NULL);
    return PyLong_FromSsize_t(ended_free(self));
}

/* New references to the futures and the observers of all waiters. */
struct references {
    PyObject **items;
    size_t count;
    size_t capacity;
};

static int references_add(struct result_waiter *waiter, void *target)
{
    struct references *references = target;
    if (references->count + 2 > references->capacity) {
        return -1; /* a waiter was added meanwhile */
    }
    references->items[references->count++] = Py_NewRef(((struct waiter *)waiter)->future);
    references->items[references->count++] = Py_NewRef(((struct waiter *)waiter)->observer);
    return 0;
}

/* Allocates nothing during the visit, because garbage collection may run a finalizer that removes waiters. */
PyObject *py_waiters_waiters(struct waiters_object *self)
{
    struct references found = {.capacity = 2 * (self->core.waiting_count + self->core.ended.count)};
    PyObject *pairs = PyList_New(0);
    found.items = PyMem_Calloc(found.capacity + 1, sizeof *found.items);
    if (pairs == NULL || found.items == NULL) {
        Py_XDECREF(pairs);
        PyMem_Free(found.items);
        return PyErr_NoMemory();
    }
    pthread_mutex_lock(&self->core.mutex);
    (void)result_waiters_visit(&self->core, references_add, &found);
    pthread_mutex_unlock(&self->core.mutex);
    for (size_t i = 0; i < found.count; i += 2) {
        if (pairs != NULL && !list_put(pairs, PyTuple_Pack(2, found.items[i], found.items[i + 1]))) {
            Py_CLEAR(pairs);
        }
        Py_DECREF(found.items[i]);
        Py_DECREF(found.items[i + 1]);
    }
    PyMem_Free(found.items);
    return pairs;
}

/* ---- wait ---- */

/* The call is counted, so the arena cannot be closed during it. */
static PyObject *wait_attached(struct waiters_object *self, struct arena_object *arena, uint64_t idle_ns,
                               uint64_t timeout_ns)
{
    bool is_found = arena_is_lost(arena->core);
    if (!is_found) {
        if (!arena_object_attach(arena)) {
            return NULL;
        }
        arena->call_count++;
        Py_BEGIN_ALLOW_THREADS
        is_found = result_waiters_wait(&self->core, arena->core, idle_ns, timeout_ns);
        Py_END_ALLOW_THREADS
        arena->call_count--;
    }
    return PyBool_FromLong(is_found);
}

PyObject *py_waiters_wait(struct waiters_object *self, const struct py_waiters_wait *given)
{
    PyObject *result = NULL;
    ALONE_BEGIN(given->arena);
    struct arena_object *arena = arena_take(self, given->arena);
    if (arena != NULL) {
        result = wait_attached(self, arena, (uint64_t)given->idle_ns, (uint64_t)given->timeout_ns);
    }
    ALONE_END();
    return result;
}

PyObject *py_waiters_check(struct waiters_object *self, const struct py_waiters_check *given)
{
    PyObject *result = NULL;
    ALONE_BEGIN(given->arena);
    const struct arena_object *arena = arena_take(self, given->arena);
    if (arena != NULL) {
        result_waiters_check(&self->core, arena->core);
        result = Py_NewRef(Py_None);
    }
    ALONE_END();
    return result;
}

bool waiters_collect(struct waiters_object *self, struct arena_object *arena)
{
    ALONE_BEGIN((PyObject *)arena);
    if (arena->core != NULL) {
        result_waiters_collect(&self->core, arena->core);
    }
    ALONE_END();
    return self->core.ended.count > 0;
}

PyObject *py_waiters_collect(struct waiters_object *self, const struct py_waiters_collect *given)
{
    struct arena_object *arena = arena_take(self, given->arena);
    return arena == NULL ? NULL : PyBool_FromLong(waiters_collect(self, arena));
}

/* ---- call ---- */

struct waiter *waiters_take(struct waiters_object *self)
{
    return (struct waiter *)result_waiters_take(&self->core);
}

void waiter_complete(const struct waiter *waiter)
{
    struct future_object *future = future_of(&waiter->base);
    PyObject *completion = waiter->base.has_completion ? completion_to_tuple(&waiter->base.completion) : NULL;
    PyObject *former = NULL;
    PyErr_Clear();
    if (completion != NULL) {
        ALONE_BEGIN(future);
        former = future->completion;
        future->completion = completion;
        ALONE_END();
    }
    Py_XDECREF(former);
}

PyObject *py_waiters_call_next(struct waiters_object *self)
{
    struct waiter *waiter = waiters_take(self);
    if (waiter == NULL) {
        Py_RETURN_FALSE;
    }
    waiter_complete(waiter);
    PyObject *result = PyObject_CallOneArg(waiter->observer, waiter->future);
    waiter_free(waiter);
    if (result == NULL) {
        return NULL;
    }
    Py_DECREF(result);
    Py_RETURN_TRUE;
}

/* ---- the type ---- */

struct visitor {
    visitproc visit;
    void *arg;
};

static int waiter_visit(struct result_waiter *base, void *given)
{
    const struct visitor *visitor = given;
    const visitproc visit = visitor->visit;
    void *arg = visitor->arg;
    const struct waiter *waiter = (const struct waiter *)base;
    Py_VISIT(waiter->future);
    Py_VISIT(waiter->observer);
    Py_VISIT(waiter->record.topic);
    Py_VISIT(waiter->record.value);
    Py_VISIT(waiter->record.key);
    Py_VISIT(waiter->record.headers);
    return 0;
}

static int waiters_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct visitor visitor = {.visit = visit, .arg = arg};
    Py_VISIT(Py_TYPE(object));
    return result_waiters_visit(&waiters_of(object)->core, waiter_visit, &visitor);
}

static int waiters_clear(PyObject *object)
{
    result_waiters_close(&waiters_of(object)->core);
    (void)ended_free(waiters_of(object));
    return 0;
}

static void waiters_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)waiters_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

#define METHODS_LIST "python/producer/result_waiters_method_list.h"
#include "python/common/method_tables.h"

static PyType_Slot waiters_slots[] = {
    {Py_tp_doc, "Futures without a result, and the observers that are called when their results are known."},
    {Py_tp_new, waiters_new},
    {Py_tp_dealloc, waiters_dealloc},
    {Py_tp_traverse, waiters_traverse},
    {Py_tp_clear, waiters_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec result_waiters_spec = NATIVE_TYPE("ResultWaiters", struct waiters_object, waiters_slots,
                                              Py_TPFLAGS_HAVE_GC);
