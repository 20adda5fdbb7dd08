/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record_batch.h"

#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/record.h"

#include "samples.h"
#include "testing.h"

enum {
    ONE_RECORD_SIZE = 76,
    TWO_RECORDS_SIZE = 92,
    RANDOM_RECORD_COUNT_MAX = 20,
    RANDOM_BATCH_SIZE_MAX = 64 * 1024,
};

/* {key "key", value "value", timestamp 0}, no producer id. */
static const uint8_t one_record[] =
    "\x00\x00\x00\x00\x00\x00\x00\x00" "\x00\x00\x00\x40" "\xff\xff\xff\xff" "\x02" "\x1c\x07\x77\x01"
    "\x00\x00" "\x00\x00\x00\x00" "\x00\x00\x00\x00\x00\x00\x00\x00" "\x00\x00\x00\x00\x00\x00\x00\x00"
    "\xff\xff\xff\xff\xff\xff\xff\xff" "\xff\xff" "\xff\xff\xff\xff" "\x00\x00\x00\x01" KEY_VALUE_RECORD;

/* The same record at 1700000000000, and {null, "v2", h = "x", n = null} 5 ms later, by producer 1000 in epoch 0. */
static const uint8_t two_records[] =
    "\x00\x00\x00\x00\x00\x00\x00\x00" "\x00\x00\x00\x50" "\xff\xff\xff\xff" "\x02" "\xc2\xdb\x49\x1d"
    "\x00\x00" "\x00\x00\x00\x01" "\x00\x00\x01\x8b\xcf\xe5\x68\x00" "\x00\x00\x01\x8b\xcf\xe5\x68\x05"
    "\x00\x00\x00\x00\x00\x00\x03\xe8" "\x00\x00" "\x00\x00\x00\x00" "\x00\x00\x00\x02" KEY_VALUE_RECORD HEADERS_RECORD;

STATIC_CHECK(sizeof one_record == ONE_RECORD_SIZE + 1);
STATIC_CHECK(sizeof two_records == TWO_RECORDS_SIZE + 1);

/* ---- building ---- */

struct batch {
    struct record_batch_header header;
    size_t size;
    uint8_t bytes[RANDOM_BATCH_SIZE_MAX];
};

/* The header of an open batch: only the fields that sealing sets are missing. */
static void batch_begin(struct batch *batch, int64_t base_timestamp)
{
    batch->size = RECORD_BATCH_HEADER_SIZE;
    batch->header = (struct record_batch_header){
        .partition_leader_epoch = -1,
        .magic = RECORD_BATCH_MAGIC_VALUE,
        .base_timestamp = base_timestamp,
        .max_timestamp = NO_TIMESTAMP,
        .producer_id = -1,
        .producer_epoch = -1,
        .base_sequence = -1,
    };
}

static void batch_append(struct batch *batch, const struct record *record)
{
    struct record_batch_header *header = &batch->header;
    struct record_size size;
    EXPECT_STATUS(record_measure(record, &size), STATUS_OK);
    uint8_t *end = record_write(batch->bytes + batch->size, record, &size, header->record_count,
                                record->timestamp_ms - header->base_timestamp);
    batch->size = (size_t)(end - batch->bytes);
    header->last_offset_delta = header->record_count++;
    header->max_timestamp = record->timestamp_ms > header->max_timestamp ? record->timestamp_ms : header->max_timestamp;
}

/* Set the right CRC, even if other bytes are wrong. */
static void set_right_crc(uint8_t *bytes, size_t size)
{
    record_batch_set_crc(bytes, crc32c_extend(0, bytes + RECORD_BATCH_ATTRIBUTES, size - RECORD_BATCH_ATTRIBUTES));
}

static void batch_finish(struct batch *batch)
{
    size_t records_size = batch->size - RECORD_BATCH_HEADER_SIZE;
    uint32_t records_crc = crc32c_extend(0, batch->bytes + RECORD_BATCH_HEADER_SIZE, records_size);
    batch->header.batch_length = (int32_t)(batch->size - RECORD_BATCH_UNCOUNTED_SIZE);
    record_batch_header_write(batch->bytes, &batch->header);
    record_batch_set_crc(batch->bytes, record_batch_crc(batch->bytes, records_crc, records_size));
}

