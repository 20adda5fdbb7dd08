/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record.h"

#include "format/crc32c.h"
#include "format/record_summed.h"
#include "samples.h"
#include "testing.h"

enum { BUFFER_SIZE = RECORD_PREFIX_SIZE_MAX + (RANDOM_HEADER_COUNT_MAX + 2) * 2 * (RANDOM_PART_SIZE_MAX + 5) };

static struct record_size measured(const struct record *record)
{
    struct record_size size = {0};
    EXPECT_STATUS(record_measure(record, &size), STATUS_OK);
    return size;
}

static bool same_part(const void *bytes, int32_t size, const uint8_t *view_bytes, int32_t view_size)
{
    return size == view_size && (size < 0 ? view_bytes == NULL : memcmp(bytes, view_bytes, (size_t)size) == 0);
}

static void expect_same_headers(const struct record *record, const struct record_view *view)
{
    const uint8_t *cursor = view->headers;
    EXPECT(view->header_count == record->header_count);
    for (int32_t i = 0; i < record->header_count; i++) {
        const struct record_header *header = &record->headers[i];
        struct record_header_view read;
        EXPECT_STATUS(record_header_read(&cursor, view->headers_end, &read), STATUS_OK);
        EXPECT(same_part(header->key, header->key_size, read.key, read.key_size));
        EXPECT(same_part(header->value, header->value_size, read.value, read.value_size));
    }
    EXPECT(cursor == view->headers_end);
}

static void expect_reads_back(const struct record *record, int32_t offset_delta, int64_t timestamp_delta,
                              const uint8_t *bytes, size_t size)
{
    const uint8_t *cursor = bytes;
    struct record_view view;
    EXPECT_STATUS(record_read(&cursor, bytes + size, &view), STATUS_OK);
    EXPECT(cursor == bytes + size);
    EXPECT(view.attributes == 0 && view.offset_delta == offset_delta && view.timestamp_delta == timestamp_delta);
    EXPECT(same_part(record->key, record->key_size, view.key, view.key_size));
    EXPECT(same_part(record->value, record->value_size, view.value, view.value_size));
    expect_same_headers(record, &view);
}

/* Reads a copy of exactly this size, so that the address sanitizer detects any access outside of it. */
static enum status read_exactly(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size + (size == 0));
    memcpy(copy, bytes, size);
    const uint8_t *cursor = copy;
    struct record_view view;
    enum status status = record_read(&cursor, copy + size, &view);
    EXPECT(status == STATUS_OK ? cursor > copy && cursor <= copy + size : cursor == copy);
    free(copy);
    return status;
}

#define EXPECT_CORRUPT(literal) \
    EXPECT_STATUS(read_exactly((const uint8_t *)(literal), sizeof(literal) - 1), STATUS_CORRUPT)

static void expect_written(const struct record *record, int32_t offset_delta, int64_t timestamp_delta,
                           const char *expected, size_t expected_size)
{
    uint8_t bytes[64];
    struct record_size size = measured(record);
    uint8_t *end = record_write(bytes, record, &size, offset_delta, timestamp_delta);
    EXPECT_EQ_U64((size_t)(end - bytes), expected_size);
    EXPECT(memcmp(bytes, expected, expected_size) == 0);
    expect_reads_back(record, offset_delta, timestamp_delta, bytes, expected_size);
}

TEST(known_records_have_their_known_bytes)
{
    expect_written(&key_value_record, 0, 0, KEY_VALUE_RECORD, sizeof KEY_VALUE_RECORD - 1);
    expect_written(&headers_record, 1, 5, HEADERS_RECORD, sizeof HEADERS_RECORD - 1);
}

TEST(null_and_empty_are_two_things)
{
    struct record null = {.key_size = -1, .value_size = -1};
    struct record empty = {.key = "", .value = ""};
    expect_written(&null, 0, 0, "\x0c\x00\x00\x00\x01\x01\x00", 7);
    expect_written(&empty, 0, 0, "\x0c\x00\x00\x00\x00\x00\x00", 7);
}

