/* SPDX-License-Identifier: Apache-2.0 */
#include "format/murmur2.h"

#include "randomness.h"
#include "testing.h"

static void expect_hash(const char *text, int32_t expected)
{
    EXPECT_EQ_U64(murmur2(text, strlen(text)), (uint32_t)expected);
}

/* org.apache.kafka.common.utils.UtilsTest.testMurmur2 */
TEST(hashes_are_those_of_kafka)
{
    expect_hash("21", -973932308);
    expect_hash("foobar", -790332482);
    expect_hash("a-little-bit-long-string", -985981536);
    expect_hash("a-little-bit-longer-string", -1486304829);
    expect_hash("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971);
    expect_hash("abc", 479470107);
}

/* Fills the bytes as java.util.SplittableRandom.nextBytes, which has the same generator as randomness.h. */
static void java_next_bytes(struct randomness *randomness, uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = random_bits(randomness);
        memcpy(bytes + i, &word, size - i < 8 ? size - i : 8);
    }
}

/* UtilsTest.testMurmur2Checksum: 100 random keys of every size from 0 to 1000. */
TEST(the_sum_of_very_many_hashes_is_that_of_kafka)
{
    struct randomness randomness = {.state = 0};
    uint8_t key[1000];
    uint64_t sum = 0;
    for (size_t size = 0; size <= sizeof key; size++) {
        for (int trial = 0; trial < 100; trial++) {
            java_next_bytes(&randomness, key, size);
            sum += murmur2(key, size);
        }
    }
    EXPECT_EQ_U64(sum, UINT64_C(0xc3b8cf7c99fc));
}

TEST(empty_and_short_keys)
{
    expect_hash("", 275646681);
    expect_hash("key", -1079937367);
    EXPECT_EQ_U64(murmur2(NULL, 0), 275646681);
}

TEST(bytes_above_127_are_not_negative)
{
    /* Keys with each size of the tail. kafka-python computed the values. */
    static const uint8_t bytes[] = {0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0xfa, 0xf9};
    static const uint32_t expected[] = {0xed6f615b, 0x6660fe8b, 0x3b85fe24, 0x7f530faf,
                                        0x1f3ca77f, 0xae0da0ef, 0xf6176f45};
    for (size_t size = 1; size <= sizeof bytes; size++) {
        EXPECT_EQ_U64(murmur2(bytes, size), expected[size - 1]);
    }
}

TEST(the_hash_does_not_depend_on_the_alignment)
{
    static const char text[] = "a-little-bit-longer-string";
    for (size_t shift = 0; shift < 8; shift++) {
        char shifted[8 + sizeof text];
        memcpy(shifted + shift, text, sizeof text);
        EXPECT_EQ_U64(murmur2(shifted + shift, sizeof text - 1), (uint32_t)-1486304829);
    }
}

TEST(to_positive_clears_the_sign)
{
    EXPECT(to_positive(murmur2("key", 3)) % 3 == 1);
    EXPECT(to_positive(0) == 0);
    EXPECT(to_positive(UINT32_MAX) == INT32_MAX);
    EXPECT(to_positive((uint32_t)INT32_MIN) == 0);
}

RUN_ALL()
