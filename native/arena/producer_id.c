/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/producer_id.h"

#include <string.h>

#include "base/point.h"
#include "format/sequence.h"

/* ---- the arena's identity ---- */

void producer_identity_read(const struct arena *arena, struct producer_identity *identity)
{
    const struct globals *globals = arena->globals;
    identity->producer_id = (int64_t)load_acquire_u64(&globals->producer_id); /* I9 */
    identity->producer_epoch = identity->producer_id < 0 ? -1 : (int16_t)load_relaxed_u32(&globals->producer_epoch);
    memcpy(identity->sink, globals->sink_identity, sizeof identity->sink);
}

void producer_identity_set(struct arena *arena, const struct producer_identity *identity)
{
    CHECK(arena->is_sender);
    CHECK(identity->producer_id >= -1);
    struct globals *globals = arena->globals;
    store_release_u64(&globals->producer_id, UINT64_MAX); /* I8 */
    POINT(producer_id_forgotten);
    memcpy(globals->sink_identity, identity->sink, sizeof globals->sink_identity);
    store_relaxed_u32(&globals->producer_epoch, (uint16_t)identity->producer_epoch);
    POINT(producer_id_prepared);
    store_release_u64(&globals->producer_id, (uint64_t)identity->producer_id); /* I8 */
}

void sequences_doubt(struct arena *arena)
{
    uint32_t epoch = load_relaxed_u32(&arena->globals->producer_epoch);
    store_relaxed_u32(&arena->globals->producer_epoch, epoch | SEQUENCES_IN_DOUBT);
}

bool sequences_are_in_doubt(const struct arena *arena)
{
    return (load_relaxed_u32(&arena->globals->producer_epoch) & SEQUENCES_IN_DOUBT) != 0;
}

/* ---- sequences ---- */

static uint32_t epoch_of_arena(const struct arena *arena)
{
    return (load_relaxed_u32(&arena->globals->producer_epoch) & UINT16_MAX) | EPOCH_ASSIGNED;
}

static bool partition_is_of_arena(const struct arena *arena, uint32_t partition_index)
{
    CHECK(partition_index < arena->geometry.partition_count);
    const struct partition_entry *partition = &arena->partitions[partition_index];
    return load_relaxed_u32(&partition->producer_epoch) == epoch_of_arena(arena) &&
           load_relaxed_u64(&partition->producer_id) == load_relaxed_u64(&arena->globals->producer_id);
}

static bool sequence_is_wanted(const struct arena *arena, const struct slot_header *slot)
{
    return load_relaxed_u64(&arena->globals->producer_id) != UINT64_MAX && load_relaxed_u32(&slot->producer_epoch) == 0;
}

bool sequence_starts_over(const struct arena *arena, const struct slot_header *slot, uint32_t partition_index)
{
    CHECK(partition_index < arena->geometry.partition_count);
    return sequence_is_wanted(arena, slot) && !partition_is_of_arena(arena, partition_index);
}

/* The epoch is stored last. Until then the partition does not belong to the arena's id, and starts over again. */
static void partition_start_over(struct arena *arena, struct partition_entry *partition)
{
    store_relaxed_u32(&partition->producer_epoch, 0);
    store_relaxed_u32(&partition->next_base_sequence, 0);
    store_relaxed_u64(&partition->producer_id, load_relaxed_u64(&arena->globals->producer_id));
    store_release_u32(&partition->producer_epoch, epoch_of_arena(arena)); /* V5 */
}

void sequence_assign(struct arena *arena, struct slot_header *slot, uint32_t partition_index, uint32_t record_count)
{
    CHECK(arena->is_sender);
    CHECK(record_count >= 1 && record_count <= BATCH_RECORD_COUNT_MAX);
    struct partition_entry *partition = &arena->partitions[partition_index];
    if (!sequence_is_wanted(arena, slot)) {
        return;
    }
    if (!partition_is_of_arena(arena, partition_index)) {
        partition_start_over(arena, partition);
    }
    /* The sink has acked_record_count records of the batch, so the first remaining one gets the next sequence. */
    uint32_t next = load_relaxed_u32(&partition->next_base_sequence) & INT32_MAX;
    uint32_t acked = load_relaxed_u32(&slot->acked_record_count);
    uint32_t base = (uint32_t)sequence_decrement((int32_t)next, (int32_t)(acked & INT32_MAX));
    store_relaxed_u32(&slot->base_sequence, base);
    store_relaxed_u64(&slot->producer_id, load_relaxed_u64(&arena->globals->producer_id));
    POINT(sequence_stored);
    store_release_u32(&slot->producer_epoch, epoch_of_arena(arena)); /* V5 */
    POINT(sequence_assigned);
    store_relaxed_u32(&partition->next_base_sequence,
                      (uint32_t)sequence_increment((int32_t)base, (int32_t)record_count));
}

void sequence_raise(struct arena *arena, const struct slot_header *slot, uint32_t partition_index, uint64_t word)
{
    struct partition_entry *partition = &arena->partitions[partition_index];
    uint32_t epoch = load_relaxed_u32(&slot->producer_epoch);
    if (epoch == 0 || epoch != load_relaxed_u32(&partition->producer_epoch) ||
        load_relaxed_u64(&slot->producer_id) != load_relaxed_u64(&partition->producer_id)) {
        return;
    }
    int32_t base = (int32_t)(load_relaxed_u32(&slot->base_sequence) & INT32_MAX);
    int32_t end = sequence_increment(base, (int32_t)slot_word_count(word));
    if (sequence_is_before((int32_t)(load_relaxed_u32(&partition->next_base_sequence) & INT32_MAX), end)) {
        store_relaxed_u32(&partition->next_base_sequence, (uint32_t)end);
    }
}
