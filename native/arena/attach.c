/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arena/buffer_pool.h"
#include "arena/byte_lock.h"
#include "arena/closing.h"
#include "arena/counters.h"
#include "arena/extension.h"
#include "arena/fork.h"
#include "arena/lost_memory.h"
#include "arena/process.h"
#include "arena/process_share.h"
#include "arena/recovery.h"
#include "arena/superblock.h"
#include "arena/unfinished_waits.h"
#include "arena/waiter_semaphores.h"
#include "base/point.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ---- the file and its memory ---- */

/* Unmaps, and closes the descriptors. Closing the lock descriptor releases every byte lock of this process. */
static void arena_free(struct arena *arena)
{
    CHECK(arena->base != NULL || arena->size == 0);
    CHECK(arena->map_descriptor >= 0);
    if (arena->base != NULL) {
        lost_memory_forget(arena);
        munmap(arena->base, arena->size);
    }
    close(arena->map_descriptor);
    if (arena->lock_descriptor >= 0) {
        close(arena->lock_descriptor);
    }
    waiter_semaphores_close(arena);
    unfinished_waits_drop(arena);
    free(arena->chain_scratch);
    free(arena);
}

static enum status memory_map(struct arena *arena, int protection, struct error *error)
{
    RETURN_IF_FAILED(arena_map(arena, protection, error));
    return lost_memory_watch(arena, error);
}

static enum status descriptors_check(struct arena *arena, struct stat *found, struct error *error)
{
    struct stat lock_file;
    if (fstat(arena->map_descriptor, found) < 0 || fstat(arena->lock_descriptor, &lock_file) < 0) {
        return error_set_os(error, "cannot examine the arena file");
    }
    if (!S_ISREG(found->st_mode) || found->st_dev != lock_file.st_dev || found->st_ino != lock_file.st_ino) {
        return error_set(error, STATUS_NOT_AN_ARENA, "the arena must be one regular file, opened twice");
    }
    arena->had_name = found->st_nlink > 0;
    return STATUS_OK;
}

/* Another open of the file must see the lock. On some network file systems it does not, and then no process could
 * detect whether another one is alive. */
static enum status byte_locks_check(const struct arena *arena, struct error *error)
{
    if (!byte_is_locked(arena->map_descriptor, ATTACH_LOCK_BYTE)) {
        return error_set(error, STATUS_OS, "this file system does not keep open-file-description locks: "
                                           "put the arena on tmpfs or a local disk");
    }
    return STATUS_OK;
}

/* Kernels before 5.14 do not support the advice. There, each page is read, which is enough because posix_fallocate has
 * reserved it. EFAULT and similar errors mean that a later store would raise SIGBUS, so fail now. */
static enum status arena_populate(const struct arena *arena, uint64_t size, struct error *error)
{
    CHECK(arena->base != NULL);
    CHECK(size <= arena->size);
    if (madvise(arena->base, size, MADV_POPULATE_WRITE) == 0) {
        return STATUS_OK;
    }
    if (errno != EINVAL) {
        return error_set_os(error, "cannot populate the arena's memory");
    }
    for (uint64_t ref = 0; ref < size; ref += PAGE_SIZE_BYTES) {
        (void)*(volatile const uint8_t *)(arena->base + ref);
    }
    return STATUS_OK;
}

/* ---- this process ---- */

/* Takes a process entry and resets the process's share. Repairs the pool if the entry's previous owner died. */
static enum status arena_enter(struct arena *arena, struct error *error)
{
    CHECK(!arena->is_read_only);
    CHECK(arena->owner == 0);
    bool was_left_cleanly;
    RETURN_IF_FAILED(process_register(arena, ROLE_PRODUCER, &was_left_cleanly, error));
    process_share_begin(arena);
    arena->is_leading = false;
    if (!was_left_cleanly) {
        buffer_pool_repair(arena); /* without the lock, the next waiter repairs */
    }
#ifdef SHMACCUM_LATER_BUILD
    later_build_join(arena);
#endif
    return STATUS_OK;
}

/* Adds the arena to the list before it takes locks. Otherwise, a child forked in between would keep the locks. */
static enum status arena_register(struct arena *arena, struct error *error)
{
    fork_list_add(arena);
    enum status status = arena_enter(arena, error);
    if (status != STATUS_OK) {
        fork_list_remove(arena);
    }
    return status;
}

/* ---- create ---- */