static void batch_of_two(struct batch *batch)
{
    struct record first = key_value_record, second = headers_record;
    first.timestamp_ms = INT64_C(1700000000000);
    second.timestamp_ms = INT64_C(1700000000005);
    batch_begin(batch, first.timestamp_ms);
    batch->header.producer_id = 1000;
    batch->header.producer_epoch = 0;
    batch->header.base_sequence = 0;
    batch_append(batch, &first);
    batch_append(batch, &second);
    batch_finish(batch);
}

static void random_batch(struct batch *batch, struct randomness *randomness)
{
    uint64_t record_count = 1 + random_below(randomness, RANDOM_RECORD_COUNT_MAX);
    int64_t base_timestamp = (int64_t)random_below(randomness, UINT64_C(1) << 42);
    batch_begin(batch, base_timestamp);
    for (uint64_t i = 0; i < record_count; i++) {
        struct random_record random;
        random_record_fill(&random, randomness);
        random.record.timestamp_ms =
            i == 0 ? base_timestamp : (int64_t)random_below(randomness, (uint64_t)base_timestamp * 2 + 1);
        batch_append(batch, &random.record);
    }
    batch_finish(batch);
}

/* ---- expecting ---- */

/* Validates a copy of exactly this size, so that the address sanitizer detects any access outside of it. */
static enum status validate_exactly(const uint8_t *bytes, size_t size, struct error *error)
{
    uint8_t *copy = malloc(size + (size == 0));
    memcpy(copy, bytes, size);
    enum status status = record_batch_validate(copy, size, error);
    free(copy);
    return status;
}

static void expect_refused(const uint8_t *bytes, size_t size, const char *why)
{
    struct error error = {0};
    EXPECT_STATUS(validate_exactly(bytes, size, &error), STATUS_CORRUPT);
    EXPECT_STATUS(error.status, STATUS_CORRUPT);
    EXPECT_OR_SAY(strstr(error.message, why) != NULL, "\"%s\" does not say \"%s\"", error.message, why);
}

static void expect_accepted(const uint8_t *bytes, size_t size)
{
    struct error error = {0};
    enum status status = validate_exactly(bytes, size, &error);
    EXPECT_OR_SAY(status == STATUS_OK, "refused: %s", error.message);
}

/* ---- writing ---- */

TEST(known_batches_have_their_known_bytes)
{
    static struct batch batch;
    batch_begin(&batch, 0);
    batch_append(&batch, &key_value_record);
    batch_finish(&batch);
    EXPECT_EQ_U64(batch.size, ONE_RECORD_SIZE);
    EXPECT(memcmp(batch.bytes, one_record, ONE_RECORD_SIZE) == 0);
    batch_of_two(&batch);
    EXPECT_EQ_U64(batch.size, TWO_RECORDS_SIZE);
    EXPECT(memcmp(batch.bytes, two_records, TWO_RECORDS_SIZE) == 0);
}

TEST(a_header_is_read_as_it_was_written)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < 1000; i++) {
        uint8_t bytes[RECORD_BATCH_HEADER_SIZE], written[RECORD_BATCH_HEADER_SIZE];
        struct record_batch_header header;
        random_fill(&randomness, bytes, sizeof bytes);
        EXPECT_STATUS(record_batch_header_read(bytes, sizeof bytes, &header), STATUS_OK);
        record_batch_header_write(written, &header);
        EXPECT(memcmp(bytes, written, sizeof bytes) == 0);
    }
}

