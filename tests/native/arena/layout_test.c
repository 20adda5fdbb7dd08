/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/layout.h"

#include "arena/arena_fixture.h"

#include "randomness.h"

/* ---- regions ---- */

static void expect_regions_disjoint_and_aligned(const struct geometry *geometry)
{
    struct layout layout;
    struct region regions[REGION_COUNT];
    layout_compute(geometry, &layout);
    layout_regions(geometry, &layout, regions);
    uint64_t end = 0;
    for (int i = 0; i < REGION_COUNT; i++) {
        bool is_missing = strcmp(regions[i].name, "sync_records") == 0 && geometry->durability == DURABILITY_PROCESS;
        EXPECT_OR_SAY(is_missing ? regions[i].size == 0 : regions[i].ref >= end, "%s begins too early",
                      regions[i].name);
        EXPECT_OR_SAY(regions[i].ref % CACHE_LINE == 0, "%s is not aligned", regions[i].name);
        end = is_missing ? end : regions[i].ref + regions[i].size;
    }
    EXPECT_EQ_U64(end, layout.arena_size);
    EXPECT_EQ_U64(layout.slot_data % PAGE_SIZE_BYTES, 0);
    EXPECT_EQ_U64(layout.arena_size, layout.slot_data + (uint64_t)geometry->slot_stride * geometry->slot_count);
    EXPECT((uint64_t)layout.bitmap_word_count * 64 >= geometry->slot_count);
    EXPECT((uint64_t)layout.ready_group_count * 64 >= layout.bitmap_word_count);
}

static const struct geometry smallest = {
    .buffer_memory = RECORDS_START + 1,
    .batch_size = RECORDS_START + 1,
    .slot_stride = PAGE_SIZE_BYTES,
    .slot_count = 1,
    .process_count = 1,
    .waiter_count = 1,
    .topic_count = 1,
    .partition_count = 1,
    .name_heap_size = TOPIC_NAME_SIZE_MAX,
    .completion_count = 2,
    .oversized_bytes_max = 0,
    .record_size_max = RECORDS_START + 1,
};

static struct geometry largest(void)
{
    return (struct geometry){
        .buffer_memory = (uint64_t)SLOT_COUNT_MAX * BATCH_SIZE_MAX,
        .batch_size = BATCH_SIZE_MAX,
        .slot_stride = BATCH_SIZE_MAX + 1,
        .slot_count = SLOT_COUNT_MAX,
        .process_count = PROCESS_COUNT_MAX,
        .waiter_count = WAITER_COUNT_MAX,
        .topic_count = 1 << 20,
        .partition_count = 1 << 22,
        .name_heap_size = 1 << 28,
        .completion_count = 1 << 28,
        .oversized_bytes_max = (uint64_t)SLOT_COUNT_MAX * BATCH_SIZE_MAX,
        .record_size_max = BATCH_SIZE_MAX,
    };
}

TEST(regions_are_disjoint_and_aligned_at_both_extremes)
{
    struct geometry large = largest();
    expect_regions_disjoint_and_aligned(&smallest);
    expect_regions_disjoint_and_aligned(&large);
}

static struct geometry random_geometry(struct randomness *randomness)
{
    uint32_t slot_count = 1 + (uint32_t)random_below(randomness, 300);
    uint32_t batch_size = RECORDS_START + 1 + (uint32_t)random_below(randomness, 20000);
    struct geometry geometry = geometry_of(slot_count, batch_size);
    geometry.process_count = 1 + (uint32_t)random_below(randomness, PROCESS_COUNT_MAX);
    geometry.waiter_count = 1 + (uint32_t)random_below(randomness, WAITER_COUNT_MAX);
    geometry.topic_count = 1 + (uint32_t)random_below(randomness, 1000);
    geometry.partition_count = 1 + (uint32_t)random_below(randomness, 1000);
    geometry.name_heap_size = TOPIC_NAME_SIZE_MAX + (uint32_t)random_below(randomness, 5000);
    geometry.completion_count = UINT32_C(2) << random_below(randomness, 12);
    return geometry;
}

