/* SPDX-License-Identifier: Apache-2.0
 *
 * Records that carry a number, producers that append them, a sender that delivers all of them, and a ledger of the
 * delivered numbers. Every test of appending or sending ends with the ledger.
 *
 *   struct accumulator *producer = accumulator_opened(arena);
 *   append_number(producer, 0, 7);
 *   deliver_everything(sender, &ledger);
 *   EXPECT_EQ_U64(ledger_count_of(&ledger, 7), 1);
 */
#ifndef DELIVERY_FIXTURE_H
#define DELIVERY_FIXTURE_H

#include "arena/arena_fixture.h"

#include <sched.h>

#include "core/accumulator.h"
#include "format/crc32c.h"
#include "format/record_batch.h"

/* ---- records ---- */

static inline struct record record_of(const void *value, uint32_t value_size, int64_t timestamp_ms)
{
    return (struct record){
        .key_size = -1, .value = value, .value_size = (int32_t)value_size, .timestamp_ms = timestamp_ms};
}

static inline struct measured_record measured(struct record record)
{
    struct measured_record result = {.record = record};
    EXPECT_STATUS(record_measure(&record, &result.size), STATUS_OK);
    return result;
}

/* Returns the size of a value with which the first record of a batch has exactly `record_size` bytes. */
static inline uint32_t value_size_for(uint32_t record_size)
{
    uint32_t value_size = record_size;
    while (value_size > 0) {
        struct measured_record record = measured(record_of("", value_size, 0));
        if (record_encoded_size(&record.size, 0, 0) == record_size) {
            return value_size;
        }
        value_size--;
    }
    EXPECT_OR_SAY(false, "no value makes a record of %u bytes", record_size);
    return 0;
}

/* ---- producers ---- */

static inline struct accumulator *accumulator_opened(struct arena *arena)
{
    struct accumulator *accumulator = NULL;
    struct error error = {0};
    EXPECT_STATUS(accumulator_open(arena, &accumulator, &error), STATUS_OK);
    return accumulator;
}

static inline enum status append_record(struct accumulator *producer, uint32_t partition_index, struct record record,
                                        struct append_result *result)
{
    struct measured_record one = {.record = record};
    RETURN_IF_FAILED(accumulator_measure(producer, &record, &one.size));
    return accumulator_append(producer, partition_index, &one, 1, NULL, result);
}

static inline enum status append_value(struct accumulator *producer, uint32_t partition_index, const void *value,
                                       uint32_t value_size)
{
    struct append_result result;
    return append_record(producer, partition_index, record_of(value, value_size, 1000), &result);
}

static inline enum status append_number(struct accumulator *producer, uint32_t partition_index, uint64_t number)
{
    return append_value(producer, partition_index, &number, sizeof number);
}

/* Waits for slots without a semaphore, by repeated checks of the queue. */
static inline void slots_waited_for(struct arena *arena, uint32_t need, uint32_t *slots)
{
    struct buffer_wait wait;
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, need, &wait, NULL), STATUS_OK);
    while (buffer_pool_take(arena, &wait, slots) == STATUS_EXHAUSTED) {
        buffer_pool_wait_on(arena, &wait, NULL);
        sched_yield();
    }
}

/* Append a record of any number of slots. They must be free, or another process must free them. */
static inline void append_waiting(struct accumulator *producer, uint32_t partition_index, struct record record,
                                  struct append_result *result)
{
    uint32_t slots[64];
    struct measured_record one = {.record = record};
    EXPECT_STATUS(accumulator_measure(producer, &record, &one.size), STATUS_OK);
    enum status status = accumulator_append(producer, partition_index, &one, 1, NULL, result);
    while (status == STATUS_EXHAUSTED) {
        struct reservation reservation = {.slots = slots, .count = result->need};
        slots_waited_for(producer->arena, result->need, slots);
        status = accumulator_append(producer, partition_index, &one, 1, &reservation, result);
        buffer_pool_return(producer->arena, reservation.slots, reservation.count, NULL);
    }
    EXPECT_STATUS(status, STATUS_OK);
}

/* ---- ledger ---- */

enum { LEDGER_SIZE = 4096 };

/* The first 8 bytes of every record's value, in the order of delivery. */
struct ledger {
    uint32_t count;
    uint32_t batch_count;
    uint64_t numbers[LEDGER_SIZE];
};

static inline uint32_t ledger_count_of(const struct ledger *ledger, uint64_t number)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ledger->count; i++) {
        count += ledger->numbers[i] == number;
    }
    return count;
}

/* The wire bytes of a batch in one piece; the caller frees them. */
static inline uint8_t *batch_bytes(const struct arena *arena, uint32_t slot_index, uint32_t size)
{
    uint32_t slots[64];
    uint32_t count = slot_chain_walk(arena, slot_index, slots, COUNT_OF(slots));
    uint8_t *bytes = malloc(size);
    uint32_t done = 0;
    for (uint32_t i = 0; i < count && done < size; i++) {
        uint32_t rest = size - done;
        uint32_t part = rest < arena->geometry.batch_size ? rest : arena->geometry.batch_size;
        memcpy(bytes + done, arena_slot_data(arena, slots[i]), part);
        done += part;
    }
    EXPECT_EQ_U64(done, size);
    return bytes;
}

