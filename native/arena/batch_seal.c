/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/batch_seal.h"

#include "arena/counters.h"
#include "base/point.h"

static void slot_seal(struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    const atomic_u64 *cell = &arena->slots[slot_index].word;
    uint64_t word = load_acquire_u64(cell); /* P6 */
    while (slot_word_state(word) == SLOT_OPEN) {
        if (batch_seal(arena, slot_index, word)) {
            counter_add(arena, COUNTER_BATCHES_SEALED_FLUSH, 1);
            POINT(slot_closed);
            return;
        }
        word = load_acquire_u64(cell); /* P6 */
    }
}

void batch_seal_all(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        slot_seal(arena, i);
    }
}
