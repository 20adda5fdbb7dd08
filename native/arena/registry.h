/* SPDX-License-Identifier: Apache-2.0
 *
 * Topics and partitions of the arena: append-only tables, so an index once given out is good for ever and no reader
 * needs a lock. Creation runs under the registry lock; the entry is complete before its count is raised (release), so
 * a creator that dies leaves an entry nobody sees, and the next one overwrites it. There is nothing to repair.
 *
 *   R1 creator: entry written, then count = n + 1 (release)
 *   R2 reader:  count (acquire), then entries below it
 *
 * Finding is by a private hash table of each process, extended by the entries published since the last look.
 */
#ifndef ARENA_REGISTRY_H
#define ARENA_REGISTRY_H

#include "arena/arena.h"

struct registry; /* the private table of this process */

enum status registry_open(struct arena *arena, struct registry **registry, struct error *error) MUST_USE;
void registry_close(struct registry *registry);

/* Finds or creates. STATUS_INVALID for a name Kafka does not allow (empty, over 249 bytes, other than [a-zA-Z0-9._-],
 * "." or "..") or a negative partition; STATUS_NO_PARTITION when a table is full. */
enum status registry_topic(struct registry *registry, const char *name, uint32_t name_size,
                           uint32_t *topic_index) MUST_USE;
enum status registry_partition(struct registry *registry, uint32_t topic_index, int32_t partition,
                               uint32_t *partition_index) MUST_USE;

/* Finds and creates nothing: false when nobody has created it yet. */
bool registry_find_partition(struct registry *registry, uint32_t topic_index, int32_t partition,
                             uint32_t *partition_index);

/* Bounds-checked views of an entry; STATUS_CORRUPT when the entry points outside the name heap. */
enum status registry_topic_name(const struct arena *arena, uint32_t topic_index, const char **name,
                                uint32_t *name_size) MUST_USE;

/* Counts as readers may use them: acquire, and never above the geometry. */
uint32_t registry_topic_count(const struct arena *arena);
uint32_t registry_partition_count(const struct arena *arena);

/* How many partitions the topic has, as the sink reported through the sender; 0: not known yet. */
static inline uint32_t topic_partition_count(const struct arena *arena, uint32_t topic_index)
{
    CHECK(topic_index < arena->geometry.topic_count);
    uint32_t count = load_acquire_u32(&arena->topics[topic_index].partition_count); /* V2 */
    return count <= INT32_MAX ? count : 0;
}

/* A producer waits until the topic has so many partitions. Said again as long as it waits, for the sender takes it. */
static inline void topic_want(struct arena *arena, uint32_t topic_index, uint32_t partition_count)
{
    CHECK(topic_index < arena->geometry.topic_count);
    atomic_u32 *wanted = &arena->topics[topic_index].wanted_partition_count;
    uint32_t former = load_relaxed_u32(wanted);
    while (former < partition_count && !cas_u32(wanted, &former, partition_count)) { /* V2 */
    }
}

/* True once for each time that producers wanted more partitions of the topic than it has. */
static inline bool topic_take_wanted(struct arena *arena, uint32_t topic_index)
{
    CHECK(topic_index < arena->geometry.topic_count);
    atomic_u32 *wanted = &arena->topics[topic_index].wanted_partition_count;
    return UNLIKELY(load_relaxed_u32(wanted) != 0) &&
           exchange_u32(wanted, 0) > topic_partition_count(arena, topic_index); /* V2 */
}

#endif
