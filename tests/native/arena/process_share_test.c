/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/process_share.h"

#include "core/planting.h"

#include "arena/attach.h"
#include "arena/registry.h"
#include "core/accumulator.h"
#include "producer/producer_batch_append.h"

enum { SLOTS = 8, SHARE = 3 };

/* ---- helpers ---- */

static struct arena *shared_arena(int file)
{
    struct geometry geometry = geometry_of(SLOTS, 512);
    geometry.process_slot_count_max = SHARE;
    return arena_created(file, geometry);
}

static uint32_t slots_allocated(struct arena *arena, uint32_t *slots, uint32_t count)
{
    uint32_t got = 0;
    while (got < count && buffer_pool_try_allocate(arena, &slots[got]) == STATUS_OK) {
        got++;
    }
    return got;
}

/* Allocate a slot through the queue. This path counts the process's slots. */
static enum status slot_waited_for(struct arena *arena, uint32_t *slot_index)
{
    struct buffer_wait wait = {0};
    RETURN_IF_FAILED(buffer_pool_enqueue(arena, NO_PARTITION, 1, &wait, NULL));
    EXPECT_STATUS(buffer_pool_poll(arena, &wait), STATUS_OK);
    return buffer_pool_take(arena, &wait, slot_index);
}

/* Make the slot an open batch of a partition, as an append does. */
static void batch_opened(struct arena *arena, uint32_t slot_index, uint32_t partition_index)
{
    struct partition_hold hold;
    bool is_spare_kept;
    partition_lock(arena, partition_index, &hold);
    EXPECT_STATUS(producer_batch_open(arena, &hold, slot_index, 1, &is_spare_kept), STATUS_OK);
    partition_unlock(arena, &hold);
}

static void batch_ended(struct arena *arena, uint32_t slot_index)
{
    uint64_t word = slot_word_at(arena, slot_index);
    store_seq_cst_u64(&arena->slots[slot_index].word, slot_word_with_state(word, SLOT_DONE));
    buffer_pool_free(arena, slot_index, NULL);
}

/* ---- the limit ---- */

TEST(a_process_holds_its_share_and_no_more)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    struct arena *other = arena_attached(file);
    uint32_t mine[SLOTS];
    uint32_t others[SLOTS];
    uint32_t more;
    EXPECT_EQ_U64(slots_allocated(arena, mine, SLOTS), SHARE);
    EXPECT_STATUS(slot_waited_for(arena, &more), STATUS_SHARE_USED);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_SHARES_USED), 1);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->waiting_count), 0);
    EXPECT_EQ_U64(slots_allocated(other, others, SLOTS), SHARE);
    buffer_pool_return(arena, mine, SHARE, NULL);
    EXPECT_EQ_U64(slots_allocated(arena, mine, SLOTS), SHARE);
    buffer_pool_return(arena, mine, SHARE, NULL);
    buffer_pool_return(other, others, SHARE, NULL);
    arena_detach(other);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST_IN_ARENA(geometry_of(SLOTS, 512), without_a_limit_one_process_may_have_all)
{
    uint32_t mine[SLOTS];
    EXPECT_EQ_U64(slots_allocated(arena, mine, SLOTS), SLOTS);
    buffer_pool_return(arena, mine, SLOTS, NULL);
}

TEST(a_slot_that_the_sender_frees_is_found_by_the_next_check)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    struct arena *sender = arena_attached(file);
    uint32_t mine[SHARE];
    EXPECT_EQ_U64(slots_allocated(arena, mine, SHARE), SHARE);
    for (uint32_t i = 0; i < SHARE; i++) {
        batch_opened(arena, mine[i], i);
        EXPECT_EQ_U64(process_share_held(arena), SHARE);
    }
    batch_ended(sender, mine[0]);
    batch_ended(sender, mine[1]);
    EXPECT_EQ_U64(process_share_held(arena), 1);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &mine[0]), STATUS_EXHAUSTED); /* the fast path does not count slots */
    EXPECT_STATUS(slot_waited_for(arena, &mine[0]), STATUS_OK);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &mine[1]), STATUS_OK); /* the failed check has freed the slot */
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &mine[1]), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(process_share_held(arena), SHARE);
    buffer_pool_return(arena, mine, 2, NULL);
    batch_ended(sender, mine[2]);
    arena_detach(sender);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(a_process_that_has_used_its_share_seals_its_open_batches)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    struct arena *other = arena_attached(file);
    uint32_t mine[SHARE];
    uint32_t others;
    uint32_t more;
    EXPECT_EQ_U64(slots_allocated(arena, mine, SHARE), SHARE);
    EXPECT_EQ_U64(slots_allocated(other, &others, 1), 1);
    batch_opened(arena, mine[0], 0);
    batch_opened(other, others, 1);
    EXPECT_STATUS(slot_waited_for(arena, &more), STATUS_SHARE_USED);
    producer_batch_seal_own(arena);
    EXPECT_EQ_U64(slot_state_at(arena, mine[0]), SLOT_DONE); /* it was sealed without a record */
    EXPECT_EQ_U64(slot_state_at(arena, others), SLOT_OPEN);
    batch_ended(arena, mine[0]);
    batch_ended(other, others);
    buffer_pool_return(arena, &mine[1], 2, NULL);
    arena_detach(other);
    expect_all_free(arena);
    arena_end(arena, file);
}

