/* SPDX-License-Identifier: Apache-2.0
 *
 * The private state of the sender: a queue per partition, oldest batch first, and the state of each batch.
 *
 *   partition_queue      slot ── next ──> slot ── next ──> slot
 *   (by seq, oldest      in flight        in flight         OPEN, still filling
 *    first)
 *
 * All of it is a cache of the slot words. A batch gets here through the ready hints. Its producer sets the slot's bit
 * while the slot is still OWNED, before OPEN, so no batch can be missed. The sender clears the bit, and checks a slot
 * that is not OPEN yet repeatedly (watched), until it is OPEN or has another owner. A new sender checks all slots once.
 *
 * ORDER. The hints of a partition's batches are set in the order of their seq. But a pass may find a later batch and
 * miss an earlier one, whose hint was set after the pass read the word. If pass n found a batch, pass n + 1 finds all
 * earlier batches. So a batch that pass n found is drained only after pass n + 1.
 *
 * FIRST RECORD. A process that opens a batch is about to commit its first record. If the sender seals it first, it
 * becomes DONE, and its opener opens another one. A sender that checks often enough would repeat this until no slot is
 * free. So the sender does not seal an empty OPEN batch before its patience is over. Afterwards the opener is dead,
 * stopped or late, and the sender seals the batch. This delays no record: the batch is empty, and no batch follows
 * it. If another batch was opened after it, `open` no longer names it (producer_batch.h), and it is sealed at once.
 *
 *   queued     OPEN or READY, in its partition's queue
 *   watched    announced, not OPEN yet
 *   deferred   DONE, but a living process may still be writing to it: freed when its hazard is gone. Or a chain, while
 *              a stopped process keeps the pool lock
 *   ended      its result is recorded (expired, aborted) while it is in flight: only its memory is still to be freed
 *   dead       READY, failed, in no queue: its bytes are still to be written elsewhere (complete.h)
 */
#ifndef SENDER_SENDER_HALF_H
#define SENDER_SENDER_HALF_H

#include "sender/sender.h"

enum { FIRST_RECORD_NS_PER_BYTE = 4 };

struct slot_note {
    uint64_t seq;         /* valid while the batch is queued */
    uint64_t retry_at_ns; /* the batch is not drained earlier */
    uint64_t found_in_pass;
    uint32_t next;        /* slot index + 1 in the partition's queue */
    uint32_t partition_index;
    bool is_queued;
    bool is_in_flight;
    bool is_retry; /* the batch is in flight, and was in flight before */
    bool is_ended;
    bool is_watched;
    bool is_deferred;
    bool is_dead; /* seq and partition_index are valid, too */
};

struct partition_queue {
    uint32_t first; /* slot index + 1 */
    uint32_t last;
    uint32_t active_position; /* place in `active` + 1, or 0 */
    uint32_t in_flight_count;
    uint64_t drained_in; /* number of the last drain that took a batch of the queue */
    uint64_t expired_record_count; /* since the last call of sender_take_expired */
    bool has_retry_in_flight;
    bool is_established; /* the sink has taken a batch of this epoch since the role was taken */
    bool is_muted;
    bool is_unavailable; /* records without a key go to other partitions */
    bool has_acked;      /* since the last maintenance; stuck_partitions.h explains this and the following fields */
    int16_t refused_error;
    int16_t stuck_error; /* the value in the arena */
    enum stuck_reason stuck_reason;
    uint64_t acked_ns;
};

struct slot_list {
    uint32_t *slots;
    uint32_t count;
};

/* topic_limits.h */
struct topic_limits {
    uint32_t *counts; /* topic_count, for a recount */
    uint64_t *opened; /* topic_count */
    uint64_t recounted_ns;
    bool is_recount_due; /* a stuck word has changed */
    uint32_t posted_end;    /* the entry after that of the parked waiter that was posted last */
    uint32_t freed_count;   /* batches freed since parked waiters were last checked */
};

