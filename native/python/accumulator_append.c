/* SPDX-License-Identifier: Apache-2.0
 *
 * Accumulator, the producer's half: append and append_many.
 *
 * append() runs once per record. It allocates its token and nothing else, and lets go of the GIL only where the core
 * has to sleep for a lock. What runs once per batch (waiting for a buffer, waking waiters, ringing the doorbell) is
 * Python, given to the constructor as callables.
 */
#include "python/append.h"
#include "python/columns.h"
#include "python/errors.h"
#include "shm/process_share.h"

#include <time.h>

static struct accumulator_object *accumulator_of(PyObject *self)
{
    return (struct accumulator_object *)self;
}

/* ---- topic and partition ---- */

bool partition_find_by_topic(struct accumulator_object *self, uint32_t topic_index, int32_t partition,
                             uint32_t *partition_index)
{
    enum status status = registry_partition(self->arena->registry, topic_index, partition, partition_index);
    if (status == STATUS_NO_PARTITION) {
        raise_format(self->state, status, "the arena has no room for another partition: create it with a "
                     "partition_count above %u", self->arena->core->geometry.partition_count);
        return false;
    }
    if (status != STATUS_OK) {
        raise_status(self->state, status);
        return false;
    }
    return true;
}

bool partition_find_slow(struct accumulator_object *self, PyObject *topic, int32_t partition,
                         uint32_t *partition_index)
{
    uint32_t topic_index;
    if (!arena_object_topic(self->arena, topic, &topic_index) ||
        !partition_find_by_topic(self, topic_index, partition, partition_index)) {
        return false;
    }
    struct partition_cell *cell = partition_cell(self, topic, partition);
    PyObject *former = cell->topic;
    *cell = (struct partition_cell){Py_NewRef(topic), partition, *partition_index};
    Py_XDECREF(former);
    return true;
}

PyObject *accumulator_partition_index(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                             PyObject *names)
{
    static const struct signature signature = {
        .function = "partition_index", .names = {"topic", "partition"}, .required_count = 2, .count = 2};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int32_t partition;
    uint32_t partition_index;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !partition_parse(self->state, bound[1], &partition) || !accumulator_call_begin(self)) {
        return NULL;
    }
    bool is_found = partition_find(self, bound[0], partition, &partition_index);
    accumulator_call_end(self);
    return is_found ? PyLong_FromUnsignedLong(partition_index) : NULL;
}

/* ---- append ---- */

static bool target_parse(struct accumulator_object *self, PyObject *topic, PyObject *partition, PyObject *max_block,
                         struct append_target *target)
{
    int32_t number;
    *target = (struct append_target){.max_block_ms = self->max_block_ms};
    return partition_parse(self->state, partition, &number) &&
           integer_parse_optional(self->state, max_block, &accumulator_max_block_range, &target->max_block_ms) &&
           partition_find(self, topic, number, &target->partition_index);
}

COLD bool raise_measure(const struct accumulator_object *self, const struct measured_record *measured,
                        enum status status)
{
    const struct geometry *geometry = &self->arena->core->geometry;
    if (status == STATUS_RECORD_TOO_LARGE) {
        raise_format(self->state, status,
                     "the record, %lld bytes of key and value, does not fit: with its headers a record takes at most "
                     "%u bytes (max_request_size) and %u buffers of %u bytes (oversized_max_bytes, max_process_share); "
                     "send a smaller one or create the arena with larger limits",
                     (long long)measured->record.key_size + measured->record.value_size, geometry->record_size_max,
                     oversized_slot_count_max(self->arena->core), geometry->batch_size);
    } else {
        raise_status(self->state, status);
    }
    return false;
}

int64_t append_deadline(struct append_target *target)
{
    if (target->deadline_ns == 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
        int64_t block_ns = target->max_block_ms * 1000000;
        target->deadline_ns = block_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + block_ns;
    }
    return target->deadline_ns;
}

/* Calls wait(need, max_block_ms, deadline_ns): it comes back with slots that are ours, or raises. */
static struct buffer_wait_object *slots_wait(const struct accumulator_object *self, struct append_target *target,
                                             uint32_t need)
{
    PyObject *answer = PyObject_CallFunction(self->wait, "ILL", need, (long long)target->max_block_ms,
                                             (long long)append_deadline(target));
    if (answer != NULL && !Py_IS_TYPE(answer, self->state->buffer_wait_type)) {
        PyErr_SetString(PyExc_TypeError, "wait() must return a BufferWait");
        Py_CLEAR(answer);
    }
    return (struct buffer_wait_object *)answer;
}

