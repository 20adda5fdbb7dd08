/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that bring an arena into a chosen state: with batches as producers leave them, or with invalid words, bytes
 * or boot ids.
 */
#ifndef PLANTING_H
#define PLANTING_H

#include "arena/batch_seal.h"
#include "core/delivery_fixture.h"

/* The host crashed and started again. */
static inline void boot_again(struct arena *arena)
{
    arena->globals->boot_id[0] ^= 1;
}

static inline void bytes_plant(struct arena *arena, uint32_t slot_index, uint32_t size)
{
    memset(arena_slot_data(arena, slot_index), 0xa5, size);
    store_relaxed_u32(&arena->slots[slot_index].written_end, size);
}

static inline void word_plant(struct arena *arena, uint32_t slot_index, enum slot_state state, uint32_t generation,
                              uint64_t payload)
{
    store_release_u64(&arena->slots[slot_index].word, slot_word(state, generation, payload));
}

/* Plant an open batch of `count` numbered records in partition 0, and return its slot. */
static inline uint32_t batch_plant(struct arena *arena, uint32_t count)
{
    partitions_register(arena);
    struct accumulator *producer = accumulator_opened(arena);
    for (uint32_t number = 0; number < count; number++) {
        EXPECT_STATUS(append_number(producer, 0, number), STATUS_OK);
    }
    accumulator_close(producer);
    return open_word_slot(load_acquire_u64(&arena->partitions[0].open));
}

static inline uint32_t ready_batch_plant(struct arena *arena, uint32_t count)
{
    uint32_t slot_index = batch_plant(arena, count);
    EXPECT(batch_seal(arena, slot_index, slot_word_at(arena, slot_index)));
    return slot_index;
}

/* Plant a record over three slots, and return the head. */
static inline uint32_t chain_plant(struct arena *arena)
{
    uint8_t value[4096];
    struct append_result result;
    uint32_t value_size = arena->geometry.batch_size * 5 / 2;
    EXPECT(value_size <= sizeof value);
    for (uint32_t i = 0; i < value_size; i++) {
        value[i] = (uint8_t)(i * 7 / 3);
    }
    partitions_register(arena);
    struct accumulator *producer = accumulator_opened(arena);
    append_waiting(producer, 0, record_of(value, value_size, 1000), &result);
    accumulator_close(producer);
    uint32_t slots[4];
    EXPECT_EQ_U64(slot_chain_walk(arena, result.first.slot_index, slots, COUNT_OF(slots)), 3);
    return result.first.slot_index;
}

#endif
