/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos_pump.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "chaos.h"
#include "sender/pump.h"

enum { FRAME_HEAD_SIZE = 4, RESPONSE_SIZE_MAX = 256, PRODUCE_OWN_MAX = 512, RESPONSE_WATCH_MS = 5, PRODUCER_ID = 1000 };

#define CALL_NS (20 * NS_PER_MS)
#define SHORT_WAIT_NS (NS_PER_MS / 10)

static const struct produce_topic topic = {.name = BROKER_TOPIC, .name_size = sizeof BROKER_TOPIC - 1};
static const struct produce_request form = {.client = BROKER_CLIENT,
                                            .client_size = sizeof BROKER_CLIENT - 1,
                                            .version = PRODUCE_VERSION_MIN,
                                            .acks = -1};

/* The state of a sender between two calls of the pump. */
struct pump_sender {
    struct accumulator *accumulator;
    const struct broker_address *broker;
    int wake_fd;
    int connection;       /* -1 if there is none */
    uint32_t correlation; /* of the next request */
    struct wake_set wakes;
    struct pump pump;
    struct pump_link link;
    struct pump_place places[PARTITION_COUNT];
};

/* ---- a call ---- */

static void call_begin(struct pump_sender *sender)
{
    struct arena *arena = sender->accumulator->arena;
    for (int32_t i = 0; i < PARTITION_COUNT; i++) {
        sender->places[i] = (struct pump_place){.link = 1, .partition = i};
    }
    sender->link = (struct pump_link){.place_count = PARTITION_COUNT,
                                       .broker = {.socket = sender->connection,
                                                  .requests_max = 5,
                                                  .correlation_first = sender->correlation,
                                                  .form = form}};
    sender->pump = (struct pump){.half = sender->accumulator->sender,
                                  .links = &sender->link,
                                  .link_count = 1,
                                  .topics = &topic,
                                  .places = sender->places,
                                  .place_count = PARTITION_COUNT,
                                  .linger_ns = NS_PER_MS,
                                  .size_max = 1 << 20,
                                  .in_flight_max = 5,
                                  .short_wait_ns = SHORT_WAIT_NS,
                                  .short_wait_flag = SENDER_SHORT_WAIT,
                                  .due_ns = arena_now_ns(arena) + CALL_NS,
                                  .foreign_ns = UINT64_MAX,
                                  .wake_fd = sender->wake_fd};
    if (!pump_make(&sender->pump, sizeof BROKER_TOPIC)) {
        FAIL("no memory for a pump");
    }
}

static void call_run(struct pump_sender *sender)
{
    const struct pump_link *link = &sender->link;
    while (pump_round(&sender->pump, &sender->wakes)) {
        ledger->has_in_flight = link->broker.end != link->broker.first;
        pump_exchange(&sender->pump);
    }
    ledger->has_in_flight = false;
    if (link->is_damaged) {
        FAIL("a batch has a wrong checksum");
    }
}

/* ---- after a call ---- */

/* Waits for the missing responses, as the owner of the connection does. */
static void responses_await(struct pump_sender *sender)
{
    struct broker_link *link = &sender->link.broker;
    while (pump_link_is_healthy(&sender->link) && link->answered != link->end) {
        struct pollfd polled = {.fd = link->socket, .events = (short)(POLLIN | (link->is_sending ? POLLOUT : 0))};
        pump_send(&sender->pump, &sender->link);
        (void)poll(&polled, 1, RESPONSE_WATCH_MS);
        broker_link_receive(link, arena_now_ns(sender->accumulator->arena));
    }
    (void)pump_round(&sender->pump, &sender->wakes); /* completes the answered requests, and starts no new one */
    if (link->first != link->answered) {
        FAIL("a pump ended before it read all responses");
    }
}

static void batch_requeue(struct pump_sender *sender, const struct drained_batch *batch)
{
    enum status status = accumulator_requeue(sender->accumulator, batch->slot_index, batch->seq, 0);
    if (status != STATUS_OK) {
        FAIL("requeue: %s", status_name(status));
    }
}

static void requests_requeue(struct pump_sender *sender)
{
    struct broker_link *link = &sender->link.broker;
    for (uint32_t number = link->answered; number != link->end; number++) {
        for (uint32_t i = 0; i < broker_link_request(link, number)->produce.batch_count; i++) {
            batch_requeue(sender, &pump_link_pieces(&sender->link, number)[i].drained);
        }
    }
}

/* ---- one batch without the pump ---- */

static bool all_sent(int connection, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(connection, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        bytes += sent;
        size -= (size_t)sent;
    }
    return true;
}

static bool all_received(int connection, uint8_t *bytes, size_t size)
{
    return recv(connection, bytes, size, MSG_WAITALL) == (ssize_t)size;
}

