/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender's half of the accumulator: the work of the process with the sender role (Kafka's RecordAccumulator and
 * Sender). producer/appender.h is the producers' half. The two halves share only the arena.
 *
 *   ready      finds the partitions with batches to send
 *   drain      takes the oldest batch of each partition and completes its header: the batch is in flight
 *   complete   records the result and frees the slot
 *   requeue    returns the batch to its place, for a later drain
 *   expire     fails batches older than delivery_timeout_ms
 *   abort      fails batches
 *
 * The half keeps private lists and rebuilds them from the slot words when the role is taken (sender_half.h). So a
 * sender may die anywhere: a batch that is READY is sent again, and the broker recognises it by its sequence.
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
 *   log_pass           the drained batches of many partitions, each to its log
 *   pump               drained batches go to brokers
 *   batch_loop         batches of logs go to brokers: of a shipper, or of an overflow
 *   partition_stream   one partition in the batch loop
 *   positions          a shipper's positions, on disk
 *   spill_recorder     an overflow's results and positions
 *   spill_row          the rows of a spill file
 *   delivered          sums for the sender's metrics
 *   stuck_partitions   partitions to which no batch can be delivered now
 *   topic_limits       what topics hold, and which parked waiters may continue
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
    const char *sink_name;   /* the name of its sink, for the arena, or "" */
    bool wants_dead_letters; /* failed batches stay until their bytes are written elsewhere (complete.c) */
};

/* Takes the sender role and rebuilds the queues. Returns STATUS_BUSY while another process is the sender. The half
 * lives as long as the role is held. */
enum status sender_role_take(struct arena *arena, const struct role_options *options, struct sender_half **half,
                             struct error *error) MUST_USE;
/* Leaves the role cleanly, and frees the half. The arena records it, so that no process starts another sender. A forked
 * child only frees its copy. */
void sender_role_leave(struct sender_half *half);
/* Frees the half without leaving the role cleanly, as a closing process does. The arena then shows that the sender
 * died. */
void sender_role_drop(struct sender_half *half);

/* Renews the sender's heartbeat. Maintenance and each drain call it, so a long round that makes progress also renews
 * it. */
void sender_renew_heartbeat(struct sender_half *half);

/* ---- ready ---- */

struct ready_options {
    uint64_t now_ns;
    uint64_t linger_ns; /* for batches whose opener set none */
    uint32_t in_flight_max; /* partitions with this many batches in flight are not ready, unless it is 0 */
    bool is_everything_ready; /* no batch lingers, because of a flush or the end of the sender */
    bool takes_along;         /* with a ready batch, batches that have lingered for half of their time are ready */
};

/* Finds partitions with a batch that may be drained now, in the order in which their batches were found. Partitions
 * according to `takes_along` are last. Fills at most partitions_max indices. `next_check_ns` receives the time until
 * another one may become ready (UINT64_MAX if only new batches and acks change that). */
uint32_t sender_ready(struct sender_half *half, const struct ready_options *options, uint32_t *partitions,
                      uint32_t partitions_max, uint64_t *next_check_ns);

/* Returns the time since which a deliverable batch has waited for its acknowledgement, or UINT64_MAX if none waits. */
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
    uint32_t acked_record_count; /* above 0 if a sender split the batch and then died */
    uint32_t size;       /* wire bytes, including the header */
    uint32_t crc;        /* as in the header */
    int32_t base_sequence;
    uint32_t attempt_count; /* including this transmission */
    int64_t linger_ns; /* as set by its opener, or -1 */
    int16_t producer_epoch;
};

struct drain_options {
    uint64_t now_ns;
    uint32_t size_max;      /* wire bytes of all batches together; the first one may exceed it */
    uint32_t in_flight_max; /* batches of one partition in flight at once */
    bool continues_last;    /* a partition whose batch the previous drain took counts as a repeated one */
};

/* Takes a batch of each given partition, in that order, also if the batch has not lingered. If a partition is given
 * several times, later batches are taken only if they are sealed. A partition is skipped if it has no batch, awaits the
 * first record of one, is in its backoff, is muted or has a retry in flight. A batch that would exceed size_max ends
 * the drain. `batches` has the size partition_count. `partitions_seen` receives the number of partitions that were
 * visited. */
uint32_t sender_drain(struct sender_half *half, const struct drain_options *options, const uint32_t *partitions,
                      uint32_t partition_count, struct drained_batch *batches, uint32_t *partitions_seen);

struct batch_outcome {
    enum batch_result result;
    int32_t error_code;
    int64_t base_offset;
    int64_t log_append_time_ms;
};

/* Ends a drained batch, once. Returns STATUS_STALE if (slot_index, seq) is no longer in flight. A batch that expired or
 * was aborted in flight keeps that result, and only its memory is freed. */
enum status sender_complete(struct sender_half *half, uint32_t slot_index, uint64_t seq,
                            const struct batch_outcome *outcome, struct wake_set *wakes) MUST_USE;

/* The same for many batches, with one wake-up of the processes that wait for results. Returns how many were completed.
 * A batch that is not in flight (STATUS_STALE) is skipped. */
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

/* Stores the decided result of a drained batch in the arena before the batch is written elsewhere, so that no later
 * sender sends it. Only sender_complete, or expiry, records the result for the producer. */
enum status sender_decide(struct sender_half *half, uint32_t slot_index, uint64_t seq,
                          const struct batch_outcome *outcome) MUST_USE;

