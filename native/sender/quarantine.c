/* SPDX-License-Identifier: Apache-2.0
 */
#include "sender/quarantine.h"

#include "arena/counters.h"
#include "sender/result.h"
#include "sender/sender_half.h"

static void batch_become_bad(struct accumulator *accumulator, uint32_t slot_index)
{
    atomic_u64 *cell = &accumulator->arena->slots[slot_index].word;
    store_seq_cst_u64(cell, slot_word_with_state(load_relaxed_u64(cell), SLOT_BAD));
    sender_forget(accumulator, slot_index);
    counter_add(accumulator->arena, COUNTER_BATCHES_QUARANTINED, 1);
    error_log_record(accumulator->arena, STATUS_CORRUPT, "a batch's bytes contradict their checksum: quarantined");
}

void batch_quarantine(struct accumulator *accumulator, uint32_t slot_index)
{
    const struct batch_outcome outcome = {.result = RESULT_CORRUPT, .base_offset = -1, .log_append_time_ms = -1};
    const struct slot_note *note = &accumulator->sender->notes[slot_index];
    bool has_result = note->is_dead || note->is_ended;
    if (!has_result) {
        result_record_rest(accumulator, slot_index, &outcome);
    }
    batch_become_bad(accumulator, slot_index);
    completion_wake(accumulator->arena);
}

enum status accumulator_quarantine(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq)
{
    if (!sender_has_in_flight(accumulator, slot_index, seq) && !sender_has_dead(accumulator, slot_index, seq)) {
        return STATUS_STALE;
    }
    batch_quarantine(accumulator, slot_index);
    return STATUS_OK;
}