static bool request_sent(const struct pump_sender *sender, const struct produce_request *request, const uint8_t *batch)
{
    uint8_t own[PRODUCE_OWN_MAX];
    size_t cut[2];
    if (produce_own_size_max(request) > sizeof own) {
        FAIL("a request does not fit");
    }
    size_t own_size = produce_encode(request, own, cut);
    store_be32(own + PRODUCE_CORRELATION, sender->correlation);
    return all_sent(sender->connection, own, cut[0]) &&
           all_sent(sender->connection, batch, request->batches[0].size) &&
           all_sent(sender->connection, own + cut[0], own_size - cut[0]);
}

static bool response_received(const struct pump_sender *sender, const struct produce_request *request,
                            struct produce_answer *answer)
{
    uint8_t bytes[RESPONSE_SIZE_MAX];
    if (!all_received(sender->connection, bytes, FRAME_HEAD_SIZE)) {
        return false;
    }
    size_t size = load_be32(bytes);
    return size <= sizeof bytes && all_received(sender->connection, bytes, size) &&
           produce_answer_read(request, sender->correlation, bytes, size, answer) && answer->throttle_ms == 0;
}

/* Returns true if a response without an error has arrived. */
static bool batch_sent(const struct pump_sender *sender, const struct drained_batch *batch,
                       struct produce_result *result)
{
    static uint8_t bytes[CHAIN_SIZE_MAX];
    uint32_t tables[RESPONSE_SIZE_MAX];
    struct produce_topic only = topic;
    only.batch_count = 1;
    const struct produce_batch piece = {.partition = (int32_t)batch->partition_index, .size = batch->size};
    struct produce_request request = form;
    request.topics = &only;
    request.batches = &piece;
    request.topic_count = request.batch_count = 1;
    struct produce_answer answer = {.results = result, .tables = tables};
    batch_copy(sender->accumulator->arena, batch, bytes);
    return request_sent(sender, &request, bytes) && response_received(sender, &request, &answer);
}

static void connection_close(struct pump_sender *sender)
{
    close(sender->connection);
    sender->connection = -1;
}

static void batch_send_alone(struct pump_sender *sender, const struct drained_batch *batch)
{
    struct produce_result result;
    if (sender->connection < 0 || !batch_sent(sender, batch, &result)) {
        if (sender->connection >= 0) {
            connection_close(sender);
        }
        batch_requeue(sender, batch);
        return;
    }
    const struct batch_outcome outcome = {
        .result = RESULT_SUCCEEDED, .base_offset = result.base_offset, .log_append_time_ms = result.log_append_time_ms};
    enum status status =
        accumulator_complete(sender->accumulator, batch->slot_index, batch->seq, &outcome, &sender->wakes);
    if (status != STATUS_OK) {
        FAIL("complete: %s", status_name(status));
    }
    sender->correlation++;
    ledger->alone_count++;
}

/* ---- a sender ---- */

/* Closes the connection if the link is unhealthy, or if bytes remain after the last response. */
static void call_end(struct pump_sender *sender)
{
    responses_await(sender);
    const struct broker_link *link = &sender->link.broker;
    sender->correlation = broker_link_correlation(link, link->end);
    if (!pump_link_is_healthy(&sender->link) || link->received_size > 0) {
        requests_requeue(sender);
        connection_close(sender);
    }
    for (uint32_t i = 0; i < sender->pump.left_count; i++) {
        batch_send_alone(sender, &sender->pump.left[i]);
    }
    ledger->pumped_count += sender->pump.delivered.batch_count;
    pump_free(&sender->pump);
}

/* Calls the pump once. Returns the number of batches that are drained, but not completed. */
static uint32_t pump_once(struct pump_sender *sender)
{
    struct sender_statistics statistics;
    if (sender->connection < 0) {
        sender->connection = broker_connect(sender->broker);
        sender->correlation = 0;
    }
    call_begin(sender);
    call_run(sender);
    call_end(sender);
    sender_maintain(sender->accumulator->sender, &sender->wakes);
    sender_statistics_read(sender->accumulator->sender, &statistics);
    return statistics.queued_count;
}

/* The broker recognizes a repeated batch by the producer id, which all senders of the arena share. */
static void producer_id_take(struct accumulator *accumulator)
{
    struct producer_identity identity;
    producer_identity_read(accumulator->arena, &identity);
    if (identity.producer_id < 0) {
        accumulator_set_producer_id(accumulator, PRODUCER_ID, 0);
    }
}

void chaos_pump(struct accumulator *accumulator, const struct broker_address *broker)
{
    static struct pump_sender sender;
    int wake_fds[2];
    producer_id_take(accumulator);
    if (pipe2(wake_fds, O_NONBLOCK | O_CLOEXEC) != 0) {
        FAIL("pipe2: %s", strerror(errno));
    }
    sender = (struct pump_sender){
        .accumulator = accumulator, .broker = broker, .wake_fd = wake_fds[0], .connection = -1};
    bool was_last = false;
    uint32_t left_count = 1;
    while (!was_last || left_count > 0) {
        was_last = ledger->is_finished == 2;
        left_count = pump_once(&sender);
    }
}