static inline void ledger_add_records(struct ledger *ledger, const uint8_t *bytes, uint32_t size)
{
    const uint8_t *cursor = bytes + RECORDS_START;
    while (cursor < bytes + size && ledger->count < LEDGER_SIZE) {
        struct record_view view;
        enum status status = record_read(&cursor, bytes + size, &view);
        EXPECT_STATUS(status, STATUS_OK);
        if (status != STATUS_OK || view.value_size < 8) {
            return;
        }
        memcpy(&ledger->numbers[ledger->count++], view.value, sizeof(uint64_t));
    }
}

/* Count a drained batch's records. A broker must be able to accept the batch. */
static inline void ledger_add(struct ledger *ledger, const struct arena *arena, const struct drained_batch *batch)
{
    struct error error = {0};
    uint8_t *bytes = batch_bytes(arena, batch->slot_index, batch->size);
    enum status status = record_batch_validate(bytes, batch->size, &error);
    EXPECT_OR_SAY(status == STATUS_OK, "slot %u: %s", batch->slot_index, error.message);
    uint32_t count_before = ledger->count;
    ledger_add_records(ledger, bytes, batch->size);
    EXPECT_EQ_U64(ledger->count - count_before, batch->record_count);
    ledger->batch_count++;
    free(bytes);
}

/* ---- sender ---- */

static const struct batch_outcome success = {.result = RESULT_SUCCEEDED, .log_append_time_ms = -1};

static inline struct accumulator *sender_opened(struct arena *arena)
{
    struct error error = {0};
    struct accumulator *sender = accumulator_opened(arena);
    enum status status = accumulator_become_sender(sender, &error);
    EXPECT_OR_SAY(status == STATUS_OK, "%s: %s", status_name(status), error.message);
    return sender;
}

/* Drain every batch that is ready, and return their number. */
static inline uint32_t drain_round_at(struct accumulator *sender, uint64_t now_ns, uint32_t in_flight_max,
                                      struct drained_batch *batches)
{
    uint32_t partitions[64];
    uint32_t seen;
    uint64_t next_check_ns;
    const struct ready_options ready = {.now_ns = now_ns, .is_everything_ready = true};
    const struct drain_options drain = {.now_ns = now_ns, .size_max = UINT32_MAX, .in_flight_max = in_flight_max};
    uint32_t count = sender_ready(sender->sender, &ready, partitions, COUNT_OF(partitions), &next_check_ns);
    return sender_drain(sender->sender, &drain, partitions, count, batches, &seen);
}

static inline uint32_t drain_round(struct accumulator *sender, uint32_t in_flight_max, struct drained_batch *batches)
{
    return drain_round_at(sender, arena_now_ns(sender->arena), in_flight_max, batches);
}

static inline uint32_t queued_count(const struct accumulator *sender)
{
    struct sender_statistics statistics;
    sender_statistics_read(sender->sender, &statistics);
    return statistics.queued_count;
}

/* Deliver every batch that is ready at `now_ns`, and return their number; others may append meanwhile. */
static inline uint32_t deliver_round_at(struct accumulator *sender, uint64_t now_ns, struct ledger *ledger)
{
    struct drained_batch batches[64];
    uint32_t count = drain_round_at(sender, now_ns, 1, batches);
    for (uint32_t i = 0; i < count; i++) {
        ledger_add(ledger, sender->arena, &batches[i]);
        EXPECT_STATUS(accumulator_complete(sender, batches[i].slot_index, batches[i].seq, &success, NULL), STATUS_OK);
    }
    return count;
}

static inline uint32_t deliver_round(struct accumulator *sender, struct ledger *ledger)
{
    return deliver_round_at(sender, arena_now_ns(sender->arena), ledger);
}

/* Deliver until no batch is queued, then run the maintenance. No batch may be in flight before. The clock must be past
 * the sender's patience with open batches. */
static inline void deliver_everything(struct accumulator *sender, struct ledger *ledger)
{
    for (int round = 0; round < 1000; round++) {
        uint64_t now_ns = arena_now_ns(sender->arena) + sender_patience_ns(sender->arena);
        if (deliver_round_at(sender, now_ns, ledger) == 0 && queued_count(sender) == 0) {
            break;
        }
    }
    EXPECT_EQ_U64(queued_count(sender), 0);
    sender_maintain(sender->sender, NULL);
}

static inline void expect_delivered_once(const struct ledger *ledger, uint64_t first, uint64_t end)
{
    for (uint64_t number = first; number < end; number++) {
        uint32_t count = ledger_count_of(ledger, number);
        EXPECT_OR_SAY(count == 1, "record %" PRIu64 " was delivered %u times", number, count);
    }
}

/* Take the role if no process has it, deliver every record, and leave the arena empty. */
static inline void expect_exactly(struct arena *arena, uint64_t first, uint64_t end)
{
    struct ledger ledger = {0};
    struct accumulator *sender = sender_opened(arena);
    deliver_everything(sender, &ledger);
    expect_delivered_once(&ledger, first, end);
    EXPECT_EQ_U64(ledger.count, end - first);
    accumulator_close(sender);
    expect_all_free(arena);
}

#endif
