/* SPDX-License-Identifier: Apache-2.0 */
#include "format/varint.h"

#include "randomness.h"
#include "testing.h"

struct vector {
    int64_t value;
    uint8_t size;
    uint8_t bytes[VARLONG_SIZE_MAX];
};

/* From org.apache.kafka.common.utils.ByteUtilsTest. */
static const struct vector int_vectors[] = {
    {0, 1, {0x00}},
    {-1, 1, {0x01}},
    {1, 1, {0x02}},
    {63, 1, {0x7e}},
    {-64, 1, {0x7f}},
    {64, 2, {0x80, 0x01}},
    {-65, 2, {0x81, 0x01}},
    {8191, 2, {0xfe, 0x7f}},
    {8192, 3, {0x80, 0x80, 0x01}},
    {1048575, 3, {0xfe, 0xff, 0x7f}},
    {134217728, 5, {0x80, 0x80, 0x80, 0x80, 0x01}},
    {INT32_MAX, 5, {0xfe, 0xff, 0xff, 0xff, 0x0f}},
    {INT32_MIN, 5, {0xff, 0xff, 0xff, 0xff, 0x0f}},
};

static const struct vector long_vectors[] = {
    {INT64_MAX, 10, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}},
    {INT64_MIN, 10, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}},
};

static void expect_varint(int32_t value, const uint8_t *bytes, size_t size)
{
    uint8_t written[VARINT_SIZE_MAX];
    const uint8_t *cursor = bytes;
    int32_t read_back = 0;
    EXPECT_EQ_U64(varint_size(value), size);
    EXPECT_EQ_U64((size_t)(varint_write(written, value) - written), size);
    EXPECT(memcmp(written, bytes, size) == 0);
    EXPECT_STATUS(varint_read(&cursor, bytes + size, &read_back), STATUS_OK);
    EXPECT(read_back == value && cursor == bytes + size);
}

static void expect_varlong(int64_t value, const uint8_t *bytes, size_t size)
{
    uint8_t written[VARLONG_SIZE_MAX];
    const uint8_t *cursor = bytes;
    int64_t read_back = 0;
    EXPECT_EQ_U64(varlong_size(value), size);
    EXPECT_EQ_U64((size_t)(varlong_write(written, value) - written), size);
    EXPECT(memcmp(written, bytes, size) == 0);
    EXPECT_STATUS(varlong_read(&cursor, bytes + size, &read_back), STATUS_OK);
    EXPECT(read_back == value && cursor == bytes + size);
}

static void expect_corrupt(const uint8_t *bytes, size_t int_size, size_t long_size)
{
    const uint8_t *cursor = bytes;
    int32_t int_value;
    int64_t long_value;
    EXPECT_STATUS(varint_read(&cursor, bytes + int_size, &int_value), STATUS_CORRUPT);
    EXPECT(cursor == bytes);
    EXPECT_STATUS(varlong_read(&cursor, bytes + long_size, &long_value), STATUS_CORRUPT);
    EXPECT(cursor == bytes);
}

TEST(varints_are_those_of_kafka)
{
    for (size_t i = 0; i < sizeof int_vectors / sizeof *int_vectors; i++) {
        expect_varint((int32_t)int_vectors[i].value, int_vectors[i].bytes, int_vectors[i].size);
        expect_varlong(int_vectors[i].value, int_vectors[i].bytes, int_vectors[i].size);
    }
    for (size_t i = 0; i < sizeof long_vectors / sizeof *long_vectors; i++) {
        expect_varlong(long_vectors[i].value, long_vectors[i].bytes, long_vectors[i].size);
    }
}

TEST(sizes_change_where_one_more_bit_needs_a_group)
{
    for (unsigned bit = 0; bit < 63; bit++) {
        int64_t value = INT64_C(1) << bit;
        EXPECT_EQ_U64(varlong_size(value), (bit + 2 + 6) / 7); /* zigzag: bit + 2 bits */
        EXPECT_EQ_U64(varlong_size(-value), (bit + 1 + 6) / 7);
        EXPECT_EQ_U64(varlong_size(value - 1), (bit + 1 + 6) / 7);
        if (bit < 31) {
            EXPECT_EQ_U64(varint_size((int32_t)value), varlong_size(value));
            EXPECT_EQ_U64(varint_size((int32_t)-value), varlong_size(-value));
        }
    }
}

TEST(a_written_number_has_its_computed_size_and_is_read_as_the_same)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[VARLONG_SIZE_MAX];
        int64_t value = unzigzag64(random_magnitude(&randomness));
        expect_varlong(value, bytes, (size_t)(varlong_write(bytes, value) - bytes));
        expect_varint((int32_t)value, bytes, (size_t)(varint_write(bytes, (int32_t)value) - bytes));
    }
}

TEST(a_number_whose_last_byte_is_after_the_end_is_corrupt)
{
    for (size_t size = 0; size < VARLONG_SIZE_MAX; size++) {
        uint8_t bytes[VARLONG_SIZE_MAX] = {0};
        memset(bytes, 0x80, size);
        expect_corrupt(bytes, size < VARINT_SIZE_MAX ? size : VARINT_SIZE_MAX - 1, size);
    }
}

TEST(more_bytes_than_the_type_needs_are_corrupt)
{
    uint8_t bytes[VARLONG_SIZE_MAX + 1];
    memset(bytes, 0x80, sizeof bytes);
    bytes[VARLONG_SIZE_MAX] = 0;
    expect_corrupt(bytes, sizeof bytes, sizeof bytes);
}

TEST(bits_beyond_the_type_are_corrupt)
{
    static const uint8_t int_bytes[VARINT_SIZE_MAX] = {0x80, 0x80, 0x80, 0x80, 0x10};
    static const uint8_t long_bytes[VARLONG_SIZE_MAX] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02};
    const uint8_t *cursor = int_bytes;
    int32_t int_value;
    EXPECT_STATUS(varint_read(&cursor, int_bytes + sizeof int_bytes, &int_value), STATUS_CORRUPT);
    expect_corrupt(long_bytes, sizeof long_bytes, sizeof long_bytes);
}

TEST(leading_zero_groups_are_read_as_kafka_reads_them)
{
    static const uint8_t bytes[VARINT_SIZE_MAX] = {0x82, 0x80, 0x80, 0x80, 0x00};
    const uint8_t *cursor = bytes;
    int32_t value = 0;
    EXPECT_STATUS(varint_read(&cursor, bytes + sizeof bytes, &value), STATUS_OK);
    EXPECT(value == 1 && cursor == bytes + sizeof bytes);
}

RUN_ALL()
