/* SPDX-License-Identifier: Apache-2.0
 *
 * Appends chunks of records for calls with many records. producer_columns.c and producer_arrow.c read the rows.
 */
#include "python/producer/producer_many.h"

#include "python/common/errors.h"

/* ---- topics ---- */

/* Returns a target with the deadline of this call. */
static struct append_target target_of(const struct many *many)
{
    return (struct append_target){.max_block_ms = many->producer->appender->max_block_ms,
                                  .deadline_ns = many->deadline_ns};
}

bool many_find_topic(struct many *many, PyObject *topic, struct topic_note **note)
{
    struct append_target target = target_of(many);
    uint32_t topic_index;
    uint32_t partition_count;
    bool is_known = producer_topic(many->producer, topic, &target, &topic_index, &partition_count);
    many->deadline_ns = target.deadline_ns;
    *note = is_known ? &many->producer->topics[topic_index] : NULL;
    return is_known;
}

bool many_find_topic_by_name(struct many *many, const char *name, uint32_t name_size, struct topic_note **note)
{
    const struct arena_object *arena = many->producer->appender->arena;
    uint32_t topic_index;
    if (LIKELY(registry_topic(arena->registry, name, name_size, &topic_index) == STATUS_OK &&
               topic_partition_count(arena->core, topic_index) > 0)) {
        *note = &many->producer->topics[topic_index];
        return true;
    }
    PyObject *topic = PyUnicode_DecodeUTF8(name, (Py_ssize_t)name_size, "backslashreplace");
    bool is_found = topic != NULL && many_find_topic(many, topic, note);
    Py_XDECREF(topic);
    return is_found;
}

/* ---- a partition for each record ---- */

/* Waits until the topic has this partition, because it may have more than are known. Returns false with an exception
 * set. */
static COLD bool more_partitions_wait(struct many *many, uint32_t topic_index, uint32_t partition)
{
    const char *name = "";
    uint32_t name_size = 0;
    struct append_target target = target_of(many);
    uint32_t partition_count;
    enum status status = registry_topic_name(many->producer->appender->arena->core, topic_index, &name, &name_size);
    PyObject *topic = PyUnicode_FromStringAndSize(name, status == STATUS_OK ? (Py_ssize_t)name_size : 0);
    bool is_there = topic != NULL && producer_wait_for_partitions(many->producer, topic, &target,
                                                                  (int64_t)partition + 1, &partition_count);
    many->deadline_ns = target.deadline_ns;
    Py_XDECREF(topic);
    return is_there;
}

/* Assigns partitions. If a record gets none, ends the chunk before it, and returns false with an exception set. */
static bool chunk_assign_all(struct many *many, struct chunk *chunk, struct assignment *assignment)
{
    struct producer_object *producer = many->producer;
    const struct append_target target = target_of(many);
    const struct chunk_rules rules = {.partitioner = &producer->partitioner, .ignores_keys = producer->ignores_keys};
    uint32_t partition = 0;
    enum status status;
    while (UNLIKELY((status = chunk_assign(&rules, chunk, assignment, &partition)) != STATUS_OK)) {
        uint32_t i = assignment->count;
        uint32_t topic_index = chunk->topics[i]->sticky.topic_index;
        bool is_found = status == STATUS_TRY_AGAIN
                            ? more_partitions_wait(many, topic_index, partition)
                            : partition_find_slow(producer->appender, &target, topic_index, partition,
                                                  &assignment->partition_indices[assignment->count++]);
        if (!is_found) {
            return many_end_chunk_before(many, chunk, i);
        }
    }
    return true;
}

/* ---- groups ---- */

/* The records of a group, and the data for choosing again if their sticky partition changes. */
struct group_call {
    struct append_target append; /* first, because choose_again gets a pointer to it */
    struct many *many;
    struct chunk_group group; /* the records that are not appended yet */
};

static bool group_choose_again(struct append_target *target)
{
    struct group_call *call = (struct group_call *)target;
    struct producer_object *producer = call->many->producer;
    struct topic_note *topic = call->group.topic;
    uint32_t partition_count = topic_partition_count(producer->partitioner.arena, topic->sticky.topic_index);
    uint32_t partition = partitioner_sticky(&producer->partitioner, &topic->sticky, partition_count);
    return partition_find(producer, topic, partition, target);
}

/* The most records that are appended under a partition's lock at once: other processes may have to wait for some
 * microseconds. An odd number, because the core commits an odd number of records at once (producer_batch.c). */
enum { RUN_COUNT_MAX = 63 };

static void group_count_appended(struct group_call *call, const struct append_result *result)
{
    struct producer_object *producer = call->many->producer;
    receipt_add_run(&call->many->receipt->receipt, call->append.partition_index, &result->first, result->appended);
    for (uint32_t i = 0; i < result->appended; i++) {
        producer->record_bytes += record_size_upper_bound(&call->group.records[i].size);
    }
    producer->record_count += result->appended;
    call->group.records += result->appended;
    call->group.count -= result->appended;
}

static bool group_append_some(struct group_call *call)
{
    struct append_result result = {0};
    uint32_t count = call->group.count < RUN_COUNT_MAX ? call->group.count : RUN_COUNT_MAX;
    bool is_appended =
        append_run(call->many->producer->appender, &call->append, call->group.records, count, &result);
    if (result.appended > 0) {
        group_count_appended(call, &result);
    }
    call->many->deadline_ns = call->append.deadline_ns;
    return is_appended;
}

