/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of APPEND, which producer_batch.h explains. They run for every record, and are inlined into the appender.
 * Functions that run once per batch take and return structs by value, so that the values of an append stay in registers
 * (measured: docs/decisions/0002).
 */
#ifndef PRODUCER_PRODUCER_BATCH_APPEND_H
#define PRODUCER_PRODUCER_BATCH_APPEND_H

#include "arena/batch_seal.h"
#include "arena/counters.h"
#include "arena/transaction.h"
#include "base/bytes.h"
#include "base/point.h"
#include "format/record_summed.h"
#include "producer/partition_hold.h"
#include "producer/producer_lock.h"

/* The cache lines of a new slot are in the cache of the sender, which scrubbed them. The commit is a locked
 * instruction, which waits for every earlier store. So lines are prefetched this many bytes ahead of the writes. The
 * first ones are prefetched when the batch is opened, and then each record prefetches as many lines as it fills.
 * Measured from 128 to 2,048: 256 to 1,024 are equal. */
enum { PREFETCH_AHEAD = 512 };

/* ---- lock and hazard ---- */

/* Takes the lock without waiting. Its CAS is the barrier between the store of the hazard and later loads. */
static ALWAYS_INLINE bool partition_try_lock(struct arena *arena, struct partition_hold *hold)
{
    CHECK(arena->owner != 0);
    CHECK(arena->me != NULL);
    uint32_t hint = open_word_slot(load_relaxed_u64(&hold->partition->open)) + 1;
    store_relaxed_u32(&arena->me->writing, hint);
    if (!producer_lock_try_acquire(&hold->partition->lock, arena->owner, &hold->lock)) {
        return false;
    }
    barrier_after_cas(); /* H1 */
    hold->hazard = hint;
    return true;
}

/* Waits for the lock. If it takes it over, it repairs the partition. */
struct partition_hold partition_lock_slow(struct arena *arena, uint32_t partition_index);

static ALWAYS_INLINE void partition_lock(struct arena *arena, uint32_t partition_index, struct partition_hold *hold)
{
    CHECK(partition_index < arena->geometry.partition_count);
    *hold = (struct partition_hold){.partition = &arena->partitions[partition_index],
                                    .partition_index = partition_index};
    if (UNLIKELY(!partition_try_lock(arena, hold))) {
        *hold = partition_lock_slow(arena, partition_index);
    }
}

void partition_count_passed(struct arena *arena);

static ALWAYS_INLINE void partition_unlock(struct arena *arena, const struct partition_hold *hold)
{
    CHECK(arena->me != NULL);
    CHECK(lock_word_owner(hold->lock) == arena->owner);
    store_release_u32(&arena->me->writing, 0); /* H3 */
    if (UNLIKELY(!producer_lock_release(&hold->partition->lock, hold->lock))) {
        partition_count_passed(arena);
    } else {
        arena->passed_in_a_row = 0;
    }
}

static ALWAYS_INLINE void hazard_set(struct arena *arena, struct partition_hold *hold, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    if (UNLIKELY(hold->hazard != slot_index + 1)) {
        hold->hazard = slot_index + 1;
        store_relaxed_u32(&arena->me->writing, hold->hazard);
        barrier_store_load(); /* H1 */
    }
}

static inline bool slot_is_of(const struct slot_header *slot, uint32_t partition_index)
{
    CHECK(((uintptr_t)slot & (CACHE_LINE - 1)) == 0);
    return load_relaxed_u32(&slot->partition_index) == partition_index;
}

/* ---- claim ---- */

/* The word and values of a batch with a run of records that is not yet committed. */
struct claim {
    uint32_t count;
    uint32_t size;
    uint32_t crc;
    int64_t max_timestamp_ms;
};

static ALWAYS_INLINE struct claim claim_begin(const struct slot_header *slot, uint64_t word)
{
    uint32_t count = slot_word_count(word);
    const struct batch_meta *meta = &slot->meta[count & 1];
    return (struct claim){.count = count,
                          .size = slot_word_size(word),
                          .crc = count == 0 ? 0 : meta->records_crc,
                          .max_timestamp_ms = count == 0 ? INT64_MIN : meta->max_timestamp_ms};
}

