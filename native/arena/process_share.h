/* SPDX-License-Identifier: Apache-2.0
 *
 * The share of one process: it holds at most `process_slot_count_max` slots, so that one that runs away cannot starve
 * the others (option max_process_share; 0: there is no such limit).
 *
 *   slot word    holder of the slot
 *   OWNED        the owner in the word
 *   OPEN READY   `opener` of the slot header: the process that allocated it. The allocation stores it before the word
 *   DONE CONT    says anything but OWNED, and it is true until the slot is free
 *   GRANT        nobody yet; the process that waits counts its own awaited slots
 *   FREE BAD     nobody: a quarantined slot is evidence, and no process's burden
 *
 *   in the process's own memory (struct arena), seen and written by it alone:
 *       held_count_bound   slots it held at its last look + slots it took since, or waits for in the queue
 *       awaited_slot_count those of them that it waits for in the queue
 *
 * A batch counts for the process that opened it, whoever fills it: that is what a running batch costs, and a process
 * that appends most opens most.
 *
 * PROCEDURE
 *   allocate   (fast path, under a producer lock) held_count_bound below the limit: take one, bound + 1. Else
 *              STATUS_EXHAUSTED, without a look.
 *   enqueue    (slow path, no lock held) the bound and the need exceed the limit: look at every slot once, the bound is
 *              what is held + what is awaited. Still too much: STATUS_SHARE_USED. The caller seals the batches this
 *              process has open, so that they linger no more (producer_batch_seal_own), sleeps until a result is
 *              recorded, and tries again. It is not in the queue meanwhile: nobody waits behind it, and it passes
 *              nobody when it joins.
 *
 * WHY THE BOUND IS NEVER TOO SMALL. Only this process makes it hold more, and it counts that; others (the sender, a
 *   repair) only make it hold less, which the next look finds. During a look a slot may be freed after it was counted:
 *   then the bound is too large by it, until the look after this one.
 * WHY NOTHING IS TO BE REPAIRED. Nothing of this is shared but `opener`, and an opener names an entry and its
 *   generation: when a process dies, its slots name somebody dead, count for nobody, and its successor in the entry
 *   begins with none. A process that is killed between taking a slot and storing `opener` is named by the word
 *   (OWNED), which repair frees.
 * THE COST OF A LOOK. One word per slot, and a second cache line per filled slot, once in (limit - held) allocations: a
 *   process far from its limit never looks, one at its limit has to sleep anyway.
 */
#ifndef ARENA_PROCESS_SHARE_H
#define ARENA_PROCESS_SHARE_H

#include "arena/arena.h"

/* The most slots one process may hold. */
static inline uint32_t process_share_max(const struct arena *arena)
{
    CHECK(arena->geometry.process_slot_count_max <= arena->geometry.slot_count);
    uint32_t limit = arena->geometry.process_slot_count_max;
    return limit == 0 ? arena->geometry.slot_count : limit;
}

/* The most slots one oversized record may take. */
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

/* O(1), from the bound alone: false may mean that it is time for a look. */
static inline bool process_share_allows_one(const struct arena *arena)
{
    return !process_share_is_limited(arena) || arena->held_count_bound < process_share_max(arena);
}

/* Counts slots that this process took, or gave back. */
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

/* The owner for whose share a slot with this word counts; 0: nobody. Input: the owner may be any number. */
uint32_t process_share_holder(const struct arena *arena, uint32_t slot_index, uint64_t word);

/* Slots this process holds, from the words alone. */
uint32_t process_share_held(const struct arena *arena);

/* Counts `need` slots as awaited. STATUS_SHARE_USED: they would exceed the share. Requires
 * need <= process_share_max and that no lock is held. */
enum status process_share_await(struct arena *arena, uint32_t need) MUST_USE;

/* The wait is over: the slots are this process's now, or were not granted. */
void process_share_granted(struct arena *arena, uint32_t need);
void process_share_given_up(struct arena *arena, uint32_t need);

/* A process that has just attached holds nothing. */
void process_share_begin(struct arena *arena);

#endif
