/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of a sender's rounds in SenderHalf: ready, drain, complete.
 */
#include <string.h>

#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/sender/batch_type.h"

/* ---- maintenance of the arena ---- */

PyObject *py_half_statistics(struct sender_half_object *self)
{
    struct sender_statistics statistics;
    sender_statistics_read(self->core, &statistics);
    PyObject *result = Py_BuildValue("{s:I,s:I,s:I,s:I}", "queued_count", statistics.queued_count, "in_flight_count",
                                     statistics.in_flight_count, "deferred_count", statistics.deferred_count,
                                     "active_partition_count", statistics.active_partition_count);
    return result;
}

/* ---- ready ---- */

/* Returns `now_ns`, or the arena's time if it is NOW. */
uint64_t half_now_or(const struct sender_half_object *self, int64_t now_ns)
{
    return now_ns == NOW ? arena_now_ns(self->arena->core) : (uint64_t)now_ns;
}

static PyObject *index_number(const void *indices, uint32_t index)
{
    return PyLong_FromUnsignedLong(((const uint32_t *)indices)[index]);
}

static PyObject *ns_or_none(uint64_t ns)
{
    return ns == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(ns);
}

static PyObject *ready_list(struct sender_half_object *self, const struct ready_options *options)
{
    uint32_t partitions_max = registry_partition_count(self->core->arena);
    uint32_t *partitions = PyMem_Malloc((partitions_max + 1) * sizeof *partitions);
    uint64_t next_check_ns;
    if (partitions == NULL) {
        return PyErr_NoMemory();
    }
    uint32_t count = sender_ready(self->core, options, partitions, partitions_max, &next_check_ns);
    PyObject *result = Py_BuildValue("(NN)", list_of(count, index_number, partitions), ns_or_none(next_check_ns));
    PyMem_Free(partitions);
    return result;
}

PyObject *py_half_ready(struct sender_half_object *self, const struct py_half_ready *given)
{
    const struct ready_options options = {.now_ns = half_now_or(self, given->now_ns),
                                          .linger_ns = (uint64_t)given->linger_ns,
                                          .in_flight_max = (uint32_t)given->in_flight_max,
                                          .is_everything_ready = given->is_everything_ready,
                                          .takes_along = given->takes_along};
    return ready_list(self, &options);
}

/* ---- drain ---- */

bool half_partitions_parse(const struct sender_half_object *self, PyObject *tuple, uint32_t *partitions)
{
    const struct integer_range range = {"a partition index", 0,
                                        (int64_t)registry_partition_count(self->core->arena) - 1};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        int64_t value;
        if (!integer_parse(self->state, PyTuple_GET_ITEM(tuple, i), &range, &value)) {
            return false;
        }
        partitions[i] = (uint32_t)value;
    }
    return true;
}

/* If there is no memory for the object of a batch, requeues the batch, because it could never be completed. */
PyObject *half_batches_to_list(struct sender_half_object *self, const struct drained_batch *batches, uint32_t count)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < count; i++) {
        PyObject *batch = list == NULL ? NULL : batch_object_new(self, &batches[i]);
        if (batch == NULL) {
            Py_CLEAR(list);
            enum status status = sender_requeue(self->core, batches[i].slot_index, batches[i].seq, 0, &self->wakes);
            CHECK(status == STATUS_OK);
            (void)status;
        } else if (PyList_Append(list, batch) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(batch);
    }
    return list;
}

static PyObject *drain_partitions(struct sender_half_object *self, const struct drain_options *options,
                                  PyObject *tuple)
{
    size_t count = (size_t)PyTuple_GET_SIZE(tuple);
    uint32_t *partitions = PyMem_Malloc((count + 1) * sizeof *partitions);
    struct drained_batch *batches = PyMem_Malloc((count + 1) * sizeof *batches);
    PyObject *result = NULL;
    if (partitions == NULL || batches == NULL || count > UINT32_MAX) {
        PyErr_NoMemory();
    } else if (half_partitions_parse(self, tuple, partitions)) {
        uint32_t seen;
        uint32_t drained =
            sender_drain(self->core, options, partitions, (uint32_t)count, batches, &seen);
        result = Py_BuildValue("(NI)", half_batches_to_list(self, batches, drained), seen);
    }
    PyMem_Free(partitions);
    PyMem_Free(batches);
    return result;
}

