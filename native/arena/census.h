/* SPDX-License-Identifier: Apache-2.0
 *
 * A count of the slots and their batches, taken in one scan of the slot words, for monitoring.
 *
 *   state of the slot            what it is counted for
 *   any                          its state
 *   OPEN READY, with records     the queue of its partition; the oldest of all queues is also stored separately
 *   BAD                          the damage of its partition
 *   OPEN READY DONE CONT         the slots of its partition (topic_share.h)
 *   OWNED OPEN READY DONE CONT   the process that holds it (process_share.h)
 *
 * WHY IT IS SAFE. The scan writes nothing and takes no lock. Each word is loaded once, so every slot is counted for one
 *   state. A slot may be freed between its word and its header. Then the header belongs to the next batch, and one
 *   number is inexact. Partition and owner are untrusted: one that does not exist is counted in the last row.
 */
#ifndef ARENA_CENSUS_H
#define ARENA_CENSUS_H

#include "arena/arena.h"

/* The batches of one partition that wait to be sent, and the quarantined ones. */
struct queue_census {
    uint64_t record_count;
    uint64_t size;
    uint64_t created_ns; /* of the oldest batch; valid if batch_count is above 0 */
    uint64_t damaged_record_count;
    uint32_t batch_count;
    uint32_t damaged_batch_count;
    uint32_t held; /* slots of its batches */
};

struct holding_census {
    uint32_t owned; /* OWNED slots */
    uint32_t held;  /* OWNED slots, and slots of batches that it opened */
};

struct census {
    uint32_t states[SLOT_BAD + 1];
    uint32_t oldest_slot; /* NO_SLOT if no batch waits */
    uint64_t oldest_word;
    uint64_t oldest_created_ns;
    uint32_t queue_count;            /* partitions, and a last row for invalid ones */
    uint32_t holding_count;          /* process entries, and a last row for processes that have left theirs */
    struct queue_census *queues;     /* by partition index */
    struct holding_census *holdings; /* by entry index */
};

/* Counts all slots. Requires rows that are all zeros. */
void census_take(const struct arena *arena, struct census *census);

#endif
