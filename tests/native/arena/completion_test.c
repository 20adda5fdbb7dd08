/* SPDX-License-Identifier: Apache-2.0
 *
 * Results in the completion ring that are found, pending or overwritten.
 */
#include "arena/completion.h"

#include <sys/resource.h>

#include "arena/arena_fixture.h"

static struct completion completion_of(uint32_t slot_index, uint64_t seq, uint32_t first, uint32_t count,
                                       int64_t offset)
{
    return (struct completion){.seq = seq,
                               .slot_index = slot_index,
                               .partition_index = 1,
                               .first_record = first,
                               .record_count = count,
                               .result = RESULT_SUCCEEDED,
                               .base_offset = offset,
                               .log_append_time_ms = -1};
}

static struct record_token token_of(uint32_t slot_index, uint64_t seq, uint32_t record)
{
    return (struct record_token){
        .seq = seq, .partition_index = 1, .slot_index = slot_index, .record_index = record};
}

TEST_IN_ARENA(geometry_of(4, 512), the_result_of_a_record_is_that_of_its_part)
{
    const struct completion parts[] = {completion_of(2, 7, 0, 3, 100), completion_of(2, 7, 3, 2, 500)};
    struct completion found;
    completion_record(arena, &parts[0]);
    completion_record(arena, &parts[1]);
    struct record_token third = token_of(2, 7, 2);
    struct record_token fourth = token_of(2, 7, 3);
    struct record_token sixth = token_of(2, 7, 5);
    EXPECT_STATUS(completion_find(arena, &third, &found), STATUS_OK);
    EXPECT_EQ_U64((uint64_t)found.base_offset, 100);
    EXPECT_STATUS(completion_find(arena, &fourth, &found), STATUS_OK);
    EXPECT_EQ_U64((uint64_t)found.base_offset, 500);
    EXPECT_STATUS(completion_find(arena, &sixth, &found), STATUS_RESULT_EXPIRED);
}

TEST(results_of_a_slot_form_a_list_back_in_time_until_they_are_overwritten)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(4, 512)); /* a ring of 256 */
    struct completion found;
    for (uint64_t seq = 0; seq < 300; seq++) {
        struct completion completion = completion_of((uint32_t)(seq % 2), seq, 0, 1, (int64_t)seq);
        completion_record(arena, &completion);
    }
    for (uint64_t seq = 0; seq < 300; seq++) {
        struct record_token token = token_of((uint32_t)(seq % 2), seq, 0);
        EXPECT_STATUS(completion_find(arena, &token, &found), seq < 44 ? STATUS_RESULT_EXPIRED : STATUS_OK);
        EXPECT(seq < 44 || found.base_offset == (int64_t)seq);
    }
    arena_end(arena, file);
}

TEST_IN_ARENA(geometry_of(4, 512), a_batch_that_is_still_in_its_slot_is_pending)
{
    struct slot_header *slot = &arena->slots[3];
    struct record_token token = token_of(3, 9, 0);
    struct record_token other = token_of(3, 8, 0);
    struct completion found;
    uint64_t free_word = load_relaxed_u64(&slot->word);
    store_relaxed_u32(&slot->partition_index, 1);
    store_relaxed_u64(&slot->seq, 9);
    store_relaxed_u64(&slot->word, slot_word(SLOT_READY, 0, slot_payload_filled(1, 100)));
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_PENDING);
    EXPECT_STATUS(completion_find(arena, &other, &found), STATUS_RESULT_EXPIRED);
    store_relaxed_u64(&slot->word, free_word);
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_RESULT_EXPIRED);
}

