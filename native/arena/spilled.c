/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/spilled.h"

#include "base/point.h"

bool spilled_has(const struct arena *arena, uint32_t partition_index, uint64_t seq)
{
    if (partition_index >= arena->geometry.partition_count) {
        return false;
    }
    const struct partition_entry *partition = &arena->partitions[partition_index];
    uint64_t end_seq = load_acquire_u64(&partition->spilled_end_seq); /* O2, O4 */
    return seq < end_seq && load_acquire_u64(&partition->spilled_first_seq) <= seq; /* O4 */
}

bool spilled_may_have_had(const struct arena *arena, uint32_t partition_index, uint64_t seq)
{
    return partition_index >= arena->geometry.partition_count ||
           seq < load_relaxed_u64(&arena->partitions[partition_index].spilled_end_seq);
}

bool spilled_has_up_to(const struct arena *arena, uint32_t partition_index, uint64_t seq)
{
    CHECK(partition_index < arena->geometry.partition_count);
    const struct partition_entry *partition = &arena->partitions[partition_index];
    uint64_t end_seq = load_acquire_u64(&partition->spilled_end_seq); /* O2 */
    uint64_t first_seq = load_acquire_u64(&partition->spilled_first_seq); /* O4 */
    return first_seq < end_seq && first_seq <= seq;
}

/* spilled_first_seq is stored before spilled_end_seq, so an empty range never contains another batch. */
void spilled_extend_to(struct arena *arena, uint32_t partition_index, uint64_t seq)
{
    CHECK(arena->is_sender);
    CHECK(partition_index < arena->geometry.partition_count);
    struct partition_entry *partition = &arena->partitions[partition_index];
    uint64_t first_seq = load_relaxed_u64(&partition->spilled_first_seq);
    uint64_t end_seq = load_relaxed_u64(&partition->spilled_end_seq);
    bool is_empty = first_seq >= end_seq;
    if (is_empty && seq < end_seq) {
        store_release_u64(&partition->spilled_end_seq, 0); /* O5 */
        end_seq = 0;
    }
    if (is_empty || seq < first_seq) {
        store_release_u64(&partition->spilled_first_seq, seq); /* O5 */
    }
    POINT(spilled_first_stored);
    if (seq >= end_seq) {
        store_release_u64(&partition->spilled_end_seq, seq + 1); /* O1 */
    }
    POINT(spilled_end_stored);
}

void spilled_set(struct arena *arena, uint32_t partition_index, uint64_t first_seq, uint64_t end_seq)
{
    CHECK(arena->is_sender);
    if (partition_index < arena->geometry.partition_count) {
        store_release_u64(&arena->partitions[partition_index].spilled_first_seq, first_seq); /* O3 */
        store_release_u64(&arena->partitions[partition_index].spilled_end_seq, end_seq); /* O3 */
    }
}

void spilled_publish(struct arena *arena, const struct spilled_totals *totals)
{
    CHECK(arena->is_sender);
    struct globals *globals = arena->globals;
    store_relaxed_u64(&globals->spilled_batch_count, totals->batch_count);
    store_relaxed_u64(&globals->spilled_record_count, totals->record_count);
    store_relaxed_u64(&globals->spilled_size, totals->size);
    store_release_u64(&globals->spilled_since_ns, totals->since_ns); /* V2 */
}

void spilled_read(const struct arena *arena, struct spilled_totals *totals)
{
    const struct globals *globals = arena->globals;
    *totals = (struct spilled_totals){.since_ns = load_acquire_u64(&globals->spilled_since_ns), /* V2 */
                                      .batch_count = load_relaxed_u64(&globals->spilled_batch_count),
                                      .record_count = load_relaxed_u64(&globals->spilled_record_count),
                                      .size = load_relaxed_u64(&globals->spilled_size)};
}
