/* SPDX-License-Identifier: Apache-2.0 */
#include "format/crc32c.h"

#include "format/crc32c_steps.h"
#include "randomness.h"
#include "testing.h"

enum { BYTES_SIZE = 40000 };

/* Compute the CRC one bit at a time, as defined. The fast implementations are compared with this one. */
static uint32_t crc32c_by_definition(uint32_t crc, const uint8_t *bytes, size_t size)
{
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
        }
    }
    return ~crc;
}

static void expect_every_way(uint32_t crc, const uint8_t *bytes, size_t size)
{
    uint32_t expected = crc32c_by_definition(crc, bytes, size);
    EXPECT_EQ_U64(crc32c_extend_table(crc, bytes, size), expected);
    if (crc32c_has_hardware()) {
        EXPECT_EQ_U64(crc32c_extend_hardware(crc, bytes, size), expected);
    }
    if (crc32c_wide_present && size >= CRC32C_WIDE_SIZE_MIN) {
        EXPECT_EQ_U64(crc32c_extend_wide(crc, bytes, size), expected);
    }
    EXPECT_EQ_U64(crc32c_extend(crc, bytes, size), expected);
}

static void expect_combined(const uint8_t *bytes, size_t first_size, size_t second_size)
{
    uint32_t first = crc32c_extend(0, bytes, first_size);
    uint32_t second = crc32c_extend(0, bytes + first_size, second_size);
    EXPECT_EQ_U64(crc32c_combine(first, second, second_size), crc32c_extend(0, bytes, first_size + second_size));
}

static void fill(const char *test, uint8_t *bytes, size_t size)
{
    struct randomness randomness = randomness_seeded(test);
    random_fill(&randomness, bytes, size);
}