/* A list with these links does not occur in practice. It shows at which batch the search ends. */
TEST_IN_ARENA(geometry_of(4, 512), the_search_for_a_pending_result_ends_at_an_earlier_batch)
{
    struct slot_header *slot = &arena->slots[3];
    struct completion own = completion_of(3, 9, 0, 1, 0);
    struct completion earlier = completion_of(3, 8, 0, 1, 0);
    struct completion of_another = completion_of(3, 1, 0, 1, 0);
    struct record_token token = token_of(3, 9, 0);
    struct completion found;
    of_another.partition_index = 0;
    store_relaxed_u32(&slot->partition_index, 1);
    store_relaxed_u64(&slot->seq, 9);
    uint64_t free_word = load_relaxed_u64(&slot->word);
    store_relaxed_u64(&slot->word, slot_word(SLOT_READY, 0, slot_payload_filled(1, 100)));
    completion_record(arena, &own);
    completion_record(arena, &of_another);
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_PENDING);
    store_relaxed_u64(&arena->partitions[0].spilled_end_seq, 1); /* the batch with this number was not spilled */
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_PENDING);
    store_relaxed_u64(&arena->partitions[0].spilled_end_seq, 2); /* perhaps spilled, so its result may be newer */
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_OK);
    completion_record(arena, &earlier);
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_PENDING);
    store_relaxed_u64(&arena->partitions[0].spilled_end_seq, 0);
    store_relaxed_u64(&slot->word, free_word);
}

TEST_IN_ARENA(geometry_of(4, 512), a_cell_that_is_being_written_is_not_read)
{
    struct completion completion = completion_of(0, 5, 0, 1, 1);
    struct record_token token = token_of(0, 5, 0);
    struct completion found;
    completion_record(arena, &completion);
    store_relaxed_u64(&arena->completions[0].number, 0);
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_RESULT_EXPIRED);
    store_relaxed_u64(&arena->completions[0].number, 1);
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_OK);
}

TEST_IN_ARENA(geometry_of(4, 512), a_list_that_turns_in_a_circle_ends)
{
    struct completion first = completion_of(0, 1, 0, 1, 1);
    struct completion second = completion_of(0, 2, 0, 1, 2);
    struct record_token absent = token_of(0, 77, 0);
    struct completion found;
    completion_record(arena, &first);
    completion_record(arena, &second);
    store_relaxed_u64(&arena->completions[0].previous, 2);
    EXPECT_STATUS(completion_find(arena, &absent, &found), STATUS_RESULT_EXPIRED);
    store_relaxed_u64(&arena->completions[0].previous, UINT64_MAX);
    EXPECT_STATUS(completion_find(arena, &absent, &found), STATUS_RESULT_EXPIRED);
}

TEST_IN_ARENA(geometry_of(4, 512), the_next_sender_counts_a_result_that_a_dead_sender_stored)
{
    struct completion completion = completion_of(1, 5, 0, 1, 1);
    completion_record(arena, &completion);
    store_relaxed_u64(&arena->globals->completion_tail, 0);
    completion_repair(arena);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->completion_tail), 1);
    completion_repair(arena);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->completion_tail), 1);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->slots[1].last_completion), 1);
}

/* ---- waiting ---- */

TEST(a_result_is_found_by_its_number_until_it_is_overwritten)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(4, 512)); /* a ring of 256 */
    struct completion found;
    EXPECT_STATUS(completion_at(arena, 0, &found), STATUS_PENDING);
    for (uint64_t seq = 0; seq < 257; seq++) {
        struct completion completion = completion_of(0, seq, 0, 1, (int64_t)seq);
        completion_record(arena, &completion);
    }
    EXPECT_STATUS(completion_at(arena, 0, &found), STATUS_RESULT_EXPIRED);
    EXPECT_STATUS(completion_at(arena, 1, &found), STATUS_OK);
    EXPECT_EQ_U64(found.seq, 1);
    EXPECT_STATUS(completion_at(arena, 256, &found), STATUS_OK);
    EXPECT_STATUS(completion_at(arena, 257, &found), STATUS_PENDING);
    arena_end(arena, file);
}

static bool somebody_waits(struct arena *arena)
{
    return (load_acquire_u32(&arena->globals->completion_wait) & 1) != 0;
}

static void record_one(void *argument)
{
    struct completion completion = completion_of(0, 0, 0, 1, 0);
    completion_record(argument, &completion);
    completion_wake(argument);
}

/* If the result is recorded before the waiter reads the tail, the waiter does not sleep. If it is recorded later, the
 * waiter is woken. */
