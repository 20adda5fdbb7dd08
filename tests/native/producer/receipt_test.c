/* SPDX-License-Identifier: Apache-2.0
 *
 * Receipts, and results that the tests store themselves.
 */
#include "producer/receipt.h"

#include "arena/arena_fixture.h"

enum { PARTITION = 1 };

static struct batch_place place_of(uint32_t slot_index, uint64_t seq, uint32_t record_index)
{
    return (struct batch_place){.slot_index = slot_index, .seq = seq, .record_index = record_index};
}

static void add_rows(struct receipt *receipt, uint32_t count, const uint8_t *places, const int64_t *timestamps_ms)
{
    struct receipt_rows rows = {.count = count, .places = places, .timestamps_ms = timestamps_ms};
    EXPECT_STATUS(receipt_add_rows(receipt, &rows), STATUS_OK);
}

static void add_run(struct receipt *receipt, uint32_t partition_index, struct batch_place place, uint32_t count)
{
    receipt_add_run(receipt, partition_index, &place, count);
}

static void record_result(struct arena *arena, struct completion completion)
{
    completion.result = completion.result == RESULT_NONE ? RESULT_SUCCEEDED : completion.result;
    completion.log_append_time_ms = -1;
    completion_record(arena, &completion);
}

static void record_success(struct arena *arena, uint32_t slot_index, uint64_t seq, uint32_t count, int64_t offset)
{
    record_result(arena, (struct completion){.seq = seq,
                                             .slot_index = slot_index,
                                             .partition_index = PARTITION,
                                             .record_count = count,
                                             .base_offset = offset});
}

static struct receipt_total only_total(const struct receipt *receipt)
{
    struct receipt_total totals[8];
    EXPECT_EQ_U64(receipt_totals(receipt, totals), 1);
    return totals[0];
}

static struct record_token token_at(const struct receipt *receipt, uint32_t position)
{
    const struct receipt_run *run = receipt_run_at(receipt, position);
    return (struct record_token){.seq = run->seq,
                                 .partition_index = run->partition_index,
                                 .slot_index = run->slot_index,
                                 .record_index = run->record_index + (position - run->position)};
}

TEST(runs_that_continue_each_other_are_one)
{
    struct receipt receipt = {0};
    add_rows(&receipt, 10, NULL, NULL);
    add_run(&receipt, PARTITION, place_of(0, 5, 2), 3);
    add_run(&receipt, PARTITION, place_of(0, 5, 5), 2);
    add_run(&receipt, PARTITION, place_of(0, 5, 9), 2); /* another process appended two in between */
    add_run(&receipt, PARTITION, place_of(1, 6, 0), 2);
    add_run(&receipt, PARTITION + 1, place_of(1, 6, 2), 1);
    EXPECT_EQ_U64(receipt.run_count, 4);
    EXPECT_EQ_U64(receipt.appended_count, 10);
    static const uint32_t indices[] = {2, 3, 4, 5, 6, 9, 10, 0, 1, 2};
    for (uint32_t row = 0; row < 10; row++) {
        uint32_t position;
        EXPECT(receipt_find(&receipt, row, &position) && position == row);
        struct record_token token = token_at(&receipt, position);
        EXPECT_EQ_U64(token.record_index, indices[row]);
        EXPECT_EQ_U64(token.seq, row < 7 ? 5 : 6);
        EXPECT_EQ_U64(token.partition_index, row < 9 ? PARTITION : PARTITION + 1);
    }
    receipt_close(&receipt);
}