TEST(a_header_has_its_fields_where_kafka_has_them)
{
    struct record_batch_header header;
    EXPECT_STATUS(record_batch_header_read(two_records, TWO_RECORDS_SIZE, &header), STATUS_OK);
    EXPECT(header.base_offset == 0 && header.batch_length == 80 && header.partition_leader_epoch == -1);
    EXPECT(header.magic == 2 && header.crc == 0xc2db491d && header.attributes == 0 && header.last_offset_delta == 1);
    EXPECT(header.base_timestamp == INT64_C(1700000000000) && header.max_timestamp == INT64_C(1700000000005));
    EXPECT(header.producer_id == 1000 && header.producer_epoch == 0 && header.base_sequence == 0);
    EXPECT(header.record_count == 2);
    EXPECT_STATUS(record_batch_header_read(two_records, RECORD_BATCH_HEADER_SIZE - 1, &header), STATUS_CORRUPT);
}

TEST(the_crc_is_combined_without_reading_the_records)
{
    struct randomness randomness = randomness_seeded(__func__);
    static uint8_t bytes[20000];
    for (int i = 0; i < 200; i++) {
        size_t size = RECORD_BATCH_HEADER_SIZE + random_below(&randomness, sizeof bytes - RECORD_BATCH_HEADER_SIZE);
        random_fill(&randomness, bytes, size < 200 ? size : 200);
        uint32_t records_crc = crc32c_extend(0, bytes + RECORD_BATCH_HEADER_SIZE, size - RECORD_BATCH_HEADER_SIZE);
        EXPECT_EQ_U64(record_batch_crc(bytes, records_crc, size - RECORD_BATCH_HEADER_SIZE),
                      crc32c_extend(0, bytes + RECORD_BATCH_ATTRIBUTES, size - RECORD_BATCH_ATTRIBUTES));
    }
}

TEST(another_producer_has_a_crc_that_fits_the_same_records)
{
    struct randomness randomness = randomness_seeded(__func__);
    static uint8_t bytes[20000];
    const struct record_batch_producer producer = {.id = INT64_MAX, .epoch = 7, .base_sequence = INT32_MAX};
    for (int i = 0; i < 200; i++) {
        size_t size = RECORD_BATCH_HEADER_SIZE + random_below(&randomness, sizeof bytes - RECORD_BATCH_HEADER_SIZE);
        random_fill(&randomness, bytes, size);
        store_be32(bytes + RECORD_BATCH_LENGTH, (uint32_t)(size - RECORD_BATCH_UNCOUNTED_SIZE));
        record_batch_set_crc(bytes,
                             crc32c_extend(0, bytes + RECORD_BATCH_ATTRIBUTES, size - RECORD_BATCH_ATTRIBUTES));
        record_batch_change_producer(bytes, &producer);
        struct record_batch_header header;
        EXPECT_STATUS(record_batch_header_read(bytes, size, &header), STATUS_OK);
        EXPECT_EQ_U64(header.crc,
                      crc32c_extend(0, bytes + RECORD_BATCH_ATTRIBUTES, size - RECORD_BATCH_ATTRIBUTES));
        EXPECT(header.base_offset == 0 && header.partition_leader_epoch == -1);
        EXPECT(header.producer_id == producer.id && header.producer_epoch == producer.epoch);
        EXPECT(header.base_sequence == producer.base_sequence);
    }
}

TEST(the_base_offset_is_outside_the_crc)
{
    uint8_t bytes[TWO_RECORDS_SIZE];
    memcpy(bytes, two_records, sizeof bytes);
    store_be64(bytes + RECORD_BATCH_BASE_OFFSET, INT64_C(0x0102030405060708));
    EXPECT(memcmp(bytes, "\x01\x02\x03\x04\x05\x06\x07\x08", 8) == 0);
    EXPECT(memcmp(bytes + 8, two_records + 8, TWO_RECORDS_SIZE - 8) == 0);
    expect_refused(bytes, sizeof bytes, "base offset of a producer's batch is 72623859790382856, not 0");
    store_be64(bytes + RECORD_BATCH_BASE_OFFSET, 0);
    expect_accepted(bytes, sizeof bytes);
}

/* ---- validating: right batches ---- */

TEST(known_batches_are_accepted)
{
    expect_accepted(one_record, ONE_RECORD_SIZE);
    expect_accepted(two_records, TWO_RECORDS_SIZE);
    EXPECT_STATUS(record_batch_validate(two_records, TWO_RECORDS_SIZE, NULL), STATUS_OK);
}

