/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

#include "testing.h"

TEST(big_endian_stores_the_most_significant_byte_first)
{
    uint8_t bytes[8];
    store_be16(bytes, 0x0102);
    EXPECT(memcmp(bytes, "\x01\x02", 2) == 0);
    store_be32(bytes, 0x01020304);
    EXPECT(memcmp(bytes, "\x01\x02\x03\x04", 4) == 0);
    store_be64(bytes, UINT64_C(0x0102030405060708));
    EXPECT(memcmp(bytes, "\x01\x02\x03\x04\x05\x06\x07\x08", 8) == 0);
}

TEST(big_endian_works_at_every_alignment_and_touches_only_its_bytes)
{
    for (size_t shift = 1; shift < 8; shift++) {
        uint8_t bytes[24];
        memset(bytes, 0xee, sizeof bytes);
        store_be64(bytes + shift, UINT64_C(0xfedcba9876543210));
        EXPECT_EQ_U64(load_be64(bytes + shift), UINT64_C(0xfedcba9876543210));
        EXPECT_EQ_U64(load_be32(bytes + shift), 0xfedcba98);
        EXPECT_EQ_U64(load_be16(bytes + shift), 0xfedc);
        EXPECT_EQ_U64(bytes[shift - 1], 0xee);
        EXPECT_EQ_U64(bytes[shift + 8], 0xee);
    }
}

TEST(big_endian_keeps_the_ends_of_the_range)
{
    uint8_t bytes[8];
    store_be16(bytes, UINT16_MAX);
    EXPECT_EQ_U64(load_be16(bytes), UINT16_MAX);
    store_be32(bytes, 0);
    EXPECT_EQ_U64(load_be32(bytes), 0);
    store_be64(bytes, UINT64_MAX);
    EXPECT_EQ_U64(load_be64(bytes), UINT64_MAX);
}

TEST(round_up_reaches_the_next_multiple_and_keeps_a_multiple)
{
    EXPECT_EQ_U64(round_up(0, 64), 0);
    EXPECT_EQ_U64(round_up(1, 64), 64);
    EXPECT_EQ_U64(round_up(64, 64), 64);
    EXPECT_EQ_U64(round_up(65, 64), 128);
    EXPECT_EQ_U64(round_up(UINT64_MAX - 4096, 4096), UINT64_MAX - 4095);
}

TEST(divide_up_counts_a_started_part)
{
    EXPECT_EQ_U64(divide_rounded_up(0, 7), 0);
    EXPECT_EQ_U64(divide_rounded_up(1, 7), 1);
    EXPECT_EQ_U64(divide_rounded_up(7, 7), 1);
    EXPECT_EQ_U64(divide_rounded_up(8, 7), 2);
    EXPECT_EQ_U64(divide_rounded_up(UINT64_MAX, 1), UINT64_MAX);
    EXPECT_EQ_U64(divide_rounded_up(UINT64_MAX, 2), UINT64_C(1) << 63);
}

RUN_ALL()
