/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches that the sender moved out of the arena into its overflow, a log on disk (shmaccum/sender/overflow.py). Their
 * slots may have been reused, and they have no results yet.
 *
 *   batches of a partition     | delivered | spilled | in slots ...
 *   by their seq               ............^         ^
 *                              spilled_first_seq     spilled_end_seq
 *
 * RULES, per field
 *   spilled_first_seq   sender. Every batch with a lower number that is in no slot has a result.
 *   spilled_end_seq     sender. No batch with this or a higher number was ever spilled. The range is empty unless the
 *                       end is above the first. A batch in the range may have a result.
 *   spilled_since_ns and its counts are for display. No program relies on them.
 *
 * PROCEDURE
 *   spill     the batch is in the overflow -> the range includes it (release) -> READY -> DONE -> scrub -> FREE
 *   deliver   the sink has the batch -> result in the ring -> the range excludes it (release)
 *   find      look in the slot, the range, the ring. If the batch is in none, its result was overwritten.
 *
 * WHY IT IS SAFE
 *   A reader reads the slot before the range, and the sender writes the range before it frees the slot. So a reader
 *   finds every batch in at least one. A reader reads the range before the ring, and the sender writes the ring before
 *   it shrinks the range: a batch that has left the range has a result.
 *   A sender may be killed at any step. The next sender frees the slot of each batch that it also finds in the
 *   overflow, and sets the ranges to the batches that remain there.
 *   Hostile bytes: a corrupt range makes an overwritten result look like one that is still to come. Each sender sets
 *   all ranges again.
 */
#ifndef ARENA_SPILLED_H
#define ARENA_SPILLED_H

#include "arena/arena.h"

/* Returns true while the batch is in the range of its partition. */
bool spilled_has(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* Returns true if the batch may have been spilled. Then its slot may have been reused before it got its result. */
bool spilled_may_have_had(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* Returns true while the partition has a spilled batch that is not younger than this one. */
bool spilled_has_up_to(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* Sender only. */
void spilled_extend_to(struct arena *arena, uint32_t partition_index, uint64_t seq);
void spilled_set(struct arena *arena, uint32_t partition_index, uint64_t first_seq, uint64_t end_seq);

/* The totals of the overflow, for monitoring. */
struct spilled_totals {
    uint64_t batch_count;
    uint64_t record_count;
    uint64_t size;
    uint64_t since_ns; /* 0 if the overflow is empty */
};
void spilled_publish(struct arena *arena, const struct spilled_totals *totals);
void spilled_read(const struct arena *arena, struct spilled_totals *totals);

#endif