static enum status space_reserve(const struct arena *arena, uint64_t size, struct error *error)
{
    CHECK(size % PAGE_SIZE_BYTES == 0);
    int failure;
    do {
        failure = posix_fallocate(arena->map_descriptor, 0, (off_t)size);
    } while (failure == EINTR);
    if (failure != 0) {
        errno = failure;
        return error_set_os(error, "cannot reserve the arena's space");
    }
    return STATUS_OK;
}

static void regions_fill(struct arena *arena)
{
    store_relaxed_u64(&arena->globals->producer_id, UINT64_MAX);
    boot_id_read(arena->globals->boot_id);
    counters_init(arena);
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        or_bits_u64(&arena->free_hints[i / 64], UINT64_C(1) << (i % 64)); /* V3 */
    }
}

static enum status arena_build(struct arena *arena, const void *options, uint32_t options_size, struct error *error)
{
    CHECK(options_size <= OPTIONS_SIZE_MAX);
    struct stat found;
    RETURN_IF_FAILED(descriptors_check(arena, &found, error));
    if (found.st_size != 0) {
        return error_set(error, STATUS_INVALID, "the file is not empty: an arena is created in a new file");
    }
    RETURN_IF_FAILED(byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_EXCLUSIVE, error));
    RETURN_IF_FAILED(byte_locks_check(arena, error));
    layout_compute(&arena->geometry, &arena->layout);
    arena->file_size_wanted = arena->layout.arena_size;
#ifdef SHMACCUM_LATER_BUILD
    later_build_plan(arena);
#endif
    RETURN_IF_FAILED(space_reserve(arena, arena->file_size_wanted, error));
    RETURN_IF_FAILED(memory_map(arena, PROT_READ | PROT_WRITE, error));
    RETURN_IF_FAILED(arena_populate(arena, arena->size, error));
    regions_fill(arena);
    RETURN_IF_FAILED(superblock_fill(arena, options, options_size, error));
    POINT(arena_before_magic);
    store_release_u64(&arena->superblock->magic, ARENA_MAGIC); /* V3 */
    RETURN_IF_FAILED(byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_SHARED, error));
    return arena_register(arena, error);
}

static enum status arena_finish(struct arena *arena, enum status status, struct arena **result)
{
    if (status != STATUS_OK) {
        arena_free(arena);
        return status;
    }
    *result = arena;
    return STATUS_OK;
}

enum status arena_create(int map_descriptor, int lock_descriptor, const struct geometry *geometry, const void *options,
                         uint32_t options_size, struct arena **result, struct error *error)
{
    struct arena *arena = arena_new(map_descriptor, lock_descriptor, error);
    if (arena == NULL) {
        return STATUS_OS;
    }
    enum status status = geometry_validate(geometry, error);
    if (status == STATUS_OK && options_size > OPTIONS_SIZE_MAX) {
        status = error_set(error, STATUS_INVALID, "the options take %u bytes, an arena stores at most %d", options_size,
                           OPTIONS_SIZE_MAX);
    }
    if (status == STATUS_OK) {
        arena->geometry = *geometry;
        status = arena_build(arena, options, options_size, error);
    }
    return arena_finish(arena, status, result);
}

/* ---- attach ---- */

static enum status superblock_find(struct arena *arena, struct error *error)
{
    struct stat found;
    RETURN_IF_FAILED(descriptors_check(arena, &found, error));
    return superblock_read(arena, found.st_size, error);
}

/* If no other process is attached, takes the lock exclusively, so that none attaches before recovery is done.
 * Otherwise, takes it shared, if some process has an entry: an entry proves that the arena was recovered. A shared lock
 * without any entry proves nothing, because the recovering process may have died. */
static enum status attach_lock_try(struct arena *arena, bool *is_alone, struct error *error)
{
    enum status status = byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_EXCLUSIVE, error);
    *is_alone = status == STATUS_OK;
    if (status == STATUS_BUSY) {
        status = byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_SHARED, error);
    }
    if (status != STATUS_OK || *is_alone ||
        bytes_are_locked(arena->lock_descriptor, PROCESS_LOCK_START, PROCESS_COUNT_MAX)) {
        return status;
    }
    RETURN_IF_FAILED(byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_UNLOCKED, error));
    return STATUS_BUSY;
}

static enum status attach_lock(struct arena *arena, bool *is_alone, struct error *error)
{
    enum status status = attach_lock_try(arena, is_alone, error);
    for (int i = 0; i < BYTE_LOCK_SLICE_COUNT && status == STATUS_BUSY; i++) {
        byte_lock_pause();
        status = attach_lock_try(arena, is_alone, error);
    }
    if (status == STATUS_BUSY) {
        error_set(error, STATUS_BUSY, "another process is creating or recovering this arena: wait for it, and continue "
                                      "it if it is stopped");
    }
    return status;
}

