/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/point.h"
#include "format/crc32c.h"
#include "shm/counters.h"
#include "shm/process.h"
#include "shm/recovery.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ---- the handle ---- */

static struct arena *arena_new(int map_descriptor, int lock_descriptor, struct error *error)
{
    struct arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL) {
        error_set(error, STATUS_OS, "no memory for an arena handle");
        close(map_descriptor);
        close(lock_descriptor);
        return NULL;
    }
    arena->map_descriptor = map_descriptor;
    arena->lock_descriptor = lock_descriptor;
    arena->force = fdatasync;
    return arena;
}

/* Closing the lock descriptor is what frees every byte lock of ours. */
static void arena_free(struct arena *arena)
{
    if (arena->base != NULL) {
        munmap(arena->base, arena->size);
    }
    close(arena->map_descriptor);
    if (arena->lock_descriptor >= 0) {
        close(arena->lock_descriptor);
    }
    free(arena->chain_scratch);
    free(arena);
}

static enum status descriptors_check(const struct arena *arena, struct stat *found, struct error *error)
{
    struct stat lock_file;
    if (fstat(arena->map_descriptor, found) < 0 || fstat(arena->lock_descriptor, &lock_file) < 0) {
        return error_set_os(error, "cannot examine the arena file");
    }
    if (!S_ISREG(found->st_mode) || found->st_dev != lock_file.st_dev || found->st_ino != lock_file.st_ino) {
        return error_set(error, STATUS_NOT_AN_ARENA, "the arena must be one regular file, opened twice");
    }
    return STATUS_OK;
}

/* The lock must be seen from another open of the file, or liveness could not be told (some network file systems). */
static enum status byte_locks_check(const struct arena *arena, struct error *error)
{
    if (!byte_is_locked(arena->map_descriptor, ATTACH_LOCK_BYTE)) {
        return error_set(error, STATUS_OS, "this file system does not keep open-file-description locks: "
                                           "put the arena on tmpfs or a local disk");
    }
    return STATUS_OK;
}

static void arena_set_regions(struct arena *arena)
{
    const struct layout *layout = &arena->layout;
    uint8_t *base = arena->base;
    arena->superblock = (struct superblock *)(void *)(base + SUPERBLOCK_REF);
    arena->globals = (struct globals *)(void *)(base + GLOBALS_REF);
    arena->processes = (struct process_entry *)(void *)(base + layout->processes);
    arena->waiters = (struct waiter_entry *)(void *)(base + layout->waiters);
    arena->topics = (struct topic_entry *)(void *)(base + layout->topics);
    arena->partitions = (struct partition_entry *)(void *)(base + layout->partitions);
    arena->names = base + layout->names;
    arena->free_hints = (atomic_u64 *)(void *)(base + layout->free_hints);
    arena->news_hints = (atomic_u64 *)(void *)(base + layout->news_hints);
    arena->slots = (struct slot_header *)(void *)(base + layout->slot_headers);
    arena->completions = (struct completion_entry *)(void *)(base + layout->completions);
    arena->counters = (struct counter_entry *)(void *)(base + layout->counters);
    arena->error_log = (struct error_entry *)(void *)(base + layout->error_log);
    arena->sync_records =
        layout->sync_records == 0 ? NULL : (struct sync_record *)(void *)(base + layout->sync_records);
    arena->slot_data = base + layout->slot_data;
}

static enum status chain_scratch_allocate(struct arena *arena, struct error *error)
{
    uint64_t pieces = divide_up(arena->geometry.record_size_max, arena->geometry.batch_size);
    arena->chain_slot_count_max = (uint32_t)(pieces < 1 ? 1 : pieces);
    arena->chain_scratch = calloc(arena->chain_slot_count_max, sizeof *arena->chain_scratch);
    return arena->chain_scratch != NULL ? STATUS_OK : error_set(error, STATUS_OS, "no memory for the list of a chain");
}

static enum status arena_map(struct arena *arena, int protection, struct error *error)
{
    layout_compute(&arena->geometry, &arena->layout);
    RETURN_IF_FAILED(chain_scratch_allocate(arena, error));
    void *base = mmap(NULL, arena->layout.arena_size, protection, MAP_SHARED, arena->map_descriptor, 0);
    if (base == MAP_FAILED) {
        return error_set_os(error, "cannot map the arena");
    }
    arena->base = base;
    arena->size = arena->layout.arena_size;
    arena_set_regions(arena);
    return STATUS_OK;
}

