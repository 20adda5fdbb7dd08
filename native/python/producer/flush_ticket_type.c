/* SPDX-License-Identifier: Apache-2.0
 *
 * FlushTicket: the batches this process had appended to when flush_begin() was called. Waiting for them is Python's.
 */
#include "python/common/accumulator_call.h"
#include "python/common/errors.h"

struct flush_ticket_object {
    PyObject ob_base;
    struct accumulator_object *accumulator;
    struct flush_ticket ticket;
};

static struct flush_ticket_object *ticket_of(PyObject *self)
{
    return (struct flush_ticket_object *)self;
}

PyObject *flush_ticket_begin(PyObject *object, PyObject *unused)
{
    struct accumulator_object *accumulator = (struct accumulator_object *)object;
    (void)unused;
    if (!accumulator_call_begin(accumulator)) {
        return NULL;
    }
    struct flush_ticket_object *self =
        PyObject_GC_New(struct flush_ticket_object, accumulator->state->flush_ticket_type);
    if (self != NULL) {
        self->accumulator = (struct accumulator_object *)Py_NewRef(object);
        self->ticket = (struct flush_ticket){0};
        PyObject_GC_Track(self);
        enum status status = accumulator_flush_begin(accumulator->core, &self->ticket);
        if (status != STATUS_OK) {
            Py_CLEAR(self);
            raise_status(accumulator->state, status);
        }
    }
    accumulator_call_end(accumulator);
    return (PyObject *)self;
}

static PyObject *ticket_remaining(PyObject *object, PyObject *unused)
{
    struct flush_ticket_object *self = ticket_of(object);
    (void)unused;
    if (!accumulator_object_is_open(self->accumulator)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(accumulator_flush_remaining(self->accumulator->core, &self->ticket));
}

static PyObject *ticket_record_count(PyObject *object, PyObject *unused)
{
    const struct flush_ticket_object *self = ticket_of(object);
    (void)unused;
    if (!accumulator_object_is_open(self->accumulator)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(accumulator_flush_record_count(self->accumulator->core, &self->ticket));
}

/* Without tp_clear: a ticket refers to its accumulator alone and can only be part of a cycle through it, which clears
 * itself. */
static int ticket_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)ticket_of(object)->accumulator);
    return 0;
}

static void ticket_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    accumulator_flush_end(&ticket_of(object)->ticket);
    Py_DECREF(ticket_of(object)->accumulator);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyMethodDef ticket_methods[] = {
    {"record_count", ticket_record_count, METH_NOARGS, "How many records they hold, of all processes."},
    {"remaining", ticket_remaining, METH_NOARGS, "How many of the batches are not complete yet."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ticket_slots[] = {
    {Py_tp_doc, "What a flush waits for."},
    {Py_tp_dealloc, ticket_dealloc},
    {Py_tp_traverse, ticket_traverse},
    {Py_tp_methods, ticket_methods},
    {0, NULL},
};

PyType_Spec flush_ticket_spec = {
    .name = "shmaccum._native.FlushTicket",
    .basicsize = sizeof(struct flush_ticket_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ticket_slots,
};
