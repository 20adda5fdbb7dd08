/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/batch_loop.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

/* The time to wait for the last responses after the wake fd is readable. It is short, because the caller may have to
 * stop, and a broker may be dead. */
#define STOP_TIME_NS (5 * NS_PER_S)
/* After one stream has ended, the other streams continue for 1/ENDED_PART of the time. */
enum { ENDED_PART = 8 };
enum { BATCHES_MAX = 4096 /* the most batches of a request */ };

struct run {
    struct batch_loop *loop;
    struct pollfd *polled; /* first the wake fd, then the links */
    uint64_t now_ns;
    uint64_t begun_ns;
    uint64_t end_ns;  /* no request begins after this time */
    uint64_t stop_ns; /* no response is awaited after this time */
    bool is_over;
};

static uint64_t now(void)
{
    static const struct clock kernel = {0};
    return clock_now_ns(&kernel);
}

/* ---- a link ---- */

static bool link_make(struct ship_link *link)
{
    CHECK(link->stream_count > 0);
    struct broker_link_limits limits = {
        .batch_count = link->stream_count < BATCHES_MAX ? link->stream_count : BATCHES_MAX};
    for (uint32_t i = 0; i < link->stream_count; i++) {
        limits.names_size += link->streams[i].topic.name_size;
    }
    link->broker.takes_errors = true;
    bool is_made = broker_link_make(&link->broker, &limits);
    for (uint32_t i = 0; i < BROKER_REQUESTS_MAX; i++) {
        link->pieces[i] = calloc(limits.batch_count, sizeof *link->pieces[i]);
        is_made = is_made && link->pieces[i] != NULL;
    }
    return is_made;
}

static void link_free(struct ship_link *link)
{
    broker_link_free(&link->broker);
    for (uint32_t i = 0; i < BROKER_REQUESTS_MAX; i++) {
        free(link->pieces[i]);
    }
}

static void request_add_next_batch(struct broker_request *request, struct ship_piece *piece,
                                   struct partition_stream *stream)
{
    uint32_t size = stream_batch_size(stream);
    off_t position = stream->next.position + RECORD_BATCH_HEADER_SIZE;
    piece->stream = stream;
    piece->number = stream_take(stream, piece->header);
    broker_request_add(request, &stream->topic, stream->partition, size);
    pieces_add_memory(&request->pieces, piece->header, RECORD_BATCH_HEADER_SIZE);
    pieces_add_range(&request->pieces, stream->file, position, size - RECORD_BATCH_HEADER_SIZE);
}

/* Adds one batch of each stream, until the request is full. */
static void batches_gather(struct ship_link *link, struct broker_request *request)
{
    struct ship_piece *pieces = link->pieces[link->broker.end % BROKER_REQUESTS_MAX];
    uint64_t size = 0;
    for (; link->stream_next < link->stream_count; link->stream_next++) {
        struct partition_stream *stream = &link->streams[link->stream_next];
        if (!stream_read_ahead(stream)) {
            continue;
        }
        bool is_full = size + stream_batch_size(stream) > link->request_size_max;
        if (request->produce.batch_count == link->broker.batches_max || (is_full && size > 0)) {
            return;
        }
        size += stream_batch_size(stream);
        request_add_next_batch(request, &pieces[request->produce.batch_count], stream);
    }
    link->stream_next = 0;
}

/* Marks the streams of a request's batches as broken, because no response acks the batches. */
static void request_fail(struct ship_link *link, uint32_t number)
{
    uint32_t place = number % BROKER_REQUESTS_MAX;
    for (uint32_t i = 0; i < link->broker.requests[place].produce.batch_count; i++) {
        link->pieces[place][i].stream->state = STREAM_BROKEN;
    }
}

/* Marks the streams that have batches in flight on this link as broken, because its socket receives nothing more. */
static void link_break(struct ship_link *link)
{
    struct broker_link *broker = &link->broker;
    broker->is_broken = true;
    broker->is_sending = false;
    while (broker->first != broker->end) {
        request_fail(link, broker->first++);
    }
    broker->answered = broker->end;
}

