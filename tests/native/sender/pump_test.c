/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/pump.h"

#include "arena/transaction.h"
#include "base/bytes.h"
#include "core/accumulator.h"
#include "core/delivery_fixture.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLOT_COUNT = 16, BATCH_SIZE = 4096, VERSION = 3, TOPIC_NAME_SIZE = 1, ANSWER_ROOM = 1024 };
enum { ANSWER_PARTITION = 19, ANSWER_THROTTLE = 41 }; /* positions in an answer, which count its size field */
enum { REQUEST_CORRELATION = 8, REQUEST_TRANSACTIONAL_ID = 15 };

static const struct produce_topic topic = {.name = "t", .name_size = TOPIC_NAME_SIZE};

/* A pump over one link. The test is the broker at the other end. */
struct pumping {
    int file;
    struct arena *arena;
    struct accumulator *accumulator;
    struct pump pump;
    struct pump_link link;
    struct pump_place *places;
    int broker;
    int wake_write_fd;
    struct wake_set wakes;
};

/* Begin with this transactional id of the arena and of each request. If it is NULL, there are no transactions. */
static void pumping_begin_in(struct pumping *pumping, uint32_t slot_count, const char *transactional_id)
{
    int sockets[2];
    int wake_fds[2];
    struct geometry geometry = geometry_of(slot_count, BATCH_SIZE);
    geometry.is_transactional = transactional_id != NULL;
    *pumping = (struct pumping){.file = arena_file_new()};
    pumping->arena = arena_created(pumping->file, geometry);
    pumping->accumulator = sender_opened(pumping->arena);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) == 0);
    EXPECT(pipe2(wake_fds, O_NONBLOCK) == 0);
    pumping->broker = sockets[1];
    pumping->wake_write_fd = wake_fds[1];
    uint32_t place_count = pumping->arena->geometry.partition_count;
    pumping->places = calloc(place_count, sizeof *pumping->places);
    for (uint32_t i = 0; i < 2; i++) {
        pumping->places[i] = (struct pump_place){.link = 1, .partition = (int32_t)i};
    }
    pumping->link = (struct pump_link){
        .place_count = 2,
        .broker = {.socket = sockets[0],
                   .requests_max = 5,
                   .form = {.client = "c",
                            .client_size = 1,
                            .transactional_id = transactional_id,
                            .transactional_id_size = transactional_id != NULL,
                            .version = VERSION,
                            .acks = -1,
                            .timeout_ms = 1000}}};
    pumping->pump = (struct pump){.half = pumping->accumulator->sender,
                                  .links = &pumping->link,
                                  .link_count = 1,
                                  .topics = &topic,
                                  .places = pumping->places,
                                  .place_count = place_count,
                                  .size_max = 1 << 20,
                                  .in_flight_max = 5,
                                  .short_wait_ns = NS_PER_MS,
                                  .short_wait_flag = SENDER_SHORT_WAIT,
                                  .due_ns = UINT64_MAX,
                                  .foreign_ns = UINT64_MAX,
                                  .wake_fd = wake_fds[0]};
    EXPECT(pump_make(&pumping->pump, TOPIC_NAME_SIZE));
}

static void pumping_begin_as(struct pumping *pumping, const char *transactional_id)
{
    pumping_begin_in(pumping, SLOT_COUNT, transactional_id);
}

static void pumping_begin(struct pumping *pumping)
{
    pumping_begin_as(pumping, NULL);
}

/* Batches that are in flight are sent again by the next sender. */
static void pumping_end(struct pumping *pumping)
{
    struct ledger *ledger = calloc(1, sizeof *ledger);
    close(pumping->link.broker.socket);
    close(pumping->pump.wake_fd);
    if (pumping->broker >= 0) {
        close(pumping->broker);
    }
    close(pumping->wake_write_fd);
    pump_free(&pumping->pump);
    accumulator_close(pumping->accumulator);
    struct accumulator *next = sender_opened(pumping->arena);
    deliver_everything(next, ledger);
    accumulator_close(next);
    expect_all_free(pumping->arena);
    arena_end(pumping->arena, pumping->file);
    free(pumping->places);
    free(ledger);
}

