/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/buffer_pool.h"

#include "arena/arena_fixture.h"

#include "arena/attach.h"
#include "arena/unfinished_waits.h"
#include "producer/producer_batch.h"

enum { SLOTS = 8, BATCH_SIZE = 512 };

/* ---- helpers ---- */

static uint32_t slots_allocated(struct arena *arena, uint32_t *slots, uint32_t count)
{
    uint32_t got = 0;
    while (got < count && buffer_pool_try_allocate(arena, &slots[got]) == STATUS_OK) {
        got++;
    }
    return got;
}

static void give_back(struct arena *arena, uint32_t slot_index)
{
    buffer_pool_return(arena, &slot_index, 1, NULL);
}

static struct buffer_wait wait_begun(struct arena *arena, uint32_t need)
{
    struct buffer_wait wait = {0};
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, need, &wait, NULL), STATUS_OK);
    return wait;
}

static void take_and_give_back(struct arena *arena, const struct buffer_wait *wait)
{
    uint32_t slots[SLOTS];
    EXPECT_STATUS(buffer_pool_take(arena, wait, slots), STATUS_OK);
    buffer_pool_return(arena, slots, wait->need, NULL);
}

/* ---- the fast path ---- */

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), an_allocation_names_its_owner_and_no_slot_is_given_twice)
{
    uint32_t slots[SLOTS + 1];
    uint64_t seen = 0;
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS + 1), SLOTS);
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint64_t word = slot_word_at(arena, slots[i]);
        EXPECT_EQ_U64(slot_word_state(word), SLOT_OWNED);
        EXPECT_EQ_U64(slot_word_owner(word), arena->owner);
        EXPECT(!slot_word_is_chain(word));
        seen |= UINT64_C(1) << slots[i];
    }
    EXPECT_EQ_U64(seen, LOW_BITS(SLOTS));
    buffer_pool_return(arena, slots, SLOTS, NULL);
    EXPECT_EQ_U64(slot_word_generation(slot_word_at(arena, 3)), 1);
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS);
    buffer_pool_return(arena, slots, SLOTS, NULL);
    expect_all_free(arena);
}

enum { MANY = 200 };

TEST_IN_ARENA(geometry_of(MANY, 100), more_slots_than_one_bitmap_word_are_all_found)
{
    uint32_t slots[MANY + 1];
    EXPECT_EQ_U64(slots_allocated(arena, slots, MANY + 1), MANY);
    give_back(arena, 199);
    EXPECT_EQ_U64(slots_allocated(arena, slots + MANY, 1), 1);
    EXPECT_EQ_U64(slots[MANY], 199);
    buffer_pool_return(arena, slots, MANY, NULL);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_slot_is_scrubbed_as_far_as_it_was_written_before_it_is_free)
{
    uint32_t slot_index = 0;
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_OK);
    memset(arena_slot_data(arena, slot_index), 0xaa, 512);
    store_relaxed_u32(&arena->slots[slot_index].written_end, 512);
    give_back(arena, slot_index);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->slots[slot_index].written_end), 0);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_written_end_past_the_slot_does_not_scrub_other_slots)
{
    uint32_t slots[2];
    EXPECT_EQ_U64(slots_allocated(arena, slots, 2), 2);
    EXPECT_EQ_U64(slots[1], slots[0] + 1);
    memset(arena_slot_data(arena, slots[1]), 0xaa, 512);
    store_relaxed_u32(&arena->slots[slots[1]].written_end, 512);
    store_relaxed_u32(&arena->slots[slots[0]].written_end, UINT32_MAX);
    give_back(arena, slots[0]);
    EXPECT_EQ_U64(arena_slot_data(arena, slots[1])[0], 0xaa);
    give_back(arena, slots[1]);
    expect_all_free(arena);
}

