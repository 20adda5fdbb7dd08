/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a batch in the sender.
 *
 *   state        in flight   what ends it                      result recorded   memory freed
 *   READY        yes         complete (ack or final error)     then              then, unless a hazard defers it
 *   READY        yes         expire, abort                     at once (ended)   at the later complete or requeue;
 *                                                                                requeued it may be a dead letter
 *   OPEN READY   no          expire, abort                     at once           at once, unless a hazard defers it
 *   READY        yes         quarantine                        then              never: the slot stays as BAD
 *   OPEN READY   no          expire, if failed batches stay    at once           at complete, once they are written
 *   READY        yes         spill                             when the sink     at once: the bytes are in the overflow
 *                                                              has the batch
 *
 * The first result that is recorded for a record is valid, and later ones have no effect. Expiry records a result, but
 * does not free memory, because a socket may still read the bytes.
 *
 * The end of a batch has this order: result recorded → READY -> DONE → scrub → FREE. If the sender is killed before
 * DONE, the next sender sends the batch again. If it is killed before FREE, the next sender frees the slot. If the slot
 * has a decided `result`, the next sender records that result, and does not send the batch again.
 */
#include "sender/complete.h"

#include <string.h>

#include "arena/batch_seal.h"
#include "arena/counters.h"
#include "arena/delivery_clock.h"
#include "arena/spilled.h"
#include "arena/transaction.h"
#include "base/point.h"
#include "sender/drained_batch.h"
#include "sender/stuck_partitions.h"
#include "sender/topic_limits.h"

enum { ERROR_CODE_SHIFT = 16 };

/* ---- the result: decided ---- */

static void decision_store(struct slot_header *slot, const struct batch_outcome *outcome)
{
    CHECK(outcome->result > RESULT_NONE && outcome->result < RESULT_COUNT);
    uint32_t code = (uint16_t)outcome->error_code;
    store_release_u32(&slot->result, (uint32_t)outcome->result | code << ERROR_CODE_SHIFT); /* V5 */
}

struct batch_outcome decision_of(const struct slot_header *slot)
{
    uint32_t value = load_relaxed_u32(&slot->result);
    uint32_t result = value & UINT16_MAX;
    return (struct batch_outcome){
        .result = result < RESULT_COUNT ? (enum batch_result)result : RESULT_NONE,
        .error_code = (int16_t)(value >> ERROR_CODE_SHIFT),
        .base_offset = -1,
        .log_append_time_ms = -1,
    };
}

/* ---- the result: recorded ---- */

static void result_count(struct arena *arena, enum batch_result result, uint32_t record_count)
{
    CHECK(result > RESULT_NONE && result < RESULT_COUNT);
    CHECK(arena->is_sender);
    counter_add(arena, COUNTER_BATCHES_COMPLETED, 1);
    counter_add(arena, COUNTER_RECORDS_COMPLETED, record_count);
    if (result == RESULT_EXPIRED) {
        counter_add(arena, COUNTER_BATCHES_EXPIRED, 1);
    } else if (result != RESULT_SUCCEEDED) {
        counter_add(arena, COUNTER_BATCHES_FAILED, 1);
    }
}

/* Records a result for the records [first_record, first_record + record_count). */
static void result_record(struct sender_half *half, uint32_t slot_index, uint32_t first_record, uint32_t record_count,
                          const struct batch_outcome *outcome)
{
    CHECK(half->notes[slot_index].partition_index < half->arena->geometry.partition_count);
    const struct slot_note *note = &half->notes[slot_index];
    if (outcome->result != RESULT_SUCCEEDED) {
        transaction_fail(half->arena, TRANSACTION_WHY_FAILED_BATCH);
    }
    completion_record(half->arena, &(struct completion){.seq = note->seq,
                                                               .slot_index = slot_index,
                                                               .partition_index = note->partition_index,
                                                               .first_record = first_record,
                                                               .record_count = record_count,
                                                               .result = outcome->result,
                                                               .error_code = outcome->error_code,
                                                               .base_offset = outcome->base_offset,
                                                               .log_append_time_ms = outcome->log_append_time_ms});
}