static void round_and_exchange(struct pumping *pumping)
{
    EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    pump_exchange(&pumping->pump);
}

/* Append a record that fills a batch. */
static void append_large(struct pumping *pumping, uint32_t partition)
{
    static const uint8_t value[BATCH_SIZE / 2 + BATCH_SIZE / 4] = {1};
    EXPECT_STATUS(append_value(pumping->accumulator, partition, value, sizeof value), STATUS_OK);
}

/* Run rounds until the link has begun this many requests. */
static void begin_requests(struct pumping *pumping, uint32_t count)
{
    while (pumping->link.broker.end < count) {
        round_and_exchange(pumping);
    }
}

static uint32_t free_slot_count(const struct pumping *pumping)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        count += slot_word_state(load_relaxed_u64(&pumping->arena->slots[i].word)) == SLOT_FREE;
    }
    return count;
}

/* ---- the broker ---- */

static uint8_t *put_32(uint8_t *target, uint32_t value)
{
    store_be32(target, value);
    return target + 4;
}

/* Write the answer for one batch of partition 0, and return its size. */
static size_t answer_write(uint8_t *bytes, uint32_t correlation, uint16_t error, uint64_t offset)
{
    uint8_t *target = put_32(bytes + 4, correlation);
    target = put_32(target, 1);
    store_be16(target, TOPIC_NAME_SIZE);
    target[2] = 't';
    target = put_32(target + 3, 1);
    target = put_32(target, 0);
    store_be16(target, error);
    store_be64(target + 2, offset);
    store_be64(target + 10, UINT64_MAX);
    target = put_32(target + 18, 0);
    size_t size = (size_t)(target - bytes);
    store_be32(bytes, (uint32_t)size - 4);
    return size;
}

/* Write the answer for a batch of each partition, and return its size. */
static size_t answer_of_both(uint8_t *bytes, uint32_t correlation)
{
    enum { ENTRIES = 15, ENTRY_SIZE = 4 + 2 + 8 + 8 };
    size_t size = answer_write(bytes, correlation, 0, 42) + ENTRY_SIZE;
    memcpy(bytes + ANSWER_THROTTLE, bytes + ANSWER_PARTITION, ENTRY_SIZE);
    store_be32(bytes + ENTRIES, 2);
    store_be32(bytes + ANSWER_THROTTLE, 1);
    store_be32(bytes + ANSWER_THROTTLE + ENTRY_SIZE, 0);
    store_be32(bytes, (uint32_t)size - 4);
    return size;
}

static void answer(const struct pumping *pumping, uint32_t correlation, uint16_t error, uint64_t offset)
{
    uint8_t bytes[ANSWER_ROOM];
    size_t size = answer_write(bytes, correlation, error, offset);
    EXPECT(write(pumping->broker, bytes, size) == (ssize_t)size);
}

static void answer_send(const struct pumping *pumping, const uint8_t *bytes, size_t size)
{
    EXPECT(write(pumping->broker, bytes, size) == (ssize_t)size);
}

static size_t request_read(const struct pumping *pumping)
{
    uint8_t bytes[8192];
    ssize_t size = read(pumping->broker, bytes, sizeof bytes);
    return size < 0 ? 0 : (size_t)size;
}

/* ---- ordinary rounds ---- */

TEST_WITH(pumping, pumping_begin, a_batch_is_free_when_its_answer_was_well)
{
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    EXPECT(request_read(pumping) > RECORDS_START);
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT - 1);
    answer(pumping, 0, 0, 42);
    while (pumping->link.broker.first == 0) {
        round_and_exchange(pumping);
    }
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT);
    EXPECT_EQ_U64(pumping->pump.delivered.record_count, 1);
    EXPECT_EQ_U64(pumping->places[0].batch_count, 1);
}

