/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender's half: telling producers how long the queues are, for the weights of KIP-794
 * (partitioner.h). Kafka's producer computes this in ready(); ours is in another process, so it stands in the arena.
 *
 * Only partitions with a queue are looked at, and those that had one at the last look. Between the two a number may be
 * too low for a moment: it is a hint.
 */
#include "producer/accumulator.h"
#include "sender/sender_half.h"

static atomic_u32 *longest_of_topic(struct arena *arena, uint32_t partition_index)
{
    uint32_t topic_index = arena->partitions[partition_index].topic_index;
    return topic_index < arena->geometry.topic_count ? &arena->topics[topic_index].queued_batch_count_max : NULL;
}

static void length_store(struct accumulator *accumulator, uint32_t partition_index, uint32_t length)
{
    bool is_available = !accumulator->sender->queues[partition_index].is_unavailable;
    store_relaxed_u32(&accumulator->arena->partitions[partition_index].queued_batch_count,
                      is_available ? length : PARTITION_UNAVAILABLE);
}

/* What a former sender published. */
static void lengths_forget(struct accumulator *accumulator)
{
    struct arena *arena = accumulator->arena;
    for (uint32_t i = 0; i < registry_partition_count(arena); i++) {
        length_store(accumulator, i, 0);
    }
    for (uint32_t i = 0; i < registry_topic_count(arena); i++) {
        store_relaxed_u32(&arena->topics[i].queued_batch_count_max, 0);
    }
    accumulator->sender->has_published = true;
}

static void lengths_take_back(struct accumulator *accumulator)
{
    struct sender_half *half = accumulator->sender;
    for (uint32_t i = 0; i < half->published_count; i++) {
        atomic_u32 *longest = longest_of_topic(accumulator->arena, half->published[i]);
        if (longest != NULL) {
            store_relaxed_u32(longest, 0);
        }
        if (half->queues[half->published[i]].active_position == 0) {
            length_store(accumulator, half->published[i], 0);
        }
    }
    half->published_count = 0;
}

/* In flight is not queued any more, as in Kafka. */
static uint32_t queue_length(const struct sender_half *half, uint32_t partition_index)
{
    uint32_t length = 0;
    for (uint32_t next = half->queues[partition_index].first; next != 0; next = half->notes[next - 1].next) {
        length += !half->notes[next - 1].is_in_flight;
    }
    return length;
}

static void length_publish(struct accumulator *accumulator, uint32_t partition_index)
{
    struct sender_half *half = accumulator->sender;
    uint32_t length = queue_length(half, partition_index);
    atomic_u32 *longest = longest_of_topic(accumulator->arena, partition_index);
    if (longest != NULL && load_relaxed_u32(longest) < length) {
        store_relaxed_u32(longest, length);
    }
    length_store(accumulator, partition_index, length);
    half->published[half->published_count++] = partition_index;
}

void accumulator_publish_queues(struct accumulator *accumulator)
{
    struct sender_half *half = accumulator->sender;
    if (!half->has_published) {
        lengths_forget(accumulator);
    }
    sender_collect_news(accumulator);
    lengths_take_back(accumulator);
    for (uint32_t i = 0; i < half->active_count; i++) {
        length_publish(accumulator, half->active[i]);
    }
}

void accumulator_set_available(struct accumulator *accumulator, uint32_t partition_index, bool is_available)
{
    if (partition_index < accumulator->arena->geometry.partition_count) {
        accumulator->sender->queues[partition_index].is_unavailable = !is_available;
        length_store(accumulator, partition_index, 0);
    }
}