TEST(random_batches_are_accepted)
{
    static struct batch batch;
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < 200; i++) {
        random_batch(&batch, &randomness);
        expect_accepted(batch.bytes, batch.size);
    }
}

TEST(a_batch_without_timestamps_is_accepted)
{
    static struct batch batch;
    struct record record = key_value_record;
    record.timestamp_ms = NO_TIMESTAMP;
    batch_begin(&batch, NO_TIMESTAMP);
    batch_append(&batch, &record);
    batch_append(&batch, &record);
    batch_finish(&batch);
    expect_accepted(batch.bytes, batch.size);
}

TEST(a_transactional_batch_is_accepted)
{
    static struct batch batch;
    batch_of_two(&batch);
    store_be16(batch.bytes + RECORD_BATCH_ATTRIBUTES, RECORD_BATCH_TRANSACTIONAL);
    set_right_crc(batch.bytes, batch.size);
    expect_accepted(batch.bytes, batch.size);
}

/* ---- validating: wrong batches under a right crc ---- */

struct wrong_field {
    unsigned position;
    unsigned size;
    uint64_t value;
    const char *why;
};

static const struct wrong_field wrong_fields[] = {
    {RECORD_BATCH_BASE_OFFSET, 8, 1, "base offset of a producer's batch is 1, not 0"},
    {RECORD_BATCH_LENGTH, 4, TWO_RECORDS_SIZE - 13, "batch length 79 does not fit its 92 bytes"},
    {RECORD_BATCH_LENGTH, 4, TWO_RECORDS_SIZE - 11, "batch length 81 does not fit its 92 bytes"},
    {RECORD_BATCH_LENGTH, 4, UINT32_MAX - 11, "batch length -12 does not fit its 92 bytes"},
    {RECORD_BATCH_MAGIC, 1, 1, "magic is 1, not 2"},
    {RECORD_BATCH_ATTRIBUTES, 2, 1, "attributes 0x0001"},
    {RECORD_BATCH_ATTRIBUTES, 2, RECORD_BATCH_LOG_APPEND_TIME, "attributes 0x0008"},
    {RECORD_BATCH_ATTRIBUTES, 2, RECORD_BATCH_CONTROL, "attributes 0x0020"},
    {RECORD_BATCH_ATTRIBUTES, 2, 0x8000, "attributes 0x8000"},
    {RECORD_BATCH_LAST_OFFSET_DELTA, 4, 2, "2 records with a last offset delta of 2"},
    {RECORD_BATCH_LAST_OFFSET_DELTA, 4, UINT32_MAX, "2 records with a last offset delta of -1"},
    {RECORD_BATCH_RECORD_COUNT, 4, 0, "0 records"},
    {RECORD_BATCH_RECORD_COUNT, 4, UINT32_C(1) << 31, "-2147483648 records"},
    {RECORD_BATCH_BASE_TIMESTAMP, 8, UINT64_C(1) << 63, "a record has the timestamp -9223372036854775808"},
    {RECORD_BATCH_BASE_TIMESTAMP, 8, (uint64_t)-2, "a record has the timestamp -2"},
    {RECORD_BATCH_BASE_TIMESTAMP, 8, INT64_MAX, "record 1 at byte 76"}, /* + 5 overflows */
    {RECORD_BATCH_MAX_TIMESTAMP, 8, UINT64_C(1700000000004), "its records give 1700000000005"},
    {RECORD_BATCH_MAX_TIMESTAMP, 8, UINT64_C(1700000000006), "its records give 1700000000005"},
    {RECORD_BATCH_PRODUCER_EPOCH, 2, UINT16_MAX, "producer id 1000 with epoch -1"},
    {RECORD_BATCH_BASE_SEQUENCE, 4, UINT32_MAX, "base sequence -1"},
};

static void expect_field_refused(const struct wrong_field *field)
{
    uint8_t bytes[TWO_RECORDS_SIZE];
    memcpy(bytes, two_records, sizeof bytes);
    for (unsigned i = 0; i < field->size; i++) {
        bytes[field->position + i] = (uint8_t)(field->value >> 8 * (field->size - 1 - i));
    }
    set_right_crc(bytes, sizeof bytes);
    expect_refused(bytes, sizeof bytes, field->why);
}

