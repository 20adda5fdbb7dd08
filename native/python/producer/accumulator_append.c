/* SPDX-License-Identifier: Apache-2.0
 *
 * Accumulator, the producer's half: append and append_many.
 *
 * append() runs once per record. It allocates its token and nothing else, and lets go of the GIL only where the core
 * has to sleep for a lock. What runs once per batch (waiting for a buffer, waking waiters, ringing the doorbell) is
 * Python, given to the constructor as callables.
 */
#include "python/common/accumulator_call.h"
#include "python/common/errors.h"
#include "python/producer/append.h"
#include "python/producer/columns.h"

static struct accumulator_object *accumulator_of(PyObject *self)
{
    return (struct accumulator_object *)self;
}

/* ---- topic and partition ---- */

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
