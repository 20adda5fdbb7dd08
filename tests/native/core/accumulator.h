/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka's RecordAccumulator for tests. It combines a process's appender with its sender half, which exists while the
 * process has the sender's role. In the product, the two halves share only the arena.
 */
#ifndef CORE_ACCUMULATOR_H
#define CORE_ACCUMULATOR_H

#include <stdlib.h>
#include <string.h>

#include "arena/producer_id.h"
#include "producer/appender.h"
#include "sender/sender_half.h"

struct accumulator {
    struct arena *arena;
    struct appender *appender;
    struct sender_half *sender; /* NULL without the sender role */
    struct wake_set wakes;      /* waiters that got a buffer through a requeue */
    bool wants_dead_letters;    /* used when the role is taken the next time */
    char sink_name[SINK_NAME_SIZE];
};

static inline MUST_USE enum status accumulator_open(struct arena *arena, struct accumulator **result,
                                                    struct error *error)
{
    struct accumulator *accumulator = calloc(1, sizeof *accumulator);
    *result = accumulator;
    if (accumulator == NULL) {
        return error_set(error, STATUS_OS, "there is no memory for an accumulator");
    }
    accumulator->arena = arena;
    enum status status = appender_open(arena, &accumulator->appender, error);
    if (status != STATUS_OK) {
        free(accumulator);
        *result = NULL;
    }
    return status;
}

static inline void accumulator_resign_sender(struct accumulator *accumulator)
{
    if (accumulator->sender != NULL) {
        sender_role_leave(accumulator->sender);
        accumulator->sender = NULL;
    }
}

static inline void accumulator_drop_sender(struct accumulator *accumulator)
{
    if (accumulator->sender != NULL) {
        sender_role_drop(accumulator->sender);
        accumulator->sender = NULL;
    }
}

static inline void accumulator_close(struct accumulator *accumulator)
{
    accumulator_drop_sender(accumulator);
    appender_close(accumulator->appender);
    free(accumulator);
}

/* A forked child inherits the queues, but not the role. */
static inline void accumulator_forget_after_fork(struct accumulator *accumulator)
{
    if (accumulator->sender != NULL && accumulator->sender->owner != accumulator->arena->owner) {
        accumulator_drop_sender(accumulator);
    }
}

/* ---- the appender ---- */

static inline MUST_USE enum status accumulator_measure(const struct accumulator *accumulator,
                                                       const struct record *record, struct record_size *size)
{
    return appender_measure(accumulator->appender, record, size);
}

static inline MUST_USE enum status accumulator_append_order(struct accumulator *accumulator,
                                                            const struct append_order *order,
                                                            struct append_result *result)
{
    accumulator_forget_after_fork(accumulator);
    return appender_append(accumulator->appender, order, result);
}

static inline MUST_USE enum status accumulator_append(struct accumulator *accumulator, uint32_t partition_index,
                                                      const struct measured_record *records, uint32_t count,
                                                      struct reservation *reservation, struct append_result *result)
{
    const struct append_order order = {
        .partition_index = partition_index, .count = count, .records = records, .reservation = reservation};
    return accumulator_append_order(accumulator, &order, result);
}

static inline MUST_USE enum status accumulator_flush_begin(struct accumulator *accumulator, struct flush_ticket *ticket)
{
    accumulator_forget_after_fork(accumulator);
    return appender_flush_begin(accumulator->appender, ticket);
}

static inline uint32_t accumulator_flush_remaining(struct accumulator *accumulator, struct flush_ticket *ticket)
{
    return appender_flush_remaining(accumulator->appender, ticket);
}

static inline uint64_t accumulator_flush_record_count(const struct accumulator *accumulator,
                                                      const struct flush_ticket *ticket)
{
    return appender_flush_record_count(accumulator->appender, ticket);
}

static inline void accumulator_flush_end(struct flush_ticket *ticket)
{
    appender_flush_end(ticket);
}

/* ---- the sender half ---- */

static inline MUST_USE enum status accumulator_become_sender(struct accumulator *accumulator, struct error *error)
{
    const struct role_options options = {.sink_name = accumulator->sink_name,
                                         .wants_dead_letters = accumulator->wants_dead_letters};
    return sender_role_take(accumulator->arena, &options, &accumulator->sender, error);
}

static inline void accumulator_set_producer_id(struct accumulator *accumulator, int64_t producer_id,
                                               int16_t producer_epoch)
{
    struct producer_identity identity;
    producer_identity_read(accumulator->arena, &identity);
    identity.producer_id = producer_id;
    identity.producer_epoch = producer_epoch;
    producer_identity_set(accumulator->arena, &identity);
}

static inline MUST_USE enum status accumulator_complete(struct accumulator *accumulator, uint32_t slot_index,
                                                        uint64_t seq, const struct batch_outcome *outcome,
                                                        struct wake_set *wakes)
{
    return accumulator->sender == NULL ? STATUS_STALE
                                       : sender_complete(accumulator->sender, slot_index, seq, outcome, wakes);
}

static inline MUST_USE enum status accumulator_complete_part(struct accumulator *accumulator, uint32_t slot_index,
                                                             uint64_t seq, uint32_t record_count,
                                                             const struct batch_outcome *outcome,
                                                             struct wake_set *wakes)
{
    return sender_complete_part(accumulator->sender, slot_index, seq, record_count, outcome, wakes);
}

static inline MUST_USE enum status accumulator_requeue(struct accumulator *accumulator, uint32_t slot_index,
                                                       uint64_t seq, uint64_t retry_at_ns)
{
    return accumulator->sender == NULL
               ? STATUS_STALE
               : sender_requeue(accumulator->sender, slot_index, seq, retry_at_ns, &accumulator->wakes);
}

#endif
