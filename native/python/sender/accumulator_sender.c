/* SPDX-License-Identifier: Apache-2.0
 *
 * Accumulator, the sender's half: ready, drain, complete and what belongs to them.
 *
 * One thread at a time: the core may let go of the GIL while it waits for the pool's lock, and its private queues are
 * half changed then. A second thread that comes in is refused. Everything here returns with the waiters it served
 * handed to `wake`.
 *
 * A Batch that nobody refers to any more before it was completed cannot be put back at that moment (its last reference
 * may go on any thread, in the middle of any call): it is noted, and requeued by the next call of the sender.
 */
#include <string.h>

#include "arena/delivery_clock.h"
#include "python/common/accumulator_call.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "sender/sender_half.h"

static struct accumulator_object *accumulator_of(PyObject *self)
{
    return (struct accumulator_object *)self;
}

/* The child of a fork inherits the queues, not the role. */
static bool has_role(const struct accumulator_object *self)
{
    const struct accumulator *core = self->core;
    return core != NULL && core->sender != NULL && core->owner != 0 && core->owner == core->arena->owner;
}

static void abandoned_requeue(struct accumulator_object *self)
{
    while (self->abandoned_count > 0) {
        const struct abandoned_batch *batch = &self->abandoned[--self->abandoned_count];
        if (accumulator_requeue(self->core, batch->slot_index, batch->seq, 0) != STATUS_OK) {
            continue; /* it ended by other means */
        }
    }
}

bool accumulator_sender_begin(struct accumulator_object *self)
{
    if (!accumulator_object_is_open(self)) {
        return false;
    }
    if (!has_role(self)) {
        PyErr_SetString(self->state->not_sender, "this accumulator is not the sender: call become_sender() first");
        return false;
    }
    if (self->is_in_sender_call) {
        PyErr_SetString(self->state->arena_in_use, "another thread is in a call of the sender: use one thread for it");
        return false;
    }
    if (!accumulator_call_begin(self)) {
        return false;
    }
    self->is_in_sender_call = true;
    abandoned_requeue(self);
    return true;
}

PyObject *accumulator_sender_end(struct accumulator_object *self, PyObject *result)
{
    self->is_in_sender_call = false;
    if (result != NULL && !accumulator_object_wake(self)) {
        Py_CLEAR(result);
    }
    accumulator_call_end(self);
    return result;
}

/* ---- the role ---- */

PyObject *accumulator_sender_is_sender(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(has_role(accumulator_of(object)));
}

static bool abandoned_allocate(struct accumulator_object *self)
{
    if (self->abandoned == NULL) {
        self->abandoned = PyMem_Calloc(self->arena->core->geometry.slot_count, sizeof *self->abandoned);
    }
    self->abandoned_count = 0;
    return self->abandoned != NULL;
}

static PyObject *role_take(struct accumulator_object *self)
{
    struct error error;
    accumulator_drop_sender(self->core); /* what a fork left of the parent's queues */
    enum status status = accumulator_become_sender(self->core, &error);
    if (status == STATUS_BUSY) {
        PyErr_SetString(self->state->sender_busy, error.message);
        return NULL;
    }
    if (status != STATUS_OK) {
        return raise_error(self->state, &error);
    }
    self->stint++;
    return Py_NewRef(Py_None);
}

PyObject *accumulator_sender_become(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    (void)unused;
    if (has_role(self)) {
        Py_RETURN_NONE;
    }
    if (!accumulator_call_begin(self)) {
        return NULL;
    }
    self->is_in_sender_call = true;
    PyObject *result = abandoned_allocate(self) ? role_take(self) : PyErr_NoMemory();
    return accumulator_sender_end(self, result);
}

static bool role_may_be_left(const struct accumulator_object *self)
{
    if (self->export_count > 0) {
        PyErr_Format(self->state->batch_in_use, "%u buffers of drained batches are still in use: release them before "
                     "the sender role is left", self->export_count);
        return false;
    }
    if (self->is_in_sender_call) {
        PyErr_SetString(self->state->arena_in_use, "another thread is in a call of the sender: join it first");
        return false;
    }
    return true;
}

