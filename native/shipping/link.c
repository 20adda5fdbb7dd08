/* SPDX-License-Identifier: Apache-2.0 */
#include "shipping/link.h"

#include "base/bytes.h"
#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    FRAME_HEAD_SIZE = 4,
    CORRELATION_SIZE = 4,
    ANSWER_ROOM = 64 << 10, /* and this for each lane: */
    ANSWER_ROOM_OF_LANE = 256,
    BATCHES_MAX = 4096, /* of a request */
};

static struct ship_request *request_at(struct ship_link *link, uint32_t number)
{
    return &link->requests[number % SHIP_REQUESTS_MAX];
}

/* ---- memory ---- */

static uint32_t batches_max(const struct ship_link *link)
{
    return link->lane_count < BATCHES_MAX ? link->lane_count : BATCHES_MAX;
}

static bool request_make(const struct ship_link *link, struct ship_request *request)
{
    size_t count = batches_max(link);
    request->produce = link->form;
    request->produce.topics = request->topics = calloc(count, sizeof *request->topics);
    request->produce.batches = request->batches = calloc(count, sizeof *request->batches);
    request->pieces = calloc(count, sizeof *request->pieces);
    request->cuts = calloc(count + 1, sizeof *request->cuts);
    return request->topics != NULL && request->batches != NULL && request->pieces != NULL && request->cuts != NULL;
}

/* Room for the answer to the largest request: each batch is of a topic of its own. */
static bool answer_make(struct ship_link *link)
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
    link->answer.results = calloc(batches_max(link), sizeof *link->answer.results);
    link->received_room = ANSWER_ROOM;
    for (uint32_t i = 0; i < link->lane_count; i++) {
        link->received_room += ANSWER_ROOM_OF_LANE + link->lanes[i].topic.name_size;
    }
    link->received = malloc(link->received_room);
    return link->answer.tables != NULL && link->answer.results != NULL && link->received != NULL;
}

bool link_make(struct ship_link *link)
{
    CHECK(link->lane_count > 0 && link->requests_max > 0 && link->requests_max <= SHIP_REQUESTS_MAX);
    bool is_made = answer_make(link);
    for (uint32_t i = 0; i < SHIP_REQUESTS_MAX && is_made; i++) {
        is_made = request_make(link, &link->requests[i]);
    }
    return is_made;
}

void link_free(struct ship_link *link)
{
    for (uint32_t i = 0; i < SHIP_REQUESTS_MAX; i++) {
        free(link->requests[i].topics);
        free(link->requests[i].batches);
        free(link->requests[i].pieces);
        free(link->requests[i].cuts);
        free(link->requests[i].own);
    }
    free(link->answer.tables);
    free(link->answer.results);
    free(link->received);
}

/* ---- to compose a request ---- */

static bool is_same_topic(const struct produce_topic *one, const struct produce_topic *other)
{
    return one->name_size == other->name_size && memcmp(one->name, other->name, one->name_size) == 0;
}

/* The lane's batch stands behind the others of its topic. */
static void batch_put(struct ship_request *request, struct ship_lane *lane)
{
    struct produce_request *produce = &request->produce;
    struct ship_piece *piece = &request->pieces[produce->batch_count];
    *piece = (struct ship_piece){.lane = lane,
                                 .file = lane->file,
                                 .position = lane->next.position + RECORD_BATCH_HEADER_SIZE,
                                 .size = lane_batch_size(lane) - RECORD_BATCH_HEADER_SIZE};
    request->batches[produce->batch_count++] =
        (struct produce_batch){.partition = lane->partition, .size = lane_batch_size(lane)};
    piece->number = lane_take(lane, piece->header);
    if (produce->topic_count == 0 || !is_same_topic(&request->topics[produce->topic_count - 1], &lane->topic)) {
        request->topics[produce->topic_count] = lane->topic;
        request->topics[produce->topic_count++].batch_count = 0;
    }
    request->topics[produce->topic_count - 1].batch_count++;
}