TEST(regions_are_disjoint_and_aligned_for_any_geometry)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < 1000; i++) {
        struct geometry geometry = random_geometry(&randomness);
        EXPECT_STATUS(geometry_validate(&geometry, NULL), STATUS_OK);
        expect_regions_disjoint_and_aligned(&geometry);
    }
}

/* ---- validate ---- */

TEST(the_extremes_are_valid)
{
    struct geometry large = largest();
    EXPECT_STATUS(geometry_validate(&smallest, NULL), STATUS_OK);
    EXPECT_STATUS(geometry_validate(&large, NULL), STATUS_OK);
}

static void expect_refused(const struct geometry *geometry, const char *word)
{
    struct error error = {0};
    EXPECT_STATUS(geometry_validate(geometry, &error), STATUS_INVALID);
    EXPECT_OR_SAY(strstr(error.message, word) != NULL, "\"%s\" does not name %s", error.message, word);
}

/* Sets one field of a valid geometry to a bad value. */
#define EXPECT_BAD(field, value, word)                       \
    do {                                                     \
        struct geometry geometry = geometry_of(8, 512);      \
        geometry.field = (value);                            \
        expect_refused(&geometry, word);                     \
    } while (0)

TEST(each_number_has_a_lower_and_an_upper_bound)
{
    EXPECT_BAD(batch_size, RECORDS_START, "batch_size");
    EXPECT_BAD(batch_size, BATCH_SIZE_MAX + 1, "batch_size");
    EXPECT_BAD(slot_count, 0, "buffer_memory");
    EXPECT_BAD(slot_count, SLOT_COUNT_MAX + 1, "buffer_memory");
    EXPECT_BAD(process_count, 0, "process_count");
    EXPECT_BAD(process_count, PROCESS_COUNT_MAX + 1, "process_count");
    EXPECT_BAD(waiter_count, 0, "waiter_count");
    EXPECT_BAD(waiter_count, WAITER_COUNT_MAX + 1, "waiter_count");
    EXPECT_BAD(topic_count, 0, "topic_count");
    EXPECT_BAD(topic_count, (1 << 20) + 1, "topic_count");
    EXPECT_BAD(partition_count, 0, "partition_count");
    EXPECT_BAD(partition_count, (1 << 22) + 1, "partition_count");
    EXPECT_BAD(name_heap_size, TOPIC_NAME_SIZE_MAX - 1, "name_heap_size");
    EXPECT_BAD(name_heap_size, (1 << 28) + 1, "name_heap_size");
    EXPECT_BAD(completion_count, 1, "completion_count");
    EXPECT_BAD(completion_count, UINT32_C(1) << 29, "completion_count");
    EXPECT_BAD(oversized_bytes_max, 8 * 512 + 1, "oversized_bytes_max");
    EXPECT_BAD(record_size_max, RECORDS_START, "record_size_max");
    EXPECT_BAD(record_size_max, BATCH_SIZE_MAX + 1, "record_size_max");
}

TEST(numbers_that_contradict_each_other_are_refused)
{
    EXPECT_BAD(slot_stride, 512, "contradict");
    EXPECT_BAD(slot_stride, 2 * PAGE_SIZE_BYTES, "contradict");
    EXPECT_BAD(slot_stride, 0, "contradict");
    EXPECT_BAD(buffer_memory, 8 * 512 - 1, "contradict");
    EXPECT_BAD(buffer_memory, 9 * 512, "contradict");
    EXPECT_BAD(buffer_memory, UINT64_MAX, "contradict");
    EXPECT_BAD(completion_count, 255, "contradict");
    EXPECT_BAD(completion_count, 3, "contradict");
}

TEST(a_sentence_is_not_needed)
{
    struct geometry geometry = geometry_of(8, 512);
    geometry.process_count = 0;
    EXPECT_STATUS(geometry_validate(&geometry, NULL), STATUS_INVALID);
}

RUN_ALL()