static bool group_append(struct many *many, struct chunk_group group)
{
    struct group_call call = {.append = target_of(many), .many = many, .group = group};
    call.append.partition_index = group.partition_index;
    call.append.sticky = group.is_sticky ? &group.topic->sticky : NULL;
    call.append.choose_again = group_choose_again;
    while (call.group.count > 0) {
        if (UNLIKELY(!group_append_some(&call))) {
            return false;
        }
    }
    return true;
}

/* ---- chunks ---- */

/* Releases the GIL briefly and handles signals during a long call. */
static bool many_check_signals(const struct many *many)
{
    enum { RECORDS_BETWEEN = 16384 };
    if (LIKELY(many->receipt->receipt.row_count % RECORDS_BETWEEN >= CHUNK_COUNT_MAX)) {
        return true;
    }
    Py_BEGIN_ALLOW_THREADS
    Py_END_ALLOW_THREADS
    return PyErr_CheckSignals() == 0;
}

static bool rows_add(struct many *many, const struct chunk *chunk, const struct grouping *grouping)
{
    int64_t timestamps_ms[CHUNK_COUNT_MAX];
    for (uint32_t i = 0; chunk->has_timestamps && i < chunk->count; i++) {
        timestamps_ms[i] = chunk->records[i].record.timestamp_ms;
    }
    const struct receipt_rows rows = {.count = chunk->count,
                                      .places = grouping->group_count == 1 ? NULL : grouping->places,
                                      .timestamps_ms = chunk->has_timestamps ? timestamps_ms : NULL};
    enum status status = receipt_add_rows(&many->receipt->receipt, &rows);
    if (status != STATUS_OK) {
        raise_status(many->producer->state, status);
    }
    return status == STATUS_OK;
}

static bool groups_append(struct many *many, const struct chunk *chunk, const struct assignment *assignment,
                          const struct grouping *grouping)
{
    struct arrangement arrangement;
    bool is_done = true;
    chunk_arrange(chunk, grouping, &arrangement);
    for (uint32_t i = 0; i < grouping->group_count && is_done; i++) {
        is_done = group_append(many, chunk_group(chunk, assignment, &grouping->groups[i], &arrangement));
    }
    return is_done;
}

static bool chunk_append(struct many *many, const struct chunk *chunk, const struct assignment *assignment)
{
    struct grouping grouping;
    group_by_partition(assignment->partition_indices, chunk->count, &grouping);
    if (!rows_add(many, chunk, &grouping)) {
        return false;
    }
    return grouping.group_count == 1
               ? group_append(many, chunk_group(chunk, assignment, &grouping.groups[0], NULL))
               : groups_append(many, chunk, assignment, &grouping);
}

/* Appends the records before an invalid one, and then raises its exception, or that of the append if it fails. */
static COLD bool chunk_append_before(struct many *many, const struct chunk *chunk,
                                     const struct assignment *assignment)
{
    PyObject *exception = exception_take();
    if (chunk->count > 0 && !chunk_append(many, chunk, assignment)) {
        Py_DECREF(exception);
    } else {
        exception_put(exception);
    }
    return false;
}

bool many_end_chunk_before(const struct many *many, struct chunk *chunk, uint32_t i)
{
    PyObject *exception = exception_take();
    PyObject *index = PyLong_FromUnsignedLong(many->receipt->receipt.row_count + i);
    if (index == NULL || PyObject_SetAttrString(exception, "record_index", index) < 0) {
        PyErr_Clear(); /* the exception is raised without it */
    }
    Py_XDECREF(index);
    exception_put(exception);
    chunk->count = i;
    return false;
}

bool many_append_chunk(struct many *many, struct chunk *chunk)
{
    struct assignment assignment;
    assignment.count = 0;
    PyObject *former = PyErr_Occurred() ? exception_take() : NULL;
    bool is_assigned = chunk_assign_all(many, chunk, &assignment);
    if (UNLIKELY(!is_assigned)) {
        Py_XDECREF(former);
        return chunk_append_before(many, chunk, &assignment);
    }
    if (UNLIKELY(former != NULL)) {
        exception_put(former);
        return chunk_append_before(many, chunk, &assignment);
    }
    return chunk_append(many, chunk, &assignment) && many_check_signals(many);
}

/* ---- calls ---- */

bool many_begin(struct producer_object *producer, struct many *many)
{
    *many = (struct many){.producer = producer, .now_ms = wall_clock_ms(&producer->clock)};
    if (!producer_begin(producer)) {
        return false;
    }
    many->receipt = receipt_object_new(producer);
    if (many->receipt == NULL) {
        producer_end(producer);
        return false;
    }
    many->receipt->receipt.timestamp_ms = many->now_ms;
    return true;
}

/* Sets the attribute `appended` of the exception to the receipt of the appended records. */
static void exception_set_appended(struct receipt_object *receipt)
{
    PyObject *exception = exception_take();
    if (PyObject_SetAttrString(exception, "appended", (PyObject *)receipt) < 0) {
        PyErr_Clear(); /* the exception is raised without it */
    }
    exception_put(exception);
}

PyObject *many_end(struct many *many, bool is_done)
{
    producer_end(many->producer);
    if (is_done) {
        return (PyObject *)many->receipt;
    }
    exception_set_appended(many->receipt);
    Py_DECREF((PyObject *)many->receipt);
    return NULL;
}
