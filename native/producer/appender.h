/* SPDX-License-Identifier: Apache-2.0
 *
 * The appender: the part of an arena that a producing process holds (the producer's side of Kafka's RecordAccumulator;
 * the sender's side is sender/sender.h, and the two meet in the arena alone).
 *
 *   append   a record becomes committed, in the open batch of its partition
 *   flush    this process's batches are sealed, and their results awaited
 *
 * Each process has one, and any number of processes append at the same time. One thread of a process uses it at a time
 * (in Python: python/common/alone.h), and the caller holds no lock of the arena.
 *
 * A process may die anywhere in these calls; producer_batch.h explains why that does no harm.
 */
#ifndef PRODUCER_APPENDER_H
#define PRODUCER_APPENDER_H

#include "arena/arena.h"
#include "arena/buffer_pool.h"
#include "arena/completion.h"
#include "format/record.h"
#include "producer/partitioner.h"
#include "producer/producer_batch.h"

/* The batch of a slot that was appended to last. */
struct touched_batch {
    uint32_t generation_plus_one; /* 0 if there is none */
    uint32_t record_count;        /* that this process appended to it */
};

/* The last append of this process to a partition. Other processes append there too, so slot and end are hints. */
struct appender_note {
    uint64_t seq;        /* of the batch, + 1, or 0 before the first append. For flush */
    uint32_t slot_index; /* of the batch */
    uint32_t end;        /* of its records in the slot: the next record probably follows */
};

struct appender {
    struct arena *arena;
    uint32_t owner;   /* this process when `touched` was filled: a fork's child has another one */
    uint64_t joined;  /* number of the transaction that its records belong to, or 0 for the open one */
    uint64_t linger;  /* of the batches it opens, as in slot_header: ns + 1, or 0 for the sender's linger */
    struct wake_set wakes; /* waiters that got slots of an append: the caller posts their semaphores, and empties it */
    struct touched_batch *touched; /* per slot; for flush and the count of incomplete records */
    struct appender_note *notes;   /* per partition */
    uint32_t last_partition_index; /* of the last append */
};

enum status appender_open(struct arena *arena, struct appender **appender, struct error *error) MUST_USE;
void appender_close(struct appender *appender);

/* ---- append ---- */

/* Slots that a waiter was granted, for the append that waited for them. The append removes the ones that it uses. */
struct reservation {
    uint32_t *slots;
    uint32_t count;
};

struct append_result {
    struct batch_place first;  /* place of the first record appended by this call */
    uint32_t appended;         /* how many records went into that batch, in a row */
    uint32_t need;             /* with STATUS_EXHAUSTED: how many slots to wait for */
    bool is_sender_wanted;     /* a batch was opened or filled, and the sender sleeps or has no heartbeat: wake it */
};

/* Returns true if a record takes at most one slot, whatever its deltas. */
static inline bool record_fits_batch(const struct arena *arena, const struct record_size *size)
{
    return (uint64_t)RECORDS_START + record_size_upper_bound(size) <= arena->geometry.batch_size;
}

/* Returns STATUS_RECORD_TOO_LARGE if the arena takes no record of that size. */
enum status appender_check_size(const struct appender *appender, const struct record_size *size) MUST_USE;

/* Checks and measures a record against the arena's limits, outside any lock. */
MUST_USE static inline enum status appender_measure(const struct appender *appender, const struct record *record,
                                                    struct record_size *size)
{
    RETURN_IF_FAILED(record_measure(record, size));
    return LIKELY(record_fits_batch(appender->arena, size)) ? STATUS_OK : appender_check_size(appender, size);
}

struct append_order {
    uint32_t partition_index;
    uint32_t count;
    const struct measured_record *records;
    struct reservation *reservation; /* or NULL */
    struct sticky *sticky; /* NULL, or it chose the partition: no batch is opened there if it has changed */
};

/* Appends records[0..count) to one partition, as many as one batch takes (at least one on STATUS_OK).
 * STATUS_EXHAUSTED: nothing was appended; wait for result->need slots (buffer_pool.h) and call again with them.
 * STATUS_TRY_AGAIN: nothing was appended, the sticky partition moved on: choose again.
 * STATUS_NO_TRANSACTION, STATUS_TRANSACTION_ENDED, STATUS_FENCED: nothing was appended (transaction.h).
 * STATUS_DETACHED (call arena_ensure_attached), STATUS_POISONED, STATUS_INVALID. */
enum status appender_append(struct appender *appender, const struct append_order *order,
                            struct append_result *result) MUST_USE;

/* ---- flush ---- */

/* The batches that a flush waits for: this process's incomplete batches when it began. */
struct flush_ticket {
    struct flush_item {
        uint32_t slot_index;
        uint32_t generation;
    } *items;
    uint32_t count;
    struct flush_partition { /* if its batches may be in the overflow (spilled.h) */
        uint64_t seq;
        uint32_t partition_index;
    } *partitions;
    uint32_t partition_count;
};

/* Seals the open batches this process appended to, and lists all its incomplete ones. */
enum status appender_flush_begin(struct appender *appender, struct flush_ticket *ticket) MUST_USE;
/* Returns how many of them are still incomplete, and removes the others. A partition with spilled ones counts as one
 * more. */
uint32_t appender_flush_remaining(struct appender *appender, struct flush_ticket *ticket);
/* Returns how many records the incomplete ones in the arena hold, including those of other processes. */
uint64_t appender_flush_record_count(const struct appender *appender, const struct flush_ticket *ticket);
void appender_flush_end(struct flush_ticket *ticket);

/* Returns how many records of this process have no result yet. For a split batch it counts the records without a
 * result, including those of other processes, but at most its own number. A partition with records in the overflow
 * counts as one record, because their number is not known here. Nothing is sealed. */
uint64_t appender_incomplete_count(const struct appender *appender);

#endif
