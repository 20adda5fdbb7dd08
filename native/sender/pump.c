/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/pump.h"

#include "arena/counters.h"
#include "arena/process.h"
#include "arena/registry.h"
#include "arena/transaction.h"
#include "arena/waiter_sleep.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/point.h"
#include "format/record_batch.h"
#include "sender/drained_batch.h"
#include "sender/sender_half.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAKES_AT_ONCE = 512 };

#define TICK_NS (100 * NS_PER_MS)
#define BUSY_NS (10 * NS_PER_MS) /* a sender that has sent nothing for this time sleeps, and does no short waits */
#define LAST_ANSWERS_NS (20 * NS_PER_MS)
#define WAKE_DELAY_NS (5 * NS_PER_MS)
_Static_assert(WAKE_DELAY_NS < WAITER_SLICE_NS, "a delayed waiter wakes by itself at the end of its slice");

enum { FREED_SHARE = 64 }; /* waiters are woken at once when 1/FREED_SHARE of the buffers has been freed */

/* ---- memory ---- */

static bool link_make(struct pump_link *link, size_t names_size)
{
    CHECK(link->place_count > 0);
    uint32_t batch_count = link->place_count < PUMP_BATCHES_MAX ? link->place_count : PUMP_BATCHES_MAX;
    const struct broker_link_limits limits = {
        .batch_count = batch_count, .names_size = names_size};
    link->turn = calloc(2 * (size_t)link->place_count, sizeof *link->turn);
    bool is_made = broker_link_make(&link->broker, &limits) && link->turn != NULL;
    for (uint32_t i = 0; i < BROKER_REQUESTS_MAX; i++) {
        link->pieces[i] = calloc(batch_count, sizeof *link->pieces[i]);
        is_made = is_made && link->pieces[i] != NULL;
    }
    return is_made;
}

static void link_free(struct pump_link *link)
{
    broker_link_free(&link->broker);
    free(link->turn);
    for (uint32_t i = 0; i < BROKER_REQUESTS_MAX; i++) {
        free(link->pieces[i]);
    }
}

bool pump_make(struct pump *pump, size_t names_size)
{
    CHECK(pump->link_count > 0);
    bool is_made = true;
    for (uint32_t i = 0; i < pump->link_count && is_made; i++) {
        is_made = link_make(&pump->links[i], names_size);
    }
    size_t left_max = (size_t)PUMP_BATCHES_MAX * (pump->link_count + 1);
    pump->ready = calloc((size_t)pump->place_count + 1, sizeof *pump->ready);
    pump->drained = calloc(PUMP_BATCHES_MAX, sizeof *pump->drained);
    pump->left = calloc(left_max, sizeof *pump->left);
    pump->completions = calloc(PUMP_BATCHES_MAX, sizeof *pump->completions);
    pump->polled = calloc((size_t)pump->link_count + 1, sizeof *pump->polled);
    pump->delivered.linger_min_ns = -1;
    pump->topic_count = registry_topic_count(pump->half->arena);
    pump->now_ns = arena_now_ns(pump->half->arena);
    pump->last_begun_ns = pump->now_ns;
    pump->woken_ns = pump->now_ns;
    pump->tick_at_ns = pump->now_ns + TICK_NS;
    return is_made && pump->ready != NULL && pump->drained != NULL && pump->left != NULL &&
           pump->completions != NULL && pump->polled != NULL;
}

void pump_free(struct pump *pump)
{
    for (uint32_t i = 0; i < pump->link_count; i++) {
        link_free(&pump->links[i]);
    }
    free(pump->ready);
    free(pump->drained);
    free(pump->left);
    free(pump->completions);
    free(pump->polled);
}

