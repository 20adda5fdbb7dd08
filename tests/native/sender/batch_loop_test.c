/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch loop to a broker in another thread, with arbitrary answers and segments.
 */
#include "sender/batch_loop.h"

#include "base/clock.h"
#include "format/answers.h"
#include "randomness.h"
#include "sender/positions.h"
#include "testing.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCHES = 40, RECORDS = 3, BATCH_SIZE = 100, VERSION = 7, ANSWER_ROOM = 512, HEAD_SIZE = 12, TRIPS = 200 };

static const char name[] = "\"flights-0\"";

/* The disk of a stream that syncs. `fdatasync` of this program replaces that of the C library. */
static struct {
    int segment; /* 0 if no stream syncs */
    off_t size;  /* the size of the segment at the last sync */
    uint32_t sync_count;
    bool is_failing;
    off_t (*change)(int segment); /* called once, after the first sync; returns the size that is on the disk then */
} disk;

/* The broker sends some valid answers, then one answer of any kind, and closes the connection. */
struct broker {
    int socket;
    struct randomness *randomness;
    uint32_t honest_count;
    uint32_t batch_count; /* batches that have arrived */
    uint32_t early_count; /* the number of them that arrived before they were on disk */
};

struct trip {
    int segment;
    int positions_file;
    int wake_fds[2];
    int sockets[2];
    struct partition_stream stream;
    struct ship_link link;
    struct ship_positions positions;
    struct batch_loop loop;
    struct broker broker;
};

/* ---- the disk ---- */

int fdatasync(int file)
{
    if (file != disk.segment) {
        return 0;
    }
    if (disk.is_failing) {
        errno = EIO;
        return -1;
    }
    off_t size = lseek(file, 0, SEEK_END);
    if (disk.sync_count++ == 0 && disk.change != NULL) {
        size = disk.change(file);
    }
    __atomic_store_n(&disk.size, size, __ATOMIC_RELEASE);
    return 0;
}

/* ---- the broker ---- */

static bool received(int socket, uint8_t *target, size_t size)
{
    return recv(socket, target, size, MSG_WAITALL) == (ssize_t)size;
}

/* Reads a request and counts its batch. Returns false at the end of the stream. */
static bool request_pass(struct broker *broker, uint32_t *correlation)
{
    uint8_t head[HEAD_SIZE];
    uint8_t rest[BATCH_SIZE + ANSWER_ROOM];
    if (!received(broker->socket, head, sizeof head)) {
        return false;
    }
    *correlation = load_be32(head + PRODUCE_CORRELATION);
    for (size_t left = load_be32(head) + 4 - HEAD_SIZE; left > 0;) {
        size_t some = left < sizeof rest ? left : sizeof rest;
        if (!received(broker->socket, rest, some)) {
            return false;
        }
        left -= some;
    }
    broker->batch_count++;
    broker->early_count += (off_t)broker->batch_count * BATCH_SIZE > __atomic_load_n(&disk.size, __ATOMIC_ACQUIRE);
    return true;
}

static size_t answer_make(uint32_t correlation, uint8_t *frame)
{
    const struct produce_topic topic = {.name = "flights", .name_size = 7, .batch_count = 1};
    const struct produce_batch batch = {.partition = 0};
    const struct produce_request request = {
        .version = VERSION, .topics = &topic, .topic_count = 1, .batches = &batch, .batch_count = 1};
    size_t size = answer_write(&request, correlation, frame + 4);
    store_be32(frame, (uint32_t)size);
    store_be32(frame + size, 0); /* the last field, the throttle time: no pause */
    return size + 4;
}

static size_t answer_spoil(struct randomness *randomness, uint8_t *frame, size_t size)
{
    static const uint8_t bytes[] = {0, 1, 0x7f, 0x80, 0xff};
    for (uint64_t i = 1 + random_below(randomness, 3); i > 0; i--) {
        frame[random_below(randomness, size)] = bytes[random_below(randomness, sizeof bytes)];
    }
    return random_below(randomness, 2) == 0 ? size : random_below(randomness, size);
}

