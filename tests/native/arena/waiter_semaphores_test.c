/* SPDX-License-Identifier: Apache-2.0 */
/* runs under: tsan */
#include "arena/waiter_semaphores.h"

#include "arena/arena_fixture.h"

#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "arena/buffer_pool.h"
#include "arena/waiter_sleep.h"

enum { SLOTS = 4 };

#define AN_HOUR_NS (3600 * NS_PER_S)

/* An arena whose buffers are all taken, and the semaphore of its first waiter. */
struct full {
    struct arena *arena;
    uint32_t slots[SLOTS];
    uint32_t slot_count;
    char name[64];
    int file;
};

static void full_begin(struct full *full)
{
    *full = (struct full){.file = arena_file_new()};
    full->arena = arena_created(full->file, geometry_of(SLOTS, 512));
    while (buffer_pool_try_allocate(full->arena, &full->slots[full->slot_count]) == STATUS_OK) {
        full->slot_count++;
    }
    EXPECT_EQ_U64(full->slot_count, SLOTS);
    const uint8_t *uuid = full->arena->uuid;
    snprintf(full->name, sizeof full->name, "/shmaccum-%02x%02x%02x%02x%02x%02x.w0", uuid[0], uuid[1], uuid[2],
             uuid[3], uuid[4], uuid[5]);
}

static void semaphore_make_with(const struct full *full, unsigned post_count)
{
    sem_t *semaphore = sem_open(full->name, O_CREAT | O_EXCL, 0600, post_count);
    EXPECT(semaphore != SEM_FAILED);
    sem_close(semaphore);
}

static void semaphore_make(const struct full *full)
{
    semaphore_make_with(full, 0);
}

/* Free the rest of the buffers that were allocated at the beginning. No process waits. */
static void full_end(struct full *full)
{
    buffer_pool_return(full->arena, full->slots, full->slot_count, NULL);
    expect_all_free(full->arena);
    sem_unlink(full->name);
    arena_end(full->arena, full->file);
}

static void give_one_back(void *argument)
{
    struct full *full = argument;
    struct wake_set wakes = {0};
    buffer_pool_return(full->arena, &full->slots[--full->slot_count], 1, &wakes);
    waiters_wake(full->arena, &wakes);
    EXPECT_EQ_U64(wakes.count, 0);
}

static struct buffer_wait wait_begun(struct arena *arena)
{
    struct buffer_wait wait;
    struct wake_set wakes = {0};
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &wait, &wakes), STATUS_OK);
    EXPECT_EQ_U64(wakes.count, 0);
    return wait;
}

static void take_and_give_back(struct arena *arena, const struct buffer_wait *wait)
{
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_take(arena, wait, &slot_index), STATUS_OK);
    buffer_pool_return(arena, &slot_index, 1, NULL);
}

static uint64_t now_ns(void)
{
    static const struct clock clock = {0};
    return clock_now_ns(&clock);
}

/* ---- sleep ---- */

TEST_WITH(full, full_begin, a_grant_before_the_sleep_is_not_slept_through)
{
    semaphore_make(full);
    struct buffer_wait wait = wait_begun(full->arena);
    interrupt_at("waiter_sleeps", 0, give_one_back, full);
    EXPECT_STATUS(waiter_sleep(full->arena, &wait, AN_HOUR_NS), STATUS_OK);
    EXPECT(interruption_is_over());
    take_and_give_back(full->arena, &wait);
}

/* A post for the first wait is left. The second wait takes it, checks its word, and sleeps again. */
TEST_WITH(full, full_begin, a_post_that_came_too_late_ends_no_other_wait)
{
    semaphore_make(full);
    struct buffer_wait first = wait_begun(full->arena);
    give_one_back(full);
    EXPECT_STATUS(waiter_sleep(full->arena, &first, AN_HOUR_NS), STATUS_OK);
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_take(full->arena, &first, &slot_index), STATUS_OK);
    full->slots[full->slot_count++] = slot_index;
    struct buffer_wait second = wait_begun(full->arena);
    EXPECT_EQ_U64(second.waiter_index, first.waiter_index);
    uint64_t begin_ns = now_ns();
    EXPECT_STATUS(waiter_sleep(full->arena, &second, 5 * NS_PER_MS), STATUS_EXHAUSTED);
    EXPECT(now_ns() - begin_ns >= 4 * NS_PER_MS);
    EXPECT_STATUS(buffer_pool_leave(full->arena, &second, (uint32_t[8]){0}, NULL), STATUS_EXHAUSTED);
}