/* ---- the queue ---- */

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_wait_is_granted_at_once_when_a_slot_is_free)
{
    struct wake_set wakes = {0};
    struct buffer_wait wait;
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &wait, &wakes), STATUS_OK);
    EXPECT_EQ_U64(wakes.count, 1);
    EXPECT_EQ_U64(wakes.bits[0], UINT64_C(1) << wait.waiter_index);
    EXPECT_STATUS(buffer_pool_poll(arena, &wait), STATUS_OK);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 1);
    EXPECT_STATUS(buffer_pool_take(arena, &wait, &slot_index), STATUS_OK);
    EXPECT_EQ_U64(slot_word_owner(slot_word_at(arena, slot_index)), arena->owner);
    EXPECT_STATUS(buffer_pool_poll(arena, &wait), STATUS_STALE);
    EXPECT_STATUS(buffer_pool_take(arena, &wait, &slot_index), STATUS_STALE);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_WAITS), 1);
    give_back(arena, slot_index);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), the_waiter_with_the_longest_wait_is_served_first_and_no_process_passes_it)
{
    struct arena *others[3];
    struct buffer_wait waits[3];
    uint32_t slots[SLOTS];
    uint32_t slot_index;
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS);
    for (int i = 0; i < 3; i++) {
        others[i] = arena_attached(file);
        waits[i] = wait_begun(others[i], 1);
        EXPECT_STATUS(buffer_pool_poll(others[i], &waits[i]), STATUS_EXHAUSTED);
    }
    for (int i = 0; i < 3; i++) {
        struct wake_set wakes = {0};
        buffer_pool_return(arena, &slots[i], 1, &wakes);
        EXPECT_EQ_U64(wakes.bits[0], UINT64_C(1) << waits[i].waiter_index);
        EXPECT_STATUS(buffer_pool_poll(others[i], &waits[i]), STATUS_OK);
        EXPECT_STATUS(i < 2 ? buffer_pool_poll(others[i + 1], &waits[i + 1]) : STATUS_EXHAUSTED, STATUS_EXHAUSTED);
        EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_EXHAUSTED);
    }
    for (int i = 0; i < 3; i++) {
        take_and_give_back(others[i], &waits[i]);
        arena_detach(others[i]);
    }
    buffer_pool_return(arena, slots + 3, SLOTS - 3, NULL);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_free_slot_does_not_go_to_a_new_process_while_another_waits)
{
    uint32_t slots[SLOTS];
    uint32_t slot_index;
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS - 1), SLOTS - 1);
    struct buffer_wait wait = wait_begun(arena, 3);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 1);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_EXHAUSTED);
    give_back(arena, slots[0]);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_EXHAUSTED);
    give_back(arena, slots[1]);
    EXPECT_STATUS(buffer_pool_poll(arena, &wait), STATUS_OK);
    take_and_give_back(arena, &wait);
    buffer_pool_return(arena, slots + 2, SLOTS - 3, NULL);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), needs_that_can_never_be_met_are_refused)
{
    struct buffer_wait wait;
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 0, &wait, NULL), STATUS_INVALID);
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, SLOTS / 2 + 1, &wait, NULL), STATUS_RECORD_TOO_LARGE);
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, UINT32_MAX, &wait, NULL), STATUS_RECORD_TOO_LARGE);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->waiting_count), 0);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), when_every_waiter_entry_is_taken_the_next_waiter_gets_an_error)
{
    struct buffer_wait waits[8];
    struct buffer_wait one_more;
    uint32_t slots[SLOTS];
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS);
    for (int i = 0; i < 8; i++) {
        waits[i] = wait_begun(arena, 1);
    }
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &one_more, NULL), STATUS_NO_WAITER);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->waiting_count), 8);
    buffer_pool_return(arena, slots, SLOTS, NULL);
    for (int i = 0; i < 8; i++) {
        take_and_give_back(arena, &waits[i]);
    }
    expect_all_free(arena);
}

/* ---- cancel ---- */

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), the_grants_of_a_cancelled_wait_go_to_the_next_waiter)
{
    uint32_t slots[SLOTS];
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS - 2), SLOTS - 2);
    struct buffer_wait large = wait_begun(arena, 4);
    struct buffer_wait small = wait_begun(arena, 1);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 2);
    EXPECT_STATUS(buffer_pool_poll(arena, &small), STATUS_EXHAUSTED);
    struct wake_set wakes = {0};
    EXPECT_STATUS(buffer_pool_leave(arena, &large, (uint32_t[8]){0}, &wakes), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(wakes.bits[0], UINT64_C(1) << small.waiter_index);
    EXPECT_STATUS(buffer_pool_poll(arena, &small), STATUS_OK);
    EXPECT_STATUS(buffer_pool_leave(arena, &large, (uint32_t[8]){0}, NULL), STATUS_STALE);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->oversized_bytes), 0);
    take_and_give_back(arena, &small);
    buffer_pool_return(arena, slots, SLOTS - 2, NULL);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_cancel_after_the_grant_reports_that_the_process_has_the_slots)
{
    struct buffer_wait wait = wait_begun(arena, 2);
    uint32_t slots[SLOTS];
    EXPECT_STATUS(buffer_pool_leave(arena, &wait, slots, NULL), STATUS_OK);
    buffer_pool_return(arena, slots, wait.need, NULL);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), no_process_polls_or_cancels_the_wait_of_another)
{
    struct arena *other = arena_attached(file);
    uint32_t slot_index;
    struct buffer_wait wait = wait_begun(arena, 1);
    EXPECT_STATUS(buffer_pool_poll(other, &wait), STATUS_STALE);
    EXPECT_STATUS(buffer_pool_leave(other, &wait, (uint32_t[8]){0}, NULL), STATUS_STALE);
    EXPECT_STATUS(buffer_pool_take(other, &wait, &slot_index), STATUS_STALE);
    take_and_give_back(arena, &wait);
    arena_detach(other);
    expect_all_free(arena);
}

