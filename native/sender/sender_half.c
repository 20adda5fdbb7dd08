/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/sender_half.h"

#include <stdlib.h>

#include "arena/counters.h"
#include "arena/ready_hints.h"
#include "arena/process.h"
#include "arena/producer_id.h"
#include "arena/registry.h"
#include "base/point.h"
#include "format/sequence.h"

/* ---- memory ---- */

void sender_half_free(struct sender_half *half)
{
    if (half == NULL) {
        return;
    }
    free(half->notes);
    free(half->queues);
    free(half->active);
    free(half->published);
    free(half->watched.slots);
    free(half->deferred.slots);
    free(half->dead.slots);
    free(half->noticed_generation);
    free(half->limits.counts);
    free(half->limits.opened);
    free(half);
}

enum status sender_half_new(struct arena *arena, struct sender_half **result, struct error *error)
{
    const struct geometry *geometry = &arena->geometry;
    struct sender_half *half = calloc(1, sizeof *half);
    if (half != NULL) {
        half->notes = calloc(geometry->slot_count, sizeof *half->notes);
        half->queues = calloc(geometry->partition_count, sizeof *half->queues);
        half->active = calloc(geometry->partition_count, sizeof *half->active);
        half->published = calloc(geometry->partition_count, sizeof *half->published);
        half->watched.slots = calloc(geometry->slot_count, sizeof *half->watched.slots);
        half->deferred.slots = calloc(geometry->slot_count, sizeof *half->deferred.slots);
        half->dead.slots = calloc(geometry->slot_count, sizeof *half->dead.slots);
        half->limits.counts = calloc(geometry->topic_count, sizeof *half->limits.counts);
        half->limits.opened = calloc(geometry->topic_count, sizeof *half->limits.opened);
        half->noticed_generation = calloc(geometry->process_count, sizeof *half->noticed_generation);
    }
    if (half == NULL || half->notes == NULL || half->queues == NULL || half->active == NULL ||
        half->published == NULL || half->watched.slots == NULL || half->deferred.slots == NULL ||
        half->dead.slots == NULL || half->noticed_generation == NULL ||
        half->limits.counts == NULL || half->limits.opened == NULL) {
        sender_half_free(half);
        return error_set(error, STATUS_OS, "no memory for the sender's queues");
    }
    half->arena = arena;
    *result = half;
    return STATUS_OK;
}

/* ---- queues ---- */

static void queue_activate(struct sender_half *half, uint32_t partition_index)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    struct partition_queue *queue = &half->queues[partition_index];
    if (queue->active_position == 0) {
        half->active[half->active_count++] = partition_index;
        queue->active_position = half->active_count;
    }
}

static void queue_deactivate(struct sender_half *half, struct partition_queue *queue)
{
    CHECK(half->active_count >= 1);
    CHECK(queue->first == 0);
    CHECK(queue->active_position >= 1 && queue->active_position <= half->active_count);
    uint32_t moved = half->active[--half->active_count];
    half->active[queue->active_position - 1] = moved;
    half->queues[moved].active_position = queue->active_position;
    queue->active_position = 0;
}

/* Orders batches by seq, but batches with a Kafka sequence come first and in the order of it, because the broker
 * accepts them only in this order. The two orders differ only for an oversized record whose producer was stopped before
 * READY. */
static bool batch_is_before(const struct sender_half *half, uint32_t slot_index, uint32_t other_index)
{
    const struct slot_header *slot = &half->arena->slots[slot_index];
    const struct slot_header *other = &half->arena->slots[other_index];
    uint32_t epoch = load_acquire_u32(&slot->producer_epoch); /* V5 */
    uint32_t other_epoch = load_acquire_u32(&other->producer_epoch); /* V5 */
    if ((epoch == 0) != (other_epoch == 0)) {
        return epoch != 0;
    }
    if (epoch != 0 && epoch == other_epoch &&
        load_relaxed_u64(&slot->producer_id) == load_relaxed_u64(&other->producer_id)) {
        return sequence_is_before((int32_t)load_relaxed_u32(&slot->base_sequence),
                                  (int32_t)load_relaxed_u32(&other->base_sequence));
    }
    return half->notes[slot_index].seq < half->notes[other_index].seq;
}