/* Values of the slot for a claim. They are read once, because for the compiler, written bytes might change them. */
struct claim_room {
    uint8_t *bytes;
    uint32_t size;
    int64_t base_timestamp_ms;
};

static ALWAYS_INLINE struct claim_room claim_room_of(const struct arena *arena, uint32_t slot_index)
{
    return (struct claim_room){.bytes = arena_slot_data(arena, slot_index),
                               .size = arena->geometry.batch_size,
                               .base_timestamp_ms = arena->slots[slot_index].base_timestamp_ms};
}

/* Prefetches the lines that begin in [from, end). Lines past the batch belong to other slots, and are not
 * prefetched. */
static ALWAYS_INLINE void prefetch_lines(const struct claim_room *room, uint32_t from, uint32_t end)
{
    CHECK(from <= end);
    end = end < room->size ? end : room->size;
    for (from = (uint32_t)round_up(from, CACHE_LINE); from < end; from += CACHE_LINE) {
        prefetch_for_write(room->bytes + from);
    }
}

struct claim_place {
    uint32_t body_size;
    uint32_t end;
    int64_t timestamp_delta;
};

/* Returns false if the record does not fit. */
static ALWAYS_INLINE bool claim_find_place(const struct claim_room *room, const struct claim *claim,
                                           const struct measured_record *measured, struct claim_place *place)
{
    CHECK(claim->size >= RECORDS_START);
    CHECK(claim->size <= room->size);
    place->timestamp_delta = measured->record.timestamp_ms - room->base_timestamp_ms;
    place->body_size = record_body_size(&measured->size, (int32_t)claim->count, place->timestamp_delta);
    place->end = claim->size + varint_size((int32_t)place->body_size) + place->body_size;
    if (UNLIKELY(place->end > room->size || claim->count == BATCH_RECORD_COUNT_MAX)) {
        return false;
    }
    prefetch_lines(room, claim->size + PREFETCH_AHEAD, place->end + PREFETCH_AHEAD);
    return true;
}

/* Called before the bytes are written, so that after a death no written byte is past it. A run may have written more
 * bytes than it committed. */
static ALWAYS_INLINE void written_end_raise(struct slot_header *slot, uint32_t end)
{
    CHECK(end > RECORDS_START);
    if (LIKELY(end > load_relaxed_u32(&slot->written_end))) {
        store_relaxed_u32(&slot->written_end, end);
    }
    store_order_keep(); /* V5 */
}

static ALWAYS_INLINE void claim_extend(struct claim *claim, const struct claim_place *place, int64_t timestamp_ms)
{
    CHECK(place->end > claim->size);
    claim->size = place->end;
    claim->count++;
    claim->max_timestamp_ms = timestamp_ms > claim->max_timestamp_ms ? timestamp_ms : claim->max_timestamp_ms;
}

/* Returns false if the record does not fit. */
static ALWAYS_INLINE bool claim_add(const struct arena *arena, uint32_t slot_index, struct claim *claim,
                                    const struct measured_record *measured)
{
    const struct claim_room room = claim_room_of(arena, slot_index);
    struct claim_place place;
    if (UNLIKELY(!claim_find_place(&room, claim, measured, &place))) {
        return false;
    }
    written_end_raise(&arena->slots[slot_index], place.end);
    claim->crc = record_write_summed_body(room.bytes + claim->size, &measured->record, place.body_size,
                                          (int32_t)claim->count, place.timestamp_delta, claim->crc);
    claim_extend(claim, &place, measured->record.timestamp_ms);
    return true;
}

/* Adds as many records as fit, or one less if that number is even, because an even number would use the meta cell of
 * the committed records. */
struct claim claim_run(const struct arena *arena, uint32_t slot_index, struct claim begun,
                       const struct measured_record *records, uint32_t count);

/* ---- commit ---- */