static void *broker_run(void *argument)
{
    struct broker *broker = argument;
    uint8_t frame[ANSWER_ROOM];
    uint32_t correlation;
    while (request_pass(broker, &correlation)) {
        size_t size = answer_make(correlation, frame);
        bool is_honest = broker->batch_count <= broker->honest_count;
        size = is_honest ? size : answer_spoil(broker->randomness, frame, size);
        (void)!send(broker->socket, frame, size, MSG_NOSIGNAL);
        if (!is_honest) {
            break;
        }
    }
    close(broker->socket);
    return NULL;
}

/* ---- running the batch loop ---- */

static void batch_write(int segment, int number)
{
    uint8_t bytes[BATCH_SIZE];
    memset(bytes, number, sizeof bytes);
    const struct record_batch_header header = {.base_offset = number * RECORDS,
                                               .batch_length = BATCH_SIZE - RECORD_BATCH_UNCOUNTED_SIZE,
                                               .magic = RECORD_BATCH_MAGIC_VALUE,
                                               .last_offset_delta = RECORDS - 1,
                                               .producer_id = 7,
                                               .base_sequence = number * RECORDS,
                                               .record_count = RECORDS};
    record_batch_header_write(bytes, &header);
    (void)!pwrite(segment, bytes, sizeof bytes, number * BATCH_SIZE);
}

static void segment_write(int segment)
{
    for (int i = 0; i < BATCHES; i++) {
        batch_write(segment, i);
    }
}

static void trip_begin(struct trip *trip, struct randomness *randomness)
{
    EXPECT(signal(SIGPIPE, SIG_IGN) != SIG_ERR); /* as in a Python process: sendfile has no flag for it */
    *trip = (struct trip){.segment = memfd_create("segment", 0), .positions_file = memfd_create("positions", 0)};
    EXPECT(pipe(trip->wake_fds) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, trip->sockets) == 0);
    segment_write(trip->segment);
    trip->broker = (struct broker){.socket = trip->sockets[1], .randomness = randomness, .honest_count = UINT32_MAX};
    trip->stream = (struct partition_stream){.topic = {.name = "flights", .name_size = 7},
                                    .file = trip->segment,
                                    .limit_offset = INT64_MAX,
                                    .producer = {.id = 4711, .epoch = 3},
                                    .name = {.bytes = name, .size = sizeof name - 1},
                                    .topic_id = {.bytes = "\"\"", .size = 2}};
    trip->link = (struct ship_link){.broker = {.socket = trip->sockets[0],
                                               .form = {.client = "batch loop",
                                                        .client_size = 6,
                                                        .version = VERSION,
                                                        .acks = -1},
                                               .requests_max = 5},
                                    .request_size_max = 1 << 20,
                                    .streams = &trip->stream,
                                    .stream_count = 1};
    trip->positions =
        (struct ship_positions){.recorder.record = positions_record, .file = trip->positions_file, .size_max = 1 << 30};
    trip->loop = (struct batch_loop){.links = &trip->link,
                                        .link_count = 1,
                                        .streams = &trip->stream,
                                        .stream_count = 1,
                                        .recorder = &trip->positions.recorder,
                                        .wake_fd = trip->wake_fds[0],
                                        .time_ns = 600 * NS_PER_S,
                                        .answer_time_ns = 600 * NS_PER_S};
}

static void trip_run(struct trip *trip)
{
    pthread_t thread;
    pthread_create(&thread, NULL, broker_run, &trip->broker);
    EXPECT(batch_loop_run(&trip->loop));
    shutdown(trip->sockets[0], SHUT_WR);
    pthread_join(thread, NULL);
}

static void trip_end(struct trip *trip)
{
    positions_free(&trip->positions);
    close(trip->sockets[0]);
    close(trip->wake_fds[0]);
    close(trip->wake_fds[1]);
    close(trip->segment);
    close(trip->positions_file);
}

/* ---- ordinary runs ---- */