/* Takes a batch out of flight and keeps it at its place. It is not drained before retry_at_ns. */
enum status sender_requeue(struct sender_half *half, uint32_t slot_index, uint64_t seq, uint64_t retry_at_ns,
                           struct wake_set *wakes) MUST_USE;

/* Ends the backoff of the partition's batches: they may be drained at once. */
void sender_end_backoff(struct sender_half *half, uint32_t partition_index);

/* Ends a drained batch that is in the overflow (spilled.h): frees its memory. Its result is recorded later. */
enum status sender_spill(struct sender_half *half, uint32_t slot_index, uint64_t seq, struct wake_set *wakes) MUST_USE;

/* The same for a batch that the sink has, too. Its memory is freed after the sink's ack or error. */
enum status sender_spill_in_flight(struct sender_half *half, uint32_t slot_index, uint64_t seq) MUST_USE;

/* Records the result of records of a spilled batch. Returns STATUS_INVALID if there is no such slot or partition. */
enum status sender_complete_spilled(struct sender_half *half, const struct completion *completion) MUST_USE;

/* Quarantines a drained batch whose bytes do not match their checksum: RESULT_CORRUPT, its slot becomes BAD. */
enum status sender_quarantine(struct sender_half *half, uint32_t slot_index, uint64_t seq) MUST_USE;

/* Set the timeout on the delivery clock (delivery_clock.h), and add to the clock the time in which the sink worked
 * since the last call. If counts_always is true, only the boot clock determines the age of a batch. */
void sender_publish_delivery_timeout(struct sender_half *half, uint64_t delivery_timeout_ns, bool counts_always);
void sender_run_delivery_clock(struct sender_half *half, uint64_t run_ns);

/* Returns when the next batch expires if the clock runs: 0 if sender_expire would find one now, UINT64_MAX if there is
 * none. Fails nothing, so the caller can report the reason before sender_expire shows the results. */
uint64_t sender_next_expiry_ns(struct sender_half *half, uint64_t now_ns, uint64_t delivery_timeout_ns);

/* Fails every batch older than delivery_timeout_ns on the delivery clock. One in flight gets its result now and keeps
 * its memory until sender_complete. Returns how many expired. `next_expiry_ns` receives when the next one will expire
 * if the clock runs, or UINT64_MAX if there is none. */
uint32_t sender_expire(struct sender_half *half, uint64_t now_ns, uint64_t delivery_timeout_ns,
                       uint64_t *next_expiry_ns, struct wake_set *wakes);

/* Returns how many records of a partition expired since the last call. */
uint64_t sender_take_expired(struct sender_half *half, uint32_t partition_index);

/* Returns failed batches whose bytes are still to be written elsewhere (complete.h), with their decisions. Each is
 * returned once. Free it with sender_complete, or requeue it to have it returned again. */
uint32_t sender_dead_letters(struct sender_half *half, struct drained_batch *batches, struct batch_outcome *outcomes,
                             uint32_t batches_max);

/* The sink's task at the end of the arena's transaction (transaction.h). */
enum transaction_task { TRANSACTION_TASK_NOTHING, TRANSACTION_TASK_COMMIT, TRANSACTION_TASK_ABORT };

/* Aborts a transaction without a living coordinator, or one that is open for longer than timeout_ns. Delivers or
 * discards the batches of an ending transaction, which may take several calls: call it in each round. `number` receives
 * the transaction of the task. When the sink is done, call sender_end_transaction, with the reason if a decided one was
 * not committed. */
enum transaction_task sender_next_transaction_task(struct sender_half *half, uint64_t timeout_ns, uint64_t *number,
                                                   struct wake_set *wakes);
enum status sender_end_transaction(struct sender_half *half, uint64_t number, enum transaction_why why) MUST_USE;

/* Fails every batch (RESULT_ABORTED). Batches in flight keep their memory until sender_complete. */
uint32_t sender_abort(struct sender_half *half, bool is_in_flight_included, struct wake_set *wakes);

/* Publishes the number of waiting batches of each partition, for records without a key (KIP-794). Call it every 100 ms
 * or so. */
void sender_publish_queues(struct sender_half *half);

/* Marks a partition as available or not (it has no leader). Records without a key go to available partitions. */
void sender_set_available(struct sender_half *half, uint32_t partition_index, bool is_available);

/* Reports that the broker rejects the partition's batches with this error code. If it is 0, the broker accepts them. */
void sender_set_refused(struct sender_half *half, uint32_t partition_index, int16_t error_code);

void sender_mute(struct sender_half *half, uint32_t partition_index, bool is_muted);

/* Clears the sequences of all batches of a partition that are not in flight. They get new ones, from 0 on, when they
 * are drained. Only for batches that the sink does not have; set another epoch first (producer_id.h). */
void sender_resequence(struct sender_half *half, uint32_t partition_index);
void sender_resequence_all(struct sender_half *half);

/* Repairs what dead processes left and frees what hazards had deferred. Call it every 100 ms or so. */
void sender_maintain(struct sender_half *half, struct wake_set *wakes);

struct sender_statistics {
    uint32_t queued_count;    /* batches known to the sender, including those in flight */
    uint32_t in_flight_count;
    uint32_t deferred_count;  /* DONE, until it can be freed (sender_half.h) */
    uint32_t active_partition_count;
};
void sender_statistics_read(const struct sender_half *half, struct sender_statistics *statistics);

#endif
