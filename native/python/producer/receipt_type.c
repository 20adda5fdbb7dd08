/* SPDX-License-Identifier: Apache-2.0
 *
 * Receipt: the result of a call that appended many records. Records are counted in the given order, without the records
 * that a failed call did not append.
 */
#include "python/common/alone.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/producer/future_type.h"
#include "python/producer/producer_many.h"

static struct receipt_object *receipt_of(PyObject *self)
{
    return (struct receipt_object *)self;
}

static PyObject *arena_of_receipt(PyObject *self)
{
    return (PyObject *)receipt_of(self)->arena;
}

struct receipt_object *receipt_object_new(const struct producer_object *producer)
{
    struct receipt_object *self = PyObject_New(struct receipt_object, producer->state->receipt_type);
    if (self != NULL) {
        self->arena = (struct arena_object *)Py_NewRef((PyObject *)producer->appender->arena);
        self->tracker = Py_NewRef(producer->tracker);
        self->receipt = (struct receipt){0};
    }
    return self;
}

static void receipt_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    receipt_close(&receipt_of(object)->receipt);
    Py_DECREF((PyObject *)receipt_of(object)->arena);
    Py_DECREF(receipt_of(object)->tracker);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* After all results were copied, the receipt no longer needs the arena, which may be closed in this process. */
static bool receipt_answerable_begin(const struct receipt_object *self)
{
    return receipt_is_resolved(&self->receipt) || arena_object_is_open(self->arena);
}

#define receipt_answerable_end any_end

#define METHODS_PART METHODS_DECLARED
#include "python/producer/receipt_method_list.h"

/* ---- as a sequence of futures ---- */

static Py_ssize_t receipt_length(PyObject *object)
{
    return (Py_ssize_t)receipt_of(object)->receipt.appended_count;
}

static PyObject *run_completion(const struct receipt_run *run)
{
    const struct completion completion = {.result = run->result,
                                          .error_code = run->error_code,
                                          .base_offset = run->base_offset,
                                          .log_append_time_ms = run->log_append_time_ms,
                                          .first_record = run->record_index,
                                          .record_count = run->count};
    return completion_to_tuple(&completion);
}

/* Gives a future the result that the receipt has. */
static bool future_fill(struct future_object *future, const struct receipt *receipt, uint32_t row)
{
    uint32_t position;
    (void)receipt_find(receipt, row, &position);
    const struct receipt_run *run = receipt_run_at(receipt, position);
    const struct batch_place place = {.slot_index = run->slot_index,
                                      .record_index = run->record_index + (position - run->position),
                                      .seq = run->seq,
                                      .timestamp_ms = receipt_timestamp(receipt, row)};
    future_object_fill(future, run->partition_index, &place);
    future->key_size = future->value_size = future->headers_size = -1; /* unknown */
    future->completion = run->is_resolved ? run_completion(run) : NULL;
    return !run->is_resolved || future->completion != NULL;
}

/* Returns false with IndexError set. */
static bool receipt_has(const struct receipt_object *self, Py_ssize_t index)
{
    bool is_there = index >= 0 && index < (Py_ssize_t)self->receipt.appended_count;
    if (!is_there) {
        PyErr_SetString(PyExc_IndexError, "the receipt has no such record");
    }
    return is_there;
}

static PyObject *receipt_at(const struct receipt_object *self, Py_ssize_t index)
{
    if (!receipt_has(self, index)) {
        return NULL;
    }
    struct future_object *future = future_object_new(self->arena->state, self->tracker);
    if (future != NULL && !future_fill(future, &self->receipt, receipt_row_of(&self->receipt, (uint32_t)index))) {
        Py_CLEAR(future);
    }
    return (PyObject *)future;
}

static PyObject *receipt_item(PyObject *object, Py_ssize_t index)
{
    PyObject *future;
    ALONE_BEGIN(arena_of_receipt(object));
    future = receipt_at(receipt_of(object), index);
    ALONE_END();
    return future;
}

PyObject *py_receipt_row(struct receipt_object *self, const struct py_receipt_row *given)
{
    Py_ssize_t number = PyNumber_AsSsize_t(given->index, PyExc_IndexError);
    if ((number == -1 && PyErr_Occurred() != NULL) || !receipt_has(self, number)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(receipt_row_of(&self->receipt, (uint32_t)number));
}

/* ---- results ---- */

/* Returns True if all records are resolved, else False, or NULL with an exception set. */
static PyObject *receipt_status_to_bool(struct receipt_object *self, enum status status)
{
    if (!arena_object_check_memory(self->arena)) {
        return NULL;
    }
    if (status == STATUS_OK || status == STATUS_PENDING) {
        return PyBool_FromLong(status == STATUS_OK);
    }
    return raise_status(self->arena->state, status);
}

PyObject *py_receipt_resolve(struct receipt_object *self)
{
    if (receipt_is_resolved(&self->receipt)) {
        Py_RETURN_TRUE;
    }
    return receipt_status_to_bool(self, receipt_resolve(&self->receipt, self->arena->core));
}

static PyObject *total_to_tuple(const void *totals, uint32_t index)
{
    const struct receipt_total *total = (const struct receipt_total *)totals + index;
    PyObject *result = total->is_resolved ? PyLong_FromLong((long)total->result) : Py_NewRef(Py_None);
    return Py_BuildValue("(INiILL)", total->partition_index, result, total->error_code, total->count,
                         (long long)total->first_offset, (long long)total->last_offset);
}

PyObject *py_receipt_totals(struct receipt_object *self)
{
    if (!receipt_is_resolved(&self->receipt)) {
        PyObject *answer = receipt_status_to_bool(self, receipt_resolve_all(&self->receipt, self->arena->core));
        if (answer == NULL) {
            return NULL;
        }
        Py_DECREF(answer);
    }
    size_t room = self->receipt.run_count == 0 ? 1 : self->receipt.run_count;
    struct receipt_total *totals = PyMem_Calloc(room, sizeof *totals);
    if (totals == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *list = list_of(receipt_totals(&self->receipt, totals), total_to_tuple, totals);
    PyMem_Free(totals);
    return list;
}

PyObject *py_receipt_first_failed(struct receipt_object *self)
{
    uint32_t index;
    return receipt_first_failed(&self->receipt, &index) ? PyLong_FromUnsignedLong(index) : Py_NewRef(Py_None);
}

/* ---- the type ---- */

#define METHODS_LIST "python/producer/receipt_method_list.h"
#include "python/common/method_tables.h"

static PyType_Slot receipt_slots[] = {
    {Py_tp_doc, "The result of one call: a sequence of DeliveryFutures."},
    {Py_tp_dealloc, receipt_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_sq_length, receipt_length},
    {Py_sq_item, receipt_item},
    {0, NULL},
};

PyType_Spec receipt_spec = NATIVE_TYPE("Receipt", struct receipt_object, receipt_slots,
                                       Py_TPFLAGS_DISALLOW_INSTANTIATION);
