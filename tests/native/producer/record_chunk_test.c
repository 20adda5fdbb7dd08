/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/record_chunk.h"

#include "arena/arena_fixture.h"

enum { PARTITION_COUNT = 4, ROWS = 6 };

/* A topic of four partitions, and a chunk of records without a key. */
struct user {
    int file;
    struct arena *arena;
    struct registry *registry;
    struct topic_note topic;
    struct partitioner partitioner;
    struct chunk_rules rules;
    struct chunk chunk;
    struct assignment assignment;
};

static void user_begin(struct user *user)
{
    *user = (struct user){.file = arena_file_new()};
    user->arena = arena_created(user->file, geometry_of(4, 512)); /* at most 8 partitions */
    EXPECT_STATUS(registry_open(user->arena, &user->registry, NULL), STATUS_OK);
    EXPECT_STATUS(registry_topic(user->registry, "a", 1, &user->topic.sticky.topic_index), STATUS_OK);
    store_release_u32(&user->arena->topics[user->topic.sticky.topic_index].partition_count, PARTITION_COUNT);
    user->partitioner = (struct partitioner){.arena = user->arena, .registry = user->registry, .random_state = 42};
    user->rules.partitioner = &user->partitioner;
    user->chunk.count = ROWS;
    for (uint32_t i = 0; i < ROWS; i++) {
        user->chunk.records[i].record = (struct record){.key_size = -1, .value = "v", .value_size = (int32_t)i};
        user->chunk.topics[i] = &user->topic;
        user->chunk.partitions[i] = -1;
    }
}

static void user_end(struct user *user)
{
    partition_indices_close(&user->topic.indices);
    registry_close(user->registry);
    arena_end(user->arena, user->file);
}

static void expect_assigned(struct user *user)
{
    uint32_t partition;
    EXPECT_STATUS(chunk_assign(&user->rules, &user->chunk, &user->assignment, &partition), STATUS_OK);
    EXPECT_EQ_U64(user->assignment.count, ROWS);
}

static uint32_t index_of(struct user *user, uint32_t partition)
{
    uint32_t index;
    EXPECT_STATUS(partition_indices_find(&user->topic.indices, user->registry, user->topic.sticky.topic_index,
                                         partition, &index),
                  STATUS_OK);
    return index;
}

TEST_WITH(user, user_begin, records_without_a_key_share_the_sticky_partition)
{
    expect_assigned(user);
    for (uint32_t i = 0; i < ROWS; i++) {
        EXPECT(user->assignment.is_sticky[i]);
        EXPECT_EQ_U64(user->assignment.partition_indices[i], user->assignment.partition_indices[0]);
    }
}

TEST_WITH(user, user_begin, a_key_or_a_given_partition_determines_the_partition)
{
    user->chunk.records[1].record.key = user->chunk.records[4].record.key = "key";
    user->chunk.records[1].record.key_size = user->chunk.records[4].record.key_size = 3;
    user->chunk.partitions[2] = 3;
    expect_assigned(user);
    uint32_t key_index = index_of(user, partition_of_key("key", 3, PARTITION_COUNT));
    EXPECT(user->assignment.partition_indices[1] == key_index && user->assignment.partition_indices[4] == key_index);
    EXPECT_EQ_U64(user->assignment.partition_indices[2], index_of(user, 3));
    EXPECT(!user->assignment.is_sticky[1] && !user->assignment.is_sticky[2] && user->assignment.is_sticky[3]);
    user->rules.ignores_keys = true;
    user->assignment.count = 0;
    expect_assigned(user);
    EXPECT(user->assignment.is_sticky[1] && !user->assignment.is_sticky[2]);
}

TEST_WITH(user, user_begin, a_record_waits_until_its_topic_has_the_partition)
{
    uint32_t partition;
    user->chunk.partitions[3] = PARTITION_COUNT + 1;
    for (int round = 0; round < 2; round++) {
        EXPECT_STATUS(chunk_assign(&user->rules, &user->chunk, &user->assignment, &partition), STATUS_TRY_AGAIN);
        EXPECT(user->assignment.count == 3 && partition == PARTITION_COUNT + 1);
    }
    store_release_u32(&user->arena->topics[user->topic.sticky.topic_index].partition_count, PARTITION_COUNT + 2);
    expect_assigned(user);
    EXPECT_EQ_U64(user->assignment.partition_indices[3], index_of(user, PARTITION_COUNT + 1));
}

TEST_WITH(user, user_begin, a_full_table_of_partitions_ends_the_records_before)
{
    uint32_t partition;
    store_release_u32(&user->arena->topics[user->topic.sticky.topic_index].partition_count, 100);
    for (uint32_t i = 0; i < 8; i++) {
        (void)index_of(user, 50 + i);
    }
    user->chunk.partitions[0] = 50;
    user->chunk.partitions[1] = 99;
    EXPECT_STATUS(chunk_assign(&user->rules, &user->chunk, &user->assignment, &partition), STATUS_NO_PARTITION);
    EXPECT(user->assignment.count == 1 && partition == 99);
}

TEST_WITH(user, user_begin, groups_have_their_records_in_a_row)
{
    struct grouping grouping;
    struct arrangement arrangement;
    static const int32_t partitions[ROWS] = {-1, 2, -1, 2, -1, 2};
    memcpy(user->chunk.partitions, partitions, sizeof partitions);
    expect_assigned(user);
    group_by_partition(user->assignment.partition_indices, ROWS, &grouping);
    chunk_arrange(&user->chunk, &grouping, &arrangement);
    uint32_t row_count = 0;
    for (uint32_t g = 0; g < grouping.group_count; g++) {
        struct chunk_group group = chunk_group(&user->chunk, &user->assignment, &grouping.groups[g], &arrangement);
        for (uint32_t i = 0; i < group.count; i++) {
            uint32_t row = (uint32_t)group.records[i].record.value_size;
            EXPECT(i == 0 || group.records[i].record.value_size > group.records[i - 1].record.value_size);
            EXPECT_EQ_U64(user->assignment.partition_indices[row], group.partition_index);
            EXPECT(!group.is_sticky || partitions[row] < 0);
        }
        EXPECT(group.topic == &user->topic);
        row_count += group.count;
    }
    EXPECT_EQ_U64(row_count, ROWS);
}

TEST_WITH(user, user_begin, the_only_group_is_the_chunk)
{
    struct grouping grouping;
    expect_assigned(user);
    group_by_partition(user->assignment.partition_indices, ROWS, &grouping);
    EXPECT_EQ_U64(grouping.group_count, 1);
    struct chunk_group group = chunk_group(&user->chunk, &user->assignment, &grouping.groups[0], NULL);
    EXPECT(group.records == user->chunk.records && group.count == ROWS && group.is_sticky);
}

RUN_ALL()
