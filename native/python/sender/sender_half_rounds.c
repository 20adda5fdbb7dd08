/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf, what happens in a sender's rounds: ready, drain, complete and what belongs to them.
 */
#include <string.h>

#include "python/common/errors.h"
#include "python/sender/batch_type.h"

static struct sender_half_object *half_of(PyObject *self)
{
    return (struct sender_half_object *)self;
}

/* ---- looking after the arena ---- */

PyObject *half_statistics(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    struct sender_statistics statistics;
    (void)unused;
    if (!half_begin(self)) {
        return NULL;
    }
    sender_statistics_read(self->core, &statistics);
    PyObject *result = Py_BuildValue("{s:I,s:I,s:I,s:I}", "queued_count", statistics.queued_count, "in_flight_count",
                                     statistics.in_flight_count, "deferred_count", statistics.deferred_count,
                                     "active_partition_count", statistics.active_partition_count);
    return half_end(self, result);
}

PyObject *half_show_life(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    if (!half_begin(self)) {
        return NULL;
    }
    sender_renew_heartbeat(self->core);
    return half_end(self, Py_NewRef(Py_None));
}

PyObject *half_maintain(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    if (!half_begin(self)) {
        return NULL;
    }
    sender_maintain(self->core, &self->wakes);
    return half_end(self, Py_NewRef(Py_None));
}

/* ---- ready ---- */

/* `now_ns` of a call; NOW: the arena's clock. */
uint64_t half_now_or(const struct sender_half_object *self, int64_t now_ns)
{
    return now_ns == NOW ? arena_now_ns(self->arena->core) : (uint64_t)now_ns;
}

static PyObject *indices_to_list(const uint32_t *indices, uint32_t count)
{
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; i < count && list != NULL; i++) {
        PyObject *index = PyLong_FromUnsignedLong(indices[i]);
        if (index == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, index);
        }
    }
    return list;
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
    PyObject *result = Py_BuildValue("(NN)", indices_to_list(partitions, count), ns_or_none(next_check_ns));
    PyMem_Free(partitions);
    return result;
}

struct ready_arguments {
    int64_t linger_ns;
    int64_t now_ns;
    int64_t in_flight_max;
    bool is_everything_ready;
    bool takes_along;
};

PyObject *half_ready(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "ready",
                      .names = {"linger_ns", "is_everything_ready", "now_ns", "in_flight_max", "takes_along"},
                      .required_count = 1,
                      .count = 5},
        .arguments = {INTEGER_ARGUMENT(struct ready_arguments, linger_ns, 0, INT64_MAX),
                      FLAG_ARGUMENT(struct ready_arguments, is_everything_ready),
                      INTEGER_ARGUMENT(struct ready_arguments, now_ns, 0, INT64_MAX),
                      INTEGER_ARGUMENT(struct ready_arguments, in_flight_max, 1, UINT32_MAX),
                      FLAG_ARGUMENT(struct ready_arguments, takes_along)}};
    struct sender_half_object *self = half_of(object);
    struct ready_arguments given = {.now_ns = NOW};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    const struct ready_options options = {.now_ns = half_now_or(self, given.now_ns),
                                          .linger_ns = (uint64_t)given.linger_ns,
                                          .in_flight_max = (uint32_t)given.in_flight_max,
                                          .is_everything_ready = given.is_everything_ready,
                                          .takes_along = given.takes_along};
    return half_end(self, ready_list(self, &options));
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

/* A batch without an object of its own could never be completed: it goes back. */
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

struct drain_arguments {
    PyObject *partitions;
    int64_t size_max;
    int64_t in_flight_max;
    int64_t now_ns;
};

