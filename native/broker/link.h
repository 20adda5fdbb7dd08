/* SPDX-License-Identifier: Apache-2.0
 *
 * A link: a plain socket to a broker, and the Produce requests on it.
 *
 *   requests   | 7 | 8 | 9 | 10 | 11 |      counted from 0; the correlation id is correlation_first + number
 *                ^ first   ^ answered ^ end
 *   request    | own | batch | own | batch | own |      pieces (pieces.h): memory, ranges of files
 *
 * The owner of a link composes its requests, and completes the answered ones. There are two owners: the pump sends
 * batches of the arena (sender/pump.h), and the batch loop sends batches of a log (sender/batch_loop.h).
 *
 * Rules
 *   At the beginning, no request is in flight.
 *   A request has at most one batch of each partition, as Kafka requires. The batches of a topic are adjacent.
 *   No call waits for the broker. All bytes of a request are written before those of the next one.
 *   A request has a policy. If its batches are to be checked, its owner checks them before its first byte is written,
 *   and sets `is_checked`. Otherwise, they are sent unchanged, and `is_checked` is true from the beginning.
 *   The link handles a response to the oldest request if it has no error. If the link `takes_errors`, it also handles a
 *   response with an error, and sets `is_refused` of the request. Any other response stays in `received`, and
 *   `is_strange` of the link is set.
 *   The correlation ids continue those of the previous owner of the socket. So a late response to an earlier request
 *   never counts as the response to a request that is in flight.
 *   broker_link_send and broker_link_receive do not change the pieces. Other threads may use the arena meanwhile.
 *
 * The broker's bytes are untrusted: a frame is read when it is complete, within the bounds of its buffer.
 */
#ifndef BROKER_LINK_H
#define BROKER_LINK_H

#include "base/check.h"
#include "broker/pieces.h"
#include "format/produce.h"

#include <string.h>

enum { BROKER_REQUESTS_MAX = 16 };

struct broker_request {
    struct produce_request produce;
    struct produce_topic *topics;
    struct produce_batch *batches;
    struct produce_result *results; /* valid after an answer without an error */
    struct pieces pieces;
    size_t *cuts;
    uint8_t *own;
    uint64_t begun_ns;
    uint64_t answered_ns;
    bool is_checked;
    bool is_refused; /* the answer has an error; valid after the request was answered */
};

struct broker_link {
    /* set by the owner before broker_link_make */
    int socket;
    struct produce_request form; /* client, transactional id, version, acks and timeout of each request */
    uint32_t correlation_first;  /* the correlation id of request 0; ids continue with 0 after INT32_MAX */
    uint32_t requests_max;
    bool takes_errors;

    uint32_t batches_max; /* the most batches of a request */
    size_t own_room;      /* for the request's own bytes */
    struct broker_request requests[BROKER_REQUESTS_MAX]; /* [n % BROKER_REQUESTS_MAX] is request n */
    uint32_t first;    /* the first request that is not completed; the owner advances it */
    uint32_t answered; /* the first request that is not answered */
    uint32_t end;
    struct produce_answer answer;
    uint8_t *received;
    size_t received_room;
    size_t received_size;
    bool is_sending; /* the newest request is not written completely */
    bool is_broken;  /* the socket was closed or failed */
    bool is_strange; /* a response is not ordinary, and is in `received` */
    bool has_refused; /* a request is refused */
    int32_t throttle_ms;
    uint32_t request_count; /* answered requests */
    uint64_t sent_size;
    uint64_t received_total;
};

/* The limits of a request. */
struct broker_link_limits {
    uint32_t batch_count;
    size_t names_size; /* bytes of the names of its topics, each counted once */
};

/* Returns false if there is not enough memory. Call broker_link_free in either case. */
bool broker_link_make(struct broker_link *link, const struct broker_link_limits *limits);
void broker_link_free(struct broker_link *link);

static inline struct broker_request *broker_link_request(struct broker_link *link, uint32_t number)
{
    return &link->requests[number % BROKER_REQUESTS_MAX];
}

static inline uint32_t broker_link_correlation(const struct broker_link *link, uint32_t number)
{
    return (link->correlation_first + number) & INT32_MAX;
}

/* Returns the number of requests that are not completed. */
static inline uint32_t broker_link_in_flight(const struct broker_link *link)
{
    CHECK(link->first <= link->answered && link->answered <= link->end);
    return link->end - link->first;
}

/* Returns true while the link is neither broken nor strange. */
static inline bool broker_link_is_healthy(const struct broker_link *link)
{
    return !link->is_broken && !link->is_strange && !link->has_refused && link->throttle_ms == 0;
}

/* Returns true if another request may begin. */
static inline bool broker_link_has_room(const struct broker_link *link)
{
    return broker_link_is_healthy(link) && !link->is_sending && broker_link_in_flight(link) < link->requests_max;
}

/* Returns the next request, without batches. */
static inline struct broker_request *broker_link_next_request(struct broker_link *link)
{
    CHECK(broker_link_has_room(link));
    struct broker_request *request = broker_link_request(link, link->end);
    request->produce.topic_count = request->produce.batch_count = 0;
    request->pieces.count = request->pieces.next = 0;
    request->pieces.range_count = request->pieces.range_next = 0;
    request->pieces.sent_size = 0;
    return request;
}

static inline bool produce_topic_is_same(const struct produce_topic *one, const struct produce_topic *other)
{
    return one->name_size == other->name_size &&
           (one->name == other->name || memcmp(one->name, other->name, one->name_size) == 0);
}

/* Adds a batch of this topic to the request. The caller adds its pieces next: one of memory, a range, or both. */
static inline void broker_request_add(struct broker_request *request, const struct produce_topic *topic,
                                      int32_t partition, uint32_t size)
{
    struct produce_request *produce = &request->produce;
    if (produce->topic_count == 0 || !produce_topic_is_same(&request->topics[produce->topic_count - 1], topic)) {
        request->topics[produce->topic_count] = *topic;
        request->topics[produce->topic_count++].batch_count = 0;
    }
    request->topics[produce->topic_count - 1].batch_count++;
    request->batches[produce->batch_count++] = (struct produce_batch){.partition = partition, .size = size};
    pieces_add_gap(&request->pieces);
}

/* Begins to send the next request, which becomes the newest one. */
void broker_link_begin(struct broker_link *link, bool is_checked, uint64_t now_ns);

/* Writes as much as the socket accepts. The newest request must be checked. */
static inline void broker_link_send(struct broker_link *link)
{
    struct broker_request *request = broker_link_request(link, link->end - 1);
    if (link->is_sending && !link->is_broken) {
        uint64_t before = request->pieces.sent_size;
        CHECK(request->is_checked);
        link->is_broken = !pieces_write(&request->pieces, link->socket);
        link->is_sending = pieces_are_left(&request->pieces);
        link->sent_size += request->pieces.sent_size - before;
    }
}

/* Handles the responses that have arrived. */
void broker_link_receive(struct broker_link *link, uint64_t now_ns);

#endif
