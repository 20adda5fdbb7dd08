/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/waiter_semaphores.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "arena/closing.h"
#include "arena/counters.h"
#include "arena/lost_memory.h"
#include "base/point.h"

enum { PATH_SIZE_MAX = 64 };

/* ---- open ---- */

/* True for a file of this user, of root, of the arena's owner, or of the group that the arena is shared with. Any other
 * user may have made an empty file under the name, or may empty it later, and a sleep on it ends by SIGBUS. The file
 * that is looked at is the one that is mapped. */
static bool semaphore_is_trusted(const struct arena *arena, int descriptor)
{
    struct stat found;
    struct stat shared;
    CHECK(descriptor >= 0);
    if (fstat(descriptor, &found) < 0 || fstat(arena->map_descriptor, &shared) < 0) {
        return false;
    }
    bool is_semaphore = S_ISREG(found.st_mode) && found.st_size >= (off_t)sizeof(sem_t);
    bool is_of_user = found.st_uid == geteuid() || found.st_uid == shared.st_uid || found.st_uid == 0;
    bool is_of_group = (shared.st_mode & S_IWGRP) != 0 && found.st_gid == shared.st_gid;
    return is_semaphore && (is_of_user || is_of_group);
}

/* As sem_open does it, which tells nobody the descriptor. */
static sem_t *semaphore_map(const struct arena *arena, const char *path)
{
    const int descriptor = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
        return NULL;
    }
    void *found = MAP_FAILED;
    if (semaphore_is_trusted(arena, descriptor)) {
        found = mmap(NULL, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    }
    close(descriptor);
    return found == MAP_FAILED ? NULL : found;
}

static sem_t *semaphore_find(const struct arena *arena, uint32_t waiter_index)
{
    const uint8_t *uuid = arena->uuid;
    char path[PATH_SIZE_MAX];
    CHECK(waiter_index < WAITER_COUNT_MAX);
    snprintf(path, sizeof path, "/dev/shm/sem.shmaccum-%02x%02x%02x%02x%02x%02x.w%u", uuid[0], uuid[1], uuid[2],
             uuid[3], uuid[4], uuid[5], waiter_index);
    return semaphore_map(arena, path);
}

static bool table_make(struct arena *arena)
{
    if (arena->semaphores == NULL) {
        arena->semaphores = calloc(arena->geometry.waiter_count, sizeof *arena->semaphores);
    }
    return arena->semaphores != NULL;
}

bool waiter_semaphore_open(struct arena *arena, uint32_t waiter_index)
{
    CHECK(waiter_index < arena->geometry.waiter_count);
    if (!table_make(arena)) {
        return false;
    }
    if (arena->semaphores[waiter_index] == NULL) {
        arena->semaphores[waiter_index] = semaphore_find(arena, waiter_index);
    }
    return arena->semaphores[waiter_index] != NULL;
}

bool waiter_semaphore_is_open(const struct arena *arena, uint32_t waiter_index)
{
    CHECK(waiter_index < arena->geometry.waiter_count);
    return arena->semaphores != NULL && arena->semaphores[waiter_index] != NULL;
}

void waiter_semaphores_close(struct arena *arena)
{
    for (uint32_t i = 0; arena->semaphores != NULL && i < arena->geometry.waiter_count; i++) {
        if (arena->semaphores[i] != NULL) {
            munmap(arena->semaphores[i], sizeof(sem_t));
        }
    }
    free(arena->semaphores);
    arena->semaphores = NULL;
}

/* ---- sleep ---- */

/* The C library has it since glibc 2.30. On an older one it is NULL, and sleeps go by the wall clock. */
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

/* False when a signal came. Without a semaphore no post comes. A semaphore that has a post does not look at the clock,
 * and its number of posts is input. */
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

/* One sleep. True when the waiter has to sleep on: it has no grant yet, or is parked and does not fit. */
static bool sleep_once(struct arena *arena, const struct buffer_wait *wait, sem_t *semaphore,
                       const struct timespec *end)
{
    bool is_parked = buffer_pool_is_parked(arena, wait);
    struct timespec slice_end = time_after(is_parked ? PARKED_SLICE_NS : LOOK_SLICE_NS);
    if (is_before(end, &slice_end)) {
        slice_end = *end;
    }
    if (!post_await(semaphore, &slice_end) || is_past(end)) {
        return false;
    }
    return !is_parked || buffer_pool_stays_parked(arena, wait);
}

/* False when its process has to look: it is interrupted, or the arena takes no more records. */
static bool wait_goes_on(const struct arena *arena, const struct buffer_wait *wait)
{
    return load_acquire_u32(&wait->is_interrupted) == 0 && /* V2 */
           arena_takes_records(arena) && !arena_is_poisoned(arena) && !arena_is_lost(arena);
}

enum status waiter_sleep(struct arena *arena, const struct buffer_wait *wait, uint64_t timeout_ns)
{
    const struct timespec end = time_after(timeout_ns);
    sem_t *semaphore =
        waiter_semaphore_open(arena, wait->waiter_index) ? arena->semaphores[wait->waiter_index] : NULL;
    void *state = arena->blocking.begin != NULL ? arena->blocking.begin() : NULL;
    POINT(waiter_sleeps);
    while (buffer_pool_poll(arena, wait) == STATUS_EXHAUSTED && wait_goes_on(arena, wait) &&
           sleep_once(arena, wait, semaphore, &end)) {
    }
    if (arena->blocking.end != NULL) {
        arena->blocking.end(state);
    }
    return buffer_pool_poll(arena, wait);
}

/* ---- wake ---- */

static void waiter_post(struct arena *arena, uint32_t waiter_index)
{
    if (waiter_index < arena->geometry.waiter_count && waiter_semaphore_open(arena, waiter_index)) {
        sem_post(arena->semaphores[waiter_index]);
    }
}

void waiter_interrupt(struct arena *arena, struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    store_release_u32(&wait->is_interrupted, 1); /* V2 */
    waiter_post(arena, wait->waiter_index);
}

void waiters_post(struct arena *arena, struct wake_set *wakes)
{
    CHECK(wakes->count > 0);
    for (uint32_t i = 0; i < WAITER_COUNT_MAX / 64; i++) {
        for (uint64_t bits = wakes->bits[i]; bits != 0; bits &= bits - 1) {
            POINT(waiter_served);
            waiter_post(arena, i * 64 + (uint32_t)__builtin_ctzll(bits));
        }
    }
    *wakes = (struct wake_set){0};
}
