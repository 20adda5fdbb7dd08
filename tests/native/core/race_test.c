/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that act as processes, each with its own entry and lock descriptor, on one mapping, so that the thread
 * sanitizer finds races between processes. These tests cover the buffer pool and the seal; journey_test.c covers all
 * steps of a record.
 */
/* runs under: tsan */
#include "core/delivery_fixture.h"

#include <pthread.h>
#include <sched.h>

#include "arena/attach.h"
#include "arena/batch_seal.h"
#include "producer/producer_batch.h"

enum { BATCH_SIZE = 512, MEMBER_COUNT = 4, ROUND_COUNT = 400 };

struct member {
    struct arena *arena;
    uint32_t position;
};

struct crowd {
    int file;
    struct arena *arena;
    struct member members[MEMBER_COUNT];
    pthread_t threads[MEMBER_COUNT];
};

/* The crowd must not move, because its members point into it. */
static void crowd_start(struct crowd *crowd, uint32_t slot_count, void *(*run)(void *member))
{
    crowd->file = arena_file_new();
    crowd->arena = arena_created(crowd->file, geometry_of(slot_count, BATCH_SIZE));
    for (uint32_t i = 0; i < MEMBER_COUNT; i++) {
        crowd->members[i] =
            (struct member){.arena = arena_attached_for_thread(crowd->file, crowd->arena), .position = i};
    }
    for (uint32_t i = 0; i < MEMBER_COUNT; i++) {
        EXPECT_EQ_U64((uint64_t)pthread_create(&crowd->threads[i], NULL, run, &crowd->members[i]), 0);
    }
}

static void crowd_join(struct crowd *crowd)
{
    for (uint32_t i = 0; i < MEMBER_COUNT; i++) {
        pthread_join(crowd->threads[i], NULL);
        arena_detach(crowd->members[i].arena);
    }
}

/* ---- the buffer pool ---- */

static void allocate_waiting(struct arena *arena, uint32_t need, uint32_t *slots)
{
    struct buffer_wait wait;
    if (need == 1 && buffer_pool_try_allocate(arena, slots) == STATUS_OK) {
        return;
    }
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, need, &wait, NULL), STATUS_OK);
    while (buffer_pool_poll(arena, &wait) == STATUS_EXHAUSTED) {
        sched_yield();
    }
    EXPECT_STATUS(buffer_pool_take(arena, &wait, slots), STATUS_OK);
}

/* Write the process's name into each slot, and check that it stays there. */
static void expect_slots_private(struct arena *arena, const uint32_t *slots, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *name = (uint32_t *)(void *)arena_slot_data(arena, slots[i]);
        EXPECT_EQ_U64(*name, 0);
        *name = arena->owner;
        store_relaxed_u32(&arena->slots[slots[i]].written_end, sizeof *name);
        if (slots[i] % 3 == 0) {
            sched_yield();
        }
        EXPECT_EQ_U64(*name, arena->owner);
    }
}

/* Half of the members need two slots at a time, and there are four. */
static void *allocate_and_give_back(void *argument)
{
    const struct member *member = argument;
    uint32_t need = 1 + member->position % 2;
    for (int round = 0; round < ROUND_COUNT; round++) {
        uint32_t slots[2];
        allocate_waiting(member->arena, need, slots);
        expect_slots_private(member->arena, slots, need);
        buffer_pool_return(member->arena, slots, need, NULL);
    }
    return NULL;
}

TEST(members_who_share_too_few_slots_never_share_one_and_all_come_to_an_end)
{
    struct crowd crowd = {0};
    crowd_start(&crowd, 4, allocate_and_give_back);
    crowd_join(&crowd);
    expect_all_free(crowd.arena);
    arena_end(crowd.arena, crowd.file);
}

/* ---- a seal racing with appends ---- */

struct sealer {
    struct arena *arena;
    atomic_u32 is_over;
};

/* After a seal has succeeded, count and size must not change until the slot has another batch. */
static void seal_and_expect_final(struct arena *arena, uint32_t slot_index, uint64_t open)
{
    if (!batch_seal(arena, slot_index, open)) {
        return;
    }
    sched_yield();
    uint64_t word = slot_word_at(arena, slot_index);
    if (slot_word_generation(word) == slot_word_generation(open)) {
        EXPECT(slot_word_state(word) == SLOT_READY || slot_word_state(word) == SLOT_DONE);
        EXPECT_EQ_U64(slot_word_count(word), slot_word_count(open));
        EXPECT_EQ_U64(slot_word_size(word), slot_word_size(open));
    }
}

static void *seal_whatever_is_open(void *argument)
{
    struct sealer *sealer = argument;
    while (load_acquire_u32(&sealer->is_over) == 0) {
        for (uint32_t i = 0; i < sealer->arena->geometry.slot_count; i++) {
            uint64_t word = slot_word_at(sealer->arena, i);
            if (slot_word_state(word) == SLOT_OPEN && slot_word_count(word) > 0) {
                seal_and_expect_final(sealer->arena, i, word);
            }
        }
        sched_yield();
    }
    return NULL;
}

/* Yields between claim and commit, so that a seal may occur there. */
static void let_others_in(const char *name)
{
    if (strcmp(name, "record_claimed") == 0) {
        sched_yield();
    }
}

TEST(seals_that_race_with_appends_lose_no_record_and_double_none)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(60, BATCH_SIZE));
    struct accumulator *sender = sender_opened(arena);
    struct ledger *ledger = calloc(1, sizeof *ledger);
    struct sealer sealer = {.arena = arena};
    pthread_t thread;
    uint64_t number = 0;
    EXPECT_EQ_U64((uint64_t)pthread_create(&thread, NULL, seal_whatever_is_open, &sealer), 0);
    point_hook = let_others_in;
    for (int round = 0; round < 10; round++) {
        uint8_t value[100] = {0};
        memcpy(value, &number, sizeof number);
        while (append_value(sender, 0, value, sizeof value) == STATUS_OK) {
            number++;
            memcpy(value, &number, sizeof number);
        }
        deliver_everything(sender, ledger);
    }
    store_release_u32(&sealer.is_over, 1);
    pthread_join(thread, NULL);
    point_hook = NULL;
    deliver_everything(sender, ledger);
    EXPECT(number >= 10 * 60);
    EXPECT_EQ_U64(ledger->count, number);
    expect_delivered_once(ledger, 0, number);
    accumulator_close(sender);
    arena_end(arena, file);
    free(ledger);
}

RUN_ALL()
