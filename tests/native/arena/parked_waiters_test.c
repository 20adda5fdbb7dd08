/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/parked_waiters.h"

#include "core/planting.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "arena/waiter_semaphores.h"
#include "arena/waiter_sleep.h"
#include "sender/stuck_partitions.h"
#include "sender/topic_limits.h"

#define AN_HOUR_NS (3600 * NS_PER_S)

/* ---- turns ---- */

enum { WAITERS = 400, MISSING = 4 };

static int compare(const void *one, const void *other)
{
    uint64_t first = *(const uint64_t *)one;
    uint64_t second = *(const uint64_t *)other;
    return (first > second) - (first < second);
}

/* Get the next turns of the ranks from `first` on, sorted. */
static void turns_of(uint32_t first, uint32_t rank_count, uint32_t count, uint64_t now_ns, uint64_t *turns)
{
    for (uint32_t i = 0; i < rank_count; i++) {
        turns[i] = parked_turn_after(first + i, count, now_ns);
    }
    qsort(turns, rank_count, sizeof *turns, compare);
}

static uint64_t period_of(uint32_t count)
{
    uint64_t now_ns = parked_turn_after(0, count, 1);
    return parked_turn_after(0, count, now_ns) - now_ns;
}

/* Return the longest time between two scans if `missing` consecutive waiters do not scan. */
static uint64_t longest_gap(const uint64_t *turns, uint32_t rank_count, uint32_t missing, uint64_t period_ns)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < rank_count; i++) {
        uint32_t end = i + missing + 1;
        uint64_t gap = turns[end % rank_count] + end / rank_count * period_ns - turns[i];
        longest = gap > longest ? gap : longest;
    }
    return longest;
}

TEST(a_turn_comes_again_after_a_period)
{
    for (uint32_t count = 1; count <= WAITERS; count++) {
        uint64_t period_ns = period_of(count);
        EXPECT(period_ns >= PARKED_SLICE_NS && period_ns <= PARKED_PERIOD_NS_MAX);
        EXPECT(count > PARKED_TURNS || period_ns == PARKED_SLICE_NS);
        uint64_t turn_ns = parked_turn_after(count - 1, count, 1000 * NS_PER_S);
        EXPECT(turn_ns > 1000 * NS_PER_S && turn_ns <= 1000 * NS_PER_S + period_ns);
        EXPECT_EQ_U64(parked_turn_after(count - 1, count, turn_ns - 1), turn_ns);
        EXPECT_EQ_U64(parked_turn_after(count - 1, count, turn_ns), turn_ns + period_ns);
    }
}

TEST(a_waiter_checks_every_50_ms_even_if_any_four_are_missing)
{
    uint64_t turns[WAITERS];
    for (uint32_t count = PARKED_TURNS + 1; count <= WAITERS; count++) {
        turns_of(0, count, count, 1000 * NS_PER_S, turns);
        EXPECT(longest_gap(turns, count, MISSING, period_of(count)) <= PARKED_SLICE_NS);
    }
}

TEST(a_waiter_checks_every_50_ms_even_if_three_quarters_in_one_row_are_missing)
{
    uint64_t turns[WAITERS];
    for (uint32_t count = PARKED_TURNS + 1; count <= WAITERS; count++) {
        uint32_t left = (count + 3) / 4;
        for (uint32_t first = 0; first + left <= count; first++) {
            turns_of(first, left, count, 1000 * NS_PER_S, turns);
            EXPECT(longest_gap(turns, left, 0, period_of(count)) <= PARKED_SLICE_NS);
        }
    }
}

TEST(any_number_of_waiters_checks_at_most_so_often)
{
    for (uint32_t count = 1; count <= 20 * PARKED_TURNS; count++) {
        EXPECT(count * NS_PER_S / period_of(count) <= PARKED_TURNS * NS_PER_S / PARKED_SLICE_NS + 1);
    }
}

/* ---- checks ---- */

enum { SLOTS = 16, BATCH_SIZE = 512, STUCK = 0, PARKED = 4 };

/* An arena in which a stuck partition holds half of the slots, and waiters of another process are parked for it. */
struct host {
    int file;
    struct arena *arena;
    struct arena *sending;
    struct registry *registry;
    struct accumulator *producer;
    struct accumulator *sender;
    struct buffer_wait waits[PARKED];
};

static void set_stuck(struct host *host, bool is_stuck)
{
    sender_set_available(host->sender->sender, STUCK, !is_stuck);
}