static void slots_leave(struct accumulator_object *self, struct buffer_wait_object **wait)
{
    if (*wait != NULL) {
        buffer_wait_finish(*wait, &self->core->wakes);
        Py_CLEAR(*wait);
    }
}

/* What has to be done before the next attempt. False with an exception set. */
static bool append_prepare_again(struct accumulator_object *self, struct append_target *target, enum status status,
                                 uint32_t need, struct buffer_wait_object **wait)
{
    if (status == STATUS_TRY_AGAIN) {
        return target->choose_again(target);
    }
    slots_leave(self, wait);
    if (status == STATUS_EXHAUSTED) {
        *wait = slots_wait(self, target, need);
        return *wait != NULL;
    }
    raise_status(self->state, status);
    return false;
}

/* Waits for slots as often as it takes: those of one wait may be used up by an open that somebody passed. A sticky
 * partition that moves on takes what was waited for along. */
COLD bool append_run_slow(struct accumulator_object *self, struct append_target *target,
                          const struct measured_record *records, uint32_t count, enum status status,
                          struct append_result *result)
{
    struct buffer_wait_object *wait = NULL;
    bool is_filled = status == STATUS_TRY_AGAIN || status == STATUS_EXHAUSTED; /* others leave `result` as it was */
    bool is_sender_wanted = is_filled && result->is_sender_wanted;
    while (status != STATUS_OK && append_prepare_again(self, target, status, result->need, &wait)) {
        const struct append_order order = {.partition_index = target->partition_index,
                                           .count = count,
                                           .records = records,
                                           .reservation = wait == NULL ? NULL : &wait->left,
                                           .sticky = target->sticky};
        status = accumulator_append_order(self->core, &order, result);
        is_sender_wanted |= result->is_sender_wanted;
    }
    slots_leave(self, &wait);
    result->is_sender_wanted = is_sender_wanted;
    return status == STATUS_OK;
}

bool append_ring(struct accumulator_object *self)
{
    if (self->ring == NULL || self->ring == Py_None ||
        exchange_u32(&self->arena->core->globals->sender_sleep, 0) == 0) {
        return true;
    }
    PyObject *answer = PyObject_CallNoArgs(self->ring);
    Py_XDECREF(answer);
    return answer != NULL;
}

static PyObject *append_one(struct accumulator_object *self, struct append_target *target,
                            const struct measured_record *measured)
{
    struct append_result result;
    struct token_object *token = token_object_new(self->state);
    if (token == NULL) {
        return NULL;
    }
    if (!append_run(self, target, measured, 1, &result)) {
        Py_DECREF(token);
        return NULL;
    }
    token_object_fill(token, target->partition_index, &result.first);
    return (PyObject *)token;
}

PyObject *accumulator_append_one(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    enum { TOPIC, PARTITION, TIMESTAMP, KEY, VALUE, HEADERS, MAX_BLOCK };
    static const struct signature signature = {
        .function = "append",
        .names = {"topic", "partition", "timestamp_ms", "key", "value", "headers", "max_block_ms"},
        .required_count = 5,
        .count = 7};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct append_target target;
    struct measured_record measured;
    struct loans loans = {NULL};
    PyObject *token = NULL;
    if (!arguments_bind(&signature, args, count, names, bound) || !accumulator_call_begin(self)) {
        return NULL;
    }
    const struct record_objects objects = {bound[KEY], bound[VALUE], bound[HEADERS], bound[TIMESTAMP]};
    if (target_parse(self, bound[TOPIC], bound[PARTITION], bound[MAX_BLOCK], &target) &&
        record_prepare(self, &objects, &measured, &loans)) {
        token = append_one(self, &target, &measured);
    }
    loans_return(&loans);
    accumulator_call_end(self);
    return token;
}

/* ---- append_many ---- */

enum { CHUNK_COUNT_MAX = 64 };

static bool chunk_prepare(const struct accumulator_object *self, const struct columns *columns, Py_ssize_t start,
                          uint32_t count, struct measured_record *records, struct loans *loans)
{
    for (uint32_t i = 0; i < count; i++) {
        Py_ssize_t index = start + (Py_ssize_t)i;
        const struct record_objects objects = columns_row(columns, index);
        if (!record_prepare(self, &objects, &records[i], loans)) {
            return false;
        }
    }
    return true;
}

/* Records of one batch in a row, not yet in the list. */
struct run {
    struct batch_place first;
    uint32_t count;
};

