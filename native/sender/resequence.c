/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives new sequences to batches that the sink does not have (producer_id.h).
 */
#include "arena/producer_id.h"
#include "arena/registry.h"
#include "base/point.h"
#include "sender/sender_half.h"

/* Returns the youngest batch of the queue that has a sequence and is not in flight, or NO_SLOT. */
static uint32_t youngest_with_sequence(const struct sender_half *half, uint32_t partition_index)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    uint32_t youngest = NO_SLOT;
    for (uint32_t next = half->queues[partition_index].first; next != 0; next = half->notes[next - 1].next) {
        bool has_sequence = load_relaxed_u32(&half->arena->slots[next - 1].producer_epoch) != 0;
        if (has_sequence && !half->notes[next - 1].is_in_flight) {
            youngest = next - 1;
        }
    }
    return youngest;
}

void sender_resequence(struct sender_half *half, uint32_t partition_index)
{
    struct arena *arena = half->arena;
    if (partition_index >= arena->geometry.partition_count) {
        return;
    }
    for (;;) {
        uint32_t slot_index = youngest_with_sequence(half, partition_index);
        if (slot_index == NO_SLOT) {
            break;
        }
        store_release_u32(&arena->slots[slot_index].producer_epoch, 0); /* V5 */
        POINT(sequence_taken_back);
    }
    store_relaxed_u32(&arena->partitions[partition_index].producer_epoch, 0);
}

void sender_resequence_all(struct sender_half *half)
{
    for (uint32_t i = 0; i < registry_partition_count(half->arena); i++) {
        sender_resequence(half, i);
    }
}
