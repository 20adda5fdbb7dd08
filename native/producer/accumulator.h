/* SPDX-License-Identifier: Apache-2.0
 *
 * The accumulator: all partition queues, the pool and the rules of readiness (Kafka's RecordAccumulator, taken apart
 * into the producer's half and the sender's half, which meet in the arena and nowhere else).
 *
 * PRODUCER'S HALF (any number of processes)             SENDER'S HALF (the process with the sender role)
 *   append   a record becomes committed                   ready      which partitions have something to send
 *   flush    seal what I touched, wait                    drain      oldest first, header final, in flight
 *   close    no more appends                              complete   result recorded, slot freed
 *                                                         requeue    back to the front, later
 *                                                         expire     delivery_timeout_ms is over
 *                                                         abort      by force
 *
 * The sender's half keeps private lists and rebuilds them from the slot words when it takes the role, so a sender may
 * die anywhere: what is READY is sent again, and the broker recognises it by the sequence in its header.
 *
 * Whoever calls holds no lock. Each half is used by one thread of a process at a time (in Python: the one with the
 * GIL).
 */
#ifndef PRODUCER_ACCUMULATOR_H
#define PRODUCER_ACCUMULATOR_H

#include "arena/arena.h"
#include "arena/buffer_pool.h"
#include "arena/completion.h"
#include "format/record.h"
#include "producer/partitioner.h"
#include "producer/producer_batch.h"

struct sender_half;

struct accumulator {
    struct arena *arena;
    uint32_t owner;   /* who we were when `touched` and `sender` were filled: after fork we are somebody else */
    bool is_closed;
    uint64_t linger;  /* of the batches it opens, as in slot_header: ns + 1; 0: says nothing */
    struct wake_set wakes; /* append gave back a slot: post these semaphores, then zero the set */
    uint32_t *touched; /* per slot: generation + 1 of the last batch we appended to; 0 none. For flush. */
    struct sender_half *sender; /* NULL without the sender role */
    bool wants_dead_letters;    /* before the role is taken: dead_letter.h */
    char sink_name[SINK_NAME_SIZE]; /* likewise: what the arena is told; empty says nothing */
};

enum status accumulator_open(struct arena *arena, struct accumulator **accumulator, struct error *error) MUST_USE;
/* Leaves the sender role if held. */
void accumulator_close(struct accumulator *accumulator);

/* ---- producer's half ---- */

/* Slots that a waiter was granted, handed to the append that waited for them. Those that were used are taken out of
 * it. */
struct reservation {
    uint32_t *slots;
    uint32_t count;
};

struct append_result {
    struct batch_place first;  /* place of the first record appended by this call */
    uint32_t appended;         /* how many records went into that batch, in a row */
    uint32_t need;             /* with STATUS_EXHAUSTED: how many slots to wait for */
    bool is_sender_wanted;     /* a batch was opened or filled, and the sender sleeps or is silent: ring the doorbell */
};

/* Checks and measures a record against the arena's limits, outside any lock. */
enum status accumulator_measure(const struct accumulator *accumulator, const struct record *record,
                                struct record_size *size) MUST_USE;

struct append_order {
    uint32_t partition_index;
    uint32_t count;
    const struct measured_record *records;
    struct reservation *reservation; /* or NULL */
    struct sticky *sticky; /* chose the partition: a batch is opened there only if it stays. NULL: always */
};

/* Appends records[0..count) to one partition, as many as one batch takes (at least one on STATUS_OK).
 * STATUS_EXHAUSTED: nothing was appended; wait for result->need slots (buffer_pool.h) and call again with them.
 * STATUS_TRY_AGAIN: nothing was appended, the sticky partition moved on: choose again.
 * STATUS_CLOSED, STATUS_DETACHED (call arena_ensure_attached), STATUS_POISONED. */
enum status accumulator_append_order(struct accumulator *accumulator, const struct append_order *order,
                                     struct append_result *result) MUST_USE;

/* The same for a partition that the caller has chosen for good. */
static inline MUST_USE enum status accumulator_append(struct accumulator *accumulator, uint32_t partition_index,
                                                      const struct measured_record *records, uint32_t count,
                                                      struct reservation *reservation, struct append_result *result)
{
    const struct append_order order = {
        .partition_index = partition_index, .count = count, .records = records, .reservation = reservation};
    return accumulator_append_order(accumulator, &order, result);
}