TEST(each_wrong_field_is_refused_with_a_reason)
{
    for (size_t i = 0; i < sizeof wrong_fields / sizeof *wrong_fields; i++) {
        expect_field_refused(&wrong_fields[i]);
    }
}

TEST(a_wrong_crc_is_refused)
{
    uint8_t bytes[TWO_RECORDS_SIZE];
    memcpy(bytes, two_records, sizeof bytes);
    record_batch_set_crc(bytes, 0xc2db491c);
    expect_refused(bytes, sizeof bytes, "crc is c2db491c, its bytes give c2db491d");
}

static void expect_count_refused(int32_t record_count, const char *why)
{
    static struct batch batch;
    batch_of_two(&batch);
    batch.header.record_count = record_count;
    batch.header.last_offset_delta = record_count - 1;
    batch_finish(&batch);
    expect_refused(batch.bytes, batch.size, why);
}

TEST(the_record_count_must_be_that_of_the_records)
{
    expect_count_refused(1, "16 bytes follow the last record");
    expect_count_refused(3, "record 2 at byte 92 is corrupt");
    expect_count_refused(INT32_MAX, "record 2 at byte 92 is corrupt");
}

TEST(a_batch_of_no_records_is_refused)
{
    static struct batch batch;
    batch_begin(&batch, 0);
    batch.header.last_offset_delta = -1;
    batch_finish(&batch);
    expect_refused(batch.bytes, batch.size, "0 records with a last offset delta of -1");
}

TEST(offset_deltas_must_count_from_zero)
{
    uint8_t bytes[TWO_RECORDS_SIZE];
    const size_t second_offset_delta = RECORD_BATCH_HEADER_SIZE + sizeof KEY_VALUE_RECORD - 1 + 3;
    memcpy(bytes, two_records, sizeof bytes);
    EXPECT_EQ_U64(bytes[second_offset_delta], 1 << 1);
    bytes[second_offset_delta] = 2 << 1;
    set_right_crc(bytes, sizeof bytes);
    expect_refused(bytes, sizeof bytes, "record 1 at byte 76 is corrupt");
}

/* ---- validating: any bytes ---- */

TEST(every_truncated_batch_is_refused)
{
    for (size_t size = 0; size < TWO_RECORDS_SIZE; size++) {
        const char *why = size < RECORD_BATCH_HEADER_SIZE ? "less than a batch header" : "does not fit";
        expect_refused(two_records, size, why);
    }
}

/* Correct the length and CRC, so that the walk over the records reaches the end. */
TEST(every_truncated_batch_with_its_new_length_is_refused)
{
    for (size_t size = RECORD_BATCH_HEADER_SIZE; size < TWO_RECORDS_SIZE; size++) {
        uint8_t bytes[TWO_RECORDS_SIZE];
        memcpy(bytes, two_records, size);
        store_be32(bytes + RECORD_BATCH_LENGTH, (uint32_t)size - RECORD_BATCH_UNCOUNTED_SIZE);
        set_right_crc(bytes, size);
        expect_refused(bytes, size, "is corrupt");
    }
}

static bool is_leader_epoch(size_t position)
{
    return position >= RECORD_BATCH_LEADER_EPOCH && position < RECORD_BATCH_MAGIC;
}

TEST(every_wrong_byte_is_noticed_but_in_the_leader_epoch)
{
    for (size_t position = 0; position < TWO_RECORDS_SIZE; position++) {
        for (unsigned change = 1; change < 256; change++) {
            uint8_t bytes[TWO_RECORDS_SIZE];
            memcpy(bytes, two_records, sizeof bytes);
            bytes[position] ^= (uint8_t)change;
            EXPECT_STATUS(validate_exactly(bytes, sizeof bytes, NULL),
                          is_leader_epoch(position) ? STATUS_OK : STATUS_CORRUPT);
        }
    }
}

