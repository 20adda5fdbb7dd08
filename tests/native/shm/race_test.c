/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that pose as processes, each with an entry and a lock descriptor of its own over one mapping, so that the
 * thread sanitizer sees what two processes would do to each other.
 */
/* runs under: tsan */
#include "delivery_fixture.h"

#include <pthread.h>
#include <sched.h>

#include "shm/producer_batch.h"

enum { BATCH_SIZE = 512, MEMBER_COUNT = 4, ROUND_COUNT = 400, EACH_COUNT = 60, NUMBERS_EACH = 1000 };

struct member {
    struct arena *arena;
    uint32_t position;
    atomic_u32 *ended_count;
};

struct crowd {
    int file;
    struct arena *arena;
    struct member members[MEMBER_COUNT];
    pthread_t threads[MEMBER_COUNT];
    atomic_u32 ended_count;
};

/* The crowd stays where it is: its members point into it. */
static void crowd_start(struct crowd *crowd, uint32_t slot_count, void *(*run)(void *member))
{
    crowd->file = arena_file_new();
    crowd->arena = arena_created(crowd->file, geometry_of(slot_count, BATCH_SIZE));
    for (uint32_t i = 0; i < MEMBER_COUNT; i++) {
        crowd->members[i] = (struct member){.arena = arena_attached_for_thread(crowd->file, crowd->arena),
                                            .position = i,
                                            .ended_count = &crowd->ended_count};
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
    EXPECT_STATUS(buffer_pool_enqueue(arena, need, &wait, NULL), STATUS_OK);
    while (buffer_pool_poll(arena, &wait) == STATUS_EXHAUSTED) {
        sched_yield();
    }
    EXPECT_STATUS(buffer_pool_take(arena, &wait, slots), STATUS_OK);
}

/* Writes its name into each slot, and finds nobody else's there. */
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
        buffer_pool_give_back(member->arena, slots, need, NULL);
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

/* ---- producers and the sender ---- */

static void append_numbers_in(const struct member *member, uint32_t partition_index, uint32_t oversized_every)
{
    struct accumulator *producer = accumulator_opened(member->arena);
    for (uint32_t i = 0; i < EACH_COUNT; i++) {
        uint8_t value[1200] = {0};
        uint64_t number = NUMBERS_EACH * (uint64_t)member->position + i;
        bool is_oversized = oversized_every != 0 && i % oversized_every == 1;
        struct append_result result;
        memcpy(value, &number, sizeof number);
        append_waiting(producer, partition_index, record_of(value, is_oversized ? sizeof value : 50, 1000), &result);
    }
    accumulator_close(producer);
    add_u32(member->ended_count, 1);
}

static void *append_to_one_partition(void *argument)
{
    const struct member *member = argument;
    append_numbers_in(member, 0, member->position == 0 ? 9 : 0);
    return NULL;
}

static void *append_to_partitions_apart(void *argument)
{
    const struct member *member = argument;
    append_numbers_in(member, member->position, 11);
    return NULL;
}

/* Of each member, the numbers in the order in which they were appended. */
static void expect_in_order(const struct ledger *ledger)
{
    uint64_t next[MEMBER_COUNT] = {0};
    EXPECT_EQ_U64(ledger->count, MEMBER_COUNT * EACH_COUNT);
    for (uint32_t i = 0; i < ledger->count; i++) {
        uint64_t position = ledger->numbers[i] / NUMBERS_EACH;
        EXPECT(position < MEMBER_COUNT);
        if (position < MEMBER_COUNT) {
            EXPECT_EQ_U64(ledger->numbers[i] % NUMBERS_EACH, next[position]++);
        }
    }
}

static void expect_all_delivered_in_order(void *(*run)(void *member))
{
    struct crowd crowd = {0};
    struct ledger *ledger = calloc(1, sizeof *ledger);
    crowd_start(&crowd, 8, run);
    struct accumulator *sender = sender_opened(crowd.arena);
    while (load_acquire_u32(&crowd.ended_count) < MEMBER_COUNT) {
        if (deliver_round(sender, ledger) == 0) {
            accumulator_maintain(sender, NULL);
            sched_yield();
        }
    }
    crowd_join(&crowd);
    deliver_everything(sender, ledger);
    expect_in_order(ledger);
    accumulator_close(sender);
    expect_all_free(crowd.arena);
    arena_end(crowd.arena, crowd.file);
    free(ledger);
}

TEST(producers_of_one_partition_race_with_the_sender_and_nothing_is_lost)
{
    expect_all_delivered_in_order(append_to_one_partition);
}

TEST(producers_of_partitions_apart_race_for_buffers_and_nothing_is_lost)
{
    expect_all_delivered_in_order(append_to_partitions_apart);
}

/* ---- a seal racing with appends ---- */

struct sealer {
    struct arena *arena;
    atomic_u32 is_over;
};

static void *seal_whatever_is_open(void *argument)
{
    struct sealer *sealer = argument;
    while (load_acquire_u32(&sealer->is_over) == 0) {
        for (uint32_t i = 0; i < sealer->arena->geometry.slot_count; i++) {
            uint64_t word = slot_word_at(sealer->arena, i);
            if (slot_word_state(word) == SLOT_OPEN && slot_word_count(word) > 0) {
                (void)producer_batch_seal(sealer->arena, i, word);
            }
        }
        sched_yield();
    }
    return NULL;
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
    for (int round = 0; round < 4; round++) {
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
    deliver_everything(sender, ledger);
    EXPECT(number >= 4 * 60);
    EXPECT_EQ_U64(ledger->count, number);
    expect_delivered_once(ledger, 0, number);
    accumulator_close(sender);
    arena_end(arena, file);
    free(ledger);
}

RUN_ALL()
