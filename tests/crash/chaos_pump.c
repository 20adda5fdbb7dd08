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

enum { FRAME_HEAD_SIZE = 4, ANSWER_SIZE_MAX = 256, PRODUCE_OWN_MAX = 512, ANSWER_WATCH_MS = 5, PRODUCER_ID = 1000 };

#define CALL_NS (20 * NS_PER_MS)
#define SHORT_WAIT_NS (NS_PER_MS / 10)

static const struct produce_topic topic = {.name = BROKER_TOPIC, .name_size = sizeof BROKER_TOPIC - 1};
static const struct produce_request form = {.client = BROKER_CLIENT,
                                            .client_size = sizeof BROKER_CLIENT - 1,
                                            .version = PRODUCE_VERSION_MIN,
                                            .acks = -1};

/* A sender between two calls of the pump. */
struct carrier {
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

static void call_begin(struct carrier *carrier)
{
    struct arena *arena = carrier->accumulator->arena;
    for (int32_t i = 0; i < PARTITION_COUNT; i++) {
        carrier->places[i] = (struct pump_place){.link = 1, .partition = i};
    }
    carrier->link = (struct pump_link){.place_count = PARTITION_COUNT,
                                       .broker = {.socket = carrier->connection,
                                                  .requests_max = 5,
                                                  .correlation_first = carrier->correlation,
                                                  .form = form}};
    carrier->pump = (struct pump){.half = carrier->accumulator->sender,
                                  .links = &carrier->link,
                                  .link_count = 1,
                                  .topics = &topic,
                                  .places = carrier->places,
                                  .place_count = PARTITION_COUNT,
                                  .linger_ns = NS_PER_MS,
                                  .size_max = 1 << 20,
                                  .in_flight_max = 5,
                                  .short_wait_ns = SHORT_WAIT_NS,
                                  .short_wait_flag = SENDER_SHORT_WAIT,
                                  .due_ns = arena_now_ns(arena) + CALL_NS,
                                  .foreign_ns = UINT64_MAX,
                                  .wake_fd = carrier->wake_fd};
    if (!pump_make(&carrier->pump, sizeof BROKER_TOPIC)) {
        FAIL("there is no memory for a pump");
    }
}

static void call_run(struct carrier *carrier)
{
    const struct pump_link *link = &carrier->link;
    while (pump_round(&carrier->pump, &carrier->wakes)) {
        ledger->is_carrying = link->broker.end != link->broker.first;
        pump_exchange(&carrier->pump);
    }
    ledger->is_carrying = false;
    if (link->is_damaged) {
        FAIL("a batch contradicts its checksum");
    }
}

/* ---- what a call leaves ---- */

/* Continue with the unanswered requests, as the owner of the connection does. */
static void answers_await(struct carrier *carrier)
{
    struct broker_link *link = &carrier->link.broker;
    while (pump_link_is_healthy(&carrier->link) && link->answered != link->end) {
        struct pollfd polled = {.fd = link->socket, .events = (short)(POLLIN | (link->is_sending ? POLLOUT : 0))};
        pump_send(&carrier->pump, &carrier->link);
        (void)poll(&polled, 1, ANSWER_WATCH_MS);
        broker_link_receive(link, arena_now_ns(carrier->accumulator->arena));
    }
    (void)pump_round(&carrier->pump, &carrier->wakes); /* completes the answered requests, and begins none */
    if (link->first != link->answered) {
        FAIL("a pump ended before it read all answers");
    }
}

static void batch_requeue(struct carrier *carrier, const struct drained_batch *batch)
{
    enum status status = accumulator_requeue(carrier->accumulator, batch->slot_index, batch->seq, 0);
    if (status != STATUS_OK) {
        FAIL("requeue: %s", status_name(status));
    }
}

static void requests_requeue(struct carrier *carrier)
{
    struct broker_link *link = &carrier->link.broker;
    for (uint32_t number = link->answered; number != link->end; number++) {
        for (uint32_t i = 0; i < broker_link_request(link, number)->produce.batch_count; i++) {
            batch_requeue(carrier, &pump_link_pieces(&carrier->link, number)[i].drained);
        }
    }
}

/* ---- a batch alone ---- */

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

static bool request_sent(const struct carrier *carrier, const struct produce_request *request, const uint8_t *batch)
{
    uint8_t own[PRODUCE_OWN_MAX];
    size_t cut[2];
    if (produce_own_size_max(request) > sizeof own) {
        FAIL("a request does not fit");
    }
    size_t own_size = produce_encode(request, own, cut);
    store_be32(own + PRODUCE_CORRELATION, carrier->correlation);
    return all_sent(carrier->connection, own, cut[0]) &&
           all_sent(carrier->connection, batch, request->batches[0].size) &&
           all_sent(carrier->connection, own + cut[0], own_size - cut[0]);
}

static bool answer_received(const struct carrier *carrier, const struct produce_request *request,
                            struct produce_answer *answer)
{
    uint8_t bytes[ANSWER_SIZE_MAX];
    if (!all_received(carrier->connection, bytes, FRAME_HEAD_SIZE)) {
        return false;
    }
    size_t size = load_be32(bytes);
    return size <= sizeof bytes && all_received(carrier->connection, bytes, size) &&
           produce_answer_read(request, carrier->correlation, bytes, size, answer) && answer->throttle_ms == 0;
}

/* Return false if no answer without an error arrived. */
static bool batch_sent(const struct carrier *carrier, const struct drained_batch *batch, struct produce_result *result)
{
    static uint8_t bytes[CHAIN_SIZE_MAX];
    uint32_t tables[ANSWER_SIZE_MAX];
    struct produce_topic only = topic;
    only.batch_count = 1;
    const struct produce_batch piece = {.partition = (int32_t)batch->partition_index, .size = batch->size};
    struct produce_request request = form;
    request.topics = &only;
    request.batches = &piece;
    request.topic_count = request.batch_count = 1;
    struct produce_answer answer = {.results = result, .tables = tables};
    batch_copy(carrier->accumulator->arena, batch, bytes);
    return request_sent(carrier, &request, bytes) && answer_received(carrier, &request, &answer);
}

static void connection_close(struct carrier *carrier)
{
    close(carrier->connection);
    carrier->connection = -1;
}

static void batch_send_alone(struct carrier *carrier, const struct drained_batch *batch)
{
    struct produce_result result;
    if (carrier->connection < 0 || !batch_sent(carrier, batch, &result)) {
        if (carrier->connection >= 0) {
            connection_close(carrier);
        }
        batch_requeue(carrier, batch);
        return;
    }
    const struct batch_outcome outcome = {
        .result = RESULT_SUCCEEDED, .base_offset = result.base_offset, .log_append_time_ms = result.log_append_time_ms};
    enum status status =
        accumulator_complete(carrier->accumulator, batch->slot_index, batch->seq, &outcome, &carrier->wakes);
    if (status != STATUS_OK) {
        FAIL("complete: %s", status_name(status));
    }
    carrier->correlation++;
    ledger->alone_count++;
}

/* ---- a sender ---- */

/* If bytes remain after the last answer, the connection is closed like a damaged one. */
static void call_end(struct carrier *carrier)
{
    answers_await(carrier);
    const struct broker_link *link = &carrier->link.broker;
    carrier->correlation = broker_link_correlation(link, link->end);
    if (!pump_link_is_healthy(&carrier->link) || link->received_size > 0) {
        requests_requeue(carrier);
        connection_close(carrier);
    }
    for (uint32_t i = 0; i < carrier->pump.left_count; i++) {
        batch_send_alone(carrier, &carrier->pump.left[i]);
    }
    ledger->pumped_count += carrier->pump.delivered.batch_count;
    pump_free(&carrier->pump);
}

/* Return the number of batches that the sender has drained and not completed. */
static uint32_t carry(struct carrier *carrier)
{
    struct sender_statistics statistics;
    if (carrier->connection < 0) {
        carrier->connection = broker_connect(carrier->broker);
        carrier->correlation = 0;
    }
    call_begin(carrier);
    call_run(carrier);
    call_end(carrier);
    sender_maintain(carrier->accumulator->sender, &carrier->wakes);
    sender_statistics_read(carrier->accumulator->sender, &statistics);
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
    static struct carrier carrier;
    int wake_fds[2];
    producer_id_take(accumulator);
    if (pipe2(wake_fds, O_NONBLOCK | O_CLOEXEC) != 0) {
        FAIL("pipe2: %s", strerror(errno));
    }
    carrier = (struct carrier){.accumulator = accumulator, .broker = broker, .wake_fd = wake_fds[0], .connection = -1};
    bool was_last = false;
    uint32_t left_count = 1;
    while (!was_last || left_count > 0) {
        was_last = ledger->is_finished == 2;
        left_count = carry(&carrier);
    }
}