/* ---- oversized ---- */

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), slots_for_an_oversized_record_are_counted_while_they_are_held)
{
    uint32_t slots[3];
    struct buffer_wait wait = wait_begun(arena, 3);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->oversized_bytes), (uint64_t)3 * BATCH_SIZE);
    EXPECT_STATUS(buffer_pool_take(arena, &wait, slots), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        EXPECT(slot_word_is_chain(slot_word_at(arena, slots[i])));
    }
    buffer_pool_repair(arena); /* this call counts again */
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->oversized_bytes), (uint64_t)3 * BATCH_SIZE);
    buffer_pool_return(arena, slots, 3, NULL);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->oversized_bytes), 0);
    expect_all_free(arena);
}

TEST(the_cap_on_oversized_slots_blocks_only_the_oversized)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(SLOTS, BATCH_SIZE)); /* cap: 4 */
    uint32_t slots[3];
    struct buffer_wait first = wait_begun(arena, 3);
    EXPECT_STATUS(buffer_pool_take(arena, &first, slots), STATUS_OK);
    struct buffer_wait second = wait_begun(arena, 2);
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_poll(arena, &second), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 0);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_EXHAUSTED); /* although slots are free */
    struct buffer_wait third = wait_begun(arena, 2);
    struct buffer_wait normal = wait_begun(arena, 1);
    EXPECT_STATUS(buffer_pool_poll(arena, &normal), STATUS_OK);
    take_and_give_back(arena, &normal);
    buffer_pool_return(arena, slots, 3, NULL);
    EXPECT_STATUS(buffer_pool_poll(arena, &second), STATUS_OK);
    EXPECT_STATUS(buffer_pool_poll(arena, &third), STATUS_OK); /* 2 + 2 slots are the cap */
    take_and_give_back(arena, &second);
    take_and_give_back(arena, &third);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE),
              only_the_first_oversized_waiter_gathers_so_two_halves_never_wait_for_each_other)
{
    uint32_t slots[SLOTS];
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS);
    struct buffer_wait first = wait_begun(arena, 2);
    struct buffer_wait second = wait_begun(arena, 2);
    give_back(arena, slots[0]);
    give_back(arena, slots[1]);
    EXPECT_STATUS(buffer_pool_poll(arena, &first), STATUS_OK);
    EXPECT_STATUS(buffer_pool_poll(arena, &second), STATUS_EXHAUSTED);
    give_back(arena, slots[2]);
    EXPECT_STATUS(buffer_pool_poll(arena, &second), STATUS_EXHAUSTED);
    give_back(arena, slots[3]);
    EXPECT_STATUS(buffer_pool_poll(arena, &second), STATUS_OK);
    take_and_give_back(arena, &first);
    take_and_give_back(arena, &second);
    buffer_pool_return(arena, slots + 4, SLOTS - 4, NULL);
    expect_all_free(arena);
}

/* ---- repair after the dead ---- */

static void run_allocate_two(struct arena *arena, void *unused)
{
    (void)unused;
    uint32_t slots[2];
    EXPECT_EQ_U64(slots_allocated(arena, slots, 2), 2);
    memset(arena_slot_data(arena, slots[0]), 0xaa, 400);
    store_relaxed_u32(&arena->slots[slots[0]].written_end, 400);
    raise(SIGKILL);
}