/* Another process may write wrong bytes with a right CRC. The reader still returns, and accesses no byte outside of the
 * batch. */
TEST(wrong_bytes_under_a_right_crc_do_no_harm)
{
    static struct batch batch;
    struct randomness randomness = randomness_seeded(__func__);
    unsigned refused_count = 0;
    for (int i = 0; i < 300; i++) {
        random_batch(&batch, &randomness);
        for (uint64_t wrong = 1 + random_below(&randomness, 4); wrong > 0; wrong--) {
            size_t position = RECORD_BATCH_ATTRIBUTES + random_below(&randomness, batch.size - RECORD_BATCH_ATTRIBUTES);
            batch.bytes[position] = (uint8_t)random_bits(&randomness);
        }
        set_right_crc(batch.bytes, batch.size);
        refused_count += validate_exactly(batch.bytes, batch.size, NULL) == STATUS_CORRUPT;
    }
    EXPECT(refused_count > 0);
}

TEST(every_wrong_byte_under_a_right_crc_does_no_harm)
{
    unsigned refused_count = 0;
    for (size_t position = RECORD_BATCH_ATTRIBUTES; position < TWO_RECORDS_SIZE; position++) {
        for (unsigned value = 0; value < 256; value++) {
            uint8_t bytes[TWO_RECORDS_SIZE];
            memcpy(bytes, two_records, sizeof bytes);
            bytes[position] = (uint8_t)value;
            set_right_crc(bytes, sizeof bytes);
            refused_count += validate_exactly(bytes, sizeof bytes, NULL) == STATUS_CORRUPT;
        }
    }
    EXPECT(refused_count > 5000);
}

/* ---- validating: several pieces ---- */

static enum status validate_in_three(const uint8_t *bytes, size_t size, size_t first_size, size_t second_size)
{
    uint8_t copy[3][TWO_RECORDS_SIZE];
    const struct piece pieces[3] = {
        {.start = copy[0], .size = first_size},
        {.start = copy[1], .size = second_size},
        {.start = copy[2], .size = size - first_size - second_size},
    };
    struct scatter target = {.pieces = pieces, .piece_count = 3};
    scatter_write(&target, bytes, size);
    return record_batch_validate_pieces(pieces, 3, NULL);
}

TEST(a_batch_in_pieces_is_judged_as_a_whole)
{
    uint8_t wrong[TWO_RECORDS_SIZE];
    memcpy(wrong, two_records, sizeof wrong);
    wrong[TWO_RECORDS_SIZE - 1]++;
    for (size_t first = 0; first <= TWO_RECORDS_SIZE; first++) {
        for (size_t second = 0; first + second <= TWO_RECORDS_SIZE; second += 7) {
            EXPECT_STATUS(validate_in_three(two_records, TWO_RECORDS_SIZE, first, second), STATUS_OK);
            EXPECT_STATUS(validate_in_three(wrong, TWO_RECORDS_SIZE, first, second), STATUS_CORRUPT);
        }
    }
}

TEST(one_piece_and_no_piece)
{
    uint8_t bytes[TWO_RECORDS_SIZE];
    struct piece piece = {.start = bytes, .size = sizeof bytes};
    struct error error = {0};
    memcpy(bytes, two_records, sizeof bytes);
    EXPECT_STATUS(record_batch_validate_pieces(&piece, 1, NULL), STATUS_OK);
    EXPECT_STATUS(record_batch_validate_pieces(NULL, 0, &error), STATUS_CORRUPT);
    EXPECT(strcmp(error.message, "0 bytes are less than a batch header") == 0);
}

/* ---- parts ---- */

/* Makes a part of the batch, in memory with exactly the size of the whole batch. */
static uint8_t *part_made(const struct batch *batch, int32_t first, int32_t count, size_t *size)
{
    uint8_t *part = malloc(batch->size);
    EXPECT_STATUS(record_batch_part(batch->bytes, batch->size, (struct record_range){first, count}, part, size),
                  STATUS_OK);
    expect_accepted(part, *size);
    return part;
}

