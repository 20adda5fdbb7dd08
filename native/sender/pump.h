/* SPDX-License-Identifier: Apache-2.0
 *
 * The pump: the ordinary rounds of a sender whose sink is a Kafka cluster, on sockets that the sink has lent.
 *
 *   with the arena's handle    complete ─> ready ─> drain ─> request ┐
 *                                 ^                                  │   pump_round
 *   without it                  answer <── wait <── sendmsg <── verify   pump_exchange
 *
 * The pump holds no policy. Its caller says which partition goes by which link, how long a nap is, and until when the
 * pump may run. The pump ends, and leaves what is not ordinary to its caller, when
 *
 *   its time is over, or the caller interrupts it
 *   a batch is not ordinary     it is larger than a buffer, was split, has its result, is compressed or damaged, or its
 *                               link names no transaction and it has one; it is left in flight, for the caller to
 *                               deliver
 *   the transaction failed      or it is aborted: nothing more begins
 *   the transaction is being committed, and nothing of it is in flight or ready
 *   a link is not ordinary      an error in an answer, a throttle, hostile bytes, a closed socket
 *   a topic was named, or a partition is ready that has no link
 *   nothing is left to do
 *
 * At the end the pump waits a little for the answers that are missing. Then its caller gets the requests without one.
 *
 * The handle of the arena may be used by producers of the same process, and drain and completion change private fields
 * of it. So pump_round runs under the lock that all users of the handle hold, and pump_exchange does not.
 *
 * SLEEP. The flag that producers look at is set, with a full barrier, before the last look for batches (D2). A round
 * that finds nothing with the flag set is followed by a wait; any other round by a look at the sockets. Where no link
 * has room for a request, the sender can do nothing with news before an answer comes, which ends the wait. So the flag
 * says that it is awake, and no process rings. A commit that is asked for meanwhile is seen when the nap is over. The
 * nap lasts 10 ms there when the broker has taken longer than that.
 *
 * WAITERS. A process that waits for a buffer gets it when an answer has freed it, and wakes when the caller posts its
 * semaphore. Where no link has room, the broker is behind, and a process that is woken at each answer has filled what
 * was freed before the next one and sleeps again: four times for each batch. So the caller holds the posts back until
 * enough buffers are free for a run of records, for HOLD_NS at most. The grants themselves are made at once.
 *
 * TRANSACTIONS. A link may name the transaction's producer. Its partitions are those that the coordinator has, so the
 * pump adds none. Each round reads the word of the arena (transaction.h). The last look for a commit comes behind the
 * flag, as that for batches does, so a commit is seen or rings. The caller decides and ends the transaction.
 *
 * DEATHS. Before a request is written nothing has happened that drain alone does not do: the next sender sends the
 * batches again. Afterwards they may be at the broker, which knows their sequences and drops the second copy. A result
 * that was recorded stays; complete.c has the deaths behind it.
 */
#ifndef SENDER_PUMP_H
#define SENDER_PUMP_H

#include "broker/link.h"
#include "sender/delivered.h"
#include "sender/sender.h"

#include <poll.h>

enum { PUMP_BATCHES_MAX = 500 /* of a request */ };

/* A batch of a request. */
struct pump_piece {
    struct drained_batch drained;
    uint32_t topic; /* its place in the pump's table */
    int32_t partition;
};

/* A link, and the partitions that its broker leads. */
struct pump_link {
    struct broker_link broker;
    uint32_t place_count;
    uint32_t *turn; /* those whose turn it is; room for all, twice */
    uint32_t turn_count;
    uint32_t turn_next; /* the partition that found no room in the last request + 1; 0: none */
    struct pump_piece *pieces[BROKER_REQUESTS_MAX]; /* the batches of request n in place n % BROKER_REQUESTS_MAX */
    bool is_damaged; /* a batch of the youngest request contradicts its checksum; nothing of the request is written */
    uint64_t latency_sum_ns; /* of requests, from their beginning to their responses */
    uint64_t latency_max_ns;
};

static inline struct pump_piece *pump_link_pieces(const struct pump_link *link, uint32_t number)
{
    return link->pieces[number % BROKER_REQUESTS_MAX];
}

/* True while the link goes on as it should. */
static inline bool pump_link_is_well(const struct pump_link *link)
{
    return broker_link_is_well(&link->broker) && !link->is_damaged;
}

/* True if another request may begin. */
static inline bool pump_link_has_room(const struct pump_link *link)
{
    return !link->is_damaged && broker_link_has_room(&link->broker);
}

/* The way of a partition. */
struct pump_place {
    uint32_t link;  /* number + 1; 0: none */
    uint32_t topic; /* in the table of topics */
    int32_t partition;
    uint32_t batch_count; /* delivered; and their sums: */
    uint64_t record_count;
    uint64_t size;
};

struct pump {
    struct sender_half *half;
    struct pump_link *links;
    uint32_t link_count;
    const struct produce_topic *topics;
    struct pump_place *places; /* one for each partition of the arena */
    uint32_t place_count;
    uint64_t linger_ns;
    uint32_t size_max; /* of a request */
    uint32_t in_flight_max;
    uint64_t short_wait_ns;
    uint32_t nap_flag;       /* the value of sender_sleep during a nap */
    uint64_t due_ns;         /* no request begins after this time */
    uint64_t foreign_ns;     /* the same, when a partition without a link is ready */
    uint32_t largest_record; /* bytes of the largest record that is known */
    int bell;                /* the doorbell; rings are taken out */

    /* private */
    uint32_t *ready;
    struct drained_batch *drained;
    struct drained_batch *left; /* drained, and not ordinary */
    uint32_t left_count;
    struct batch_completion *completions;
    struct pollfd *polled; /* the bell, then the links */
    struct delivered delivered;
    uint32_t topic_count; /* as it was in the beginning */
    uint64_t now_ns;
    uint64_t last_begun_ns; /* a request */
    uint64_t wait_ns;
    uint64_t tick_at_ns;
    uint64_t end_ns;            /* no answer is waited for after this time */
    uint64_t woken_ns;          /* the last round that held no waiters, */
    uint64_t woken_batch_count; /* and the batches that were delivered by then */
    bool holds_waiters;         /* after a round: the waiters that it served are to sleep on */
    bool is_over;               /* nothing more begins */
};

/* Before pump_free; the caller's fields are filled in. False when memory is short. */
bool pump_make(struct pump *pump, size_t names_size);
void pump_free(struct pump *pump);

/* Completes what is answered, and begins what may begin. Answers whether the pump goes on: pump_exchange is next. The
 * waiters in `wakes` are to be woken unless `holds_waiters` says otherwise. */
bool pump_round(struct pump *pump, struct wake_set *wakes);

/* Writes, waits for answers and for the bell, and reads. */
void pump_exchange(struct pump *pump);

/* Checks the youngest request of a link, and writes what the socket accepts. It reads the arena and changes nothing in
 * it. */
void pump_send(struct pump *pump, struct pump_link *link);

/* Nothing more begins. */
void pump_stop(struct pump *pump);

#endif
