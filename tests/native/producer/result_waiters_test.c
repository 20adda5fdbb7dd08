/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiters for results, which the tests store themselves.
 */
#include "producer/result_waiters.h"

#include "arena/arena_fixture.h"

enum { SLOT = 1, PARTITION = 3, WAITER_COUNT = 300 };

/* Makes a batch without a result in the slot. */
static void open_batch(struct arena *arena, uint32_t slot_index, uint64_t seq)
{
    store_relaxed_u64(&arena->slots[slot_index].seq, seq);
    store_relaxed_u32(&arena->slots[slot_index].partition_index, PARTITION);
    store_release_u64(&arena->slots[slot_index].word, slot_word(SLOT_READY, 0, slot_payload_filled(2, 100)));
}

static void free_slot(struct arena *arena, uint32_t slot_index)
{
    store_release_u64(&arena->slots[slot_index].word, slot_word(SLOT_FREE, 1, 0));
}

static void record_result(struct arena *arena, uint64_t seq, uint32_t first, uint32_t count)
{
    const struct completion completion = {.seq = seq,
                                          .slot_index = SLOT,
                                          .partition_index = PARTITION,
                                          .first_record = first,
                                          .record_count = count,
                                          .result = RESULT_SUCCEEDED,
                                          .base_offset = 100 + first,
                                          .log_append_time_ms = -1};
    completion_record(arena, &completion);
    completion_wake(arena);
}

static struct result_waiter waiter_for(uint64_t seq, uint32_t record_index)
{
    return (struct result_waiter){
        .token = {.seq = seq, .partition_index = PARTITION, .slot_index = SLOT, .record_index = record_index}};
}

/* It is added even if its record has a result. */
static struct result_waiter late_waiter_for(uint64_t seq, uint32_t record_index)
{
    struct result_waiter waiter = waiter_for(seq, record_index);
    waiter.may_be_late = true;
    return waiter;
}

static void expect_taken(struct result_waiters *waiters, const struct result_waiter *expected)
{
    EXPECT(result_waiters_take(waiters) == expected);
}

static struct result_waiters waiters_new(void)
{
    struct result_waiters waiters;
    EXPECT_STATUS(result_waiters_init(&waiters), STATUS_OK);
    return waiters;
}

TEST_IN_ARENA(geometry_of(4, 512), waiters_end_in_the_order_of_records_and_of_adding)
{
    struct result_waiters waiters = waiters_new();
    struct result_waiter given[] = {waiter_for(7, 2), waiter_for(7, 0), waiter_for(7, 2), waiter_for(7, 5)};
    record_result(arena, 6, 0, 10); /* before the first waiter */
    open_batch(arena, SLOT, 7);
    for (size_t i = 0; i < COUNT_OF(given); i++) {
        EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[i]), STATUS_PENDING);
    }
    result_waiters_collect(&waiters, arena);
    expect_taken(&waiters, NULL);
    record_result(arena, 7, 0, 4); /* the result of a part of the batch; the last waiter's record is in the next part */
    result_waiters_collect(&waiters, arena);
    EXPECT_EQ_U64(waiters.waiting_count, 1);
    EXPECT(given[0].has_completion && given[0].completion.base_offset == 100);
    expect_taken(&waiters, &given[1]);
    expect_taken(&waiters, &given[0]);
    expect_taken(&waiters, &given[2]);
    expect_taken(&waiters, NULL);
    record_result(arena, 7, 4, 2);
    result_waiters_collect(&waiters, arena);
    expect_taken(&waiters, &given[3]);
    EXPECT(given[3].completion.base_offset == 104);
    EXPECT_EQ_U64(waiters.waiting_count + waiters.ended.count, 0);
    free_slot(arena, SLOT);
    result_waiters_close(&waiters);
}

TEST_IN_ARENA(geometry_of(4, 512), a_record_with_a_result_does_not_wait)
{
    struct result_waiters waiters = waiters_new();
    struct result_waiter delivered = waiter_for(7, 0);
    struct result_waiter overwritten = waiter_for(6, 0);
    struct result_waiter foreign = {.token = {.slot_index = 99}};
    record_result(arena, 7, 0, 1);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &delivered), STATUS_OK);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &overwritten), STATUS_RESULT_EXPIRED);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &foreign), STATUS_INVALID);
    EXPECT_EQ_U64(waiters.waiting_count, 0);
    result_waiters_close(&waiters);
}

