/* SPDX-License-Identifier: Apache-2.0
 *
 * The private knowledge of the sender: a queue per partition, oldest batch first, and where each batch stands.
 *
 *   partition_queue      slot ── next ──> slot ── next ──> slot
 *   (by seq, oldest      in flight        in flight         OPEN, still filling
 *    first)
 *
 * All of it is a cache of the slot words. A batch gets here through the news hints: its producer sets the slot's bit
 * while the slot is still OWNED, before OPEN, so no batch can be missed; the sender clears the bit, and looks at a
 * slot that is not OPEN yet again and again (watched) until it is, or until it is somebody else's. A new sender looks
 * at every slot once.
 *
 * ORDER. Batches of a partition are announced in the order of their seq, but one pass over the hints may see a later
 * one and not an earlier one, which was announced behind its back. A batch that was announced before one that pass n
 * found is found by pass n + 1 at the latest. So a batch is drained only when a pass behind the one that found it is
 * over.
 *
 * FIRST RECORD. A process that opens a batch is about to commit its first record. A sender that seals it before makes
 * it DONE, and its opener opens another one: a sender that looks often enough does so again and again, until no slot is
 * free. So an OPEN batch without a record is left alone for the sender's patience, whatever is wanted; then its opener
 * is dead, stopped or late, and it is sealed. Nothing is delayed: there is no record in it, and there is none behind
 * it. If another batch was opened behind it, `open` names it no more (producer_batch.h): it is sealed at once.
 *
 *   queued     OPEN or READY, in its partition's queue
 *   watched    announced, not OPEN yet
 *   deferred   DONE, but a living process may still be writing into it: freed when its hazard is gone
 *   ended      its result is recorded (expired, aborted) while it is in flight: only its memory is still to be freed
 *   dead       READY, failed, in no queue: a dead letter, whose bytes somebody still wants (complete.h)
 */
#ifndef SENDER_SENDER_HALF_H
#define SENDER_SENDER_HALF_H

#include "sender/sender.h"

enum { FIRST_RECORD_NS_PER_BYTE = 4 };

struct slot_note {
    uint64_t seq;         /* valid while queued */
    uint64_t retry_at_ns; /* not drained before */
    uint64_t found_in_pass;
    uint32_t next;        /* slot index + 1 in the partition's queue */
    uint32_t partition_index;
    bool is_queued;
    bool is_in_flight;
    bool is_retry; /* in flight, and not for the first time */
    bool is_ended;
    bool is_watched;
    bool is_deferred;
    bool is_dead; /* seq and partition_index are valid, too */
};

struct partition_queue {
    uint32_t first; /* slot index + 1 */
    uint32_t last;
    uint32_t active_position; /* place in `active` + 1; 0: not there */
    uint32_t in_flight_count;
    uint64_t drained_in; /* number of the drain that took a batch of it last */
    uint64_t expired_record_count; /* that nobody has asked for yet */
    bool has_retry_in_flight;
    bool is_established; /* the sink has taken a batch of this epoch since the role was taken */
    bool is_muted;
    bool is_unavailable; /* producers are told to choose another one */
    bool has_acked;      /* since the last maintenance. Of this and the following: stuck_partitions.h */
    int16_t refused_error;
    int16_t stuck_error; /* as the arena has it; likewise the reason */
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
    uint64_t *opened; /* likewise */
    uint64_t recounted_ns;
    bool is_recount_due; /* a stuck word has changed */
    uint64_t posted_ticket; /* of the parked waiter that was posted last */
    uint32_t freed_count;   /* batches freed since parked waiters were looked at */
};

