/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/stuck_partitions.h"

#include "arena/registry.h"
#include "arena/spilled.h"

enum {
    USUAL_SHARE = 8,      /* an acknowledgement changes the usual delivery time by 1/USUAL_SHARE of the difference */
    SILENT_DELIVERIES = 10,
};

#define SILENT_NS_MIN NS_PER_S

/* Returns true if the oldest batches of the partition are in the overflow. */
static bool partition_has_spilled(const struct sender_half *half, uint32_t partition_index)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    return spilled_has_up_to(half->arena, partition_index, UINT64_MAX);
}

void stuck_partitions_begin(struct sender_half *half)
{
    CHECK(half->arena->is_sender);
    struct arena *arena = half->arena;
    uint64_t now_ns = arena_now_ns(arena);
    for (uint32_t i = 0; i < arena->geometry.partition_count; i++) {
        /* the age of spilled batches is unknown */
        half->queues[i].acked_ns = partition_has_spilled(half, i) ? now_ns : 0;
        uint64_t former = load_relaxed_u64(&arena->partitions[i].stuck);
        if (former != 0) { /* clears the reason, and keeps the time */
            store_relaxed_u64(&arena->partitions[i].stuck, stuck_word(STUCK_NOT, 0, stuck_word_since_ms(former)));
        }
    }
    store_release_u64(&arena->globals->stuck_epoch, load_relaxed_u64(&arena->globals->sender_epoch)); /* V2 */
}

void stuck_partitions_update_acked(struct sender_half *half, uint64_t created_ns)
{
    CHECK(half->arena->is_sender);
    struct globals *globals = half->arena->globals;
    uint64_t now_ns = arena_now_ns(half->arena);
    uint64_t age_ns = created_ns < now_ns ? now_ns - created_ns : 0;
    uint64_t usual_ns = load_relaxed_u64(&globals->usual_delivery_ns);
    uint64_t smoothed_ns = usual_ns == 0 ? age_ns : usual_ns - usual_ns / USUAL_SHARE + age_ns / USUAL_SHARE;
    store_relaxed_u64(&globals->acked_ns, now_ns);
    store_relaxed_u64(&globals->usual_delivery_ns, smoothed_ns);
}

/* ---- the reason ---- */

static uint64_t silence_max_ns(const struct sender_half *half)
{
    uint64_t usual_ns = load_relaxed_u64(&half->arena->globals->usual_delivery_ns);
    if (usual_ns > UINT64_MAX / SILENT_DELIVERIES) {
        return UINT64_MAX;
    }
    uint64_t limit_ns = SILENT_DELIVERIES * usual_ns;
    return limit_ns > SILENT_NS_MIN ? limit_ns : SILENT_NS_MIN;
}

static bool partition_has_batches(const struct sender_half *half, uint32_t partition_index)
{
    return half->queues[partition_index].first != 0 || partition_has_spilled(half, partition_index);
}

static bool partition_is_silent(const struct sender_half *half, uint32_t partition_index, uint64_t now_ns)
{
    const struct partition_queue *queue = &half->queues[partition_index];
    CHECK(queue->first <= half->arena->geometry.slot_count);
    if (!partition_has_batches(half, partition_index)) {
        return false;
    }
    uint64_t created_ns = queue->first == 0 ? 0 : half->arena->slots[queue->first - 1].created_ns;
    uint64_t since_ns = created_ns > queue->acked_ns ? created_ns : queue->acked_ns;
    return since_ns < now_ns && now_ns - since_ns > silence_max_ns(half) &&
           load_relaxed_u64(&half->arena->globals->acked_ns) > since_ns;
}

static enum stuck_reason stuck_reason_of(const struct sender_half *half, uint32_t partition_index, uint64_t now_ns)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    const struct partition_queue *queue = &half->queues[partition_index];
    if (queue->is_unavailable) {
        return STUCK_NO_LEADER;
    }
    if (queue->refused_error != 0) {
        return STUCK_REFUSED;
    }
    return partition_is_silent(half, partition_index, now_ns) ? STUCK_SILENT : STUCK_NOT;
}

void stuck_partition_publish(struct sender_half *half, uint32_t partition_index, uint64_t now_ns)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    struct partition_queue *queue = &half->queues[partition_index];
    enum stuck_reason reason = stuck_reason_of(half, partition_index, now_ns);
    int16_t error_code = reason == STUCK_REFUSED ? queue->refused_error : 0;
    if (reason == queue->stuck_reason && error_code == queue->stuck_error) {
        return;
    }
    half->limits.is_recount_due |= (reason == STUCK_NOT) != (queue->stuck_reason == STUCK_NOT);
    queue->stuck_reason = reason;
    queue->stuck_error = error_code;
    atomic_u64 *cell = &half->arena->partitions[partition_index].stuck;
    uint64_t former = load_relaxed_u64(cell);
    uint64_t since_ms = former != 0 ? stuck_word_since_ms(former) : now_ns / NS_PER_MS;
    store_relaxed_u64(cell, reason == STUCK_NOT ? 0 : stuck_word(reason, error_code, since_ms));
    sender_store_length(half, partition_index, 0);
}

/* ---- maintenance ---- */

/* Clears the time of a previous sender, because the partition was delivered to or has no batch. */
static void former_time_clear(struct sender_half *half, uint32_t partition_index)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    atomic_u64 *cell = &half->arena->partitions[partition_index].stuck;
    if (half->queues[partition_index].stuck_reason == STUCK_NOT && load_relaxed_u64(cell) != 0) {
        store_relaxed_u64(cell, 0);
    }
}

void stuck_partitions_maintain(struct sender_half *half)
{
    CHECK(half->arena->is_sender);
    uint64_t now_ns = arena_now_ns(half->arena);
    if (half->has_acked_spilled) {
        half->has_acked_spilled = false;
        store_relaxed_u64(&half->arena->globals->acked_ns, now_ns);
    }
    for (uint32_t i = 0; i < registry_partition_count(half->arena); i++) {
        struct partition_queue *queue = &half->queues[i];
        if (queue->has_acked || !partition_has_batches(half, i)) {
            queue->acked_ns = now_ns;
            queue->has_acked = false;
            queue->refused_error = 0;
            former_time_clear(half, i);
        }
        stuck_partition_publish(half, i, now_ns);
    }
}

void sender_set_available(struct sender_half *half, uint32_t partition_index, bool is_available)
{
    if (partition_index < half->arena->geometry.partition_count) {
        half->queues[partition_index].is_unavailable = !is_available;
        stuck_partition_publish(half, partition_index, arena_now_ns(half->arena));
    }
}

void sender_set_refused(struct sender_half *half, uint32_t partition_index, int16_t error_code)
{
    if (partition_index < half->arena->geometry.partition_count) {
        half->queues[partition_index].refused_error = error_code;
        stuck_partition_publish(half, partition_index, arena_now_ns(half->arena));
    }
}