/* Records the result of every record that has none yet, and counts the batch. */
static void result_record_rest(struct sender_half *half, uint32_t slot_index, const struct batch_outcome *outcome)
{
    CHECK(!half->notes[slot_index].is_ended);
    CHECK(!half->notes[slot_index].is_dead);
    const struct slot_header *slot = &half->arena->slots[slot_index];
    uint32_t count = slot_word_count(load_acquire_u64(&slot->word)); /* P2 */
    uint32_t acked = load_relaxed_u32(&slot->acked_record_count);
    acked = acked < count ? acked : 0;
    result_record(half, slot_index, acked, count - acked, outcome);
    result_count(half->arena, outcome->result, count - acked);
    uint32_t partition_index = half->notes[slot_index].partition_index;
    half->queues[partition_index].expired_record_count +=
        outcome->result == RESULT_EXPIRED ? count - acked : 0;
    POINT(result_recorded);
}

/* ---- storing dead letters ---- */

static bool dead_letter_is_wanted(const struct sender_half *half, enum batch_result result)
{
    CHECK(result < RESULT_COUNT);
    return half->wants_dead_letters && !arena_is_transactional(half->arena) &&
           (result == RESULT_EXPIRED || result == RESULT_FAILED);
}

static void dead_letter_append(struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->dead.count < half->arena->geometry.slot_count);
    CHECK(half->notes[slot_index].is_dead);
    struct slot_list *dead = &half->dead;
    dead->slots[dead->count++] = slot_index;
}

static void dead_letter_keep(struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->wants_dead_letters);
    CHECK(half->notes[slot_index].is_queued);
    struct slot_note *note = &half->notes[slot_index];
    const struct slot_note dead_note = {
        .seq = note->seq, .partition_index = note->partition_index, .is_dead = true, .is_watched = note->is_watched};
    sender_unlink(half, slot_index);
    *note = dead_note;
    dead_letter_append(half, slot_index);
}

bool dead_letter_inherit(struct sender_half *half, uint32_t slot_index, const struct batch_outcome *outcome)
{
    if (!dead_letter_is_wanted(half, outcome->result)) {
        return false;
    }
    result_record_rest(half, slot_index, outcome);
    dead_letter_keep(half, slot_index);
    return true;
}

/* ---- the end of one batch ---- */

static void batch_become_done(struct sender_half *half, uint32_t slot_index, struct wake_set *wakes)
{
    CHECK(half->notes[slot_index].is_queued || half->notes[slot_index].is_dead);
    atomic_u64 *cell = &half->arena->slots[slot_index].word;
    store_seq_cst_u64(cell, slot_word_with_state(load_relaxed_u64(cell), SLOT_DONE)); /* C5, H2 */
    POINT(batch_done);
    sender_forget(half, slot_index);
    sender_free_slot(half, slot_index, wakes);
}

/* Ends a batch that has its result. Frees its memory, or keeps the batch until its bytes are written elsewhere. */
static void batch_free_or_keep(struct sender_half *half, uint32_t slot_index, struct wake_set *wakes)
{
    CHECK(half->notes[slot_index].is_queued);
    if (dead_letter_is_wanted(half, decision_of(&half->arena->slots[slot_index]).result)) {
        dead_letter_keep(half, slot_index);
    } else {
        batch_become_done(half, slot_index, wakes);
    }
}

static enum status batch_complete(struct sender_half *half, uint32_t slot_index, uint64_t seq,
                                  const struct batch_outcome *outcome, struct wake_set *wakes)
{
    CHECK(half->arena->is_sender);
    if (sender_has_dead(half, slot_index, seq)) {
        batch_become_done(half, slot_index, wakes);
        return STATUS_OK;
    }
    if (!sender_has_in_flight(half, slot_index, seq)) {
        return STATUS_STALE;
    }
    const struct slot_note *note = &half->notes[slot_index];
    if (outcome->result == RESULT_SUCCEEDED) {
        half->queues[note->partition_index].is_established = true;
        half->queues[note->partition_index].has_acked = true;
        half->acked_created_ns = half->arena->slots[slot_index].created_ns;
    }
    if (!note->is_ended) {
        result_record_rest(half, slot_index, outcome);
    }
    batch_become_done(half, slot_index, wakes);
    return STATUS_OK;
}