TEST_WITH(pumping, pumping_begin, a_pump_with_nothing_to_do_ends)
{
    while (pump_round(&pumping->pump, &pumping->wakes)) {
        pump_exchange(&pumping->pump);
    }
    EXPECT_EQ_U64(pumping->link.broker.end, 0);
}

TEST_WITH(pumping, pumping_begin, a_wake_up_is_read_from_the_wake_fd)
{
    char wake_up = 0;
    EXPECT(write(pumping->wake_write_fd, &wake_up, 1) == 1);
    round_and_exchange(pumping);
    EXPECT(read(pumping->pump.wake_fd, &wake_up, 1) < 0);
}

TEST_WITH(pumping, pumping_begin, a_stopped_pump_begins_nothing)
{
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    pump_stop(&pumping->pump);
    EXPECT(!pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(pumping->link.broker.end, 0);
}

/* Nothing can be sent before an answer arrives. The answer ends the wait, so no wake call is needed. */
TEST_WITH(pumping, pumping_begin, a_sender_without_room_for_a_request_is_not_woken)
{
    pumping->link.broker.requests_max = 1;
    atomic_u32 *sleep = &pumping->arena->globals->sender_sleep;
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(load_relaxed_u32(sleep), SENDER_AWAKE);
    EXPECT(pumping->pump.wait_ns > 0);
    EXPECT(pumping->pump.wait_ns <= NS_PER_MS);
    append_large(pumping, 1);
    EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(pumping->link.broker.end, 1);
    EXPECT_EQ_U64(load_relaxed_u32(sleep), SENDER_AWAKE);
    answer(pumping, 0, 0, 42);
    pump_exchange(&pumping->pump);
    begin_requests(pumping, 2);
}

/* If the broker is slow, the sender waits long for a free request, and no ready hint helps. */
TEST_WITH(pumping, pumping_begin, a_sender_whose_broker_is_slow_is_not_woken)
{
    pumping->arena->clock = (struct clock){.is_manual = true, .manual_ns = arena_now_ns(pumping->arena)};
    pumping->link.broker.requests_max = 1;
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    pumping->arena->clock.manual_ns += 50 * NS_PER_MS;
    EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(load_relaxed_u32(&pumping->arena->globals->sender_sleep), SENDER_AWAKE);
    EXPECT_EQ_U64(pumping->pump.wait_ns, 10 * NS_PER_MS);
}

TEST_WITH(pumping, pumping_begin, a_sender_with_room_for_a_request_is_woken)
{
    atomic_u32 *sleep = &pumping->arena->globals->sender_sleep;
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(load_relaxed_u32(sleep), SENDER_SHORT_WAIT);
    EXPECT(pumping->pump.wait_ns > 0);
}

/* ---- waiters that were served ---- */

enum { HELD_SLOT_COUNT = 256, HELD_BATCHES = HELD_SLOT_COUNT / 64 };

/* Begin with all requests of the link in flight, another batch, and a waiter that has just got a buffer. */
static void pumping_begin_with_waiter(struct pumping *pumping, uint32_t slot_count, uint32_t requests_max)
{
    pumping_begin_in(pumping, slot_count, NULL);
    pumping->arena->clock = (struct clock){.is_manual = true, .manual_ns = arena_now_ns(pumping->arena)};
    pumping->link.broker.requests_max = requests_max;
    for (uint32_t i = 0; i < requests_max; i++) {
        append_large(pumping, 0);
        begin_requests(pumping, i + 1);
    }
    append_large(pumping, 0);
    pumping->wakes = (struct wake_set){.bits = {1}, .count = 1};
}

static bool holds_after(struct pumping *pumping, uint64_t time_ns)
{
    pumping->arena->clock.manual_ns += time_ns;
    EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    return pumping->pump.delays_waiters;
}

TEST(waiters_sleep_on_for_a_time_where_no_link_has_room)
{
    struct pumping pumping;
    pumping_begin_with_waiter(&pumping, HELD_SLOT_COUNT, 1);
    EXPECT(holds_after(&pumping, NS_PER_MS));
    pumping.pump.short_wait_ns = 100 * NS_PER_MS;
    EXPECT(holds_after(&pumping, 3 * NS_PER_MS));
    EXPECT_EQ_U64(pumping.pump.wait_ns, NS_PER_MS);
    EXPECT(!holds_after(&pumping, NS_PER_MS));
    EXPECT(holds_after(&pumping, NS_PER_MS));
    pumping_end(&pumping);
}

TEST(waiters_of_a_small_arena_are_woken_at_once)
{
    struct pumping pumping;
    pumping_begin_with_waiter(&pumping, SLOT_COUNT, 1);
    EXPECT(!holds_after(&pumping, NS_PER_MS));
    pumping_end(&pumping);
}

TEST(waiters_are_woken_when_enough_buffers_are_free)
{
    struct pumping pumping;
    pumping_begin_with_waiter(&pumping, HELD_SLOT_COUNT, HELD_BATCHES);
    EXPECT(holds_after(&pumping, 1));
    for (uint32_t i = 0; i < HELD_BATCHES; i++) {
        answer(&pumping, i, 0, 42);
    }
    pump_exchange(&pumping.pump);
    append_large(&pumping, 0);
    EXPECT(holds_after(&pumping, 1)); /* a request has begun */
    EXPECT_EQ_U64(pumping.pump.delivered.batch_count, HELD_BATCHES);
    pumping.link.broker.requests_max = 1;
    EXPECT(!holds_after(&pumping, 1));
    pumping_end(&pumping);
}

TEST(waiters_are_woken_after_the_request_that_has_begun)
{
    struct pumping pumping;
    pumping_begin_with_waiter(&pumping, SLOT_COUNT, 1);
    answer(&pumping, 0, 0, 42);
    pump_exchange(&pumping.pump);
    EXPECT(holds_after(&pumping, 1));
    EXPECT_EQ_U64(pumping.link.broker.end, 2);
    pump_exchange(&pumping.pump);
    EXPECT(!holds_after(&pumping, 1));
    pumping_end(&pumping);
}

TEST(waiters_are_woken_where_a_link_has_room)
{
    struct pumping pumping;
    pumping_begin_with_waiter(&pumping, HELD_SLOT_COUNT, 1);
    EXPECT(holds_after(&pumping, 1));
    answer(&pumping, 0, 0, 42);
    pump_exchange(&pumping.pump);
    pumping.link.broker.requests_max = 5;
    EXPECT(holds_after(&pumping, 1)); /* from here on, records are appended to the next batch */
    pump_exchange(&pumping.pump);
    EXPECT(!holds_after(&pumping, 1));
    pumping_end(&pumping);
}

TEST(a_pump_that_is_over_holds_no_waiters)
{
    struct pumping pumping;
    pumping_begin_with_waiter(&pumping, HELD_SLOT_COUNT, 1);
    EXPECT(holds_after(&pumping, 1));
    pump_stop(&pumping.pump);
    EXPECT(!holds_after(&pumping, 1));
    pumping_end(&pumping);
}

TEST_WITH(pumping, pumping_begin, a_partition_without_a_link_ends_the_pump_in_its_time)
{
    pumping->pump.foreign_ns = 0;
    EXPECT_STATUS(append_number(pumping->accumulator, 5, 7), STATUS_OK);
    while (pump_round(&pumping->pump, &pumping->wakes)) {
        pump_exchange(&pumping->pump);
    }
    EXPECT_EQ_U64(pumping->link.broker.end, 0);
    EXPECT_EQ_U64(pumping->pump.due_ns, 0);
}

/* ---- what is left to the caller ---- */

static void expect_that_it_is_left(struct pumping *pumping)
{
    pump_exchange(&pumping->pump);
    EXPECT(!pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(pumping->link.broker.end - pumping->link.broker.first, 1);
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT - 1);
}

TEST_WITH(pumping, pumping_begin, an_answer_with_an_error_is_left_in_the_socket)
{
    uint8_t bytes[ANSWER_ROOM];
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    answer(pumping, 0, 6, 42);
    expect_that_it_is_left(pumping);
    EXPECT(pumping->link.broker.is_strange);
    EXPECT_EQ_U64(pumping->link.broker.received_size, answer_write(bytes, 0, 6, 42));
    EXPECT(memcmp(pumping->link.broker.received, bytes, pumping->link.broker.received_size) == 0);
}

TEST_WITH(pumping, pumping_begin, an_answer_to_another_request_is_left_in_the_socket)
{
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    answer(pumping, 1, 0, 42);
    expect_that_it_is_left(pumping);
    EXPECT(pumping->link.broker.is_strange);
}

TEST_WITH(pumping, pumping_begin, a_frame_larger_than_any_answer_is_not_waited_for)
{
    static const uint8_t head[4] = {0x7f, 0xff, 0xff, 0xff};
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    EXPECT(write(pumping->broker, head, sizeof head) == sizeof head);
    expect_that_it_is_left(pumping);
    EXPECT(pumping->link.broker.is_strange);
    EXPECT_EQ_U64(pumping->link.broker.received_size, sizeof head);
}

TEST_WITH(pumping, pumping_begin, a_socket_at_its_end_is_broken)
{
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    EXPECT(request_read(pumping) > 0);
    close(pumping->broker);
    pumping->broker = -1;
    expect_that_it_is_left(pumping);
    EXPECT(pumping->link.broker.is_broken);
}

TEST_WITH(pumping, pumping_begin, half_of_an_answer_is_waited_for)
{
    uint8_t bytes[ANSWER_ROOM];
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    size_t size = answer_write(bytes, 0, 0, 42);
    for (size_t i = 0; i < size; i++) {
        EXPECT_EQ_U64(pumping->link.broker.first, 0);
        EXPECT(write(pumping->broker, bytes + i, 1) == 1);
        round_and_exchange(pumping);
    }
    (void)pump_round(&pumping->pump, &pumping->wakes);
    EXPECT_EQ_U64(pumping->link.broker.first, 1);
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT);
}

