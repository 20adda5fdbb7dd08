/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches that the sender moved out of the arena into its overflow, a log on disk (shmaccum/sender/overflow.py). Their
 * slots have other owners by now, and their results are still to come.
 *
 *   batches of a partition     | delivered | spilled | in slots ...
 *   by their seq               ............^         ^
 *                              spilled_first_seq     spilled_end_seq
 *
 * RULES, per field
 *   spilled_first_seq   sender. Every batch below it that is in no slot has its result.
 *   spilled_end_seq     sender. No batch at or above it was ever spilled. The range is empty unless the end is above
 *                       the first. A batch in the range may have its result already. No batch outside of it is spilled.
 *   spilled_since_ns and its counts are for display. No program relies on them.
 *
 * PROCEDURE
 *   spill     the batch is in the overflow -> the range includes it (release) -> READY -> DONE -> scrub -> FREE
 *   deliver   the sink has the batch -> result in the ring -> the range excludes it (release)
 *   find      is the batch in its slot? then: is it in the range? then: has it a result? If all three fail, the result
 *             was overwritten.
 *
 * WHY IT IS SAFE
 *   A reader reads the slot before the range, and the sender writes the range before it frees the slot. So a reader
 *   finds every batch in at least one. A reader reads the range before the ring, and the sender writes the ring before
 *   it shrinks the range: a batch that is out of the range has its result.
 *   Killed anywhere: the next sender finds the batch in its slot and in the overflow, and frees the slot; or it reads
 *   from the overflow which batches remain, and sets the ranges accordingly.
 *   Hostile bytes: a corrupt range makes an overwritten result look like one that is still to come. Each sender sets
 *   all ranges again.
 */
#ifndef ARENA_SPILLED_H
#define ARENA_SPILLED_H

#include "arena/arena.h"

/* Returns true while the batch is in its partition's range. */
bool spilled_has(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* Returns true if the batch may have been spilled. Then its slot may have been reused before it got its result. */
bool spilled_may_have_had(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* Returns true while the partition has a spilled batch that is not younger than this one. */
bool spilled_has_up_to(const struct arena *arena, uint32_t partition_index, uint64_t seq);

/* Sender only. */
void spilled_take_in(struct arena *arena, uint32_t partition_index, uint64_t seq);
void spilled_set(struct arena *arena, uint32_t partition_index, uint64_t first_seq, uint64_t end_seq);

/* The content of the overflow, for every process that reads the arena. */
struct spilled_totals {
    uint64_t batch_count;
    uint64_t record_count;
    uint64_t size;
    uint64_t since_ns; /* 0 if the overflow is empty */
};
void spilled_publish(struct arena *arena, const struct spilled_totals *totals);
void spilled_read(const struct arena *arena, struct spilled_totals *totals);

#endif
