/* SPDX-License-Identifier: Apache-2.0 */
/* runs under: tsan */
#include "arena/lock.h"

#include <pthread.h>
#include <sched.h>

#include "arena/arena_fixture.h"

#include "arena/attach.h"
#include "arena/process.h"

static atomic_u64 *lock_of(struct arena *arena)
{
    return &arena->globals->pool_lock;
}

/* ---- alone ---- */

/* Acquire the lock without contention. */
static uint64_t lock_taken(struct arena *arena)
{
    uint64_t held = 0;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_ACQUIRED);
    return held;
}

TEST_IN_ARENA(geometry_of(8, 512), a_free_lock_is_taken_at_once_and_names_its_owner)
{
    atomic_u64 *lock = lock_of(arena);
    uint64_t held = lock_taken(arena);
    EXPECT_EQ_U64(load_relaxed_u64(lock), held);
    EXPECT_EQ_U64(held, lock_word(1, arena->owner));
    lock_release(lock, held);
    EXPECT_EQ_U64(load_relaxed_u64(lock), lock_word(1, 0));
}

TEST_IN_ARENA(geometry_of(8, 512), every_acquisition_has_a_number_of_its_own_also_when_it_wraps)
{
    atomic_u64 *lock = lock_of(arena);
    store_relaxed_u64(lock, lock_word(UINT32_MAX - 1, 0));
    uint64_t first = lock_taken(arena);
    EXPECT_EQ_U64(lock_word_acquisition(first), UINT32_MAX);
    lock_release(lock, first);
    uint64_t second = lock_taken(arena);
    EXPECT_EQ_U64(lock_word_acquisition(second), 0);
    lock_release(lock, first); /* an older acquisition of the same owner */
    EXPECT_EQ_U64(load_relaxed_u64(lock), second);
    lock_release(lock, second);
}

/* ---- threads that pose as processes ---- */

enum { THREADS = 6, ROUNDS = 2000 };

static uint64_t guarded; /* protected by the lock, so not atomic */

static void *race(void *argument)
{
    struct arena *arena = argument;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t held;
        while (lock_acquire(arena, lock_of(arena), &held) == LOCK_REFUSED) {
        }
        ++guarded;
        lock_release(lock_of(arena), held);
    }
    return NULL;
}

TEST_IN_ARENA(geometry_of(8, 512), many_threads_exclude_each_other_and_none_sleeps_for_ever)
{
    run_in_threads(file, arena, THREADS, race);
    EXPECT_EQ_U64(guarded, THREADS * ROUNDS);
    EXPECT_EQ_U64(lock_word_owner(load_relaxed_u64(lock_of(arena))), 0);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 0);
}

static void *acquire_and_release(void *argument)
{
    struct arena *arena = argument;
    uint64_t held;
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_ACQUIRED);
    lock_release(lock_of(arena), held);
    return NULL;
}

TEST_IN_ARENA(geometry_of(8, 512), a_sleeper_marks_the_word_and_the_release_wakes_it)
{
    struct arena *other = arena_attached_for_thread(file, arena);
    atomic_u64 *lock = lock_of(arena);
    pthread_t thread;
    uint64_t held = lock_taken(arena);
    EXPECT(pthread_create(&thread, NULL, acquire_and_release, other) == 0);
    while ((load_acquire_u64(lock) & LOCK_WAITERS) == 0) {
        sched_yield();
    }
    EXPECT_EQ_U64(load_acquire_u64(lock), held | LOCK_WAITERS); /* the waiters' bit does not change the holder */
    lock_release(lock, held);
    pthread_join(thread, NULL);
    EXPECT_EQ_U64(lock_word_owner(load_relaxed_u64(lock)), 0);
    arena_detach(other);
}

/* ---- hooks ---- */

static int hook_balance;
static int hook_count;

static void *hook_begin(void)
{
    hook_balance++;
    hook_count++;
    return &hook_balance;
}

static void hook_end(void *state)
{
    EXPECT(state == &hook_balance);
    hook_balance--;
}

/* The holder releases the lock while the waiter is about to sleep. */
static struct arena *hook_holder;
static uint64_t hook_held;

static void *hook_begin_and_release(void)
{
    if (hook_count == 2) {
        lock_release(lock_of(hook_holder), hook_held);
    }
    return hook_begin();
}

TEST_IN_ARENA(geometry_of(8, 512), the_hooks_stand_around_every_sleep_and_never_around_the_acquisition)
{
    uint64_t held;
    hook_holder = arena_attached(file);
    arena->blocking = (struct blocking_hooks){.begin = hook_begin_and_release, .end = hook_end};
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_ACQUIRED);
    EXPECT_EQ_U64((uint64_t)hook_count, 0);
    lock_release(lock_of(arena), held);
    hook_held = lock_taken(hook_holder);
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_ACQUIRED);
    EXPECT_EQ_U64((uint64_t)hook_balance, 0);
    EXPECT_EQ_U64((uint64_t)hook_count, 3);
    lock_release(lock_of(arena), held);
    arena_detach(hook_holder);
}

/* ---- owners that have died, or cannot exist ---- */

TEST_IN_ARENA(geometry_of(8, 512), a_lock_whose_owner_cannot_exist_is_stolen)
{
    const uint32_t owners[] = {owner_of(15, 3), owner_of(16, 0), (uint32_t)LOW_BITS(31), owner_of(0, 9)};
    for (uint32_t i = 0; i < COUNT_OF(owners); i++) {
        uint64_t held = 0;
        store_relaxed_u64(lock_of(arena), lock_word(5, owners[i]));
        EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_TAKEN_OVER);
        EXPECT_EQ_U64(lock_word_acquisition(held), 6);
        lock_release(lock_of(arena), held);
    }
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), COUNT_OF(owners));
}

