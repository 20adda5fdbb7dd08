/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena as one process sees it: the mapping, its private copy of the geometry, and its own process entry.
 *
 * It is reached through two opens of one file: `map_descriptor` is mapped, `lock_descriptor` carries the byte locks and
 * is never mapped, because a mapping would keep the open file description, and with it the locks, alive in a forked
 * child.
 *
 * This folder has:
 *   layout             the whole map of the file                  slot_word          the words that hold the truth
 *   superblock         the facts that never change                attach             create, attach, detach
 *   process            process entries, and who lives             fork               a child is attached to nothing
 *   byte_lock          locks on bytes of the file                 lock               locks in the file
 *   registry           topics and partitions                      buffer_pool        slots out and back, the wait
 *   waiter_semaphores  the sleep of a wait                        process_share      the share of one process
 *   news               what the sender has not seen               batch_seal         a batch gets no more records
 *   completion         the results of batches                     spilled            batches that lie in an overflow
 *   producer_id        the producer id and sequences              transaction        the transaction of all processes
 *   delivery_clock     the age of records                         durability         an arena on disk
 *   counters           rare events and errors                     census             a count of all slots
 *   recovery           the work of the first opener               verify             the checker of the invariants
 *   closing            the end of an arena without a name         arena              the mapping (here)
 *   layout_fields      the place of every field, frozen           extension          features, extension regions
 *   topic_share        the limits of topics                       lost_memory        a mapping whose file was cut
 */
#ifndef ARENA_ARENA_H
#define ARENA_ARENA_H

#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>

#include "arena/layout.h"
#include "base/clock.h"

enum process_role { ROLE_NONE = 0, ROLE_PRODUCER = 1, ROLE_SENDER = 2, ROLE_OBSERVER = 3, ROLE_STANDBY = 4 };

/* Called around whatever takes long (a wait that may block, a large copy), while no lock of the arena is held and no
 * hazard stands, so that a host language can let go of its interpreter lock. */
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
    atomic_u64 *news_hints;
    atomic_u64 *news_groups;
    struct slot_header *slots;
    struct completion_entry *completions;
    struct counter_entry *counters;
    struct error_entry *error_log;
    struct sync_record *sync_records; /* NULL: none */
    uint8_t *slot_data;

    uint32_t owner; /* 0: not registered (detached, forked, or read-only) */
    uint32_t entry_index;
    struct process_entry *me; /* NULL when owner is 0 */
    uint32_t held_count_bound;   /* our share of the slots: process_share.h */
    uint32_t awaited_slot_count; /* likewise */
    bool is_leading;             /* a thread of ours forces the arena to disk: durability.h */
    int (*force)(int descriptor); /* fdatasync; tests have their own */
    uint32_t passed_in_a_row; /* how often we were passed since we last held a producer lock to its end */
    int map_descriptor;
    int lock_descriptor;
    bool is_read_only;
    bool had_name;               /* the file had one when it was opened: closing.h */
    uint64_t name_looked_at_ns;  /* when this process looked last whether it has one still */
    atomic_u32 is_lost;          /* 1: private pages stand where it was: lost_memory.h */
    bool is_sender;     /* the sender role is held through this handle */
    bool was_recovered; /* this attach found the arena alone and ran cold recovery */
    uint32_t *chain_scratch; /* room for the longest chain, for the one thread that frees or verifies */
    uint32_t chain_slot_count_max;
    sem_t **semaphores; /* by waiter index, those that were opened; NULL: none was (waiter_semaphores.h) */
    struct clock clock;
    struct blocking_hooks blocking;
    struct arena *next_attached; /* list for the fork handler */
};

/* Takes ownership of the descriptors, also when it fails; NULL without memory. */
struct arena *arena_new(int map_descriptor, int lock_descriptor, struct error *error) MUST_USE;

/* Maps the base layout that the geometry describes, and the extension regions. Requires a geometry that was validated,
 * and a file of `file_size_wanted` bytes. */
enum status arena_map(struct arena *arena, int protection, struct error *error) MUST_USE;

/* True when no table claims more entries than it has room for: a reader that trusts such a count runs past its end. */
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
