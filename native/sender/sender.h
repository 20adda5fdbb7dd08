/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender's half of the accumulator: the work of the process with the sender role (Kafka's RecordAccumulator and
 * Sender; the producer's side is producer/appender.h, and the two meet in the arena alone).
 *
 *   ready      which partitions have something to send
 *   drain      the oldest batch of each, its header final: it is in flight
 *   complete   the result is recorded and the slot freed
 *   requeue    the batch goes back to its place, for a later drain
 *   expire     delivery_timeout_ms is over
 *   abort      batches fail by force
 *
 * The half keeps private lists and rebuilds them from the slot words when the role is taken (sender_half.h). So a
 * sender may die anywhere: a batch that is READY is sent again, and the broker recognises it by the sequence in its
 * header.
 *
 * One thread of the process uses the half at a time, and the caller holds no lock of the arena.
 *
 * This folder has:
 *   sender_role        taking and leaving the role, maintenance
 *   sender_half        the private lists, rebuilt from the slot words
 *   drain              ready, drain
 *   drained_batch      the facts and the header of a batch that is drained
 *   complete           results, requeue, expire, abort, dead letters
 *   ending             the end of a transaction
 *   resequence         batches get other sequences
 *   log_run            drained batches go to a log on disk
 *   pump               drained batches go to brokers
 *   batch_loop         batches of logs go to brokers: of a shipper, or of an overflow
 *   partition_stream   one partition in the batch loop
 *   positions          how far a shipper is, on disk
 *   spill_keeper       how far an overflow is: results, positions
 *   spill_row          the rows of a spill file
 *   delivered          sums for the sender's metrics
 *   stuck_partitions   partitions to which nothing can be delivered now
 *   topic_limits       what topics hold, and who of the parked may go on
 */
#ifndef SENDER_SENDER_H
#define SENDER_SENDER_H

#include "arena/arena.h"
#include "arena/buffer_pool.h"
#include "arena/completion.h"
#include "arena/transaction.h"

struct sender_half;

/* ---- the role ---- */

struct role_options {
    const char *sink_name;   /* the name in the arena of the place that batches go to; "": none */
    bool wants_dead_letters; /* failed batches stay until their bytes are written elsewhere (complete.c) */
};

/* Takes the sender role and rebuilds the queues. STATUS_BUSY while another process is the sender. The half lives as
 * long as the role is held. */
enum status sender_role_take(struct arena *arena, const struct role_options *options, struct sender_half **half,
                             struct error *error) MUST_USE;
/* Leaves the role in order, and frees the half: the arena says so, and no process starts a sender in its place. The
 * child of a fork frees its copy and leaves nothing. */
void sender_role_leave(struct sender_half *half);
/* Gives the role up without a word, as closing does, and frees the half: the arena says that the sender died. */
void sender_role_drop(struct sender_half *half);

/* The sender's sign of life. Maintenance and each drain show it, so a sender in a long round that gets on shows it. */
void sender_show_life(struct sender_half *half);

/* ---- ready ---- */

struct ready_options {
    uint64_t now_ns;
    uint64_t linger_ns; /* of batches whose opener said nothing */
    uint32_t in_flight_max; /* partitions with so many batches in flight are not ready; 0: no limit */
    bool is_everything_ready; /* closing, or somebody flushes: lingering ends */
    bool takes_along;         /* when a batch is ready, those go with it that have lingered for half of their time */
};

/* Partitions with a batch that may be drained now, in the order in which they were found to have one; those that are
 * taken along come last. Fills at most partitions_max indices; `next_check_ns` receives how long until another one may
 * become ready (UINT64_MAX: nothing to wait for but news and acks). */
uint32_t sender_ready(struct sender_half *half, const struct ready_options *options, uint32_t *partitions,
                      uint32_t partitions_max, uint64_t *next_check_ns);

/* Since when a batch has waited for its acknowledgement that might have been delivered; UINT64_MAX: none does. */
uint64_t sender_waits_since_ns(struct sender_half *half, const struct ready_options *options);

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
    bool goes_on;           /* a partition that gave a batch to the drain before counts as given again */
};

/* Takes a batch of each partition given, in that order, whether it has lingered or not; a partition that is given again
 * gives another batch if that is sealed already. A partition that has nothing to give, awaits the first record of a
 * batch, backs off, is muted or has a retry in flight is skipped, never waited for. A batch that would exceed size_max
 * ends the drain. `batches` has room for partition_count; `partitions_seen` receives how far it came. */
uint32_t sender_drain(struct sender_half *half, const struct drain_options *options, const uint32_t *partitions,
                      uint32_t partition_count, struct drained_batch *batches, uint32_t *partitions_seen);

struct batch_outcome {
    enum batch_result result;
    int32_t error_code;
    int64_t base_offset;
    int64_t log_append_time_ms;
};

/* Ends a drained batch, once. STATUS_STALE when (slot_index, seq) is not in flight any more. A batch that expired or
 * was aborted in flight keeps that result: only its memory is freed now. */
enum status sender_complete(struct sender_half *half, uint32_t slot_index, uint64_t seq,
                            const struct batch_outcome *outcome, struct wake_set *wakes) MUST_USE;

/* The same for many batches; those who wait for results are woken once. Answers how many were complete with it: one
 * that is not in flight (STATUS_STALE) is passed over. */
struct batch_completion {
    uint64_t seq;
    uint32_t slot_index;
    struct batch_outcome outcome;
};
uint32_t sender_complete_many(struct sender_half *half, const struct batch_completion *completions, uint32_t count,
                              struct wake_set *wakes);

