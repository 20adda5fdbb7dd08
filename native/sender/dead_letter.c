/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/dead_letter.h"

#include <string.h>

#include "sender/drained_batch.h"
#include "sender/quarantine.h"
#include "sender/result.h"
#include "sender/sender_half.h"

bool dead_letter_is_wanted(const struct accumulator *accumulator, enum batch_result result)
{
    return accumulator->wants_dead_letters && (result == RESULT_EXPIRED || result == RESULT_FAILED);
}

void dead_letter_put_back(struct accumulator *accumulator, uint32_t slot_index)
{
    struct slot_list *dead = &accumulator->sender->dead;
    dead->slots[dead->count++] = slot_index;
}

void dead_letter_keep(struct accumulator *accumulator, uint32_t slot_index)
{
    struct slot_note *note = &accumulator->sender->notes[slot_index];
    const struct slot_note letter = {
        .seq = note->seq, .partition_index = note->partition_index, .is_dead = true, .is_watched = note->is_watched};
    sender_unlink(accumulator, slot_index);
    *note = letter;
    dead_letter_put_back(accumulator, slot_index);
}

bool dead_letter_inherit(struct accumulator *accumulator, uint32_t slot_index, const struct batch_outcome *outcome)
{
    if (!dead_letter_is_wanted(accumulator, outcome->result)) {
        return false;
    }
    result_record_rest(accumulator, slot_index, outcome);
    dead_letter_keep(accumulator, slot_index);
    return true;
}

uint32_t accumulator_dead_letters(struct accumulator *accumulator, struct drained_batch *batches,
                                  struct batch_outcome *outcomes, uint32_t batches_max)
{
    struct sender_half *half = accumulator->sender;
    uint32_t count = 0;
    uint32_t taken = half->dead.count < batches_max ? half->dead.count : batches_max;
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t slot_index = half->dead.slots[i];
        const struct slot_header *slot = &accumulator->arena->slots[slot_index];
        uint64_t word = load_acquire_u64(&slot->word);
        if (!drained_batch_is_possible(accumulator, slot_index, word)) {
            batch_quarantine(accumulator, slot_index);
            continue;
        }
        drained_batch_describe(accumulator, slot_index, word, &batches[count]);
        outcomes[count++] = decision_of(slot);
    }
    half->dead.count -= taken;
    memmove(half->dead.slots, &half->dead.slots[taken], half->dead.count * sizeof *half->dead.slots);
    return count;
}