/* ---- complete ---- */

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static void batch_count(struct pump *pump, const struct drained_batch *drained, uint64_t begun_ns, uint64_t latency_ns)
{
    struct delivered *delivered = &pump->delivered;
    struct pump_place *place = &pump->places[drained->partition_index];
    place->batch_count++;
    place->record_count += drained->record_count;
    place->size += drained->size;
    delivered_add(delivered, drained, begun_ns);
    delivered->latency_sum_ns += latency_ns;
    delivered->latency_max_ns = larger(delivered->latency_max_ns, latency_ns);
}

static void request_complete(struct pump *pump, struct pump_link *link, uint32_t number, struct wake_set *wakes)
{
    const struct broker_request *request = broker_link_request(&link->broker, number);
    const struct pump_piece *pieces = pump_link_pieces(link, number);
    uint64_t latency_ns = request->answered_ns - request->begun_ns;
    CHECK(request->produce.batch_count <= PUMP_BATCHES_MAX);
    CHECK(request->answered_ns >= request->begun_ns);
    link->latency_sum_ns += latency_ns;
    link->latency_max_ns = larger(link->latency_max_ns, latency_ns);
    for (uint32_t i = 0; i < request->produce.batch_count; i++) {
        const struct drained_batch *drained = &pieces[i].drained;
        const struct produce_result *result = &request->results[i];
        batch_count(pump, drained, request->begun_ns, latency_ns);
        pump->completions[i] =
            (struct batch_completion){.seq = drained->seq,
                                      .slot_index = drained->slot_index,
                                      .outcome = {.result = RESULT_SUCCEEDED,
                                                  .base_offset = result->base_offset,
                                                  .log_append_time_ms = result->log_append_time_ms}};
    }
    POINT(pump_answered);
    (void)sender_complete_many(pump->half, pump->completions, request->produce.batch_count, wakes);
}

static void links_complete(struct pump *pump, struct wake_set *wakes)
{
    for (uint32_t i = 0; i < pump->link_count; i++) {
        struct pump_link *link = &pump->links[i];
        CHECK(link->broker.first <= link->broker.answered);
        for (; link->broker.first != link->broker.answered; link->broker.first++) {
            request_complete(pump, link, link->broker.first, wakes);
        }
    }
}

/* ---- drain, and requests ---- */

/* Returns true if the batch is ordinary. It must belong to the transaction that the request names, or to none. */
static bool batch_is_ordinary(const struct sender_half *half, const struct pump_link *link,
                              const struct drained_batch *drained)
{
    const uint8_t *bytes = arena_slot_data(half->arena, drained->slot_index);
    CHECK(half->notes[drained->slot_index].is_in_flight);
    uint16_t attributes = link->broker.form.transactional_id == NULL ? 0 : RECORD_BATCH_TRANSACTIONAL;
    return load_be16(bytes + RECORD_BATCH_ATTRIBUTES) == attributes && drained_batch_is_whole(half, drained);
}

static void pump_leave_batch(struct pump *pump, const struct drained_batch *drained)
{
    CHECK(pump->left_count < PUMP_BATCHES_MAX * (pump->link_count + 1));
    pump->left[pump->left_count++] = *drained;
    pump_stop(pump);
}

/* Adds the ordinary batches among the drained ones to the next request, and returns their number. */
static uint32_t pieces_fill(struct pump *pump, struct pump_link *link, uint32_t count)
{
    struct pump_piece *pieces = pump_link_pieces(link, link->broker.end);
    uint32_t piece_count = 0;
    CHECK(count <= PUMP_BATCHES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const struct drained_batch *drained = &pump->drained[i];
        const struct pump_place *place = &pump->places[drained->partition_index];
        if (!batch_is_ordinary(pump->half, link, drained)) {
            pump_leave_batch(pump, drained);
            continue;
        }
        pieces[piece_count++] =
            (struct pump_piece){.drained = *drained, .topic = place->topic, .partition = place->partition};
    }
    return piece_count;
}

static int piece_order(const void *one, const void *other)
{
    const struct pump_piece *a = one;
    const struct pump_piece *b = other;
    if (a->topic != b->topic) {
        return a->topic < b->topic ? -1 : 1;
    }
    return a->partition < b->partition ? -1 : a->partition > b->partition;
}

