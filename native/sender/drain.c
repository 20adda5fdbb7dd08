/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender's half: which batches may go (ready), and making them go (drain).
 */
#include <string.h>

#include "arena/counters.h"
#include "arena/producer_id.h"
#include "base/point.h"
#include "producer/accumulator.h"
#include "sender/drained_batch.h"
#include "sender/quarantine.h"
#include "sender/sender_half.h"

static uint64_t ns_until(uint64_t when_ns, uint64_t now_ns)
{
    return when_ns > now_ns ? when_ns - now_ns : 0;
}

static uint64_t saturating_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t ns_between(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns - b_ns : b_ns - a_ns;
}

/* It was opened just now, and nobody opened another one behind it. It may have been a little after `now_ns`, which was
 * read before we looked; a time far ahead was never true. */
static bool batch_awaits_first_record(const struct accumulator *accumulator, uint32_t slot_index, uint64_t now_ns)
{
    const struct arena *arena = accumulator->arena;
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word); /* P2 */
    return slot_word_state(word) == SLOT_OPEN && slot_word_count(word) == 0 &&
           accumulator->sender->notes[slot_index].next == 0 &&
           ns_between(arena->slots[slot_index].created_ns, now_ns) < sender_patience_ns(arena);
}

/* Whether it lingers or not. */
static bool batch_is_held_back(const struct accumulator *accumulator, uint32_t slot_index, uint64_t now_ns)
{
    return sender_is_fresh(accumulator, slot_index) ||
           accumulator->sender->notes[slot_index].retry_at_ns > now_ns ||
           batch_awaits_first_record(accumulator, slot_index, now_ns);
}

/* ---- ready ---- */

enum { NEXT_PASS_NS = 1 };

/* What a batch is waited for: how long yet, and how long in all. */
static uint64_t batch_linger_ns(const struct arena *arena, const struct ready_options *options, uint32_t slot_index)
{
    uint64_t linger = load_relaxed_u64(&arena->slots[slot_index].linger);
    return linger == 0 ? options->linger_ns : linger - 1;
}

static uint64_t batch_linger_left_ns(const struct accumulator *accumulator, const struct ready_options *options,
                                     uint32_t slot_index)
{
    const struct arena *arena = accumulator->arena;
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word);
    bool is_full = slot_word_state(word) != SLOT_OPEN || accumulator->sender->notes[slot_index].next != 0;
    if (is_full || options->is_everything_ready || load_relaxed_u32(&arena->globals->waiting_count) != 0) {
        return 0;
    }
    uint64_t linger_ns = batch_linger_ns(arena, options, slot_index);
    return ns_until(saturating_add(arena->slots[slot_index].created_ns, linger_ns), options->now_ns);
}

/* How long until this batch may be drained; 0: now. */
static uint64_t batch_wait_ns(const struct accumulator *accumulator, const struct ready_options *options,
                              uint32_t slot_index)
{
    uint64_t retry_at_ns = accumulator->sender->notes[slot_index].retry_at_ns;
    if (sender_is_fresh(accumulator, slot_index)) {
        return NEXT_PASS_NS;
    }
    if (retry_at_ns > options->now_ns) {
        return ns_until(retry_at_ns, options->now_ns);
    }
    uint64_t linger_left_ns = batch_linger_left_ns(accumulator, options, slot_index);
    bool is_early = linger_left_ns == 0 && batch_awaits_first_record(accumulator, slot_index, options->now_ns);
    return is_early ? NEXT_PASS_NS : linger_left_ns;
}

/* It fills and lingers, and has done so for half of its time at least. */
static bool batch_goes_along(const struct accumulator *accumulator, const struct ready_options *options,
                             uint32_t slot_index, uint64_t wait_ns)
{
    const struct arena *arena = accumulator->arena;
    return options->takes_along && wait_ns <= batch_linger_ns(arena, options, slot_index) / 2 &&
           !batch_is_held_back(accumulator, slot_index, options->now_ns);
}

/* Those at the end of the array come behind the `count` at its front, or are forgotten when there is nothing there. */
static uint32_t take_along(uint32_t *partitions, uint32_t partitions_max, uint32_t count, uint32_t along_count)
{
    if (count == 0) {
        return 0;
    }
    memmove(partitions + count, partitions + partitions_max - along_count, along_count * sizeof *partitions);
    return count + along_count;
}

/* The batch that is next in its partition, if nothing but time keeps it; NO_SLOT otherwise. */
static uint32_t ready_candidate(struct accumulator *accumulator, const struct ready_options *options,
                                uint32_t partition_index)
{
    const struct partition_queue *queue = &accumulator->sender->queues[partition_index];
    uint32_t slot_index = sender_candidate(accumulator, partition_index);
    bool is_limited = options->in_flight_max != 0 && queue->in_flight_count >= options->in_flight_max;
    if (slot_index == NO_SLOT || queue->is_muted || is_limited || !sender_may_launch(accumulator, slot_index)) {
        return NO_SLOT;
    }
    return slot_index;
}

uint32_t accumulator_ready(struct accumulator *accumulator, const struct ready_options *options, uint32_t *partitions,
                           uint32_t partitions_max, uint64_t *next_check_ns)
{
    struct sender_half *half = accumulator->sender;
    uint32_t count = 0;
    uint32_t along_count = 0;
    *next_check_ns = UINT64_MAX;
    sender_collect_news(accumulator);
    for (uint32_t i = half->active_count; i-- > 0;) { /* downwards: a queue found empty takes the last one's place */
        uint32_t partition_index = half->active[i];
        uint32_t slot_index = ready_candidate(accumulator, options, partition_index);
        uint64_t wait_ns = slot_index == NO_SLOT ? UINT64_MAX : batch_wait_ns(accumulator, options, slot_index);
        if (wait_ns > 0) {
            *next_check_ns = wait_ns < *next_check_ns ? wait_ns : *next_check_ns;
            if (slot_index != NO_SLOT && count + along_count < partitions_max &&
                batch_goes_along(accumulator, options, slot_index, wait_ns)) {
                partitions[partitions_max - ++along_count] = partition_index;
            }
        } else if (count + along_count < partitions_max) {
            partitions[count++] = partition_index;
        }
    }
    return take_along(partitions, partitions_max, count, along_count);
}

