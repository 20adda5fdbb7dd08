/* SPDX-License-Identifier: Apache-2.0
 *
 * A plain socket to a broker, and the Produce requests that a pump (pump.h) has on it.
 *
 *   requests   | 7 | 8 | 9 | 10 | 11 |            from 0 on; the correlation id is correlation_first + number
 *                ^ first   ^ answered ^ end
 *   iovecs     | own | batch | own | batch | own |   one sendmsg, or as much of it as fits
 *
 * Rules
 *   Nothing is in flight in the beginning. At the end the lender gets the requests without an answer, how much of each
 *   is written, and the bytes that were received and not used. So its own reader goes on where this one stopped.
 *   An answer in which all is well, to the oldest request, is used here. Any other stays in `received`.
 *   Correlation ids go on where the lender's requests ended. So a second answer to a request of the lender, or of an
 *   earlier borrower, is never taken for the answer to a request that is in flight now.
 *   No byte of a request is written before the checksums of all its batches were compared with their bytes.
 *   pump_link_send and pump_link_receive read the arena and change nothing in it. Other threads may use it meanwhile.
 *
 * The broker's bytes are input: a frame is read when all of it is there, within the bounds of its buffer.
 */
#ifndef SENDER_PUMP_LINK_H
#define SENDER_PUMP_LINK_H

#include "format/produce.h"
#include "sender/sender.h"

#include <sys/uio.h>

enum { PUMP_REQUESTS_MAX = 16, PUMP_BATCHES_MAX = 500 /* of a request: two iovecs each, and IOV_MAX is 1024 */ };

/* A batch of a request. */
struct pump_piece {
    struct drained_batch drained;
    uint32_t topic; /* its place in the pump's table */
    int32_t partition;
};

struct pump_request {
    struct produce_request produce;
    struct produce_topic *topics;
    struct produce_batch *batches;
    struct produce_result *results; /* valid when it was answered */
    struct pump_piece *pieces;
    struct iovec *iovecs; /* own bytes and batches in turn */
    size_t *cuts;
    uint8_t *own;
    size_t own_room;
    uint32_t iovec_count;
    uint32_t iovec_next; /* the bytes of it that are written are cut off */
    uint64_t sent_size;
    uint64_t begun_ns;
    uint64_t answered_ns;
    bool is_sound; /* its checksums were compared */
};

struct pump_link {
    int socket;
    struct produce_request form; /* client, transactional id, version, acks and timeout of each request */
    uint32_t correlation_first;  /* the correlation id of number 0; ids go from 0 to INT32_MAX, and then from 0 again */
    uint32_t requests_max;
    uint32_t place_count; /* partitions that the broker leads */
    uint32_t *turn;       /* those whose turn it is; room for all, twice */
    uint32_t turn_count;
    uint32_t turn_next; /* the partition that found no room in the last request + 1; 0: none */
    struct pump_request requests[PUMP_REQUESTS_MAX]; /* number n in place n % PUMP_REQUESTS_MAX */
    uint32_t first;    /* not completed */
    uint32_t answered; /* the first that is not answered */
    uint32_t end;
    struct produce_answer answer;
    uint8_t *received;
    size_t received_room;
    size_t received_size;
    bool is_sending; /* bytes of the youngest request are left */
    bool is_damaged; /* a batch of the youngest request contradicts its checksum; nothing of the request is written */
    bool is_broken;  /* the socket is at its end */
    bool is_strange; /* an answer is not ordinary, and lies in `received` */
    int32_t throttle_ms;
    uint32_t largest_record; /* bytes of the largest record that is known, those of the requests included */
    uint32_t request_count; /* answered */
    uint64_t sent_size;
    uint64_t received_total;
    uint64_t latency_sum_ns; /* of requests, from their beginning to their answers */
    uint64_t latency_max_ns;
};

/* False when memory is short; pump_link_free comes in either case. `names_size`: bytes of the names of its topics. */
bool pump_link_make(struct pump_link *link, size_t names_size);
void pump_link_free(struct pump_link *link);

static inline struct pump_request *pump_link_request(struct pump_link *link, uint32_t number)
{
    return &link->requests[number % PUMP_REQUESTS_MAX];
}

static inline uint32_t pump_link_correlation(const struct pump_link *link, uint32_t number)
{
    return (link->correlation_first + number) & INT32_MAX;
}

/* True while the link goes on as it should. */
static inline bool pump_link_is_well(const struct pump_link *link)
{
    return !link->is_broken && !link->is_strange && !link->is_damaged && link->throttle_ms == 0;
}

/* True when another request may begin. */
static inline bool pump_link_has_room(const struct pump_link *link)
{
    return pump_link_is_well(link) && !link->is_sending && link->end - link->first < link->requests_max;
}

/* The next request, whose pieces the caller fills in; then pump_link_begin makes it the youngest one. False when memory
 * is short, and nothing was begun. The pieces of a topic need not stand in a row. */
struct pump_request *pump_link_next_request(struct pump_link *link);
bool pump_link_begin(struct pump_link *link, uint32_t piece_count, const struct arena *arena,
                const struct produce_topic *topics, uint64_t now_ns);

/* Writes what the socket takes. */
void pump_link_send(struct pump_link *link);

/* Takes the answers that are there. */
void pump_link_receive(struct pump_link *link, uint64_t now_ns);

#endif
