/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches that the sender moved out of the arena into its overflow, a log on disk (shmaccum/sender/overflow.py). Their
 * slots belong to others by now, and their results are still to come.
 *
 *   batches of a partition     | delivered | spilled | in slots ...
 *   by their seq               ............^         ^
 *                              spilled_first_seq     spilled_end_seq
 *
 * RULES, per field
 *   spilled_first_seq   sender. Every batch below it that is in no slot has its result.
 *   spilled_end_seq     sender. No batch at or above it was ever spilled. The range is empty unless the end lies above
 *                       the first. A batch in the range may have its result already; none outside of it is spilled.
 *   spilled_since_ns and the counts beside it are for people, and no program decides by them.
 *
 * PROCEDURE
 *   spill     the batch is in the overflow -> the range takes it in (release) -> READY -> DONE -> scrub -> FREE
 *   deliver   the sink has the batch -> result in the ring -> the range leaves it out (release)
 *   look      is the batch in its slot, then: is it in the range, then: has it a result? Two times no and no result:
 *             the result was overwritten.
 *
 * WHY IT IS SAFE
 *   A reader looks at the slot before the range, and the sender writes the range before it lets the slot go. So no
 *   batch is in neither for a reader. A reader looks at the range before the ring, and the sender writes the ring
 *   before it shrinks the range: a batch that is out of the range has its result.
 *   Killed anywhere: the next sender finds the batch in its slot and in the overflow, and lets the slot go; or it reads
 *   in the overflow which batches are left, and sets the ranges by that.
 *   Hostile bytes: a range that was scribbled on makes a result that was overwritten look like one that is to come.
 *   Each sender sets all ranges anew.
 */
#ifndef ARENA_SPILLED_H
#define ARENA_SPILLED_H

#include "arena/arena.h"

/* True while the batch is in its partition's range. */
bool spilled_has(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* True when the batch may have been spilled: its result then came when its slot was another batch's. */
bool spilled_may_have_had(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* True while the partition has a spilled batch that is not younger than this one. */
bool spilled_has_up_to(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* Sender only. */
void spilled_take_in(struct arena *arena, uint32_t partition_index, uint64_t seq);
void spilled_set(struct arena *arena, uint32_t partition_index, uint64_t first_seq, uint64_t end_seq);

/* The content of the overflow, for every process that looks at the arena. */
struct spilled_totals {
    uint64_t batch_count;
    uint64_t record_count;
    uint64_t size;
    uint64_t since_ns; /* 0: nothing does */
};
void spilled_publish(struct arena *arena, const struct spilled_totals *totals);
void spilled_read(const struct arena *arena, struct spilled_totals *totals);

#endif
