/* SPDX-License-Identifier: Apache-2.0
 *
 * Appender: opens and closes. A Producer appends with it (producer_type.c).
 *
 * Python callables, which are arguments of the constructor, do the rare work: waiting for a buffer for longer than a
 * slice, and waking the sender.
 */
#include "python/producer/appender_type.h"

#include "arena/transaction.h"
#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"

static struct appender_object *appender_of(PyObject *self)
{
    return (struct appender_object *)self;
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

static bool core_open(struct appender_object *self, int64_t linger_ns)
{
    struct error error;
    if (!arena_object_attach(self->arena)) {
        return false;
    }
    if (appender_open(self->arena->core, &self->core, &error) != STATUS_OK) {
        raise_error(self->state, &error);
        return false;
    }
    self->core->linger = (uint64_t)(linger_ns + 1);
    self->arena->half_count++;
    self->call_owner = self->arena->core->owner;
    return true;
}

struct appender_settings {
    int sleeps;
    int64_t max_block_ms;
    int64_t linger_ns; /* -1 for the sender's linger */
};

static PyObject *appender_create(PyTypeObject *type, struct arena_object *arena, PyObject *const *callables,
                                 const struct appender_settings *settings)
{
    struct appender_object *self = (struct appender_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = arena->state;
    self->arena = (struct arena_object *)Py_NewRef((PyObject *)arena);
    self->wait = Py_NewRef(callables[0]);
    self->wake = Py_NewRef(callables[1]);
    self->sleeps = settings->sleeps != 0;
    self->max_block_ms = settings->max_block_ms;
    bool is_open;
    ALONE_BEGIN(arena);
    is_open = core_open(self, settings->linger_ns);
    ALONE_END();
    if (!is_open) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *appender_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"arena", "wait", "wake", "max_block_ms", "linger_ns", "sleeps", NULL};
    static const struct integer_range max_block_range = {"max_block_ms", 0, INT64_MAX / 1000000};
    static const struct integer_range linger_range = {"linger_ns", 0, INT64_MAX - 1};
    const struct module_state *state = PyType_GetModuleState(type);
    PyObject *arena;
    PyObject *callables[2] = {NULL, Py_None};
    PyObject *max_block = NULL;
    PyObject *linger = NULL;
    struct appender_settings settings = {.sleeps = true, .max_block_ms = 60000, .linger_ns = -1};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O|OOOp:Appender", names, state->arena_type, &arena,
                                     &callables[0], &callables[1], &max_block, &linger, &settings.sleeps) ||
        !callable_check(callables[0], "wait") ||
        (callables[1] != Py_None && !callable_check(callables[1], "wake")) ||
        !integer_parse_optional(state, max_block, &max_block_range, &settings.max_block_ms) ||
        !integer_parse_optional(state, linger, &linger_range, &settings.linger_ns)) {
        return NULL;
    }
    return appender_create(type, (struct arena_object *)arena, callables, &settings);
}

/* ---- close ---- */

static void appender_release(struct appender_object *self)
{
    struct appender *core = self->core;
    self->core = NULL;
    self->arena->half_count--;
    appender_close(core);
}

static bool appender_is_unused(const struct appender_object *self)
{
    bool is_forked = self->call_owner != self->arena->core->owner;
    if (self->call_count > 0 && !is_forked) {
        PyErr_Format(self->state->arena_in_use, "the producer cannot be closed while calls are running (%u): "
                     "join the threads that use it first", self->call_count);
        return false;
    }
    return true;
}

PyObject *py_appender_close(struct appender_object *self)
{
    if (self->core == NULL) {
        Py_RETURN_NONE;
    }
    if (!appender_is_unused(self)) {
        return NULL;
    }
    appender_release(self);
    Py_RETURN_NONE;
}

static int appender_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct appender_object *self = appender_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->arena);
    Py_VISIT(self->wait);
    Py_VISIT(self->wake);
    return 0;
}

static int appender_clear(PyObject *object)
{
    struct appender_object *self = appender_of(object);
    Py_CLEAR(self->wait);
    Py_CLEAR(self->wake);
    return 0;
}

static void appender_dealloc(PyObject *object)
{
    struct appender_object *self = appender_of(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->core != NULL) {
        ALONE_BEGIN(arena_of_appender(object));
        appender_release(self);
        ALONE_END();
    }
    (void)appender_clear(object);
    Py_XDECREF(self->arena);
    type->tp_free(object);
    Py_DECREF(type);
}

/* ---- calls ---- */

bool appender_object_is_open(const struct appender_object *self)
{
    if (self->core == NULL) {
        raise_format(self->state, STATUS_CLOSED, "the producer is closed: open another one");
        return false;
    }
    return true;
}

bool appender_call_begin_slow(struct appender_object *self)
{
    if (!appender_object_is_open(self) || !arena_object_attach(self->arena)) {
        return false;
    }
    if (self->call_owner != self->arena->core->owner) {
        self->call_owner = self->arena->core->owner;
        self->call_count = 0;
    }
    return true;
}

/* ---- the type ---- */

PyObject *py_appender_join(struct appender_object *self, const struct py_appender_join *given)
{
    if (given->number != 0 && !arena_is_transactional(self->arena->core)) {
        return raise_format(self->state, STATUS_INVALID, "the arena has no transactional_id, and so no transaction to "
                            "join");
    }
    self->core->joined = (uint64_t)given->number;
    Py_RETURN_NONE;
}

#define METHODS_LIST "python/producer/appender_method_list.h"
#include "python/common/method_tables.h"

static PyType_Slot appender_slots[] = {
    {Py_tp_doc, "The object with which the producers of a process append."},
    {Py_tp_new, appender_new},
    {Py_tp_dealloc, appender_dealloc},
    {Py_tp_traverse, appender_traverse},
    {Py_tp_clear, appender_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec appender_spec = NATIVE_TYPE("Appender", struct appender_object, appender_slots, Py_TPFLAGS_HAVE_GC);
