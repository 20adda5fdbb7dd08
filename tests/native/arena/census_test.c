/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/census.h"

#include "core/planting.h"

#include "arena/attach.h"
#include "arena/process_share.h"

enum { SLOTS = 8, PARTITIONS = 2 };

/* ---- helpers ---- */

struct rows {
    struct queue_census queues[PARTITIONS + 1];
    struct holding_census holdings[PROCESS_COUNT_MAX + 1];
};

static struct census census_of(const struct arena *arena, struct rows *rows)
{
    memset(rows, 0, sizeof *rows);
    struct census census = {
        .queue_count = PARTITIONS + 1,
        .queues = rows->queues,
        .holding_count = arena->geometry.process_count + 1,
        .holdings = rows->holdings,
    };
    census_take(arena, &census);
    return census;
}

static void plant_batch(struct arena *arena, uint32_t slot_index, enum slot_state state, uint32_t partition_index,
                        uint32_t record_count, uint64_t created_ns)
{
    struct slot_header *slot = &arena->slots[slot_index];
    store_relaxed_u32(&slot->partition_index, partition_index);
    store_relaxed_u32(&slot->opener, arena->owner);
    slot->created_ns = created_ns;
    store_relaxed_u64(&slot->word, slot_word(state, 0, slot_payload_filled(record_count, 100)));
}

static void plant_owned(struct arena *arena, uint32_t slot_index, uint32_t owner)
{
    store_relaxed_u64(&arena->slots[slot_index].word, slot_word(SLOT_OWNED, 0, slot_payload_owned(owner, false)));
}

static void arena_emptied_and_ended(struct arena *arena, int file)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        store_relaxed_u64(&arena->slots[i].word, slot_word(SLOT_FREE, 0, 0));
    }
    arena_end(arena, file);
}

/* ---- what is counted ---- */

TEST(a_census_counts_states_queues_damage_and_the_oldest_batch)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(SLOTS, 512));
    plant_batch(arena, 1, SLOT_OPEN, 0, 3, 500);
    plant_batch(arena, 2, SLOT_READY, 0, 4, 400);
    plant_batch(arena, 3, SLOT_READY, 1, 5, 450);
    plant_batch(arena, 4, SLOT_OPEN, 1, 0, 100); /* the batch has no record */
    plant_batch(arena, 5, SLOT_BAD, 1, 6, 50);
    plant_batch(arena, 6, SLOT_DONE, 0, 7, 60);
    struct rows rows;
    struct census census = census_of(arena, &rows);
    EXPECT_EQ_U64(census.states[SLOT_FREE], 2);
    EXPECT_EQ_U64(census.states[SLOT_OPEN], 2);
    EXPECT_EQ_U64(census.states[SLOT_READY], 2);
    EXPECT_EQ_U64(census.states[SLOT_BAD], 1);
    EXPECT_EQ_U64(census.states[SLOT_DONE], 1);
    EXPECT_EQ_U64(census.oldest_slot, 2);
    EXPECT_EQ_U64(census.oldest_created_ns, 400);
    EXPECT_EQ_U64(slot_word_count(census.oldest_word), 4);
    EXPECT_EQ_U64(rows.queues[0].batch_count, 2);
    EXPECT_EQ_U64(rows.queues[0].record_count, 7);
    EXPECT_EQ_U64(rows.queues[0].size, 200);
    EXPECT_EQ_U64(rows.queues[0].created_ns, 400);
    EXPECT_EQ_U64(rows.queues[0].held, 3); /* one of them is delivered, but not free yet */
    EXPECT_EQ_U64(rows.queues[1].batch_count, 1);
    EXPECT_EQ_U64(rows.queues[1].damaged_batch_count, 1);
    EXPECT_EQ_U64(rows.queues[1].damaged_record_count, 6);
    EXPECT_EQ_U64(rows.queues[1].held, 2);
    arena_emptied_and_ended(arena, file);
}

TEST(a_census_counts_slots_for_their_holder_as_its_share_does)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(SLOTS, 512));
    struct arena *other = arena_attached(file);
    plant_batch(arena, 0, SLOT_OPEN, 0, 1, 1);
    plant_batch(arena, 1, SLOT_DONE, 0, 1, 1);
    plant_batch(arena, 2, SLOT_BAD, 0, 1, 1);
    plant_owned(arena, 3, arena->owner);
    plant_owned(arena, 4, other->owner);
    struct rows rows;
    census_of(arena, &rows);
    EXPECT_EQ_U64(rows.holdings[arena->entry_index].held, process_share_held(arena));
    EXPECT_EQ_U64(rows.holdings[arena->entry_index].held, 3);
    EXPECT_EQ_U64(rows.holdings[arena->entry_index].owned, 1);
    EXPECT_EQ_U64(rows.holdings[other->entry_index].held, 1);
    EXPECT_EQ_U64(rows.holdings[arena->geometry.process_count].held, 0);
    arena_detach(other);
    arena_emptied_and_ended(arena, file);
}

TEST(a_partition_or_an_owner_that_does_not_exist_is_counted_in_the_last_row)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(SLOTS, 512));
    uint32_t former = owner_of(arena->entry_index, load_relaxed_u32(&arena->me->generation) + 1);
    plant_batch(arena, 0, SLOT_READY, PARTITIONS, 1, 10);
    plant_batch(arena, 1, SLOT_READY, UINT32_MAX, 2, UINT64_MAX);
    plant_batch(arena, 2, SLOT_BAD, 0x80000000, 3, 0);
    plant_owned(arena, 3, former);
    plant_owned(arena, 4, (uint32_t)LOW_BITS(31));
    plant_owned(arena, 5, 0); /* no owner */
    struct rows rows;
    struct census census = census_of(arena, &rows);
    EXPECT_EQ_U64(rows.queues[PARTITIONS].batch_count, 2);
    EXPECT_EQ_U64(rows.queues[PARTITIONS].record_count, 3);
    EXPECT_EQ_U64(rows.queues[PARTITIONS].damaged_record_count, 3);
    EXPECT_EQ_U64(census.oldest_slot, 0);
    EXPECT_EQ_U64(rows.holdings[arena->geometry.process_count].held, 2);
    EXPECT_EQ_U64(rows.holdings[arena->geometry.process_count].owned, 2);
    arena_emptied_and_ended(arena, file);
}

TEST_IN_ARENA(geometry_of(SLOTS, 512), a_census_of_an_empty_arena_has_no_oldest_batch)
{
    struct rows rows;
    struct census census = census_of(arena, &rows);
    EXPECT_EQ_U64(census.states[SLOT_FREE], SLOTS);
    EXPECT(census.oldest_slot == NO_SLOT);
}

RUN_ALL()
