/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/arena.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"

/* ---- the handle ---- */

struct arena *arena_new(int map_descriptor, int lock_descriptor, struct error *error)
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

static void arena_set_regions(struct arena *arena)
{
    CHECK(arena->base != NULL);
    CHECK((uintptr_t)arena->base % PAGE_SIZE_BYTES == 0);
    CHECK(arena->layout.slot_data % PAGE_SIZE_BYTES == 0);
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
    arena->ready_hints = (atomic_u64 *)(void *)(base + layout->ready_hints);
    arena->ready_groups = (atomic_u64 *)(void *)(base + layout->ready_groups);
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
    CHECK(arena->geometry.batch_size > RECORDS_START);
    CHECK(arena->chain_scratch == NULL);
    uint64_t pieces = divide_rounded_up(arena->geometry.record_size_max, arena->geometry.batch_size);
    arena->chain_slot_count_max = (uint32_t)(pieces < 1 ? 1 : pieces);
    arena->chain_scratch = calloc(arena->chain_slot_count_max, sizeof *arena->chain_scratch);
    return arena->chain_scratch != NULL ? STATUS_OK : error_set(error, STATUS_OS, "no memory for the list of a chain");
}

enum status arena_map(struct arena *arena, int protection, struct error *error)
{
    CHECK(arena->base == NULL);
    CHECK(arena->geometry.slot_count >= 1);
    layout_compute(&arena->geometry, &arena->layout);
    RETURN_IF_FAILED(chain_scratch_allocate(arena, error));
    CHECK(arena->file_size_wanted >= arena->layout.arena_size);
    void *base = mmap(NULL, arena->file_size_wanted, protection, MAP_SHARED, arena->map_descriptor, 0);
    if (base == MAP_FAILED) {
        return error_set_os(error, "cannot map the arena");
    }
    arena->base = base;
    arena->size = arena->file_size_wanted;
    arena_set_regions(arena);
    return STATUS_OK;
}

bool arena_tables_fit(const struct arena *arena)
{
    const struct globals *globals = arena->globals;
    const struct geometry *geometry = &arena->geometry;
    return load_relaxed_u32(&globals->topic_count) <= geometry->topic_count &&
           load_relaxed_u32(&globals->partition_count) <= geometry->partition_count &&
           load_relaxed_u32(&globals->name_heap_used) <= geometry->name_heap_size &&
           load_relaxed_u32(&globals->process_count_used) <= geometry->process_count &&
           load_relaxed_u32(&globals->waiter_count_used) <= geometry->waiter_count;
}
