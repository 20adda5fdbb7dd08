/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/process_share.h"

#include "arena/counters.h"

uint32_t process_share_holder(const struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    switch (slot_word_state(word)) {
    case SLOT_OWNED:
        return slot_word_owner(word);
    case SLOT_OPEN:
    case SLOT_READY:
    case SLOT_DONE:
    case SLOT_CONT:
        return load_relaxed_u32(&arena->slots[slot_index].opener); /* P3 */
    default:
        return 0;
    }
}

uint32_t process_share_held(const struct arena *arena)
{
    CHECK(arena->owner != 0);
    uint32_t count = 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        count += process_share_holder(arena, i, load_acquire_u64(&arena->slots[i].word)) == arena->owner; /* P2 */
    }
    return count;
}

static bool share_exceeds(const struct arena *arena, uint32_t need)
{
    CHECK(need >= 1 && need <= process_share_max(arena));
    return (uint64_t)arena->held_count_bound + need > process_share_max(arena);
}

enum status process_share_await(struct arena *arena, uint32_t need)
{
    CHECK(arena->owner != 0);
    if (process_share_is_limited(arena) && share_exceeds(arena, need)) {
        arena->held_count_bound = process_share_held(arena) + arena->awaited_slot_count;
        if (share_exceeds(arena, need)) {
            counter_add(arena, COUNTER_SHARES_USED, 1);
            return STATUS_SHARE_USED;
        }
    }
    arena->awaited_slot_count += need;
    process_share_add(arena, need);
    return STATUS_OK;
}

void process_share_end_wait(struct arena *arena, uint32_t need)
{
    CHECK(need >= 1);
    arena->awaited_slot_count -= need < arena->awaited_slot_count ? need : arena->awaited_slot_count;
}

void process_share_return(struct arena *arena, uint32_t need)
{
    CHECK(need >= 1);
    process_share_end_wait(arena, need);
    process_share_subtract(arena, need);
}

void process_share_begin(struct arena *arena)
{
    arena->held_count_bound = 0;
    arena->awaited_slot_count = 0;
}
