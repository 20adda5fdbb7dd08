/* SPDX-License-Identifier: Apache-2.0 */
/* runs under: tsan */
#include "producer/producer_lock.h"

#include <pthread.h>
#include <sched.h>

#include "arena/arena_fixture.h"

/* The patience in tests that never wait for a holder to release the lock. */
#define SHORT_NS (UINT64_C(20000))
#define LONG_NS (60 * NS_PER_S)

static struct producer_lock *lock_of(struct arena *arena)
{
    return &arena->partitions[0].lock;
}

/* Acquire the lock without contention. */
static uint64_t lock_taken(struct arena *arena)
{
    uint64_t held = 0;
    EXPECT(producer_lock_try_acquire(lock_of(arena), arena->owner, &held));
    return held;
}

static bool lock_is_free(struct arena *arena)
{
    return producer_lock_is_free(lock_of(arena), load_relaxed_u64(&lock_of(arena)->word));
}

static void lock_store(struct producer_lock *lock, uint64_t word, uint64_t released)
{
    store_relaxed_u64(&lock->word, word);
    store_relaxed_u64(&lock->released, released);
}

/* ---- alone ---- */

TEST_IN_ARENA(geometry_of(8, 512), a_free_lock_is_taken_at_once_and_names_its_owner)
{
    struct producer_lock *lock = lock_of(arena);
    uint64_t held = lock_taken(arena);
    EXPECT_EQ_U64(held, lock_word(1, arena->owner));
    EXPECT(producer_lock_is_held(lock, held));
    uint64_t other;
    EXPECT(!producer_lock_try_acquire(lock, arena->owner, &other));
    EXPECT(producer_lock_is_held(lock, held));
    EXPECT(producer_lock_release(lock, held));
    EXPECT(lock_is_free(arena));
    EXPECT_EQ_U64(lock_taken(arena), lock_word(2, arena->owner));
}

TEST_IN_ARENA(geometry_of(8, 512), every_acquisition_has_a_number_of_its_own_also_when_it_wraps)
{
    struct producer_lock *lock = lock_of(arena);
    lock_store(lock, lock_word(UINT32_MAX - 1, 0), lock_word(UINT32_MAX - 1, 0));
    uint64_t first = lock_taken(arena);
    EXPECT_EQ_U64(lock_word_acquisition(first), UINT32_MAX);
    EXPECT(producer_lock_release(lock, first));
    uint64_t second = lock_taken(arena);
    EXPECT_EQ_U64(lock_word_acquisition(second), 0);
    EXPECT(!producer_lock_release(lock, first)); /* an older acquisition of the same owner */
    EXPECT(producer_lock_is_held(lock, second));
    EXPECT(producer_lock_release(lock, second));
}

/* ---- threads that pose as processes ---- */

enum { THREADS = 6, ROUNDS = 2000 };

static uint64_t guarded; /* protected by the lock, so not atomic */

static void *race(void *argument)
{
    struct arena *arena = argument;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t held;
        EXPECT_EQ_U64(producer_lock_acquire(arena, lock_of(arena), LONG_NS, &held), LOCK_ACQUIRED);
        ++guarded;
        EXPECT(producer_lock_release(lock_of(arena), held));
        sched_yield(); /* waiters spin; if there are more threads than cores, they must yield to the holder */
    }
    return NULL;
}

TEST_IN_ARENA(geometry_of(8, 512), many_threads_exclude_each_other)
{
    run_in_threads(file, arena, THREADS, race);
    EXPECT_EQ_U64(guarded, THREADS * ROUNDS);
    EXPECT(lock_is_free(arena));
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_PASSED), 0);
}

/* ---- pass ---- */

static int hook_count;

static void *hook_begin(void)
{
    hook_count++;
    return NULL;
}

TEST_IN_ARENA(geometry_of(8, 512), a_process_that_may_pass_the_holder_never_sleeps)
{
    struct arena *holder = arena_attached(file);
    uint64_t held;
    arena->blocking = (struct blocking_hooks){.begin = hook_begin};
    (void)lock_taken(holder);
    EXPECT_EQ_U64(producer_lock_acquire(arena, lock_of(arena), SHORT_NS, &held), LOCK_TAKEN_OVER);
    EXPECT_EQ_U64((uint64_t)hook_count, 0);
    EXPECT(producer_lock_release(lock_of(arena), held));
    arena_detach(holder);
}