static bool run_continues(const struct run *run, const struct batch_place *next)
{
    return run->count > 0 && next->seq == run->first.seq && next->slot_index == run->first.slot_index &&
           next->record_index == run->first.record_index + run->count;
}

static bool run_end(const struct accumulator_object *self, uint32_t partition_index, struct run *run, PyObject *runs)
{
    if (run->count == 0) {
        return true;
    }
    struct token_object *token = token_object_new(self->state);
    if (token == NULL) {
        return false;
    }
    token_object_fill(token, partition_index, &run->first);
    PyObject *pair = Py_BuildValue("(NI)", token, run->count);
    run->count = 0;
    bool is_added = pair != NULL && PyList_Append(runs, pair) == 0;
    Py_XDECREF(pair);
    return is_added;
}

static bool run_add(const struct accumulator_object *self, uint32_t partition_index,
                    const struct append_result *result, struct run *run, PyObject *runs)
{
    if (run_continues(run, &result->first)) {
        run->count += result->appended;
        return true;
    }
    bool is_ended = run_end(self, partition_index, run, runs);
    *run = (struct run){.first = result->first, .count = result->appended};
    return is_ended;
}

static bool chunk_append(struct accumulator_object *self, struct append_target *target,
                         const struct measured_record *records, uint32_t count, struct run *run, PyObject *runs)
{
    for (uint32_t done = 0; done < count;) {
        struct append_result result = {0};
        bool is_appended = append_run(self, target, records + done, count - done, &result);
        bool is_noted = result.appended == 0 || run_add(self, target->partition_index, &result, run, runs);
        if (!is_appended || !is_noted) {
            return false;
        }
        done += result.appended;
    }
    return true;
}

static bool columns_append(struct accumulator_object *self, struct append_target *target,
                           const struct columns *columns, struct run *run, PyObject *runs)
{
    struct measured_record records[CHUNK_COUNT_MAX];
    Py_ssize_t left = PyTuple_GET_SIZE(columns->values);
    bool is_appended = true;
    for (Py_ssize_t start = 0; left > 0 && is_appended; start += CHUNK_COUNT_MAX, left -= CHUNK_COUNT_MAX) {
        uint32_t count = left < CHUNK_COUNT_MAX ? (uint32_t)left : CHUNK_COUNT_MAX;
        struct loans loans = {NULL};
        is_appended = chunk_prepare(self, columns, start, count, records, &loans) &&
                      chunk_append(self, target, records, count, run, runs);
        loans_return(&loans);
    }
    return is_appended;
}

/* Some records may have gone before the exception: its attribute `appended` tells which. */
static void exception_tell_appended(const struct accumulator_object *self, uint32_t partition_index, struct run *run,
                                    PyObject *runs)
{
    PyObject *exception = exception_take();
    if (!run_end(self, partition_index, run, runs) || PyObject_SetAttrString(exception, "appended", runs) < 0) {
        PyErr_Clear(); /* the first exception says more */
    }
    exception_put(exception);
}

static PyObject *append_columns(struct accumulator_object *self, struct append_target *target,
                                const struct columns *columns)
{
    struct run run = {.count = 0};
    PyObject *runs = PyList_New(0);
    if (runs == NULL) {
        return NULL;
    }
    if (columns_append(self, target, columns, &run, runs) && run_end(self, target->partition_index, &run, runs)) {
        return runs;
    }
    exception_tell_appended(self, target->partition_index, &run, runs);
    Py_DECREF(runs);
    return NULL;
}

PyObject *accumulator_append_many(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    enum { TOPIC, PARTITION, VALUES, KEYS, TIMESTAMPS, HEADERS, MAX_BLOCK };
    static const struct signature signature = {
        .function = "append_many",
        .names = {"topic", "partition", "values", "keys", "timestamps_ms", "headers", "max_block_ms"},
        .required_count = 3,
        .count = 7};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct append_target target;
    struct columns columns;
    PyObject *runs = NULL;
    if (!arguments_bind(&signature, args, count, names, bound) || !accumulator_call_begin(self)) {
        return NULL;
    }
    const struct columns given = {
        .values = bound[VALUES], .keys = bound[KEYS], .timestamps = bound[TIMESTAMPS], .headers = bound[HEADERS]};
    if (target_parse(self, bound[TOPIC], bound[PARTITION], bound[MAX_BLOCK], &target) &&
        columns_parse(&given, &columns)) {
        runs = append_columns(self, &target, &columns);
        columns_release(&columns);
    }
    accumulator_call_end(self);
    return runs;
}