/* What flush waits for: the batches this process appended to that were not complete when it began. */
struct flush_ticket {
    struct flush_item {
        uint32_t slot_index;
        uint32_t generation;
    } *items;
    uint32_t count;
};

/* Seals the open batches this process appended to, and lists all its incomplete ones. */
enum status accumulator_flush_begin(struct accumulator *accumulator, struct flush_ticket *ticket) MUST_USE;
/* How many of them are still incomplete; forgets the others. */
uint32_t accumulator_flush_remaining(struct accumulator *accumulator, struct flush_ticket *ticket);
/* How many records the incomplete ones hold, those of other processes included. */
uint64_t accumulator_flush_record_count(const struct accumulator *accumulator, const struct flush_ticket *ticket);
void accumulator_flush_end(struct flush_ticket *ticket);

/* ---- sender's half ---- */

/* Takes the sender role and rebuilds the queues. STATUS_BUSY while another process is the sender. */
enum status accumulator_become_sender(struct accumulator *accumulator, struct error *error) MUST_USE;
/* Leaves the role in order: the arena says so, and no process starts a sender in its place. */
void accumulator_resign_sender(struct accumulator *accumulator);
/* Gives the role up without a word, as closing does: the arena says that the sender died. */
void accumulator_drop_sender(struct accumulator *accumulator);

/* The sender's sign of life. Maintenance and each drain show it, so a sender in a long round that gets on shows it. */
void accumulator_show_life(struct accumulator *accumulator);

struct ready_options {
    uint64_t now_ns;
    uint64_t linger_ns; /* of batches whose opener said nothing */
    uint32_t in_flight_max; /* partitions with so many batches in flight are not ready; 0: no limit */
    bool is_everything_ready; /* closing, or somebody flushes: lingering ends */
    bool takes_along;         /* when a batch is ready, those go with it that have lingered for half of their time */
};

/* Partitions with a batch that may be drained now; those that are taken along come last. Fills at most partitions_max
 * indices; `next_check_ns` receives how long until another one may become ready (UINT64_MAX: nothing to wait for but
 * news and acks). */
uint32_t accumulator_ready(struct accumulator *accumulator, const struct ready_options *options, uint32_t *partitions,
                           uint32_t partitions_max, uint64_t *next_check_ns);

struct drained_batch {
    uint64_t seq;
    uint64_t created_ns;
    int64_t base_timestamp_ms;
    int64_t max_timestamp_ms;
    int64_t producer_id;
    uint32_t slot_index;
    uint32_t partition_index;
    uint32_t record_count;
    uint32_t acked_record_count; /* of a batch that was split before the last sender died */
    uint32_t size;       /* wire bytes, header included */
    uint32_t crc;        /* as in the header */
    int32_t base_sequence;
    uint32_t attempt_count; /* this transmission included */
    int64_t linger_ns; /* as its opener wished; -1: it left that to the sender */
    int16_t producer_epoch;
};

struct drain_options {
    uint64_t now_ns;
    uint32_t size_max;      /* wire bytes of all batches together; the first one is taken whatever its size */
    uint32_t in_flight_max; /* batches of one partition in flight at once */
};

/* Takes a batch of each partition given, in that order, whether it has lingered or not; a partition that is given again
 * gives another batch if that is sealed already. A partition that has nothing to give, awaits the first record of a
 * batch, backs off, is muted or has a retry in flight is skipped, never waited for. A batch that would exceed size_max
 * ends the drain. `batches` has room for partition_count; `partitions_seen` receives how far it came. */
uint32_t accumulator_drain(struct accumulator *accumulator, const struct drain_options *options,
                           const uint32_t *partitions, uint32_t partition_count, struct drained_batch *batches,
                           uint32_t *partitions_seen);

struct batch_outcome {
    enum batch_result result;
    int32_t error_code;
    int64_t base_offset;
    int64_t log_append_time_ms;
};

/* Ends a drained batch, once. STATUS_STALE when (slot_index, seq) is not in flight any more. A batch that expired or
 * was aborted in flight keeps that result: only its memory is freed now. */
enum status accumulator_complete(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                                 const struct batch_outcome *outcome, struct wake_set *wakes) MUST_USE;

/* The same for many batches; those who wait for results are woken once. Answers how many were complete with it: one
 * that is not in flight (STATUS_STALE) is passed over. */
struct batch_completion {
    uint64_t seq;
    uint32_t slot_index;
    struct batch_outcome outcome;
};
uint32_t accumulator_complete_many(struct accumulator *accumulator, const struct batch_completion *completions,
                                   uint32_t count, struct wake_set *wakes);

