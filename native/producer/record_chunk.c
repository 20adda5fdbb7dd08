/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/record_chunk.h"

/* ---- a partition for each record ---- */

static inline bool is_keyless(const struct chunk_rules *rules, const struct chunk *chunk, uint32_t i)
{
    return chunk->partitions[i] < 0 && (chunk->records[i].record.key_size < 0 || rules->ignores_keys);
}

static inline uint32_t partition_choose(const struct chunk_rules *rules, const struct chunk *chunk, uint32_t i,
                                        uint32_t partition_count)
{
    const struct record *record = &chunk->records[i].record;
    if (chunk->partitions[i] >= 0) {
        return (uint32_t)chunk->partitions[i];
    }
    if (!is_keyless(rules, chunk, i)) {
        return partition_of_key(record->key, (uint32_t)record->key_size, partition_count);
    }
    return partitioner_sticky(rules->partitioner, &chunk->topics[i]->sticky, partition_count);
}

static inline enum status record_assign(const struct chunk_rules *rules, const struct chunk *chunk, uint32_t i,
                                        struct assignment *assignment, uint32_t *partition)
{
    struct topic_note *topic = chunk->topics[i];
    uint32_t topic_index = topic->sticky.topic_index;
    assignment->is_sticky[i] = is_keyless(rules, chunk, i);
    if (assignment->is_sticky[i] && i > 0 && assignment->is_sticky[i - 1] && topic == chunk->topics[i - 1]) {
        assignment->partition_indices[i] = assignment->partition_indices[i - 1];
        return STATUS_OK;
    }
    uint32_t partition_count = topic_partition_count(rules->partitioner->arena, topic_index);
    *partition = partition_count == 0 ? 0 : partition_choose(rules, chunk, i, partition_count);
    if (UNLIKELY(*partition >= partition_count)) {
        return STATUS_TRY_AGAIN;
    }
    return partition_indices_find(&topic->indices, rules->partitioner->registry, topic_index, *partition,
                                  &assignment->partition_indices[i]);
}

enum status chunk_assign(const struct chunk_rules *rules, const struct chunk *chunk, struct assignment *assignment,
                         uint32_t *partition)
{
    CHECK(chunk->count <= CHUNK_COUNT_MAX);
    CHECK(assignment->count <= chunk->count);
    uint32_t i = assignment->count;
    enum status status = STATUS_OK;
    while (i < chunk->count && LIKELY((status = record_assign(rules, chunk, i, assignment, partition)) == STATUS_OK)) {
        i++;
    }
    assignment->count = i;
    return status;
}

/* ---- groups ---- */

void chunk_arrange(const struct chunk *chunk, const struct grouping *grouping, struct arrangement *arrangement)
{
    CHECK(chunk->count <= CHUNK_COUNT_MAX);
    for (uint32_t i = 0; i < chunk->count; i++) {
        arrangement->records[grouping->places[i]] = chunk->records[i];
        arrangement->rows[grouping->places[i]] = (uint8_t)i;
    }
}

struct chunk_group chunk_group(const struct chunk *chunk, const struct assignment *assignment,
                               const struct record_group *group, const struct arrangement *arrangement)
{
    const struct measured_record *records = arrangement == NULL ? chunk->records : arrangement->records;
    uint32_t first_row = arrangement == NULL ? group->start : arrangement->rows[group->start];
    bool is_sticky = true;
    CHECK(group->count > 0 && group->start + group->count <= chunk->count);
    for (uint32_t i = group->start; i < group->start + group->count; i++) {
        is_sticky = is_sticky && assignment->is_sticky[arrangement == NULL ? i : arrangement->rows[i]];
    }
    return (struct chunk_group){.partition_index = group->partition_index,
                                .count = group->count,
                                .records = &records[group->start],
                                .topic = chunk->topics[first_row],
                                .is_sticky = is_sticky};
}
