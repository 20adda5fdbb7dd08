/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/waiter_sleep.h"

#include <errno.h>
#include <semaphore.h>
#include <time.h>

#include "arena/closing.h"
#include "arena/counters.h"
#include "arena/lost_memory.h"
#include "arena/parked_waiters.h"
#include "arena/waiter_semaphores.h"
#include "base/point.h"

/* ---- one sleep ---- */

/* glibc has this function since version 2.30. With an older one it is NULL, and sleeps use the wall clock. */
extern int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *end) __attribute__((weak));

static clockid_t sleep_clock(void)
{
    return sem_clockwait != NULL ? CLOCK_MONOTONIC : CLOCK_REALTIME;
}

static int semaphore_wait(sem_t *semaphore, const struct timespec *end)
{
    return sem_clockwait != NULL ? sem_clockwait(semaphore, CLOCK_MONOTONIC, end) : sem_timedwait(semaphore, end);
}

static struct timespec time_after(uint64_t timeout_ns)
{
    struct timespec time;
    clock_gettime(sleep_clock(), &time);
    uint64_t nsec = (uint64_t)time.tv_nsec + timeout_ns;
    time.tv_sec += (time_t)(nsec / NS_PER_S);
    time.tv_nsec = (long)(nsec % NS_PER_S);
    return time;
}

static bool is_past(const struct timespec *end)
{
    struct timespec now;
    clock_gettime(sleep_clock(), &now);
    return now.tv_sec > end->tv_sec || (now.tv_sec == end->tv_sec && now.tv_nsec >= end->tv_nsec);
}

/* Returns false after a signal. If there is no semaphore, it sleeps until the end. It may return true before the end:
 * the semaphore may have any number of posts. */
static bool post_await(sem_t *semaphore, const struct timespec *end)
{
    if (semaphore == NULL) {
        return clock_nanosleep(sleep_clock(), TIMER_ABSTIME, end, NULL) == 0;
    }
    return semaphore_wait(semaphore, end) == 0 || errno == ETIMEDOUT;
}

static bool is_before(const struct timespec *time, const struct timespec *other)
{
    return time->tv_sec < other->tv_sec || (time->tv_sec == other->tv_sec && time->tv_nsec < other->tv_nsec);
}

/* Sleeps once. Returns false after a signal, at the end of the time, or if a parked waiter fits. */
static bool sleep_once(const struct arena *arena, struct buffer_wait *wait, sem_t *semaphore,
                       const struct timespec *end)
{
    bool is_parked = buffer_pool_is_parked(arena, wait);
    struct timespec slice_end = time_after(is_parked ? parked_waiter_sleep_ns(arena, wait) : CHECK_SLICE_NS);
    if (is_before(end, &slice_end)) {
        slice_end = *end;
    }
    if (!post_await(semaphore, &slice_end) || is_past(end)) {
        return false;
    }
    return !is_parked || parked_waiter_may_sleep(arena, wait);
}

static bool arena_is_usable(const struct arena *arena)
{
    return arena_takes_records(arena) && !arena_is_poisoned(arena) && !arena_is_lost(arena);
}

/* Returns false if the wait was interrupted, or the arena takes no more records. */
static bool wait_continues(const struct arena *arena, const struct buffer_wait *wait)
{
    return load_acquire_u32(&wait->is_interrupted) == 0 && arena_is_usable(arena); /* V2 */
}

enum status waiter_sleep(struct arena *arena, struct buffer_wait *wait, uint64_t timeout_ns)
{
    const struct timespec end = time_after(timeout_ns);
    sem_t *semaphore =
        waiter_semaphore_open(arena, wait->waiter_index) ? arena->semaphores[wait->waiter_index] : NULL;
    void *state = arena->blocking.begin != NULL ? arena->blocking.begin() : NULL;
    POINT(waiter_sleeps);
    while (buffer_pool_poll(arena, wait) == STATUS_EXHAUSTED && wait_continues(arena, wait) &&
           sleep_once(arena, wait, semaphore, &end)) {
    }
    if (arena->blocking.end != NULL) {
        arena->blocking.end(state);
    }
    if (UNLIKELY(!arena_is_usable(arena))) {
        parked_waiters_post_all(arena); /* they sleep for a long time */
    }
    return buffer_pool_poll(arena, wait);
}

void waiter_interrupt(struct arena *arena, struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    store_release_u32(&wait->is_interrupted, 1); /* V2 */
    waiter_post(arena, wait->waiter_index);
}