/* Compare the counted size with the encoded size, which separate code computes. */
static void expect_count_is_what_is_encoded(const struct record *record, int32_t offset_delta, int64_t timestamp_delta)
{
    uint8_t bytes[BUFFER_SIZE + 1];
    struct record_size size = measured(record);
    uint32_t encoded_size = record_encoded_size(&size, offset_delta, timestamp_delta);
    memset(bytes, 0xee, sizeof bytes);
    uint8_t *end = record_write(bytes, record, &size, offset_delta, timestamp_delta);
    EXPECT_EQ_U64((size_t)(end - bytes), encoded_size);
    EXPECT(encoded_size <= record_size_upper_bound(&size));
    EXPECT_EQ_U64(*end, 0xee);
    expect_reads_back(record, offset_delta, timestamp_delta, bytes, encoded_size);
}

/* One pass that writes and sums, into memory of the exact size, must have the results of record_write and
 * crc32c_extend. */
static void expect_summed(const struct record *record, int32_t offset_delta, int64_t timestamp_delta)
{
    struct record_size size = measured(record);
    uint32_t encoded_size = record_encoded_size(&size, offset_delta, timestamp_delta);
    uint8_t *expected = malloc(encoded_size);
    uint8_t *summed = malloc(encoded_size);
    record_write(expected, record, &size, offset_delta, timestamp_delta);
    uint32_t crc = record_write_summed(summed, record, &size, offset_delta, timestamp_delta, 0x12345678);
    EXPECT(memcmp(summed, expected, encoded_size) == 0);
    EXPECT_EQ_U64(crc, crc32c_extend(0x12345678, expected, encoded_size));
    free(expected);
    free(summed);
}

static void expect_summed_either_way(const struct record *record, int32_t offset_delta, int64_t timestamp_delta)
{
    bool had_hardware = crc32c_hardware_present;
    expect_summed(record, offset_delta, timestamp_delta);
    crc32c_hardware_present = false;
    expect_summed(record, offset_delta, timestamp_delta);
    crc32c_hardware_present = had_hardware;
}

TEST(writing_and_summing_in_one_pass_gives_the_same)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < 500; i++) {
        struct random_record random;
        random_record_fill(&random, &randomness);
        int32_t offset_delta = (int32_t)(random_magnitude(&randomness) & INT32_MAX);
        expect_summed_either_way(&random.record, offset_delta, (int64_t)random_magnitude(&randomness));
    }
}

/* The sizes need one stream, three streams, or several passes of three streams. Each is tested with every remainder. */
TEST(values_of_many_sizes_are_summed)
{
    uint8_t *value = malloc(10000);
    for (int i = 0; i < 10000; i++) {
        value[i] = (uint8_t)(i * 7 + i / 251);
    }
    for (int32_t size = -1; size < 10000; size = size < 400 ? size + 1 : size + 61) {
        expect_summed_either_way(&(struct record){.key_size = -1, .value = value, .value_size = size}, size & 127, 3);
    }
    free(value);
}

TEST(random_records_are_as_long_as_counted_and_read_back)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < 2000; i++) {
        struct random_record random;
        random_record_fill(&random, &randomness);
        int32_t offset_delta = (int32_t)(random_magnitude(&randomness) & INT32_MAX);
        expect_count_is_what_is_encoded(&random.record, offset_delta, (int64_t)random_magnitude(&randomness));
        expect_count_is_what_is_encoded(&random.record, offset_delta, (int64_t)(0 - random_magnitude(&randomness)));
    }
}

TEST(the_upper_bound_is_that_of_kafka_and_is_reached)
{
    struct record_size size = measured(&key_value_record);
    EXPECT_EQ_U64(record_size_upper_bound(&size), 21 + 1 + 3 + 1 + 5 + 1);
    expect_count_is_what_is_encoded(&key_value_record, INT32_MAX, INT64_MIN);
    struct record_size largest = {.fixed = INT32_MAX / 2};
    EXPECT_EQ_U64(record_encoded_size(&largest, INT32_MAX, INT64_MIN), record_size_upper_bound(&largest));
}

/* An ordinary record is measured on a fast path. Compare it with the general path. */
static void expect_measured_alike(const struct record *record)
{
    struct record_size at_once = {.fixed = 1}, any = {.fixed = 1};
    EXPECT_STATUS(record_measure(record, &at_once), record_measure_any(record, &any));
    EXPECT_EQ_U64(at_once.fixed, any.fixed);
}