/* Puts batches in until the request is full, or the last lane had its turn. */
static void batches_gather(struct ship_link *link, struct ship_request *request)
{
    uint64_t size = 0;
    for (; link->lane_next < link->lane_count; link->lane_next++) {
        struct ship_lane *lane = &link->lanes[link->lane_next];
        if (!lane_looks_ahead(lane)) {
            continue;
        }
        bool is_full = size + lane_batch_size(lane) > link->request_size_max;
        if (request->produce.batch_count == batches_max(link) || (is_full && size > 0)) {
            return;
        }
        size += lane_batch_size(lane);
        batch_put(request, lane);
    }
    link->lane_next = 0;
}

static bool own_write(struct ship_request *request, uint32_t correlation)
{
    size_t room = produce_own_size_max(&request->produce);
    if (room > request->own_room) {
        uint8_t *own = realloc(request->own, room);
        if (own == NULL) {
            return false;
        }
        request->own = own;
        request->own_room = room;
    }
    size_t end = produce_encode(&request->produce, request->own, request->cuts);
    request->cuts[request->produce.batch_count] = end;
    store_be32(request->own + PRODUCE_CORRELATION, correlation);
    return true;
}

/* False when no lane has a batch whose turn it is. */
static bool request_begin(struct ship_link *link, uint64_t now_ns)
{
    struct ship_request *request = request_at(link, link->end);
    bool is_from_first = link->lane_next == 0;
    request->produce.topic_count = request->produce.batch_count = 0;
    batches_gather(link, request);
    if (request->produce.batch_count == 0 && !is_from_first) {
        batches_gather(link, request);
    }
    if (request->produce.batch_count == 0) {
        return false;
    }
    request->sent_ns = now_ns;
    link->end++;
    if (!own_write(request, link->end - 1)) {
        link_break(link);
        return false;
    }
    link->is_sending = true;
    link->step = 0;
    link->step_done = 0;
    return true;
}

/* ---- to send it ---- */

/* The part of `own` in front of a batch, or behind the last one. */
static struct iovec own_part(const struct ship_request *request, uint32_t batch)
{
    size_t begin = batch == 0 ? 0 : request->cuts[batch - 1];
    return (struct iovec){.iov_base = request->own + begin, .iov_len = request->cuts[batch] - begin};
}

static void iovec_skip(struct iovec *parts, size_t size)
{
    size_t skipped = size < parts[0].iov_len ? size : parts[0].iov_len;
    for (int i = 0; i < 2; i++) {
        parts[i].iov_base = (char *)parts[i].iov_base + skipped;
        parts[i].iov_len -= skipped;
        skipped = size - skipped;
    }
}

/* Own bytes and, in front of records, a header. */
static ssize_t head_send(const struct ship_link *link, struct ship_request *request, uint32_t batch, size_t *left)
{
    bool is_last = batch == request->produce.batch_count;
    struct iovec parts[2] = {own_part(request, batch), {.iov_base = request->own, .iov_len = 0}};
    if (!is_last) {
        parts[1] = (struct iovec){.iov_base = request->pieces[batch].header, .iov_len = RECORD_BATCH_HEADER_SIZE};
    }
    iovec_skip(parts, link->step_done);
    *left = parts[0].iov_len + parts[1].iov_len;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(link->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL | (is_last ? 0 : MSG_MORE));
}

/* Records, from the page cache. A file that is shorter than it was ends the connection: its bytes are not made up. */
static ssize_t records_send(const struct ship_link *link, const struct ship_piece *piece, size_t *left)
{
    off_t position = piece->position + (off_t)link->step_done;
    *left = piece->size - link->step_done;
    if (*left == 0) {
        return 0;
    }
    ssize_t sent = sendfile(link->socket, piece->file, &position, *left);
    if (sent == 0) {
        errno = EIO;
        return -1;
    }
    return sent;
}