struct sender_half {
    struct arena *arena;
    uint32_t owner; /* the process that took the role; in a forked child, it differs from the child's own */
    bool wants_dead_letters;
    struct slot_note *notes;        /* slot_count */
    struct partition_queue *queues; /* partition_count */
    uint32_t *active;               /* partitions whose queue is not empty */
    uint32_t active_count;
    uint32_t *published;            /* partitions whose last published length was not 0 */
    uint32_t published_count;
    bool has_published;
    struct slot_list watched;
    struct slot_list deferred;
    struct slot_list dead;
    uint64_t pass;        /* number of the newest pass over the hints */
    uint32_t found_count; /* batches that this pass found */
    struct topic_limits limits;
    uint32_t *noticed_generation; /* process_count: generation + 1 whose death was noticed */
    bool is_repair_due;            /* a death was noticed, and the pool is not repaired yet */
    uint64_t drain_count;          /* total number of drains */
    uint32_t queued_count;
    uint32_t in_flight_count;
    uint64_t delivery_clock_ns; /* a private sum, because the value in the arena is untrusted */
    bool counts_always;         /* expiry uses only the boot clock */
    bool has_acked_spilled;     /* since the last maintenance: a batch of the overflow (stuck_partitions.h) */
    uint64_t former_heartbeat_ns; /* of the previous sender, or 0 */
    uint64_t acked_created_ns;  /* of a batch that this call found acknowledged, or 0 */
    uint64_t oldest_created_ns; /* of the batches without a result, at the last check for expiry; or UINT64_MAX */
};

enum status sender_half_new(struct arena *arena, struct sender_half **half, struct error *error) MUST_USE;
void sender_half_free(struct sender_half *half);

/* Returns false if the slot of a queued batch has another batch now. This happens if an opener that was passed took
 * back its empty slot after the sender had seen it OPEN. Once the word is READY, the result does not change. */
bool sender_note_is_current(const struct sender_half *half, uint32_t slot_index);

/* Reads a slot's word and puts the slot into the right list (queue, watched, deferred, none). */
void sender_update_note(struct sender_half *half, uint32_t slot_index);

/* Makes one pass: ready hints, then watched slots. If it found a batch, it makes a second pass, after which the batch
 * can be drained. */
void sender_find_batches(struct sender_half *half);

/* Returns true if the newest pass has found the batch. The sender may not have found an earlier one of its partition
 * yet. */
static inline bool sender_is_fresh(const struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].found_in_pass <= half->pass);
    return half->notes[slot_index].found_in_pass == half->pass;
}

/* Returns how long the sender waits for the first record of an empty batch: longer than its append takes if each page
 * faults. If the opener takes longer, it opens another batch. */
static inline uint64_t sender_patience_ns(const struct arena *arena)
{
    return NS_PER_MS + FIRST_RECORD_NS_PER_BYTE * (uint64_t)arena->geometry.batch_size;
}

/* Mark a batch as in flight, or as not in flight. Its place in the queue does not change. */
void sender_mark_in_flight(struct sender_half *half, uint32_t slot_index);
void sender_clear_in_flight(struct sender_half *half, uint32_t slot_index);

/* Returns false while the batch must wait for the result of another batch of its partition. As in Kafka, a batch is
 * retried only if it is the oldest, and no batch is sent after it until it has its result. So batches keep their order.
 * An epoch begins when no batch of the previous epoch is in flight. Until the sink has taken a batch of the epoch, only
 * one batch is in flight: a broker accepts any first sequence of an unknown producer, and could take the second batch
 * before the first one. */
bool sender_may_send(const struct sender_half *half, uint32_t slot_index);

/* Returns true if the slot has the batch with this number, and it is in flight. */
bool sender_has_in_flight(const struct sender_half *half, uint32_t slot_index, uint64_t seq);
bool sender_has_dead(const struct sender_half *half, uint32_t slot_index, uint64_t seq);

/* Takes a batch out of its queue. */
void sender_unlink(struct sender_half *half, uint32_t slot_index);
/* The same, but the batch may also be dead, and thus in no queue. */
void sender_forget(struct sender_half *half, uint32_t slot_index);

/* Drops from the front each batch that is neither OPEN nor READY any more. Returns the first batch not in flight, or
 * NO_SLOT. */
uint32_t sender_candidate(struct sender_half *half, uint32_t partition_index);

/* Publishes how many batches wait in a partition, or that it is unavailable. */
void sender_store_length(struct sender_half *half, uint32_t partition_index, uint32_t length);

/* Frees a DONE slot now, or keeps it in `deferred` until it can be freed. */
void sender_free_slot(struct sender_half *half, uint32_t slot_index, struct wake_set *wakes);
void sender_free_deferred(struct sender_half *half, struct wake_set *wakes);

#endif
