/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/portion.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "testing.h"

enum { FILE_SIZE = 3 << 20, LARGE = 100000 };

/* A file whose bytes depend on their positions, and a pair of non-blocking sockets. */
struct ends {
    int file;
    int ours;
    int theirs;
};

static uint8_t byte_at(size_t place)
{
    return (uint8_t)(place * 31 + place / 251);
}

static struct ends ends_open(void)
{
    int sockets[2] = {-1, -1};
    struct ends ends = {.file = memfd_create("records", 0)};
    uint8_t *bytes = malloc(FILE_SIZE);
    for (size_t i = 0; i < FILE_SIZE; i++) {
        bytes[i] = byte_at(i);
    }
    EXPECT_EQ_U64((uint64_t)write(ends.file, bytes, FILE_SIZE), FILE_SIZE);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) == 0);
    free(bytes);
    ends.ours = sockets[0];
    ends.theirs = sockets[1];
    return ends;
}

static void ends_close(const struct ends *ends)
{
    close(ends->file);
    close(ends->ours);
    close(ends->theirs);
}

static struct response_piece range_of(const struct ends *ends, off_t position, size_t size)
{
    return (struct response_piece){.file = ends->file, .position = position, .size = size};
}

TEST(a_small_range_goes_with_its_neighbours)
{
    struct ends ends = ends_open();
    uint8_t received[64];
    const struct response_piece pieces[] = {
        {.bytes = "head", .size = 4}, range_of(&ends, 100, 10), {.bytes = "", .size = 0}, {.bytes = "tail", .size = 4}};
    EXPECT(portion_send(ends.ours, pieces, 4, 0) == 18);
    EXPECT(recv(ends.theirs, received, sizeof received, 0) == 18);
    EXPECT(memcmp(received, "head", 4) == 0 && memcmp(received + 14, "tail", 4) == 0);
    EXPECT(received[4] == byte_at(100) && received[13] == byte_at(109));
    ends_close(&ends);
}

/* Sends all pieces through a socket that accepts little, and compares each byte. */
TEST(pieces_come_whole_and_in_order)
{
    struct ends ends = ends_open();
    const struct response_piece pieces[] = {
        {.bytes = "head", .size = 4}, range_of(&ends, 0, LARGE), {.bytes = "next", .size = 4}, range_of(&ends, 7, 50)};
    const size_t total = 4 + LARGE + 4 + 50;
    uint8_t *received = malloc(total);
    size_t sent = 0;
    size_t size = 0;
    int least = 1;
    EXPECT(setsockopt(ends.ours, SOL_SOCKET, SO_SNDBUF, &least, sizeof least) == 0);
    while (size < total) {
        ssize_t more = portion_send(ends.ours, pieces, 4, sent);
        EXPECT(more >= 0 || errno == EAGAIN);
        sent += more < 0 ? 0 : (size_t)more;
        ssize_t got = recv(ends.theirs, received + size, total - size, MSG_DONTWAIT);
        if (more < 0 && got < 0) {
            break;
        }
        size += got < 0 ? 0 : (size_t)got;
    }
    EXPECT_EQ_U64(size, total);
    for (size_t i = 0; size == total && i < LARGE; i++) {
        if (received[4 + i] != byte_at(i)) {
            EXPECT(received[4 + i] == byte_at(i));
            break;
        }
    }
    EXPECT(memcmp(received + 4 + LARGE, "next", 4) == 0);
    EXPECT(received[total - 1] == byte_at(56));
    free(received);
    ends_close(&ends);
}

TEST(a_call_sends_one_portion)
{
    struct ends ends = ends_open();
    int taken = memfd_create("taken", 0);
    const struct response_piece pieces[] = {range_of(&ends, 0, FILE_SIZE), range_of(&ends, 0, FILE_SIZE)};
    EXPECT(portion_send(taken, pieces, 2, 0) == PORTION_SIZE);
    close(taken);
    ends_close(&ends);
}

TEST(more_pieces_than_fit_into_one_call_of_the_kernel_are_sent)
{
    enum { COUNT = 1000 };
    struct ends ends = ends_open();
    struct response_piece pieces[COUNT];
    uint8_t received[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        pieces[i] = i % 2 == 0 ? (struct response_piece){.bytes = "x", .size = 1} : range_of(&ends, (off_t)i, 1);
    }
    EXPECT(portion_send(ends.ours, pieces, COUNT, 0) == COUNT);
    EXPECT(recv(ends.theirs, received, COUNT, MSG_WAITALL) == COUNT);
    EXPECT(received[COUNT - 2] == 'x' && received[COUNT - 1] == byte_at(COUNT - 1));
    ends_close(&ends);
}

TEST(a_file_that_ended_too_early_is_an_error)
{
    struct ends ends = ends_open();
    const struct response_piece small = range_of(&ends, FILE_SIZE - 9, 10);
    const struct response_piece large = range_of(&ends, FILE_SIZE, LARGE);
    EXPECT(portion_send(ends.ours, &small, 1, 0) == -1 && errno == ENODATA);
    EXPECT(portion_send(ends.ours, &large, 1, 0) == -1 && errno == ENODATA);
    ends_close(&ends);
}

RUN_ALL()
