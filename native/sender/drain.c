/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the batches that may be sent (ready), and takes them for sending (drain).
 */
#include <string.h>

#include "arena/batch_seal.h"
#include "arena/counters.h"
#include "arena/producer_id.h"
#include "arena/transaction.h"
#include "base/point.h"
#include "sender/complete.h"
#include "sender/drained_batch.h"

static uint64_t ns_until(uint64_t when_ns, uint64_t now_ns)
{
    return when_ns > now_ns ? when_ns - now_ns : 0;
}

static uint64_t ns_between(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns - b_ns : b_ns - a_ns;
}

/* Returns true if the batch is empty, was opened a moment ago, and is the last one of its partition. It may have been
 * opened after `now_ns` was read. A time far in the future is invalid. */
static bool batch_awaits_first_record(const struct sender_half *half, uint32_t slot_index, uint64_t now_ns)
{
    CHECK(half->notes[slot_index].is_queued);
    const struct arena *arena = half->arena;
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word); /* P2 */
    return slot_word_state(word) == SLOT_OPEN && slot_word_count(word) == 0 &&
           half->notes[slot_index].next == 0 &&
           ns_between(arena->slots[slot_index].created_ns, now_ns) < sender_patience_ns(arena);
}

/* Returns true if the batch may not be drained now, even if it need not linger. */
static bool batch_must_wait(const struct sender_half *half, uint32_t slot_index, uint64_t now_ns)
{
    CHECK(half->notes[slot_index].is_queued);
    return sender_is_fresh(half, slot_index) ||
           half->notes[slot_index].retry_at_ns > now_ns ||
           batch_awaits_first_record(half, slot_index, now_ns);
}

/* ---- ready ---- */

enum { NEXT_PASS_NS = 1 };

/* Returns the total time for which a batch waits for more records; the function below returns the remaining time. */
static uint64_t batch_linger_ns(const struct arena *arena, const struct ready_options *options, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint64_t linger = load_relaxed_u64(&arena->slots[slot_index].linger);
    return linger == 0 ? options->linger_ns : linger - 1;
}

/* Returns true if a waiter is parked until batches of this topic are gone. */
static bool topic_is_parked_for(const struct arena *arena, uint32_t partition_index)
{
    if (LIKELY(load_relaxed_u32(&arena->globals->parked_count) == 0)) {
        return false;
    }
    const struct topic_entry *topic = topic_of_partition(arena, partition_index);
    return topic != NULL && load_relaxed_u32(&topic->is_parked_for) != 0;
}

static uint64_t batch_linger_left_ns(const struct sender_half *half, const struct ready_options *options,
                                     uint32_t slot_index)
{
    const struct arena *arena = half->arena;
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word); /* P2 */
    bool is_full = slot_word_state(word) != SLOT_OPEN || half->notes[slot_index].next != 0;
    if (is_full || options->is_everything_ready || load_relaxed_u32(&arena->globals->waiting_count) != 0 ||
        topic_is_parked_for(arena, half->notes[slot_index].partition_index)) {
        return 0;
    }
    uint64_t linger_ns = batch_linger_ns(arena, options, slot_index);
    uint64_t age_ns = ns_until(options->now_ns, arena->slots[slot_index].created_ns);
    return ns_until(linger_ns, age_ns); /* if it was opened after `now_ns`, its whole linger time is left */
}

/* Returns how long until this batch may be drained, or 0. */
static uint64_t batch_wait_ns(const struct sender_half *half, const struct ready_options *options, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued && !half->notes[slot_index].is_in_flight);
    uint64_t retry_at_ns = half->notes[slot_index].retry_at_ns;
    if (sender_is_fresh(half, slot_index)) {
        return NEXT_PASS_NS;
    }
    if (retry_at_ns > options->now_ns) {
        return ns_until(retry_at_ns, options->now_ns);
    }
    uint64_t linger_left_ns = batch_linger_left_ns(half, options, slot_index);
    bool is_early = linger_left_ns == 0 && batch_awaits_first_record(half, slot_index, options->now_ns);
    return is_early ? NEXT_PASS_NS : linger_left_ns;
}

/* Returns true if the batch is open and has lingered for at least half of its linger time. */
static bool batch_may_be_sent_early(const struct sender_half *half, const struct ready_options *options,
                                    uint32_t slot_index, uint64_t wait_ns)
{
    const struct arena *arena = half->arena;
    return options->takes_along && wait_ns <= batch_linger_ns(arena, options, slot_index) / 2 &&
           !batch_must_wait(half, slot_index, options->now_ns);
}