static bool is_of_many_topics(const struct pump_piece *pieces, uint32_t count)
{
    CHECK(count > 0);
    for (uint32_t i = 1; i < count; i++) {
        if (pieces[i].topic != pieces[0].topic) {
            return true;
        }
    }
    return false;
}

/* Makes a request with the batches that were added. */
static void request_begin(const struct pump *pump, struct pump_link *link, uint32_t count)
{
    struct pump_piece *pieces = pump_link_pieces(link, link->broker.end);
    struct broker_request *request = broker_link_next_request(&link->broker);
    if (is_of_many_topics(pieces, count)) {
        qsort(pieces, count, sizeof *pieces, piece_order);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct drained_batch *drained = &pieces[i].drained;
        broker_request_add(request, &pump->topics[pieces[i].topic], pieces[i].partition, drained->size);
        pieces_add_memory(&request->pieces, arena_slot_data(pump->half->arena, drained->slot_index), drained->size);
    }
    broker_link_begin(&link->broker, false, pump->now_ns);
}

/* Returns the ready partitions, starting with the one that did not fit into the last request. */
static const uint32_t *turn_begin(struct pump_link *link)
{
    CHECK(link->turn_count <= link->place_count);
    for (uint32_t i = 1; i < link->turn_count && link->turn_next != 0; i++) {
        if (link->turn[i] + 1 == link->turn_next) {
            memcpy(link->turn + link->turn_count, link->turn, i * sizeof *link->turn);
            return link->turn + i;
        }
    }
    return link->turn;
}

/* Returns true if a request has begun. */
static bool link_take_turn(struct pump *pump, struct pump_link *link)
{
    const uint32_t *turn = turn_begin(link);
    uint32_t count = link->turn_count < PUMP_BATCHES_MAX ? link->turn_count : PUMP_BATCHES_MAX;
    const struct drain_options options = {
        .now_ns = pump->now_ns, .size_max = pump->size_max, .in_flight_max = pump->in_flight_max};
    uint32_t seen;
    CHECK(count > 0);
    uint32_t drained = sender_drain(pump->half, &options, turn, count, pump->drained, &seen);
    link->turn_next = seen < link->turn_count ? turn[seen] + 1 : 0;
    uint32_t piece_count = pieces_fill(pump, link, drained);
    if (piece_count == 0) {
        return false;
    }
    request_begin(pump, link, piece_count);
    POINT(pump_request_begun);
    return true;
}

/* Stores the ready partitions of each link. Returns the number of ready partitions that have no link. */
static uint32_t links_assign_partitions(struct pump *pump, uint32_t ready_count)
{
    uint32_t foreign_count = 0;
    CHECK(ready_count <= pump->place_count);
    for (uint32_t i = 0; i < pump->link_count; i++) {
        pump->links[i].turn_count = 0;
    }
    for (uint32_t i = 0; i < ready_count; i++) {
        uint32_t number = pump->places[pump->ready[i]].link;
        if (number == 0) {
            foreign_count++;
        } else {
            struct pump_link *link = &pump->links[number - 1];
            link->turn[link->turn_count++] = pump->ready[i];
        }
    }
    return foreign_count;
}

/* Begins a request on each link that accepts one. Returns true if one was begun. `next_check_ns` receives the time
 * until the next check. */
static bool requests_begin(struct pump *pump, uint64_t *next_check_ns)
{
    const struct ready_options options = {.now_ns = pump->now_ns,
                                          .linger_ns = pump->linger_ns,
                                          .in_flight_max = pump->in_flight_max,
                                          .takes_along = true};
    uint32_t ready_count = sender_ready(pump->half, &options, pump->ready, pump->place_count, next_check_ns);
    bool has_begun = false;
    if (links_assign_partitions(pump, ready_count) > 0 && pump->foreign_ns < pump->due_ns) {
        pump->due_ns = pump->foreign_ns;
    }
    for (uint32_t i = 0; i < pump->link_count && !pump->is_over; i++) {
        struct pump_link *link = &pump->links[i];
        if (link->turn_count > 0 && pump_link_has_room(link)) {
            has_begun |= link_take_turn(pump, link);
        }
    }
    if (has_begun) {
        pump->last_begun_ns = pump->now_ns;
    }
    return has_begun;
}