static void host_begin(struct host *host)
{
    struct geometry geometry = geometry_of(SLOTS, BATCH_SIZE);
    geometry.topic_share_factor = 0;
    *host = (struct host){.file = arena_file_new()};
    struct error error = {0};
    uint32_t topic_index;
    uint32_t partition_index;
    uint8_t value[BATCH_SIZE] = {0};
    host->arena = arena_created(host->file, geometry);
    host->sending = arena_attached(host->file);
    EXPECT_STATUS(registry_open(host->arena, &host->registry, &error), STATUS_OK);
    EXPECT_STATUS(registry_topic(host->registry, "stuck", 5, &topic_index), STATUS_OK);
    EXPECT_STATUS(registry_partition(host->registry, topic_index, 0, &partition_index), STATUS_OK);
    host->producer = accumulator_opened(host->arena);
    host->sender = sender_opened(host->sending);
    host->arena->clock = (struct clock){.is_manual = true, .manual_ns = 1000 * NS_PER_S};
    set_stuck(host, true);
    while (append_value(host->producer, STUCK, value, value_size_for(BATCH_SIZE - RECORDS_START)) == STATUS_OK) {
    }
    EXPECT_EQ_U64(free_count(host->arena), SLOTS / 2);
}

static void park(struct host *host, uint32_t number, uint32_t need)
{
    EXPECT_STATUS(buffer_pool_enqueue(host->arena, STUCK, need, &host->waits[number], NULL), STATUS_OK);
    EXPECT(buffer_pool_is_parked(host->arena, &host->waits[number]));
    EXPECT_EQ_U64(host->waits[number].waiter_index, number);
    EXPECT(parked_waiter_sleep_ns(host->arena, &host->waits[number]) <= PARKED_SLICE_NS);
}

/* Sets the clock to the waiter's next turn. */
static void begin_turn(struct host *host, uint32_t number)
{
    host->arena->clock.manual_ns = host->waits[number].turn_ns;
}

/* Returns the waiters that this one posts, as bits. */
static uint64_t posted_by(struct host *host, uint32_t number)
{
    struct wake_set wakes = {0};
    parked_waiter_take_turn(host->arena, &host->waits[number], &wakes);
    buffer_pool_wait_on(host->arena, &host->waits[number], &wakes);
    wake_set_remove(&wakes, host->waits[number].waiter_index);
    uint64_t bits = wakes.bits[0];
    waiters_wake(host->arena, &wakes);
    return bits;
}

static void deliver_one(struct host *host)
{
    struct ledger ledger = {0};
    set_stuck(host, false);
    EXPECT_EQ_U64(deliver_round(host->sender, &ledger), 1);
    set_stuck(host, true);
}

static void host_end(struct host *host)
{
    uint32_t slots[SLOTS];
    for (uint32_t i = 0; i < PARKED; i++) {
        if (host->waits[i].need != 0 && buffer_pool_poll(host->arena, &host->waits[i]) != STATUS_STALE &&
            buffer_pool_leave(host->arena, &host->waits[i], slots, NULL) == STATUS_OK) {
            buffer_pool_return(host->arena, slots, host->waits[i].need, NULL);
        }
    }
    set_stuck(host, false);
    struct ledger ledger = {0};
    deliver_everything(host->sender, &ledger);
    sender_maintain(host->sender->sender, NULL);
    expect_all_free(host->arena);
    registry_close(host->registry);
    accumulator_close(host->producer);
    accumulator_close(host->sender);
    arena_detach(host->sending);
    arena_end(host->arena, host->file);
}

static sem_t *semaphore_made(const struct host *host, uint32_t waiter_index)
{
    const uint8_t *uuid = host->arena->uuid;
    char name[64];
    snprintf(name, sizeof name, "/shmaccum-%02x%02x%02x%02x%02x%02x.w%u", uuid[0], uuid[1], uuid[2], uuid[3], uuid[4],
             uuid[5], waiter_index);
    sem_t *semaphore = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
    EXPECT(semaphore != SEM_FAILED);
    EXPECT(waiter_semaphore_open(host->arena, waiter_index));
    EXPECT(sem_unlink(name) == 0);
    return semaphore;
}