static enum status recover_alone(struct arena *arena, struct error *error)
{
    struct recovery_report report;
    RETURN_IF_FAILED(recovery_run(arena, &report, error));
    counter_add(arena, COUNTER_ARENA_RECOVERIES, 1);
    arena->was_recovered = true;
    POINT(arena_recovered);
    return byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_SHARED, error);
}

static enum status arena_join(struct arena *arena, struct error *error)
{
    bool is_alone;
    RETURN_IF_FAILED(attach_lock(arena, &is_alone, error));
    RETURN_IF_FAILED(superblock_find(arena, error));
    RETURN_IF_FAILED(memory_map(arena, PROT_READ | PROT_WRITE, error));
    RETURN_IF_FAILED(arena_populate(arena, arena->layout.slot_data, error));
    if (is_alone) {
        RETURN_IF_FAILED(recover_alone(arena, error));
    }
    store_release_u32(&arena->globals->is_clean, 0); /* V3 */
    return arena_register(arena, error);
}

enum status arena_attach(int map_descriptor, int lock_descriptor, struct arena **result, struct error *error)
{
    struct arena *arena = arena_new(map_descriptor, lock_descriptor, error);
    return arena == NULL ? STATUS_OS : arena_finish(arena, arena_join(arena, error), result);
}

enum status arena_open_read_only(int map_descriptor, int lock_descriptor, struct arena **result, struct error *error)
{
    struct arena *arena = arena_new(map_descriptor, lock_descriptor, error);
    if (arena == NULL) {
        return STATUS_OS;
    }
    arena->is_read_only = true;
    enum status status = superblock_find(arena, error);
    if (status == STATUS_OK) {
        status = memory_map(arena, PROT_READ, error);
    }
    return arena_finish(arena, status, result);
}

/* If no other process is attached any more, the child recovers the arena. */
static enum status arena_join_again(struct arena *arena, struct error *error)
{
    bool is_alone;
    RETURN_IF_FAILED(attach_lock(arena, &is_alone, error));
    if (!superblock_is_sound(arena)) {
        return error_set(error, STATUS_OTHER_LAYOUT,
                         "the arena's superblock has changed since this process was forked: another program has "
                         "written to it, or it is damaged. Attach to the arena again");
    }
    if (is_alone) {
        RETURN_IF_FAILED(recover_alone(arena, error));
    }
    store_release_u32(&arena->globals->is_clean, 0); /* V3 */
    RETURN_IF_FAILED(arena_enter(arena, error));
    closing_check_now(arena);
    return STATUS_OK;
}

enum status arena_ensure_attached(struct arena *arena, struct error *error)
{
    if (arena->owner != 0) {
        return STATUS_OK;
    }
    if (arena->is_read_only) {
        return error_set(error, STATUS_DETACHED, "the arena was opened read-only");
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", arena->map_descriptor);
    if (arena->lock_descriptor < 0) {
        arena->lock_descriptor = open(path, O_RDWR | O_CLOEXEC);
        if (arena->lock_descriptor < 0) {
            return error_set_os(error, "cannot open the arena again after fork (is /proc mounted?)");
        }
    }
    enum status status = arena_join_again(arena, error);
    if (status != STATUS_OK) {
        close(arena->lock_descriptor); /* other processes wait for byte 0, which this releases */
        arena->lock_descriptor = -1;
    }
    return status;
}

/* ---- detach ---- */

/* A process that gets byte 0 exclusively is the last one, and marks the arena as clean. */
static void maybe_mark_clean(struct arena *arena)
{
    CHECK(arena->owner == 0);
    CHECK(arena->lock_descriptor >= 0);
    if (byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_EXCLUSIVE, NULL) == STATUS_OK) {
        store_release_u32(&arena->globals->is_clean, 1); /* V3 */
    }
}

/* While a stopped process keeps the pool lock, the place of a wait stays in the queue. */
static void arena_leave(struct arena *arena)
{
    CHECK(arena->owner != 0);
    unfinished_waits_end(arena, NULL);
    if (arena->unfinished_waits == NULL) {
        process_unregister(arena);
    } else {
        process_leave_for_repair(arena);
    }
}

void arena_detach(struct arena *arena)
{
    CHECK(arena->owner == 0 || arena->me == &arena->processes[arena->entry_index]);
    if (arena->owner != 0) {
        arena_leave(arena);
        POINT(process_unregistered);
        maybe_mark_clean(arena);
    }
    fork_list_remove(arena);
    arena_free(arena);
}
