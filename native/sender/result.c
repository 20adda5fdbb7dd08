/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/result.h"

#include "arena/counters.h"
#include "base/point.h"
#include "sender/sender_half.h"

enum { ERROR_CODE_SHIFT = 16 };

/* ---- decided ---- */

void decision_store(struct slot_header *slot, const struct batch_outcome *outcome)
{
    uint32_t code = (uint16_t)outcome->error_code;
    store_release_u32(&slot->result, (uint32_t)outcome->result | code << ERROR_CODE_SHIFT);
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

/* ---- recorded ---- */

static void result_count(struct arena *arena, enum batch_result result, uint32_t record_count)
{
    counter_add(arena, COUNTER_BATCHES_COMPLETED, 1);
    counter_add(arena, COUNTER_RECORDS_COMPLETED, record_count);
    if (result == RESULT_EXPIRED) {
        counter_add(arena, COUNTER_BATCHES_EXPIRED, 1);
    } else if (result != RESULT_SUCCEEDED) {
        counter_add(arena, COUNTER_BATCHES_FAILED, 1);
    }
}

void result_record(struct accumulator *accumulator, uint32_t slot_index, uint32_t first_record,
                          uint32_t record_count, const struct batch_outcome *outcome)
{
    const struct slot_note *note = &accumulator->sender->notes[slot_index];
    completion_record(accumulator->arena, &(struct completion){.seq = note->seq,
                                                               .slot_index = slot_index,
                                                               .partition_index = note->partition_index,
                                                               .first_record = first_record,
                                                               .record_count = record_count,
                                                               .result = outcome->result,
                                                               .error_code = outcome->error_code,
                                                               .base_offset = outcome->base_offset,
                                                               .log_append_time_ms = outcome->log_append_time_ms});
}

void result_record_rest(struct accumulator *accumulator, uint32_t slot_index, const struct batch_outcome *outcome)
{
    const struct slot_header *slot = &accumulator->arena->slots[slot_index];
    uint32_t count = slot_word_count(load_acquire_u64(&slot->word));
    uint32_t acked = load_relaxed_u32(&slot->acked_record_count);
    acked = acked < count ? acked : 0;
    result_record(accumulator, slot_index, acked, count - acked, outcome);
    result_count(accumulator->arena, outcome->result, count - acked);
    uint32_t partition_index = accumulator->sender->notes[slot_index].partition_index;
    accumulator->sender->queues[partition_index].expired_record_count +=
        outcome->result == RESULT_EXPIRED ? count - acked : 0;
    POINT(result_recorded);
}