TEST(rows_in_another_order_keep_their_positions)
{
    static const uint8_t places[] = {0, 2, 1, 3};
    struct receipt receipt = {.timestamp_ms = 77};
    add_rows(&receipt, 2, NULL, NULL);
    add_run(&receipt, PARTITION, place_of(0, 5, 0), 2);
    add_rows(&receipt, 4, places, (int64_t[]){10, 11, 12, 13});
    add_run(&receipt, PARTITION, place_of(0, 5, 2), 2);
    add_run(&receipt, PARTITION + 1, place_of(1, 0, 0), 1); /* the last run */
    static const uint32_t expected[] = {0, 1, 2, 4, 3, 5};
    static const int64_t timestamps_ms[] = {77, 77, 10, 11, 12, 13};
    for (uint32_t row = 0; row < 6; row++) {
        uint32_t position;
        EXPECT(receipt_find(&receipt, row, &position) == (row != 5));
        EXPECT_EQ_U64(position, expected[row]);
        EXPECT_EQ_U64(receipt_row_at(&receipt, position), row);
        EXPECT(receipt_timestamp(&receipt, row) == timestamps_ms[row]);
    }
    receipt_close(&receipt);
}

TEST(many_rows_enlarge_their_memory)
{
    static const uint8_t swapped[] = {1, 0};
    struct receipt receipt = {0};
    for (uint32_t row = 0; row < 20000; row += 2) {
        add_rows(&receipt, 2, row == 5000 ? swapped : NULL, row == 7000 ? (int64_t[]){1, 2} : NULL);
        add_run(&receipt, row % 3, place_of(row % 7, row, 0), 2);
    }
    for (uint32_t row = 0; row < 20000; row++) {
        uint32_t position;
        EXPECT(receipt_find(&receipt, row, &position));
        struct record_token token = token_at(&receipt, position);
        EXPECT_EQ_U64(token.seq + token.record_index, row == 5000 ? 5001 : row == 5001 ? 5000 : row);
        EXPECT(receipt_timestamp(&receipt, row) == (row == 7000 ? 1 : row == 7001 ? 2 : 0));
    }
    receipt_close(&receipt);
}

TEST_IN_ARENA(geometry_of(4, 512), a_receipt_is_resolved_when_all_its_runs_are)
{
    struct receipt receipt = {0};
    EXPECT_STATUS(receipt_resolve(&receipt, arena), STATUS_OK); /* no record was sent, so the wait returns at once */
    add_rows(&receipt, 5, NULL, NULL);
    add_run(&receipt, PARTITION, place_of(0, 7, 1), 3);
    add_run(&receipt, PARTITION, place_of(1, 8, 0), 2);
    store_relaxed_u64(&arena->slots[1].seq, 8);
    store_relaxed_u32(&arena->slots[1].partition_index, PARTITION);
    store_release_u64(&arena->slots[1].word, slot_word(SLOT_READY, 0, slot_payload_filled(2, 100)));
    record_success(arena, 0, 7, 4, 100);
    EXPECT_STATUS(receipt_resolve(&receipt, arena), STATUS_PENDING);
    EXPECT_EQ_U64(receipt.first_pending, 1);
    store_release_u64(&arena->slots[1].word, slot_word(SLOT_FREE, 1, 0));
    record_success(arena, 1, 8, 2, 300);
    EXPECT_STATUS(receipt_resolve(&receipt, arena), STATUS_OK);
    struct receipt_total total = only_total(&receipt);
    EXPECT(total.is_resolved && total.result == RESULT_SUCCEEDED && total.count == 5);
    EXPECT(total.first_offset == 101 && total.last_offset == 301);
    receipt_close(&receipt);
}

