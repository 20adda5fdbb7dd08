/* SPDX-License-Identifier: Apache-2.0
 *
 * Several participants find or create topics and partitions in append-only tables.
 */
#include "arena/registry.h"

#include <string.h>

#include "arena/arena_fixture.h"
#include "arena/attach.h"

static struct registry *registry_opened(struct arena *arena)
{
    struct registry *registry = NULL;
    EXPECT_STATUS(registry_open(arena, &registry, NULL), STATUS_OK);
    return registry;
}

static enum status topic_named(struct registry *registry, const char *name, uint32_t *topic_index)
{
    return registry_topic(registry, name, (uint32_t)strlen(name), topic_index);
}

TEST_IN_ARENA(geometry_of(2, 512), a_topic_that_one_process_creates_is_found_by_another)
{
    struct arena *other = arena_attached(file);
    struct registry *mine = registry_opened(arena);
    struct registry *theirs = registry_opened(other);
    uint32_t flights, trains, found, partition, same;
    EXPECT_STATUS(topic_named(mine, "flights", &flights), STATUS_OK);
    EXPECT_STATUS(topic_named(theirs, "trains", &trains), STATUS_OK);
    EXPECT_STATUS(topic_named(theirs, "flights", &found), STATUS_OK);
    EXPECT_EQ_U64(found, flights);
    EXPECT(trains != flights);
    EXPECT_STATUS(registry_partition(mine, flights, 3, &partition), STATUS_OK);
    EXPECT_STATUS(registry_partition(theirs, flights, 3, &same), STATUS_OK);
    EXPECT_EQ_U64(same, partition);
    EXPECT_EQ_U64(registry_topic_count(arena), 2);
    EXPECT_EQ_U64(registry_partition_count(arena), 1);
    registry_close(mine);
    registry_close(theirs);
    arena_detach(other);
}

TEST_IN_ARENA(geometry_of(2, 512), names_that_kafka_refuses_are_refused)
{
    static const char *const refused[] = {"", ".", "..", "a b", "a/b", "\xc3\xa4", "a\n"};
    struct registry *registry = registry_opened(arena);
    char longest[TOPIC_NAME_SIZE_MAX + 2];
    uint32_t topic_index;
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        EXPECT_STATUS(topic_named(registry, refused[i], &topic_index), STATUS_INVALID);
    }
    memset(longest, 'x', sizeof longest);
    EXPECT_STATUS(registry_topic(registry, longest, TOPIC_NAME_SIZE_MAX + 1, &topic_index), STATUS_INVALID);
    EXPECT_STATUS(registry_topic(registry, longest, TOPIC_NAME_SIZE_MAX, &topic_index), STATUS_OK);
    EXPECT_STATUS(topic_named(registry, "...", &topic_index), STATUS_OK);
    EXPECT_EQ_U64(registry_topic_count(arena), 2);
    registry_close(registry);
}

TEST_IN_ARENA(geometry_of(2, 512), a_partition_needs_its_topic_and_a_number)
{
    struct registry *registry = registry_opened(arena);
    uint32_t topic_index, partition_index;
    EXPECT_STATUS(registry_partition(registry, 0, 0, &partition_index), STATUS_INVALID);
    EXPECT_STATUS(topic_named(registry, "t", &topic_index), STATUS_OK);
    EXPECT_STATUS(registry_partition(registry, topic_index, -1, &partition_index), STATUS_INVALID);
    EXPECT_STATUS(registry_partition(registry, topic_index, INT32_MAX, &partition_index), STATUS_OK);
    EXPECT_EQ_U64(registry_partition_count(arena), 1);
    registry_close(registry);
}

TEST(full_tables_report_that_and_are_still_searched)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512)); /* 4 topics, 8 partitions */
    struct registry *registry = registry_opened(arena);
    uint32_t index;
    for (char name = 'a'; name < 'e'; name++) {
        EXPECT_STATUS(registry_topic(registry, &name, 1, &index), STATUS_OK);
    }
    EXPECT_STATUS(topic_named(registry, "e", &index), STATUS_NO_PARTITION);
    for (int32_t partition = 0; partition < 8; partition++) {
        EXPECT_STATUS(registry_partition(registry, 0, partition, &index), STATUS_OK);
    }
    EXPECT_STATUS(registry_partition(registry, 0, 8, &index), STATUS_NO_PARTITION);
    EXPECT_STATUS(registry_partition(registry, 0, 7, &index), STATUS_OK);
    EXPECT_EQ_U64(index, 7);
    EXPECT_STATUS(topic_named(registry, "d", &index), STATUS_OK);
    EXPECT_EQ_U64(index, 3);
    registry_close(registry);
    arena_end(arena, file);
}

TEST_IN_ARENA(geometry_of(2, 512), a_name_outside_the_heap_is_corrupt)
{
    struct registry *registry = registry_opened(arena);
    uint32_t topic_index, size;
    const char *name;
    EXPECT_STATUS(topic_named(registry, "t", &topic_index), STATUS_OK);
    uint32_t start = arena->topics[topic_index].name_index;
    arena->topics[topic_index].name_index = arena->geometry.name_heap_size;
    EXPECT_STATUS(registry_topic_name(arena, topic_index, &name, &size), STATUS_CORRUPT);
    arena->topics[topic_index].name_index = UINT32_MAX;
    EXPECT_STATUS(registry_topic_name(arena, topic_index, &name, &size), STATUS_CORRUPT);
    arena->topics[topic_index].name_index = start;
    EXPECT_STATUS(registry_topic_name(arena, topic_index, &name, &size), STATUS_OK);
    EXPECT_EQ_U64(size, 1);
    registry_close(registry);
}

RUN_ALL()