/* Is called once per call of the sender, because it reads the clock. */
static void acked_publish(struct sender_half *half)
{
    if (half->acked_created_ns != 0) {
        stuck_partitions_update_acked(half, half->acked_created_ns);
        half->acked_created_ns = 0;
    }
}

enum status sender_complete(struct sender_half *half, uint32_t slot_index, uint64_t seq,
                            const struct batch_outcome *outcome, struct wake_set *wakes)
{
    CHECK(outcome->result < RESULT_COUNT);
    enum status status = batch_complete(half, slot_index, seq, outcome, wakes);
    acked_publish(half);
    topic_limits_check(half, wakes);
    completion_wake(half->arena);
    return status;
}

uint32_t sender_complete_many(struct sender_half *half, const struct batch_completion *completions, uint32_t count,
                              struct wake_set *wakes)
{
    uint32_t completed = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct batch_completion *each = &completions[i];
        completed += batch_complete(half, each->slot_index, each->seq, &each->outcome, wakes) == STATUS_OK;
    }
    acked_publish(half);
    topic_limits_check(half, wakes);
    completion_wake(half->arena);
    return completed;
}

enum status sender_complete_part(struct sender_half *half, uint32_t slot_index, uint64_t seq, uint32_t record_count,
                                 const struct batch_outcome *outcome, struct wake_set *wakes)
{
    if (!sender_has_in_flight(half, slot_index, seq)) {
        return STATUS_STALE;
    }
    struct slot_header *slot = &half->arena->slots[slot_index];
    uint32_t count = slot_word_count(load_acquire_u64(&slot->word)); /* P2 */
    uint32_t acked = load_relaxed_u32(&slot->acked_record_count);
    if (record_count == 0 || acked >= count || record_count > count - acked) {
        return STATUS_INVALID;
    }
    if (acked + record_count == count) {
        return sender_complete(half, slot_index, seq, outcome, wakes);
    }
    if (!half->notes[slot_index].is_ended) {
        result_record(half, slot_index, acked, record_count, outcome);
        counter_add(half->arena, COUNTER_RECORDS_COMPLETED, record_count);
        counter_add(half->arena, COUNTER_BATCHES_SPLIT, acked == 0);
    }
    POINT(part_recorded);
    store_release_u32(&slot->acked_record_count, acked + record_count); /* C10 */
    completion_wake(half->arena);
    return STATUS_OK;
}

enum status sender_requeue(struct sender_half *half, uint32_t slot_index, uint64_t seq, uint64_t retry_at_ns,
                           struct wake_set *wakes)
{
    if (sender_has_dead(half, slot_index, seq)) {
        dead_letter_append(half, slot_index);
        return STATUS_OK;
    }
    if (!sender_has_in_flight(half, slot_index, seq)) {
        return STATUS_STALE;
    }
    struct slot_note *note = &half->notes[slot_index];
    if (note->is_ended) { /* the batch has its result, so it must not be sent again */
        batch_free_or_keep(half, slot_index, wakes);
        return STATUS_OK;
    }
    sender_clear_in_flight(half, slot_index);
    note->retry_at_ns = retry_at_ns;
    counter_add(half->arena, COUNTER_BATCHES_REQUEUED, 1);
    return STATUS_OK;
}

void sender_end_backoff(struct sender_half *half, uint32_t partition_index)
{
    if (partition_index >= half->arena->geometry.partition_count) {
        return;
    }
    for (uint32_t next = half->queues[partition_index].first; next != 0; next = half->notes[next - 1].next) {
        half->notes[next - 1].retry_at_ns = 0;
    }
}

enum status sender_decide(struct sender_half *half, uint32_t slot_index, uint64_t seq,
                          const struct batch_outcome *outcome)
{
    if (!sender_has_in_flight(half, slot_index, seq)) {
        return STATUS_STALE;
    }
    decision_store(&half->arena->slots[slot_index], outcome);
    POINT(result_decided);
    return STATUS_OK;
}

/* ---- spilled batches ---- */

/* The sink gets the batches in the overflow before the partition's batches in the arena. So it has a batch of the
 * current epoch before it gets the next one from the arena, and the partition counts as established. */
