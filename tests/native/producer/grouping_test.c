/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/grouping.h"

#include "randomness.h"
#include "testing.h"

TEST(groups_come_in_the_order_of_first_appearance)
{
    const uint32_t given[] = {7, 900, 7, 3, 900, 7};
    static const uint8_t places[] = {0, 3, 1, 5, 4, 2};
    struct grouping grouping;
    group_by_partition(given, 6, &grouping);
    EXPECT_EQ_U64(grouping.group_count, 3);
    EXPECT(grouping.groups[0].partition_index == 7 && grouping.groups[0].start == 0 && grouping.groups[0].count == 3);
    EXPECT(grouping.groups[1].partition_index == 900 && grouping.groups[1].start == 3);
    EXPECT(grouping.groups[2].partition_index == 3 && grouping.groups[2].count == 1);
    EXPECT(memcmp(grouping.places, places, sizeof places) == 0);
}

TEST(one_partition_is_one_group_and_nothing_moves)
{
    uint32_t given[CHUNK_COUNT_MAX];
    struct grouping grouping;
    for (uint32_t i = 0; i < CHUNK_COUNT_MAX; i++) {
        given[i] = UINT32_MAX;
    }
    for (uint32_t count = 1; count <= CHUNK_COUNT_MAX; count++) {
        group_by_partition(given, count, &grouping);
        EXPECT(grouping.group_count == 1 && grouping.groups[0].start == 0 && grouping.groups[0].count == count);
        EXPECT(grouping.places[count - 1] == count - 1);
    }
}

/* Check that each place occurs once, that the rows of a group are adjacent, and that each group keeps the given order.
 */
static void expect_grouped(const uint32_t *given, uint32_t count, const struct grouping *grouping)
{
    uint32_t at_place[CHUNK_COUNT_MAX];
    memset(at_place, 0xff, sizeof at_place);
    for (uint32_t i = 0; i < count; i++) {
        EXPECT(grouping->places[i] < count && at_place[grouping->places[i]] == UINT32_MAX);
        at_place[grouping->places[i]] = i;
    }
    uint32_t place = 0;
    for (uint32_t group = 0; group < grouping->group_count; group++) {
        EXPECT_EQ_U64(grouping->groups[group].start, place);
        EXPECT(grouping->groups[group].count > 0);
        for (uint32_t i = 0; i < grouping->groups[group].count; i++, place++) {
            EXPECT_EQ_U64(given[at_place[place]], grouping->groups[group].partition_index);
            EXPECT(i == 0 || at_place[place] > at_place[place - 1]);
        }
    }
    EXPECT_EQ_U64(place, count);
}

TEST(random_partitions_are_grouped_stably)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int round = 0; round < 2000; round++) {
        uint32_t given[CHUNK_COUNT_MAX];
        struct grouping grouping;
        uint32_t count = 1 + (uint32_t)random_below(&randomness, CHUNK_COUNT_MAX);
        uint32_t partitions = 1 + (uint32_t)random_below(&randomness, 100);
        for (uint32_t i = 0; i < count; i++) {
            given[i] = (uint32_t)random_below(&randomness, partitions) << (round % 26);
        }
        group_by_partition(given, count, &grouping);
        expect_grouped(given, count, &grouping);
    }
}

RUN_ALL()
