/* SPDX-License-Identifier: Apache-2.0
 *
 * The share of one process: it holds at most `process_slot_count_max` slots, so that one process that sends without
 * bound cannot starve the others (option max_process_share; 0 turns the limit off).
 *
 *   slot word    holder of the slot
 *   OWNED        the owner in the word
 *   OPEN READY   `opener` of the slot header: the process that allocated it. The allocation stores it before the word
 *   DONE CONT    changes from OWNED, and it is valid until the slot is free
 *   GRANT        no process yet; the process that waits counts its own awaited slots
 *   FREE BAD     no process: a quarantined slot counts for no share
 *
 *   in private memory (struct arena):
 *       held_count_bound   slots held at its last scan + slots taken since, or awaited in the queue
 *       awaited_slot_count the part of them that it waits for in the queue
 *
 * A batch counts for the process that opened it, not for the processes that fill it. The process that appends most
 * usually opens most.
 *
 * PROCEDURE
 *   allocate   (fast path, under a producer lock) held_count_bound below the limit: take one, bound + 1. Otherwise
 *              STATUS_EXHAUSTED, without a scan.
 *   enqueue    (slow path, no lock held) the bound and the need exceed the limit: scan all slots once, and set the
 *              bound to held + awaited. If it is still too much: STATUS_SHARE_USED. The caller seals its own open
 *              batches, so that they do not linger (producer_batch_seal_own), sleeps until a result is recorded, and
 *              tries again. It is not in the queue meanwhile, so it delays no process there, and later overtakes none.
 *
 * WHY THE BOUND IS NEVER TOO SMALL. Only this process adds to what it holds, and it counts each addition. Others (the
 *   sender, a repair) only reduce it, which the next scan finds. If a slot is freed after a scan counted it, the bound
 *   is one too large until the next scan.
 * WHY NOTHING HAS TO BE REPAIRED. Only `opener` is shared, and an opener names an entry and its generation. When a
 *   process dies, its slots name a dead process and count for no living one, and the next process of the entry begins
 *   with none. If a process is killed between taking a slot and storing `opener`, the word names it (OWNED), and repair
 *   frees the slot.
 * THE COST OF A SCAN is one word per slot, and a second cache line per filled slot, once in (limit - held) allocations.
 *   A process far from its limit never scans. One at its limit has to sleep anyway.
 */
#ifndef ARENA_PROCESS_SHARE_H
#define ARENA_PROCESS_SHARE_H

#include "arena/arena.h"

/* Returns the largest number of slots that one process may hold. */
static inline uint32_t process_share_max(const struct arena *arena)
{
    CHECK(arena->geometry.process_slot_count_max <= arena->geometry.slot_count);
    uint32_t limit = arena->geometry.process_slot_count_max;
    return limit == 0 ? arena->geometry.slot_count : limit;
}

/* Returns the largest number of slots that one oversized record may take. */
static inline uint32_t oversized_slot_count_max(const struct arena *arena)
{
    CHECK(arena->geometry.oversized_bytes_max <= arena->geometry.buffer_memory);
    uint32_t share = process_share_max(arena);
    uint32_t all = (uint32_t)(arena->geometry.oversized_bytes_max / arena->geometry.batch_size);
    return all < share ? all : share;
}

static inline bool process_share_is_limited(const struct arena *arena)
{
    return arena->geometry.process_slot_count_max != 0;
}

/* O(1), from the bound alone. If it returns false, a scan may find a lower count. */
static inline bool process_share_allows_one(const struct arena *arena)
{
    return !process_share_is_limited(arena) || arena->held_count_bound < process_share_max(arena);
}

/* Counts slots that this process took or gave back. */
static inline void process_share_add(struct arena *arena, uint32_t count)
{
    CHECK(arena->owner != 0);
    arena->held_count_bound += count;
}

static inline void process_share_subtract(struct arena *arena, uint32_t count)
{
    CHECK(arena->owner != 0);
    arena->held_count_bound -= count < arena->held_count_bound ? count : arena->held_count_bound;
}

/* Returns the owner for whose share this slot counts, or 0. The owner is untrusted: it may be any number. */
uint32_t process_share_holder(const struct arena *arena, uint32_t slot_index, uint64_t word);

/* Returns the number of slots that this process holds, from the words alone. */
uint32_t process_share_held(const struct arena *arena);

/* Counts `need` slots as awaited. Returns STATUS_SHARE_USED if they would exceed the share. Requires that need <=
 * process_share_max, and that no lock is held. */
enum status process_share_await(struct arena *arena, uint32_t need) MUST_USE;

/* Ends the wait: the slots belong to this process now, or were not granted. */
void process_share_end_wait(struct arena *arena, uint32_t need);
void process_share_return(struct arena *arena, uint32_t need);

/* Resets the counts of a process that has just attached. */
void process_share_begin(struct arena *arena);

#endif
