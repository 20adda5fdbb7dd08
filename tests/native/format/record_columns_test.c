/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record_columns.h"

#include "testing.h"

#include <string.h>

enum { BYTES_SIZE = 512, CELLS = 16 };

static const struct log_range everything = {0, INT64_MAX};

/* Storage of columns, of exactly the measured size. */
struct storage {
    int64_t offsets[CELLS];
    int64_t timestamps_us[CELLS];
    int32_t timestamp_types[CELLS];
    uint8_t bits[5][2];
    int32_t ends[5][CELLS + 1];
    uint8_t data[4][BYTES_SIZE];
};

static struct bytes_column column_over(struct storage *storage, int index, const struct bytes_room *room)
{
    return (struct bytes_column){.room = *room,
                                 .validity = storage->bits[index],
                                 .offsets = storage->ends[index],
                                 .data = storage->data[index]};
}

static struct record_columns columns_over(struct storage *storage, const struct record_columns_room *room)
{
    *storage = (struct storage){0};
    return (struct record_columns){.row_capacity = room->row_count,
                                   .offsets = storage->offsets,
                                   .timestamps_us = storage->timestamps_us,
                                   .timestamp_types = storage->timestamp_types,
                                   .key = column_over(storage, 0, &room->key),
                                   .value = column_over(storage, 1, &room->value),
                                   .has_headers = true,
                                   .header_validity = storage->bits[4],
                                   .header_offsets = storage->ends[4],
                                   .header_key = column_over(storage, 2, &room->header_key),
                                   .header_value = column_over(storage, 3, &room->header_value)};
}

static uint8_t *record_put(uint8_t *target, const struct record *record, int32_t offset_delta)
{
    struct record_size size;
    EXPECT_STATUS(record_measure(record, &size), STATUS_OK);
    return record_write(target, record, &size, offset_delta, 10 * offset_delta);
}

/* Three records at offsets 100, 101 and 103: a key and headers, nothing at all, a value. */
static struct log_records three_records(uint8_t *bytes)
{
    static const struct record_header headers[] = {{"a", "xy", 1, 2}, {"bc", NULL, 2, -1}};
    const struct record full = {"key", "value", 3, 5, headers, 2, 0};
    const struct record empty = {NULL, NULL, -1, -1, NULL, 0, 0};
    const struct record plain = {NULL, "v", -1, 1, NULL, 0, 0};
    uint8_t *end = record_put(bytes, &full, 0);
    end = record_put(end, &empty, 1);
    end = record_put(end, &plain, 3);
    return (struct log_records){bytes, end, 100, 1000, NO_TIMESTAMP, 3};
}

TEST(records_become_columns)
{
    uint8_t bytes[BYTES_SIZE];
    struct storage storage;
    struct record_columns_room room = {0};
    struct log_records records = three_records(bytes);
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_OK);
    EXPECT(room.row_count == 3 && room.key.cell_count == 3 && room.key.data_size == 3 && room.value.data_size == 6);
    EXPECT(room.header_key.cell_count == 2 && room.header_key.data_size == 3 && room.header_value.data_size == 2);
    struct record_columns columns = columns_over(&storage, &room);
    EXPECT_STATUS(record_columns_append(&records, &everything, &columns), STATUS_OK);
    EXPECT(columns.row_count == 3);
    EXPECT(storage.offsets[0] == 100 && storage.offsets[1] == 101 && storage.offsets[2] == 103);
    EXPECT(storage.timestamps_us[2] == 1030 * 1000 && storage.timestamp_types[2] == 0);
    EXPECT(storage.bits[0][0] == 1 && storage.bits[1][0] == 5 && columns.key.null_count == 2);
    EXPECT(storage.ends[1][0] == 0 && storage.ends[1][1] == 5 && storage.ends[1][2] == 5 && storage.ends[1][3] == 6);
    EXPECT(memcmp(storage.data[1], "valuev", 6) == 0);
    EXPECT(storage.bits[4][0] == 1 && columns.header_null_count == 2);
    EXPECT(storage.ends[4][1] == 2 && storage.ends[4][3] == 2 && memcmp(storage.data[2], "abc", 3) == 0);
    EXPECT(storage.bits[3][0] == 1 && memcmp(storage.data[3], "xy", 2) == 0);
}

TEST(only_the_range_is_taken)
{
    uint8_t bytes[BYTES_SIZE];
    struct storage storage;
    struct record_columns_room room = {0};
    const struct log_range range = {101, 103};
    struct log_records records = three_records(bytes);
    EXPECT_STATUS(record_columns_measure(&records, &range, &room), STATUS_OK);
    EXPECT(room.row_count == 1 && room.value.data_size == 0);
    struct record_columns columns = columns_over(&storage, &room);
    EXPECT_STATUS(record_columns_append(&records, &range, &columns), STATUS_OK);
    EXPECT(columns.row_count == 1 && storage.offsets[0] == 101);
}

TEST(the_log_s_time_applies_to_all)
{
    uint8_t bytes[BYTES_SIZE];
    struct storage storage;
    struct record_columns_room room = {0};
    struct log_records records = three_records(bytes);
    records.log_append_time_ms = 7;
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_OK);
    struct record_columns columns = columns_over(&storage, &room);
    EXPECT_STATUS(record_columns_append(&records, &everything, &columns), STATUS_OK);
    EXPECT(storage.timestamps_us[0] == 7000 && storage.timestamps_us[2] == 7000 && storage.timestamp_types[1] == 1);
}

TEST(what_contradicts_itself_is_corrupt)
{
    uint8_t bytes[BYTES_SIZE];
    struct record_columns_room room = {0};
    struct log_records records = three_records(bytes);
    records.record_count = 4;
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_CORRUPT);
    records.record_count = 2;
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_CORRUPT);
    records = three_records(bytes);
    records.end--;
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_CORRUPT);
    records = three_records(bytes);
    records.base_offset = INT64_MAX - 2;
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_CORRUPT);
}

/* If the bytes change between the passes, appending ends at any buffer that has become too small. */
TEST(appending_never_leaves_the_room)
{
    uint8_t bytes[BYTES_SIZE];
    struct storage storage;
    struct record_columns_room room = {0};
    struct log_records records = three_records(bytes);
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_OK);
    int64_t *const numbers[] = {&room.row_count,           &room.key.data_size,        &room.key.cell_count,
                                &room.value.data_size,     &room.header_key.data_size, &room.header_key.cell_count,
                                &room.header_value.data_size};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        --*numbers[i];
        struct record_columns columns = columns_over(&storage, &room);
        EXPECT_STATUS(record_columns_append(&records, &everything, &columns), STATUS_CORRUPT);
        ++*numbers[i];
    }
}

RUN_ALL()