/* The check value of the CRC catalogue, then RFC 3720 appendix B.4. */
TEST(published_values)
{
    uint8_t bytes[32] = {0};
    EXPECT_EQ_U64(crc32c_by_definition(0, (const uint8_t *)"123456789", 9), 0xe3069283);
    expect_every_way(0, (const uint8_t *)"123456789", 9);
    EXPECT_EQ_U64(crc32c_extend(0, bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    EXPECT_EQ_U64(crc32c_extend(0, bytes, sizeof bytes), 0x62a8ab43);
    for (uint8_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = i;
    }
    EXPECT_EQ_U64(crc32c_extend(0, bytes, sizeof bytes), 0x46dd794e);
}

TEST(nothing_changes_nothing)
{
    expect_every_way(0x12345678, (const uint8_t *)"", 0);
    EXPECT_EQ_U64(crc32c_extend(0x12345678, NULL, 0), 0x12345678);
    EXPECT_EQ_U64(crc32c_combine(0x12345678, 0, 0), 0x12345678);
}

TEST(every_small_size_at_every_alignment)
{
    _Alignas(16) uint8_t bytes[300 + 8];
    fill(__func__, bytes, sizeof bytes);
    for (size_t shift = 0; shift <= 8; shift++) {
        for (size_t size = 0; size <= 300; size++) {
            expect_every_way((uint32_t)(shift * size), bytes + shift, size);
        }
    }
}

TEST(sizes_around_whole_passes_of_three_streams)
{
    static uint8_t bytes[BYTES_SIZE];
    fill(__func__, bytes, sizeof bytes);
    for (size_t size = PASS_SIZE - 80; size <= PASS_SIZE + 80; size++) {
        for (size_t passes = 0; passes <= 5; passes++) {
            expect_every_way(1, bytes + 1, passes * PASS_SIZE + size);
        }
    }
}

TEST(sizes_around_whole_passes_of_vectors)
{
    static uint8_t bytes[BYTES_SIZE];
    fill(__func__, bytes, sizeof bytes);
    for (size_t shift = 0; shift < 64; shift += 7) {
        for (size_t size = CRC32C_WIDE_SIZE_MIN - 2; size <= CRC32C_WIDE_SIZE_MIN + 600; size++) {
            expect_every_way((uint32_t)(shift * size), bytes + shift, size);
        }
    }
}

/* If a vector is omitted or read twice, its bits change the result. */
TEST(one_bit_of_a_long_input_counts_wherever_it_is)
{
    static uint8_t bytes[2 * CRC32C_WIDE_SIZE_MIN + 100];
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit += 5) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        expect_every_way(0, bytes, sizeof bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST(large_random_sizes)
{
    static uint8_t bytes[BYTES_SIZE];
    struct randomness randomness = randomness_seeded(__func__);
    random_fill(&randomness, bytes, sizeof bytes);
    for (int i = 0; i < 50; i++) {
        size_t shift = random_below(&randomness, 16);
        expect_every_way((uint32_t)random_bits(&randomness), bytes + shift,
                         random_below(&randomness, sizeof bytes - shift + 1));
    }
}

TEST(extending_continues_where_the_last_call_ended)
{
    static uint8_t bytes[BYTES_SIZE];
    struct randomness randomness = randomness_seeded(__func__);
    random_fill(&randomness, bytes, sizeof bytes);
    uint32_t crc = 0;
    size_t size = 0;
    while (size + 400 < sizeof bytes) {
        size_t more = random_below(&randomness, 400);
        crc = crc32c_extend(crc, bytes + size, more);
        size += more;
    }
    EXPECT_EQ_U64(crc, crc32c_by_definition(0, bytes, size));
}

/* crc32c_extend uses the first implementation that the processor has. */
TEST(each_way_is_taken_where_the_ones_before_it_are_missing)
{
    static uint8_t bytes[BYTES_SIZE];
    bool had_wide = crc32c_wide_present, had_hardware = crc32c_hardware_present;
    fill(__func__, bytes, sizeof bytes);
    uint32_t expected = crc32c_by_definition(0, bytes, sizeof bytes);
    EXPECT_EQ_U64(crc32c_extend(0, bytes, sizeof bytes), expected);
    crc32c_wide_present = false;
    EXPECT_EQ_U64(crc32c_extend(0, bytes, sizeof bytes), expected);
    crc32c_hardware_present = false;
    EXPECT_EQ_U64(crc32c_extend(0, bytes, sizeof bytes), expected);
    crc32c_wide_present = had_wide;
    crc32c_hardware_present = had_hardware;
}

static void combine_every_way(const char *test)
{
    static uint8_t bytes[BYTES_SIZE];
    struct randomness randomness = randomness_seeded(test);
    random_fill(&randomness, bytes, sizeof bytes);
    for (size_t second_size = 0; second_size <= 300; second_size++) {
        expect_combined(bytes, 40, second_size);
    }
    for (int i = 0; i < 100; i++) {
        size_t first_size = random_below(&randomness, sizeof bytes);
        expect_combined(bytes, first_size, random_below(&randomness, sizeof bytes - first_size));
    }
}

TEST(combining_with_instructions)
{
    combine_every_way(__func__);
}

TEST(combining_with_tables)
{
    bool had_hardware = crc32c_hardware_present;
    crc32c_hardware_present = false;
    combine_every_way(__func__);
    crc32c_hardware_present = had_hardware;
}

/* The sizes are larger than any buffer. A combination with a part of 2^bit bytes must equal two combinations with parts
 * of half that size. */
TEST(combining_with_sizes_of_every_bit)
{
    uint32_t zeros = crc32c_extend(0, "", 1); /* the CRC of 2^bit zero bytes */
    for (unsigned bit = 0; bit < 63; bit++) {
        uint64_t size = UINT64_C(1) << bit;
        uint32_t twice = crc32c_combine(zeros, zeros, size);
        EXPECT_EQ_U64(crc32c_combine(0xe3069283, twice, 2 * size),
                      crc32c_combine(crc32c_combine(0xe3069283, zeros, size), zeros, size));
        zeros = twice;
    }
}

RUN_ALL()
