/* SPDX-License-Identifier: Apache-2.0 */
/* runs under: tsan */
#include "shm/lock.h"

#include "participants.h"

#include <pthread.h>

enum { THREAD_COUNT = 4, ROUND_COUNT = 3000 };

/* Wide enough for a machine under load, far below "for ever"; the promise of the code is two slices. */
#define TAKE_OVER_NS_MAX (50 * NS_PER_MS)

static uint64_t now_ns(void)
{
    return clock_now_ns(&(struct clock){.is_manual = false});
}

static atomic_u64 *lock_of(struct arena *arena)
{
    return &arena->partitions[0].lock;
}

/* ---- one participant ---- */

TEST(a_lock_names_its_owner_and_counts_its_acquisitions)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    atomic_u64 *lock = lock_of(arena);
    for (uint32_t acquisition = 1; acquisition <= 3; acquisition++) {
        uint64_t held;
        EXPECT_EQ_U64(lock_acquire(arena, lock, LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
        EXPECT_EQ_U64(load_acquire_u64(lock), lock_word(acquisition, arena->owner));
        EXPECT_EQ_U64(held, lock_word(acquisition, arena->owner));
        EXPECT(lock_is_held(lock, held));
        EXPECT(lock_release(lock, held));
        EXPECT(!lock_is_held(lock, held));
        EXPECT_EQ_U64(load_acquire_u64(lock), lock_word(acquisition, 0));
    }
    arena_end(arena, file);
}

TEST(an_attempt_says_no_while_somebody_holds_or_waits)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    atomic_u64 *lock = lock_of(arena);
    uint64_t held, second = 7;
    EXPECT(lock_try_acquire(lock, arena->owner, &held));
    EXPECT(!lock_try_acquire(lock, arena->owner, &second));
    EXPECT(lock_release(lock, held));
    store_relaxed_u64(lock, lock_word(1, 0) | LOCK_WAITERS);
    EXPECT(!lock_try_acquire(lock, arena->owner, &second));
    EXPECT_EQ_U64(second, 7);
    EXPECT_EQ_U64(lock_acquire(arena, lock, LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
    EXPECT(lock_release(lock, held));
    arena_end(arena, file);
}

TEST(the_acquisition_number_wraps)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    atomic_u64 *lock = lock_of(arena);
    uint64_t held;
    store_relaxed_u64(lock, lock_word(UINT32_MAX, 0));
    EXPECT_EQ_U64(lock_acquire(arena, lock, LOCK_PASS, &held), LOCK_ACQUIRED);
    EXPECT_EQ_U64(held, lock_word(0, arena->owner));
    EXPECT(lock_release(lock, held));
    arena_end(arena, file);
}

TEST(a_lock_of_an_owner_that_cannot_exist_is_stolen)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    const uint32_t garbage[] = {(uint32_t)LOW_BITS(31), owner_of(15, 9), owner_of(16, 0), owner_of(0, 77)};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        uint64_t held;
        store_relaxed_u64(lock_of(arena), lock_word(5, garbage[i]));
        EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_TAKEN_OVER);
        EXPECT_EQ_U64(lock_word_acquisition(held), 6);
        EXPECT(lock_release(lock_of(arena), held));
    }
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 4);
    arena_end(arena, file);
}

/* ---- threads that pose as processes ---- */

struct crowd {
    struct arena *arena;
    int file;
    enum lock_policy policy;
    uint64_t plain; /* guarded by the lock */
};

/* No take-over can happen to those who are merely slow: with LOCK_STEAL_ONLY only death frees a lock. */
static void *crowd_member(void *argument)
{
    struct crowd *crowd = argument;
    struct arena *arena = arena_attached_beside(crowd->arena, crowd->file);
    for (int round = 0; round < ROUND_COUNT; round++) {
        uint64_t held;
        EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), crowd->policy, &held), LOCK_ACQUIRED);
        crowd->plain++;
        if (round % 64 == 0) {
            sched_yield();
        }
        EXPECT(lock_release(lock_of(arena), held));
    }
    arena_detach(arena);
    return NULL;
}

TEST(one_at_a_time_is_inside)
{
    struct crowd crowd = {.file = arena_file_new(), .policy = LOCK_STEAL_ONLY};
    struct arena *arena = arena_created(crowd.file, geometry_of(2, 512));
    crowd.arena = arena;
    pthread_t threads[THREAD_COUNT];
    for (int i = 0; i < THREAD_COUNT; i++) {
        EXPECT_EQ_U64((uint64_t)pthread_create(&threads[i], NULL, crowd_member, &crowd), 0);
    }
    for (int i = 0; i < THREAD_COUNT; i++) {
        pthread_join(threads[i], NULL);
    }
    EXPECT_EQ_U64(crowd.plain, THREAD_COUNT * ROUND_COUNT);
    EXPECT_EQ_U64(lock_word_acquisition(load_acquire_u64(lock_of(arena))), THREAD_COUNT * ROUND_COUNT);
    EXPECT_EQ_U64(lock_word_owner(load_acquire_u64(lock_of(arena))), 0);
    arena_end(arena, crowd.file);
}

static void *sleeper(void *argument)
{
    struct arena *arena = argument;
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
    EXPECT(lock_release(lock_of(arena), held));
    return NULL;
}

static atomic_u32 hooks_begun, hooks_ended;

static void *hook_begin(void)
{
    add_u32(&hooks_begun, 1);
    return &hooks_begun;
}

static void hook_end(void *state)
{
    EXPECT(state == &hooks_begun);
    add_u32(&hooks_ended, 1);
}