/* ---- the end ---- */

void pump_stop(struct pump *pump)
{
    if (!pump->is_over) {
        pump->is_over = true;
        pump->end_ns = pump->now_ns + LAST_ANSWERS_NS;
    }
}

static uint32_t in_flight_count(const struct pump *pump)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < pump->link_count; i++) {
        count += broker_link_in_flight(&pump->links[i].broker);
    }
    return count;
}

static bool links_are_healthy(const struct pump *pump)
{
    for (uint32_t i = 0; i < pump->link_count; i++) {
        if (!pump_link_is_healthy(&pump->links[i])) {
            return false;
        }
    }
    return true;
}

/* Returns the state of the arena's transaction. In an arena without transactions, the state is always OPEN. */
static uint32_t transaction_state(const struct pump *pump)
{
    const struct arena *arena = pump->half->arena;
    return arena_is_transactional(arena) ? transaction_word_state(transaction_read(arena)) : TRANSACTION_OPEN;
}

/* Returns true if the pump has to stop. During a commit, it stops when no batch is left (requests_begin_or_wait). */
static bool transaction_is_over(const struct pump *pump)
{
    uint32_t state = transaction_state(pump);
    CHECK(pump->half->arena->is_sender);
    return state != TRANSACTION_OPEN && state != TRANSACTION_COMMITTING;
}

/* If a link is unhealthy, the caller is needed at once, so the pump does not wait for the other links. */
static void pump_check_end(struct pump *pump)
{
    CHECK(pump->now_ns >= pump->last_begun_ns);
    if (pump->now_ns >= pump->due_ns || transaction_is_over(pump) ||
        registry_topic_count(pump->half->arena) != pump->topic_count) {
        pump_stop(pump);
    }
    if (!links_are_healthy(pump)) {
        pump_stop(pump);
        pump->end_ns = 0;
    }
}

static void pump_tick(struct pump *pump, struct wake_set *wakes)
{
    if (pump->now_ns >= pump->tick_at_ns) {
        CHECK(wakes != NULL);
        pump->tick_at_ns = pump->now_ns + TICK_NS;
        sender_maintain(pump->half, wakes);
        sender_publish_queues(pump->half);
    }
}

/* ---- a round ---- */

static void sleep_flag_set(const struct pump *pump, uint32_t value)
{
    CHECK(pump->half->arena->is_sender);
    process_set_sender_sleep(pump->half->arena, value);
}

static uint64_t until(uint64_t when_ns, uint64_t now_ns)
{
    return when_ns > now_ns ? when_ns - now_ns : 0;
}

static uint64_t smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static void wait_at_most(struct pump *pump, uint64_t wait_ns)
{
    CHECK(!pump->is_over);
    pump->wait_ns = smaller(wait_ns, until(smaller(pump->due_ns, pump->tick_at_ns), pump->now_ns));
}

static bool links_have_room(const struct pump *pump)
{
    for (uint32_t i = 0; i < pump->link_count; i++) {
        if (pump_link_has_room(&pump->links[i])) {
            return true;
        }
    }
    return false;
}

/* Publishes that the sender waits, and checks once more. */
static void begin_or_wait_flagged(struct pump *pump, bool is_busy)
{
    uint64_t next_check_ns;
    CHECK(!pump->is_over);
    sleep_flag_set(pump, is_busy ? pump->short_wait_flag : SENDER_ASLEEP);
    bool is_ending = !is_busy || transaction_state(pump) != TRANSACTION_OPEN;
    bool has_begun = requests_begin(pump, &next_check_ns);
    if (is_ending && !has_begun && in_flight_count(pump) == 0) {
        pump_stop(pump);
    }
    if (has_begun || pump->is_over) {
        sleep_flag_set(pump, SENDER_AWAKE);
        return;
    }
    wait_at_most(pump, smaller(is_busy ? pump->short_wait_ns : TICK_NS, next_check_ns));
}