TEST(measuring_at_once_is_measuring)
{
    static const int32_t sizes[] = {-2, -1, 0, 1, 63, 64, 8191, 8192, (1 << 29) - 2, (1 << 29) - 1, 1 << 29, INT32_MAX};
    static const int64_t timestamps_ms[] = {INT64_MIN, -2, NO_TIMESTAMP, 0, INT64_MAX};
    size_t size_count = sizeof sizes / sizeof *sizes;
    for (size_t i = 0; i < size_count * size_count; i++) {
        struct record record = {.key_size = sizes[i % size_count], .value_size = sizes[i / size_count]};
        for (size_t t = 0; t < sizeof timestamps_ms / sizeof *timestamps_ms; t++) {
            record.timestamp_ms = timestamps_ms[t];
            expect_measured_alike(&record);
        }
        record.header_count = -1;
        expect_measured_alike(&record);
    }
}

TEST(measuring_rejects_impossible_sizes)
{
    struct record_header bad_key = {.key = "", .key_size = -1}, bad_value = {.key = "", .value_size = -2};
    const struct record refused[] = {
        {.key_size = -2},
        {.value_size = -2},
        {.header_count = -1},
        {.timestamp_ms = -2},
        {.headers = &bad_key, .header_count = 1},
        {.headers = &bad_value, .header_count = 1},
    };
    struct record_size size;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        EXPECT_STATUS(record_measure(&refused[i], &size), STATUS_INVALID);
    }
    struct record without_timestamp = {.timestamp_ms = NO_TIMESTAMP};
    EXPECT_STATUS(record_measure(&without_timestamp, &size), STATUS_OK);
}

TEST(measuring_rejects_records_that_do_not_fit_into_an_int32)
{
    /* attributes, null key, size of the value, header count; then the batch header */
    int32_t largest = INT32_MAX - 61 - 20 - (1 + 1 + 5 + 1);
    struct record record = {.key_size = -1, .value_size = largest};
    struct record_size size;
    EXPECT_STATUS(record_measure(&record, &size), STATUS_OK);
    EXPECT_EQ_U64(record_size_upper_bound(&size), RECORD_SIZE_MAX);
    record.value_size++;
    EXPECT_STATUS(record_measure(&record, &size), STATUS_RECORD_TOO_LARGE);
    record = (struct record){.key_size = INT32_MAX, .value_size = INT32_MAX};
    EXPECT_STATUS(record_measure(&record, &size), STATUS_RECORD_TOO_LARGE);
}

TEST(measuring_does_not_overflow_over_many_headers)
{
    struct record_header headers[5];
    for (size_t i = 0; i < 5; i++) {
        headers[i] = (struct record_header){.key_size = INT32_MAX, .value_size = INT32_MAX};
    }
    struct record record = {.headers = headers, .header_count = 5};
    struct record_size size;
    EXPECT_STATUS(record_measure(&record, &size), STATUS_RECORD_TOO_LARGE);
}

/* ---- several pieces ---- */

static void expect_scattered(const struct record *record, size_t first_size, size_t second_size)
{
    uint8_t bytes[BUFFER_SIZE], scattered[BUFFER_SIZE];
    struct record_size size = measured(record);
    size_t encoded_size = (size_t)(record_write(bytes, record, &size, 1, 5) - bytes);
    struct piece pieces[3] = {
        {.start = scattered, .size = first_size},
        {.start = scattered + first_size, .size = second_size},
        {.start = scattered + first_size + second_size, .size = encoded_size - first_size - second_size},
    };
    struct scatter target = {.pieces = pieces, .piece_count = 3};
    memset(scattered, 0xee, sizeof scattered);
    record_write_scattered(&target, record, &size, 1, 5);
    EXPECT(memcmp(scattered, bytes, encoded_size) == 0);
    EXPECT_EQ_U64(scattered[encoded_size], 0xee);
}

TEST(a_scattered_record_is_the_same_wherever_it_is_split)
{
    size_t size = sizeof HEADERS_RECORD - 1;
    for (size_t first = 0; first <= size; first++) {
        for (size_t second = 0; first + second <= size; second++) {
            expect_scattered(&headers_record, first, second);
        }
    }
}