TEST_IN_ARENA(geometry_of(8, 512), a_release_of_a_passed_holder_returns_false_and_changes_nothing)
{
    struct arena *passer = arena_attached(file);
    struct producer_lock *lock = lock_of(arena);
    uint64_t taken = 0;
    uint64_t held = lock_taken(arena);
    EXPECT_EQ_U64(producer_lock_acquire(passer, lock, SHORT_NS, &taken), LOCK_TAKEN_OVER);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_LOCKS_PASSED), 1);
    EXPECT(!producer_lock_is_held(lock, held));
    EXPECT(!producer_lock_release(lock, held));
    EXPECT(producer_lock_is_held(lock, taken));
    EXPECT_EQ_U64(load_relaxed_u64(&lock->released), 0);
    EXPECT(producer_lock_release(lock, taken));
    EXPECT(!producer_lock_release(lock, held));
    EXPECT(lock_is_free(arena));
    arena_detach(passer);
}

/* The patience starts over at each acquisition: a waiter does not pass while the lock changes hands. */
static void *hand_over_and_over(void *argument)
{
    struct arena *arena = argument;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t held = 0;
        while (!producer_lock_try_acquire(lock_of(arena), arena->owner, &held)) {
            sched_yield();
        }
        EXPECT(producer_lock_release(lock_of(arena), held));
    }
    return NULL;
}

TEST_IN_ARENA(geometry_of(8, 512), a_lock_that_changes_hands_is_not_passed)
{
    struct arena *other = arena_attached_for_thread(file, arena);
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, hand_over_and_over, other) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t held;
        EXPECT_EQ_U64(producer_lock_acquire(arena, lock_of(arena), LONG_NS, &held), LOCK_ACQUIRED);
        EXPECT(producer_lock_release(lock_of(arena), held));
    }
    pthread_join(thread, NULL);
    arena_detach(other);
}

/* Acquire the lock until this thread releases it without having been passed. After that, no other thread uses an older
 * word. */
static void *acquire_by_force(void *argument)
{
    struct arena *arena = argument;
    uint64_t held;
    do {
        (void)producer_lock_acquire(arena, lock_of(arena), SHORT_NS, &held);
    } while (!producer_lock_release(lock_of(arena), held));
    return NULL;
}

/* All pass at once. One of them wins, and the others continue after it. */
TEST_IN_ARENA(geometry_of(8, 512), many_processes_pass_one_holder_and_all_of_them_continue)
{
    uint64_t held = lock_taken(arena);
    run_in_threads(file, arena, THREADS, acquire_by_force);
    EXPECT(!producer_lock_release(lock_of(arena), held));
    EXPECT(counter_value(arena, COUNTER_LOCKS_PASSED) >= 1);
}

/* ---- the late store of a passed holder ---- */

static void pass_and_leave(void *argument)
{
    struct arena *passer = argument;
    uint64_t held;
    EXPECT_EQ_U64(producer_lock_acquire(passer, lock_of(passer), SHORT_NS, &held), LOCK_TAKEN_OVER);
    EXPECT(producer_lock_release(lock_of(passer), held));
}

TEST_IN_ARENA(geometry_of(8, 512), a_late_store_makes_a_free_lock_look_held_until_it_is_passed)
{
    struct arena *passer = arena_attached(file);
    uint64_t held = lock_taken(arena);
    interrupt_at("producer_lock_still_held", 0, pass_and_leave, passer);
    EXPECT(producer_lock_release(lock_of(arena), held)); /* it was not passed before its check */
    EXPECT(interruption_is_over());
    EXPECT(!lock_is_free(arena));
    uint64_t other;
    EXPECT(!producer_lock_try_acquire(lock_of(passer), passer->owner, &other));
    pass_and_leave(passer);
    EXPECT(lock_is_free(arena));
    arena_detach(passer);
}

static void pass_and_stay(void *argument)
{
    struct arena *passer = argument;
    uint64_t held;
    EXPECT_EQ_U64(producer_lock_acquire(passer, lock_of(passer), SHORT_NS, &held), LOCK_TAKEN_OVER);
}

TEST_IN_ARENA(geometry_of(8, 512), a_late_store_does_not_release_the_lock_of_another_holder)
{
    struct arena *passer = arena_attached(file);
    uint64_t held = lock_taken(arena);
    interrupt_at("producer_lock_still_held", 0, pass_and_stay, passer);
    (void)producer_lock_release(lock_of(arena), held);
    EXPECT(interruption_is_over());
    EXPECT(!lock_is_free(arena));
    arena_detach(passer);
}

