/* SPDX-License-Identifier: Apache-2.0 */
#include "log/block_columns.h"

#include "format/columns.h"
#include "testing.h"

#include <string.h>

enum { ROWS = 3, BYTES_SIZE = 1024 };

/* Writes a batch of three records whose header claims `record_count`, and returns its end. */
static uint8_t *request_add_next_batch(uint8_t *target, int64_t base_offset, int16_t attributes, int32_t record_count)
{
    uint8_t *end = target + RECORD_BATCH_HEADER_SIZE;
    for (int32_t i = 0; i < ROWS; i++) {
        const struct record record = {NULL, "value", -1, 5, NULL, 0, 0};
        struct record_size size;
        EXPECT_STATUS(record_measure(&record, &size), STATUS_OK);
        end = record_write(end, &record, &size, i, i);
    }
    const struct record_batch_header header = {
        .base_offset = base_offset,
        .batch_length = (int32_t)(end - target) - RECORD_BATCH_UNCOUNTED_SIZE,
        .magic = RECORD_BATCH_MAGIC_VALUE,
        .attributes = attributes,
        .last_offset_delta = ROWS - 1,
        .base_timestamp = 1000,
        .max_timestamp = 7000,
        .record_count = record_count};
    record_batch_header_write(target, &header);
    return end;
}

static struct block_walk walk_over(const uint8_t *start, const uint8_t *end, bool has_headers)
{
    return (struct block_walk){.block = {.start = start, .size = end - start, .expected_last = INT64_MAX},
                               .range = {0, INT64_MAX},
                               .has_headers = has_headers};
}

/* Returns the columns of all rows, in memory that the caller frees. */
static struct record_columns rows_of(struct block_walk *walk, struct columns_memory *memory)
{
    struct record_columns_room room = {0};
    int64_t end = block_columns_measure(walk, &room);
    struct record_columns columns = columns_new(&room, walk->has_headers, memory);
    block_columns_append(walk, end, &columns);
    EXPECT(room.row_count >= columns.row_count);
    return columns;
}

TEST(the_plain_batches_of_a_block_become_rows)
{
    uint8_t bytes[BYTES_SIZE];
    struct columns_memory memory;
    uint8_t *middle = request_add_next_batch(bytes, 10, 0, ROWS);
    uint8_t *end = request_add_next_batch(middle, 10 + ROWS, RECORD_BATCH_LOG_APPEND_TIME, ROWS);
    for (int has_headers = 0; has_headers < 2; has_headers++) {
        struct block_walk walk = walk_over(bytes, end, has_headers != 0);
        struct record_columns columns = rows_of(&walk, &memory);
        EXPECT(columns.row_count == 2 * ROWS);
        EXPECT(columns.offsets[0] == 10 && columns.offsets[5] == 15);
        EXPECT(columns.timestamps_us[1] == 1001000 && columns.timestamps_us[5] == 7000000);
        EXPECT(columns.timestamp_types[1] == 0 && columns.timestamp_types[5] == 1);
        EXPECT(walk.block.position == end - bytes && walk.block.expected_first == 10 + 2 * ROWS);
        columns_free(&memory);
    }
}

TEST(the_walk_ends_before_a_batch_that_is_not_plain)
{
    uint8_t bytes[BYTES_SIZE];
    struct columns_memory memory;
    uint8_t *middle = request_add_next_batch(bytes, 10, 0, ROWS);
    static const int16_t attributes[] = {1, RECORD_BATCH_TRANSACTIONAL, RECORD_BATCH_CONTROL};
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        uint8_t *end = request_add_next_batch(middle, 10 + ROWS, attributes[i], ROWS);
        struct block_walk walk = walk_over(bytes, end, false);
        struct record_columns columns = rows_of(&walk, &memory);
        EXPECT(columns.row_count == ROWS && walk.block.position == middle - bytes);
        columns_free(&memory);
    }
}

TEST(records_that_contradict_their_header_are_no_rows)
{
    uint8_t bytes[BYTES_SIZE];
    struct columns_memory memory;
    uint8_t *middle = request_add_next_batch(bytes, 10, 0, ROWS);
    static const int32_t record_counts[] = {ROWS - 1, ROWS + 1, 1000000};
    for (size_t i = 0; i < sizeof record_counts / sizeof record_counts[0]; i++) {
        uint8_t *end = request_add_next_batch(middle, 10 + ROWS, 0, record_counts[i]);
        for (int has_headers = 0; has_headers < 2; has_headers++) {
            struct block_walk walk = walk_over(bytes, end, has_headers != 0);
            struct record_columns columns = rows_of(&walk, &memory);
            EXPECT(columns.row_count == ROWS && walk.block.position == middle - bytes);
            EXPECT(columns.offsets[ROWS - 1] == 10 + ROWS - 1);
            columns_free(&memory);
        }
    }
}

TEST(only_rows_of_the_range_are_appended)
{
    uint8_t bytes[BYTES_SIZE];
    struct columns_memory memory;
    uint8_t *middle = request_add_next_batch(bytes, 10, 0, ROWS);
    uint8_t *end = request_add_next_batch(middle, 10 + ROWS, 0, ROWS);
    struct block_walk walk = walk_over(bytes, end, false);
    walk.range = (struct log_range){11, 10 + ROWS};
    struct record_columns columns = rows_of(&walk, &memory);
    EXPECT(columns.row_count == ROWS - 1 && columns.offsets[0] == 11);
    EXPECT(walk.block.position == middle - bytes);
    columns_free(&memory);
}

RUN_ALL()
