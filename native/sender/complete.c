/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender's half: how a batch ends.
 *
 *   state        in flight   what ends it                      result recorded   memory freed
 *   READY        yes         complete (ack or final error)     then              then, unless a hazard defers it
 *   READY        yes         expire, abort                     at once (ended)   at the later complete or requeue;
 *                                                                                requeued it may be a dead letter
 *   OPEN READY   no          expire, abort                     at once           at once, unless a hazard defers it
 *   READY        yes         quarantine                        then              never: the slot stays as BAD
 *   OPEN READY   no          expire, with dead letters         at once           at complete, when they are written
 *
 * A result never changes: the first one recorded for a record is the one. Expiry changes the result, never the memory:
 * bytes that a socket may still be reading stay where they are.
 *
 * Order at the end of a batch: result in the ring → READY -> DONE → scrub → FREE. Killed before DONE: the next sender
 * sends it again. Killed before FREE: the next sender frees it. What was decided before (`result` in the slot) is not
 * sent again: the next sender records it.
 */
#include "arena/counters.h"
#include "arena/delivery_clock.h"
#include "base/point.h"
#include "producer/accumulator.h"
#include "sender/dead_letter.h"
#include "sender/result.h"
#include "sender/sender_half.h"

/* ---- the end of one batch ---- */

static void batch_become_done(struct accumulator *accumulator, uint32_t slot_index, struct wake_set *wakes)
{
    atomic_u64 *cell = &accumulator->arena->slots[slot_index].word;
    store_seq_cst_u64(cell, slot_word_with_state(load_relaxed_u64(cell), SLOT_DONE)); /* C5, H2 */
    POINT(batch_done);
    sender_forget(accumulator, slot_index);
    sender_free_slot(accumulator, slot_index, wakes);
}

/* It has its result: its memory is free, or holds a dead letter. */
static void batch_give_back(struct accumulator *accumulator, uint32_t slot_index, struct wake_set *wakes)
{
    if (dead_letter_is_wanted(accumulator, decision_of(&accumulator->arena->slots[slot_index]).result)) {
        dead_letter_keep(accumulator, slot_index);
    } else {
        batch_become_done(accumulator, slot_index, wakes);
    }
}

static enum status batch_complete(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                                  const struct batch_outcome *outcome, struct wake_set *wakes)
{
    if (sender_has_dead(accumulator, slot_index, seq)) {
        batch_become_done(accumulator, slot_index, wakes);
        return STATUS_OK;
    }
    if (!sender_has_in_flight(accumulator, slot_index, seq)) {
        return STATUS_STALE;
    }
    const struct slot_note *note = &accumulator->sender->notes[slot_index];
    accumulator->sender->queues[note->partition_index].is_established |= outcome->result == RESULT_SUCCEEDED;
    if (!note->is_ended) {
        result_record_rest(accumulator, slot_index, outcome);
    }
    batch_become_done(accumulator, slot_index, wakes);
    return STATUS_OK;
}

enum status accumulator_complete(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                                 const struct batch_outcome *outcome, struct wake_set *wakes)
{
    enum status status = batch_complete(accumulator, slot_index, seq, outcome, wakes);
    completion_wake(accumulator->arena);
    return status;
}

uint32_t accumulator_complete_many(struct accumulator *accumulator, const struct batch_completion *completions,
                                   uint32_t count, struct wake_set *wakes)
{
    uint32_t completed = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct batch_completion *each = &completions[i];
        completed += batch_complete(accumulator, each->slot_index, each->seq, &each->outcome, wakes) == STATUS_OK;
    }
    completion_wake(accumulator->arena);
    return completed;
}

enum status accumulator_complete_part(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                                      uint32_t record_count, const struct batch_outcome *outcome,
                                      struct wake_set *wakes)
{
    if (!sender_has_in_flight(accumulator, slot_index, seq)) {
        return STATUS_STALE;
    }
    struct slot_header *slot = &accumulator->arena->slots[slot_index];
    uint32_t count = slot_word_count(load_acquire_u64(&slot->word));
    uint32_t acked = load_relaxed_u32(&slot->acked_record_count);
    if (record_count == 0 || acked >= count || record_count > count - acked) {
        return STATUS_INVALID;
    }
    if (acked + record_count == count) {
        return accumulator_complete(accumulator, slot_index, seq, outcome, wakes);
    }
    if (!accumulator->sender->notes[slot_index].is_ended) {
        result_record(accumulator, slot_index, acked, record_count, outcome);
        counter_add(accumulator->arena, COUNTER_RECORDS_COMPLETED, record_count);
        counter_add(accumulator->arena, COUNTER_BATCHES_SPLIT, acked == 0);
    }
    POINT(part_recorded);
    store_release_u32(&slot->acked_record_count, acked + record_count);
    completion_wake(accumulator->arena);
    return STATUS_OK;
}

