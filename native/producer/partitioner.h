/* SPDX-License-Identifier: Apache-2.0
 *
 * The partitioner: which partition a record goes to when its producer did not say (Kafka's BuiltInPartitioner,
 * KIP-480 and KIP-794).
 *
 *   with a key       to_positive(murmur2(key)) % partition_count: the same key, the same partition
 *   without a key    the topic's sticky partition: one for all processes of the host, so that they fill the same batch
 *
 * THE STICKY WORD of a topic: (how often it moved on, partition), or (how often, none): to be chosen.
 *
 *   choose   whoever finds none draws a partition and stores it by CAS; the first one wins, for everybody.
 *   stay     while its open batch takes records. Nothing is shared but one load per record.
 *   move on  CAS (n, partition) -> (n + 1, none), under the producer lock of that partition, at the moment when another
 *            batch would have to be opened there, if the one before is full, or if this process alone has put
 *            batch_size bytes into it in batches that were cut short (linger, flush). So it leaves no begun batch
 *            behind. Also when this process alone has put twice that much into it (KAFKA-14156).
 *
 * Kafka counts the bytes of all its threads; we count those of a process, since a shared count would be a line that
 * every record of every process writes. A full batch, the frequent reason, is seen by whoever finds it full.
 *
 * DRAWING is by weight, as in KIP-794: a partition with q batches queued has the weight (longest queue + 1 - q). One is
 * drawn uniformly and kept with the probability weight / (longest queue + 1), else another one is drawn: no table, no
 * scan over thousands of partitions. The sender publishes the queues now and then (sender_publish_queues); an
 * unavailable partition has no weight, and is drawn only if none is available.
 *
 * DEATHS. Any process may die anywhere here: the word is whole after each CAS, and "none" is chosen by the next one.
 * Everything read is a hint: a partition that does not exist any more is moved on from.
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

/* The memory of a process of one topic's sticky partition. Zeros, but for topic_index, at the beginning. */
struct sticky {
    uint64_t word;        /* as last read */
    uint64_t size;        /* bytes this process appended there since it found this word */
    uint32_t topic_index;
};

/* The private part of one user; one thread at a time. */
struct partitioner {
    struct arena *arena;
    struct registry *registry;
    uint64_t random_state; /* any seed; the same one draws the same partitions */
    bool is_adaptive;      /* false: queues do not count (partitioner.adaptive.partitioning.enable) */
};

/* Uniform in [0, limit); limit > 0. */
uint32_t partitioner_random_below(struct partitioner *partitioner, uint32_t limit);

/* Draws a partition of the topic by weight; requires partition_count > 0. */
uint32_t partitioner_draw(struct partitioner *partitioner, uint32_t topic_index, uint32_t partition_count);

/* The sticky partition, chosen if there is none. Requires partition_count > 0. */
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

/* Asked under the producer lock of the sticky partition, before another batch is opened there. False: it has moved on,
 * or was moved on now: choose again. `is_full`: the batch before was sealed because it was full. */
bool sticky_stays(struct arena *arena, const struct sticky *sticky, bool is_full);

#endif