TEST_WITH(pumping, pumping_begin, a_damaged_batch_is_detected_before_a_byte_of_it_is_written)
{
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    while (pumping->link.broker.end == 0) {
        EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    }
    uint8_t *bytes = arena_slot_data(pumping->arena, pumping->link.pieces[0][0].drained.slot_index);
    bytes[RECORDS_START + 1] ^= 1;
    expect_that_it_is_left(pumping);
    EXPECT(pumping->link.is_damaged);
    EXPECT_EQ_U64(request_read(pumping), 0);
    bytes[RECORDS_START + 1] ^= 1;
}

TEST(a_batch_whose_header_has_an_invalid_time_is_not_sent)
{
    for (uint32_t bit = 16; bit < 64; bit++) {
        for (uint32_t field = 0; field < 2; field++) {
            struct pumping pumping;
            pumping_begin(&pumping);
            EXPECT_STATUS(append_number(pumping.accumulator, 0, 7), STATUS_OK);
            uint32_t slot_index = open_word_slot(load_relaxed_u64(&pumping.arena->partitions[0].open));
            struct slot_header *slot = &pumping.arena->slots[slot_index];
            int64_t *wild = field == 0 ? &slot->base_timestamp_ms : &slot->meta[1].max_timestamp_ms;
            *wild ^= (int64_t)(UINT64_C(1) << bit);
            while (pumping.link.broker.end == 0) {
                EXPECT(pump_round(&pumping.pump, &pumping.wakes));
            }
            expect_that_it_is_left(&pumping);
            EXPECT(pumping.link.is_damaged);
            EXPECT_EQ_U64(request_read(&pumping), 0);
            *wild ^= (int64_t)(UINT64_C(1) << bit);
            pumping_end(&pumping);
        }
    }
}