static void run_wait_for_three(struct arena *arena, void *unused)
{
    (void)unused;
    (void)wait_begun(arena, 3);
    raise(SIGKILL);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), slots_owned_by_or_granted_to_a_dead_process_become_free)
{
    EXPECT(child_was_killed(child_started(file, run_allocate_two, NULL, NULL, 0)));
    EXPECT(child_was_killed(child_started(file, run_wait_for_three, NULL, NULL, 0)));
    buffer_pool_repair(arena);
    EXPECT(counter_value(arena, COUNTER_SLOTS_REPAIRED) >= 5);
    expect_all_free(arena);
}

static void run_wait_for_one(struct arena *arena, void *unused)
{
    (void)unused;
    (void)wait_begun(arena, 1);
}

/* The previous helper died while it had the lock, between the grant and the update of the waiter's list. */
TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_process_that_steals_the_pool_lock_repairs_first)
{
    uint32_t slots[SLOTS];
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS - 1), SLOTS - 1);
    EXPECT(child_was_killed(child_started(file, run_wait_for_one, NULL, "slot_granted", SIGKILL)));
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 1);
    struct buffer_wait wait = wait_begun(arena, 1);
    EXPECT_STATUS(buffer_pool_poll(arena, &wait), STATUS_OK);
    take_and_give_back(arena, &wait);
    buffer_pool_return(arena, slots, SLOTS - 1, NULL);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), repair_does_not_touch_slots_of_living_processes)
{
    struct arena *other = arena_attached(file);
    uint32_t slots[2];
    EXPECT_EQ_U64(slots_allocated(other, slots, 2), 2);
    struct buffer_wait wait = wait_begun(other, 3);
    buffer_pool_repair(arena);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_OWNED), 2);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 3);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_SLOTS_REPAIRED), 0);
    EXPECT_STATUS(buffer_pool_poll(other, &wait), STATUS_OK);
    take_and_give_back(other, &wait);
    buffer_pool_return(other, slots, 2, NULL);
    arena_detach(other);
    expect_all_free(arena);
}

/* Repair frees a slot whose word no living process could have left. */
static void expect_repaired(uint64_t payload, enum slot_state state)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(SLOTS, BATCH_SIZE));
    store_release_u64(&arena->slots[5].word, slot_word(state, 7, payload));
    and_bits_u64(&arena->free_hints[0], ~(UINT64_C(1) << 5));
    buffer_pool_repair(arena);
    EXPECT_EQ_U64(slot_word_at(arena, 5), slot_word(SLOT_FREE, 8, 0));
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(impossible_words_are_repaired)
{
    expect_repaired(0, SLOT_OWNED);
    expect_repaired(LOW_BITS(43), SLOT_OWNED);
    expect_repaired(slot_payload_owned(owner_of(0, 77), false), SLOT_OWNED);
    expect_repaired(slot_payload_owned(owner_of(9, 0), true), SLOT_OWNED);
    expect_repaired(slot_payload_grant(0, 0), SLOT_GRANT);
    expect_repaired(LOW_BITS(43), SLOT_GRANT);
    expect_repaired(slot_payload_cont(5, 7), SLOT_CONT);
    expect_repaired(slot_payload_cont(3, 0), SLOT_CONT);
    expect_repaired(LOW_BITS(43), SLOT_CONT);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_grant_of_an_older_ticket_is_void)
{
    struct buffer_wait old = wait_begun(arena, 1);
    take_and_give_back(arena, &old);
    struct buffer_wait wait = wait_begun(arena, 1);
    EXPECT_EQ_U64(wait.waiter_index, old.waiter_index);
    EXPECT(wait.ticket != old.ticket);
    uint64_t old_grant = slot_payload_grant(old.waiter_index, old.ticket);
    store_release_u64(&arena->slots[7].word, slot_word(SLOT_GRANT, 0, old_grant));
    buffer_pool_repair(arena);
    EXPECT_EQ_U64(slot_state_at(arena, 7), SLOT_FREE);
    EXPECT_STATUS(buffer_pool_poll(arena, &wait), STATUS_OK);
    take_and_give_back(arena, &wait);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), lost_hints_and_wrong_counts_are_rebuilt)
{
    uint32_t slots[SLOTS];
    store_relaxed_u64(&arena->free_hints[0], 0);
    store_relaxed_u64(&arena->globals->oversized_bytes, 77);
    store_relaxed_u32(&arena->globals->waiting_count, 5);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, slots), STATUS_EXHAUSTED);
    buffer_pool_help(arena, NULL);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->oversized_bytes), 0);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->waiting_count), 0);
    expect_all_free(arena);
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS);
    buffer_pool_return(arena, slots, SLOTS, NULL);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), hints_that_promise_too_much_are_harmless)
{
    uint32_t slots[SLOTS + 1];
    store_relaxed_u64(&arena->free_hints[0], UINT64_MAX);
    store_relaxed_u32(&arena->globals->free_scan_hint, UINT32_MAX);
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS + 1), SLOTS);
    store_relaxed_u64(&arena->free_hints[0], UINT64_MAX);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slots[SLOTS]), STATUS_EXHAUSTED);
    buffer_pool_return(arena, slots, SLOTS, NULL);
    expect_all_free(arena);
}