TEST(a_batch_loop_ships_a_segment_to_its_end)
{
    struct trip trip;
    trip_begin(&trip, NULL);
    trip_run(&trip);
    EXPECT_EQ_U64(trip.broker.batch_count, BATCHES);
    EXPECT_EQ_U64((uint64_t)trip.stream.recorded.offset, BATCHES * RECORDS);
    EXPECT_EQ_U64((uint64_t)trip.stream.batch_count, BATCHES);
    EXPECT_EQ_U64((uint64_t)trip.stream.recorded.position, BATCHES * BATCH_SIZE);
    EXPECT_EQ_U64((uint64_t)trip.stream.state, STREAM_ENDS);
    EXPECT(!trip.link.broker.is_broken);
    trip_end(&trip);
}

TEST(a_stream_that_keeps_its_producer_ends_in_front_of_another_one)
{
    struct trip trip;
    uint8_t other[2] = {0, 9};
    trip_begin(&trip, NULL);
    trip.stream.keeps_producer = true;
    trip.stream.producer = (struct record_batch_producer){.id = 7};
    (void)!pwrite(trip.segment, other, sizeof other, 11 * BATCH_SIZE + RECORD_BATCH_PRODUCER_EPOCH);
    trip_run(&trip);
    EXPECT_EQ_U64(trip.broker.batch_count, 11);
    EXPECT_EQ_U64((uint64_t)trip.stream.recorded.offset, 11 * RECORDS);
    EXPECT_EQ_U64((uint64_t)trip.stream.state, STREAM_ENDS);
    trip_end(&trip);
}

/* ---- a stream that syncs ---- */

static void trip_begin_synced(struct trip *trip, off_t (*change)(int segment))
{
    trip_begin(trip, NULL);
    trip->stream.syncs = true;
    memset(&disk, 0, sizeof disk);
    disk.segment = trip->segment;
    disk.change = change;
}

TEST(a_batch_is_on_disk_before_it_is_sent_and_one_sync_is_for_many)
{
    struct trip trip;
    trip_begin_synced(&trip, NULL);
    trip_run(&trip);
    EXPECT_EQ_U64(trip.broker.batch_count, BATCHES);
    EXPECT_EQ_U64(trip.broker.early_count, 0);
    EXPECT_EQ_U64(disk.sync_count, 1);
    EXPECT_EQ_U64((uint64_t)trip.stream.synced, BATCHES * BATCH_SIZE);
    trip_end(&trip);
}

TEST(a_stream_does_not_sync_what_is_on_disk)
{
    struct trip trip;
    trip_begin_synced(&trip, NULL);
    disk.size = trip.stream.synced = BATCHES * BATCH_SIZE;
    trip_run(&trip);
    EXPECT_EQ_U64(trip.broker.batch_count, BATCHES);
    EXPECT_EQ_U64(disk.sync_count, 0);
    trip_end(&trip);
}

/* The next writer truncates the torn batch, and writes a whole one. */
static off_t tail_replace(int segment)
{
    (void)!ftruncate(segment, (BATCHES - 1) * BATCH_SIZE);
    batch_write(segment, BATCHES - 1);
    return (BATCHES - 1) * BATCH_SIZE;
}

TEST(a_batch_that_replaces_a_torn_one_is_synced_too)
{
    struct trip trip;
    uint8_t length[4];
    trip_begin_synced(&trip, tail_replace);
    store_be32(length, 3 * BATCH_SIZE);
    EXPECT(pwrite(trip.segment, length, sizeof length, (BATCHES - 1) * BATCH_SIZE + RECORD_BATCH_LENGTH) == 4);
    EXPECT(ftruncate(trip.segment, (BATCHES + 1) * BATCH_SIZE) == 0);
    trip_run(&trip);
    EXPECT_EQ_U64(trip.broker.batch_count, BATCHES);
    EXPECT_EQ_U64(trip.broker.early_count, 0);
    EXPECT_EQ_U64(disk.sync_count, 2);
    trip_end(&trip);
}

