/* SPDX-License-Identifier: Apache-2.0
 *
 * A plain socket to a broker that leads some of the lanes: Produce requests out, their answers in.
 *
 *   request   own │ header │ RECORDS │ own │ header │ RECORDS │ ... │ own
 *             └─ sendmsg ──┘ sendfile  └─ sendmsg ──┘ sendfile       sendmsg
 *
 * Rules
 *   Nothing is in flight before and after. The lender finds the socket between two frames, or learns that it is broken
 *   and closes it.
 *   A request has at most one batch of each lane, as Kafka wants it. The lanes of a topic stand in a row.
 *   No call waits for the broker. The bytes of a request go before those of the next one.
 *   An answer in which all is well acks its batches. Any other breaks the lanes of its request, and the caller sends
 *   their batches again in a way that understands errors. The broker drops those that it has.
 *   An answer that is not that of the oldest request, or is too large to be ordinary, breaks the link.
 *
 * The broker's bytes are input: a frame is read when all of it is there, within the bounds of its buffer.
 */
#ifndef SHIPPING_LINK_H
#define SHIPPING_LINK_H

#include "shipping/lane.h"

enum { SHIP_REQUESTS_MAX = 16 };

/* A batch of a request. */
struct ship_piece {
    struct ship_lane *lane;
    uint64_t number;
    int file;
    off_t position; /* of its records */
    size_t size;    /* of its records */
    uint8_t header[RECORD_BATCH_HEADER_SIZE];
};

struct ship_request {
    struct produce_request produce;
    struct produce_topic *topics;
    struct produce_batch *batches;
    struct ship_piece *pieces;
    size_t *cuts; /* one more than batches: the last is the end of `own` */
    uint8_t *own;
    size_t own_room;
    uint64_t sent_ns; /* when its first byte was tried */
};

struct ship_link {
    int socket;
    struct produce_request form; /* client, version, acks and timeout of each request */
    uint32_t requests_max;
    uint32_t request_size_max;
    struct ship_lane *lanes;
    uint32_t lane_count;
    uint32_t lane_next; /* whose turn it is */
    struct ship_request requests[SHIP_REQUESTS_MAX]; /* request n in place n % SHIP_REQUESTS_MAX */
    uint32_t first; /* not answered */
    uint32_t end;
    bool is_sending; /* the youngest one; the two below say how far */
    uint32_t step;   /* twice the batch, plus 1 for its records */
    size_t step_done;
    struct produce_answer answer;
    uint8_t *received;
    size_t received_room;
    size_t received_size;
    bool is_broken;
    bool has_refused; /* an answer was not ordinary */
    int32_t throttle_ms;
    uint32_t request_count; /* answered */
    int64_t sent_size;
    int64_t received_total;
};

/* False when memory is short; link_free comes in either case. The lanes are there already. */
bool link_make(struct ship_link *link);
void link_free(struct ship_link *link);

/* Requests without an answer. */
static inline uint32_t link_in_flight(const struct ship_link *link)
{
    return link->end - link->first;
}

/* Sends what is begun, and, while `may_begin`, further requests, until the socket or the window is full. */
void link_send(struct ship_link *link, bool may_begin, uint64_t now_ns);

/* Takes the answers that are there. */
void link_receive(struct ship_link *link);

/* Nothing more comes by this socket: the lanes whose batches are not acked break. */
void link_break(struct ship_link *link);

#endif