/* Usually inserts at the end. A batch whose producer was stopped while it opened it is found late, with a lower seq. */
static void queue_insert(struct sender_half *half, struct partition_queue *queue, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued);
    CHECK((queue->first == 0) == (queue->last == 0));
    struct slot_note *notes = half->notes;
    uint32_t *link = &queue->first;
    if (queue->last != 0 && batch_is_before(half, queue->last - 1, slot_index)) {
        link = &notes[queue->last - 1].next;
    }
    while (*link != 0 && batch_is_before(half, *link - 1, slot_index)) {
        link = &notes[*link - 1].next;
    }
    notes[slot_index].next = *link;
    *link = slot_index + 1;
    if (notes[slot_index].next == 0) {
        queue->last = slot_index + 1;
    }
}

static void sender_enqueue(struct sender_half *half, uint32_t slot_index)
{
    CHECK(!half->notes[slot_index].is_queued);
    CHECK(!half->notes[slot_index].is_dead);
    const struct slot_header *slot = &half->arena->slots[slot_index];
    uint32_t partition_index = load_relaxed_u32(&slot->partition_index);
    if (partition_index >= half->arena->geometry.partition_count) {
        error_log_record(half->arena, STATUS_CORRUPT, "a batch names a partition that does not exist");
        return;
    }
    half->notes[slot_index] = (struct slot_note){.seq = load_relaxed_u64(&slot->seq),
                                                .found_in_pass = half->pass,
                                                .partition_index = partition_index,
                                                .is_queued = true};
    half->found_count++;
    queue_insert(half, &half->queues[partition_index], slot_index);
    queue_activate(half, partition_index);
    half->queued_count++;
}

/* ---- the notes of slots ---- */

static const struct slot_note *note_of(const struct sender_half *half, uint32_t slot_index, uint64_t seq)
{
    if (slot_index >= half->arena->geometry.slot_count) {
        return NULL;
    }
    const struct slot_note *note = &half->notes[slot_index];
    return note->seq == seq ? note : NULL;
}

bool sender_has_in_flight(const struct sender_half *half, uint32_t slot_index, uint64_t seq)
{
    const struct slot_note *note = note_of(half, slot_index, seq);
    return note != NULL && note->is_queued && note->is_in_flight;
}

bool sender_has_dead(const struct sender_half *half, uint32_t slot_index, uint64_t seq)
{
    const struct slot_note *note = note_of(half, slot_index, seq);
    return note != NULL && note->is_dead;
}

/* ---- in flight ---- */

void sender_mark_in_flight(struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued);
    CHECK(!half->notes[slot_index].is_in_flight);
    struct slot_note *note = &half->notes[slot_index];
    struct partition_queue *queue = &half->queues[note->partition_index];
    note->is_in_flight = true;
    note->is_retry = load_relaxed_u32(&half->arena->slots[slot_index].attempt_count) > 0;
    queue->has_retry_in_flight |= note->is_retry;
    queue->is_established &= !sequence_starts_over(half->arena, &half->arena->slots[slot_index],
                                                   note->partition_index);
    queue->in_flight_count++;
    half->in_flight_count++;
}

void sender_clear_in_flight(struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_in_flight);
    CHECK(half->in_flight_count >= 1);
    CHECK(half->queues[half->notes[slot_index].partition_index].in_flight_count >= 1);
    struct slot_note *note = &half->notes[slot_index];
    struct partition_queue *queue = &half->queues[note->partition_index];
    if (note->is_retry) {
        queue->has_retry_in_flight = false;
    }
    note->is_in_flight = false;
    note->is_retry = false;
    queue->in_flight_count--;
    half->in_flight_count--;
}

bool sender_may_send(const struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued);
    const struct arena *arena = half->arena;
    const struct slot_header *slot = &arena->slots[slot_index];
    uint32_t partition_index = half->notes[slot_index].partition_index;
    const struct partition_queue *queue = &half->queues[partition_index];
    if (queue->in_flight_count == 0) {
        return true;
    }
    bool is_sequenced = load_relaxed_u64(&arena->globals->producer_id) != UINT64_MAX;
    if (queue->has_retry_in_flight || (is_sequenced && !queue->is_established) ||
        sequence_starts_over(arena, slot, partition_index)) {
        return false;
    }
    return load_relaxed_u32(&slot->attempt_count) == 0 || queue->first == slot_index + 1;
}

/* ---- leaving the queue ---- */