/* The same for records [acked_record_count, acked_record_count + record_count) of a batch that was split. When the last
 * record has its result the batch is complete. */
enum status accumulator_complete_part(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                                      uint32_t record_count, const struct batch_outcome *outcome,
                                      struct wake_set *wakes) MUST_USE;

/* Notes in the arena how a drained batch will end, before its dead letter is written: whoever becomes sender later does
 * not send it again. Only accumulator_complete, or expiry, tells the producer. */
enum status accumulator_decide(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                               const struct batch_outcome *outcome) MUST_USE;

/* Takes a batch out of flight and keeps it at its place; it is not drained before retry_at_ns. */
enum status accumulator_requeue(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq,
                                uint64_t retry_at_ns) MUST_USE;

/* The reason why batches of the partition were to wait is gone: they may be drained at once. */
void accumulator_end_backoff(struct accumulator *accumulator, uint32_t partition_index);

/* A drained batch whose bytes contradict their checksum: RESULT_CORRUPT, its slot stays as BAD. */
enum status accumulator_quarantine(struct accumulator *accumulator, uint32_t slot_index, uint64_t seq) MUST_USE;

/* The delivery clock (delivery_clock.h): what everybody who looks at the arena is told about it, and how long somebody
 * could deliver since the last call. counts_always: a batch is as old as the boot clock says. */
void accumulator_tell_delivery_timeout(struct accumulator *accumulator, uint64_t delivery_timeout_ns,
                                       bool counts_always);
void accumulator_run_delivery_clock(struct accumulator *accumulator, uint64_t run_ns);

/* Fails every batch older than delivery_timeout_ns on the delivery clock. One in flight gets its result now and keeps
 * its memory until accumulator_complete. Answers how many expired; `next_expiry_ns` receives when the next one will if
 * the clock runs; UINT64_MAX: there is none. */
uint32_t accumulator_expire(struct accumulator *accumulator, uint64_t now_ns, uint64_t delivery_timeout_ns,
                            uint64_t *next_expiry_ns, struct wake_set *wakes);

/* How many records of a partition expired since it was asked last. */
uint64_t accumulator_take_expired(struct accumulator *accumulator, uint32_t partition_index);

/* Failed batches whose bytes are still to be written somewhere (dead_letter.h), with what was decided about them. Each
 * is answered once; free it with accumulator_complete, or requeue it to have it answered again. */
uint32_t accumulator_dead_letters(struct accumulator *accumulator, struct drained_batch *batches,
                                  struct batch_outcome *outcomes, uint32_t batches_max);

/* Fails every batch (RESULT_ABORTED); those in flight keep their memory until accumulator_complete. */
uint32_t accumulator_abort(struct accumulator *accumulator, bool is_in_flight_included, struct wake_set *wakes);

/* Tells producers without a key how many batches wait in each partition (KIP-794). Call it every 100 ms or so. */
void accumulator_publish_queues(struct accumulator *accumulator);

/* Nothing can be delivered to an unavailable partition (it has no leader): producers without a key choose others. */
void accumulator_set_available(struct accumulator *accumulator, uint32_t partition_index, bool is_available);

void accumulator_mute(struct accumulator *accumulator, uint32_t partition_index, bool is_muted);

/* The arena's producer id and epoch, of the sink that gave the last one; -1: none. */
void accumulator_set_producer_id(struct accumulator *accumulator, int64_t producer_id, int16_t producer_epoch);

/* Takes the sequences back of all batches of a partition that are not in flight, and lets it start over: they get new
 * ones when they are drained. Only for batches that the sink does not have; set another epoch first (producer_id.h). */
void accumulator_resequence(struct accumulator *accumulator, uint32_t partition_index);
void accumulator_resequence_all(struct accumulator *accumulator);

/* Takes back what dead processes left and frees what hazards had deferred. Call it every 100 ms or so. */
void accumulator_maintain(struct accumulator *accumulator, struct wake_set *wakes);

struct sender_statistics {
    uint32_t queued_count;    /* batches known to the sender, in flight included */
    uint32_t in_flight_count;
    uint32_t deferred_count;  /* DONE, waiting for a hazard to go */
    uint32_t active_partition_count;
};
void accumulator_sender_statistics(const struct accumulator *accumulator, struct sender_statistics *statistics);

#endif