TEST_IN_ARENA(geometry_of(4, 512), no_waiter_sleeps_past_its_result)
{
    interrupt_at("completion_awaited", 0, record_one, arena);
    completion_wait_slice(arena, &arena->globals->completion_tail, 0, 3600 * NS_PER_S);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(load_acquire_u64(&arena->globals->completion_tail), 1);
    EXPECT(!somebody_waits(arena));
    completion_wait_slice(arena, &arena->globals->completion_tail, 0, 3600 * NS_PER_S); /* already changed */
    EXPECT(somebody_waits(arena));
    completion_wait_slice(arena, &arena->globals->completion_tail, 1, 0); /* there is no result, so the slice ends */
}

/* Each flag is cleared by its own reader. */
TEST_IN_ARENA(geometry_of(4, 512), an_event_loop_that_waits_is_woken_once)
{
    completion_wait_slice(arena, &arena->globals->completion_tail, UINT64_MAX, 0);
    EXPECT(!completion_take_listening(arena));
    completion_listen(arena);
    EXPECT(somebody_waits(arena));
    completion_wake(arena);
    EXPECT(!somebody_waits(arena));
    EXPECT(completion_take_listening(arena));
    EXPECT(!completion_take_listening(arena));
    EXPECT_EQ_U64(load_acquire_u32(&arena->globals->completion_wait) >> 2, 1);
    completion_listen(arena);
    completion_wake(arena); /* no process sleeps: no wake-up is counted */
    EXPECT_EQ_U64(load_acquire_u32(&arena->globals->completion_wait) >> 2, 1);
    EXPECT(completion_take_listening(arena));
}

static uint64_t times_asleep(void)
{
    struct rusage usage;
    EXPECT(getrusage(RUSAGE_THREAD, &usage) == 0);
    return (uint64_t)usage.ru_nvcsw;
}

static void wake_for_an_earlier_one(void *argument)
{
    completion_wake(argument);
    EXPECT(!somebody_waits(argument));
}

static void wake_and_see_another_wait(void *argument)
{
    struct arena *arena = argument;
    completion_wake(arena);
    or_bits_u32(&arena->globals->completion_wait, 1);
}

static void expect_no_sleep_over(void (*wake_up)(void *))
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(4, 512));
    uint64_t asleep = times_asleep();
    interrupt_at("completion_awaited", 0, wake_up, arena);
    completion_wait_slice(arena, &arena->globals->completion_tail, 0, 3600 * NS_PER_S);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(times_asleep(), asleep);
    completion_wait_slice(arena, &arena->globals->completion_tail, 0, 1);
    EXPECT(somebody_waits(arena)); /* a waiter that continues to wait raises it again */
    arena_end(arena, file);
}

/* The flag is cleared for a result that the waiter has already seen. If the waiter slept now, the next result would
 * find the flag clear and wake no process. */
TEST(a_wake_up_for_an_earlier_result_cancels_no_wait_for_the_next)
{
    expect_no_sleep_over(wake_for_an_earlier_one);
}

/* Another waiter sets the flag again. The first waiter still notices the wake-up that came before its sleep. */
TEST(a_wake_up_before_the_sleep_ends_it_also_when_another_waits_by_then)
{
    expect_no_sleep_over(wake_and_see_another_wait);
}

static void wait_for_a_result(struct arena *arena, void *argument)
{
    (void)argument;
    while (load_acquire_u64(&arena->globals->completion_tail) == 0) {
        completion_wait_slice(arena, &arena->globals->completion_tail, 0, COMPLETION_SLICE_NS);
    }
}

/* A dead waiter leaves the flag set. It costs the sender one wake call without effect. */
TEST_IN_ARENA(geometry_of(4, 512), a_waiter_is_woken_and_one_that_died_costs_one_wake)
{
    pid_t dead = child_started(file, wait_for_a_result, NULL, "completion_awaited", SIGKILL);
    EXPECT(child_was_killed(dead));
    EXPECT(somebody_waits(arena));
    pid_t child = child_started(file, wait_for_a_result, NULL, "completion_awaited", SIGSTOP);
    EXPECT(child_is_stopped(child));
    record_one(arena);
    EXPECT(child_finishes(child));
    EXPECT(!somebody_waits(arena));
}

RUN_ALL()