void sender_unlink(struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued);
    CHECK(half->queued_count >= 1);
    struct slot_note *note = &half->notes[slot_index];
    struct partition_queue *queue = &half->queues[note->partition_index];
    uint32_t *link = &queue->first;
    uint32_t before = 0;
    while (*link != slot_index + 1) {
        CHECK(*link != 0);
        before = *link;
        link = &half->notes[*link - 1].next;
    }
    *link = note->next;
    if (queue->last == slot_index + 1) {
        queue->last = before;
    }
    if (note->is_in_flight) {
        sender_clear_in_flight(half, slot_index);
    }
    half->queued_count--;
    *note = (struct slot_note){0};
    if (queue->first == 0) {
        queue_deactivate(half, queue);
    }
}

void sender_forget(struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].is_queued || half->notes[slot_index].is_dead);
    if (half->notes[slot_index].is_dead) {
        half->notes[slot_index] = (struct slot_note){0};
    } else {
        sender_unlink(half, slot_index);
    }
}

/* ---- new batches ---- */

static void list_add(struct slot_list *list, uint32_t slot_index)
{
    list->slots[list->count++] = slot_index;
}

bool sender_note_is_current(const struct sender_half *half, uint32_t slot_index)
{
    const struct slot_note *note = &half->notes[slot_index];
    const struct slot_header *slot = &half->arena->slots[slot_index];
    return note->seq == load_relaxed_u64(&slot->seq) &&
           note->partition_index == load_relaxed_u32(&slot->partition_index);
}

void sender_update_note(struct sender_half *half, uint32_t slot_index)
{
    CHECK(slot_index < half->arena->geometry.slot_count);
    struct slot_note *note = &half->notes[slot_index];
    if (note->is_dead) {
        return;
    }
    if (note->is_queued) {
        if (note->is_in_flight || sender_note_is_current(half, slot_index)) {
            return;
        }
        sender_unlink(half, slot_index);
    }
    switch (slot_word_state(load_acquire_u64(&half->arena->slots[slot_index].word))) { /* P2 */
    case SLOT_OPEN:
    case SLOT_READY:
        sender_enqueue(half, slot_index);
        break;
    case SLOT_OWNED:
    case SLOT_GRANT:
        if (!note->is_watched) {
            note->is_watched = true;
            list_add(&half->watched, slot_index);
        }
        break;
    case SLOT_DONE:
        if (!note->is_deferred) {
            note->is_deferred = true;
            list_add(&half->deferred, slot_index);
        }
        break;
    default:
        break;
    }
}

static void sender_check_watched(struct sender_half *half)
{
    uint32_t count = half->watched.count;
    half->watched.count = 0;
    for (uint32_t i = 0; i < count; i++) {
        half->notes[half->watched.slots[i]].is_watched = false;
        sender_update_note(half, half->watched.slots[i]); /* may add the slot again, at an index up to i */
    }
}

static void sender_read_hints_word(struct sender_half *half, uint32_t word_index)
{
    struct arena *arena = half->arena;
    if (word_index >= arena->layout.bitmap_word_count) {
        return;
    }
    for (uint64_t bits = ready_hints_take(&arena->ready_hints[word_index]); bits != 0; bits &= bits - 1) {
        uint32_t slot_index = word_index * 64 + (uint32_t)__builtin_ctzll(bits);
        if (slot_index < arena->geometry.slot_count) {
            sender_update_note(half, slot_index);
        }
    }
}

/* Watched slots come last: if a hint named a batch, all batches that were opened before it are OPEN. */
static void sender_scan_hints(struct sender_half *half)
{
    struct arena *arena = half->arena;
    half->pass++;
    half->found_count = 0;
    for (uint32_t i = 0; i < arena->layout.ready_group_count; i++) {
        POINT(ready_group_next);
        for (uint64_t bits = ready_hints_take(&arena->ready_groups[i]); bits != 0; bits &= bits - 1) {
            sender_read_hints_word(half, i * READY_GROUP_WORDS + (uint32_t)__builtin_ctzll(bits));
        }
    }
    sender_check_watched(half);
}

void sender_find_batches(struct sender_half *half)
{
    sender_scan_hints(half);
    if (half->found_count > 0) {
        sender_scan_hints(half);
    }
}

uint32_t sender_candidate(struct sender_half *half, uint32_t partition_index)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    uint32_t next = half->queues[partition_index].first;
    while (next != 0) {
        uint32_t slot_index = next - 1;
        struct slot_note *note = &half->notes[slot_index];
        next = note->next;
        if (note->is_in_flight) {
            continue;
        }
        enum slot_state state = slot_word_state(load_acquire_u64(&half->arena->slots[slot_index].word)); /* P2 */
        bool is_filled = state == SLOT_OPEN || state == SLOT_READY;
        if (is_filled && sender_note_is_current(half, slot_index)) {
            return slot_index;
        }
        sender_unlink(half, slot_index); /* an empty batch that was sealed, or taken back by its opener */
        sender_update_note(half, slot_index);
    }
    return NO_SLOT;
}