TEST(nothing_is_sent_that_cannot_be_synced)
{
    struct trip trip;
    trip_begin_synced(&trip, NULL);
    disk.is_failing = true;
    trip_run(&trip);
    EXPECT_EQ_U64(trip.broker.batch_count, 0);
    EXPECT_EQ_U64((uint64_t)trip.stream.state, STREAM_ENDS);
    trip_end(&trip);
}

/* ---- positions ---- */

TEST(a_line_of_positions_has_its_numbers_in_decimal)
{
    static const char expected[] = "{\"flights-0\": [9223372036854775807, 3, -9223372036854775808, -2147483648, \"\"], "
                                   "\"flights-0\": [0, 3, 10, -1, \"\"]}\n";
    enum { CRC_SIZE = 9 };
    struct trip trip;
    char line[CRC_SIZE + sizeof expected];
    trip_begin(&trip, NULL);
    struct partition_stream streams[] = {trip.stream, trip.stream};
    const struct ship_place places[] = {{.offset = INT64_MAX, .leader_epoch = INT32_MIN}, {.leader_epoch = -1}};
    streams[0].origin = INT64_MIN;
    streams[0].window[0] = (struct ship_batch){.end = places[0], .is_acked = true};
    streams[1].origin = 10;
    streams[1].window[0] = (struct ship_batch){.end = places[1], .is_acked = true};
    streams[0].end = streams[1].end = 1;
    EXPECT(positions_record(&trip.positions.recorder, streams, 2));
    EXPECT_EQ_U64((uint64_t)pread(trip.positions_file, line, sizeof line, 0), sizeof line - 1);
    EXPECT(memcmp(line + CRC_SIZE, expected, sizeof expected - 1) == 0);
    trip_end(&trip);
}

/* ---- hostile bytes ---- */

TEST(no_answer_acknowledges_a_batch_that_was_not_sent)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < TRIPS; i++) {
        struct trip trip;
        trip_begin(&trip, &randomness);
        trip.broker.honest_count = (uint32_t)random_below(&randomness, BATCHES);
        trip_run(&trip);
        EXPECT(trip.link.broker.is_broken ||
               trip.stream.recorded.offset >= (int64_t)trip.broker.honest_count * RECORDS);
        EXPECT(trip.stream.recorded.offset <= (int64_t)trip.broker.batch_count * RECORDS);
        EXPECT_EQ_U64((uint64_t)trip.stream.recorded.position, (uint64_t)trip.stream.batch_count * BATCH_SIZE);
        trip_end(&trip);
    }
}

static void segment_spoil(int segment, struct randomness *randomness)
{
    for (uint64_t i = 1 + random_below(randomness, 4); i > 0; i--) {
        uint8_t byte = (uint8_t)random_bits(randomness);
        off_t place = (off_t)(random_below(randomness, BATCHES) * BATCH_SIZE +
                              random_below(randomness, RECORD_BATCH_HEADER_SIZE));
        (void)!pwrite(segment, &byte, 1, place);
    }
    if (random_below(randomness, 2) == 0) {
        (void)!ftruncate(segment, (off_t)random_below(randomness, BATCHES * BATCH_SIZE));
    }
}

TEST(no_segment_leads_a_batch_loop_out_of_its_file)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int i = 0; i < TRIPS; i++) {
        struct trip trip;
        trip_begin(&trip, &randomness);
        segment_spoil(trip.segment, &randomness);
        trip.stream.keeps_producer = random_below(&randomness, 2) == 0;
        trip.stream.producer.id = 7;
        trip.stream.producer.epoch = 0;
        trip_run(&trip);
        EXPECT(trip.stream.recorded.position <= lseek(trip.segment, 0, SEEK_END));
        EXPECT(trip.stream.batch_count <= trip.broker.batch_count);
        EXPECT(trip.stream.recorded.offset >= 0 && trip.stream.state != STREAM_GOES);
        trip_end(&trip);
    }
}

RUN_ALL()