/* ---- the queue ---- */

TEST(a_process_in_the_queue_counts_the_slots_for_which_it_waits)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    struct arena *hoarder = arena_attached(file);
    struct arena *second = arena_attached(file);
    uint32_t all[SLOTS];
    struct buffer_wait waits[SHARE];
    struct buffer_wait one_more;
    uint32_t slot_index;
    EXPECT_EQ_U64(slots_allocated(hoarder, all, SHARE), SHARE);
    EXPECT_EQ_U64(slots_allocated(second, all + SHARE, SHARE), SHARE);
    for (uint32_t i = 0; i < SHARE; i++) { /* two of them are granted at once */
        EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &waits[i], NULL), STATUS_OK);
    }
    EXPECT_STATUS(buffer_pool_poll(arena, &waits[2]), STATUS_EXHAUSTED);
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &one_more, NULL), STATUS_SHARE_USED);
    EXPECT_STATUS(buffer_pool_leave(arena, &waits[2], (uint32_t[8]){0}, NULL), STATUS_EXHAUSTED);
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &waits[2], NULL), STATUS_OK);
    EXPECT_STATUS(buffer_pool_leave(arena, &waits[2], (uint32_t[8]){0}, NULL), STATUS_EXHAUSTED);
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT_STATUS(buffer_pool_take(arena, &waits[i], &slot_index), STATUS_OK);
        buffer_pool_return(arena, &slot_index, 1, NULL);
    }
    buffer_pool_return(hoarder, all, SHARE, NULL);
    buffer_pool_return(second, all + SHARE, SHARE, NULL);
    arena_detach(second);
    arena_detach(hoarder);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(a_process_at_its_share_delays_no_other_in_the_queue)
{
    int file = arena_file_new();
    struct arena *greedy = shared_arena(file);
    struct arena *others[2] = {arena_attached(file), arena_attached(file)};
    struct arena *modest = arena_attached(file);
    uint32_t slots[3][SHARE];
    struct buffer_wait refused;
    struct buffer_wait wait;
    uint32_t last[2];
    EXPECT_EQ_U64(slots_allocated(greedy, slots[0], SHARE), SHARE);
    EXPECT_EQ_U64(slots_allocated(others[0], slots[1], SHARE), SHARE);
    EXPECT_EQ_U64(slots_allocated(others[1], last, 2), 2);
    EXPECT_STATUS(buffer_pool_enqueue(greedy, NO_PARTITION, 1, &refused, NULL), STATUS_SHARE_USED);
    EXPECT_STATUS(buffer_pool_enqueue(modest, NO_PARTITION, 1, &wait, NULL), STATUS_OK);
    buffer_pool_return(others[1], &last[0], 1, NULL);
    EXPECT_STATUS(buffer_pool_poll(modest, &wait), STATUS_OK);
    EXPECT_STATUS(buffer_pool_take(modest, &wait, &last[0]), STATUS_OK);
    buffer_pool_return(modest, &last[0], 1, NULL);
    buffer_pool_return(others[1], &last[1], 1, NULL);
    buffer_pool_return(others[0], slots[1], SHARE, NULL);
    buffer_pool_return(greedy, slots[0], SHARE, NULL);
    arena_detach(modest);
    arena_detach(others[0]);
    arena_detach(others[1]);
    expect_all_free(greedy);
    arena_end(greedy, file);
}

TEST(more_than_the_share_can_never_be_had)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    struct buffer_wait wait;
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, SHARE + 1, &wait, NULL), STATUS_RECORD_TOO_LARGE);
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, SHARE, &wait, NULL), STATUS_OK);
    uint32_t slots[SHARE];
    EXPECT_STATUS(buffer_pool_take(arena, &wait, slots), STATUS_OK);
    EXPECT_EQ_U64(process_share_held(arena), SHARE);
    buffer_pool_return(arena, slots, SHARE, NULL);
    EXPECT_EQ_U64(process_share_held(arena), 0);
    arena_end(arena, file);
}

