/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/grouping.h"

#include <stdbool.h>
#include <string.h>

#include "base/check.h"

/* A hash table from partition index to group + 1. At most half of its cells are used. */
enum { CELL_BITS = 9, CELL_COUNT = 1 << CELL_BITS };
STATIC_CHECK(CELL_COUNT >= 2 * CHUNK_COUNT_MAX);
STATIC_CHECK(CHUNK_COUNT_MAX <= UINT8_MAX);

struct group_table {
    uint8_t cells[CELL_COUNT];
};

static uint32_t group_find(struct group_table *table, uint32_t partition_index, struct grouping *grouping)
{
    CHECK(grouping->group_count < CHUNK_COUNT_MAX);
    uint32_t cell = partition_index * UINT32_C(0x9e3779b1) >> (32 - CELL_BITS);
    while (table->cells[cell] != 0) {
        uint32_t group = table->cells[cell] - 1u;
        if (LIKELY(grouping->groups[group].partition_index == partition_index)) {
            return group;
        }
        cell = (cell + 1) % CELL_COUNT;
    }
    grouping->groups[grouping->group_count] = (struct record_group){.partition_index = partition_index};
    table->cells[cell] = (uint8_t)++grouping->group_count;
    return grouping->group_count - 1;
}

static bool are_equal(const uint32_t *partition_indices, uint32_t count)
{
    CHECK(count >= 1);
    uint32_t difference = 0;
    for (uint32_t i = 1; i < count; i++) {
        difference |= partition_indices[i] ^ partition_indices[0];
    }
    return difference == 0;
}

static void group_all(uint32_t partition_index, uint32_t count, struct grouping *grouping)
{
    CHECK(count <= CHUNK_COUNT_MAX);
    grouping->group_count = 1;
    grouping->groups[0] = (struct record_group){.partition_index = partition_index, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        grouping->places[i] = (uint8_t)i;
    }
}

static void groups_place(struct grouping *grouping)
{
    CHECK(grouping->group_count >= 1 && grouping->group_count <= CHUNK_COUNT_MAX);
    for (uint32_t group = 1; group < grouping->group_count; group++) {
        grouping->groups[group].start = grouping->groups[group - 1].start + grouping->groups[group - 1].count;
    }
}

void group_by_partition(const uint32_t *partition_indices, uint32_t count, struct grouping *grouping)
{
    CHECK(count >= 1);
    CHECK(count <= CHUNK_COUNT_MAX);
    if (are_equal(partition_indices, count)) {
        group_all(partition_indices[0], count, grouping);
        return;
    }
    struct group_table table;
    uint8_t groups[CHUNK_COUNT_MAX];
    memset(&table, 0, sizeof table);
    grouping->group_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t group = group_find(&table, partition_indices[i], grouping);
        groups[i] = (uint8_t)group;
        grouping->places[i] = (uint8_t)grouping->groups[group].count++;
    }
    groups_place(grouping);
    for (uint32_t i = 0; i < count; i++) {
        grouping->places[i] = (uint8_t)(grouping->places[i] + grouping->groups[groups[i]].start);
    }
}
