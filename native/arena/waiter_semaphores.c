/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/waiter_semaphores.h"

#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/point.h"

enum { PATH_SIZE_MAX = 64 };

/* ---- open ---- */

/* Returns true for a file of this user, of root, of the arena's owner, or of the group that the arena is shared with.
 * Any other user may have created an empty file under the name, or may truncate it later, and then a sleep on it ends
 * with SIGBUS. Checks the descriptor that is mapped afterwards. */
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

/* Does what sem_open does, but checks the descriptor. */
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

bool waiter_semaphore_has_post(struct arena *arena, uint32_t waiter_index)
{
    int post_count = 0;
    return waiter_semaphore_open(arena, waiter_index) &&
           sem_getvalue(arena->semaphores[waiter_index], &post_count) == 0 && post_count > 0;
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

/* ---- post ---- */

void waiter_post(struct arena *arena, uint32_t waiter_index)
{
    if (waiter_index < arena->geometry.waiter_count && waiter_semaphore_open(arena, waiter_index)) {
        sem_post(arena->semaphores[waiter_index]);
    }
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