/* ---- transactions ---- */

/* Begin a pump in the open transaction 1. */
static void pumping_begin_transaction(struct pumping *pumping)
{
    uint64_t number;
    pumping_begin_as(pumping, "x");
    EXPECT_STATUS(transaction_begin(pumping->arena, &number), STATUS_OK);
    EXPECT_EQ_U64(number, 1);
}

TEST_WITH(pumping, pumping_begin_transaction, a_batch_of_a_transaction_goes_in_a_request_that_names_it)
{
    uint8_t bytes[8192];
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    EXPECT(read(pumping->broker, bytes, sizeof bytes) > RECORDS_START);
    EXPECT_EQ_U64(load_be16(bytes + REQUEST_TRANSACTIONAL_ID), 1);
    EXPECT(bytes[REQUEST_TRANSACTIONAL_ID + 2] == 'x');
    answer(pumping, 0, 0, 42);
    while (pumping->link.broker.first == 0) {
        round_and_exchange(pumping);
    }
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT);
}

static void expect_no_request(struct pumping *pumping)
{
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    while (pump_round(&pumping->pump, &pumping->wakes)) {
        pump_exchange(&pumping->pump);
    }
    EXPECT_EQ_U64(pumping->link.broker.end, 0);
    EXPECT_EQ_U64(pumping->pump.left_count, 1);
    EXPECT_EQ_U64(request_read(pumping), 0);
    pumping_end(pumping);
}