/* Stores results of other batches until they have overwritten the whole ring. */
static void overwrite_results(struct arena *arena)
{
    for (uint64_t seq = 100; seq < 100 + arena->geometry.completion_count; seq++) {
        record_result(arena, seq, 0, 1);
    }
}

TEST_IN_ARENA(geometry_of(4, 512), results_that_cannot_be_read_end_without_a_completion)
{
    struct result_waiters waiters = waiters_new();
    struct result_waiter given[] = {waiter_for(7, 0), waiter_for(8, 0), waiter_for(8, 1)};
    open_batch(arena, SLOT, 7);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[0]), STATUS_PENDING);
    record_result(arena, 7, 0, 1);
    free_slot(arena, SLOT);
    open_batch(arena, SLOT, 8);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[2]), STATUS_PENDING);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[1]), STATUS_PENDING);
    overwrite_results(arena);
    EXPECT(result_waiters_wait(&waiters, arena, 0, 0));
    result_waiters_collect(&waiters, arena);
    expect_taken(&waiters, &given[0]);
    EXPECT(!given[0].has_completion);
    EXPECT_EQ_U64(waiters.waiting_count, 2);
    store_release_u64(&arena->globals->completion_tail, 1); /* the shared memory may have any content */
    EXPECT(result_waiters_wait(&waiters, arena, 0, 0));
    result_waiters_collect(&waiters, arena);
    expect_taken(&waiters, NULL);
    store_relaxed_u32(&arena->is_lost, 1);
    EXPECT(result_waiters_wait(&waiters, arena, 0, 0));
    result_waiters_collect(&waiters, arena);
    store_relaxed_u32(&arena->is_lost, 0);
    expect_taken(&waiters, &given[1]);
    expect_taken(&waiters, &given[2]);
    EXPECT(!given[1].has_completion && !given[2].has_completion);
    EXPECT_EQ_U64(waiters.waiting_count + waiters.ended.count, 0);
    free_slot(arena, SLOT);
    result_waiters_close(&waiters);
}

/* The waiter is added after its result was stored and read. */
TEST_IN_ARENA(geometry_of(4, 512), a_waiter_that_is_added_late_ends_in_the_order_of_the_records)
{
    struct result_waiters waiters = waiters_new();
    struct result_waiter given[] = {late_waiter_for(7, 0), late_waiter_for(7, 1), late_waiter_for(7, 2),
                                    late_waiter_for(7, 3)};
    struct result_waiter overwritten = late_waiter_for(6, 0);
    open_batch(arena, SLOT, 7);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[3]), STATUS_PENDING);
    record_result(arena, 7, 0, 2);
    result_waiters_collect(&waiters, arena);
    expect_taken(&waiters, NULL);
    EXPECT(!result_waiters_wait(&waiters, arena, 0, 0));
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[2]), STATUS_PENDING);
    record_result(arena, 7, 2, 1);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[1]), STATUS_OK);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[0]), STATUS_OK);
    EXPECT(result_waiters_wait(&waiters, arena, 0, 0));
    result_waiters_collect(&waiters, arena);
    for (size_t i = 0; i < 3; i++) {
        expect_taken(&waiters, &given[i]);
        EXPECT(given[i].has_completion && given[i].completion.base_offset == (i < 2 ? 100 : 102));
    }
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &overwritten), STATUS_RESULT_EXPIRED);
    result_waiters_collect(&waiters, arena);
    expect_taken(&waiters, &overwritten);
    EXPECT(!overwritten.has_completion);
    record_result(arena, 7, 3, 1);
    result_waiters_check(&waiters, arena);
    expect_taken(&waiters, &given[3]);
    EXPECT(given[3].completion.base_offset == 103);
    free_slot(arena, SLOT);
    result_waiters_close(&waiters);
}

static uint32_t asked_count;

static bool is_even(struct result_waiter *waiter, const void *argument)
{
    EXPECT(argument == &asked_count);
    asked_count++;
    return waiter->token.record_index % 2 == 0;
}

static bool is_same(const struct result_waiter *waiter, const void *wanted)
{
    return waiter == wanted;
}

static int count_one(struct result_waiter *waiter, void *count)
{
    EXPECT(waiter != NULL);
    ++*(uint32_t *)count;
    return 0;
}

