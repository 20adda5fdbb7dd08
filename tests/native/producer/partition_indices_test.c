/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/partition_indices.h"

#include "arena/arena_fixture.h"

TEST(a_partition_keeps_its_index_and_each_topic_has_its_own)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(4, 512)); /* at most 8 partitions */
    struct registry *registry = NULL;
    struct partition_indices first = {0};
    struct partition_indices second = {0};
    static const uint32_t partitions[] = {0, 5, 17, 1000, 70000, INT32_MAX};
    uint32_t topics[2];
    uint32_t index;
    EXPECT_STATUS(registry_open(arena, &registry, NULL), STATUS_OK);
    EXPECT_STATUS(registry_topic(registry, "a", 1, &topics[0]), STATUS_OK);
    EXPECT_STATUS(registry_topic(registry, "b", 1, &topics[1]), STATUS_OK);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < COUNT_OF(partitions); i++) {
            EXPECT_STATUS(partition_indices_find(&first, registry, topics[0], partitions[i], &index), STATUS_OK);
            EXPECT_EQ_U64(index, i);
        }
        EXPECT_STATUS(partition_indices_find(&second, registry, topics[1], 5, &index), STATUS_OK);
        EXPECT_EQ_U64(index, COUNT_OF(partitions));
    }
    EXPECT(first.count > 1000 && first.count <= 65536);
    EXPECT_STATUS(partition_indices_find(&second, registry, topics[1], UINT32_MAX, &index), STATUS_INVALID);
    EXPECT_STATUS(partition_indices_find(&second, registry, topics[1], 6, &index), STATUS_OK);
    EXPECT_STATUS(partition_indices_find(&second, registry, topics[1], 7, &index), STATUS_NO_PARTITION);
    partition_indices_close(&first);
    partition_indices_close(&second);
    registry_close(registry);
    arena_end(arena, file);
}

RUN_ALL()