TEST(every_slot_of_an_oversized_record_counts_until_it_is_freed)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    struct arena *sender = arena_attached(file);
    uint32_t head = chain_plant(arena);
    uint32_t slot_index;
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_CONT), SHARE - 1);
    EXPECT_EQ_U64(process_share_held(arena), SHARE);
    EXPECT_STATUS(slot_waited_for(arena, &slot_index), STATUS_SHARE_USED);
    batch_ended(sender, head);
    EXPECT_EQ_U64(process_share_held(arena), 0);
    EXPECT_STATUS(slot_waited_for(arena, &slot_index), STATUS_OK);
    buffer_pool_return(arena, &slot_index, 1, NULL);
    arena_detach(sender);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(granted_and_taken_slots_no_longer_count_as_awaited)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    uint32_t mine[SHARE];
    for (int round = 0; round < SHARE; round++) { /* each check must count every slot once */
        for (uint32_t i = 0; i < SHARE; i++) {
            EXPECT_STATUS(slot_waited_for(arena, &mine[i]), STATUS_OK);
        }
        buffer_pool_return(arena, mine, SHARE, NULL);
    }
    EXPECT_EQ_U64(arena->awaited_slot_count, 0);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(a_process_that_stopped_waiting_may_allocate_without_a_check)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    struct arena *others[2] = {arena_attached(file), arena_attached(file)};
    uint32_t theirs[2][SHARE];
    uint32_t mine[SHARE];
    struct buffer_wait wait;
    EXPECT_EQ_U64(slots_allocated(others[0], theirs[0], SHARE), SHARE);
    EXPECT_EQ_U64(slots_allocated(others[1], theirs[1], SHARE), SHARE);
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, SHARE, &wait, NULL), STATUS_OK);
    EXPECT_STATUS(buffer_pool_leave(arena, &wait, (uint32_t[8]){0}, NULL), STATUS_EXHAUSTED);
    buffer_pool_return(others[0], theirs[0], SHARE, NULL);
    EXPECT_EQ_U64(slots_allocated(arena, mine, SHARE), SHARE);
    buffer_pool_return(arena, mine, SHARE, NULL);
    buffer_pool_return(others[1], theirs[1], SHARE, NULL);
    arena_detach(others[0]);
    arena_detach(others[1]);
    expect_all_free(arena);
    arena_end(arena, file);
}

/* ---- deaths ---- */

static void use_up(struct arena *arena, void *point)
{
    uint32_t slots[SHARE];
    EXPECT_EQ_U64(slots_allocated(arena, slots, SHARE), SHARE);
    batch_opened(arena, slots[0], 0);
    batch_opened(arena, slots[1], 1);
    (void)point;
    raise(SIGKILL);
}

TEST(the_successor_of_a_killed_process_begins_with_nothing)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    EXPECT(child_was_killed(child_started(file, use_up, NULL, NULL, 0)));
    struct arena *successor = arena_attached(file);
    EXPECT_EQ_U64(successor->entry_index, 1);
    EXPECT_EQ_U64(process_share_held(successor), 0);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_OPEN), 2); /* the batches of the dead process wait to be sent */
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_OWNED), 0);
    uint32_t slots[SLOTS];
    EXPECT_EQ_U64(slots_allocated(successor, slots, SLOTS), SHARE);
    buffer_pool_return(successor, slots, SHARE, NULL);
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (slot_state_at(arena, i) == SLOT_OPEN) {
            batch_ended(arena, i);
        }
    }
    arena_detach(successor);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(a_forked_child_has_a_share_of_its_own)
{
    int file = arena_file_new();
    struct arena *arena = shared_arena(file);
    uint32_t slots[SHARE];
    EXPECT_EQ_U64(slots_allocated(arena, slots, SHARE), SHARE);
    pid_t child = child_forked();
    if (child == 0) {
        uint32_t own[SHARE];
        struct error error;
        EXPECT_STATUS(arena_ensure_attached(arena, &error), STATUS_OK);
        EXPECT_EQ_U64(slots_allocated(arena, own, SHARE), SHARE);
        buffer_pool_return(arena, own, SHARE, NULL);
        _exit(testing_exit_code());
    }
    EXPECT(child_is_content(child));
    buffer_pool_return(arena, slots, SHARE, NULL);
    buffer_pool_repair(arena);
    expect_all_free(arena);
    arena_end(arena, file);
}

RUN_ALL()