/* Kernels before 5.14 do not know the advice: there every page is touched by reading it, which is enough on memory that
 * posix_fallocate reserved. EFAULT and its like mean that a store would raise SIGBUS: refuse now. */
static enum status arena_populate(const struct arena *arena, uint64_t size, struct error *error)
{
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

/* On the list first: a fork between the two must not take the descriptor with the locks along. */
static enum status arena_register(struct arena *arena, struct error *error)
{
    fork_list_add(arena);
    enum status status = process_register(arena, ROLE_PRODUCER, error);
    if (status != STATUS_OK) {
        fork_list_remove(arena);
    }
    return status;
}

/* ---- create ---- */

static enum status space_reserve(const struct arena *arena, uint64_t size, struct error *error)
{
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

static void superblock_fill(struct arena *arena, const void *options, uint32_t options_size)
{
    struct superblock *superblock = arena->superblock;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    superblock->layout_version = LAYOUT_VERSION;
    superblock->layout_fingerprint = layout_fingerprint();
    superblock->arena_size = arena->size;
    superblock->created_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    superblock->geometry = arena->geometry;
    superblock->options_size = options_size;
    if (options_size > 0) {
        memcpy(superblock->options, options, options_size);
    }
    while (getrandom(superblock->uuid, sizeof superblock->uuid, 0) != sizeof superblock->uuid) {
    }
    memcpy(arena->uuid, superblock->uuid, sizeof arena->uuid);
}

static uint32_t superblock_crc(const struct superblock *superblock)
{
    size_t start = offsetof(struct superblock, layout_fingerprint);
    size_t end = offsetof(struct superblock, options) + superblock->options_size;
    return crc32c_extend(0, (const uint8_t *)superblock + start, end - start);
}

static void regions_fill(struct arena *arena)
{
    store_relaxed_u64(&arena->globals->producer_id, UINT64_MAX);
    boot_id_read(arena->globals->boot_id);
    counters_init(arena);
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        or_bits_u64(&arena->free_hints[i / 64], UINT64_C(1) << (i % 64));
    }
}

static enum status arena_build(struct arena *arena, const void *options, uint32_t options_size, struct error *error)
{
    struct stat found;
    RETURN_IF_FAILED(descriptors_check(arena, &found, error));
    if (found.st_size != 0) {
        return error_set(error, STATUS_INVALID, "the file is not empty: an arena is created in a new file");
    }
    RETURN_IF_FAILED(byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_EXCLUSIVE, error));
    RETURN_IF_FAILED(byte_locks_check(arena, error));
    layout_compute(&arena->geometry, &arena->layout);
    RETURN_IF_FAILED(space_reserve(arena, arena->layout.arena_size, error));
    RETURN_IF_FAILED(arena_map(arena, PROT_READ | PROT_WRITE, error));
    RETURN_IF_FAILED(arena_populate(arena, arena->size, error));
    regions_fill(arena);
    superblock_fill(arena, options, options_size);
    arena->superblock->superblock_crc = superblock_crc(arena->superblock);
    POINT(arena_before_magic);
    store_release_u64(&arena->superblock->magic, ARENA_MAGIC);
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
        status = error_set(error, STATUS_INVALID, "the options take %u bytes, an arena keeps at most %d", options_size,
                           OPTIONS_SIZE_MAX);
    }
    if (status == STATUS_OK) {
        arena->geometry = *geometry;
        status = arena_build(arena, options, options_size, error);
    }
    return arena_finish(arena, status, result);
}

/* ---- attach ---- */

static enum status superblock_judge(const struct superblock *superblock, uint64_t file_size, struct error *error)
{
    uint64_t magic = load_relaxed_u64(&superblock->magic);
    if (magic == 0) {
        return error_set(error, STATUS_UNFINISHED, "%s", status_sentence(STATUS_UNFINISHED));
    }
    if (magic != ARENA_MAGIC) {
        return error_set(error, STATUS_NOT_AN_ARENA, "%s", status_sentence(STATUS_NOT_AN_ARENA));
    }
    if (superblock->layout_version != LAYOUT_VERSION || superblock->layout_fingerprint != layout_fingerprint()) {
        return error_set(error, STATUS_OTHER_LAYOUT,
                         "the arena has layout version %u, this build has %d with another fingerprint or number: "
                         "drain the arena with the build that made it, then remove it",
                         superblock->layout_version, LAYOUT_VERSION);
    }
    if (superblock->options_size > OPTIONS_SIZE_MAX || superblock_crc(superblock) != superblock->superblock_crc) {
        return error_set(error, STATUS_CORRUPT, "the superblock's bytes contradict its checksum");
    }
    RETURN_IF_FAILED(geometry_validate(&superblock->geometry, error));
    struct layout layout;
    layout_compute(&superblock->geometry, &layout);
    if (layout.arena_size != superblock->arena_size) {
        return error_set(error, STATUS_CORRUPT, "the superblock's size contradicts its geometry");
    }
    if (layout.arena_size > file_size) {
        return error_set(error, STATUS_TRUNCATED, "the arena needs %llu bytes, its file has %llu",
                         (unsigned long long)layout.arena_size, (unsigned long long)file_size);
    }
    return STATUS_OK;
}