TEST_IN_ARENA(geometry_of(4, 512), the_table_grows_and_each_waiter_is_removed_once)
{
    static struct result_waiter given[WAITER_COUNT];
    struct result_waiters waiters = waiters_new();
    uint32_t visited_count = 0;
    for (uint32_t i = 0; i < WAITER_COUNT; i++) { /* many batches; the slot's word is that of the newest one */
        given[i] = waiter_for(7 + i % 5, WAITER_COUNT - i);
        open_batch(arena, SLOT, 7 + i % 5);
        EXPECT_STATUS(result_waiters_add(&waiters, arena, &given[i]), STATUS_PENDING);
    }
    EXPECT(result_waiters_visit(&waiters, count_one, &visited_count) == 0);
    EXPECT_EQ_U64(visited_count, WAITER_COUNT);
    asked_count = 0;
    result_waiters_end_if(&waiters, is_even, &asked_count);
    EXPECT_EQ_U64(asked_count, WAITER_COUNT);
    EXPECT_EQ_U64(waiters.ended.count, WAITER_COUNT / 2);
    for (uint32_t i = 0; i < WAITER_COUNT; i += 7) {
        EXPECT(result_waiters_remove(&waiters, &given[i].token, is_same, &given[i]) == &given[i]);
        EXPECT(result_waiters_remove(&waiters, &given[i].token, is_same, &given[i]) == NULL);
    }
    const struct result_waiter *before = NULL;
    uint32_t taken_count = 0;
    for (struct result_waiter *taken; (taken = result_waiters_take(&waiters)) != NULL; taken_count++) {
        EXPECT(before == NULL || before->token.seq < taken->token.seq ||
               before->token.record_index < taken->token.record_index);
        before = taken;
    }
    result_waiters_close(&waiters);
    while (result_waiters_take(&waiters) != NULL) {
        taken_count++;
    }
    EXPECT_EQ_U64(taken_count, WAITER_COUNT - (WAITER_COUNT + 6) / 7);
    free_slot(arena, SLOT);
}

struct parallel_wait {
    struct result_waiters *waiters;
    struct arena *arena;
    bool is_found;
};

static void *wait_in_thread(void *argument)
{
    struct parallel_wait *wait = argument;
    wait->is_found = result_waiters_wait(wait->waiters, wait->arena, 3600 * NS_PER_S, 3600 * NS_PER_S);
    return NULL;
}

/* The thread sleeps until the waiter is added. Results of other records do not end its wait. */
TEST_IN_ARENA(geometry_of(4, 512), a_thread_waits_for_a_waiter_and_then_for_its_result)
{
    struct result_waiters waiters = waiters_new();
    struct result_waiter seventh = waiter_for(7, 0);
    struct parallel_wait wait = {.waiters = &waiters, .arena = arena_attached_for_thread(file, arena)};
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, wait_in_thread, &wait) == 0);
    open_batch(arena, SLOT, 7);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &seventh), STATUS_PENDING);
    record_result(arena, 5, 0, 1);
    record_result(arena, 7, 1, 1);
    record_result(arena, 7, 0, 1);
    pthread_join(thread, NULL);
    EXPECT(wait.is_found);
    EXPECT_EQ_U64(waiters.tail, 2); /* no waiter has a lower number */
    result_waiters_collect(&waiters, arena);
    expect_taken(&waiters, &seventh);
    EXPECT(!result_waiters_wait(&waiters, wait.arena, 0, 3600 * NS_PER_S)); /* no waiter is left */
    arena_detach(wait.arena);
    free_slot(arena, SLOT);
    result_waiters_close(&waiters);
}

TEST_IN_ARENA(geometry_of(4, 512), a_wake_up_ends_one_wait)
{
    struct result_waiters waiters = waiters_new();
    struct result_waiter seventh = waiter_for(7, 0);
    result_waiters_wake(&waiters);
    EXPECT(!result_waiters_wait(&waiters, arena, 3600 * NS_PER_S, 3600 * NS_PER_S));
    EXPECT(!waiters.is_woken);
    open_batch(arena, SLOT, 7);
    EXPECT_STATUS(result_waiters_add(&waiters, arena, &seventh), STATUS_PENDING);
    result_waiters_wake(&waiters);
    EXPECT(!result_waiters_wait(&waiters, arena, 0, 3600 * NS_PER_S));
    EXPECT(!result_waiters_wait(&waiters, arena, 0, 1)); /* the time is over */
    free_slot(arena, SLOT);
    result_waiters_close(&waiters);
    expect_taken(&waiters, &seventh);
}

RUN_ALL()