/* N2: `released` still has the word that this process stored 2^32 acquisitions ago, and the next number would make the
 * same word. */
TEST_IN_ARENA(geometry_of(8, 512), no_process_takes_a_word_equal_to_released)
{
    struct producer_lock *lock = lock_of(arena);
    uint64_t held = 0;
    lock_store(lock, lock_word(7, owner_of(9, 1)), lock_word(8, arena->owner));
    EXPECT_EQ_U64(producer_lock_acquire(arena, lock, SHORT_NS, &held), LOCK_TAKEN_OVER);
    EXPECT(producer_lock_is_held(lock, held));
    EXPECT(!lock_is_free(arena));
    EXPECT(producer_lock_release(lock, held));
    EXPECT(lock_is_free(arena));
}

/* N3: the numbers wrap around while a process is about to take the free lock. By then, the earlier holder has the lock
 * again, with the same word. */
static void come_round_to_the_same_word(void *argument)
{
    struct producer_lock *lock = argument;
    store_relaxed_u64(&lock->released, lock_word(6, owner_of(9, 1)));
}

TEST_IN_ARENA(geometry_of(8, 512), a_process_that_takes_the_lock_after_a_wrap_of_its_number_repairs)
{
    struct producer_lock *lock = lock_of(arena);
    uint64_t held = 0;
    lock_store(lock, lock_word(7, owner_of(9, 1)), lock_word(7, owner_of(9, 1)));
    interrupt_at("producer_lock_found_free", 0, come_round_to_the_same_word, lock);
    EXPECT_EQ_U64(producer_lock_acquire(arena, lock, SHORT_NS, &held), LOCK_TAKEN_OVER);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(held, lock_word(9, arena->owner)); /* the process passed itself */
    EXPECT(producer_lock_release(lock, held));
    EXPECT(lock_is_free(arena));
}

TEST_IN_ARENA(geometry_of(8, 512), a_lock_with_any_corrupt_word_is_passed)
{
    struct producer_lock *lock = lock_of(arena);
    const uint64_t words[] = {0, UINT64_MAX, lock_word(5, arena->owner), lock_word(UINT32_MAX, owner_of(15, 3))};
    for (uint32_t i = 0; i < COUNT_OF(words); i++) {
        uint64_t held = 0;
        lock_store(lock, words[i], words[i] + 1);
        EXPECT_EQ_U64(producer_lock_acquire(arena, lock, SHORT_NS, &held), LOCK_TAKEN_OVER);
        EXPECT(producer_lock_release(lock, held));
        EXPECT(lock_is_free(arena));
    }
}

#if !defined(__SANITIZE_THREAD__) /* TSan does not follow forks */

static void run_hold_and_raise(struct arena *arena, void *argument)
{
    uint64_t held = lock_taken(arena);
    raise(*(int *)argument);
    EXPECT(!producer_lock_release(lock_of(arena), held)); /* if it continues, it was passed */
}

TEST_IN_ARENA(geometry_of(8, 512), the_lock_of_a_killed_process_is_taken_over)
{
    int signal = SIGKILL;
    uint64_t held = 0;
    EXPECT(child_was_killed(child_started(file, run_hold_and_raise, &signal, NULL, 0)));
    EXPECT_EQ_U64(producer_lock_acquire(arena, lock_of(arena), SHORT_NS, &held), LOCK_TAKEN_OVER);
    EXPECT(producer_lock_release(lock_of(arena), held));
}

TEST_IN_ARENA(geometry_of(8, 512), a_stopped_holder_is_passed_and_finds_out)
{
    int signal = SIGSTOP;
    uint64_t held = 0;
    pid_t child = child_started(file, run_hold_and_raise, &signal, NULL, 0);
    EXPECT(child_is_stopped(child));
    EXPECT_EQ_U64(producer_lock_acquire(arena, lock_of(arena), SHORT_NS, &held), LOCK_TAKEN_OVER);
    EXPECT(child_finishes(child));
    EXPECT(producer_lock_is_held(lock_of(arena), held));
    EXPECT(producer_lock_release(lock_of(arena), held));
}

#endif

RUN_ALL()
