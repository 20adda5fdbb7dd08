/* SPDX-License-Identifier: Apache-2.0
 *
 * The pump does the ordinary rounds of a sender whose sink is a Kafka cluster, on sockets borrowed from the sink.
 *
 *   with the arena's handle    complete ─> ready ─> drain ─> request ┐
 *                                 ^                                  │   pump_round
 *   without it                response <── wait <── sendmsg <── verify   pump_exchange
 *
 * The pump has no policy. Its caller chooses the link of each partition, the length of a short wait, and the time until
 * which the pump may run. The pump ends in these cases, and its caller handles what is not ordinary:
 *
 *   its time is over, or the caller interrupts it
 *   a batch is not ordinary     it is larger than a buffer, was split, has its result, is compressed or damaged, or has
 *                               a transaction that its link does not name; it stays in flight, and the caller delivers
 *                               it
 *   the transaction failed, or is aborted
 *   the transaction is being committed, and none of its batches is in flight or ready
 *   a link is not ordinary      an error in a response, a throttle, hostile bytes, a closed socket
 *   a topic was created, or a partition is ready that has no link
 *   no batch is left
 *
 * At the end the pump waits a short time for the missing responses. Its caller gets the requests without a response.
 *
 * The handle of the arena may be used by producers of the same process, and drain and completion change its private
 * fields. So pump_round runs under the lock of all users of the handle, and pump_exchange does not.
 *
 * SLEEP. The sleep flag that producers read is set, with a full barrier, before the last check for batches (D2). A
 * round that finds nothing with the flag set is followed by a wait. Any other round is followed by a check of the
 * sockets. If no link accepts a request, the sender can do nothing with new batches before a response arrives, which
 * ends the wait. So the flag remains SENDER_AWAKE, and no process wakes it. A commit that is requested meanwhile is
 * seen after the short wait. This wait lasts 10 ms if the last response took longer than that.
 *
 * WAITERS. When a response has freed a buffer, a waiting process is granted it at once. It wakes when the caller posts
 * its semaphore. If no link accepts a request, the broker limits the rate. If each response woke processes, they would
 * fill the freed buffers and sleep again, about four times per batch. So the caller delays the posts until enough
 * buffers are free for a run of records, for WAKE_DELAY_NS at most.
 *
 * TRANSACTIONS. A link may name the transaction's producer. The coordinator has its partitions, so the pump adds none.
 * Each round reads the word of the arena (transaction.h). Like the last check for batches, the last check for a commit
 * follows the sleep flag, so a commit is seen or wakes the sender. The caller decides and ends the transaction.
 *
 * DEATHS. After a death, the next sender sends the batches in flight again. If the request was written, the broker may
 * have them. It recognizes their sequences and drops the second copy. complete.c has the deaths after a result was
 * recorded.
 */
#ifndef SENDER_PUMP_H
#define SENDER_PUMP_H

#include "broker/link.h"
#include "sender/delivered.h"
#include "sender/sender.h"

#include <poll.h>

enum { PUMP_BATCHES_MAX = 500 /* the most batches of a request */ };

struct pump_piece {
    struct drained_batch drained;
    uint32_t topic; /* its place in the pump's table */
    int32_t partition;
};

/* A link, and the partitions that its broker leads. */
struct pump_link {
    struct broker_link broker;
    uint32_t place_count;
    uint32_t *turn; /* ready partitions; twice place_count */
    uint32_t turn_count;
    uint32_t turn_next; /* the partition that did not fit into the last request + 1, or 0 */
    struct pump_piece *pieces[BROKER_REQUESTS_MAX]; /* [n % BROKER_REQUESTS_MAX] has the batches of request n */
    bool is_damaged; /* a batch of the newest request has a wrong checksum; no byte of the request is written */
    uint64_t latency_sum_ns; /* of requests, from their beginning to their responses */
    uint64_t latency_max_ns;
};

static inline struct pump_piece *pump_link_pieces(const struct pump_link *link, uint32_t number)
{
    return link->pieces[number % BROKER_REQUESTS_MAX];
}

/* Returns true while all responses and the socket of the link are ordinary. */
static inline bool pump_link_is_healthy(const struct pump_link *link)
{
    return broker_link_is_healthy(&link->broker) && !link->is_damaged;
}

/* Returns true if another request may begin. */
static inline bool pump_link_has_room(const struct pump_link *link)
{
    return !link->is_damaged && broker_link_has_room(&link->broker);
}

/* The route of a partition. */
struct pump_place {
    uint32_t link;  /* number + 1; 0 if none */
    uint32_t topic; /* in the table of topics */
    int32_t partition;
    uint32_t batch_count; /* of the delivered batches, as the next two fields */
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
    uint32_t size_max; /* the most batches of a request */
    uint32_t in_flight_max;
    uint64_t short_wait_ns;
    uint32_t short_wait_flag; /* the value of sender_sleep during a short wait */
    uint64_t due_ns;         /* no request begins after this time */
    uint64_t foreign_ns;     /* the same, if a partition without a link is ready */
    uint32_t largest_record; /* bytes of the largest known record */
    int wake_fd;             /* the read end of the wake FIFO; pump_exchange empties it */

    /* private */
    uint32_t *ready;
    struct drained_batch *drained;
    struct drained_batch *left; /* drained batches that are not ordinary */
    uint32_t left_count;
    struct batch_completion *completions;
    struct pollfd *polled; /* first the wake fd, then the links */
    struct delivered delivered;
    uint32_t topic_count; /* topics when the pump began */
    uint64_t now_ns;
    uint64_t last_begun_ns; /* the most batches of a request */
    uint64_t wait_ns;
    uint64_t tick_at_ns;
    uint64_t end_ns;            /* no response is awaited after this time */
    uint64_t woken_ns;          /* the last round that delayed no waiters */
    uint64_t woken_batch_count; /* batches that were delivered at that time */
    bool delays_waiters;         /* set after a round if the waiters that it granted buffers are woken later */
    bool is_over;               /* no request begins any more */
};

/* Requires the caller's fields. Returns false if there is not enough memory. Call pump_free in either case. */
bool pump_make(struct pump *pump, size_t names_size);
void pump_free(struct pump *pump);

/* Completes the answered requests, and begins new ones. Returns true if the pump continues with pump_exchange. Unless
 * `delays_waiters` is set, the caller wakes the waiters in `wakes`. */
bool pump_round(struct pump *pump, struct wake_set *wakes);

/* Writes, waits for responses and for the wake fd, and reads. */
void pump_exchange(struct pump *pump);

/* Checks the newest request of a link, and writes as much as the socket accepts. It does not change the arena. */
void pump_send(struct pump *pump, struct pump_link *link);

/* Prevents further requests from beginning. */
void pump_stop(struct pump *pump);

/* At the end: adds the batches of a request that was damaged, and so never begun, to `left`. */
void pump_link_leave_damaged(struct pump *pump, struct pump_link *link);

/* Requeues the batches of all requests, for a caller that closes the sockets. */
void pump_requeue(struct pump *pump, struct wake_set *wakes);

#endif