/* ---- drain ---- */

/* Seals an open batch. False when there is nothing to send in it after all, or when it is not the one that was queued:
 * then the next look puts it where it belongs. */
static bool batch_seal_for_drain(struct accumulator *accumulator, uint32_t slot_index, uint64_t *word)
{
    struct arena *arena = accumulator->arena;
    *word = load_acquire_u64(&arena->slots[slot_index].word); /* P2 */
    while (slot_word_state(*word) == SLOT_OPEN) {
        if (producer_batch_seal(arena, slot_index, *word)) {
            counter_add(arena, COUNTER_BATCHES_SEALED_LINGER, 1);
        }
        *word = load_acquire_u64(&arena->slots[slot_index].word); /* P2 */
    }
    return slot_word_state(*word) == SLOT_READY && sender_note_is_true(accumulator, slot_index);
}

static void batch_finish(struct accumulator *accumulator, uint32_t slot_index, uint64_t word,
                         struct drained_batch *batch)
{
    struct slot_header *slot = &accumulator->arena->slots[slot_index];
    sequence_assign(accumulator->arena, slot, accumulator->sender->notes[slot_index].partition_index,
                    slot_word_count(word));
    drained_batch_describe(accumulator, slot_index, word, batch);
    batch->attempt_count = add_u32(&slot->attempt_count, 1) + 1;
}

enum pick { PICK_SKIP, PICK_STOP, PICK_TAKE };

/* A partition that was named before in this drain gives only what is sealed, or will be by nobody else: to cut batches
 * short that are still filling is the business of ready. */
static bool batch_has_its_turn(const struct accumulator *accumulator, const struct partition_queue *queue,
                               uint32_t slot_index)
{
    uint64_t word = load_acquire_u64(&accumulator->arena->slots[slot_index].word);
    return queue->drained_in != accumulator->sender->drain_count || slot_word_state(word) != SLOT_OPEN ||
           accumulator->sender->notes[slot_index].next != 0;
}

static bool batch_may_be_taken(const struct accumulator *accumulator, const struct partition_queue *queue,
                               uint32_t slot_index, uint64_t now_ns)
{
    return !batch_is_held_back(accumulator, slot_index, now_ns) && sender_may_launch(accumulator, slot_index) &&
           batch_has_its_turn(accumulator, queue, slot_index);
}

static enum pick batch_pick(struct accumulator *accumulator, const struct drain_options *options,
                            uint32_t partition_index, uint64_t size_before, uint32_t *slot_index, uint64_t *word)
{
    const struct partition_queue *queue = &accumulator->sender->queues[partition_index];
    if (queue->is_muted || queue->in_flight_count >= options->in_flight_max) {
        return PICK_SKIP;
    }
    do { /* when the first one was ended for want of a record, the next one goes: nobody would come back for it soon */
        *slot_index = sender_candidate(accumulator, partition_index);
        if (*slot_index == NO_SLOT || !batch_may_be_taken(accumulator, queue, *slot_index, options->now_ns)) {
            return PICK_SKIP;
        }
        uint64_t size = slot_word_size(load_acquire_u64(&accumulator->arena->slots[*slot_index].word));
        if (size_before > 0 && size_before + size > options->size_max) {
            return PICK_STOP;
        }
    } while (!batch_seal_for_drain(accumulator, *slot_index, word));
    return PICK_TAKE;
}

uint32_t accumulator_drain(struct accumulator *accumulator, const struct drain_options *options,
                           const uint32_t *partitions, uint32_t partition_count, struct drained_batch *batches,
                           uint32_t *partitions_seen)
{
    uint64_t size = 0;
    uint32_t count = 0;
    uint32_t i = 0;
    accumulator->sender->drain_count++;
    accumulator_show_life(accumulator);
    for (; i < partition_count; i++) {
        uint32_t slot_index;
        uint64_t word;
        if (partitions[i] >= accumulator->arena->geometry.partition_count) {
            continue;
        }
        enum pick pick = batch_pick(accumulator, options, partitions[i], size, &slot_index, &word);
        if (pick == PICK_STOP) {
            break;
        }
        if (pick == PICK_SKIP) {
            continue;
        }
        sender_launch(accumulator, slot_index);
        accumulator->sender->queues[partitions[i]].drained_in = accumulator->sender->drain_count;
        if (!drained_batch_is_possible(accumulator, slot_index, word)) {
            batch_quarantine(accumulator, slot_index);
            continue;
        }
        batch_finish(accumulator, slot_index, word, &batches[count]);
        size += batches[count++].size;
    }
    *partitions_seen = i;
    return count;
}

void accumulator_mute(struct accumulator *accumulator, uint32_t partition_index, bool is_muted)
{
    if (partition_index < accumulator->arena->geometry.partition_count) {
        accumulator->sender->queues[partition_index].is_muted = is_muted;
    }
}

void accumulator_sender_statistics(const struct accumulator *accumulator, struct sender_statistics *statistics)
{
    const struct sender_half *half = accumulator->sender;
    *statistics = (struct sender_statistics){.queued_count = half->queued_count,
                                             .in_flight_count = half->in_flight_count,
                                             .deferred_count = half->deferred.count,
                                             .active_partition_count = half->active_count};
}