/* Moves the partitions at the end of the array directly after the first `count` ones. If `count` is 0, drops them. */
static uint32_t partitions_append_early(uint32_t *partitions, uint32_t partitions_max, uint32_t count,
                                        uint32_t early_count)
{
    CHECK(count + early_count <= partitions_max);
    if (count == 0) {
        return 0;
    }
    memmove(partitions + count, partitions + partitions_max - early_count, early_count * sizeof *partitions);
    return count + early_count;
}

/* Returns the next batch of the partition if it may be drained now or after some time. Otherwise returns NO_SLOT. */
static uint32_t ready_candidate(struct sender_half *half, const struct ready_options *options, uint32_t partition_index)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    const struct partition_queue *queue = &half->queues[partition_index];
    uint32_t slot_index = sender_candidate(half, partition_index);
    bool is_limited = options->in_flight_max != 0 && queue->in_flight_count >= options->in_flight_max;
    if (slot_index == NO_SLOT || queue->is_muted || is_limited || !sender_may_send(half, slot_index)) {
        return NO_SLOT;
    }
    return slot_index;
}

/* The loop visits the partitions downwards. The partition that got its batch first has to be drained first: buffers
 * that were opened one after another are adjacent in memory, and a processor prefetches in that order
 * (docs/decisions/0008). */
static void partitions_reverse(uint32_t *partitions, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        uint32_t partition_index = partitions[i];
        partitions[i] = partitions[count - 1 - i];
        partitions[count - 1 - i] = partition_index;
    }
}

uint32_t sender_ready(struct sender_half *half, const struct ready_options *options, uint32_t *partitions,
                      uint32_t partitions_max, uint64_t *next_check_ns)
{
    uint32_t count = 0;
    uint32_t early_count = 0;
    *next_check_ns = UINT64_MAX;
    sender_find_batches(half);
    for (uint32_t i = half->active_count; i-- > 0;) { /* downwards: the last one replaces an empty queue */
        uint32_t partition_index = half->active[i];
        uint32_t slot_index = ready_candidate(half, options, partition_index);
        uint64_t wait_ns = slot_index == NO_SLOT ? UINT64_MAX : batch_wait_ns(half, options, slot_index);
        if (wait_ns > 0) {
            *next_check_ns = wait_ns < *next_check_ns ? wait_ns : *next_check_ns;
            if (slot_index != NO_SLOT && count + early_count < partitions_max &&
                batch_may_be_sent_early(half, options, slot_index, wait_ns)) {
                partitions[partitions_max - ++early_count] = partition_index;
            }
        } else if (count + early_count < partitions_max) {
            partitions[count++] = partition_index;
        }
    }
    partitions_reverse(partitions, count);
    return partitions_append_early(partitions, partitions_max, count, early_count);
}

/* Returns the earliest time at which the partition's next batch could have been sent. This is the end of its linger, or
 * the opening of the batch after it. */
static uint64_t batch_due_ns(const struct sender_half *half, const struct ready_options *options, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued);
    const struct slot_header *slots = half->arena->slots;
    uint64_t linger_ns = batch_linger_ns(half->arena, options, slot_index);
    uint64_t created_ns = slots[slot_index].created_ns;
    uint64_t due_ns = created_ns <= UINT64_MAX - linger_ns ? created_ns + linger_ns : UINT64_MAX;
    uint32_t next = half->notes[slot_index].next;
    uint64_t full_ns = next == 0 ? UINT64_MAX : slots[next - 1].created_ns;
    return due_ns < full_ns ? due_ns : full_ns;
}

uint64_t sender_waits_since_ns(struct sender_half *half, const struct ready_options *options)
{
    uint64_t since_ns = UINT64_MAX;
    sender_find_batches(half);
    for (uint32_t i = 0; i < half->active_count; i++) {
        CHECK(half->queues[half->active[i]].first != 0);
        uint64_t due_ns = batch_due_ns(half, options, half->queues[half->active[i]].first - 1);
        since_ns = due_ns < since_ns ? due_ns : since_ns;
    }
    return since_ns <= options->now_ns ? since_ns : UINT64_MAX;
}

/* ---- drain ---- */

/* Seals an open batch. Returns false if it is empty, or if the slot has another batch now. In that case, the next pass
 * puts the slot in the right queue. */
static bool batch_seal_for_drain(struct sender_half *half, uint32_t slot_index, uint64_t *word)
{
    CHECK(half->notes[slot_index].is_queued);
    CHECK(!half->notes[slot_index].is_in_flight);
    struct arena *arena = half->arena;
    *word = load_acquire_u64(&arena->slots[slot_index].word); /* P2 */
    while (slot_word_state(*word) == SLOT_OPEN) {
        if (batch_seal(arena, slot_index, *word)) {
            counter_add(arena, COUNTER_BATCHES_SEALED_LINGER, 1);
        }
        *word = load_acquire_u64(&arena->slots[slot_index].word); /* P2 */
    }
    return slot_word_state(*word) == SLOT_READY && sender_note_is_current(half, slot_index);
}

