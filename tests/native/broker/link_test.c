/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces that are written to a socket that accepts few bytes at once, and the two ways to handle an error. The tests of
 * the pump and of the batch loop cover the rest of a link.
 */
#include "broker/link.h"

#include "base/bytes.h"
#include "format/answers.h"
#include "randomness.h"
#include "testing.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCHES = 5, BATCH_SIZE_MAX = 20000, TRIPS = 50, VERSION = 3, ROOM = 1 << 20, SMALL_BUFFER = 4096 };
enum { HEAD_SIZE = 4, ANSWER_ERROR = 4 + 4 + 2 + 1 + 4 + 4 /* its position after the size; the topic is one byte */ };

static const struct produce_topic topic = {.name = "t", .name_size = 1};

struct world {
    int sockets[2];
    struct broker_link link;
};

static void world_begin(struct world *world)
{
    int size = SMALL_BUFFER;
    const struct broker_link_limits limits = {.batch_count = BATCHES, .names_size = 1};
    *world = (struct world){.link = {.requests_max = 5, .form = {.client = "c", .client_size = 1, .version = VERSION}}};
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, world->sockets) == 0);
    EXPECT(setsockopt(world->sockets[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    world->link.socket = world->sockets[0];
    EXPECT(broker_link_make(&world->link, &limits));
}

static void world_end(struct world *world)
{
    broker_link_free(&world->link);
    close(world->sockets[0]);
    close(world->sockets[1]);
}

/* ---- pieces ---- */

/* Begins a request of random batches, each in memory, in a file, or in both. Returns the size of its bytes, which
 * `expected` receives in their order. */
static size_t request_begin(struct world *world, struct randomness *randomness, int file, uint8_t *memory,
                            uint8_t *expected)
{
    struct broker_request *request = broker_link_next_request(&world->link);
    size_t begins[BATCHES], sizes[BATCHES], at = 0, size = 0;
    for (int i = 0; i < BATCHES; i++) {
        size_t head = random_below(randomness, BATCH_SIZE_MAX), rest = random_below(randomness, BATCH_SIZE_MAX);
        broker_request_add(request, &topic, i, (uint32_t)(head + rest));
        pieces_add_memory(&request->pieces, memory + at, head);
        pieces_add_range(&request->pieces, file, (off_t)(at + head), rest);
        begins[i] = at;
        sizes[i] = head + rest;
        at += head + rest;
    }
    broker_link_begin(&world->link, true, 1);
    size_t own = 0;
    for (int i = 0; i < BATCHES; i++) {
        memcpy(expected + size, request->own + own, request->cuts[i] - own);
        size += request->cuts[i] - own;
        own = request->cuts[i];
        memcpy(expected + size, memory + begins[i], sizes[i]);
        size += sizes[i];
    }
    return size;
}

/* Reads portions of any size until the link has nothing left to write. */
static size_t bytes_receive(struct world *world, struct randomness *randomness, uint8_t *received)
{
    size_t size = 0;
    while (true) {
        broker_link_send(&world->link);
        ssize_t some = recv(world->sockets[1], received + size, 1 + random_below(randomness, 2 * SMALL_BUFFER), 0);
        size += some > 0 ? (size_t)some : 0;
        if (world->link.is_broken || (some < 0 && !world->link.is_sending)) {
            return size;
        }
    }
}

TEST(pieces_arrive_whole_and_in_order_where_a_socket_takes_few_bytes)
{
    static uint8_t memory[2 * BATCHES * BATCH_SIZE_MAX], expected[ROOM], received[ROOM];
    struct randomness randomness = randomness_seeded(__func__);
    int file = memfd_create("segment", 0);
    for (size_t i = 0; i < sizeof memory; i++) {
        memory[i] = (uint8_t)random_bits(&randomness);
    }
    EXPECT(pwrite(file, memory, sizeof memory, 0) == (ssize_t)sizeof memory);
    for (int i = 0; i < TRIPS; i++) {
        struct world world;
        world_begin(&world);
        size_t size = request_begin(&world, &randomness, file, memory, expected);
        EXPECT_EQ_U64(bytes_receive(&world, &randomness, received), size);
        EXPECT(memcmp(received, expected, size) == 0);
        EXPECT_EQ_U64(world.link.sent_size, size);
        EXPECT_EQ_U64(broker_link_request(&world.link, 0)->pieces.sent_size, size);
        world_end(&world);
    }
    close(file);
}

TEST_WITH(world, world_begin, a_file_that_is_shorter_than_its_range_breaks_the_link)
{
    static uint8_t received[ROOM];
    struct randomness randomness = randomness_seeded(__func__);
    int file = memfd_create("segment", 0);
    struct broker_request *request = broker_link_next_request(&world->link);
    EXPECT(ftruncate(file, 100) == 0);
    broker_request_add(request, &topic, 0, 200);
    pieces_add_range(&request->pieces, file, 0, 200);
    broker_link_begin(&world->link, true, 1);
    (void)bytes_receive(world, &randomness, received);
    EXPECT(world->link.is_broken);
    EXPECT_EQ_U64(world->link.sent_size, request->cuts[0] + 100);
    close(file);
}

/* ---- errors ---- */

/* Three requests of one batch, and three responses, of which the second has an error. */
static void answered_with_an_error(struct world *world)
{
    static const uint8_t batch[100];
    uint8_t frame[512];
    for (uint32_t i = 0; i < 3; i++) {
        struct broker_request *request = broker_link_next_request(&world->link);
        broker_request_add(request, &topic, 0, sizeof batch);
        pieces_add_memory(&request->pieces, batch, sizeof batch);
        broker_link_begin(&world->link, true, 1);
        broker_link_send(&world->link);
        size_t size = answer_write(&request->produce, i, frame + HEAD_SIZE);
        store_be32(frame, (uint32_t)size);
        frame[HEAD_SIZE + ANSWER_ERROR + 1] = i == 1 ? 6 : 0;
        EXPECT(send(world->sockets[1], frame, HEAD_SIZE + size, 0) == (ssize_t)(HEAD_SIZE + size));
    }
    broker_link_receive(&world->link, 2);
}

TEST_WITH(world, world_begin, a_link_that_takes_errors_continues_after_one)
{
    world->link.takes_errors = true;
    answered_with_an_error(world);
    EXPECT_EQ_U64(world->link.answered, 3);
    EXPECT_EQ_U64(world->link.received_size, 0);
    EXPECT(!broker_link_request(&world->link, 0)->is_refused);
    EXPECT(broker_link_request(&world->link, 1)->is_refused);
    EXPECT(!broker_link_request(&world->link, 2)->is_refused);
    EXPECT(world->link.has_refused && !world->link.is_strange && !broker_link_has_room(&world->link));
}

TEST_WITH(world, world_begin, a_link_that_accepts_no_errors_leaves_the_bytes_of_a_response_with_an_error)
{
    answered_with_an_error(world);
    EXPECT_EQ_U64(world->link.answered, 1);
    EXPECT_EQ_U64(load_be32(world->link.received + HEAD_SIZE), 1);
    EXPECT(world->link.is_strange && !world->link.has_refused);
}

RUN_ALL()