/* Returns false if no stream has a batch that may be sent. */
static bool request_begin(struct ship_link *link, uint64_t now_ns)
{
    struct broker_request *request = broker_link_next_request(&link->broker);
    bool is_from_first = link->stream_next == 0;
    batches_gather(link, request);
    if (request->produce.batch_count == 0 && !is_from_first) {
        batches_gather(link, request);
    }
    if (request->produce.batch_count == 0) {
        return false;
    }
    broker_link_begin(&link->broker, true, now_ns);
    return true;
}

/* Writes the request that was begun. If `may_begin` is true, also begins and writes further requests, until the socket
 * or the windows are full. */
static void link_send(struct ship_link *link, bool may_begin, uint64_t now_ns)
{
    broker_link_send(&link->broker);
    while (may_begin && broker_link_has_room(&link->broker) && request_begin(link, now_ns)) {
        broker_link_send(&link->broker);
    }
    if (link->broker.is_broken) {
        link_break(link);
    }
}

static void request_complete(struct ship_link *link, uint32_t number)
{
    const struct broker_request *request = broker_link_request(&link->broker, number);
    const struct ship_piece *pieces = link->pieces[number % BROKER_REQUESTS_MAX];
    if (request->is_refused) {
        request_fail(link, number);
        return;
    }
    for (uint32_t i = 0; i < request->produce.batch_count; i++) {
        stream_ack(pieces[i].stream, pieces[i].number, &request->results[i]);
    }
}

static void link_receive(struct ship_link *link, uint64_t now_ns)
{
    struct broker_link *broker = &link->broker;
    broker_link_receive(broker, now_ns);
    while (broker->first != broker->answered) {
        request_complete(link, broker->first++);
    }
    if (broker->is_broken || broker->is_strange) {
        link_break(link);
    }
}

/* ---- the end ---- */

static bool has_ended_stream(const struct batch_loop *loop)
{
    for (uint32_t i = 0; i < loop->stream_count; i++) {
        if (loop->streams[i].state != STREAM_GOES) {
            return true;
        }
    }
    return false;
}

static bool has_unhealthy_link(const struct batch_loop *loop)
{
    for (uint32_t i = 0; i < loop->link_count; i++) {
        if (!broker_link_is_healthy(&loop->links[i].broker)) {
            return true;
        }
    }
    return false;
}

static void run_check_end(struct run *run)
{
    const struct batch_loop *loop = run->loop;
    uint64_t early_ns = run->begun_ns + loop->time_ns / ENDED_PART;
    if (run->end_ns > early_ns && has_ended_stream(loop)) {
        run->end_ns = early_ns;
    }
    run->is_over |= run->now_ns >= run->end_ns || has_unhealthy_link(loop) || loop->recorder->is_over;
}

/* ---- 1 and 2 ---- */

static void links_send(struct run *run)
{
    for (uint32_t i = 0; i < run->loop->link_count; i++) {
        link_send(&run->loop->links[i], !run->is_over, run->now_ns);
    }
}

/* Returns true if a link accepts another request, but no stream has a batch for it. */
static bool has_room(const struct batch_loop *loop)
{
    for (uint32_t i = 0; i < loop->link_count; i++) {
        const struct broker_link *link = &loop->links[i].broker;
        if (!link->is_broken && !link->is_sending && broker_link_in_flight(link) < link->requests_max) {
            return true;
        }
    }
    return false;
}

static bool streams_record(struct batch_loop *loop)
{
    return loop->recorder->record(loop->recorder, loop->streams, loop->stream_count);
}

static void run_send(struct run *run)
{
    struct batch_loop *loop = run->loop;
    links_send(run);
    if (!run->is_over && has_room(loop) && streams_record(loop)) {
        links_send(run);
    }
}

/* ---- 3 ---- */

