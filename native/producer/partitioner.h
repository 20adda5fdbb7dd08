/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the partition of a record for which the caller gave none (Kafka's BuiltInPartitioner, KIP-480 and KIP-794).
 *
 *   with a key       to_positive(murmur2(key)) % partition_count: records with equal keys go to one partition
 *   without a key    the topic's sticky partition: one for all processes of the host, so that they fill the same batch
 *
 * THE STICKY WORD of a topic: (number of changes, partition), or (number of changes, none) before one is chosen.
 *
 *   choose   a process that finds none draws a partition and stores it by CAS. The first store is valid for all.
 *   stay     while its open batch takes records. A record needs one load of shared memory.
 *   move on  CAS (n, partition) -> (n + 1, none), under the producer lock of that partition, before another batch is
 *            opened there, so that no partly filled batch remains. Reasons: the previous batch is full; this process
 *            has appended batch_size bytes there in batches that were sealed early (linger, flush); or it has appended
 *            twice as much there (KAFKA-14156).
 *
 * Kafka counts the bytes of all its threads. Here each process counts its own bytes, because a shared count would be
 * written for each record. The usual reason is a full batch, which one process detects for all.
 *
 * DRAWING is by weight, as in KIP-794: a partition with q batches queued has the weight (longest queue + 1 - q). A
 * partition is drawn uniformly, and accepted with the probability weight / (longest queue + 1). Otherwise, another one
 * is drawn. This needs no table and no scan over thousands of partitions. The sender publishes the queues periodically
 * (sender_publish_queues). An unavailable partition has the weight 0, and is drawn only if no partition is available.
 *
 * DEATHS. A process may die at any point: the word is valid after each CAS, and if it has none, the next process
 * chooses. All values that are read are hints: if a partition no longer exists, the topic moves on.
 */
#ifndef PRODUCER_PARTITIONER_H
#define PRODUCER_PARTITIONER_H

#include "arena/arena.h"
#include "arena/registry.h"
#include "format/murmur2.h"

/* Requires partition_count > 0. */
static inline uint32_t partition_of_key(const void *key, uint32_t size, uint32_t partition_count)
{
    CHECK(partition_count > 0);
    return (uint32_t)to_positive(murmur2(key, size)) % partition_count;
}

/* The private state of a process for a topic's sticky partition. Initially zeros, except for topic_index. */
struct sticky {
    uint64_t word;        /* the sticky word that was read last */
    uint64_t size;        /* bytes that this process has appended there since it first read this word */
    uint32_t topic_index;
};

/* The private state of one user. One thread uses it at a time. */
struct partitioner {
    struct arena *arena;
    struct registry *registry;
    uint64_t random_state; /* any number; the same seed draws the same partitions */
    bool is_adaptive;      /* if false, queues are ignored (partitioner.adaptive.partitioning.enable) */
};

/* Returns a uniform number in [0, limit); limit > 0. */
uint32_t partitioner_random_below(struct partitioner *partitioner, uint32_t limit);

/* Draws a partition of the topic by weight; requires partition_count > 0. */
uint32_t partitioner_draw(struct partitioner *partitioner, uint32_t topic_index, uint32_t partition_count);

/* Returns the sticky partition, and chooses one if there is none. Requires partition_count > 0. */
uint32_t partitioner_sticky_slow(struct partitioner *partitioner, struct sticky *sticky, uint32_t partition_count);

static inline uint32_t partitioner_sticky(struct partitioner *partitioner, struct sticky *sticky,
                                          uint32_t partition_count)
{
    CHECK(sticky->topic_index < partitioner->arena->geometry.topic_count);
    const struct arena *arena = partitioner->arena;
    uint64_t word = load_relaxed_u64(&arena->topics[sticky->topic_index].sticky);
    uint32_t partition = sticky_word_partition(word);
    if (LIKELY(word == sticky->word && partition < partition_count &&
               sticky->size < 2 * (uint64_t)arena->geometry.batch_size)) {
        return partition;
    }
    return partitioner_sticky_slow(partitioner, sticky, partition_count);
}

/* Called under the producer lock of the sticky partition, before another batch is opened there. Returns false if the
 * topic has moved on, or moves on now: choose again. `is_full` is true if the previous batch was sealed because it was
 * full. */
bool sticky_stays(struct arena *arena, const struct sticky *sticky, bool is_full);

#endif
