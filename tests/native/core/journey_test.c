/* SPDX-License-Identifier: Apache-2.0 */
/* runs under: tsan */
/*
 * All steps of a record at once. Threads act as processes, and append to a shared partition and to a partition of their
 * own. There are far too few slots, so they wait. One of them is the sender. At the end, the test counts the delivered
 * records.
 */
#include "core/accumulator.h"

#include <pthread.h>
#include <sched.h>

#include "arena/attach.h"
#include "core/delivery_fixture.h"

enum { PRODUCERS = 3, RECORDS = 2000, SLOTS = 6, BATCH_SIZE = 256, OVERSIZED_EVERY = 40, FLUSH_EVERY = 100 };

/* The delivered records of one producer in one kind of partition. Their numbers ascend, because a producer appends them
 * in order. */
struct arrival {
    uint32_t count;
    uint64_t last;
};

struct journey {
    struct arena *arena;
    struct accumulator *sender;
    struct arrival arrivals[PRODUCERS][2];
    atomic_u32 finished_count;
    int file;
};

struct traveller {
    struct journey *journey;
    struct arena *arena;
    uint64_t producer_index;
};

static uint64_t number_of(uint64_t producer_index, uint64_t record_index)
{
    return producer_index << 32 | record_index;
}

/* ---- producers ---- */

static void wait_for_flush(struct accumulator *producer)
{
    struct flush_ticket ticket;
    EXPECT_STATUS(accumulator_flush_begin(producer, &ticket), STATUS_OK);
    while (accumulator_flush_remaining(producer, &ticket) > 0) {
        sched_yield();
    }
    accumulator_flush_end(&ticket);
}

static void append_all(struct traveller *traveller, struct accumulator *producer)
{
    uint8_t value[2 * BATCH_SIZE] = {0};
    for (uint64_t i = 1; i <= RECORDS; i++) {
        uint64_t number = number_of(traveller->producer_index, i);
        uint32_t partition_index = (i & 1) != 0 ? 0 : 1 + (uint32_t)traveller->producer_index;
        struct append_result result;
        memcpy(value, &number, sizeof number);
        append_waiting(producer, partition_index,
                       record_of(value, i % OVERSIZED_EVERY == 0 ? BATCH_SIZE : 16, 1000), &result);
        if (i % FLUSH_EVERY == 0) {
            wait_for_flush(producer);
        }
    }
}

static void *produce(void *argument)
{
    struct traveller *traveller = argument;
    struct accumulator *producer = accumulator_opened(traveller->arena);
    append_all(traveller, producer);
    accumulator_close(producer);
    add_u32(&traveller->journey->finished_count, 1);
    return NULL;
}

/* ---- the sender ---- */

static void arrive(struct journey *journey, uint64_t number, bool is_shared_partition)
{
    uint64_t producer_index = number >> 32;
    EXPECT(producer_index < PRODUCERS);
    if (producer_index >= PRODUCERS) {
        return;
    }
    struct arrival *arrival = &journey->arrivals[producer_index][is_shared_partition];
    EXPECT_OR_SAY(number > arrival->last || arrival->count == 0, "%" PRIx64 " came after %" PRIx64, number,
                  arrival->last);
    arrival->last = number;
    arrival->count++;
}

static void deliver(struct journey *journey, const struct drained_batch *batch)
{
    struct ledger ledger;
    ledger.count = 0;
    ledger.batch_count = 0;
    ledger_add(&ledger, journey->arena, batch);
    for (uint32_t i = 0; i < ledger.count; i++) {
        arrive(journey, ledger.numbers[i], batch->partition_index == 0);
    }
    EXPECT_STATUS(accumulator_complete(journey->sender, batch->slot_index, batch->seq, &success, NULL), STATUS_OK);
}

static void *send(void *argument)
{
    struct journey *journey = argument;
    struct drained_batch batches[64];
    for (;;) {
        bool is_over = load_acquire_u32(&journey->finished_count) == PRODUCERS;
        uint32_t count = drain_round(journey->sender, 1, batches);
        for (uint32_t i = 0; i < count; i++) {
            deliver(journey, &batches[i]);
        }
        sender_maintain(journey->sender->sender, NULL);
        if (is_over && count == 0 && queued_count(journey->sender) == 0) {
            return NULL;
        }
        sched_yield();
    }
}

/* ---- the journey ---- */

static void journey_travelled(struct journey *journey)
{
    pthread_t threads[PRODUCERS + 1];
    struct traveller travellers[PRODUCERS];
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        travellers[i] = (struct traveller){.journey = journey,
                                           .arena = arena_attached_for_thread(journey->file, journey->arena),
                                           .producer_index = i};
        EXPECT(pthread_create(&threads[i], NULL, produce, &travellers[i]) == 0);
    }
    EXPECT(pthread_create(&threads[PRODUCERS], NULL, send, journey) == 0);
    for (uint32_t i = 0; i <= PRODUCERS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        arena_detach(travellers[i].arena);
    }
}

TEST(every_record_arrives_once_and_in_order_however_few_the_slots)
{
    static struct journey journey;
    journey = (struct journey){.file = arena_file_new()};
    struct geometry geometry = geometry_of(SLOTS, BATCH_SIZE);
    geometry.oversized_bytes_max = 4 * BATCH_SIZE;
    geometry.record_size_max = 4 * BATCH_SIZE;
    journey.arena = arena_created(journey.file, geometry);
    journey.sender = sender_opened(journey.arena);
    journey_travelled(&journey);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        EXPECT_EQ_U64(journey.arrivals[i][0].count, RECORDS / 2);
        EXPECT_EQ_U64(journey.arrivals[i][1].count, RECORDS / 2);
    }
    EXPECT(counter_value(journey.arena, COUNTER_WAITS) > 0);
    EXPECT_EQ_U64(counter_value(journey.arena, COUNTER_BATCHES_QUARANTINED), 0);
    accumulator_close(journey.sender);
    expect_all_free(journey.arena);
    arena_end(journey.arena, journey.file);
}

RUN_ALL()