PyObject *py_half_drain(struct sender_half_object *self, const struct py_half_drain *given)
{
    const struct drain_options options = {.now_ns = half_now_or(self, given->now_ns),
                                          .size_max = (uint32_t)given->size_max,
                                          .in_flight_max = (uint32_t)given->in_flight_max};
    PyObject *partitions = PySequence_Tuple(given->partitions);
    PyObject *result = partitions == NULL ? NULL : drain_partitions(self, &options, partitions);
    Py_XDECREF(partitions);
    return result;
}

/* ---- dead letters ---- */

static PyObject *dead_letters_to_list(struct sender_half_object *self, const struct drained_batch *batches,
                                 const struct batch_outcome *outcomes, uint32_t count)
{
    PyObject *list = half_batches_to_list(self, batches, count);
    for (uint32_t i = 0; i < count && list != NULL; i++) {
        PyObject *letter =
            Py_BuildValue("(Oii)", PyList_GET_ITEM(list, i), (int)outcomes[i].result, (int)outcomes[i].error_code);
        if (letter == NULL || PyList_SetItem(list, i, letter) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *py_half_dead_letters(struct sender_half_object *self)
{
    PyObject *result = NULL;
    uint32_t batches_max = self->core->arena->geometry.slot_count;
    struct drained_batch *batches = PyMem_Malloc(batches_max * sizeof *batches);
    struct batch_outcome *outcomes = PyMem_Malloc(batches_max * sizeof *outcomes);
    if (batches == NULL || outcomes == NULL) {
        PyErr_NoMemory();
    } else {
        uint32_t count = sender_dead_letters(self->core, batches, outcomes, batches_max);
        result = dead_letters_to_list(self, batches, outcomes, count);
    }
    PyMem_Free(batches);
    PyMem_Free(outcomes);
    return result;
}

/* ---- the end of a batch ---- */

/* Returns the batch if it is in flight and this sender has drained it. Otherwise sets an exception. */
static struct batch_object *batch_parse_in_flight(struct sender_half_object *self, PyObject *object)
{
    if (!Py_IS_TYPE(object, self->state->batch_type)) {
        PyErr_Format(PyExc_TypeError, "a Batch is needed, not %.80s", Py_TYPE(object)->tp_name);
        return NULL;
    }
    struct batch_object *batch = (struct batch_object *)object;
    if (batch->half != self) {
        raise_format(self->state, STATUS_INVALID, "the batch was drained by another sender");
        return NULL;
    }
    return batch_object_is_current(batch) ? batch : NULL;
}

/* The same, and checks that no buffer of it is exported. */
static struct batch_object *batch_parse(struct sender_half_object *self, PyObject *object)
{
    struct batch_object *batch = batch_parse_in_flight(self, object);
    uint32_t export_count = batch == NULL ? 0 : load_acquire_u32(&batch->export_count); /* V6 */
    if (export_count > 0) {
        PyErr_Format(self->state->batch_in_use, "buffers of the batch are still in use, %u of them: release its "
                     "memoryviews before it is completed or requeued", export_count);
        return NULL;
    }
    return batch;
}

/* Returns the result of a call on a batch. After a success, the batch is over if `ends_batch` is true. */
static PyObject *batch_answer(struct sender_half_object *self, struct batch_object *batch, enum status status,
                              bool ends_batch)
{
    if (status != STATUS_OK) {
        return raise_status(self->state, status);
    }
    batch->is_over = ends_batch;
    Py_RETURN_NONE;
}

PyObject *py_half_complete(struct sender_half_object *self, const struct py_half_complete *given)
{
    struct batch_object *batch = batch_parse(self, given->batch);
    if (batch == NULL) {
        return NULL;
    }
    const struct batch_outcome outcome = {.result = (enum batch_result)given->result,
                                          .error_code = (int32_t)given->error_code,
                                          .base_offset = given->base_offset,
                                          .log_append_time_ms = given->log_append_time_ms};
    enum status status =
        sender_complete(self->core, batch->facts.slot_index, batch->facts.seq, &outcome, &self->wakes);
    return batch_answer(self, batch, status, true);
}

PyObject *py_half_decide(struct sender_half_object *self, const struct py_half_decide *given)
{
    struct batch_object *batch = batch_parse(self, given->batch);
    if (batch == NULL) {
        return NULL;
    }
    const struct batch_outcome outcome = {.result = (enum batch_result)given->result,
                                          .error_code = (int32_t)given->error_code,
                                          .base_offset = -1,
                                          .log_append_time_ms = -1};
    enum status status = sender_decide(self->core, batch->facts.slot_index, batch->facts.seq, &outcome);
    return batch_answer(self, batch, status, false);
}

PyObject *py_half_complete_part(struct sender_half_object *self, const struct py_half_complete_part *given)
{
    struct batch_object *batch = batch_parse(self, given->batch);
    if (batch == NULL) {
        return NULL;
    }
    const struct batch_outcome outcome = {.result = (enum batch_result)given->result,
                                          .error_code = (int32_t)given->error_code,
                                          .base_offset = given->base_offset,
                                          .log_append_time_ms = given->log_append_time_ms};
    uint32_t record_count = (uint32_t)given->record_count;
    enum status status = sender_complete_part(self->core, batch->facts.slot_index, batch->facts.seq, record_count,
                                              &outcome, &self->wakes);
    batch->facts.acked_record_count += status == STATUS_OK ? record_count : 0;
    return batch_answer(self, batch, status, batch->facts.acked_record_count >= batch->facts.record_count);
}

/* ---- many that have succeeded ---- */

/* The arguments of complete_many: four sequences of the same length. */
struct many {
    PyObject *columns[4]; /* batches, record counts, base offsets, log append times; copied to tuples */
    Py_ssize_t count;
    struct batch_completion *completions;
    struct batch_object **batches; /* the batch of each completion */
    uint32_t completion_count;
    PyObject *left; /* the places of batches that are not ordinary */
};

static bool many_begin(struct many *many, const struct py_half_complete_many *given)
{
    PyObject *const sequences[4] = {given->batches, given->record_counts, given->base_offsets,
                                    given->log_append_times_ms};
    for (int i = 0; i < 4; i++) {
        many->columns[i] = PySequence_Tuple(sequences[i]);
        if (many->columns[i] == NULL) {
            return false;
        }
        if (PyTuple_GET_SIZE(many->columns[i]) != PyTuple_GET_SIZE(many->columns[0])) {
            PyErr_SetString(PyExc_ValueError, "complete_many() takes four sequences of one length");
            return false;
        }
    }
    many->count = PyTuple_GET_SIZE(many->columns[0]);
    many->completions = PyMem_Malloc(((size_t)many->count + 1) * sizeof *many->completions);
    many->batches = PyMem_Malloc(((size_t)many->count + 1) * sizeof *many->batches);
    many->left = PyList_New(0);
    if (many->completions == NULL || many->batches == NULL) {
        PyErr_NoMemory();
        return false;
    }
    return many->left != NULL;
}

static void many_end(struct many *many)
{
    for (int i = 0; i < 4; i++) {
        Py_XDECREF(many->columns[i]);
    }
    PyMem_Free(many->completions);
    PyMem_Free(many->batches);
    Py_XDECREF(many->left);
}

/* Returns true if the batch is in flight, and has no result, was not split, and has no exported buffer. */
static bool batch_is_ordinary(const struct sender_half_object *self, const struct batch_object *batch,
                              int64_t record_count)
{
    return load_acquire_u32(&batch->export_count) == 0 && batch->facts.acked_record_count == 0 && /* V6 */
           record_count == batch->facts.record_count && !self->core->notes[batch->facts.slot_index].is_ended;
}

static bool many_skip(struct many *many, Py_ssize_t place)
{
    return list_put(many->left, PyLong_FromSsize_t(place));
}

static bool many_take(struct sender_half_object *self, struct many *many, Py_ssize_t place)
{
    static const struct integer_range count_range = {"record_count", 1, BATCH_RECORD_COUNT_MAX};
    static const struct integer_range offset_range = {"base_offset", -1, INT64_MAX};
    static const struct integer_range time_range = {"log_append_time_ms", -1, INT64_MAX};
    struct batch_object *batch = (struct batch_object *)PyTuple_GET_ITEM(many->columns[0], place);
    struct batch_completion *completion = &many->completions[many->completion_count];
    int64_t record_count;
    if (!Py_IS_TYPE(batch, self->state->batch_type) || batch->half != self ||
        !batch_object_is_current(batch)) {
        PyErr_Clear(); /* complete() will raise the error */
        return many_skip(many, place);
    }
    *completion = (struct batch_completion){.seq = batch->facts.seq, .slot_index = batch->facts.slot_index};
    completion->outcome.result = RESULT_SUCCEEDED;
    if (!integer_parse(self->state, PyTuple_GET_ITEM(many->columns[1], place), &count_range, &record_count) ||
        !integer_parse(self->state, PyTuple_GET_ITEM(many->columns[2], place), &offset_range,
                       &completion->outcome.base_offset) ||
        !integer_parse(self->state, PyTuple_GET_ITEM(many->columns[3], place), &time_range,
                       &completion->outcome.log_append_time_ms)) {
        return false;
    }
    if (!batch_is_ordinary(self, batch, record_count)) {
        return many_skip(many, place);
    }
    many->batches[many->completion_count++] = batch;
    return true;
}

/* Checks all batches before it completes the first one. */
static PyObject *many_complete(struct sender_half_object *self, struct many *many)
{
    for (Py_ssize_t i = 0; i < many->count; i++) {
        if (!many_take(self, many, i)) {
            return NULL;
        }
    }
    (void)sender_complete_many(self->core, many->completions, many->completion_count, &self->wakes);
    for (uint32_t i = 0; i < many->completion_count; i++) {
        many->batches[i]->is_over = true;
    }
    return Py_NewRef(many->left);
}

PyObject *py_half_complete_many(struct sender_half_object *self, const struct py_half_complete_many *given)
{
    struct many many = {0};
    PyObject *result = many_begin(&many, given) ? many_complete(self, &many) : NULL;
    many_end(&many);
    return result;
}

PyObject *py_half_requeue(struct sender_half_object *self, const struct py_half_requeue *given)
{
    struct batch_object *batch = batch_parse(self, given->batch);
    if (batch == NULL) {
        return NULL;
    }
    enum status status = sender_requeue(self->core, batch->facts.slot_index, batch->facts.seq,
                                        (uint64_t)given->retry_at_ns, &self->wakes);
    return batch_answer(self, batch, status, true);
}

PyObject *py_half_spill(struct sender_half_object *self, const struct py_half_spill *given)
{
    struct batch_object *batch = batch_parse(self, given->batch);
    if (batch == NULL) {
        return NULL;
    }
    enum status status = sender_spill(self->core, batch->facts.slot_index, batch->facts.seq, &self->wakes);
    return batch_answer(self, batch, status, true);
}

PyObject *py_half_spill_in_flight(struct sender_half_object *self, const struct py_half_spill_in_flight *given)
{
    struct batch_object *batch = batch_parse_in_flight(self, given->batch);
    if (batch == NULL) {
        return NULL;
    }
    enum status status = sender_spill_in_flight(self->core, batch->facts.slot_index, batch->facts.seq);
    return batch_answer(self, batch, status, false);
}

PyObject *py_half_quarantine(struct sender_half_object *self, const struct py_half_quarantine *given)
{
    struct batch_object *batch = batch_parse(self, given->batch);
    if (batch == NULL) {
        return NULL;
    }
    enum status status = sender_quarantine(self->core, batch->facts.slot_index, batch->facts.seq);
    return batch_answer(self, batch, status, true);
}

/* ---- ending many ---- */

PyObject *py_half_expire(struct sender_half_object *self, const struct py_half_expire *given)
{
    uint64_t next_expiry_ns;
    uint32_t expired = sender_expire(self->core, half_now_or(self, given->now_ns), (uint64_t)given->delivery_timeout_ns,
                                     &next_expiry_ns, &self->wakes);
    return Py_BuildValue("(IN)", expired, ns_or_none(next_expiry_ns));
}

PyObject *py_half_next_expiry_ns(struct sender_half_object *self, const struct py_half_next_expiry_ns *given)
{
    return ns_or_none(
        sender_next_expiry_ns(self->core, half_now_or(self, given->now_ns), (uint64_t)given->delivery_timeout_ns));
}

PyObject *py_half_abort(struct sender_half_object *self, const struct py_half_abort *given)
{
    return PyLong_FromUnsignedLong(sender_abort(self->core, given->is_in_flight_included, &self->wakes));
}

PyObject *py_half_oldest_created_ns(struct sender_half_object *self)
{
    return ns_or_none(self->core->oldest_created_ns);
}

/* Returns {partition index: count} without zero counts. */
PyObject *py_half_take_expired(struct sender_half_object *self)
{
    struct sender_half *core = self->core;
    PyObject *counts = PyDict_New();
    for (uint32_t index = 0; counts != NULL && index < core->arena->geometry.partition_count; index++) {
        uint64_t count = sender_take_expired(core, index);
        PyObject *key = count == 0 ? NULL : PyLong_FromUnsignedLong(index);
        PyObject *value = key == NULL ? NULL : PyLong_FromUnsignedLongLong(count);
        if (count != 0 && (value == NULL || PyDict_SetItem(counts, key, value) < 0)) {
            Py_CLEAR(counts);
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return counts;
}