bool accumulator_sender_drop(struct accumulator_object *self)
{
    if (!has_role(self)) {
        return true;
    }
    if (!role_may_be_left(self)) {
        return false;
    }
    accumulator_drop_sender(self->core);
    return true;
}

PyObject *accumulator_sender_resign(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    (void)unused;
    if (!has_role(self)) {
        Py_RETURN_NONE;
    }
    if (!role_may_be_left(self)) {
        return NULL;
    }
    accumulator_resign_sender(self->core);
    Py_RETURN_NONE;
}

PyObject *accumulator_sender_show_life(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    (void)unused;
    if (!accumulator_sender_begin(self)) {
        return NULL;
    }
    accumulator_show_life(self->core);
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

PyObject *accumulator_sender_statistics_dict(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    struct sender_statistics statistics;
    (void)unused;
    if (!accumulator_sender_begin(self)) {
        return NULL;
    }
    accumulator_sender_statistics(self->core, &statistics);
    PyObject *result = Py_BuildValue("{s:I,s:I,s:I,s:I}", "queued_count", statistics.queued_count, "in_flight_count",
                                     statistics.in_flight_count, "deferred_count", statistics.deferred_count,
                                     "active_partition_count", statistics.active_partition_count);
    return accumulator_sender_end(self, result);
}

PyObject *accumulator_sender_maintain(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    (void)unused;
    if (!accumulator_sender_begin(self)) {
        return NULL;
    }
    accumulator_maintain(self->core, &self->core->wakes);
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

/* ---- ready ---- */

static const struct integer_range now_range = {"now_ns", 0, INT64_MAX};

/* Left out: the arena's clock. */
static bool now_parse(const struct accumulator_object *self, PyObject *object, uint64_t *now_ns)
{
    int64_t value = 0;
    if (!integer_parse_optional(self->state, object, &now_range, &value)) {
        return false;
    }
    *now_ns = object == NULL || object == Py_None ? arena_now_ns(self->core->arena) : (uint64_t)value;
    return true;
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

static PyObject *ready_list(struct accumulator_object *self, const struct ready_options *options)
{
    uint32_t partitions_max = registry_partition_count(self->core->arena);
    uint32_t *partitions = PyMem_Malloc((partitions_max + 1) * sizeof *partitions);
    uint64_t next_check_ns;
    if (partitions == NULL) {
        return PyErr_NoMemory();
    }
    uint32_t count = accumulator_ready(self->core, options, partitions, partitions_max, &next_check_ns);
    PyObject *result = Py_BuildValue("(NN)", indices_to_list(partitions, count), ns_or_none(next_check_ns));
    PyMem_Free(partitions);
    return result;
}

PyObject *accumulator_sender_ready(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {.function = "ready",
                                               .names = {"linger_ns", "is_everything_ready", "now_ns",
                                                         "in_flight_max", "takes_along"},
                                               .required_count = 1,
                                               .count = 5};
    static const struct integer_range in_flight_range = {"in_flight_max", 1, UINT32_MAX};
    static const struct integer_range linger_range = {"linger_ns", 0, INT64_MAX};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct ready_options options = {0};
    int64_t linger_ns;
    int64_t in_flight_max = 0;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !integer_parse(self->state, bound[0], &linger_range, &linger_ns) ||
        !integer_parse_optional(self->state, bound[3], &in_flight_range, &in_flight_max) ||
        !flag_parse_optional(bound[1], &options.is_everything_ready) ||
        !flag_parse_optional(bound[4], &options.takes_along) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    options.linger_ns = (uint64_t)linger_ns;
    options.in_flight_max = (uint32_t)in_flight_max;
    bool is_parsed = now_parse(self, bound[2], &options.now_ns);
    return accumulator_sender_end(self, is_parsed ? ready_list(self, &options) : NULL);
}

/* ---- drain ---- */

static bool partitions_parse(const struct accumulator_object *self, PyObject *tuple, uint32_t *partitions)
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
static PyObject *batches_to_list(struct accumulator_object *self, const struct drained_batch *batches, uint32_t count)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < count; i++) {
        PyObject *batch = list == NULL ? NULL : batch_object_new(self, &batches[i]);
        if (batch == NULL) {
            Py_CLEAR(list);
            enum status status = accumulator_requeue(self->core, batches[i].slot_index, batches[i].seq, 0);
            CHECK(status == STATUS_OK);
            (void)status;
        } else if (PyList_Append(list, batch) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(batch);
    }
    return list;
}

static PyObject *drain_partitions(struct accumulator_object *self, const struct drain_options *options,
                                  PyObject *tuple)
{
    size_t count = (size_t)PyTuple_GET_SIZE(tuple);
    uint32_t *partitions = PyMem_Malloc((count + 1) * sizeof *partitions);
    struct drained_batch *batches = PyMem_Malloc((count + 1) * sizeof *batches);
    PyObject *result = NULL;
    if (partitions == NULL || batches == NULL || count > UINT32_MAX) {
        PyErr_NoMemory();
    } else if (partitions_parse(self, tuple, partitions)) {
        uint32_t seen;
        uint32_t drained =
            accumulator_drain(self->core, options, partitions, (uint32_t)count, batches, &seen);
        result = Py_BuildValue("(NI)", batches_to_list(self, batches, drained), seen);
    }
    PyMem_Free(partitions);
    PyMem_Free(batches);
    return result;
}

static bool drain_options_parse(const struct accumulator_object *self, PyObject *const *bound,
                                struct drain_options *options)
{
    static const struct integer_range size_range = {"size_max", 1, UINT32_MAX};
    static const struct integer_range in_flight_range = {"in_flight_max", 1, UINT32_MAX};
    int64_t size_max;
    int64_t in_flight_max = 5;
    if (!integer_parse(self->state, bound[0], &size_range, &size_max) ||
        !integer_parse_optional(self->state, bound[1], &in_flight_range, &in_flight_max) ||
        !now_parse(self, bound[2], &options->now_ns)) {
        return false;
    }
    options->size_max = (uint32_t)size_max;
    options->in_flight_max = (uint32_t)in_flight_max;
    return true;
}

PyObject *accumulator_sender_drain(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {.function = "drain",
                                               .names = {"partitions", "size_max", "in_flight_max", "now_ns"},
                                               .required_count = 2,
                                               .count = 4};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct drain_options options;
    PyObject *partitions;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        (partitions = PySequence_Tuple(bound[0])) == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    if (accumulator_sender_begin(self)) {
        bool is_parsed = drain_options_parse(self, &bound[1], &options);
        result = accumulator_sender_end(self, is_parsed ? drain_partitions(self, &options, partitions) : NULL);
    }
    Py_DECREF(partitions);
    return result;
}

/* ---- dead letters ---- */

PyObject *accumulator_sender_want_dead_letters(PyObject *object, PyObject *is_wanted)
{
    struct accumulator_object *self = accumulator_of(object);
    bool value = false;
    if (!flag_parse_optional(is_wanted, &value) || !accumulator_object_is_open(self)) {
        return NULL;
    }
    if (has_role(self)) {
        PyErr_SetString(self->state->arena_in_use, "this accumulator is the sender already: say it before that");
        return NULL;
    }
    self->core->wants_dead_letters = value;
    Py_RETURN_NONE;
}

PyObject *accumulator_sender_set_sink_name(PyObject *object, PyObject *name)
{
    struct accumulator_object *self = accumulator_of(object);
    char *text;
    Py_ssize_t size;
    if (!accumulator_object_is_open(self) || PyBytes_AsStringAndSize(name, &text, &size) < 0) {
        return NULL;
    }
    if (has_role(self)) {
        PyErr_SetString(self->state->arena_in_use, "this accumulator is the sender already: say it before that");
        return NULL;
    }
    if (size >= SINK_NAME_SIZE || memchr(text, '\0', (size_t)size) != NULL) {
        raise_format(self->state, STATUS_INVALID, "the name of a sink has at most %d bytes, and no NUL among them",
                     SINK_NAME_SIZE - 1);
        return NULL;
    }
    memset(self->core->sink_name, 0, sizeof self->core->sink_name);
    memcpy(self->core->sink_name, text, (size_t)size);
    Py_RETURN_NONE;
}

static PyObject *letters_to_list(struct accumulator_object *self, const struct drained_batch *batches,
                                 const struct batch_outcome *outcomes, uint32_t count)
{
    PyObject *list = batches_to_list(self, batches, count);
    for (uint32_t i = 0; i < count && list != NULL; i++) {
        PyObject *letter =
            Py_BuildValue("(Oii)", PyList_GET_ITEM(list, i), (int)outcomes[i].result, (int)outcomes[i].error_code);
        if (letter == NULL || PyList_SetItem(list, i, letter) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *accumulator_sender_dead_letters(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    PyObject *result = NULL;
    (void)unused;
    if (!accumulator_sender_begin(self)) {
        return NULL;
    }
    uint32_t batches_max = self->core->arena->geometry.slot_count;
    struct drained_batch *batches = PyMem_Malloc(batches_max * sizeof *batches);
    struct batch_outcome *outcomes = PyMem_Malloc(batches_max * sizeof *outcomes);
    if (batches == NULL || outcomes == NULL) {
        PyErr_NoMemory();
    } else {
        uint32_t count = accumulator_dead_letters(self->core, batches, outcomes, batches_max);
        result = letters_to_list(self, batches, outcomes, count);
    }
    PyMem_Free(batches);
    PyMem_Free(outcomes);
    return accumulator_sender_end(self, result);
}

/* ---- the end of a batch ---- */

/* One of ours, not over, and nobody reads its bytes any more. */
static struct batch_object *batch_parse(struct accumulator_object *self, PyObject *object)
{
    if (!Py_IS_TYPE(object, self->state->batch_type)) {
        PyErr_Format(PyExc_TypeError, "a Batch is needed, not %.80s", Py_TYPE(object)->tp_name);
        return NULL;
    }
    struct batch_object *batch = (struct batch_object *)object;
    if (batch->accumulator != self) {
        raise_format(self->state, STATUS_INVALID, "the batch was drained by another accumulator");
        return NULL;
    }
    if (!batch_object_is_current(batch)) {
        return NULL;
    }
    if (batch->export_count > 0) {
        PyErr_Format(self->state->batch_in_use, "%u buffers of the batch are still in use: release its memoryviews "
                     "before it is completed or requeued", batch->export_count);
        return NULL;
    }
    return batch;
}

/* What a call on a batch answers; on success the batch is over when `ends_batch`. */
static PyObject *batch_answer(struct accumulator_object *self, struct batch_object *batch, enum status status,
                              bool ends_batch)
{
    if (status != STATUS_OK) {
        return accumulator_sender_end(self, raise_status(self->state, status));
    }
    batch->is_over = ends_batch;
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

struct outcome_arguments {
    PyObject *result;
    PyObject *base_offset;
    PyObject *log_append_time_ms;
    PyObject *error_code;
};

static bool outcome_parse(const struct module_state *state, const struct outcome_arguments *given,
                          struct batch_outcome *outcome)
{
    static const struct integer_range result_range = {"result", RESULT_SUCCEEDED, RESULT_COUNT - 1};
    static const struct integer_range offset_range = {"base_offset", -1, INT64_MAX};
    static const struct integer_range time_range = {"log_append_time_ms", -1, INT64_MAX};
    static const struct integer_range code_range = {"error_code", INT32_MIN, INT32_MAX};
    int64_t result;
    int64_t error_code = 0;
    *outcome = (struct batch_outcome){.base_offset = -1, .log_append_time_ms = -1};
    if (!integer_parse(state, given->result, &result_range, &result) ||
        !integer_parse_optional(state, given->base_offset, &offset_range, &outcome->base_offset) ||
        !integer_parse_optional(state, given->log_append_time_ms, &time_range, &outcome->log_append_time_ms) ||
        !integer_parse_optional(state, given->error_code, &code_range, &error_code)) {
        return false;
    }
    outcome->result = (enum batch_result)result;
    outcome->error_code = (int32_t)error_code;
    return true;
}

PyObject *accumulator_sender_complete(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "complete",
        .names = {"batch", "result", "base_offset", "log_append_time_ms", "error_code"},
        .required_count = 2,
        .count = 5};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct batch_outcome outcome;
    if (!arguments_bind(&signature, args, count, names, bound)) {
        return NULL;
    }
    const struct outcome_arguments given = {bound[1], bound[2], bound[3], bound[4]};
    struct batch_object *batch = batch_parse(self, bound[0]);
    if (batch == NULL || !outcome_parse(self->state, &given, &outcome) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    enum status status = accumulator_complete(self->core, batch->facts.slot_index, batch->facts.seq, &outcome,
                                              &self->core->wakes);
    return batch_answer(self, batch, status, true);
}

PyObject *accumulator_sender_decide(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "decide", .names = {"batch", "result", "error_code"}, .required_count = 2, .count = 3};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct batch_outcome outcome;
    if (!arguments_bind(&signature, args, count, names, bound)) {
        return NULL;
    }
    const struct outcome_arguments given = {.result = bound[1], .error_code = bound[2]};
    struct batch_object *batch = batch_parse(self, bound[0]);
    if (batch == NULL || !outcome_parse(self->state, &given, &outcome) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    enum status status = accumulator_decide(self->core, batch->facts.slot_index, batch->facts.seq, &outcome);
    return batch_answer(self, batch, status, false);
}

PyObject *accumulator_sender_complete_part(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "complete_part",
        .names = {"batch", "record_count", "result", "base_offset", "log_append_time_ms", "error_code"},
        .required_count = 3,
        .count = 6};
    static const struct integer_range count_range = {"record_count", 1, BATCH_RECORD_COUNT_MAX};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct batch_outcome outcome;
    int64_t record_count;
    if (!arguments_bind(&signature, args, count, names, bound)) {
        return NULL;
    }
    const struct outcome_arguments given = {bound[2], bound[3], bound[4], bound[5]};
    struct batch_object *batch = batch_parse(self, bound[0]);
    if (batch == NULL || !integer_parse(self->state, bound[1], &count_range, &record_count) ||
        !outcome_parse(self->state, &given, &outcome) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    enum status status = accumulator_complete_part(self->core, batch->facts.slot_index, batch->facts.seq,
                                                   (uint32_t)record_count, &outcome, &self->core->wakes);
    batch->facts.acked_record_count += status == STATUS_OK ? (uint32_t)record_count : 0;
    return batch_answer(self, batch, status, batch->facts.acked_record_count >= batch->facts.record_count);
}

/* ---- many that have succeeded ---- */

/* Four sequences of one length, one call's worth of work. */
struct many {
    PyObject *columns[4]; /* batches, record counts, base offsets, log append times; as tuples or lists */
    Py_ssize_t count;
    struct batch_completion *completions;
    struct batch_object **batches; /* of the completions */
    uint32_t completion_count;
    PyObject *left; /* places of those that are no ordinary ones */
};

static bool many_begin(struct many *many, PyObject *const *bound)
{
    for (int i = 0; i < 4; i++) {
        many->columns[i] = PySequence_Fast(bound[i], "complete_many takes four sequences");
        if (many->columns[i] == NULL) {
            return false;
        }
        if (PySequence_Fast_GET_SIZE(many->columns[i]) != PySequence_Fast_GET_SIZE(many->columns[0])) {
            PyErr_SetString(PyExc_ValueError, "complete_many takes four sequences of one length");
            return false;
        }
    }
    many->count = PySequence_Fast_GET_SIZE(many->columns[0]);
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
static bool batch_is_ordinary(const struct accumulator_object *self, const struct batch_object *batch,
                              int64_t record_count)
{
    return batch->export_count == 0 && batch->facts.acked_record_count == 0 &&
           record_count == batch->facts.record_count && !self->core->sender->notes[batch->facts.slot_index].is_ended;
}

static bool many_leave(struct many *many, Py_ssize_t place)
{
    PyObject *number = PyLong_FromSsize_t(place);
    bool is_left = number != NULL && PyList_Append(many->left, number) == 0;
    Py_XDECREF(number);
    return is_left;
}

static bool many_take(struct accumulator_object *self, struct many *many, Py_ssize_t place)
{
    static const struct integer_range count_range = {"record_count", 1, BATCH_RECORD_COUNT_MAX};
    static const struct integer_range offset_range = {"base_offset", -1, INT64_MAX};
    static const struct integer_range time_range = {"log_append_time_ms", -1, INT64_MAX};
    struct batch_object *batch = (struct batch_object *)PySequence_Fast_GET_ITEM(many->columns[0], place);
    struct batch_completion *completion = &many->completions[many->completion_count];
    int64_t record_count;
    if (!Py_IS_TYPE(batch, self->state->batch_type) || batch->accumulator != self ||
        !batch_object_is_current(batch)) {
        PyErr_Clear(); /* to be said by whoever completes it alone */
        return many_leave(many, place);
    }
    *completion = (struct batch_completion){.seq = batch->facts.seq, .slot_index = batch->facts.slot_index};
    completion->outcome.result = RESULT_SUCCEEDED;
    if (!integer_parse(self->state, PySequence_Fast_GET_ITEM(many->columns[1], place), &count_range, &record_count) ||
        !integer_parse(self->state, PySequence_Fast_GET_ITEM(many->columns[2], place), &offset_range,
                       &completion->outcome.base_offset) ||
        !integer_parse(self->state, PySequence_Fast_GET_ITEM(many->columns[3], place), &time_range,
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
static PyObject *many_complete(struct accumulator_object *self, struct many *many)
{
    for (Py_ssize_t i = 0; i < many->count; i++) {
        if (!many_take(self, many, i)) {
            return NULL;
        }
    }
    (void)accumulator_complete_many(self->core, many->completions, many->completion_count, &self->core->wakes);
    for (uint32_t i = 0; i < many->completion_count; i++) {
        many->batches[i]->is_over = true;
    }
    return Py_NewRef(many->left);
}

PyObject *accumulator_sender_complete_many(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "complete_many",
        .names = {"batches", "record_counts", "base_offsets", "log_append_times_ms"},
        .required_count = 4,
        .count = 4};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct many many = {0};
    PyObject *result = NULL;
    if (!arguments_bind(&signature, args, count, names, bound)) {
        return NULL;
    }
    if (many_begin(&many, bound) && accumulator_sender_begin(self)) {
        result = accumulator_sender_end(self, many_complete(self, &many));
    }
    many_end(&many);
    return result;
}

PyObject *accumulator_sender_requeue(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "requeue", .names = {"batch", "retry_at_ns"}, .required_count = 1, .count = 2};
    static const struct integer_range retry_range = {"retry_at_ns", 0, INT64_MAX};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t retry_at_ns = 0;
    if (!arguments_bind(&signature, args, count, names, bound)) {
        return NULL;
    }
    struct batch_object *batch = batch_parse(self, bound[0]);
    if (batch == NULL || !integer_parse_optional(self->state, bound[1], &retry_range, &retry_at_ns) ||
        !accumulator_sender_begin(self)) {
        return NULL;
    }
    enum status status =
        accumulator_requeue(self->core, batch->facts.slot_index, batch->facts.seq, (uint64_t)retry_at_ns);
    return batch_answer(self, batch, status, true);
}

PyObject *accumulator_sender_quarantine(PyObject *object, PyObject *given)
{
    struct accumulator_object *self = accumulator_of(object);
    struct batch_object *batch = batch_parse(self, given);
    if (batch == NULL || !accumulator_sender_begin(self)) {
        return NULL;
    }
    enum status status = accumulator_quarantine(self->core, batch->facts.slot_index, batch->facts.seq);
    return batch_answer(self, batch, status, true);
}

/* ---- the delivery clock ---- */

PyObject *accumulator_sender_tell_delivery_timeout(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                                   PyObject *names)
{
    static const struct signature signature = {.function = "tell_delivery_timeout",
                                               .names = {"delivery_timeout_ns", "counts_always"},
                                               .required_count = 1,
                                               .count = 2};
    static const struct integer_range timeout_range = {"delivery_timeout_ns", 0, INT64_MAX};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t timeout_ns;
    bool counts_always = false;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !integer_parse(self->state, bound[0], &timeout_range, &timeout_ns) ||
        !flag_parse_optional(bound[1], &counts_always) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    accumulator_tell_delivery_timeout(self->core, (uint64_t)timeout_ns, counts_always);
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

PyObject *accumulator_sender_run_delivery_clock(PyObject *object, PyObject *given)
{
    static const struct integer_range run_range = {"run_ns", 0, INT64_MAX};
    struct accumulator_object *self = accumulator_of(object);
    int64_t run_ns;
    if (!integer_parse(self->state, given, &run_range, &run_ns) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    accumulator_run_delivery_clock(self->core, (uint64_t)run_ns);
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

PyObject *accumulator_sender_publish_outage(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "publish_outage", .names = {"since_ns", "text"}, .required_count = 2, .count = 2};
    static const struct integer_range since_range = {"since_ns", 0, INT64_MAX};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t since_ns;
    char *text;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !integer_parse(self->state, bound[0], &since_range, &since_ns) ||
        PyBytes_AsStringAndSize(bound[1], &text, NULL) < 0 || !accumulator_sender_begin(self)) {
        return NULL;
    }
    delivery_clock_publish_outage(self->core->arena, (uint64_t)since_ns, text);
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

PyObject *accumulator_sender_get_oldest_created_ns(PyObject *object, void *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    (void)unused;
    if (!accumulator_sender_begin(self)) {
        return NULL;
    }
    return accumulator_sender_end(self, ns_or_none(self->core->sender->oldest_created_ns));
}

/* ---- ending many ---- */

PyObject *accumulator_sender_expire(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "expire", .names = {"delivery_timeout_ns", "now_ns"}, .required_count = 1, .count = 2};
    static const struct integer_range timeout_range = {"delivery_timeout_ns", 0, INT64_MAX};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t timeout_ns;
    uint64_t now_ns;
    uint64_t next_expiry_ns;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !integer_parse(self->state, bound[0], &timeout_range, &timeout_ns) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    if (!now_parse(self, bound[1], &now_ns)) {
        return accumulator_sender_end(self, NULL);
    }
    uint32_t expired =
        accumulator_expire(self->core, now_ns, (uint64_t)timeout_ns, &next_expiry_ns, &self->core->wakes);
    return accumulator_sender_end(self, Py_BuildValue("(IN)", expired, ns_or_none(next_expiry_ns)));
}

PyObject *accumulator_sender_abort(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "abort", .names = {"is_in_flight_included"}, .required_count = 0, .count = 1};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    bool is_in_flight_included = false;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !flag_parse_optional(bound[0], &is_in_flight_included) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    uint32_t aborted = accumulator_abort(self->core, is_in_flight_included, &self->core->wakes);
    return accumulator_sender_end(self, PyLong_FromUnsignedLong(aborted));
}

/* {partition index: count} of the partitions that have some. */
static PyObject *expired_taken(struct accumulator *core)
{
    PyObject *counts = PyDict_New();
    for (uint32_t index = 0; counts != NULL && index < core->arena->geometry.partition_count; index++) {
        uint64_t count = accumulator_take_expired(core, index);
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

PyObject *accumulator_sender_take_expired(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    (void)unused;
    return accumulator_sender_begin(self) ? accumulator_sender_end(self, expired_taken(self->core)) : NULL;
}