struct sleeper {
    struct full *full;
    struct buffer_wait wait;
};

static void interrupt_sleeper(void *argument)
{
    struct sleeper *sleeper = argument;
    waiter_interrupt(sleeper->full->arena, &sleeper->wait);
}

static void *interrupt_in_thread(void *argument)
{
    interrupt_sleeper(argument);
    return NULL;
}

static void sleeper_end(struct sleeper *sleeper)
{
    EXPECT_STATUS(buffer_pool_leave(sleeper->full->arena, &sleeper->wait, (uint32_t[8]){0}, NULL), STATUS_EXHAUSTED);
    full_end(sleeper->full);
}

TEST(an_interrupt_ends_a_sleep_and_each_later_one)
{
    struct full full;
    full_begin(&full);
    semaphore_make(&full);
    struct sleeper sleeper = {.full = &full, .wait = wait_begun(full.arena)};
    interrupt_at("waiter_sleeps", 0, interrupt_sleeper, &sleeper);
    EXPECT_STATUS(waiter_sleep(full.arena, &sleeper.wait, AN_HOUR_NS), STATUS_EXHAUSTED);
    EXPECT(interruption_is_over());
    EXPECT_STATUS(waiter_sleep(full.arena, &sleeper.wait, AN_HOUR_NS), STATUS_EXHAUSTED);
    sleeper_end(&sleeper);
}

TEST(an_interrupt_by_another_thread_ends_a_sleep)
{
    struct full full;
    full_begin(&full);
    semaphore_make(&full);
    struct sleeper sleeper = {.full = &full, .wait = wait_begun(full.arena)};
    EXPECT(waiter_semaphore_open(full.arena, sleeper.wait.waiter_index));
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, interrupt_in_thread, &sleeper) == 0);
    EXPECT_STATUS(waiter_sleep(full.arena, &sleeper.wait, AN_HOUR_NS), STATUS_EXHAUSTED);
    pthread_join(thread, NULL);
    sleeper_end(&sleeper);
}

TEST(no_sleep_begins_in_an_arena_that_takes_no_more_records)
{
    struct full full;
    full_begin(&full);
    semaphore_make(&full);
    struct sleeper sleeper = {.full = &full, .wait = wait_begun(full.arena)};
    store_relaxed_u32(&full.arena->globals->poisoned_status, STATUS_CORRUPT);
    EXPECT_STATUS(waiter_sleep(full.arena, &sleeper.wait, AN_HOUR_NS), STATUS_EXHAUSTED);
    store_relaxed_u32(&full.arena->globals->poisoned_status, STATUS_OK);
    store_relaxed_u32(&full.arena->globals->closing, CLOSING_BEGUN);
    EXPECT_STATUS(waiter_sleep(full.arena, &sleeper.wait, AN_HOUR_NS), STATUS_EXHAUSTED);
    store_relaxed_u32(&full.arena->globals->closing, CLOSING_NOT);
    sleeper_end(&sleeper);
}

/* The seconds by which the wall clock of this program is ahead of the kernel's. */
static time_t wall_ahead_s;