enum status accumulator_requeue(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                                uint64_t retry_at_ns)
{
    if (sender_has_dead(accumulator, slot_index, seq)) {
        dead_letter_put_back(accumulator, slot_index);
        return STATUS_OK;
    }
    if (!sender_has_in_flight(accumulator, slot_index, seq)) {
        return STATUS_STALE;
    }
    struct slot_note *note = &accumulator->sender->notes[slot_index];
    if (note->is_ended) { /* it has its result already: it must not be sent again */
        batch_give_back(accumulator, slot_index, &accumulator->wakes);
        return STATUS_OK;
    }
    sender_land(accumulator, slot_index);
    note->retry_at_ns = retry_at_ns;
    counter_add(accumulator->arena, COUNTER_BATCHES_REQUEUED, 1);
    return STATUS_OK;
}

void accumulator_end_backoff(struct accumulator *accumulator, uint32_t partition_index)
{
    struct sender_half *half = accumulator->sender;
    if (partition_index >= accumulator->arena->geometry.partition_count) {
        return;
    }
    for (uint32_t next = half->queues[partition_index].first; next != 0; next = half->notes[next - 1].next) {
        half->notes[next - 1].retry_at_ns = 0;
    }
}

enum status accumulator_decide(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                               const struct batch_outcome *outcome)
{
    if (!sender_has_in_flight(accumulator, slot_index, seq)) {
        return STATUS_STALE;
    }
    decision_store(&accumulator->arena->slots[slot_index], outcome);
    POINT(result_decided);
    return STATUS_OK;
}

/* ---- ending batches that were not acknowledged ---- */

static void batch_seal_at_end(struct accumulator *accumulator, uint32_t slot_index)
{
    atomic_u64 *cell = &accumulator->arena->slots[slot_index].word;
    uint64_t word = load_acquire_u64(cell);
    while (slot_word_state(word) == SLOT_OPEN) {
        (void)producer_batch_seal(accumulator->arena, slot_index, word);
        word = load_acquire_u64(cell);
    }
}

/* In flight: the result now, the memory when its I/O is over. `result` in the slot tells a next sender; what was
 * decided before stays. */
static void batch_end_in_flight(struct accumulator *accumulator, uint32_t slot_index,
                                const struct batch_outcome *outcome)
{
    struct batch_outcome decided = decision_of(&accumulator->arena->slots[slot_index]);
    if (decided.result == RESULT_NONE) {
        decision_store(&accumulator->arena->slots[slot_index], outcome);
        decided = *outcome;
    }
    POINT(result_decided);
    result_record_rest(accumulator, slot_index, &decided);
    accumulator->sender->notes[slot_index].is_ended = true;
}

/* False when there was nothing to end: an empty batch, or one that is not the queued one any more. */
static bool batch_end_in_queue(struct accumulator *accumulator, uint32_t slot_index,
                               const struct batch_outcome *outcome, struct wake_set *wakes)
{
    batch_seal_at_end(accumulator, slot_index);
    uint64_t word = load_acquire_u64(&accumulator->arena->slots[slot_index].word);
    if (slot_word_state(word) != SLOT_READY || !sender_note_is_true(accumulator, slot_index)) {
        sender_unlink(accumulator, slot_index);
        sender_note_slot(accumulator, slot_index);
        return false;
    }
    decision_store(&accumulator->arena->slots[slot_index], outcome);
    POINT(result_decided);
    result_record_rest(accumulator, slot_index, outcome);
    batch_give_back(accumulator, slot_index, wakes);
    return true;
}

static bool batch_end(struct accumulator *accumulator, uint32_t slot_index, const struct batch_outcome *outcome,
                      struct wake_set *wakes)
{
    const struct slot_note *note = &accumulator->sender->notes[slot_index];
    if (note->is_ended) {
        return false;
    }
    if (!note->is_in_flight) {
        return batch_end_in_queue(accumulator, slot_index, outcome, wakes);
    }
    batch_end_in_flight(accumulator, slot_index, outcome);
    return true;
}

