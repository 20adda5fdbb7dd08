/* SPDX-License-Identifier: Apache-2.0
 *
 * Topics and partitions of the arena: append-only tables, so an index is valid permanently and no reader needs a lock.
 * Creation runs under the registry lock. The entry is complete before its count is raised (release), so a creator that
 * dies leaves an entry that no process sees, and the next one overwrites it. There is nothing to repair.
 *
 *   R1 creator: entry written, then count = n + 1 (release)
 *   R2 reader:  count (acquire), then entries below it
 *
 * Each process finds entries in a private hash table, and adds the entries published since its last search.
 *
 * AFTER A CRASH OF THE HOST, each sector of the disk has any one of its versions. So a count may be newer than its
 * entries, and a batch newer than the entry of its partition. Each entry has a checksum. Recovery keeps the entries
 * before the first one that does not verify, clears the others, and forces the arena to disk before an index is
 * assigned again. A batch with a higher index is quarantined. No forced batch is lost: an entry is complete before a
 * batch can name it, so it was forced with the batch or earlier.
 */
#ifndef ARENA_REGISTRY_H
#define ARENA_REGISTRY_H

#include "arena/arena.h"

struct registry; /* the private table of this process */

enum status registry_open(struct arena *arena, struct registry **registry, struct error *error) MUST_USE;
void registry_close(struct registry *registry);

/* Finds or creates an entry. Returns STATUS_INVALID for a negative partition or a name that Kafka does not allow
 * (empty, over 249 bytes, other than [a-zA-Z0-9._-], "." or ".."), and STATUS_NO_PARTITION if a table is full. */
enum status registry_topic(struct registry *registry, const char *name, uint32_t name_size,
                           uint32_t *topic_index) MUST_USE;
enum status registry_partition(struct registry *registry, uint32_t topic_index, int32_t partition,
                               uint32_t *partition_index) MUST_USE;

/* Finds without creating: returns false if no process has created it yet. */
bool registry_find_partition(struct registry *registry, uint32_t topic_index, int32_t partition,
                             uint32_t *partition_index);

/* Returns a bounds-checked view of an entry, or STATUS_CORRUPT if the entry points outside the name heap. */
enum status registry_topic_name(const struct arena *arena, uint32_t topic_index, const char **name,
                                uint32_t *name_size) MUST_USE;

/* The number of used entries of each table. */
struct registry_extent {
    uint32_t topic_count;
    uint32_t partition_count;
    uint32_t name_heap_used;
};

/* Returns the entries that were completely on disk when the host crashed. */
struct registry_extent registry_intact(const struct arena *arena);

/* Requires that no other process is attached. Clears the entries past the extent. */
void registry_cut(struct arena *arena, const struct registry_extent *extent);

/* Return counts that never exceed the geometry. */
uint32_t registry_topic_count(const struct arena *arena);
uint32_t registry_partition_count(const struct arena *arena);

/* Returns the topic's number of partitions, as the sink reported it through the sender, or 0 if it is not known yet. */
static inline uint32_t topic_partition_count(const struct arena *arena, uint32_t topic_index)
{
    CHECK(topic_index < arena->geometry.topic_count);
    uint32_t count = load_acquire_u32(&arena->topics[topic_index].partition_count); /* V2 */
    return count <= INT32_MAX ? count : 0;
}

/* Requests this number of partitions of the topic. The sender clears the request, so a producer repeats it. */
static inline void topic_want(struct arena *arena, uint32_t topic_index, uint32_t partition_count)
{
    CHECK(topic_index < arena->geometry.topic_count);
    atomic_u32 *wanted = &arena->topics[topic_index].wanted_partition_count;
    uint32_t former = load_relaxed_u32(wanted);
    while (former < partition_count && !cas_u32(wanted, &former, partition_count)) { /* V2 */
    }
}

/* Clears the request. Returns true if producers wanted more partitions of the topic than it has. */
static inline bool topic_take_wanted(struct arena *arena, uint32_t topic_index)
{
    CHECK(topic_index < arena->geometry.topic_count);
    atomic_u32 *wanted = &arena->topics[topic_index].wanted_partition_count;
    return UNLIKELY(load_relaxed_u32(wanted) != 0) &&
           exchange_u32(wanted, 0) > topic_partition_count(arena, topic_index); /* V2 */
}

/* Returns the number of topics whose partitions no sink has reported, and sets `first` to the first of them. */
uint32_t registry_count_unknown_topics(const struct arena *arena, uint32_t *first);

#endif