static void batch_count_spilled(struct sender_half *half, uint32_t slot_index, uint64_t seq)
{
    CHECK(half->notes[slot_index].is_in_flight);
    uint32_t partition_index = half->notes[slot_index].partition_index;
    spilled_extend_to(half->arena, partition_index, seq);
    half->queues[partition_index].is_established = true;
}

static bool batch_may_spill(const struct sender_half *half, uint32_t slot_index, uint64_t seq)
{
    CHECK(half->arena->is_sender);
    return sender_has_in_flight(half, slot_index, seq) && !half->notes[slot_index].is_ended;
}

enum status sender_spill(struct sender_half *half, uint32_t slot_index, uint64_t seq, struct wake_set *wakes)
{
    if (!batch_may_spill(half, slot_index, seq)) {
        return STATUS_STALE;
    }
    batch_count_spilled(half, slot_index, seq);
    batch_become_done(half, slot_index, wakes);
    return STATUS_OK;
}

enum status sender_spill_in_flight(struct sender_half *half, uint32_t slot_index, uint64_t seq)
{
    if (!batch_may_spill(half, slot_index, seq)) {
        return STATUS_STALE;
    }
    struct slot_note *note = &half->notes[slot_index];
    batch_count_spilled(half, slot_index, seq);
    note->is_ended = true; /* the result is recorded for the batch in the overflow */
    if (note->is_retry) {  /* later batches also go to the overflow, so they need not wait for this retry */
        half->queues[note->partition_index].has_retry_in_flight = false;
    }
    return STATUS_OK;
}

enum status sender_complete_spilled(struct sender_half *half, const struct completion *completion)
{
    const struct geometry *geometry = &half->arena->geometry;
    CHECK(completion->result > RESULT_NONE && completion->result < RESULT_COUNT);
    if (completion->slot_index >= geometry->slot_count || completion->partition_index >= geometry->partition_count) {
        return STATUS_INVALID;
    }
    if (completion->result == RESULT_SUCCEEDED) {
        half->queues[completion->partition_index].has_acked = true;
        half->has_acked_spilled = true;
    } else {
        transaction_fail(half->arena, TRANSACTION_WHY_FAILED_BATCH);
    }
    completion_record(half->arena, completion);
    result_count(half->arena, completion->result, completion->record_count);
    POINT(spilled_completed);
    completion_wake(half->arena);
    return STATUS_OK;
}

/* ---- ending batches that were not acknowledged ---- */

static void batch_seal_at_end(struct sender_half *half, uint32_t slot_index)
{
    atomic_u64 *cell = &half->arena->slots[slot_index].word;
    uint64_t word = load_acquire_u64(cell); /* P2 */
    while (slot_word_state(word) == SLOT_OPEN) {
        (void)batch_seal(half->arena, slot_index, word);
        word = load_acquire_u64(cell); /* P2 */
    }
}

/* Records the result of a batch in flight, and keeps its memory until its I/O is over. If the slot has no decision yet,
 * stores `result` in it for a later sender. */
static void batch_end_in_flight(struct sender_half *half, uint32_t slot_index, const struct batch_outcome *outcome)
{
    CHECK(half->notes[slot_index].is_in_flight);
    CHECK(!half->notes[slot_index].is_ended);
    struct batch_outcome decided = decision_of(&half->arena->slots[slot_index]);
    if (decided.result == RESULT_NONE) {
        decision_store(&half->arena->slots[slot_index], outcome);
        decided = *outcome;
    }
    POINT(result_decided);
    result_record_rest(half, slot_index, &decided);
    half->notes[slot_index].is_ended = true;
}

/* Returns false if the batch is empty, or if the slot has another batch now. */
static bool batch_end_in_queue(struct sender_half *half, uint32_t slot_index, const struct batch_outcome *outcome,
                               struct wake_set *wakes)
{
    CHECK(half->notes[slot_index].is_queued);
    CHECK(!half->notes[slot_index].is_in_flight);
    batch_seal_at_end(half, slot_index);
    uint64_t word = load_acquire_u64(&half->arena->slots[slot_index].word); /* P2 */
    if (slot_word_state(word) != SLOT_READY || !sender_note_is_current(half, slot_index)) {
        sender_unlink(half, slot_index);
        sender_update_note(half, slot_index);
        return false;
    }
    decision_store(&half->arena->slots[slot_index], outcome);
    POINT(result_decided);
    result_record_rest(half, slot_index, outcome);
    batch_free_or_keep(half, slot_index, wakes);
    return true;
}