/* One call of the kernel; false when the socket is full, or broken. */
static bool step_send(struct ship_link *link, struct ship_request *request)
{
    uint32_t batch = link->step / 2;
    size_t left;
    ssize_t sent = link->step % 2 == 0 ? head_send(link, request, batch, &left)
                                       : records_send(link, &request->pieces[batch], &left);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            link_break(link);
        }
        return errno == EINTR;
    }
    link->sent_size += sent;
    link->step_done += (size_t)sent;
    if ((size_t)sent == left) {
        link->step++;
        link->step_done = 0;
    }
    return true;
}

/* False while bytes of the request are left. */
static bool request_send(struct ship_link *link)
{
    struct ship_request *request = request_at(link, link->end - 1);
    while (link->step <= 2 * request->produce.batch_count) {
        if (!step_send(link, request)) {
            return false;
        }
    }
    link->is_sending = false;
    return true;
}

void link_send(struct ship_link *link, bool may_begin, uint64_t now_ns)
{
    while (!link->is_broken) {
        if (link->is_sending && !request_send(link)) {
            return;
        }
        bool has_turn = may_begin && !link->has_refused && link->throttle_ms == 0;
        if (!has_turn || link_in_flight(link) == link->requests_max || !request_begin(link, now_ns)) {
            return;
        }
    }
}

/* ---- to take answers ---- */

static void request_ack(struct ship_request *request, const struct produce_result *results)
{
    for (uint32_t i = 0; i < request->produce.batch_count; i++) {
        lane_ack(request->pieces[i].lane, request->pieces[i].number, &results[i]);
    }
}

static void request_fail(struct ship_request *request)
{
    for (uint32_t i = 0; i < request->produce.batch_count; i++) {
        request->pieces[i].lane->state = SHIP_LANE_BROKEN;
    }
}

void link_break(struct ship_link *link)
{
    link->is_broken = true;
    link->is_sending = false;
    while (link->first != link->end) {
        request_fail(request_at(link, link->first++));
    }
}

/* False when the answer is for no request. */
static bool answer_take(struct ship_link *link, const uint8_t *bytes, size_t size)
{
    uint32_t in_flight = link_in_flight(link) - link->is_sending;
    if (in_flight == 0 || size < CORRELATION_SIZE || load_be32(bytes) != link->first) {
        return false;
    }
    struct ship_request *request = request_at(link, link->first);
    bool is_well = produce_answer_read(&request->produce, link->first, bytes, size, &link->answer);
    if (is_well) {
        request_ack(request, link->answer.results);
    } else {
        request_fail(request);
    }
    link->has_refused |= !is_well;
    link->request_count++;
    link->first++;
    if (is_well && link->answer.throttle_ms > link->throttle_ms) {
        link->throttle_ms = link->answer.throttle_ms;
    }
    return true;
}

/* Takes the whole frames in the buffer; false when what is there is no frame of ours. */
static bool frames_take(struct ship_link *link)
{
    size_t begin = 0;
    while (link->received_size - begin >= FRAME_HEAD_SIZE) {
        size_t size = load_be32(link->received + begin);
        if (size > link->received_room - FRAME_HEAD_SIZE) {
            return false;
        }
        if (size > link->received_size - begin - FRAME_HEAD_SIZE) {
            break;
        }
        if (!answer_take(link, link->received + begin + FRAME_HEAD_SIZE, size)) {
            return false;
        }
        begin += FRAME_HEAD_SIZE + size;
    }
    link->received_size -= begin;
    memmove(link->received, link->received + begin, link->received_size);
    return true;
}

void link_receive(struct ship_link *link)
{
    while (!link->is_broken) {
        size_t room = link->received_room - link->received_size;
        CHECK(room > 0);
        ssize_t size = recv(link->socket, link->received + link->received_size, room, MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size <= 0) {
            link_break(link);
            return;
        }
        link->received_total += size;
        link->received_size += (size_t)size;
        if (!frames_take(link)) {
            link_break(link);
        }
        if ((size_t)size < room) {
            return; /* the socket is empty: `poll` tells of more */
        }
    }
}
