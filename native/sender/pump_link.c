/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/pump_link.h"

#include "base/bytes.h"
#include "sender/drained_batch.h"
#include "sender/sender_half.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    FRAME_HEAD_SIZE = 4,
    ANSWER_ROOM = 64 << 10, /* and this for each partition, and the names: */
    ANSWER_ROOM_OF_PLACE = 256,
};

/* ---- memory ---- */

static uint32_t batches_max(const struct pump_link *link)
{
    CHECK(link->place_count > 0);
    return link->place_count < PUMP_BATCHES_MAX ? link->place_count : PUMP_BATCHES_MAX;
}

static bool request_make(const struct pump_link *link, struct pump_request *request)
{
    size_t count = batches_max(link);
    request->produce = link->form;
    request->produce.topics = request->topics = calloc(count, sizeof *request->topics);
    request->produce.batches = request->batches = calloc(count, sizeof *request->batches);
    request->results = calloc(count, sizeof *request->results);
    request->pieces = calloc(count, sizeof *request->pieces);
    request->cuts = calloc(count + 1, sizeof *request->cuts);
    request->iovecs = calloc(2 * count + 1, sizeof *request->iovecs);
    return request->topics != NULL && request->batches != NULL && request->results != NULL &&
           request->pieces != NULL && request->cuts != NULL && request->iovecs != NULL;
}

/* Room for the answer to the largest request: each batch is of a topic of its own, or all are of one. */
static bool answer_make(struct pump_link *link, size_t names_size)
{
    struct produce_request largest = link->form;
    struct produce_topic *topics = calloc(batches_max(link), sizeof *topics);
    for (uint32_t i = 0; topics != NULL && i < batches_max(link); i++) {
        topics[i].batch_count = batches_max(link);
    }
    largest.topics = topics;
    largest.topic_count = largest.batch_count = batches_max(link);
    if (topics != NULL) {
        link->answer.tables = calloc(produce_tables_size(&largest), sizeof *link->answer.tables);
    }
    free(topics);
    link->received_room = ANSWER_ROOM + (size_t)ANSWER_ROOM_OF_PLACE * link->place_count + names_size;
    link->received = malloc(link->received_room);
    link->turn = calloc(2 * (size_t)link->place_count, sizeof *link->turn);
    return link->answer.tables != NULL && link->received != NULL && link->turn != NULL;
}

bool pump_link_make(struct pump_link *link, size_t names_size)
{
    CHECK(link->requests_max > 0 && link->requests_max <= PUMP_REQUESTS_MAX);
    bool is_made = answer_make(link, names_size);
    for (uint32_t i = 0; i < PUMP_REQUESTS_MAX && is_made; i++) {
        is_made = request_make(link, &link->requests[i]);
    }
    return is_made;
}

void pump_link_free(struct pump_link *link)
{
    for (uint32_t i = 0; i < PUMP_REQUESTS_MAX; i++) {
        free(link->requests[i].topics);
        free(link->requests[i].batches);
        free(link->requests[i].results);
        free(link->requests[i].pieces);
        free(link->requests[i].cuts);
        free(link->requests[i].iovecs);
        free(link->requests[i].own);
    }
    free(link->answer.tables);
    free(link->received);
    free(link->turn);
}

/* ---- to compose a request ---- */

static int piece_order(const void *one, const void *other)
{
    const struct pump_piece *a = one;
    const struct pump_piece *b = other;
    if (a->topic != b->topic) {
        return a->topic < b->topic ? -1 : 1;
    }
    return a->partition < b->partition ? -1 : a->partition > b->partition;
}

static bool is_of_many_topics(const struct pump_request *request, uint32_t piece_count)
{
    CHECK(piece_count > 0);
    for (uint32_t i = 1; i < piece_count; i++) {
        if (request->pieces[i].topic != request->pieces[0].topic) {
            return true;
        }
    }
    return false;
}

/* The request's tables, from its pieces. */
static void tables_fill(struct pump_request *request, uint32_t piece_count, const struct produce_topic *topics)
{
    struct produce_request *produce = &request->produce;
    CHECK(piece_count <= PUMP_BATCHES_MAX);
    produce->topic_count = 0;
    produce->batch_count = piece_count;
    for (uint32_t i = 0; i < piece_count; i++) {
        const struct pump_piece *piece = &request->pieces[i];
        if (i == 0 || piece->topic != request->pieces[i - 1].topic) {
            request->topics[produce->topic_count] = topics[piece->topic];
            request->topics[produce->topic_count++].batch_count = 0;
        }
        request->topics[produce->topic_count - 1].batch_count++;
        request->batches[i] = (struct produce_batch){.partition = piece->partition, .size = piece->drained.size};
    }
}

static bool own_reserve(struct pump_request *request)
{
    size_t room = produce_own_size_max(&request->produce);
    CHECK(room > 0);
    if (room <= request->own_room) {
        return true;
    }
    uint8_t *own = realloc(request->own, room);
    if (own != NULL) {
        request->own = own;
        request->own_room = room;
    }
    return own != NULL;
}

