/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers read the ranges of spilled batches.
 */
#include "arena/spilled.h"

#include "arena/arena_fixture.h"
#include "arena/completion.h"

static struct arena *sending_arena(int file)
{
    struct arena *arena = arena_created(file, geometry_of(4, 512));
    arena->is_sender = true;
    return arena;
}

static void sending_arena_end(struct arena *arena, int file)
{
    arena->is_sender = false;
    arena_end(arena, file);
}

static struct record_token token_of(uint64_t seq)
{
    return (struct record_token){.seq = seq, .partition_index = 1, .slot_index = 2, .record_index = 0};
}

TEST(a_range_reaches_from_the_first_to_the_last_spilled_batch)
{
    int file = arena_file_new();
    struct arena *arena = sending_arena(file);
    EXPECT_EQ_U64(spilled_has(arena, 1, 0), false);
    spilled_extend_to(arena, 1, 7);
    EXPECT_EQ_U64(spilled_has(arena, 1, 7), true);
    EXPECT_EQ_U64(spilled_has(arena, 1, 6) || spilled_has(arena, 1, 8) || spilled_has(arena, 0, 7), false);
    spilled_extend_to(arena, 1, 9);
    spilled_extend_to(arena, 1, 5); /* this batch is spilled after later ones */
    EXPECT_EQ_U64(spilled_has(arena, 1, 5) && spilled_has(arena, 1, 9), true);
    EXPECT_EQ_U64(spilled_has(arena, 1, 4) || spilled_has(arena, 1, 10), false);
    spilled_set(arena, 1, 9, 10);
    EXPECT_EQ_U64(spilled_has(arena, 1, 5), false);
    EXPECT_EQ_U64(spilled_has_up_to(arena, 1, 8), false);
    EXPECT_EQ_U64(spilled_has_up_to(arena, 1, 9) && spilled_has_up_to(arena, 1, 100), true);
    spilled_set(arena, 1, 0, 0);
    EXPECT_EQ_U64(spilled_has_up_to(arena, 1, UINT64_MAX), false);
    sending_arena_end(arena, file);
}

TEST(an_emptied_range_takes_in_an_older_batch_alone)
{
    int file = arena_file_new();
    struct arena *arena = sending_arena(file);
    spilled_set(arena, 1, 9, 9);
    spilled_extend_to(arena, 1, 4);
    EXPECT_EQ_U64(spilled_has(arena, 1, 4), true);
    EXPECT_EQ_U64(spilled_has(arena, 1, 5) || spilled_has(arena, 1, 8), false);
    sending_arena_end(arena, file);
}

TEST(a_spilled_batch_is_pending_until_its_result_is_there)
{
    int file = arena_file_new();
    struct arena *arena = sending_arena(file);
    struct record_token token = token_of(7);
    struct completion found;
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_RESULT_EXPIRED);
    spilled_extend_to(arena, 1, 7);
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_PENDING);
    const struct completion result = {.seq = 7,
                                      .slot_index = 2,
                                      .partition_index = 1,
                                      .record_count = 1,
                                      .result = RESULT_SUCCEEDED,
                                      .base_offset = 70};
    completion_record(arena, &result);
    EXPECT_STATUS(completion_find(arena, &token, &found), STATUS_OK);
    EXPECT_EQ_U64((uint64_t)found.base_offset, 70);
    sending_arena_end(arena, file);
}

TEST(a_partition_that_does_not_exist_has_no_spilled_batch)
{
    int file = arena_file_new();
    struct arena *arena = sending_arena(file);
    EXPECT_EQ_U64(spilled_has(arena, UINT32_MAX, 0), false);
    spilled_set(arena, UINT32_MAX, 0, 5); /* this call is ignored */
    sending_arena_end(arena, file);
}

TEST(published_totals_are_read)
{
    int file = arena_file_new();
    struct arena *arena = sending_arena(file);
    const struct spilled_totals totals = {.batch_count = 1, .record_count = 2, .size = 3, .since_ns = 4};
    struct spilled_totals read = {0};
    spilled_publish(arena, &totals);
    spilled_read(arena, &read);
    EXPECT_EQ_U64(read.batch_count * 1000 + read.record_count * 100 + read.size * 10 + read.since_ns, 1234);
    sending_arena_end(arena, file);
}

RUN_ALL()