PyObject *half_drain(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "drain",
                      .names = {"partitions", "size_max", "in_flight_max", "now_ns"},
                      .required_count = 2,
                      .count = 4},
        .arguments = {OBJECT_ARGUMENT(struct drain_arguments, partitions),
                      INTEGER_ARGUMENT(struct drain_arguments, size_max, 1, UINT32_MAX),
                      INTEGER_ARGUMENT(struct drain_arguments, in_flight_max, 1, UINT32_MAX),
                      INTEGER_ARGUMENT(struct drain_arguments, now_ns, 0, INT64_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct drain_arguments given = {.in_flight_max = 5, .now_ns = NOW};
    if (!arguments_parse(self->state, &table, args, count, names, &given)) {
        return NULL;
    }
    PyObject *partitions = PySequence_Tuple(given.partitions);
    PyObject *result = NULL;
    if (partitions != NULL && half_begin(self)) {
        const struct drain_options options = {.now_ns = half_now_or(self, given.now_ns),
                                              .size_max = (uint32_t)given.size_max,
                                              .in_flight_max = (uint32_t)given.in_flight_max};
        result = half_end(self, drain_partitions(self, &options, partitions));
    }
    Py_XDECREF(partitions);
    return result;
}

/* ---- dead letters ---- */

static PyObject *letters_to_list(struct sender_half_object *self, const struct drained_batch *batches,
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

PyObject *half_dead_letters(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    PyObject *result = NULL;
    (void)unused;
    if (!half_begin(self)) {
        return NULL;
    }
    uint32_t batches_max = self->core->arena->geometry.slot_count;
    struct drained_batch *batches = PyMem_Malloc(batches_max * sizeof *batches);
    struct batch_outcome *outcomes = PyMem_Malloc(batches_max * sizeof *outcomes);
    if (batches == NULL || outcomes == NULL) {
        PyErr_NoMemory();
    } else {
        uint32_t count = sender_dead_letters(self->core, batches, outcomes, batches_max);
        result = letters_to_list(self, batches, outcomes, count);
    }
    PyMem_Free(batches);
    PyMem_Free(outcomes);
    return half_end(self, result);
}

/* ---- the end of a batch ---- */

/* One of ours, and not over. */
static struct batch_object *batch_parse_lent(struct sender_half_object *self, PyObject *object)
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

/* The same, and nobody reads its bytes any more. */
static struct batch_object *batch_parse(struct sender_half_object *self, PyObject *object)
{
    struct batch_object *batch = batch_parse_lent(self, object);
    uint32_t export_count = batch == NULL ? 0 : load_acquire_u32(&batch->export_count); /* V6 */
    if (export_count > 0) {
        PyErr_Format(self->state->batch_in_use, "buffers of the batch are still in use, %u of them: release its "
                     "memoryviews before it is completed or requeued", export_count);
        return NULL;
    }
    return batch;
}

/* The answer of a call on a batch. On success the batch is over when `ends_batch`. */
static PyObject *batch_answer(struct sender_half_object *self, struct batch_object *batch, enum status status,
                              bool ends_batch)
{
    if (status != STATUS_OK) {
        return half_end(self, raise_status(self->state, status));
    }
    batch->is_over = ends_batch;
    return half_end(self, Py_NewRef(Py_None));
}

struct outcome_arguments {
    PyObject *batch;
    int64_t record_count;
    int64_t result;
    int64_t base_offset;
    int64_t log_append_time_ms;
    int64_t error_code;
};

static const struct outcome_arguments outcome_defaults = {.base_offset = -1, .log_append_time_ms = -1};

#define OUTCOME_FIELD(field, least, most) INTEGER_ARGUMENT(struct outcome_arguments, field, least, most)
#define OUTCOME_BATCH OBJECT_ARGUMENT(struct outcome_arguments, batch)
#define OUTCOME_RESULT OUTCOME_FIELD(result, RESULT_SUCCEEDED, RESULT_COUNT - 1)
#define OUTCOME_OFFSET OUTCOME_FIELD(base_offset, -1, INT64_MAX)
#define OUTCOME_TIME OUTCOME_FIELD(log_append_time_ms, -1, INT64_MAX)
#define OUTCOME_CODE OUTCOME_FIELD(error_code, INT32_MIN, INT32_MAX)

/* The batch of a call that ends one, and its outcome; the call has begun. NULL with an exception set. */
static struct batch_object *outcome_begin(struct sender_half_object *self, const struct argument_table *table,
                                          PyObject *const *args, Py_ssize_t count, PyObject *names,
                                          struct outcome_arguments *given)
{
    *given = outcome_defaults;
    if (!arguments_parse(self->state, table, args, count, names, given)) {
        return NULL;
    }
    struct batch_object *batch = batch_parse(self, given->batch);
    return batch == NULL || !half_begin(self) ? NULL : batch;
}

static struct batch_outcome outcome_of(const struct outcome_arguments *given)
{
    return (struct batch_outcome){.result = (enum batch_result)given->result,
                                  .error_code = (int32_t)given->error_code,
                                  .base_offset = given->base_offset,
                                  .log_append_time_ms = given->log_append_time_ms};
}

PyObject *half_complete(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "complete",
                      .names = {"batch", "result", "base_offset", "log_append_time_ms", "error_code"},
                      .required_count = 2,
                      .count = 5},
        .arguments = {OUTCOME_BATCH, OUTCOME_RESULT, OUTCOME_OFFSET, OUTCOME_TIME, OUTCOME_CODE}};
    struct sender_half_object *self = half_of(object);
    struct outcome_arguments given;
    struct batch_object *batch = outcome_begin(self, &table, args, count, names, &given);
    if (batch == NULL) {
        return NULL;
    }
    const struct batch_outcome outcome = outcome_of(&given);
    enum status status =
        sender_complete(self->core, batch->facts.slot_index, batch->facts.seq, &outcome, &self->wakes);
    return batch_answer(self, batch, status, true);
}

