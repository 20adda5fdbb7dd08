/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread checks what each operation returns. Two threads then test the guarantees that the arena needs, as litmus
 * tests: message passing (release and acquire), mutual exclusion (cas), and the Dekker pair (store_seq_cst, a store and
 * barrier_store_load, or cas and barrier_after_cas on either side). The forbidden outcome of the Dekker pair is that
 * both sides miss the other's store.
 */
/* runs under: tsan */
#include "base/atomic.h"

#include "testing.h"

#include <pthread.h>
#include <sched.h>

enum { ROUND_COUNT = 15000, SPIN_COUNT_MAX = 200 };

/* Spin while the other side runs. If both share one core, longer spinning would cost a time slice per turn. */
static void spin_or_yield(unsigned *spin_count)
{
    *spin_count += 1;
    if (*spin_count % SPIN_COUNT_MAX == 0) {
        sched_yield();
    } else {
        spin_pause();
    }
}

TEST(each_operation_returns_what_its_name_states)
{
    atomic_u64 cell = 5;
    EXPECT_EQ_U64(exchange_u64(&cell, 7), 5);
    EXPECT_EQ_U64(add_u64(&cell, 3), 7);
    EXPECT_EQ_U64(or_bits_u64(&cell, 0x10), 10);
    EXPECT_EQ_U64(and_bits_u64(&cell, 0x12), 0x1a);
    EXPECT_EQ_U64(load_relaxed_u64(&cell), 0x12);
    store_relaxed_u64(&cell, 1);
    EXPECT_EQ_U64(load_acquire_u64(&cell), 1);
    store_release_u64(&cell, 2);
    EXPECT_EQ_U64(load_acquire_u64(&cell), 2);
    store_seq_cst_u64(&cell, 3);
    EXPECT_EQ_U64(load_acquire_u64(&cell), 3);
}

TEST(cas_swaps_only_what_was_expected_and_reports_what_it_found)
{
    atomic_u32 cell = 1;
    uint32_t expected = 2;
    EXPECT(!cas_u32(&cell, &expected, 3));
    EXPECT_EQ_U64(expected, 1);
    EXPECT_EQ_U64(load_relaxed_u32(&cell), 1);
    EXPECT(cas_u32(&cell, &expected, 3));
    EXPECT_EQ_U64(load_relaxed_u32(&cell), 3);
}

TEST(counters_wrap_without_a_word)
{
    atomic_u32 narrow = UINT32_MAX;
    atomic_u64 wide = UINT64_MAX;
    EXPECT_EQ_U64(add_u32(&narrow, 2), UINT32_MAX);
    EXPECT_EQ_U64(add_u64(&wide, 2), UINT64_MAX);
    EXPECT_EQ_U64(load_relaxed_u32(&narrow), 1);
    EXPECT_EQ_U64(load_relaxed_u64(&wide), 1);
}

struct flag {
    _Alignas(64) atomic_u64 value; /* in its own cache line, so that a store takes long enough to be overtaken */
};

struct shared {
    struct flag flags[2];
    atomic_u32 round_started[2];
    uint64_t plain;     /* plain memory, which the orders under test protect */
    uint64_t missed[2]; /* whether side i missed the other side's flag */
    atomic_u64 failures;
};

struct side {
    struct shared *shared;
    unsigned index;
};

static void run_two_sides(struct shared *shared, void *(*run)(void *))
{
    struct side sides[2] = {{shared, 0}, {shared, 1}};
    pthread_t threads[2];
    for (unsigned index = 0; index < 2; index++) {
        EXPECT_EQ_U64((uint64_t)pthread_create(&threads[index], NULL, run, &sides[index]), 0);
    }
    for (unsigned index = 0; index < 2; index++) {
        EXPECT_EQ_U64((uint64_t)pthread_join(threads[index], NULL), 0);
    }
}

/* In each round, side 0 passes `plain` to side 1 with a release store, and side 1 passes it back. */
static void *pass_messages(void *argument)
{
    struct side *side = argument;
    struct shared *shared = side->shared;
    unsigned spin_count = 0;
    for (uint64_t turn = side->index; turn < ROUND_COUNT; turn += 2) {
        while (load_acquire_u64(&shared->flags[0].value) != turn) {
            spin_or_yield(&spin_count);
        }
        if (shared->plain != turn) {
            add_u64(&shared->failures, 1);
        }
        shared->plain = turn + 1;
        store_release_u64(&shared->flags[0].value, turn + 1);
    }
    return NULL;
}

TEST(a_store_before_a_release_is_visible_after_the_acquire)
{
    struct shared shared = {.plain = 0};
    run_two_sides(&shared, pass_messages);
    EXPECT_EQ_U64(load_acquire_u64(&shared.failures), 0);
    EXPECT_EQ_U64(shared.plain, ROUND_COUNT);
}

static void *count_under_a_lock(void *argument)
{
    struct shared *shared = ((struct side *)argument)->shared;
    unsigned spin_count = 0;
    for (unsigned round = 0; round < ROUND_COUNT; round++) {
        uint64_t unlocked = 0;
        while (!cas_u64(&shared->flags[0].value, &unlocked, 1)) {
            unlocked = 0;
            spin_or_yield(&spin_count);
        }
        shared->plain++;
        store_release_u64(&shared->flags[0].value, 0);
    }
    return NULL;
}

TEST(one_cas_at_a_time_wins)
{
    struct shared shared = {.plain = 0};
    run_two_sides(&shared, count_under_a_lock);
    EXPECT_EQ_U64(shared.plain, 2 * ROUND_COUNT);
}

static void meet(struct shared *shared, uint32_t meeting, unsigned index)
{
    unsigned spin_count = 0;
    store_release_u32(&shared->round_started[index], meeting);
    while (load_acquire_u32(&shared->round_started[1 - index]) < meeting) {
        spin_or_yield(&spin_count);
    }
}

/* Try each of the three ways to set a flag and then read the other one. It is forbidden that both sides miss it. */
static void raise_flag(atomic_u64 *flag, uint32_t way)
{
    uint64_t lowered = 0;
    if (way == 0) {
        store_seq_cst_u64(flag, 1);
    } else if (way == 1) {
        store_relaxed_u64(flag, 1);
        barrier_store_load();
    } else if (cas_u64(flag, &lowered, 1)) {
        barrier_after_cas();
    }
}

static void *play_dekker(void *argument)
{
    struct side *side = argument;
    struct shared *shared = side->shared;
    for (uint32_t round = 0; round < ROUND_COUNT; round++) {
        meet(shared, 3 * round + 1, side->index);
        raise_flag(&shared->flags[side->index].value, (side->index == 0 ? round : round / 3) % 3);
        shared->missed[side->index] = load_relaxed_u64(&shared->flags[1 - side->index].value) == 0;
        meet(shared, 3 * round + 2, side->index);
        if (side->index == 0 && shared->missed[0] && shared->missed[1]) {
            add_u64(&shared->failures, 1);
        }
        store_relaxed_u64(&shared->flags[side->index].value, 0);
        meet(shared, 3 * round + 3, side->index);
    }
    return NULL;
}

TEST(two_raised_flags_never_miss_each_other)
{
    struct shared shared = {.plain = 0};
    run_two_sides(&shared, play_dekker);
    EXPECT_EQ_U64(load_acquire_u64(&shared.failures), 0);
}

RUN_ALL()
