/* SPDX-License-Identifier: Apache-2.0
 *
 * The description and the header of a batch that the sender drains.
 */
#include "sender/drained_batch.h"

#include "arena/transaction.h"
#include "format/crc32c.h"
#include "format/record.h"
#include "format/record_batch.h"

/* The times of an ordinary batch differ by less than this, because it is sealed earlier. */
enum { ORDINARY_SPAN_MS = 60 * 1000 };

static void header_describe(const struct arena *arena, const struct slot_header *slot, uint64_t word,
                            struct record_batch_header *header)
{
    CHECK(slot_word_count(word) >= 1);
    CHECK(slot_word_size(word) > RECORDS_START);
    const struct batch_meta *meta = &slot->meta[slot_word_count(word) & 1];
    uint32_t epoch = load_relaxed_u32(&slot->producer_epoch);
    *header = (struct record_batch_header){
        .batch_length = (int32_t)slot_word_size(word) - RECORD_BATCH_UNCOUNTED_SIZE,
        .partition_leader_epoch = -1,
        .magic = RECORD_BATCH_MAGIC_VALUE,
        .attributes = arena_is_transactional(arena) ? RECORD_BATCH_TRANSACTIONAL : 0,
        .last_offset_delta = (int32_t)slot_word_count(word) - 1,
        .base_timestamp = slot->base_timestamp_ms,
        .max_timestamp = meta->max_timestamp_ms,
        .producer_id = epoch == 0 ? -1 : (int64_t)load_relaxed_u64(&slot->producer_id),
        .producer_epoch = epoch == 0 ? -1 : (int16_t)(epoch & UINT16_MAX),
        .base_sequence = epoch == 0 ? -1 : (int32_t)load_relaxed_u32(&slot->base_sequence),
        .record_count = (int32_t)slot_word_count(word),
    };
}

void drained_batch_describe(const struct sender_half *half, uint32_t slot_index, uint64_t word,
                            struct drained_batch *batch)
{
    struct arena *arena = half->arena;
    const struct slot_note *note = &half->notes[slot_index];
    struct slot_header *slot = &arena->slots[slot_index];
    uint8_t *bytes = arena_slot_data(arena, slot_index);
    uint32_t size = slot_word_size(word);
    struct record_batch_header header;
    header_describe(arena, slot, word, &header);
    record_batch_header_write(bytes, &header);
    header.crc = record_batch_crc(bytes, slot->meta[slot_word_count(word) & 1].records_crc, size - RECORDS_START);
    record_batch_set_crc(bytes, header.crc);
    *batch = (struct drained_batch){
        .seq = note->seq,
        .created_ns = slot->created_ns,
        .base_timestamp_ms = header.base_timestamp,
        .max_timestamp_ms = header.max_timestamp,
        .producer_id = header.producer_id,
        .slot_index = slot_index,
        .partition_index = note->partition_index,
        .record_count = slot_word_count(word),
        .acked_record_count = load_relaxed_u32(&slot->acked_record_count),
        .size = size,
        .crc = header.crc,
        .base_sequence = header.base_sequence,
        .attempt_count = load_relaxed_u32(&slot->attempt_count),
        .linger_ns = (int64_t)(load_relaxed_u64(&slot->linger) - 1),
        .producer_epoch = header.producer_epoch,
    };
}

bool drained_batch_is_possible(const struct sender_half *half, uint32_t slot_index, uint64_t word)
{
    const struct geometry *geometry = &half->arena->geometry;
    uint32_t size = slot_word_size(word);
    uint32_t size_max = half->arena->slots[slot_index].chain_next == 0 ? geometry->batch_size
                                                                              : geometry->record_size_max;
    return slot_word_count(word) >= 1 && size > RECORDS_START && size <= size_max;
}

bool drained_batch_is_whole(const struct sender_half *half, const struct drained_batch *drained)
{
    CHECK(drained->slot_index < half->arena->geometry.slot_count);
    return drained->size <= half->arena->geometry.batch_size && drained->acked_record_count == 0 &&
           !half->notes[drained->slot_index].is_ended;
}

static bool times_are_sound(const struct drained_batch *drained, const uint8_t *bytes)
{
    int64_t span_ms;
    if (!__builtin_sub_overflow(drained->max_timestamp_ms, drained->base_timestamp_ms, &span_ms) && span_ms >= 0 &&
        span_ms <= ORDINARY_SPAN_MS) {
        return true;
    }
    return records_are_timed(bytes + RECORD_BATCH_HEADER_SIZE, bytes + drained->size, drained->record_count,
                             drained->base_timestamp_ms, drained->max_timestamp_ms);
}

bool drained_batch_is_sound(const struct drained_batch *drained, const uint8_t *bytes)
{
    CHECK(drained->size > RECORD_BATCH_HEADER_SIZE);
    uint32_t checksum = crc32c_extend(0, bytes + RECORD_BATCH_ATTRIBUTES, drained->size - RECORD_BATCH_ATTRIBUTES);
    return checksum == drained->crc && times_are_sound(drained, bytes);
}

/* Reads the records only if one of them may be larger than `known_largest`. */
uint32_t drained_batch_largest_record(const struct drained_batch *drained, const uint8_t *bytes, uint32_t known_largest)
{
    uint32_t records_size = drained->size - RECORD_BATCH_HEADER_SIZE;
    uint64_t others_size = (uint64_t)RECORD_SIZE_MIN * (drained->record_count - 1);
    CHECK(drained->record_count > 0);
    if (records_size <= known_largest + others_size) {
        return known_largest;
    }
    uint32_t largest = record_size_largest(bytes + RECORD_BATCH_HEADER_SIZE, bytes + drained->size);
    return largest > known_largest ? largest : known_largest;
}