TEST(a_link_without_a_transactional_id_does_not_send_batches_of_a_transaction)
{
    struct pumping pumping;
    pumping_begin_transaction(&pumping);
    pumping.link.broker.form.transactional_id = NULL;
    expect_no_request(&pumping);
}

TEST(a_link_with_a_transactional_id_does_not_send_batches_without_a_transaction)
{
    struct pumping pumping;
    pumping_begin(&pumping);
    pumping.link.broker.form.transactional_id = "x";
    expect_no_request(&pumping);
}

TEST_WITH(pumping, pumping_begin_transaction, a_commit_ends_the_pump_when_the_last_batch_is_answered)
{
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 8), STATUS_OK);
    EXPECT_STATUS(transaction_commit(pumping->arena, 1), STATUS_OK);
    begin_requests(pumping, 2);
    answer(pumping, 0, 0, 42);
    answer(pumping, 1, 0, 43);
    pump_exchange(&pumping->pump);
    EXPECT(!pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(pumping->link.broker.first, 2);
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT);
}

TEST_WITH(pumping, pumping_begin_transaction, a_transaction_that_can_only_be_aborted_ends_the_pump)
{
    transaction_fail(pumping->arena, TRANSACTION_WHY_REFUSED);
    EXPECT(!pump_round(&pumping->pump, &pumping->wakes));
    EXPECT(pumping->pump.is_over);
    EXPECT_STATUS(transaction_abort(pumping->arena, 1, TRANSACTION_WHY_ASKED), STATUS_OK);
}

/* ---- hostile answers ---- */

/* Begin with a request that has no answer. */
static void pumping_begin_with_request(struct pumping *pumping)
{
    pumping_begin(pumping);
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
}

TEST_WITH(pumping, pumping_begin_with_request, a_pump_continues_with_ready_batches_after_a_late_answer)
{
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 8), STATUS_OK);
    answer(pumping, 0, 0, 42);
    pump_exchange(&pumping->pump);
    pumping->pump.last_begun_ns = 0;
    EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(pumping->link.broker.first, 1);
    EXPECT_EQ_U64(pumping->link.broker.end, 2);
}

TEST_WITH(pumping, pumping_begin_with_request, an_answer_for_another_partition_is_left_in_the_socket)
{
    uint8_t bytes[ANSWER_ROOM];
    size_t size = answer_write(bytes, 0, 0, 42);
    store_be32(bytes + ANSWER_PARTITION, 1);
    answer_send(pumping, bytes, size);
    expect_that_it_is_left(pumping);
    EXPECT(pumping->link.broker.is_strange);
}

