/* SPDX-License-Identifier: Apache-2.0
 *
 * The appender: the state of a process that sends (the producer's side of Kafka's RecordAccumulator; sender/sender.h is
 * the sender's side, and they share only the arena).
 *
 *   append   commit records to the open batch of their partition
 *   flush    seal the batches of this process, and wait for their results
 *
 * Each process has one, and any number of processes append at the same time. One thread of a process uses it at a time
 * (in Python: python/common/alone.h), and the caller holds no lock of the arena.
 *
 * A process may die at any point of these calls; producer_batch.h explains why the arena stays consistent.
 */
#ifndef PRODUCER_APPENDER_H
#define PRODUCER_APPENDER_H

#include "arena/arena.h"
#include "arena/buffer_pool.h"
#include "arena/completion.h"
#include "format/record.h"
#include "producer/partitioner.h"
#include "producer/producer_batch.h"

/* The last batch in a slot to which this process appended. */
struct touched_batch {
    uint32_t generation_plus_one; /* 0 if there is none */
    uint32_t record_count;        /* records that this process appended to it */
};

/* The last append of this process to a partition. Other processes also append to it, so slot and end are hints. */
struct appender_note {
    uint64_t seq;        /* the batch's seq + 1, or 0 before the first append; for flush */
    uint32_t slot_index; /* the slot of the batch */
    uint32_t end;        /* the end of its records in the slot: the next record is probably written there */
};

struct appender {
    struct arena *arena;
    uint32_t owner;   /* the owner number for which `touched` is valid: a forked child has another one */
    uint64_t joined;  /* number of the transaction that its records belong to, or 0 for the open one */
    uint64_t linger;  /* the linger of batches that it opens, as in slot_header: ns + 1, or 0 for the sender's linger */
    struct wake_set wakes; /* waiters to which an append granted slots; the caller posts their semaphores and empties
                            * the set */
    struct touched_batch *touched; /* per slot; for flush and the count of incomplete records */
    struct appender_note *notes;   /* per partition */
    uint32_t last_partition_index; /* the partition of the last append */
};

enum status appender_open(struct arena *arena, struct appender **appender, struct error *error) MUST_USE;
void appender_close(struct appender *appender);

/* ---- append ---- */

/* The slots that were granted to an append that waited. The append removes those that it uses. */
struct reservation {
    uint32_t *slots;
    uint32_t count;
};

struct append_result {
    struct batch_place first;  /* the place of the first record that this call appended */
    uint32_t appended;         /* how many consecutive records were appended to that batch */
    uint32_t need;             /* for STATUS_EXHAUSTED: how many slots to wait for */
    bool is_sender_wanted;     /* wake the sender: a batch was opened or filled, and it sleeps or has no heartbeat */
};

/* Returns true if a record takes at most one slot, for any deltas. */
static inline bool record_fits_batch(const struct arena *arena, const struct record_size *size)
{
    return (uint64_t)RECORDS_START + record_size_upper_bound(size) <= arena->geometry.batch_size;
}

/* Returns STATUS_RECORD_TOO_LARGE if the record is larger than the arena allows. */
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
    struct sticky *sticky; /* NULL, or the sticky partition of the topic: no batch is opened if it has changed */
};

/* Appends records[0..count) to one partition, as many as fit in one batch. Returns STATUS_OK if it appended at least
 * one. After any other status, nothing was appended. STATUS_EXHAUSTED: wait for result->need slots (buffer_pool.h), and
 * call again with them. STATUS_TRY_AGAIN: the sticky partition has changed, choose again. STATUS_DETACHED: call
 * arena_ensure_attached. STATUS_NO_TRANSACTION, STATUS_TRANSACTION_ENDED, STATUS_FENCED: see transaction.h.
 * STATUS_POISONED, STATUS_INVALID. */
enum status appender_append(struct appender *appender, const struct append_order *order,
                            struct append_result *result) MUST_USE;

/* ---- flush ---- */

/* The batches that a flush waits for: those of this process that were incomplete when the flush began. */
struct flush_ticket {
    struct flush_item {
        uint32_t slot_index;
        uint32_t generation;
    } *items;
    uint32_t count;
    struct flush_partition { /* a partition whose batches may be in the overflow (spilled.h) */
        uint64_t seq;
        uint32_t partition_index;
    } *partitions;
    uint32_t partition_count;
};

/* Seals the open batches to which this process appended, and lists all its incomplete batches. */
enum status appender_flush_begin(struct appender *appender, struct flush_ticket *ticket) MUST_USE;
/* Removes complete batches, and returns the number of the others. A partition with spilled batches counts as one
 * more. */
uint32_t appender_flush_remaining(struct appender *appender, struct flush_ticket *ticket);
/* Returns how many records the incomplete batches in the arena have, including those of other processes. */
uint64_t appender_flush_record_count(const struct appender *appender, const struct flush_ticket *ticket);
void appender_flush_end(struct flush_ticket *ticket);

/* Returns how many records of this process have no result yet. For a split batch, it counts the records without a
 * result, including those of other processes, but at most as many as this process appended. A partition with records in
 * the overflow counts as one record, because their number is unknown. Seals nothing. */
uint64_t appender_incomplete_count(const struct appender *appender);

#endif