static bool batch_end(struct sender_half *half, uint32_t slot_index, const struct batch_outcome *outcome,
                      struct wake_set *wakes)
{
    CHECK(half->notes[slot_index].is_queued);
    const struct slot_note *note = &half->notes[slot_index];
    if (note->is_ended) {
        return false;
    }
    if (!note->is_in_flight) {
        return batch_end_in_queue(half, slot_index, outcome, wakes);
    }
    batch_end_in_flight(half, slot_index, outcome);
    return true;
}

static uint64_t batch_age_ns(const struct sender_half *half, uint32_t slot_index, uint64_t now_ns)
{
    const struct slot_header *slot = &half->arena->slots[slot_index];
    return half->counts_always ? time_since_created_ns(slot->created_ns, now_ns)
                               : delivery_age_ns(slot, now_ns, half->delivery_clock_ns);
}

static uint64_t smaller_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Returns the first batch from `next` on that is old enough and has no result; 0 if there is none. Batches behind one
 * that is not old enough are younger. */
static uint32_t queue_find_expired(struct sender_half *half, uint32_t next, uint64_t now_ns, uint64_t timeout_ns,
                                   uint64_t *next_expiry_ns)
{
    for (; next != 0; next = half->notes[next - 1].next) {
        uint64_t age_ns = batch_age_ns(half, next - 1, now_ns);
        if (age_ns < timeout_ns) {
            uint64_t created_ns = smaller_of(half->arena->slots[next - 1].created_ns, now_ns);
            half->oldest_created_ns = smaller_of(half->oldest_created_ns, created_ns);
            *next_expiry_ns = smaller_of(*next_expiry_ns, timeout_ns - age_ns);
            return 0;
        }
        if (!half->notes[next - 1].is_ended) {
            return next;
        }
    }
    return 0;
}

uint64_t sender_next_expiry_ns(struct sender_half *half, uint64_t now_ns, uint64_t delivery_timeout_ns)
{
    CHECK(half->active_count <= half->arena->geometry.partition_count);
    uint64_t next_expiry_ns = UINT64_MAX;
    sender_find_batches(half);
    half->oldest_created_ns = UINT64_MAX;
    for (uint32_t i = half->active_count; i-- > 0;) {
        uint32_t first = half->queues[half->active[i]].first;
        if (queue_find_expired(half, first, now_ns, delivery_timeout_ns, &next_expiry_ns) != 0) {
            return 0;
        }
    }
    return next_expiry_ns;
}

static uint32_t queue_expire(struct sender_half *half, uint32_t partition_index, uint64_t now_ns, uint64_t timeout_ns,
                             uint64_t *next_expiry_ns, struct wake_set *wakes)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    const struct batch_outcome outcome = {.result = RESULT_EXPIRED, .base_offset = -1, .log_append_time_ms = -1};
    uint32_t expired = 0;
    uint32_t next = half->queues[partition_index].first;
    while ((next = queue_find_expired(half, next, now_ns, timeout_ns, next_expiry_ns)) != 0) {
        uint32_t slot_index = next - 1;
        next = half->notes[slot_index].next;
        expired += batch_end(half, slot_index, &outcome, wakes);
    }
    return expired;
}

uint32_t sender_expire(struct sender_half *half, uint64_t now_ns, uint64_t delivery_timeout_ns,
                       uint64_t *next_expiry_ns, struct wake_set *wakes)
{
    CHECK(half->active_count <= half->arena->geometry.partition_count);
    uint32_t expired = 0;
    *next_expiry_ns = UINT64_MAX;
    sender_find_batches(half);
    half->oldest_created_ns = UINT64_MAX;
    for (uint32_t i = half->active_count; i-- > 0;) {
        expired += queue_expire(half, half->active[i], now_ns, delivery_timeout_ns, next_expiry_ns, wakes);
    }
    completion_wake(half->arena);
    return expired;
}