TEST_IN_ARENA(geometry_of(8, 512), a_lock_word_with_this_process_as_a_false_owner_is_taken_over)
{
    uint64_t held = 0;
    store_relaxed_u64(lock_of(arena), lock_word(7, arena->owner));
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_TAKEN_OVER); /* or it would sleep forever */
    EXPECT_EQ_U64(lock_word_acquisition(held), 8);
    lock_release(lock_of(arena), held);
}

#if !defined(__SANITIZE_THREAD__) /* TSan does not follow forks */

static uint64_t now_ns(void)
{
    return clock_now_ns(&(struct clock){.is_manual = false});
}

static void run_hold_and_die(struct arena *arena, void *unused)
{
    (void)unused;
    (void)lock_taken(arena);
    raise(SIGKILL);
}

/* Generous for a busy machine. It must only distinguish a hang from two slices of 15 ms. */
enum { PATIENCE_MS = 5000 };

TEST_IN_ARENA(geometry_of(8, 512), the_lock_of_a_killed_process_is_stolen)
{
    uint64_t held = 0;
    EXPECT(child_was_killed(child_started(file, run_hold_and_die, NULL, NULL, 0)));
    uint64_t began_ns = now_ns();
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_TAKEN_OVER);
    EXPECT(now_ns() - began_ns < PATIENCE_MS * NS_PER_MS);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 1);
    lock_release(lock_of(arena), held);
}

/* During the fourth slice of the waiter, the stopped holder is continued. Until then, no process takes its lock. */
static pid_t stopped_child;
static int slices;

static void *count_slice(void)
{
    if (++slices == 4) {
        kill(stopped_child, SIGCONT);
    }
    return NULL;
}

static void end_slice(void *state)
{
    (void)state;
}

static void run_hold_and_stop(struct arena *arena, void *unused)
{
    (void)unused;
    uint64_t held = lock_taken(arena);
    raise(SIGSTOP);
    lock_release(lock_of(arena), held);
}

TEST_IN_ARENA(geometry_of(8, 512), a_lock_that_is_only_stolen_waits_for_a_stopped_holder)
{
    uint64_t held = 0;
    stopped_child = child_started(file, run_hold_and_stop, NULL, NULL, 0);
    EXPECT(child_is_stopped(stopped_child));
    arena->blocking = (struct blocking_hooks){.begin = count_slice, .end = end_slice};
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_ACQUIRED);
    EXPECT(slices >= 4);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 0);
    EXPECT(child_is_content(stopped_child));
    lock_release(lock_of(arena), held);
}

TEST_IN_ARENA(geometry_of(8, 512), a_lock_of_a_stopped_holder_is_refused_until_it_continues)
{
    uint64_t refused = 0;
    uint64_t held = 0;
    stopped_child = child_started(file, run_hold_and_stop, NULL, NULL, 0);
    EXPECT(child_is_stopped(stopped_child));
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &refused), LOCK_REFUSED);
    EXPECT_EQ_U64(refused, load_relaxed_u64(lock_of(arena)) | LOCK_WAITERS);
    EXPECT(lock_is_kept(arena, lock_of(arena), refused));
    EXPECT(!lock_is_kept(arena, lock_of(arena), refused - 1));
    EXPECT(child_finishes(stopped_child));
    EXPECT(!lock_is_kept(arena, lock_of(arena), refused));
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_ACQUIRED);
    lock_release(lock_of(arena), held);
}

TEST_IN_ARENA(geometry_of(8, 512), a_refused_lock_is_stolen_after_the_death_of_its_holder)
{
    uint64_t held = 0;
    stopped_child = child_started(file, run_hold_and_stop, NULL, NULL, 0);
    EXPECT(child_is_stopped(stopped_child));
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_REFUSED);
    EXPECT(child_kill(stopped_child));
    EXPECT(!lock_is_kept(arena, lock_of(arena), held));
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_TAKEN_OVER);
    lock_release(lock_of(arena), held);
}

static void run_release_with_a_sleeper(struct arena *arena, void *unused)
{
    (void)unused;
    uint64_t held = lock_taken(arena);
    raise(SIGSTOP);
    lock_release(lock_of(arena), held); /* killed between the release and the wake */
}

static void *continue_child(void)
{
    kill(stopped_child, SIGCONT);
    return NULL;
}

/* The process that should wake the sleeper dies, so the wake-up is lost. The sleeper continues after its slice. */
TEST_IN_ARENA(geometry_of(8, 512), a_lost_wake_up_costs_a_slice_and_no_more)
{
    uint64_t held = 0;
    stopped_child =
        child_started(file, run_release_with_a_sleeper, NULL, "lock_released_before_wake", SIGKILL);
    EXPECT(child_is_stopped(stopped_child));
    arena->blocking = (struct blocking_hooks){.begin = continue_child, .end = end_slice};
    uint64_t began_ns = now_ns();
    EXPECT_EQ_U64(lock_acquire(arena, lock_of(arena), &held), LOCK_ACQUIRED);
    EXPECT(now_ns() - began_ns < PATIENCE_MS * NS_PER_MS);
    EXPECT(child_was_killed(stopped_child));
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_STOLEN), 0);
    lock_release(lock_of(arena), held);
}

#endif

RUN_ALL()