/* Returns the bytes of a record after its offset delta, and the timestamp of the record. */
static struct record_view record_at(const uint8_t *bytes, size_t size, int32_t index)
{
    const uint8_t *cursor = bytes + RECORD_BATCH_HEADER_SIZE;
    struct record_view view = {0};
    for (int32_t i = 0; i <= index; i++) {
        EXPECT_STATUS(record_read(&cursor, bytes + size, &view), STATUS_OK);
    }
    return view;
}

static void expect_same_record(const struct record_view *one, const struct record_view *other)
{
    EXPECT(one->timestamp_delta == other->timestamp_delta);
    EXPECT(one->key_size == other->key_size && one->value_size == other->value_size);
    EXPECT(one->key_size <= 0 || memcmp(one->key, other->key, (size_t)one->key_size) == 0);
    EXPECT(one->value_size <= 0 || memcmp(one->value, other->value, (size_t)one->value_size) == 0);
    EXPECT(one->header_count == other->header_count);
    EXPECT(one->headers_end - one->headers == other->headers_end - other->headers &&
           memcmp(one->headers, other->headers, (size_t)(one->headers_end - one->headers)) == 0);
}

TEST(a_part_is_a_batch_of_those_records)
{
    static struct batch batch;
    struct randomness randomness = randomness_seeded(__func__);
    for (int round = 0; round < 100; round++) {
        random_batch(&batch, &randomness);
        int32_t first = (int32_t)random_below(&randomness, (uint64_t)batch.header.record_count);
        int32_t count = 1 + (int32_t)random_below(&randomness, (uint64_t)(batch.header.record_count - first));
        size_t size;
        uint8_t *part = part_made(&batch, first, count, &size);
        for (int32_t i = 0; i < count; i++) {
            struct record_view whole_record = record_at(batch.bytes, batch.size, first + i);
            struct record_view part_record = record_at(part, size, i);
            expect_same_record(&whole_record, &part_record);
        }
        free(part);
    }
}

TEST(the_part_that_is_the_whole_has_its_bytes)
{
    static struct batch batch;
    size_t size;
    batch_of_two(&batch);
    uint8_t *part = part_made(&batch, 0, 2, &size);
    EXPECT_EQ_U64(size, batch.size);
    EXPECT(memcmp(part, batch.bytes, size) == 0);
    free(part);
}

TEST(a_part_has_the_sequence_its_records_have_in_the_whole)
{
    static struct batch batch;
    struct record_batch_header header;
    size_t size;
    batch_of_two(&batch);
    batch.header.base_sequence = INT32_MAX;
    batch_finish(&batch);
    uint8_t *part = part_made(&batch, 1, 1, &size);
    EXPECT_STATUS(record_batch_header_read(part, size, &header), STATUS_OK);
    EXPECT(header.producer_id == 1000 && header.producer_epoch == 0 && header.base_sequence == 0);
    EXPECT(header.base_timestamp == INT64_C(1700000000000) && header.max_timestamp == INT64_C(1700000000005));
    free(part);
    batch.header.producer_id = -1;
    batch.header.producer_epoch = -1;
    batch.header.base_sequence = -1;
    batch_finish(&batch);
    part = part_made(&batch, 1, 1, &size);
    EXPECT_STATUS(record_batch_header_read(part, size, &header), STATUS_OK);
    EXPECT(header.base_sequence == -1);
    free(part);
}

TEST(there_are_no_parts_of_other_records_nor_of_damaged_batches)
{
    static struct batch batch;
    static const struct record_range wrong[] = {{-1, 1}, {0, 0}, {0, 3}, {1, 2}, {2, 1}, {0, -1}, {1, INT32_MAX}};
    uint8_t part[TWO_RECORDS_SIZE];
    size_t size;
    batch_of_two(&batch);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        EXPECT_STATUS(record_batch_part(batch.bytes, batch.size, wrong[i], part, &size), STATUS_INVALID);
    }
    batch.bytes[batch.size - 1]++;
    EXPECT_STATUS(record_batch_part(batch.bytes, batch.size, (struct record_range){0, 1}, part, &size),
                  STATUS_CORRUPT);
}

RUN_ALL()