void sender_publish_delivery_timeout(struct sender_half *half, uint64_t delivery_timeout_ns, bool counts_always)
{
    half->counts_always = counts_always;
    delivery_clock_announce(half->arena, delivery_timeout_ns, counts_always);
}

void sender_run_delivery_clock(struct sender_half *half, uint64_t run_ns)
{
    CHECK(half->arena->is_sender);
    half->delivery_clock_ns += run_ns;
    store_relaxed_u64(&half->arena->globals->delivery_clock_ns, half->delivery_clock_ns);
}

uint64_t sender_take_expired(struct sender_half *half, uint32_t partition_index)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    struct partition_queue *queue = &half->queues[partition_index];
    uint64_t count = queue->expired_record_count;
    queue->expired_record_count = 0;
    return count;
}

uint32_t sender_abort(struct sender_half *half, bool is_in_flight_included, struct wake_set *wakes)
{
    const struct batch_outcome outcome = {.result = RESULT_ABORTED, .base_offset = -1, .log_append_time_ms = -1};
    uint32_t aborted = 0;
    sender_find_batches(half);
    for (uint32_t i = half->active_count; i-- > 0;) {
        uint32_t next = half->queues[half->active[i]].first;
        while (next != 0) {
            uint32_t slot_index = next - 1;
            next = half->notes[slot_index].next;
            if (is_in_flight_included || !half->notes[slot_index].is_in_flight) {
                aborted += batch_end(half, slot_index, &outcome, wakes);
            }
        }
    }
    completion_wake(half->arena);
    return aborted;
}

/* ---- quarantine ---- */

static void batch_become_bad(struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued || half->notes[slot_index].is_dead);
    struct arena *arena = half->arena;
    atomic_u64 *cell = &arena->slots[slot_index].word;
    uint32_t count = slot_chain_walk(arena, slot_index, arena->chain_scratch, arena->chain_slot_count_max);
    topic_share_count_released(arena, half->notes[slot_index].partition_index, count);
    store_seq_cst_u64(cell, slot_word_with_state(load_relaxed_u64(cell), SLOT_BAD)); /* C5 */
    sender_forget(half, slot_index);
    counter_add(half->arena, COUNTER_BATCHES_QUARANTINED, 1);
    error_log_record(half->arena, STATUS_CORRUPT, "a batch's bytes contradict their checksum: quarantined");
}

void batch_quarantine(struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued || half->notes[slot_index].is_dead);
    const struct batch_outcome outcome = {.result = RESULT_CORRUPT, .base_offset = -1, .log_append_time_ms = -1};
    const struct slot_note *note = &half->notes[slot_index];
    bool has_result = note->is_dead || note->is_ended;
    if (!has_result) {
        result_record_rest(half, slot_index, &outcome);
    }
    batch_become_bad(half, slot_index);
    completion_wake(half->arena);
}

enum status sender_quarantine(struct sender_half *half, uint32_t slot_index, uint64_t seq)
{
    if (!sender_has_in_flight(half, slot_index, seq) && !sender_has_dead(half, slot_index, seq)) {
        return STATUS_STALE;
    }
    batch_quarantine(half, slot_index);
    return STATUS_OK;
}

/* ---- taking dead letters ---- */

uint32_t sender_dead_letters(struct sender_half *half, struct drained_batch *batches, struct batch_outcome *outcomes,
                             uint32_t batches_max)
{
    CHECK(half->dead.count <= half->arena->geometry.slot_count);
    uint32_t count = 0;
    uint32_t taken = half->dead.count < batches_max ? half->dead.count : batches_max;
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t slot_index = half->dead.slots[i];
        const struct slot_header *slot = &half->arena->slots[slot_index];
        uint64_t word = load_acquire_u64(&slot->word); /* P2 */
        if (!drained_batch_is_possible(half, slot_index, word)) {
            batch_quarantine(half, slot_index);
            continue;
        }
        drained_batch_describe(half, slot_index, word, &batches[count]);
        outcomes[count++] = decision_of(slot);
    }
    half->dead.count -= taken;
    memmove(half->dead.slots, &half->dead.slots[taken], half->dead.count * sizeof *half->dead.slots);
    return count;
}