static uint64_t batch_age_ns(const struct accumulator *accumulator, uint32_t slot_index, uint64_t now_ns)
{
    const struct slot_header *slot = &accumulator->arena->slots[slot_index];
    const struct sender_half *half = accumulator->sender;
    return half->counts_always ? time_since_created_ns(slot->created_ns, now_ns)
                               : delivery_age_ns(slot, now_ns, half->delivery_clock_ns);
}

static uint64_t smaller_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Ends the batches of one queue from its front, as long as they are old enough. */
static uint32_t queue_expire(struct accumulator *accumulator, uint32_t partition_index, uint64_t now_ns,
                             uint64_t timeout_ns, uint64_t *next_expiry_ns, struct wake_set *wakes)
{
    const struct batch_outcome outcome = {.result = RESULT_EXPIRED, .base_offset = -1, .log_append_time_ms = -1};
    struct sender_half *half = accumulator->sender;
    uint32_t expired = 0;
    uint32_t next = half->queues[partition_index].first;
    while (next != 0) {
        uint32_t slot_index = next - 1;
        uint64_t age_ns = batch_age_ns(accumulator, slot_index, now_ns);
        next = half->notes[slot_index].next;
        if (age_ns < timeout_ns) {
            uint64_t created_ns = smaller_of(accumulator->arena->slots[slot_index].created_ns, now_ns);
            half->oldest_created_ns = smaller_of(half->oldest_created_ns, created_ns);
            *next_expiry_ns = smaller_of(*next_expiry_ns, timeout_ns - age_ns);
            break;
        }
        expired += batch_end(accumulator, slot_index, &outcome, wakes);
    }
    return expired;
}

uint32_t accumulator_expire(struct accumulator *accumulator, uint64_t now_ns, uint64_t delivery_timeout_ns,
                            uint64_t *next_expiry_ns, struct wake_set *wakes)
{
    struct sender_half *half = accumulator->sender;
    uint32_t expired = 0;
    *next_expiry_ns = UINT64_MAX;
    sender_collect_news(accumulator);
    half->oldest_created_ns = UINT64_MAX;
    for (uint32_t i = half->active_count; i-- > 0;) {
        expired += queue_expire(accumulator, half->active[i], now_ns, delivery_timeout_ns, next_expiry_ns, wakes);
    }
    completion_wake(accumulator->arena);
    return expired;
}

void accumulator_tell_delivery_timeout(struct accumulator *accumulator, uint64_t delivery_timeout_ns,
                                       bool counts_always)
{
    accumulator->sender->counts_always = counts_always;
    delivery_clock_announce(accumulator->arena, delivery_timeout_ns, counts_always);
}

void accumulator_run_delivery_clock(struct accumulator *accumulator, uint64_t run_ns)
{
    accumulator->sender->delivery_clock_ns += run_ns;
    store_relaxed_u64(&accumulator->arena->globals->delivery_clock_ns, accumulator->sender->delivery_clock_ns);
}

uint64_t accumulator_take_expired(struct accumulator *accumulator, uint32_t partition_index)
{
    struct partition_queue *queue = &accumulator->sender->queues[partition_index];
    uint64_t count = queue->expired_record_count;
    queue->expired_record_count = 0;
    return count;
}

uint32_t accumulator_abort(struct accumulator *accumulator, bool is_in_flight_included, struct wake_set *wakes)
{
    const struct batch_outcome outcome = {.result = RESULT_ABORTED, .base_offset = -1, .log_append_time_ms = -1};
    struct sender_half *half = accumulator->sender;
    uint32_t aborted = 0;
    sender_collect_news(accumulator);
    for (uint32_t i = half->active_count; i-- > 0;) {
        uint32_t next = half->queues[half->active[i]].first;
        while (next != 0) {
            uint32_t slot_index = next - 1;
            next = half->notes[slot_index].next;
            if (is_in_flight_included || !half->notes[slot_index].is_in_flight) {
                aborted += batch_end(accumulator, slot_index, &outcome, wakes);
            }
        }
    }
    completion_wake(accumulator->arena);
    return aborted;
}