TEST(a_release_wakes_the_sleeper_and_the_hooks_stand_around_each_sleep)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    struct arena *other = arena_attached(file);
    other->blocking = (struct blocking_hooks){.begin = hook_begin, .end = hook_end};
    uint64_t held;
    pthread_t thread;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
    pthread_create(&thread, NULL, sleeper, other);
    while (load_acquire_u32(&hooks_begun) == 0) {
        sched_yield();
    }
    EXPECT((load_acquire_u64(lock_of(arena)) & LOCK_WAITERS) != 0);
    EXPECT(lock_is_held(lock_of(arena), held));
    EXPECT(lock_release(lock_of(arena), held));
    pthread_join(thread, NULL);
    EXPECT_EQ_U64(load_acquire_u32(&hooks_ended), load_acquire_u32(&hooks_begun));
    arena_detach(other);
    arena_end(arena, file);
}

/* ---- the dead and the stopped ---- */

static void hold_and_stop(struct arena *arena, void *argument)
{
    (void)argument;
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
    raise(SIGSTOP);
    EXPECT(lock_is_held(lock_of(arena), held));
    EXPECT(lock_release(lock_of(arena), held));
}

TEST(a_lock_is_stolen_from_a_killed_process_within_two_slices)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    pid_t child = child_started(hold_and_stop, file, NULL, NULL, 0);
    EXPECT(child_is_stopped(child));
    uint32_t dead = lock_word_owner(load_acquire_u64(lock_of(arena)));
    EXPECT(dead != 0 && dead != arena->owner);
    child_kill(child);
    uint64_t held, start_ns = now_ns();
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_TAKEN_OVER);
    EXPECT(now_ns() - start_ns < TAKE_OVER_NS_MAX);
    EXPECT_EQ_U64(held, lock_word(2, arena->owner));
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 1);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_PASSED), 0);
    EXPECT(lock_release(lock_of(arena), held));
    arena_end(arena, file);
}

static void hold_and_be_passed(struct arena *arena, void *argument)
{
    (void)argument;
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
    raise(SIGSTOP);
    uint64_t before = load_acquire_u64(lock_of(arena));
    EXPECT(!lock_is_held(lock_of(arena), held));
    EXPECT(!lock_release(lock_of(arena), held));
    EXPECT_EQ_U64(load_acquire_u64(lock_of(arena)), before);
}

TEST(a_stopped_holder_is_passed_within_two_slices_and_its_release_changes_nothing)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    pid_t child = child_started(hold_and_be_passed, file, NULL, NULL, 0);
    EXPECT(child_is_stopped(child));
    uint64_t held, start_ns = now_ns();
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_PASS, &held), LOCK_TAKEN_OVER);
    EXPECT(now_ns() - start_ns < TAKE_OVER_NS_MAX);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_PASSED), 1);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 0);
    EXPECT(child_finishes(child));
    EXPECT(lock_is_held(lock_of(arena), held));
    EXPECT(lock_release(lock_of(arena), held));
    arena_end(arena, file);
}

static uint32_t slices_slept;
static pid_t stopped_holder;

/* After six slices the holder may go on: it was not passed in all that time. */
static void *wake_holder_after_six_slices(void)
{
    if (++slices_slept == 6) {
        kill(stopped_holder, SIGCONT);
    }
    return NULL;
}

static void hook_end_ignored(void *state)
{
    EXPECT(state == NULL);
}

TEST(a_stopped_holder_of_a_lock_for_stealing_only_is_waited_for)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    stopped_holder = child_started(hold_and_stop, file, NULL, NULL, 0);
    EXPECT(child_is_stopped(stopped_holder));
    arena->blocking = (struct blocking_hooks){.begin = wake_holder_after_six_slices, .end = hook_end_ignored};
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
    EXPECT(slices_slept >= 6);
    EXPECT_EQ_U64(held, lock_word(2, arena->owner));
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_PASSED) + counter_value(arena, COUNTER_LOCKS_STOLEN), 0);
    EXPECT(lock_release(lock_of(arena), held));
    EXPECT(child_is_content(stopped_holder));
    arena_end(arena, file);
}

/* Who takes over and dies before it repaired: the next one is told the same. */
static void take_over_and_die(struct arena *arena, void *argument)
{
    (void)argument;
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_PASS, &held), LOCK_TAKEN_OVER);
    raise(SIGKILL);
}

TEST(every_successor_of_the_dead_is_told_that_it_took_over)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    pid_t holder = child_started(hold_and_stop, file, NULL, NULL, 0);
    EXPECT(child_is_stopped(holder));
    pid_t successor = child_started(take_over_and_die, file, NULL, NULL, 0);
    EXPECT(child_was_killed(successor));
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_PASS, &held), LOCK_TAKEN_OVER);
    EXPECT_EQ_U64(held & ~LOCK_WAITERS, lock_word(3, arena->owner));
    EXPECT(lock_release(lock_of(arena), held));
    child_kill(holder);
    arena_end(arena, file);
}

static void release_and_die_before_the_wake(struct arena *arena, void *argument)
{
    (void)argument;
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
    or_bits_u64(lock_of(arena), LOCK_WAITERS);
    lock_release(lock_of(arena), held);
    EXPECT(!"killed at lock_released_before_wake");
}

TEST(a_wake_that_was_never_sent_costs_one_slice)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    pid_t child =
        child_started(release_and_die_before_the_wake, file, NULL, "lock_released_before_wake", SIGKILL);
    EXPECT(child_was_killed(child));
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), LOCK_STEAL_ONLY, &held), LOCK_ACQUIRED);
    EXPECT_EQ_U64(held, lock_word(2, arena->owner));
    EXPECT(lock_release(lock_of(arena), held));
    arena_end(arena, file);
}

RUN_ALL()
