/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf, what it does with batches that lie in the overflow (arena/spilled.h).
 */
#include "arena/spilled.h"
#include "arena/registry.h"
#include "arena/topic_share.h"
#include "python/common/errors.h"
#include "python/sender/batch_type.h"

static struct sender_half_object *half_of(PyObject *self)
{
    return (struct sender_half_object *)self;
}

/* ---- the need ---- */

struct pressure_arguments {
    int64_t linger_ns;
    int64_t now_ns;
};

static PyObject *pressure_report(struct sender_half *core, const struct ready_options *options)
{
    const struct arena *arena = core->arena;
    const struct globals *globals = arena->globals;
    uint64_t waits_since_ns = sender_waits_since_ns(core, options);
    uint32_t waiter_count = load_relaxed_u32(&globals->waiting_count) + load_relaxed_u32(&globals->parked_count);
    PyObject *since = waits_since_ns == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(waits_since_ns);
    return Py_BuildValue("(IIKNK)", arena->geometry.slot_count - free_count(arena), waiter_count,
                         (unsigned long long)load_relaxed_u64(&globals->acked_ns), since,
                         (unsigned long long)core->former_heartbeat_ns);
}

PyObject *half_pressure(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {
            .function = "pressure", .names = {"linger_ns", "now_ns"}, .required_count = 2, .count = 2},
        .arguments = {INTEGER_ARGUMENT(struct pressure_arguments, linger_ns, 0, INT64_MAX),
                      INTEGER_ARGUMENT(struct pressure_arguments, now_ns, 0, INT64_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct pressure_arguments given = {0};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    const struct ready_options options = {.now_ns = (uint64_t)given.now_ns, .linger_ns = (uint64_t)given.linger_ns};
    return half_end(self, pressure_report(self->core, &options));
}

static PyObject *stuck_indices(const struct sender_half *core)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < registry_partition_count(core->arena); i++) {
        if (core->queues[i].stuck_reason == STUCK_NOT) {
            continue;
        }
        PyObject *index = PyLong_FromUnsignedLong(i);
        if (index == NULL || PyList_Append(list, index) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(index);
    }
    return list;
}

PyObject *half_stuck_partitions(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    return half_begin(self) ? half_end(self, stuck_indices(self->core)) : NULL;
}

/* ---- results ---- */

struct spilled_arguments {
    int64_t partition_index;
    int64_t slot_index;
    int64_t seq;
    int64_t first_record;
    int64_t record_count;
    int64_t result;
    int64_t base_offset;
    int64_t log_append_time_ms;
    int64_t error_code;
};

#define SPILLED_FIELD(field, least, most) INTEGER_ARGUMENT(struct spilled_arguments, field, least, most)

static struct completion completion_of(const struct spilled_arguments *given)
{
    return (struct completion){.seq = (uint64_t)given->seq,
                               .slot_index = (uint32_t)given->slot_index,
                               .partition_index = (uint32_t)given->partition_index,
                               .first_record = (uint32_t)given->first_record,
                               .record_count = (uint32_t)given->record_count,
                               .result = (enum batch_result)given->result,
                               .error_code = (int32_t)given->error_code,
                               .base_offset = given->base_offset,
                               .log_append_time_ms = given->log_append_time_ms};
}

PyObject *half_complete_spilled(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "complete_spilled",
                      .names = {"partition_index", "slot_index", "seq", "first_record", "record_count", "result",
                                "base_offset", "log_append_time_ms", "error_code"},
                      .required_count = 6,
                      .count = 9},
        .arguments = {SPILLED_FIELD(partition_index, 0, UINT32_MAX), SPILLED_FIELD(slot_index, 0, UINT32_MAX),
                      SPILLED_FIELD(seq, 0, INT64_MAX), SPILLED_FIELD(first_record, 0, BATCH_RECORD_COUNT_MAX),
                      SPILLED_FIELD(record_count, 1, BATCH_RECORD_COUNT_MAX),
                      SPILLED_FIELD(result, RESULT_SUCCEEDED, RESULT_COUNT - 1),
                      SPILLED_FIELD(base_offset, -1, INT64_MAX), SPILLED_FIELD(log_append_time_ms, -1, INT64_MAX),
                      SPILLED_FIELD(error_code, INT32_MIN, INT32_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct spilled_arguments given = {.base_offset = -1, .log_append_time_ms = -1};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    const struct completion completion = completion_of(&given);
    enum status status = sender_complete_spilled(self->core, &completion);
    return half_end(self, status == STATUS_OK ? Py_NewRef(Py_None) : raise_status(self->state, status));
}

/* ---- the ranges, and the totals ---- */

struct range_arguments {
    int64_t partition_index;
    int64_t first_seq;
    int64_t end_seq;
};

PyObject *half_set_spilled(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "set_spilled",
                      .names = {"partition_index", "first_seq", "end_seq"},
                      .required_count = 3,
                      .count = 3},
        .arguments = {INTEGER_ARGUMENT(struct range_arguments, partition_index, 0, UINT32_MAX),
                      INTEGER_ARGUMENT(struct range_arguments, first_seq, 0, INT64_MAX),
                      INTEGER_ARGUMENT(struct range_arguments, end_seq, 0, INT64_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct range_arguments given = {0};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    spilled_set(self->core->arena, (uint32_t)given.partition_index, (uint64_t)given.first_seq,
                (uint64_t)given.end_seq);
    return half_end(self, Py_NewRef(Py_None));
}

struct totals_arguments {
    int64_t batch_count;
    int64_t record_count;
    int64_t size;
    int64_t since_ns;
};

PyObject *half_publish_spilled(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "publish_spilled",
                      .names = {"batch_count", "record_count", "size", "since_ns"},
                      .required_count = 4,
                      .count = 4},
        .arguments = {INTEGER_ARGUMENT(struct totals_arguments, batch_count, 0, INT64_MAX),
                      INTEGER_ARGUMENT(struct totals_arguments, record_count, 0, INT64_MAX),
                      INTEGER_ARGUMENT(struct totals_arguments, size, 0, INT64_MAX),
                      INTEGER_ARGUMENT(struct totals_arguments, since_ns, 0, INT64_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct totals_arguments given = {0};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    const struct spilled_totals totals = {.batch_count = (uint64_t)given.batch_count,
                                          .record_count = (uint64_t)given.record_count,
                                          .size = (uint64_t)given.size,
                                          .since_ns = (uint64_t)given.since_ns};
    spilled_publish(self->core->arena, &totals);
    return half_end(self, Py_NewRef(Py_None));
}

/* ---- partitions ---- */

struct place_arguments {
    PyObject *topic;
    int64_t partition;
};

PyObject *half_partition_index(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {
            .function = "partition_index", .names = {"topic", "partition"}, .required_count = 2, .count = 2},
        .arguments = {OBJECT_ARGUMENT(struct place_arguments, topic),
                      INTEGER_ARGUMENT(struct place_arguments, partition, 0, INT32_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct place_arguments given = {0};
    uint32_t topic_index;
    uint32_t partition_index;
    if (!arguments_parse(self->state, &table, args, count, names, &given) ||
        !arena_object_topic(self->arena, given.topic, &topic_index)) {
        return NULL;
    }
    enum status status =
        registry_partition(self->arena->registry, topic_index, (int32_t)given.partition, &partition_index);
    return status == STATUS_OK ? PyLong_FromUnsignedLong(partition_index) : raise_status(self->state, status);
}
