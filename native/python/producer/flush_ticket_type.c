/* SPDX-License-Identifier: Apache-2.0
 *
 * FlushTicket: the batches to which this process had appended when flush_begin() was called. Python waits for them.
 */
#include "python/common/alone.h"
#include "python/common/errors.h"
#include "python/producer/appender_type.h"

struct flush_ticket_object {
    PyObject ob_base;
    struct appender_object *appender;
    struct flush_ticket ticket;
};

static struct flush_ticket_object *ticket_of(PyObject *self)
{
    return (struct flush_ticket_object *)self;
}

static PyObject *arena_of_ticket(PyObject *self)
{
    return arena_of_appender((PyObject *)ticket_of(self)->appender);
}

PyObject *py_appender_flush_begin(struct appender_object *appender)
{
    if (!appender_call_begin(appender)) {
        return NULL;
    }
    struct flush_ticket_object *self =
        PyObject_GC_New(struct flush_ticket_object, appender->state->flush_ticket_type);
    if (self != NULL) {
        self->appender = (struct appender_object *)Py_NewRef((PyObject *)appender);
        self->ticket = (struct flush_ticket){0};
        PyObject_GC_Track(self);
        enum status status = appender_flush_begin(appender->core, &self->ticket);
        if (status != STATUS_OK) {
            Py_CLEAR(self);
            raise_status(appender->state, status);
        }
    }
    appender_call_end(appender);
    return (PyObject *)self;
}

static bool ticket_open_begin(const struct flush_ticket_object *self)
{
    return appender_object_is_open(self->appender);
}

#define ticket_open_end any_end

#define METHODS_PART METHODS_DECLARED
#include "python/producer/flush_ticket_method_list.h"

/* Without tp_clear: a ticket refers only to its appender. The appender clears each cycle that contains both. */
static int ticket_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)ticket_of(object)->appender);
    return 0;
}

static void ticket_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    appender_flush_end(&ticket_of(object)->ticket);
    Py_DECREF(ticket_of(object)->appender);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

#define METHODS_LIST "python/producer/flush_ticket_method_list.h"
#include "python/common/method_tables.h"

static PyType_Slot ticket_slots[] = {
    {Py_tp_doc, "The batches that a flush waits for."},
    {Py_tp_dealloc, ticket_dealloc},
    {Py_tp_traverse, ticket_traverse},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec flush_ticket_spec = NATIVE_TYPE("FlushTicket", struct flush_ticket_object, ticket_slots,
                                            Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION);
