/* SPDX-License-Identifier: Apache-2.0 */
#include "format/sequence.h"

#include "testing.h"

/* The cases of DefaultRecordBatchTest.testIncrementSequence and testDecrementSequence, then further limits. */
TEST(increment_wraps_to_zero_after_the_last)
{
    EXPECT(sequence_increment(0, 10) == 10);
    EXPECT(sequence_increment(INT32_MAX, 1) == 0);
    EXPECT(sequence_increment(INT32_MAX - 5, 10) == 4);
    EXPECT(sequence_increment(INT32_MAX, INT32_MAX) == INT32_MAX - 1);
    EXPECT(sequence_increment(7, 0) == 7);
}

TEST(decrement_wraps_to_the_last_before_zero)
{
    EXPECT(sequence_decrement(10, 10) == 0);
    EXPECT(sequence_decrement(0, 1) == INT32_MAX);
    EXPECT(sequence_decrement(4, 10) == INT32_MAX - 5);
    EXPECT(sequence_decrement(INT32_MAX - 1, INT32_MAX) == INT32_MAX);
    EXPECT(sequence_decrement(7, 0) == 7);
}

TEST(before_is_judged_on_the_circle)
{
    EXPECT(sequence_is_before(0, 1));
    EXPECT(!sequence_is_before(1, 0));
    EXPECT(!sequence_is_before(5, 5));
    EXPECT(sequence_is_before(INT32_MAX, 0));
    EXPECT(!sequence_is_before(0, INT32_MAX));
    EXPECT(sequence_is_before(INT32_MAX - 3, 3));
}

TEST(before_reaches_half_a_turn)
{
    const int32_t half_turn = INT32_C(1) << 30;
    EXPECT(sequence_is_before(0, half_turn - 1));
    EXPECT(!sequence_is_before(0, half_turn));
    EXPECT(!sequence_is_before(half_turn, 0));
    EXPECT(sequence_is_before(half_turn + 1, 0));
}

RUN_ALL()
