/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/census.h"

#include "arena/process_share.h"
#include "arena/topic_share.h"

static struct queue_census *row_of(struct census *census, uint32_t partition_index)
{
    CHECK(census->queue_count >= 1);
    uint32_t last = census->queue_count - 1;
    return &census->queues[partition_index < last ? partition_index : last];
}

static struct queue_census *queue_of(const struct arena *arena, struct census *census, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    return row_of(census, load_relaxed_u32(&arena->slots[slot_index].partition_index));
}

static void count_queued(const struct arena *arena, struct census *census, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_word_count(word) != 0);
    struct queue_census *queue = queue_of(arena, census, slot_index);
    uint64_t created_ns = arena->slots[slot_index].created_ns;
    if (queue->batch_count == 0 || created_ns < queue->created_ns) {
        queue->created_ns = created_ns;
    }
    queue->batch_count++;
    queue->record_count += slot_word_count(word);
    queue->size += slot_word_size(word);
    if (census->oldest_slot == NO_SLOT || created_ns < census->oldest_created_ns) {
        census->oldest_slot = slot_index;
        census->oldest_word = word;
        census->oldest_created_ns = created_ns;
    }
}

static void count_damaged(const struct arena *arena, struct census *census, uint32_t slot_index, uint64_t word)
{
    struct queue_census *queue = queue_of(arena, census, slot_index);
    queue->damaged_batch_count++;
    queue->damaged_record_count += slot_word_count(word);
}

/* Returns the row of the owner's entry, or the last row if another process has taken the entry since. */
static struct holding_census *holding_of(const struct arena *arena, struct census *census, uint32_t owner)
{
    CHECK(owner != 0);
    uint32_t index = owner_index(owner);
    uint32_t last = census->holding_count - 1;
    bool is_of_entry = index < last && owner_of(index, load_relaxed_u32(&arena->processes[index].generation)) == owner;
    return &census->holdings[is_of_entry ? index : last];
}

static void count_held(const struct arena *arena, struct census *census, uint32_t slot_index, uint64_t word)
{
    uint32_t partition_index = holding_partition(arena, slot_index, word);
    uint32_t holder = process_share_holder(arena, slot_index, word);
    if (partition_index != NO_PARTITION) {
        row_of(census, partition_index)->held++;
    }
    if (holder != 0) {
        struct holding_census *holding = holding_of(arena, census, holder);
        holding->held++;
        holding->owned += slot_word_state(word) == SLOT_OWNED;
    }
}

static void count_slot(const struct arena *arena, struct census *census, uint32_t slot_index)
{
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word); /* P2 */
    enum slot_state state = slot_word_state(word);
    census->states[state]++;
    if ((state == SLOT_OPEN || state == SLOT_READY) && slot_word_count(word) != 0) {
        count_queued(arena, census, slot_index, word);
    } else if (state == SLOT_BAD) {
        count_damaged(arena, census, slot_index, word);
    }
    count_held(arena, census, slot_index, word);
}

void census_take(const struct arena *arena, struct census *census)
{
    CHECK(census->queue_count >= 1);
    CHECK(census->holding_count == arena->geometry.process_count + 1);
    census->oldest_slot = NO_SLOT;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        count_slot(arena, census, i);
    }
}