static uint32_t in_flight_count(const struct batch_loop *loop)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < loop->link_count; i++) {
        count += broker_link_in_flight(&loop->links[i].broker);
    }
    return count;
}

/* Returns the time after which the link's next response is late. */
static uint64_t late_ns(const struct run *run, const struct broker_link *link)
{
    uint64_t due_ns = link->requests[link->first % BROKER_REQUESTS_MAX].begun_ns + run->loop->answer_time_ns;
    return due_ns < run->stop_ns ? due_ns : run->stop_ns;
}

/* Returns the milliseconds until the next deadline. */
static int wait_ms(const struct run *run)
{
    uint64_t due_ns = UINT64_MAX;
    for (uint32_t i = 0; i < run->loop->link_count; i++) {
        const struct broker_link *link = &run->loop->links[i].broker;
        if (broker_link_in_flight(link) > 0 && late_ns(run, link) < due_ns) {
            due_ns = late_ns(run, link);
        }
    }
    uint64_t left_ns = due_ns > run->now_ns ? due_ns - run->now_ns : 0;
    return left_ns > 1000 * NS_PER_MS ? 1000 : (int)(left_ns / NS_PER_MS) + 1;
}

static void run_stop(struct run *run)
{
    run->is_over = true;
    run->stop_ns = run->now_ns + STOP_TIME_NS;
    run->polled[0].fd = -1; /* poll ignores it */
}

static void run_wait(struct run *run)
{
    struct batch_loop *loop = run->loop;
    for (uint32_t i = 0; i < loop->link_count; i++) {
        const struct broker_link *link = &loop->links[i].broker;
        run->polled[i + 1] = (struct pollfd){.fd = broker_link_in_flight(link) > 0 ? link->socket : -1,
                                             .events = (short)(POLLIN | (link->is_sending ? POLLOUT : 0))};
    }
    int ready = poll(run->polled, loop->link_count + 1, wait_ms(run));
    run->now_ns = now();
    if ((ready < 0 && errno == EINTR) || (ready > 0 && run->polled[0].fd >= 0 && run->polled[0].revents != 0)) {
        run_stop(run);
    }
    for (uint32_t i = 0; i < loop->link_count; i++) {
        struct ship_link *link = &loop->links[i];
        if (ready > 0 && (run->polled[i + 1].revents & ~POLLOUT) != 0) {
            link_receive(link, run->now_ns);
        }
        if (broker_link_in_flight(&link->broker) > 0 && late_ns(run, &link->broker) <= run->now_ns) {
            link_break(link);
        }
    }
}

/* ---- the loop ---- */

static bool batch_loop_make(struct batch_loop *loop)
{
    bool is_made = true;
    for (uint32_t i = 0; i < loop->link_count && is_made; i++) {
        is_made = link_make(&loop->links[i]);
    }
    return is_made;
}

static void rounds_run(struct run *run)
{
    struct batch_loop *loop = run->loop;
    while (true) {
        run_check_end(run);
        run_send(run);
        if (in_flight_count(loop) == 0) {
            break;
        }
        run_wait(run);
    }
    (void)streams_record(loop);
}

bool batch_loop_run(struct batch_loop *loop)
{
    uint64_t begun_ns = now();
    struct run run = {.loop = loop,
                      .polled = calloc((size_t)loop->link_count + 1, sizeof *run.polled),
                      .now_ns = begun_ns,
                      .begun_ns = begun_ns,
                      .end_ns = begun_ns + loop->time_ns,
                      .stop_ns = UINT64_MAX};
    bool is_made = run.polled != NULL && batch_loop_make(loop);
    if (is_made) {
        run.polled[0] = (struct pollfd){.fd = loop->wake_fd, .events = POLLIN};
        rounds_run(&run);
    }
    for (uint32_t i = 0; i < loop->link_count; i++) {
        link_free(&loop->links[i]);
    }
    free(run.polled);
    return is_made;
}