static ALWAYS_INLINE bool claim_commit(struct slot_header *slot, uint64_t word, const struct claim *claim)
{
    CHECK(claim->count >= 1);
    CHECK(slot_word_state(word) == SLOT_OPEN);
    struct batch_meta *meta = &slot->meta[claim->count & 1];
    meta->max_timestamp_ms = claim->max_timestamp_ms;
    meta->records_crc = claim->crc;
    POINT(record_claimed);
    return cas_u64(&slot->word, &word, slot_word_filled(word, claim->count, claim->size)); /* P1 */
}

static ALWAYS_INLINE bool word_is_possible(const struct arena *arena, uint64_t word)
{
    uint32_t size = slot_word_size(word);
    return size >= RECORDS_START && size <= arena->geometry.batch_size;
}

static ALWAYS_INLINE enum status open_batch_append(const struct arena *arena, uint32_t slot_index, uint64_t word,
                                                   const struct measured_record *records, uint32_t count,
                                                   uint32_t *appended, struct batch_place *first)
{
    CHECK(count >= 1);
    CHECK(slot_word_state(word) == SLOT_OPEN);
    struct slot_header *slot = &arena->slots[slot_index];
    struct claim claim = claim_begin(slot, word);
    uint32_t count_before = claim.count;
    if (count_before == 0) {
        slot->base_timestamp_ms = records[0].record.timestamp_ms;
    }
    if (LIKELY(count == 1)) {
        (void)claim_add(arena, slot_index, &claim, records);
    } else {
        claim = claim_run(arena, slot_index, claim, records, count);
    }
    if (UNLIKELY(claim.count == count_before)) {
        return STATUS_EXHAUSTED;
    }
    if (UNLIKELY(!claim_commit(slot, word, &claim))) {
        return STATUS_TRY_AGAIN;
    }
    *appended = claim.count - count_before;
    first->slot_index = slot_index;
    first->generation = slot_word_generation(word);
    first->record_index = count_before;
    first->end = claim.size;
    first->seq = load_relaxed_u64(&slot->seq);
    first->timestamp_ms = records[0].record.timestamp_ms;
    return STATUS_OK;
}

/* Appends as many of records[0..count) as fit in the open batch. `appended` receives their number, and `first` the
 * place of the first. STATUS_OK: at least one was appended. STATUS_EXHAUSTED: no open batch has space: open one.
 * STATUS_TRY_AGAIN: this process was passed, or the batch was sealed: unlock and start over. STATUS_TRANSACTION_ENDED,
 * STATUS_FENCED: the joined transaction is not open. STATUS_CORRUPT: the slot word is impossible. */
MUST_USE static ALWAYS_INLINE enum status producer_batch_append(struct arena *arena, struct partition_hold *hold,
                                                                const struct measured_record *records, uint32_t count,
                                                                uint32_t *appended, struct batch_place *first)
{
    uint32_t slot_index = open_word_slot(load_acquire_u64(&hold->partition->open)); /* L6 */
    if (UNLIKELY(slot_index >= arena->geometry.slot_count)) {
        return slot_index == NO_SLOT ? STATUS_EXHAUSTED : STATUS_CORRUPT;
    }
    struct slot_header *slot = &arena->slots[slot_index];
    hazard_set(arena, hold, slot_index);
    uint64_t word = load_acquire_u64(&slot->word); /* H1 */
    if (UNLIKELY(!producer_lock_is_held(&hold->partition->lock, hold->lock))) {
        return STATUS_TRY_AGAIN;
    }
    if (UNLIKELY(slot_word_state(word) != SLOT_OPEN || !slot_is_of(slot, hold->partition_index))) {
        return STATUS_EXHAUSTED;
    }
    if (UNLIKELY(!word_is_possible(arena, word))) {
        return STATUS_CORRUPT;
    }
    if (UNLIKELY(hold->joined != 0)) {
        RETURN_IF_FAILED(transaction_admits(arena, hold->joined));
    }
    enum status status = open_batch_append(arena, slot_index, word, records, count, appended, first);
    if (UNLIKELY(status == STATUS_EXHAUSTED) && batch_seal(arena, slot_index, word)) {
        hold->has_sealed_full = true;
        counter_add(arena, COUNTER_BATCHES_SEALED_FULL, 1);
    }
    return status;
}

#endif