struct sender_half {
    struct arena *arena;
    uint32_t owner; /* the process that took the role: a fork's child has another name */
    bool wants_dead_letters;
    struct slot_note *notes;        /* slot_count */
    struct partition_queue *queues; /* partition_count */
    uint32_t *active;               /* partitions whose queue is not empty */
    uint32_t active_count;
    uint32_t *published;            /* partitions whose length was not 0 when it was published last */
    uint32_t published_count;
    bool has_published;
    struct slot_list watched;
    struct slot_list deferred;
    struct slot_list dead;
    uint64_t pass;        /* number of the newest pass over the hints */
    uint32_t found_count; /* batches that it found */
    struct topic_limits limits;
    uint32_t *repaired_generation; /* process_count: generation + 1 whose death was already repaired */
    uint64_t drain_count;          /* drains ever */
    uint32_t queued_count;
    uint32_t in_flight_count;
    uint64_t delivery_clock_ns; /* our own sum: the reading in the arena is input */
    bool counts_always;         /* expiry looks at the boot clock alone */
    bool has_acked_spilled;     /* since the last maintenance: a batch of the overflow (stuck_partitions.h) */
    uint64_t former_heartbeat_ns; /* of the sender before this one; 0: there was none */
    uint64_t acked_created_ns;  /* of a batch that this call found acknowledged; 0: none was */
    uint64_t oldest_created_ns; /* of what has no result yet, as the last expiry saw it; UINT64_MAX: nothing */
};

enum status sender_half_new(struct arena *arena, struct sender_half **half, struct error *error) MUST_USE;
void sender_half_free(struct sender_half *half);

/* False when a queued batch is another one now: an opener that was passed took its empty slot back after we saw it
 * OPEN, and the slot was opened anew. Once the word is READY the answer stays. */
bool sender_note_is_true(const struct sender_half *half, uint32_t slot_index);

/* Looks at a slot's word and puts it where it belongs (queue, watched, deferred, nowhere). */
void sender_note_slot(struct sender_half *half, uint32_t slot_index);

/* One pass: news hints, then watched slots. If it found something, a second one, which makes that drainable. */
void sender_collect_news(struct sender_half *half);

/* True while an earlier batch of its partition may be unknown. */
static inline bool sender_is_fresh(const struct sender_half *half, uint32_t slot_index)
{
    CHECK(half->notes[slot_index].found_in_pass <= half->pass);
    return half->notes[slot_index].found_in_pass == half->pass;
}

/* How long the sender leaves a batch without a record to its opener, whose first record may fill it: longer than that
 * takes in a process of which each new page faults. A process that is kept off its core for longer opens another batch.
 * */
static inline uint64_t sender_patience_ns(const struct arena *arena)
{
    return NS_PER_MS + FIRST_RECORD_NS_PER_BYTE * (uint64_t)arena->geometry.batch_size;
}

/* Into flight, and out of it, at its place in the queue. */
void sender_launch(struct sender_half *half, uint32_t slot_index);
void sender_land(struct sender_half *half, uint32_t slot_index);

/* False while something else of its partition must come back first. As in Kafka, a batch that was sent before goes when
 * it is the oldest, and nothing follows it until it is back: so no two retries change places and nothing overtakes
 * them. An epoch begins when nothing of the last one is out, and until the sink has taken a batch of it one goes at a
 * time: of a producer it does not know a broker takes any sequence, so that a second batch might get in before the
 * first. */
bool sender_may_launch(const struct sender_half *half, uint32_t slot_index);

/* A caller names a batch by its slot and its seq, and the batch may be gone. */
bool sender_has_in_flight(const struct sender_half *half, uint32_t slot_index, uint64_t seq);
bool sender_has_dead(const struct sender_half *half, uint32_t slot_index, uint64_t seq);

/* Takes a batch out of its queue. */
void sender_unlink(struct sender_half *half, uint32_t slot_index);
/* The same, of a dead one too, which is in none. */
void sender_forget(struct sender_half *half, uint32_t slot_index);

/* Drops from the front what is neither OPEN nor READY any more; answers the first batch not in flight, or NO_SLOT. */
uint32_t sender_candidate(struct sender_half *half, uint32_t partition_index);

/* Tells producers how many batches wait in a partition, or that it is unavailable. */
void sender_store_length(struct sender_half *half, uint32_t partition_index, uint32_t length);

/* A DONE slot: freed now, or kept in `deferred` until no hazard names it. */
void sender_free_slot(struct sender_half *half, uint32_t slot_index, struct wake_set *wakes);
void sender_free_deferred(struct sender_half *half, struct wake_set *wakes);

#endif
