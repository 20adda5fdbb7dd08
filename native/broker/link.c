/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/link.h"

#include "base/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    FRAME_HEAD_SIZE = 4,
    CORRELATION_SIZE = 4,
    RESPONSE_ROOM = 64 << 10, /* bytes of a response beyond those of its batches */
    RESPONSE_ROOM_OF_BATCH = 256,
};

/* ---- memory ---- */

/* Allocates buffers for the largest request and its response. The size covers both extremes: each batch has its own
 * topic, or all batches have the same one. */
static bool rooms_make(struct broker_link *link, size_t names_size)
{
    struct produce_request largest = link->form;
    struct produce_topic *topics = calloc(link->batches_max, sizeof *topics);
    if (topics == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < link->batches_max; i++) {
        topics[i].batch_count = link->batches_max;
    }
    largest.topics = topics;
    largest.topic_count = largest.batch_count = link->batches_max;
    link->own_room = produce_own_size_max(&largest) + names_size;
    link->answer.tables = calloc(produce_tables_size(&largest), sizeof *link->answer.tables);
    free(topics);
    link->received_room = RESPONSE_ROOM + (size_t)RESPONSE_ROOM_OF_BATCH * link->batches_max + names_size;
    link->received = malloc(link->received_room);
    return link->answer.tables != NULL && link->received != NULL;
}

static bool request_make(const struct broker_link *link, struct broker_request *request)
{
    size_t count = link->batches_max;
    request->produce = link->form;
    request->produce.topics = request->topics = calloc(count, sizeof *request->topics);
    request->produce.batches = request->batches = calloc(count, sizeof *request->batches);
    request->results = calloc(count, sizeof *request->results);
    request->cuts = calloc(count, sizeof *request->cuts);
    request->own = malloc(link->own_room);
    request->pieces.iovecs = calloc(2 * count + 1, sizeof *request->pieces.iovecs);
    request->pieces.ranges = calloc(count, sizeof *request->pieces.ranges);
    return request->topics != NULL && request->batches != NULL && request->results != NULL &&
           request->cuts != NULL && request->own != NULL && request->pieces.iovecs != NULL &&
           request->pieces.ranges != NULL;
}

bool broker_link_make(struct broker_link *link, const struct broker_link_limits *limits)
{
    CHECK(link->requests_max > 0 && link->requests_max <= BROKER_REQUESTS_MAX);
    CHECK(limits->batch_count > 0);
    link->batches_max = limits->batch_count;
    bool is_made = rooms_make(link, limits->names_size);
    for (uint32_t i = 0; i < BROKER_REQUESTS_MAX && is_made; i++) {
        is_made = request_make(link, &link->requests[i]);
    }
    return is_made;
}

void broker_link_free(struct broker_link *link)
{
    for (uint32_t i = 0; i < BROKER_REQUESTS_MAX; i++) {
        free(link->requests[i].topics);
        free(link->requests[i].batches);
        free(link->requests[i].results);
        free(link->requests[i].cuts);
        free(link->requests[i].pieces.iovecs);
        free(link->requests[i].pieces.ranges);
        free(link->requests[i].own);
    }
    free(link->answer.tables);
    free(link->received);
}

/* ---- composing a request ---- */

void broker_link_begin(struct broker_link *link, bool is_checked, uint64_t now_ns)
{
    struct broker_request *request = broker_link_request(link, link->end);
    CHECK(request->produce.batch_count > 0 && request->produce.batch_count <= link->batches_max);
    CHECK(produce_own_size_max(&request->produce) <= link->own_room);
    size_t own_size = produce_encode(&request->produce, request->own, request->cuts);
    store_be32(request->own + PRODUCE_CORRELATION, broker_link_correlation(link, link->end));
    pieces_fill_gaps(&request->pieces, request->own, request->cuts, own_size);
    request->is_checked = is_checked;
    request->begun_ns = now_ns;
    link->end++;
    link->is_sending = true;
}

/* ---- reading responses ---- */

/* Records the response to the oldest request. `is_well` is false if the response has an error. */
static void request_answered(struct broker_link *link, bool is_well, uint64_t now_ns)
{
    struct broker_request *request = broker_link_request(link, link->answered);
    CHECK(link->answered < link->end);
    CHECK(now_ns >= request->begun_ns);
    request->answered_ns = now_ns;
    request->is_refused = !is_well;
    link->has_refused |= !is_well;
    link->answered++;
    link->request_count++;
    if (is_well && link->answer.throttle_ms > link->throttle_ms) {
        link->throttle_ms = link->answer.throttle_ms;
    }
}

/* Returns false if the response is not to the oldest request, or has an error that the link does not accept. */
static bool answer_take(struct broker_link *link, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    uint32_t written_end = link->end - link->is_sending;
    uint32_t correlation = broker_link_correlation(link, link->answered);
    struct broker_request *request = broker_link_request(link, link->answered);
    if (link->answered == written_end) {
        return false;
    }
    link->answer.results = request->results;
    bool is_well = produce_answer_read(&request->produce, correlation, bytes, size, &link->answer);
    if (!is_well && !(link->takes_errors && size >= CORRELATION_SIZE && load_be32(bytes) == correlation)) {
        return false;
    }
    request_answered(link, is_well, now_ns);
    return true;
}

/* Handles the complete frames in the buffer, up to the first one that is not ordinary. */
static void frames_take(struct broker_link *link, uint64_t now_ns)
{
    size_t begin = 0;
    while (link->received_size - begin >= FRAME_HEAD_SIZE) {
        size_t size = load_be32(link->received + begin);
        size_t left = link->received_size - begin - FRAME_HEAD_SIZE;
        if (size > link->received_room - FRAME_HEAD_SIZE) {
            link->is_strange = true;
            break;
        }
        if (size > left) {
            break;
        }
        if (!answer_take(link, link->received + begin + FRAME_HEAD_SIZE, size, now_ns)) {
            link->is_strange = true;
            break;
        }
        begin += FRAME_HEAD_SIZE + size;
    }
    CHECK(begin <= link->received_size);
    link->received_size -= begin;
    memmove(link->received, link->received + begin, link->received_size);
}

void broker_link_receive(struct broker_link *link, uint64_t now_ns)
{
    while (!link->is_broken && !link->is_strange) {
        size_t room = link->received_room - link->received_size;
        CHECK(room > 0);
        ssize_t size = recv(link->socket, link->received + link->received_size, room, MSG_DONTWAIT);
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (size <= 0) {
            link->is_broken = true;
            return;
        }
        link->received_total += (uint64_t)size;
        link->received_size += (size_t)size;
        frames_take(link, now_ns);
        if ((size_t)size < room) {
            return; /* the socket is empty: poll reports more */
        }
    }
}