/* Replaces the C library's function, which also asks the kernel. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
    long answer = syscall(SYS_clock_gettime, clock, time);
    time->tv_sec += clock == CLOCK_REALTIME ? wall_ahead_s : 0;
    return (int)answer;
}

/* The sleep reads another clock than the one that ends it. A step of the wall clock between the two has this effect. */
static void expect_sleep_in_time(struct arena *arena, struct buffer_wait *wait, time_t ahead_s)
{
    uint64_t begin_ns = now_ns();
    wall_ahead_s = ahead_s;
    EXPECT_STATUS(waiter_sleep(arena, wait, 5 * NS_PER_MS), STATUS_EXHAUSTED);
    wall_ahead_s = 0;
    EXPECT(now_ns() - begin_ns >= 4 * NS_PER_MS);
    EXPECT(now_ns() - begin_ns < 20 * NS_PER_S);
}

TEST_WITH(full, full_begin, a_step_of_the_wall_clock_neither_lengthens_nor_ends_a_sleep)
{
    struct buffer_wait wait = wait_begun(full->arena);
    expect_sleep_in_time(full->arena, &wait, 60); /* the clock is set back by a minute */
    expect_sleep_in_time(full->arena, &wait, -60);
    semaphore_make(full);
    expect_sleep_in_time(full->arena, &wait, 60);
    expect_sleep_in_time(full->arena, &wait, -60);
    EXPECT_STATUS(buffer_pool_leave(full->arena, &wait, (uint32_t[8]){0}, NULL), STATUS_EXHAUSTED);
}

TEST_WITH(full, full_begin, without_a_semaphore_a_slice_is_slept)
{
    struct buffer_wait wait = wait_begun(full->arena);
    EXPECT(!waiter_semaphore_open(full->arena, wait.waiter_index));
    EXPECT(!waiter_semaphore_is_open(full->arena, wait.waiter_index));
    uint64_t begin_ns = now_ns();
    EXPECT_STATUS(waiter_sleep(full->arena, &wait, NS_PER_MS), STATUS_EXHAUSTED);
    EXPECT(now_ns() - begin_ns < 20 * NS_PER_S);
    give_one_back(full);
    EXPECT_STATUS(waiter_sleep(full->arena, &wait, AN_HOUR_NS), STATUS_OK);
    semaphore_make(full);
    EXPECT(waiter_semaphore_open(full->arena, wait.waiter_index));
    EXPECT(waiter_semaphore_is_open(full->arena, wait.waiter_index));
    take_and_give_back(full->arena, &wait);
}

/* ---- files in the place of a semaphore ---- */

static void path_write(const struct full *full, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/sem.%s", full->name + 1);
}

static void expect_slices(struct arena *arena)
{
    struct buffer_wait wait = wait_begun(arena);
    EXPECT(!waiter_semaphore_open(arena, wait.waiter_index));
    EXPECT_STATUS(waiter_sleep(arena, &wait, NS_PER_MS), STATUS_EXHAUSTED);
    EXPECT_STATUS(buffer_pool_leave(arena, &wait, (uint32_t[8]){0}, NULL), STATUS_EXHAUSTED);
}

/* The file has no first page, so a sleep on it would end the process by SIGBUS. */
TEST_WITH(full, full_begin, an_empty_file_in_the_place_of_a_semaphore_is_not_slept_on)
{
    char path[96];
    path_write(full, path, sizeof path);
    int empty = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    EXPECT(empty >= 0);
    expect_slices(full->arena);
    close(empty);
}

/* The other user may truncate the file later. Only root can create such a file here. */
TEST_WITH(full, full_begin, a_semaphore_of_a_user_outside_is_not_slept_on)
{
    enum { STRANGER = 12345, GROUP = 23456 };
    char path[96];
    semaphore_make(full);
    path_write(full, path, sizeof path);
    EXPECT(fchmod(full->file, 0600) == 0);
    if (chown(path, STRANGER, GROUP) == 0) {
        expect_slices(full->arena);
        EXPECT(fchown(full->file, (uid_t)-1, GROUP) == 0);
        expect_slices(full->arena);
        EXPECT(fchmod(full->file, 0660) == 0);
        EXPECT(waiter_semaphore_open(full->arena, 0)); /* the arena is shared with this group */
    }
}

