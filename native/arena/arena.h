/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena as one process sees it: the mapping, its private copy of the geometry, and its own process entry.
 *
 * This folder has:
 *   layout             the map of the file                        slot_word          the authoritative words
 *   superblock         the facts that never change                attach             create, attach, detach
 *   process            process entries and liveness               fork               a child is attached to no arena
 *   byte_lock          locks on bytes of the file                 lock               locks in the file
 *   registry           topics and partitions                      buffer_pool        slots, and waits for them
 *   waiter_semaphores  the sleep of a waiter                      process_share      the share of one process
 *   ready_hints        batches the sender has not seen            batch_seal         a batch gets no more records
 *   completion         the results of batches                     spilled            batches in an overflow
 *   producer_id        the producer id and sequences              transaction        the transaction of all processes
 *   delivery_clock     the age of records                         durability         an arena on disk
 *   counters           rare events and errors                     census             a count of all slots
 *   recovery           repair by the first attach                 verify             the checker of the invariants
 *   closing            an arena without a file name               arena              the mapping (here)
 *   layout_fields      the place of every field, frozen           extension          features, extension regions
 *   topic_share        the limits of topics                       lost_memory        a mapping whose file was cut
 *   parked_waiters     the turns of parked waiters                waiter_sleep       the sleep of a wait
 *   unfinished_waits   waits that a stopped process keeps
 */
#ifndef ARENA_ARENA_H
#define ARENA_ARENA_H

#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>

#include "arena/layout.h"
#include "base/clock.h"

enum process_role { ROLE_NONE = 0, ROLE_PRODUCER = 1, ROLE_SENDER = 2, ROLE_OBSERVER = 3, ROLE_STANDBY = 4 };

/* Called before and after an operation that may take long (a wait, a large copy), while this process has no lock of the
 * arena and no hazard, so that a host language can release its interpreter lock. */
struct blocking_hooks {
    void *(*begin)(void);
    void (*end)(void *state);
};

struct arena {
    uint8_t *base;
    uint64_t size;
    struct geometry geometry; /* private copies: later changes of the mapping are not trusted */
    struct layout layout;
    uint64_t file_size_wanted; /* bytes of the base layout and of the extension regions */
    uint64_t features_compatible;
    uint64_t features_read_only;
    uint64_t features_incompatible;
    uint32_t extension_count;
    struct extension extensions[EXTENSION_COUNT_MAX];
    uint8_t uuid[16];

    struct superblock *superblock;
    struct globals *globals;
    struct process_entry *processes;
    struct waiter_entry *waiters;
    struct topic_entry *topics;
    struct partition_entry *partitions;
    uint8_t *names;
    atomic_u64 *free_hints;
    atomic_u64 *ready_hints;
    atomic_u64 *ready_groups;
    struct slot_header *slots;
    struct completion_entry *completions;
    struct counter_entry *counters;
    struct error_entry *error_log;
    struct sync_record *sync_records; /* or NULL */
    uint8_t *slot_data;

    uint32_t owner; /* 0 if not registered (detached, forked, or read-only) */
    uint32_t entry_index;
    struct process_entry *me; /* NULL if owner is 0 */
    uint32_t held_count_bound;   /* this process's share of the slots: process_share.h */
    uint32_t awaited_slot_count; /* part of the bound: process_share.h */
    bool is_leading;             /* a thread of this process forces the arena to disk: durability.h */
    int (*force)(int descriptor); /* fdatasync, or a replacement by tests */
    uint32_t passed_in_a_row; /* how often this process was passed since it last held a producer lock to the end */
    int map_descriptor;
    int lock_descriptor;
    bool is_read_only;
    bool had_name;               /* the file had a name when it was opened: closing.h */
    uint64_t name_checked_ns;  /* when this process last checked that it still has a name */
    atomic_u32 is_lost;          /* 1: private pages replace the mapping: lost_memory.h */
    bool is_sender;     /* the sender role is held through this handle */
    bool was_recovered; /* this attach found no other process and ran cold recovery */
    uint32_t *chain_scratch; /* for the longest chain, used by the only thread that frees or verifies */
    uint32_t chain_slot_count_max;
    uint64_t pool_lock_refused; /* the last acquisition of the pool lock that this process did not wait out, or 0 */
    struct unfinished_wait *unfinished_waits; /* list (unfinished_waits.h) */
    sem_t **semaphores; /* by waiter index, NULL while not open (waiter_semaphores.h) */
    struct clock clock;
    struct blocking_hooks blocking;
    struct arena *next_attached; /* list for the fork handler */
};

/* Takes ownership of the descriptors, even if it fails. Returns NULL if there is no memory. */
struct arena *arena_new(int map_descriptor, int lock_descriptor, struct error *error) MUST_USE;

/* Maps the base layout of the geometry and the extension regions. Requires a valid geometry and a file of
 * `file_size_wanted` bytes. */
enum status arena_map(struct arena *arena, int protection, struct error *error) MUST_USE;

/* Returns true if every table's count is within the geometry. A reader that trusts a larger count runs past the end. */
bool arena_tables_fit(const struct arena *arena);

/* Requires slot_index < slot_count. */
static inline uint8_t *arena_slot_data(const struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    return arena->slot_data + (uint64_t)arena->geometry.slot_stride * slot_index;
}

static inline uint64_t arena_now_ns(const struct arena *arena)
{
    return clock_now_ns(&arena->clock);
}

#endif