TEST_IN_ARENA(geometry_of(4, 512), a_run_over_two_parts_of_a_split_batch_becomes_two)
{
    struct receipt receipt = {0};
    add_rows(&receipt, 8, NULL, NULL);
    add_run(&receipt, PARTITION, place_of(0, 7, 1), 6);
    add_run(&receipt, PARTITION, place_of(0, 7, 9), 2);
    static const uint32_t firsts[] = {0, 3, 5, 12};
    for (uint32_t i = 0; i < 3; i++) {
        record_result(arena, (struct completion){.seq = 7,
                                                 .partition_index = PARTITION,
                                                 .first_record = firsts[i],
                                                 .record_count = firsts[i + 1] - firsts[i],
                                                 .result = i == 1 ? RESULT_FAILED : RESULT_SUCCEEDED,
                                                 .error_code = i == 1 ? 10 : 0,
                                                 .base_offset = i == 1 ? -1 : 1000 * (int64_t)(i + 1)});
    }
    EXPECT_STATUS(receipt_resolve(&receipt, arena), STATUS_OK);
    EXPECT_EQ_U64(receipt.run_count, 4);
    struct receipt_total totals[8];
    EXPECT_EQ_U64(receipt_totals(&receipt, totals), 2);
    EXPECT(totals[0].result == RESULT_SUCCEEDED && totals[0].count == 6);
    EXPECT(totals[0].first_offset == 1001 && totals[0].last_offset == 3005);
    EXPECT(totals[1].result == RESULT_FAILED && totals[1].error_code == 10 && totals[1].count == 2);
    EXPECT(totals[1].first_offset == -1 && totals[1].last_offset == -1);
    for (uint32_t row = 0; row < 8; row++) {
        struct record_token token = token_at(&receipt, row);
        EXPECT_EQ_U64(token.record_index, row < 6 ? 1 + row : 3 + row);
    }
    receipt_close(&receipt);
}

/* The ring has 256 cells. Results far past a pending run are stored before they are overwritten. */
TEST_IN_ARENA(geometry_of(4, 512), results_that_were_read_are_kept_after_the_ring_overwrites_them)
{
    struct receipt receipt = {0};
    add_rows(&receipt, 3, NULL, NULL);
    add_run(&receipt, PARTITION, place_of(0, 7, 0), 1);
    add_run(&receipt, PARTITION, place_of(1, 8, 0), 1);
    store_relaxed_u64(&arena->slots[0].seq, 7);
    store_relaxed_u32(&arena->slots[0].partition_index, PARTITION);
    store_release_u64(&arena->slots[0].word, slot_word(SLOT_READY, 0, slot_payload_filled(1, 100)));
    for (uint64_t seq = 8; seq < 600; seq++) {
        record_success(arena, 1, seq, 1, (int64_t)seq);
        EXPECT_STATUS(receipt_resolve(&receipt, arena), STATUS_PENDING);
    }
    struct receipt_total totals[8];
    EXPECT_EQ_U64(receipt_totals(&receipt, totals), 2);
    EXPECT(!totals[0].is_resolved && totals[0].count == 1);
    EXPECT(totals[1].is_resolved && totals[1].first_offset == 8 && totals[1].count == 1);
    add_run(&receipt, PARTITION, place_of(1, 9, 0), 1); /* the result was overwritten before it was read */
    store_release_u64(&arena->slots[0].word, slot_word(SLOT_FREE, 1, 0));
    EXPECT_STATUS(receipt_resolve_all(&receipt, arena), STATUS_OK);
    EXPECT_EQ_U64(receipt_totals(&receipt, totals), 2);
    EXPECT(totals[0].result == RESULT_NONE && totals[0].is_resolved && totals[0].count == 2);
    receipt_close(&receipt);
}

/* Rows 0 to 4 should be appended in the order 0 2 4 1 3, but the call failed after three of them. */
TEST_IN_ARENA(geometry_of(4, 512), rows_that_were_not_appended_have_no_index)
{
    static const uint8_t places[] = {0, 3, 1, 4, 2};
    struct receipt receipt = {0};
    uint32_t index;
    add_rows(&receipt, 5, places, NULL);
    add_run(&receipt, PARTITION, place_of(0, 7, 0), 2);
    add_run(&receipt, PARTITION, place_of(0, 8, 0), 1);
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT_EQ_U64(receipt_row_of(&receipt, i), 2 * i);
    }
    EXPECT(!receipt_first_failed(&receipt, &index));
    record_success(arena, 0, 7, 2, 100);
    record_result(arena, (struct completion){
                             .seq = 8, .partition_index = PARTITION, .record_count = 1, .result = RESULT_FAILED});
    EXPECT_STATUS(receipt_resolve(&receipt, arena), STATUS_OK);
    EXPECT(receipt_first_failed(&receipt, &index) && index == 2);
    receipt_close(&receipt);
}

RUN_ALL()