TEST_WITH(pumping, pumping_begin_with_request, a_frame_of_a_negative_size_is_not_waited_for)
{
    static const uint8_t head[4] = {0xff, 0xff, 0xff, 0xff};
    answer_send(pumping, head, sizeof head);
    expect_that_it_is_left(pumping);
    EXPECT(pumping->link.broker.is_strange);
}

TEST_WITH(pumping, pumping_begin_with_request, an_empty_frame_is_left_in_the_socket)
{
    static const uint8_t head[4] = {0};
    answer_send(pumping, head, sizeof head);
    expect_that_it_is_left(pumping);
    EXPECT(pumping->link.broker.is_strange);
}

TEST(a_socket_that_ends_after_any_byte_of_an_answer_is_broken)
{
    uint8_t bytes[ANSWER_ROOM];
    size_t size = answer_write(bytes, 0, 0, 42);
    for (size_t cut = 1; cut < size; cut++) {
        struct pumping pumping;
        pumping_begin_with_request(&pumping);
        EXPECT(request_read(&pumping) > 0);
        answer_send(&pumping, bytes, cut);
        close(pumping.broker);
        pumping.broker = -1;
        round_and_exchange(&pumping);
        expect_that_it_is_left(&pumping);
        EXPECT(pumping.link.broker.is_broken);
        EXPECT_EQ_U64(pumping.link.broker.received_size, cut);
        pumping_end(&pumping);
    }
}

TEST_WITH(pumping, pumping_begin_with_request, an_answer_before_the_end_of_its_socket_is_taken)
{
    EXPECT(request_read(pumping) > 0);
    answer(pumping, 0, 0, 42);
    close(pumping->broker);
    pumping->broker = -1;
    round_and_exchange(pumping);
    EXPECT(pump_round(&pumping->pump, &pumping->wakes));
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT);
    pump_exchange(&pumping->pump);
    EXPECT(pumping->link.broker.is_broken);
    EXPECT(!pump_round(&pumping->pump, &pumping->wakes));
}

TEST_WITH(pumping, pumping_begin_with_request, answers_in_another_order_stay_where_they_are)
{
    uint8_t bytes[2 * ANSWER_ROOM];
    EXPECT_STATUS(append_number(pumping->accumulator, 1, 8), STATUS_OK);
    begin_requests(pumping, 2);
    size_t size = answer_write(bytes, 1, 0, 43);
    store_be32(bytes + ANSWER_PARTITION, 1);
    (void)answer_write(bytes + size, 0, 0, 42);
    answer_send(pumping, bytes, 2 * size);
    pump_exchange(&pumping->pump);
    EXPECT(!pump_round(&pumping->pump, &pumping->wakes));
    EXPECT(pumping->link.broker.is_strange);
    EXPECT_EQ_U64(pumping->link.broker.answered, 0);
    EXPECT_EQ_U64(pumping->link.broker.received_size, 2 * size);
}

TEST_WITH(pumping, pumping_begin_with_request, a_second_answer_to_a_request_is_no_answer_to_the_next_one)
{
    uint8_t bytes[2 * ANSWER_ROOM];
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 8), STATUS_OK);
    begin_requests(pumping, 2);
    size_t size = answer_write(bytes, 0, 0, 42);
    (void)answer_write(bytes + size, 0, 0, 43);
    answer_send(pumping, bytes, 2 * size);
    expect_that_it_is_left(pumping);
    EXPECT_EQ_U64(pumping->link.broker.first, 1);
    EXPECT(pumping->link.broker.is_strange);
}

TEST_WITH(pumping, pumping_begin, an_answer_that_arrived_before_its_request_is_left_in_the_socket)
{
    answer(pumping, 0, 0, 42);
    pump_exchange(&pumping->pump);
    EXPECT(!pump_round(&pumping->pump, &pumping->wakes));
    EXPECT(pumping->link.broker.is_strange);
    EXPECT_EQ_U64(pumping->link.broker.end, 0);
}