TEST_WITH(host, host_begin, at_its_turn_a_waiter_posts_another_one_that_fits)
{
    park(host, 0, 4);
    park(host, 1, 1);
    park(host, 2, 1);
    deliver_one(host);
    EXPECT(parked_waiter_may_sleep(host->arena, &host->waits[0]));
    EXPECT_EQ_U64(posted_by(host, 0), 0); /* it is not the turn of this waiter */
    begin_turn(host, 0);
    EXPECT(!parked_waiter_may_sleep(host->arena, &host->waits[0]));
    EXPECT_STATUS(waiter_sleep(host->arena, &host->waits[0], AN_HOUR_NS), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(posted_by(host, 0), 1 << 1); /* if it gets its buffer, the third waiter does not fit */
    EXPECT(host->waits[0].turn_ns > arena_now_ns(host->arena));
    EXPECT(buffer_pool_is_parked(host->arena, &host->waits[0]));
    begin_turn(host, 0);
    EXPECT_EQ_U64(posted_by(host, 0), 1 << 1); /* the waiter has not continued */
}

/* A task of an event loop waits, but never calls the function that sleeps. */
TEST_WITH(host, host_begin, a_waiter_that_never_sleeps_has_turns_too)
{
    EXPECT_STATUS(buffer_pool_enqueue(host->arena, STUCK, 4, &host->waits[0], NULL), STATUS_OK);
    park(host, 1, 1);
    deliver_one(host);
    EXPECT_EQ_U64(posted_by(host, 0), 0);
    EXPECT(host->waits[0].turn_ns > arena_now_ns(host->arena));
    begin_turn(host, 0);
    EXPECT_EQ_U64(posted_by(host, 0), 1 << 1);
}

TEST_WITH(host, host_begin, a_waiter_sleeps_while_none_fits)
{
    park(host, 0, 4);
    park(host, 1, 1);
    begin_turn(host, 0);
    store_relaxed_u32(&host->arena->topics[0].is_parked_for, 0);
    EXPECT(parked_waiter_may_sleep(host->arena, &host->waits[0]));
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->topics[0].is_parked_for), 1);
    EXPECT(host->waits[0].turn_ns > arena_now_ns(host->arena));
    begin_turn(host, 0);
    EXPECT_EQ_U64(posted_by(host, 0), 0);
    EXPECT(host->waits[0].turn_ns > arena_now_ns(host->arena));
}

TEST_WITH(host, host_begin, a_post_that_is_not_taken_is_not_repeated_and_the_next_waiter_gets_one)
{
    park(host, 0, 4);
    park(host, 1, 1);
    park(host, 2, 1);
    sem_t *semaphore = semaphore_made(host, 1);
    deliver_one(host);
    begin_turn(host, 0);
    EXPECT(!waiter_semaphore_has_post(host->arena, 1));
    EXPECT_EQ_U64(posted_by(host, 0), 1 << 1);
    EXPECT(waiter_semaphore_has_post(host->arena, 1)); /* its process is stopped */
    begin_turn(host, 0);
    EXPECT_EQ_U64(posted_by(host, 0), 1 << 2);
    EXPECT(!waiter_semaphore_has_post(host->arena, 2)); /* the waiter has no partition */
    EXPECT(sem_close(semaphore) == 0);
}

TEST_WITH(host, host_begin, when_the_sender_is_dead_a_turn_posts_all_that_fit_together)
{
    struct error error = {0};
    park(host, 0, 4);
    park(host, 1, 1);
    park(host, 2, 1);
    park(host, 3, 1);
    accumulator_drop_sender(host->sender);
    begin_turn(host, 0);
    EXPECT_EQ_U64(posted_by(host, 0), 1 << 1 | 1 << 2 | 1 << 3);
    EXPECT_STATUS(buffer_pool_poll(host->arena, &host->waits[0]), STATUS_OK);
    EXPECT_STATUS(accumulator_become_sender(host->sender, &error), STATUS_OK);
}

/* The partition of a waiter is a shared word, and a waiter of no partition is parked when its grant is revoked. */
TEST_WITH(host, host_begin, a_waiter_of_no_partition_of_the_arena_is_posted_when_it_fits)
{
    static const uint32_t words[] = {0, 1U << 30, UINT32_MAX};
    park(host, 0, 4);
    park(host, 1, 1);
    uint32_t own = load_relaxed_u32(&host->arena->waiters[1].partition);
    for (uint32_t i = 0; i < sizeof words / sizeof *words; i++) {
        store_relaxed_u32(&host->arena->waiters[1].partition, words[i]);
        begin_turn(host, 0);
        EXPECT_EQ_U64(posted_by(host, 0), 1 << 1);
    }
    store_relaxed_u32(&host->arena->waiters[1].partition, own);
}

TEST_WITH(host, host_begin, a_waiter_that_finds_the_arena_unusable_posts_all)
{
    park(host, 0, 1);
    park(host, 1, 1);
    sem_t *semaphore = semaphore_made(host, 1);
    store_relaxed_u32(&host->arena->globals->poisoned_status, STATUS_CORRUPT);
    EXPECT_STATUS(waiter_sleep(host->arena, &host->waits[0], AN_HOUR_NS), STATUS_EXHAUSTED);
    EXPECT(waiter_semaphore_has_post(host->arena, 1));
    store_relaxed_u32(&host->arena->globals->poisoned_status, STATUS_OK);
    EXPECT(sem_close(semaphore) == 0);
}

RUN_ALL()