bool arena_superblock_is_sound(const struct arena *arena)
{
    struct superblock copy; /* a size that changes while it is checked could lead anywhere */
    memcpy(&copy, arena->superblock, sizeof copy);
    return superblock_judge(&copy, arena->size, NULL) == STATUS_OK &&
           memcmp(&copy.geometry, &arena->geometry, sizeof copy.geometry) == 0;
}

/* By pread, not through the mapping: a file shorter than a page must not raise SIGBUS, and what we judged stays as it
 * was. */
static enum status superblock_read(struct arena *arena, struct error *error)
{
    struct superblock superblock = {0};
    struct stat found;
    RETURN_IF_FAILED(descriptors_check(arena, &found, error));
    ssize_t size = pread(arena->map_descriptor, &superblock, sizeof superblock, 0);
    if (size < 0) {
        return error_set_os(error, "cannot read the superblock");
    }
    if ((size_t)size < sizeof superblock && load_relaxed_u64(&superblock.magic) == ARENA_MAGIC) {
        return error_set(error, STATUS_TRUNCATED, "the file ends inside its superblock");
    }
    RETURN_IF_FAILED(superblock_judge(&superblock, (uint64_t)found.st_size, error));
    arena->geometry = superblock.geometry;
    memcpy(arena->uuid, superblock.uuid, sizeof arena->uuid);
    return STATUS_OK;
}

/* Alone: exclusive, so that nobody comes in before recovery is done. */
static enum status attach_lock(struct arena *arena, bool *is_alone, struct error *error)
{
    enum status status = byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_EXCLUSIVE, error);
    *is_alone = status == STATUS_OK;
    if (status == STATUS_BUSY) {
        status = byte_lock_wait(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_SHARED, error);
    }
    if (status == STATUS_BUSY) {
        error_set(error, STATUS_BUSY, "another process is creating or recovering this arena and does not finish: is it "
                                      "stopped?");
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
    RETURN_IF_FAILED(superblock_read(arena, error));
    RETURN_IF_FAILED(arena_map(arena, PROT_READ | PROT_WRITE, error));
    RETURN_IF_FAILED(arena_populate(arena, arena->layout.slot_data, error));
    if (is_alone) {
        RETURN_IF_FAILED(recover_alone(arena, error));
    }
    store_release_u32(&arena->globals->is_clean, 0);
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
    enum status status = superblock_read(arena, error);
    if (status == STATUS_OK) {
        status = arena_map(arena, PROT_READ, error);
    }
    return arena_finish(arena, status, result);
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
    RETURN_IF_FAILED(byte_lock_wait(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_SHARED, error));
    return process_register(arena, ROLE_PRODUCER, error);
}

/* ---- detach ---- */

/* Whoever can have byte 0 for itself is the last one: what it leaves behind is in order. */
static void maybe_mark_clean(struct arena *arena)
{
    if (byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_EXCLUSIVE, NULL) == STATUS_OK) {
        store_release_u32(&arena->globals->is_clean, 1);
    }
}

void arena_detach(struct arena *arena)
{
    if (arena->owner != 0) {
        process_unregister(arena);
        POINT(process_unregistered);
        maybe_mark_clean(arena);
    }
    fork_list_remove(arena);
    arena_free(arena);
}

/* ---- poison ---- */

void arena_poison(struct arena *arena, enum status status, const char *what)
{
    uint32_t none = 0;
    cas_u32(&arena->globals->poisoned_status, &none, (uint32_t)status);
    error_log_record(arena, status, what);
}

bool arena_is_poisoned(const struct arena *arena)
{
    return load_relaxed_u32(&arena->globals->poisoned_status) != 0;
}