TEST_WITH(pumping, pumping_begin_with_request, a_throttle_ends_the_pump_with_the_result_taken)
{
    uint8_t bytes[ANSWER_ROOM];
    size_t size = answer_write(bytes, 0, 0, 42);
    store_be32(bytes + ANSWER_THROTTLE, 250);
    answer_send(pumping, bytes, size);
    pump_exchange(&pumping->pump);
    EXPECT(!pump_round(&pumping->pump, &pumping->wakes));
    EXPECT(pumping->link.broker.throttle_ms == 250);
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT);
}

/* ---- the numbers of the previous owner ---- */

TEST_WITH(pumping, pumping_begin, correlation_ids_continue_those_of_the_previous_owner)
{
    uint8_t bytes[2 * ANSWER_ROOM];
    pumping->link.broker.correlation_first = INT32_MAX;
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 7), STATUS_OK);
    begin_requests(pumping, 1);
    pump_exchange(&pumping->pump);
    EXPECT(read(pumping->broker, bytes, sizeof bytes) > REQUEST_CORRELATION);
    EXPECT_EQ_U64(load_be32(bytes + REQUEST_CORRELATION), INT32_MAX);
    EXPECT_STATUS(append_number(pumping->accumulator, 0, 8), STATUS_OK);
    begin_requests(pumping, 2);
    pump_exchange(&pumping->pump);
    EXPECT(read(pumping->broker, bytes, sizeof bytes) > REQUEST_CORRELATION);
    EXPECT_EQ_U64(load_be32(bytes + REQUEST_CORRELATION), 0);
    answer(pumping, INT32_MAX, 0, 42);
    answer(pumping, 0, 0, 43);
    while (pumping->link.broker.first < 2) {
        round_and_exchange(pumping);
    }
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT);
}

/* ---- a socket that is full ---- */

/* Begin with the minimum size of the socket's buffer, by which the kernel replaces 1. */
static void pumping_begin_with_little_room(struct pumping *pumping)
{
    static const int room = 1;
    pumping_begin(pumping);
    EXPECT(setsockopt(pumping->link.broker.socket, SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
}

TEST_WITH(pumping, pumping_begin_with_little_room, an_answer_to_a_half_written_request_is_left_in_the_socket)
{
    uint8_t bytes[ANSWER_ROOM];
    for (uint32_t i = 0; i < SLOT_COUNT / 2; i++) {
        append_large(pumping, i % 2);
    }
    while (!pumping->link.broker.is_sending) {
        round_and_exchange(pumping);
    }
    for (uint32_t i = 0; i < pumping->link.broker.end; i++) {
        answer_send(pumping, bytes, answer_of_both(bytes, i));
    }
    pump_exchange(&pumping->pump);
    EXPECT(pumping->link.broker.is_strange);
    EXPECT_EQ_U64(pumping->link.broker.answered, pumping->link.broker.end - 1);
}

TEST_WITH(pumping, pumping_begin_with_little_room, the_rest_of_a_request_follows_when_the_socket_has_room)
{
    uint64_t size = 0;
    for (uint32_t i = 0; i < SLOT_COUNT / 2; i++) {
        append_large(pumping, i % 2);
    }
    for (uint32_t answered = 0; answered < SLOT_COUNT / 4;) {
        round_and_exchange(pumping);
        size += request_read(pumping);
        uint32_t written_end = pumping->link.broker.end - pumping->link.broker.is_sending;
        EXPECT(size <= pumping->link.broker.sent_size);
        if (answered < written_end) {
            uint8_t bytes[ANSWER_ROOM];
            answer_send(pumping, bytes, answer_of_both(bytes, answered++));
        }
    }
    while (pumping->link.broker.first < SLOT_COUNT / 4) {
        round_and_exchange(pumping);
    }
    EXPECT_EQ_U64(free_slot_count(pumping), SLOT_COUNT);
}

RUN_ALL()
