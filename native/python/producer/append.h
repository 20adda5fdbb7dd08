/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of every append: find the partition's index, measure the record, append or wait, and wake processes, which
 * may call Python.
 *
 * An append succeeds only if the memory that it wrote to still belongs to the arena (arena/lost_memory.h).
 *
 * All functions run inside a counted call (appender_call_begin).
 */
#ifndef PYTHON_PRODUCER_APPEND_H
#define PYTHON_PRODUCER_APPEND_H

#include "arena/waiter_semaphores.h"
#include "arena/waiter_sleep.h"
#include "python/common/arguments.h"
#include "python/producer/appender_type.h"

/* The target and the deadline of an append. */
struct append_target {
    uint32_t partition_index;
    struct sticky *sticky; /* the sticky partition of the topic, or NULL if the partition may not change */
    bool (*choose_again)(struct append_target *target); /* called if the sticky partition has changed */
    int64_t max_block_ms;
    int64_t deadline_ns; /* CLOCK_MONOTONIC. 0 until the first wait */
};

/* Returns the deadline of this call. The first wait sets it. */
int64_t append_deadline(struct append_target *target);

static inline struct registry_limit append_registry_limit(const struct append_target *target)
{
    return (struct registry_limit){.block_ms = target->max_block_ms, .deadline_ns = target->deadline_ns};
}

/* ---- topic and partition ---- */

/* Finds the index of a partition in the registry, or creates the partition. Returns false with an exception set. */
bool partition_find_slow(struct appender_object *self, const struct append_target *target, uint32_t topic_index,
                         uint32_t partition, uint32_t *partition_index);

/* ---- records ---- */

/* Sets the exception for a record that appender_measure rejected, and returns false. */
bool raise_measure(const struct appender_object *self, const struct measured_record *measured, enum status status);

static inline bool record_prepare(const struct appender_object *self, struct wall_clock *clock,
                                  const struct record_objects *objects, struct measured_record *measured,
                                  struct held *held)
{
    if (!record_parse(self->state, clock, objects, &measured->record, held)) {
        return false;
    }
    enum status status = appender_measure(self->core, &measured->record, &measured->size);
    return LIKELY(status == STATUS_OK) || raise_measure(self, measured, status);
}

/* ---- append ---- */

/* Wakes the sender if this process clears its sleep flag, or if its heartbeat is old. */
bool append_wake_sender(struct appender_object *self);

/* Continues after any status other than STATUS_OK: chooses again, waits for slots, or raises. */
bool append_run_slow(struct appender_object *self, struct append_target *target,
                     const struct measured_record *records, uint32_t count, enum status status,
                     struct append_result *result);

/* Once per batch: wakes the sender and waiters after an append. Returns false with an exception set. */
static inline bool append_wake_all(struct appender_object *self, const struct append_result *result)
{
    waiters_wake(self->arena->core, &self->core->wakes);
    return LIKELY(!result->is_sender_wanted) || append_wake_sender(self);
}

/* Appends as many of records[0..count) as fit in one batch, at least one. Returns false with an exception set; then
 * result->appended records were appended. */
static inline bool append_run(struct appender_object *self, struct append_target *target,
                              const struct measured_record *records, uint32_t count, struct append_result *result)
{
    const struct append_order order = {
        .partition_index = target->partition_index, .count = count, .records = records, .sticky = target->sticky};
    enum status status = appender_append(self->core, &order, result);
    if (UNLIKELY(status != STATUS_OK) && !append_run_slow(self, target, records, count, status, result)) {
        return false;
    }
    return append_wake_all(self, result) && arena_object_check_memory(self->arena);
}

#endif