static void batch_finish(struct sender_half *half, uint32_t slot_index, uint64_t word, struct drained_batch *batch)
{
    CHECK(half->notes[slot_index].is_in_flight);
    CHECK(slot_word_state(word) == SLOT_READY);
    struct slot_header *slot = &half->arena->slots[slot_index];
    sequence_assign(half->arena, slot, half->notes[slot_index].partition_index,
                    slot_word_count(word));
    drained_batch_describe(half, slot_index, word, batch);
    batch->attempt_count = add_u32(&slot->attempt_count, 1) + 1; /* V1 */
}

enum pick { PICK_SKIP, PICK_STOP, PICK_TAKE };

/* Returns true if the drain may take the batch. The first batch of each partition may be taken in any state, because
 * sender_ready has selected it. A further one is taken only if it is sealed, or if a later batch exists: then no other
 * process will seal it. */
static bool batch_may_be_drained(const struct sender_half *half, const struct partition_queue *queue,
                                 uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued);
    CHECK(queue->drained_in <= half->drain_count);
    uint64_t word = load_acquire_u64(&half->arena->slots[slot_index].word); /* P2 */
    return queue->drained_in != half->drain_count || slot_word_state(word) != SLOT_OPEN ||
           half->notes[slot_index].next != 0;
}

static bool batch_may_be_taken(const struct sender_half *half, const struct partition_queue *queue, uint32_t slot_index,
                               uint64_t now_ns)
{
    return !batch_must_wait(half, slot_index, now_ns) && sender_may_send(half, slot_index) &&
           batch_may_be_drained(half, queue, slot_index);
}

static enum pick batch_pick(struct sender_half *half, const struct drain_options *options, uint32_t partition_index,
                            uint64_t size_before, uint32_t *slot_index, uint64_t *word)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    const struct partition_queue *queue = &half->queues[partition_index];
    if (queue->is_muted || queue->in_flight_count >= options->in_flight_max) {
        return PICK_SKIP;
    }
    do { /* if the batch was sealed empty, take the next one, because no other check follows soon */
        *slot_index = sender_candidate(half, partition_index);
        if (*slot_index == NO_SLOT || !batch_may_be_taken(half, queue, *slot_index, options->now_ns)) {
            return PICK_SKIP;
        }
        uint64_t size = slot_word_size(load_acquire_u64(&half->arena->slots[*slot_index].word)); /* P2 */
        if (size_before > 0 && size_before + size > options->size_max) {
            return PICK_STOP;
        }
    } while (!batch_seal_for_drain(half, *slot_index, word));
    return PICK_TAKE;
}

/* Returns false if the transaction is decided or aborted. Then the sender sends no more of its batches. */
static bool arena_may_deliver(const struct arena *arena)
{
    uint32_t state = transaction_word_state(transaction_read(arena));
    return !arena_is_transactional(arena) || state == TRANSACTION_OPEN || state == TRANSACTION_COMMITTING;
}

uint32_t sender_drain(struct sender_half *half, const struct drain_options *options, const uint32_t *partitions,
                      uint32_t partition_count, struct drained_batch *batches, uint32_t *partitions_seen)
{
    uint64_t size = 0;
    uint32_t count = 0;
    uint32_t i = 0;
    half->drain_count += options->continues_last ? 0 : 1;
    sender_renew_heartbeat(half);
    *partitions_seen = partition_count;
    if (!arena_may_deliver(half->arena)) {
        return 0;
    }
    for (; i < partition_count; i++) {
        uint32_t slot_index;
        uint64_t word;
        if (partitions[i] >= half->arena->geometry.partition_count) {
            continue;
        }
        enum pick pick = batch_pick(half, options, partitions[i], size, &slot_index, &word);
        if (pick == PICK_STOP) {
            break;
        }
        if (pick == PICK_SKIP) {
            continue;
        }
        sender_mark_in_flight(half, slot_index);
        half->queues[partitions[i]].drained_in = half->drain_count;
        if (!drained_batch_is_possible(half, slot_index, word)) {
            batch_quarantine(half, slot_index);
            continue;
        }
        batch_finish(half, slot_index, word, &batches[count]);
        size += batches[count++].size;
    }
    *partitions_seen = i;
    return count;
}

void sender_mute(struct sender_half *half, uint32_t partition_index, bool is_muted)
{
    if (partition_index < half->arena->geometry.partition_count) {
        half->queues[partition_index].is_muted = is_muted;
    }
}

void sender_statistics_read(const struct sender_half *half, struct sender_statistics *statistics)
{
    *statistics = (struct sender_statistics){.queued_count = half->queued_count,
                                             .in_flight_count = half->in_flight_count,
                                             .deferred_count = half->deferred.count,
                                             .active_partition_count = half->active_count};
}
