/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/partitioner.h"

/* splitmix64 */
static uint64_t random_next(struct partitioner *partitioner)
{
    uint64_t bits = partitioner->random_state += UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
    return bits ^ bits >> 31;
}

/* The high half of the product is uniform except for an error of at most 2^-32. */
uint32_t partitioner_random_below(struct partitioner *partitioner, uint32_t limit)
{
    CHECK(limit > 0);
    return (uint32_t)((random_next(partitioner) >> 32) * limit >> 32);
}

/* ---- draw ---- */

/* A partition without an entry has an empty queue, because nothing was appended to it. */
static uint32_t queue_length(struct partitioner *partitioner, uint32_t topic_index, uint32_t partition)
{
    CHECK(partition <= INT32_MAX);
    uint32_t partition_index;
    if (!registry_find_partition(partitioner->registry, topic_index, (int32_t)partition, &partition_index)) {
        return 0;
    }
    return load_relaxed_u32(&partitioner->arena->partitions[partition_index].queued_batch_count);
}

/* Used if all draws failed. Returns the next available partition, or `drawn` if there is none. */
static COLD uint32_t next_available(struct partitioner *partitioner, uint32_t topic_index, uint32_t partition_count,
                                    uint32_t drawn)
{
    CHECK(drawn < partition_count);
    for (uint32_t i = 0; i < partition_count; i++) {
        uint32_t partition = (uint32_t)(((uint64_t)drawn + i) % partition_count);
        if (queue_length(partitioner, topic_index, partition) != PARTITION_UNAVAILABLE) {
            return partition;
        }
    }
    return drawn;
}

enum { DRAW_COUNT_MAX = 64 };

uint32_t partitioner_draw(struct partitioner *partitioner, uint32_t topic_index, uint32_t partition_count)
{
    CHECK(partition_count > 0);
    CHECK(topic_index < partitioner->arena->geometry.topic_count);
    uint32_t longest = load_relaxed_u32(&partitioner->arena->topics[topic_index].queued_batch_count_max);
    uint32_t weight_max = partitioner->is_adaptive && longest < UINT32_MAX ? longest + 1 : 1;
    uint32_t partition = 0;
    for (int i = 0; i < DRAW_COUNT_MAX; i++) {
        partition = partitioner_random_below(partitioner, partition_count);
        uint32_t length = queue_length(partitioner, topic_index, partition);
        uint32_t counted = partitioner->is_adaptive || length == PARTITION_UNAVAILABLE ? length : 0;
        if (partitioner_random_below(partitioner, weight_max) >= counted) {
            return partition;
        }
    }
    return next_available(partitioner, topic_index, partition_count, partition);
}

/* ---- the sticky partition ---- */

static uint64_t sticky_next_move(uint64_t word)
{
    return sticky_word(sticky_word_move_count(word) + 1, NO_STICKY);
}

/* Returns true if this process has appended the content of two batches there, or the partition does not exist. */
static bool sticky_is_over(const struct arena *arena, const struct sticky *sticky, uint64_t word,
                           uint32_t partition_count)
{
    CHECK(partition_count > 0);
    bool is_due = word == sticky->word && sticky->size >= 2 * (uint64_t)arena->geometry.batch_size;
    return is_due || sticky_word_partition(word) >= partition_count;
}

/* Each iteration ends the loop, or finds a changed word: then another process made progress. */
uint32_t partitioner_sticky_slow(struct partitioner *partitioner, struct sticky *sticky, uint32_t partition_count)
{
    CHECK(partition_count > 0);
    CHECK(sticky->topic_index < partitioner->arena->geometry.topic_count);
    struct arena *arena = partitioner->arena;
    atomic_u64 *cell = &arena->topics[sticky->topic_index].sticky;
    uint64_t word = load_relaxed_u64(cell);
    while (sticky_is_over(arena, sticky, word, partition_count)) {
        uint32_t partition = partitioner_draw(partitioner, sticky->topic_index, partition_count);
        uint64_t chosen = sticky_word(sticky_word_move_count(sticky_next_move(word)), partition);
        if (cas_u64(cell, &word, chosen)) { /* V2 */
            word = chosen;
            break;
        }
    }
    if (word != sticky->word) {
        sticky->word = word;
        sticky->size = 0;
    }
    return sticky_word_partition(word);
}

bool sticky_stays(struct arena *arena, const struct sticky *sticky, bool is_full)
{
    CHECK(sticky->topic_index < arena->geometry.topic_count);
    atomic_u64 *cell = &arena->topics[sticky->topic_index].sticky;
    uint64_t word = load_relaxed_u64(cell);
    if (word != sticky->word) {
        return false;
    }
    if (!is_full && sticky->size < arena->geometry.batch_size) {
        return true;
    }
    (void)cas_u64(cell, &word, sticky_next_move(word)); /* V2 */
    return false;
}