/* The owner of the arena made it, and another user, here root, waits. */
TEST_WITH(full, full_begin, a_semaphore_of_the_owner_of_the_arena_is_slept_on)
{
    enum { OWNER = 12345 };
    char path[96];
    semaphore_make(full);
    path_write(full, path, sizeof path);
    if (chown(path, OWNER, (gid_t)-1) == 0) {
        EXPECT(fchown(full->file, OWNER, (gid_t)-1) == 0);
    }
    EXPECT(waiter_semaphore_open(full->arena, 0));
}

/* ---- processes ---- */

static void wait_for_one(struct arena *arena, void *unused)
{
    (void)unused;
    struct buffer_wait wait = wait_begun(arena);
    EXPECT_STATUS(waiter_sleep(arena, &wait, AN_HOUR_NS), STATUS_OK);
    take_and_give_back(arena, &wait);
}

/* `waiting_count` is raised before the word of the waiter, and a buffer that is given back in between is granted to no
 * one. */
static void await_waiting(const struct arena *arena)
{
    while (waiter_word_state(load_acquire_u64(&arena->waiters[0].word)) != WAITER_WAIT) {
        sched_yield();
    }
}

TEST_WITH(full, full_begin, a_sleeper_of_another_process_is_woken)
{
    semaphore_make(full);
    pid_t child = child_started(full->file, wait_for_one, NULL, NULL, 0);
    await_waiting(full->arena);
    give_one_back(full);
    EXPECT(child_is_content(child));
}

/* If the sleeper took the posts one by one, it would need minutes. */
TEST_WITH(full, full_begin, a_sleep_ends_in_time_beside_any_number_of_posts)
{
    semaphore_make_with(full, INT_MAX);
    struct buffer_wait wait = wait_begun(full->arena);
    uint64_t begin_ns = now_ns();
    EXPECT_STATUS(waiter_sleep(full->arena, &wait, NS_PER_MS), STATUS_EXHAUSTED);
    EXPECT(now_ns() - begin_ns < 20 * NS_PER_S);
    give_one_back(full);
    EXPECT_STATUS(waiter_sleep(full->arena, &wait, NS_PER_MS), STATUS_OK);
    take_and_give_back(full->arena, &wait);
}

TEST_WITH(full, full_begin, a_waiter_killed_before_its_sleep_costs_nothing)
{
    semaphore_make(full);
    pid_t child = child_started(full->file, wait_for_one, NULL, "waiter_sleeps", SIGKILL);
    EXPECT(child_was_killed(child));
    buffer_pool_repair(full->arena);
    EXPECT_EQ_U64(load_acquire_u32(&full->arena->globals->waiting_count), 0);
}

TEST_WITH(full, full_begin, a_waiter_killed_in_its_sleep_costs_nothing)
{
    semaphore_make(full);
    pid_t child = child_started(full->file, wait_for_one, NULL, NULL, 0);
    await_waiting(full->arena);
    EXPECT(child_kill(child));
    give_one_back(full); /* a grant to a dead waiter */
    buffer_pool_repair(full->arena);
    EXPECT_EQ_U64(load_acquire_u32(&full->arena->globals->waiting_count), 0);
}

static void give_back_and_wake(struct arena *arena, void *argument)
{
    uint32_t slot_index = *(uint32_t *)argument;
    struct wake_set wakes = {0};
    buffer_pool_return(arena, &slot_index, 1, &wakes);
    waiters_wake(arena, &wakes);
}

/* The grant remains, and the waiter finds it when its slice ends. */
TEST_WITH(full, full_begin, a_waker_killed_before_its_post_costs_a_slice)
{
    semaphore_make(full);
    struct buffer_wait wait = wait_begun(full->arena);
    uint32_t slot_index = full->slots[--full->slot_count];
    pid_t child = child_started(full->file, give_back_and_wake, &slot_index, "waiter_served", SIGKILL);
    EXPECT(child_was_killed(child));
    EXPECT_STATUS(waiter_sleep(full->arena, &wait, 20 * NS_PER_MS), STATUS_OK);
    take_and_give_back(full->arena, &wait);
}

RUN_ALL()