/* Passes every point of the pool's protocol. */
static void run_everything(struct arena *arena, void *unused)
{
    (void)unused;
    uint32_t slots[SLOTS];
    uint32_t count = slots_allocated(arena, slots, SLOTS);
    struct buffer_wait wait = wait_begun(arena, 2);
    struct buffer_wait other = wait_begun(arena, 3);
    give_back(arena, slots[0]);
    EXPECT_STATUS(buffer_pool_leave(arena, &wait, (uint32_t[8]){0}, NULL), STATUS_EXHAUSTED);
    buffer_pool_return(arena, slots + 1, count - 1, NULL);
    take_and_give_back(arena, &other);
}

static const char *const pool_points[] = {"waiting_count_raised", "slot_granted", "grant_taken",
                                          "wait_cancelled",       "slot_scrubbed", "slot_freed"};

TEST(a_process_killed_at_any_point_costs_nothing)
{
    for (uint32_t i = 0; i < COUNT_OF(pool_points); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOTS, BATCH_SIZE));
        pid_t child = child_started(file, run_everything, NULL, pool_points[i], SIGKILL);
        EXPECT_OR_SAY(child_was_killed(child), "%s was not reached", pool_points[i]);
        buffer_pool_repair(arena);
        expect_all_free(arena);
        arena_end(arena, file);
    }
}

TEST(a_waiter_s_own_help_is_enough_to_survive_any_death)
{
    for (uint32_t i = 0; i < COUNT_OF(pool_points); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOTS, BATCH_SIZE));
        pid_t child = child_started(file, run_everything, NULL, pool_points[i], SIGSTOP);
        EXPECT(child_is_stopped(child));
        EXPECT(child_kill(child));
        struct buffer_wait wait = wait_begun(arena, 4);
        for (int slice = 0; slice < 3 && buffer_pool_poll(arena, &wait) == STATUS_EXHAUSTED; slice++) {
            buffer_pool_help(arena, NULL);
        }
        EXPECT_STATUS(buffer_pool_poll(arena, &wait), STATUS_OK);
        take_and_give_back(arena, &wait);
        expect_all_free(arena);
        arena_end(arena, file);
    }
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_stopped_holder_of_the_pool_lock_loses_nothing)
{
    pid_t child = child_started(file, run_everything, NULL, "slot_granted", SIGSTOP);
    uint32_t slot_index;
    EXPECT(child_is_stopped(child));
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 1);
    EXPECT(child_finishes(child));
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 0);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_PASSED), 0);
    expect_all_free(arena);
}

/* When it is stopped, no slot is free. When it continues, slots are. */
static void run_wait(struct arena *arena, void *unused)
{
    (void)unused;
    struct buffer_wait wait = wait_begun(arena, 1);
    take_and_give_back(arena, &wait);
}