/* ---- freeing ---- */

void sender_free_slot(struct sender_half *half, uint32_t slot_index, struct wake_set *wakes)
{
    CHECK(slot_index < half->arena->geometry.slot_count);
    CHECK(half->arena->is_sender);
    barrier_store_load(); /* H2: DONE was stored before, the hazards are read after */
    if (process_anyone_writes(half->arena, slot_index)) {
        counter_add(half->arena, COUNTER_FREES_DEFERRED, 1);
    } else if (buffer_pool_free(half->arena, slot_index, wakes)) {
        half->limits.freed_count++;
        return;
    }
    if (!half->notes[slot_index].is_deferred) {
        half->notes[slot_index].is_deferred = true;
        list_add(&half->deferred, slot_index);
    }
}

void sender_free_deferred(struct sender_half *half, struct wake_set *wakes)
{
    uint32_t count = half->deferred.count;
    half->deferred.count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot_index = half->deferred.slots[i];
        half->notes[slot_index].is_deferred = false;
        sender_free_slot(half, slot_index, wakes);
    }
}

/* ---- the lengths of the queues ----
 *
 * Producers choose partitions by them (KIP-794, partitioner.h). Kafka's producer computes them in ready(); here the
 * sender publishes them in the arena. It visits only partitions that have a queue or had one at the last call. Between
 * two calls, a number may be too low. It is a hint. */

static atomic_u32 *longest_of_topic(struct arena *arena, uint32_t partition_index)
{
    uint32_t topic_index = arena->partitions[partition_index].topic_index;
    return topic_index < arena->geometry.topic_count ? &arena->topics[topic_index].queued_batch_count_max : NULL;
}

void sender_store_length(struct sender_half *half, uint32_t partition_index, uint32_t length)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    bool is_available = half->queues[partition_index].stuck_reason == STUCK_NOT;
    store_relaxed_u32(&half->arena->partitions[partition_index].queued_batch_count,
                      is_available ? length : PARTITION_UNAVAILABLE);
}

/* Resets the numbers of a previous sender. */
static void lengths_reset(struct sender_half *half)
{
    struct arena *arena = half->arena;
    for (uint32_t i = 0; i < registry_partition_count(arena); i++) {
        sender_store_length(half, i, 0);
    }
    for (uint32_t i = 0; i < registry_topic_count(arena); i++) {
        store_relaxed_u32(&arena->topics[i].queued_batch_count_max, 0);
    }
    half->has_published = true;
}

static void lengths_withdraw(struct sender_half *half)
{
    for (uint32_t i = 0; i < half->published_count; i++) {
        atomic_u32 *longest = longest_of_topic(half->arena, half->published[i]);
        if (longest != NULL) {
            store_relaxed_u32(longest, 0);
        }
        if (half->queues[half->published[i]].active_position == 0) {
            sender_store_length(half, half->published[i], 0);
        }
    }
    half->published_count = 0;
}

/* Excludes batches in flight, as Kafka does. */
static uint32_t queue_length(const struct sender_half *half, uint32_t partition_index)
{
    CHECK(partition_index < half->arena->geometry.partition_count);
    uint32_t length = 0;
    for (uint32_t next = half->queues[partition_index].first; next != 0; next = half->notes[next - 1].next) {
        length += !half->notes[next - 1].is_in_flight;
    }
    return length;
}

static void length_publish(struct sender_half *half, uint32_t partition_index)
{
    CHECK(half->published_count < half->arena->geometry.partition_count);
    uint32_t length = queue_length(half, partition_index);
    atomic_u32 *longest = longest_of_topic(half->arena, partition_index);
    if (longest != NULL && load_relaxed_u32(longest) < length) {
        store_relaxed_u32(longest, length);
    }
    sender_store_length(half, partition_index, length);
    half->published[half->published_count++] = partition_index;
}

void sender_publish_queues(struct sender_half *half)
{
    if (!half->has_published) {
        lengths_reset(half);
    }
    sender_find_batches(half);
    lengths_withdraw(half);
    for (uint32_t i = 0; i < half->active_count; i++) {
        length_publish(half, half->active[i]);
    }
}
