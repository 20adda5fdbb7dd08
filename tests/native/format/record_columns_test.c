/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record_columns.h"

#include "format/columns.h"
#include "testing.h"

#include <string.h>

enum { BYTES_SIZE = 512 };

static const struct log_range everything = {0, INT64_MAX};

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
    struct columns_memory memory;
    struct record_columns_room room = {0};
    struct log_records records = three_records(bytes);
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_OK);
    EXPECT(room.row_count == 3 && room.key.cell_count == 3 && room.key.data_size == 3 && room.value.data_size == 6);
    EXPECT(room.header_key.cell_count == 2 && room.header_key.data_size == 3 && room.header_value.data_size == 2);
    struct record_columns columns = columns_new(&room, true, &memory);
    EXPECT_STATUS(record_columns_append(&records, &everything, &columns), STATUS_OK);
    EXPECT(columns.row_count == 3);
    EXPECT(columns.offsets[0] == 100 && columns.offsets[1] == 101 && columns.offsets[2] == 103);
    EXPECT(columns.timestamps_us[2] == 1030 * 1000 && columns.timestamp_types[2] == 0);
    EXPECT(columns.key.validity[0] == 1 && columns.value.validity[0] == 5 && columns.key.null_count == 2);
    EXPECT(columns.value.offsets[0] == 0 && columns.value.offsets[1] == 5);
    EXPECT(columns.value.offsets[2] == 5 && columns.value.offsets[3] == 6);
    EXPECT(memcmp(columns.value.data, "valuev", 6) == 0);
    EXPECT(columns.header_validity[0] == 1 && columns.header_null_count == 2);
    EXPECT(columns.header_offsets[1] == 2 && columns.header_offsets[3] == 2);
    EXPECT(memcmp(columns.header_key.data, "abc", 3) == 0);
    EXPECT(columns.header_value.validity[0] == 1 && memcmp(columns.header_value.data, "xy", 2) == 0);
    columns_free(&memory);
}

TEST(only_the_range_is_taken)
{
    uint8_t bytes[BYTES_SIZE];
    struct columns_memory memory;
    struct record_columns_room room = {0};
    const struct log_range range = {101, 103};
    struct log_records records = three_records(bytes);
    EXPECT_STATUS(record_columns_measure(&records, &range, &room), STATUS_OK);
    EXPECT(room.row_count == 1 && room.value.data_size == 0);
    struct record_columns columns = columns_new(&room, true, &memory);
    EXPECT_STATUS(record_columns_append(&records, &range, &columns), STATUS_OK);
    EXPECT(columns.row_count == 1 && columns.offsets[0] == 101);
    columns_free(&memory);
}

TEST(the_log_s_time_applies_to_all)
{
    uint8_t bytes[BYTES_SIZE];
    struct columns_memory memory;
    struct record_columns_room room = {0};
    struct log_records records = three_records(bytes);
    records.log_append_time_ms = 7;
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_OK);
    struct record_columns columns = columns_new(&room, true, &memory);
    EXPECT_STATUS(record_columns_append(&records, &everything, &columns), STATUS_OK);
    EXPECT(columns.timestamps_us[0] == 7000 && columns.timestamps_us[2] == 7000 && columns.timestamp_types[1] == 1);
    columns_free(&memory);
}

TEST(a_contradictory_record_is_corrupt)
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

/* If the bytes change after they were measured, a buffer may be too small. The append must end there. */
TEST(appending_never_leaves_the_room)
{
    uint8_t bytes[BYTES_SIZE];
    struct columns_memory memory;
    struct record_columns_room room = {0};
    struct log_records records = three_records(bytes);
    EXPECT_STATUS(record_columns_measure(&records, &everything, &room), STATUS_OK);
    int64_t *const numbers[] = {&room.row_count,           &room.key.data_size,        &room.key.cell_count,
                                &room.value.data_size,     &room.header_key.data_size, &room.header_key.cell_count,
                                &room.header_value.data_size};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        --*numbers[i];
        struct record_columns columns = columns_new(&room, true, &memory);
        EXPECT_STATUS(record_columns_append(&records, &everything, &columns), STATUS_CORRUPT);
        columns_free(&memory);
        ++*numbers[i];
    }
}

RUN_ALL()