/* It owns a chain of 2 slots and all other slots, and waits for one more. Another process is stopped with the lock. */
TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), no_call_waits_for_a_stopped_holder_of_the_pool_lock)
{
    uint32_t chain[2];
    uint32_t slots[SLOTS];
    struct buffer_wait taken = wait_begun(arena, 2);
    EXPECT_STATUS(buffer_pool_take(arena, &taken, chain), STATUS_OK);
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS - 2);
    struct buffer_wait queued = wait_begun(arena, 1);
    pid_t child = child_started(file, run_wait, NULL, "waiter_parked", SIGSTOP);
    EXPECT(child_is_stopped(child));
    EXPECT_EQ_U64(buffer_pool_lock_keeper(arena), 0); /* it was not refused yet */

    struct buffer_wait other = {0};
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &other, NULL), STATUS_BUSY);
    EXPECT_EQ_U64(owner_index(buffer_pool_lock_keeper(arena)), 1);
    EXPECT(!buffer_pool_help(arena, NULL));
    EXPECT(!buffer_pool_repair(arena));
    EXPECT(buffer_pool_return(arena, slots, SLOTS - 2, NULL)); /* the sender frees slots without the lock, too */
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_FREE), SLOTS - 2);
    buffer_pool_wait_on(arena, &queued, NULL);
    EXPECT_STATUS(buffer_pool_take(arena, &queued, slots), STATUS_EXHAUSTED);
    EXPECT(!buffer_pool_return(arena, chain, 2, NULL));
    wait_end(arena, &queued, slots, 0, NULL);
    wait_end(arena, &taken, chain, 2, NULL);
    unfinished_waits_end(arena, NULL);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_OWNED), 2);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_REFUSED), 1); /* only the first call waited */

    EXPECT(child_finishes(child));
    EXPECT_EQ_U64(buffer_pool_lock_keeper(arena), 0);
    unfinished_waits_end(arena, NULL);
    EXPECT(arena->unfinished_waits == NULL);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->waiting_count), 0);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 0);
    expect_all_free(arena);
}

static pid_t stopped_holder;
static struct arena *shared_arena;

/* The first sleep of a wait for the pool lock. Meanwhile the holder continues, and another thread ends the waits. */
static void *end_waits_in_another_thread(void)
{
    if (stopped_holder != 0) {
        EXPECT(child_finishes(stopped_holder));
        stopped_holder = 0;
        unfinished_waits_end(shared_arena, NULL);
    }
    return NULL;
}

static void end_sleep(void *state)
{
    (void)state;
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), two_threads_end_a_wait_once)
{
    uint32_t slots[SLOTS];
    uint32_t granted;
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS);
    struct buffer_wait wait = wait_begun(arena, 1);
    pid_t child = child_started(file, run_wait, NULL, "waiter_parked", SIGSTOP);
    EXPECT(child_is_stopped(child));
    wait_end(arena, &wait, &granted, 0, NULL);
    EXPECT(arena->unfinished_waits != NULL);
    EXPECT(buffer_pool_return(arena, slots, SLOTS, NULL));
    EXPECT(child_finishes(child));

    stopped_holder = child_started(file, run_wait, NULL, "waiter_parked", SIGSTOP);
    EXPECT(child_is_stopped(stopped_holder));
    shared_arena = arena;
    arena->blocking = (struct blocking_hooks){.begin = end_waits_in_another_thread, .end = end_sleep};
    unfinished_waits_end(arena, NULL);
    EXPECT(stopped_holder == 0);
    EXPECT(arena->unfinished_waits == NULL);
    expect_all_free(arena);
}

/* The holder grants a slot to the wait when it continues. */
TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), a_process_that_left_without_the_pool_lock_is_repaired_as_a_dead_one)
{
    uint32_t slots[SLOTS];
    uint32_t granted;
    struct arena *leaving = arena_attached(file);
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS);
    struct buffer_wait wait = wait_begun(leaving, 1);
    pid_t child = child_started(file, run_wait, NULL, "waiter_parked", SIGSTOP);
    EXPECT(child_is_stopped(child));
    wait_end(leaving, &wait, &granted, 0, NULL);
    arena_detach(leaving);
    EXPECT(buffer_pool_return(arena, slots, SLOTS, NULL));
    EXPECT(child_finishes(child));
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 1);

    arena_detach(arena_attached(file)); /* in the same entry */
    expect_all_free(arena);
}

static void run_fill_the_queue(struct arena *arena, void *unused)
{
    (void)unused;
    uint32_t slots[SLOTS];
    EXPECT_EQ_U64(slots_allocated(arena, slots, SLOTS), SLOTS);
    for (int i = 0; i < 8; i++) {
        (void)wait_begun(arena, 1);
    }
    raise(SIGKILL);
}

TEST_IN_ARENA(geometry_of(SLOTS, BATCH_SIZE), waiter_entries_of_dead_processes_are_reused)
{
    EXPECT(child_was_killed(child_started(file, run_fill_the_queue, NULL, NULL, 0)));
    struct buffer_wait wait = wait_begun(arena, 1);
    take_and_give_back(arena, &wait);
    buffer_pool_repair(arena);
    expect_all_free(arena);
}

RUN_ALL()