PyObject *half_decide(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {
            .function = "decide", .names = {"batch", "result", "error_code"}, .required_count = 2, .count = 3},
        .arguments = {OUTCOME_BATCH, OUTCOME_RESULT, OUTCOME_CODE}};
    struct sender_half_object *self = half_of(object);
    struct outcome_arguments given;
    struct batch_object *batch = outcome_begin(self, &table, args, count, names, &given);
    if (batch == NULL) {
        return NULL;
    }
    const struct batch_outcome outcome = outcome_of(&given);
    enum status status = sender_decide(self->core, batch->facts.slot_index, batch->facts.seq, &outcome);
    return batch_answer(self, batch, status, false);
}

PyObject *half_complete_part(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "complete_part",
                      .names = {"batch", "record_count", "result", "base_offset", "log_append_time_ms", "error_code"},
                      .required_count = 3,
                      .count = 6},
        .arguments = {OUTCOME_BATCH, OUTCOME_FIELD(record_count, 1, BATCH_RECORD_COUNT_MAX), OUTCOME_RESULT,
                      OUTCOME_OFFSET, OUTCOME_TIME, OUTCOME_CODE}};
    struct sender_half_object *self = half_of(object);
    struct outcome_arguments given;
    struct batch_object *batch = outcome_begin(self, &table, args, count, names, &given);
    if (batch == NULL) {
        return NULL;
    }
    const struct batch_outcome outcome = outcome_of(&given);
    uint32_t record_count = (uint32_t)given.record_count;
    enum status status = sender_complete_part(self->core, batch->facts.slot_index, batch->facts.seq, record_count,
                                              &outcome, &self->wakes);
    batch->facts.acked_record_count += status == STATUS_OK ? record_count : 0;
    return batch_answer(self, batch, status, batch->facts.acked_record_count >= batch->facts.record_count);
}

/* ---- many that have succeeded ---- */

/* Four sequences of one length, one call's worth of work. */
struct many {
    PyObject *columns[4]; /* batches, record counts, base offsets, log append times; as tuples of our own */
    Py_ssize_t count;
    struct batch_completion *completions;
    struct batch_object **batches; /* of the completions */
    uint32_t completion_count;
    PyObject *left; /* places of those that are no ordinary ones */
};