TEST(random_records_scatter_as_they_write)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < 500; i++) {
        struct random_record random;
        random_record_fill(&random, &randomness);
        struct record_size size = measured(&random.record);
        size_t encoded_size = record_encoded_size(&size, 1, 5);
        size_t first_size = random_below(&randomness, encoded_size + 1);
        expect_scattered(&random.record, first_size, random_below(&randomness, encoded_size - first_size + 1));
    }
}

/* ---- invalid input ---- */

TEST(a_truncated_record_is_corrupt)
{
    for (size_t size = 0; size < sizeof HEADERS_RECORD - 1; size++) {
        EXPECT_STATUS(read_exactly((const uint8_t *)HEADERS_RECORD, size), STATUS_CORRUPT);
    }
}

TEST(a_body_must_be_as_long_as_its_parts)
{
    EXPECT_CORRUPT("\x1a\x00\x00\x00\x06key\x0avalue\x00");     /* one less */
    EXPECT_CORRUPT("\x1e\x00\x00\x00\x06key\x0avalue\x00\x00"); /* one more */
    EXPECT_CORRUPT("\x00\x00\x00\x00\x06key\x0avalue\x00");     /* none */
    EXPECT_CORRUPT("\x01\x00\x00\x00\x06key\x0avalue\x00");     /* -1 */
    EXPECT_CORRUPT("\x00"); /* none, and nothing follows */
    EXPECT_CORRUPT("\x01");
    EXPECT_CORRUPT("\xfe\xff\xff\xff\x0f\x00\x00\x00\x01\x01\x00");
}

TEST(a_part_must_lie_within_the_body)
{
    EXPECT_CORRUPT("\x0e\x00\x00\x00\x08key\x00");          /* key size 4, then no value */
    EXPECT_CORRUPT("\x0c\x00\x00\x00\x01\x04\x00v2v2v2v2"); /* the value begins in the body and ends past it */
    EXPECT_CORRUPT("\x14\x00\x00\x00\xfe\xff\xff\xff\x0f\x01\x00"); /* key size 2^31 - 1 */
}

TEST(sizes_below_null_are_corrupt)
{
    EXPECT_CORRUPT("\x0c\x00\x00\x00\x03\x01\x00"); /* key size -2 */
    EXPECT_CORRUPT("\x0c\x00\x00\x00\x01\x03\x00"); /* value size -2 */
    EXPECT_CORRUPT("\x0c\x00\x00\x00\x01\x01\x01"); /* header count -1 */
}

TEST(the_header_count_must_be_that_of_the_headers)
{
    EXPECT_CORRUPT("\x1e\x00\x0a\x02\x01\x04v2\x02\x02h\x02x\x02n\x01"); /* one less */
    EXPECT_CORRUPT("\x1e\x00\x0a\x02\x01\x04v2\x06\x02h\x02x\x02n\x01"); /* one more */
    EXPECT_CORRUPT("\x14\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f");      /* 2^31 - 1 */
}

TEST(a_header_must_have_a_key)
{
    EXPECT_CORRUPT("\x10\x00\x00\x00\x01\x01\x02\x01\x01"); /* key null, value null */
}

TEST(any_byte_may_be_wrong)
{
    uint8_t bytes[sizeof HEADERS_RECORD - 1];
    unsigned corrupt_count = 0;
    for (size_t position = 0; position < sizeof bytes; position++) {
        for (unsigned value = 0; value < 256; value++) {
            memcpy(bytes, HEADERS_RECORD, sizeof bytes);
            bytes[position] = (uint8_t)value;
            corrupt_count += read_exactly(bytes, sizeof bytes) == STATUS_CORRUPT;
        }
    }
    EXPECT(corrupt_count > 1000);
}

TEST(all_bytes_may_be_wrong)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[40];
        random_fill(&randomness, bytes, sizeof bytes);
        bytes[0] = (uint8_t)(random_below(&randomness, sizeof bytes) << 1);
        enum status status = read_exactly(bytes, random_below(&randomness, sizeof bytes) + 1);
        EXPECT(status == STATUS_OK || status == STATUS_CORRUPT);
    }
}

RUN_ALL()