/* Begins requests. If there are none, `wait_ns` receives the time until the next one may begin. */
static void requests_begin_or_wait(struct pump *pump)
{
    uint64_t next_check_ns;
    CHECK(!pump->is_over);
    pump->wait_ns = 0;
    if (requests_begin(pump, &next_check_ns) || pump->is_over) {
        return;
    }
    bool is_busy = pump->now_ns - pump->last_begun_ns < BUSY_NS;
    if (links_have_room(pump)) {
        begin_or_wait_flagged(pump, is_busy);
    } else {
        wait_at_most(pump, is_busy ? pump->short_wait_ns : BUSY_NS);
    }
}

/* ---- waiters ---- */

/* A woken process may preempt the sender, so a request that was begun is written first. */
static bool waiters_may_be_delayed(const struct pump *pump, const struct wake_set *wakes)
{
    CHECK(pump->now_ns >= pump->woken_ns);
    if (wakes->count == 0 || pump->is_over || pump->now_ns - pump->woken_ns >= WAKE_DELAY_NS) {
        return false;
    }
    uint64_t freed_count = pump->delivered.batch_count - pump->woken_batch_count;
    return pump->last_begun_ns == pump->now_ns ||
           (!links_have_room(pump) && freed_count < pump->half->arena->geometry.slot_count / FREED_SHARE);
}

static void waiters_delay_or_wake(struct pump *pump, const struct wake_set *wakes)
{
    pump->delays_waiters = waiters_may_be_delayed(pump, wakes);
    if (pump->delays_waiters) {
        pump->wait_ns = smaller(pump->wait_ns, until(pump->woken_ns + WAKE_DELAY_NS, pump->now_ns));
    } else {
        pump->woken_ns = pump->now_ns;
        pump->woken_batch_count = pump->delivered.batch_count;
    }
}

bool pump_round(struct pump *pump, struct wake_set *wakes)
{
    uint64_t now_ns = arena_now_ns(pump->half->arena);
    CHECK(pump->half->arena->is_sender);
    pump->now_ns = now_ns > pump->now_ns ? now_ns : pump->now_ns;
    sleep_flag_set(pump, SENDER_AWAKE);
    links_complete(pump, wakes);
    pump_tick(pump, wakes);
    pump_check_end(pump);
    if (!pump->is_over) {
        requests_begin_or_wait(pump);
    }
    waiters_delay_or_wake(pump, wakes);
    if (pump->is_over) {
        pump->wait_ns = until(pump->end_ns, pump->now_ns);
        return in_flight_count(pump) > 0 && pump->wait_ns > 0;
    }
    return true;
}

/* ---- an exchange ---- */

static void wake_fd_clear(int wake_fd)
{
    char wake_bytes[WAKES_AT_ONCE];
    ssize_t size = sizeof wake_bytes;
    CHECK(wake_fd >= 0);
    while (size == (ssize_t)sizeof wake_bytes) {
        size = read(wake_fd, wake_bytes, sizeof wake_bytes); /* the wake fd never blocks */
    }
}