static void iovecs_fill(struct pump_request *request, const struct arena *arena, size_t own_size)
{
    size_t begin = 0;
    CHECK(own_size <= request->own_room);
    request->iovec_count = request->iovec_next = 0;
    for (uint32_t i = 0; i < request->produce.batch_count; i++) {
        const struct drained_batch *drained = &request->pieces[i].drained;
        request->iovecs[request->iovec_count++] =
            (struct iovec){.iov_base = request->own + begin, .iov_len = request->cuts[i] - begin};
        request->iovecs[request->iovec_count++] =
            (struct iovec){.iov_base = arena_slot_data(arena, drained->slot_index), .iov_len = drained->size};
        begin = request->cuts[i];
    }
    if (own_size > begin) { /* a version without tagged fields has nothing behind the last batch */
        request->iovecs[request->iovec_count++] =
            (struct iovec){.iov_base = request->own + begin, .iov_len = own_size - begin};
    }
}

struct pump_request *pump_link_next_request(struct pump_link *link)
{
    CHECK(pump_link_has_room(link));
    return pump_link_request(link, link->end);
}

bool pump_link_begin(struct pump_link *link, uint32_t piece_count, const struct arena *arena,
                const struct produce_topic *topics, uint64_t now_ns)
{
    struct pump_request *request = pump_link_next_request(link);
    if (is_of_many_topics(request, piece_count)) {
        qsort(request->pieces, piece_count, sizeof *request->pieces, piece_order);
    }
    tables_fill(request, piece_count, topics);
    if (!own_reserve(request)) {
        return false;
    }
    size_t own_size = produce_encode(&request->produce, request->own, request->cuts);
    store_be32(request->own + PRODUCE_CORRELATION, pump_link_correlation(link, link->end));
    iovecs_fill(request, arena, own_size);
    request->sent_size = 0;
    request->is_sound = false;
    request->begun_ns = now_ns;
    link->end++;
    link->is_sending = true;
    return true;
}

/* ---- to send it ---- */

/* A batch that somebody scribbled on contradicts the checksum of what was appended. */
static bool request_is_sound(const struct pump_request *request, uint32_t *largest_record)
{
    CHECK(request->sent_size == 0);
    for (uint32_t i = 0; i < request->produce.batch_count; i++) {
        const struct drained_batch *drained = &request->pieces[i].drained;
        const uint8_t *bytes = request->iovecs[2 * i + 1].iov_base;
        if (!drained_batch_is_sound(drained, bytes)) {
            return false;
        }
        *largest_record = drained_batch_largest_record(drained, bytes, *largest_record);
    }
    return true;
}

static void request_advance(struct pump_request *request, size_t size)
{
    request->sent_size += size;
    while (request->iovec_next < request->iovec_count && size >= request->iovecs[request->iovec_next].iov_len) {
        size -= request->iovecs[request->iovec_next++].iov_len;
    }
    if (size > 0) {
        CHECK(request->iovec_next < request->iovec_count);
        struct iovec *next = &request->iovecs[request->iovec_next];
        next->iov_base = (char *)next->iov_base + size;
        next->iov_len -= size;
    }
}

void pump_link_send(struct pump_link *link)
{
    struct pump_request *request = pump_link_request(link, link->end - 1);
    if (link->is_sending && !request->is_sound) {
        request->is_sound = request_is_sound(request, &link->largest_record);
        link->is_damaged = !request->is_sound;
    }
    while (link->is_sending && !link->is_broken && !link->is_damaged) {
        struct msghdr message = {.msg_iov = request->iovecs + request->iovec_next,
                                 .msg_iovlen = request->iovec_count - request->iovec_next};
        CHECK(message.msg_iovlen > 0);
        ssize_t size = sendmsg(link->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (size < 0 && errno != EINTR) {
            link->is_broken = true;
        } else if (size > 0) {
            request_advance(request, (size_t)size);
            link->sent_size += (uint64_t)size;
            link->is_sending = request->iovec_next < request->iovec_count;
        }
    }
}

/* ---- to take answers ---- */

/* False when it is not the ordinary answer to the oldest request. */
static bool answer_take(struct pump_link *link, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    uint32_t written_end = link->end - link->is_sending;
    struct pump_request *request = pump_link_request(link, link->answered);
    link->answer.results = request->results;
    if (link->answered == written_end ||
        !produce_answer_read(&request->produce, pump_link_correlation(link, link->answered), bytes, size,
                             &link->answer)) {
        return false;
    }
    CHECK(link->answered < link->end);
    CHECK(now_ns >= request->begun_ns);
    uint64_t latency_ns = now_ns - request->begun_ns;
    request->answered_ns = now_ns;
    link->latency_sum_ns += latency_ns;
    link->latency_max_ns = latency_ns > link->latency_max_ns ? latency_ns : link->latency_max_ns;
    link->answered++;
    link->request_count++;
    if (link->answer.throttle_ms > link->throttle_ms) {
        link->throttle_ms = link->answer.throttle_ms;
    }
    return true;
}

/* Takes the whole frames in the buffer, up to one that is not ordinary. */
static void frames_take(struct pump_link *link, uint64_t now_ns)
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

void pump_link_receive(struct pump_link *link, uint64_t now_ns)
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
            return; /* the socket is empty: `ppoll` tells of more */
        }
    }
}