/* The same for records [acked_record_count, acked_record_count + record_count) of a batch that was split. When the last
 * record has its result the batch is complete. */
enum status sender_complete_part(struct sender_half *half, uint32_t slot_index, uint64_t seq, uint32_t record_count,
                                 const struct batch_outcome *outcome, struct wake_set *wakes) MUST_USE;

/* Notes in the arena how a drained batch will end, before its dead letter is written: a later sender does not send it
 * again. Only sender_complete, or expiry, tells the producer. */
enum status sender_decide(struct sender_half *half, uint32_t slot_index, uint64_t seq,
                          const struct batch_outcome *outcome) MUST_USE;

/* Takes a batch out of flight and keeps it at its place; it is not drained before retry_at_ns. */
enum status sender_requeue(struct sender_half *half, uint32_t slot_index, uint64_t seq, uint64_t retry_at_ns,
                           struct wake_set *wakes) MUST_USE;

/* The reason why batches of the partition were to wait is gone: they may be drained at once. */
void sender_end_backoff(struct sender_half *half, uint32_t partition_index);

/* A drained batch that lies in the overflow now (spilled.h): its memory is free, and its result is still to come. */
enum status sender_spill(struct sender_half *half, uint32_t slot_index, uint64_t seq, struct wake_set *wakes) MUST_USE;

/* The same while the sink still has the batch: its memory is freed with the sink's answer, whatever that is. */
enum status sender_spill_in_flight(struct sender_half *half, uint32_t slot_index, uint64_t seq) MUST_USE;

/* The result of records of a spilled batch. STATUS_INVALID: there is no such slot or partition. */
enum status sender_complete_spilled(struct sender_half *half, const struct completion *completion) MUST_USE;

/* A drained batch whose bytes contradict their checksum: RESULT_CORRUPT, its slot stays as BAD. */
enum status sender_quarantine(struct sender_half *half, uint32_t slot_index, uint64_t seq) MUST_USE;

/* The delivery clock (delivery_clock.h): the timeout and the reading that every observer of the arena sees, and the
 * time in which the sink worked since the last call. counts_always: a batch is as old as the boot clock says. */
void sender_publish_delivery_timeout(struct sender_half *half, uint64_t delivery_timeout_ns, bool counts_always);
void sender_run_delivery_clock(struct sender_half *half, uint64_t run_ns);

/* Fails every batch older than delivery_timeout_ns on the delivery clock. One in flight gets its result now and keeps
 * its memory until sender_complete. Answers how many expired; `next_expiry_ns` receives when the next one will if the
 * clock runs; UINT64_MAX: there is none. */
uint32_t sender_expire(struct sender_half *half, uint64_t now_ns, uint64_t delivery_timeout_ns,
                       uint64_t *next_expiry_ns, struct wake_set *wakes);

/* How many records of a partition expired since it was asked last. */
uint64_t sender_take_expired(struct sender_half *half, uint32_t partition_index);

/* Failed batches whose bytes are still to be written somewhere (complete.h), with what was decided about them. Each
 * is answered once; free it with sender_complete, or requeue it to have it answered again. */
uint32_t sender_dead_letters(struct sender_half *half, struct drained_batch *batches, struct batch_outcome *outcomes,
                             uint32_t batches_max);

/* The sink's part in the end of the arena's transaction (transaction.h). */
enum transaction_task { TRANSACTION_TASK_NOTHING, TRANSACTION_TASK_COMMIT, TRANSACTION_TASK_ABORT };

/* Aborts a transaction that no living process coordinates, or that is open for longer than timeout_ns. Delivers or
 * throws away what an ending one holds, in as many calls as that takes: call it in each round. `number` receives the
 * transaction of the task. When the sink is done with it, call sender_end_transaction, with the reason of a decided one
 * that was not committed. */
enum transaction_task sender_next_transaction_task(struct sender_half *half, uint64_t timeout_ns, uint64_t *number,
                                                 struct wake_set *wakes);
enum status sender_end_transaction(struct sender_half *half, uint64_t number, enum transaction_why why) MUST_USE;

/* Fails every batch (RESULT_ABORTED); those in flight keep their memory until sender_complete. */
uint32_t sender_abort(struct sender_half *half, bool is_in_flight_included, struct wake_set *wakes);

/* Tells producers without a key how many batches wait in each partition (KIP-794). Call it every 100 ms or so. */
void sender_publish_queues(struct sender_half *half);

/* Nothing can be delivered to an unavailable partition (it has no leader): producers without a key choose others. */
void sender_set_available(struct sender_half *half, uint32_t partition_index, bool is_available);

/* The broker refuses the partition's batches with this error code, and they are sent again; 0: no more. */
void sender_set_refused(struct sender_half *half, uint32_t partition_index, int16_t error_code);

void sender_mute(struct sender_half *half, uint32_t partition_index, bool is_muted);

/* Takes the sequences back of all batches of a partition that are not in flight, and lets it start over: they get new
 * ones when they are drained. Only for batches that the sink does not have; set another epoch first (producer_id.h). */
void sender_resequence(struct sender_half *half, uint32_t partition_index);
void sender_resequence_all(struct sender_half *half);

/* Takes back what dead processes left and frees what hazards had deferred. Call it every 100 ms or so. */
void sender_maintain(struct sender_half *half, struct wake_set *wakes);

struct sender_statistics {
    uint32_t queued_count;    /* batches known to the sender, in flight included */
    uint32_t in_flight_count;
    uint32_t deferred_count;  /* DONE, waiting for a hazard to go */
    uint32_t active_partition_count;
};
void sender_statistics_read(const struct sender_half *half, struct sender_statistics *statistics);

#endif