static bool many_begin(struct many *many, PyObject *const *bound)
{
    for (int i = 0; i < 4; i++) {
        many->columns[i] = PySequence_Tuple(bound[i]);
        if (many->columns[i] == NULL) {
            return false;
        }
        if (PyTuple_GET_SIZE(many->columns[i]) != PyTuple_GET_SIZE(many->columns[0])) {
            PyErr_SetString(PyExc_ValueError, "complete_many takes four sequences of one length");
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

/* Whole, in flight, without a result so far, and nobody reads its bytes any more. */
static bool batch_is_ordinary(const struct sender_half_object *self, const struct batch_object *batch,
                              int64_t record_count)
{
    return load_acquire_u32(&batch->export_count) == 0 && batch->facts.acked_record_count == 0 && /* V6 */
           record_count == batch->facts.record_count && !self->core->notes[batch->facts.slot_index].is_ended;
}

static bool many_leave(struct many *many, Py_ssize_t place)
{
    PyObject *number = PyLong_FromSsize_t(place);
    bool is_left = number != NULL && PyList_Append(many->left, number) == 0;
    Py_XDECREF(number);
    return is_left;
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
        PyErr_Clear(); /* to be said by whoever completes it alone */
        return many_leave(many, place);
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
        return many_leave(many, place);
    }
    many->batches[many->completion_count++] = batch;
    return true;
}

/* Everything is looked at before anything is completed. */
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

PyObject *half_complete_many(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "complete_many",
        .names = {"batches", "record_counts", "base_offsets", "log_append_times_ms"},
        .required_count = 4,
        .count = 4};
    struct sender_half_object *self = half_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct many many = {0};
    PyObject *result = NULL;
    if (!arguments_bind(&signature, args, count, names, bound)) {
        return NULL;
    }
    if (many_begin(&many, bound) && half_begin(self)) {
        result = half_end(self, many_complete(self, &many));
    }
    many_end(&many);
    return result;
}

struct requeue_arguments {
    PyObject *batch;
    int64_t retry_at_ns;
};

PyObject *half_requeue(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "requeue", .names = {"batch", "retry_at_ns"}, .required_count = 1, .count = 2},
        .arguments = {OBJECT_ARGUMENT(struct requeue_arguments, batch),
                      INTEGER_ARGUMENT(struct requeue_arguments, retry_at_ns, 0, INT64_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct requeue_arguments given = {0};
    if (!arguments_parse(self->state, &table, args, count, names, &given)) {
        return NULL;
    }
    struct batch_object *batch = batch_parse(self, given.batch);
    if (batch == NULL || !half_begin(self)) {
        return NULL;
    }
    enum status status = sender_requeue(self->core, batch->facts.slot_index, batch->facts.seq,
                                        (uint64_t)given.retry_at_ns, &self->wakes);
    return batch_answer(self, batch, status, true);
}

PyObject *half_spill(PyObject *object, PyObject *given)
{
    struct sender_half_object *self = half_of(object);
    struct batch_object *batch = batch_parse(self, given);
    if (batch == NULL || !half_begin(self)) {
        return NULL;
    }
    enum status status = sender_spill(self->core, batch->facts.slot_index, batch->facts.seq, &self->wakes);
    return batch_answer(self, batch, status, true);
}

PyObject *half_spill_in_flight(PyObject *object, PyObject *given)
{
    struct sender_half_object *self = half_of(object);
    struct batch_object *batch = batch_parse_lent(self, given);
    if (batch == NULL || !half_begin(self)) {
        return NULL;
    }
    enum status status = sender_spill_in_flight(self->core, batch->facts.slot_index, batch->facts.seq);
    return batch_answer(self, batch, status, false);
}

PyObject *half_quarantine(PyObject *object, PyObject *given)
{
    struct sender_half_object *self = half_of(object);
    struct batch_object *batch = batch_parse(self, given);
    if (batch == NULL || !half_begin(self)) {
        return NULL;
    }
    enum status status = sender_quarantine(self->core, batch->facts.slot_index, batch->facts.seq);
    return batch_answer(self, batch, status, true);
}

/* ---- ending many ---- */

struct expire_arguments {
    int64_t delivery_timeout_ns;
    int64_t now_ns;
};

PyObject *half_expire(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {
            .function = "expire", .names = {"delivery_timeout_ns", "now_ns"}, .required_count = 1, .count = 2},
        .arguments = {INTEGER_ARGUMENT(struct expire_arguments, delivery_timeout_ns, 0, INT64_MAX),
                      INTEGER_ARGUMENT(struct expire_arguments, now_ns, 0, INT64_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct expire_arguments given = {.now_ns = NOW};
    uint64_t next_expiry_ns;
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    uint32_t expired = sender_expire(self->core, half_now_or(self, given.now_ns), (uint64_t)given.delivery_timeout_ns,
                                     &next_expiry_ns, &self->wakes);
    return half_end(self, Py_BuildValue("(IN)", expired, ns_or_none(next_expiry_ns)));
}

struct abort_arguments {
    bool is_in_flight_included;
};

PyObject *half_abort(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "abort", .names = {"is_in_flight_included"}, .required_count = 0, .count = 1},
        .arguments = {FLAG_ARGUMENT(struct abort_arguments, is_in_flight_included)}};
    struct sender_half_object *self = half_of(object);
    struct abort_arguments given = {0};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    uint32_t aborted = sender_abort(self->core, given.is_in_flight_included, &self->wakes);
    return half_end(self, PyLong_FromUnsignedLong(aborted));
}

PyObject *half_get_oldest_created_ns(PyObject *object, void *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    return half_begin(self) ? half_end(self, ns_or_none(self->core->oldest_created_ns)) : NULL;
}

/* {partition index: count} of the partitions that have some. */
static PyObject *expired_taken(struct sender_half *core)
{
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

PyObject *half_take_expired(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    return half_begin(self) ? half_end(self, expired_taken(self->core)) : NULL;
}