/* Waits for the first event. A signal ends the wait, and the caller runs its handler before the next one. */
static void pump_wait(struct pump *pump)
{
    const struct timespec time = {.tv_sec = (time_t)(pump->wait_ns / NS_PER_S),
                                  .tv_nsec = (long)(pump->wait_ns % NS_PER_S)};
    pump->polled[0] = (struct pollfd){.fd = pump->wake_fd, .events = POLLIN};
    for (uint32_t i = 0; i < pump->link_count; i++) {
        const struct broker_link *link = &pump->links[i].broker;
        pump->polled[i + 1] = (struct pollfd){.fd = link->socket,
                                              .events = (short)(POLLIN | (link->is_sending ? POLLOUT : 0))};
    }
    int ready = ppoll(pump->polled, (nfds_t)pump->link_count + 1, &time, NULL);
    if (ready < 0) {
        CHECK(errno == EINTR || errno == ENOMEM);
        for (uint32_t i = 0; i <= pump->link_count; i++) {
            pump->polled[i].revents = 0;
        }
    }
}

/* Returns false if a batch does not match the checksum of its records, because another process has changed it. */
static bool request_is_sound(struct pump *pump, const struct broker_request *request, const struct pump_piece *pieces)
{
    uint32_t largest = pump->largest_record;
    CHECK(request->pieces.sent_size == 0);
    for (uint32_t i = 0; i < request->produce.batch_count; i++) {
        const struct drained_batch *drained = &pieces[i].drained;
        const uint8_t *bytes = arena_slot_data(pump->half->arena, drained->slot_index);
        if (!drained_batch_is_sound(drained, bytes)) {
            return false;
        }
        largest = drained_batch_largest_record(drained, bytes, largest);
    }
    if (largest > pump->largest_record) {
        pump->largest_record = largest;
        pump->delivered.largest_record = largest;
    }
    return true;
}

void pump_send(struct pump *pump, struct pump_link *link)
{
    struct broker_link *broker = &link->broker;
    struct broker_request *request = broker_link_request(broker, broker->end - 1);
    if (broker->is_sending && !request->is_checked) {
        request->is_checked = request_is_sound(pump, request, pump_link_pieces(link, broker->end - 1));
        link->is_damaged = !request->is_checked;
    }
    if (!link->is_damaged) {
        broker_link_send(broker);
    }
}

void pump_exchange(struct pump *pump)
{
    CHECK(pump->link_count > 0);
    for (uint32_t i = 0; i < pump->link_count; i++) {
        pump_send(pump, &pump->links[i]);
    }
    if (!links_are_healthy(pump)) {
        return;
    }
    pump_wait(pump);
    if (pump->polled[0].revents != 0) {
        wake_fd_clear(pump->wake_fd);
    }
    uint64_t now_ns = arena_now_ns(pump->half->arena);
    for (uint32_t i = 0; i < pump->link_count; i++) {
        if ((pump->polled[i + 1].revents & ~POLLOUT) != 0) {
            broker_link_receive(&pump->links[i].broker, now_ns > pump->now_ns ? now_ns : pump->now_ns);
        }
    }
}

/* ---- the end ---- */

void pump_link_leave_damaged(struct pump *pump, struct pump_link *link)
{
    if (!link->is_damaged) {
        return;
    }
    CHECK(link->broker.first != link->broker.end);
    uint32_t number = --link->broker.end;
    for (uint32_t i = 0; i < broker_link_request(&link->broker, number)->produce.batch_count; i++) {
        pump_leave_batch(pump, &pump_link_pieces(link, number)[i].drained);
    }
}

static void request_requeue(struct pump *pump, struct pump_link *link, uint32_t number, struct wake_set *wakes)
{
    for (uint32_t i = 0; i < broker_link_request(&link->broker, number)->produce.batch_count; i++) {
        const struct drained_batch *drained = &pump_link_pieces(link, number)[i].drained;
        enum status status = sender_requeue(pump->half, drained->slot_index, drained->seq, 0, wakes);
        (void)status; /* stale if it was requeued already */
    }
}

void pump_requeue(struct pump *pump, struct wake_set *wakes)
{
    for (uint32_t i = 0; i < pump->link_count; i++) {
        struct pump_link *link = &pump->links[i];
        for (uint32_t number = link->broker.first; number != link->broker.end; number++) {
            request_requeue(pump, link, number, wakes);
        }
    }
}
