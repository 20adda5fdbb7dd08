/* SPDX-License-Identifier: Apache-2.0
 *
 * What is the minimum cost of sending batches from memory to a loopback socket?
 *
 *   socket_floor MODE MEBIBYTES
 *
 *   send       sendmsg alone
 *   sum        one checksum pass over a request, then sendmsg
 *   sum-zero   the same, and the batches of a request are zeroed after its response
 *   zerocopy   sendmsg with MSG_ZEROCOPY alone
 *
 * A second process discards the bytes, and responds to each request with a byte. A request has 64 batches of 16 KiB,
 * with 8 bytes before each. At most 5 requests are in flight. The first half of the memory is sent before the
 * measurement.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "format/crc32c.h"

enum {
    BATCH_SIZE = 16384,
    BATCHES = 64, /* in a request */
    HEAD_SIZE = 8,
    REQUEST_SIZE = BATCHES * (BATCH_SIZE + HEAD_SIZE),
    IN_FLIGHT_MAX = 5,
    SCRATCH_SIZE = 1 << 20,
    NS_PER_S = 1000000000,
};

struct sending {
    int socket;
    uint8_t *memory;
    uint32_t request_count;
    bool sums;
    bool zeroes;
    bool is_zerocopy;
    uint32_t copies_due; /* calls of sendmsg whose bytes the kernel still reads */
    uint32_t sum;
};

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "benchmark failed: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* ---- the other end ---- */

static _Noreturn void drain(int connection)
{
    static uint8_t scratch[SCRATCH_SIZE];
    size_t left = REQUEST_SIZE;
    for (;;) {
        ssize_t size = recv(connection, scratch, left < SCRATCH_SIZE ? left : SCRATCH_SIZE, 0);
        if (size <= 0) {
            _exit(0);
        }
        left -= (size_t)size;
        if (left == 0) {
            left = REQUEST_SIZE;
            if (send(connection, "!", 1, MSG_NOSIGNAL) != 1) {
                _exit(0);
            }
        }
    }
}

static int connected(pid_t *child)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0) {
        fail("listen");
    }
    *child = fork();
    if (*child == 0) {
        drain(accept(listener, NULL, NULL));
    }
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;
    if (connect(connection, (struct sockaddr *)&address, size) != 0 ||
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) {
        fail("connect");
    }
    close(listener);
    return connection;
}

/* ---- a request ---- */

static uint8_t *request_begin(const struct sending *sending, uint32_t number)
{
    return sending->memory + (size_t)number * BATCHES * BATCH_SIZE;
}

static void request_sum(struct sending *sending, uint32_t number)
{
    for (size_t i = 0; i < BATCHES; i++) {
        sending->sum += crc32c_extend(0, request_begin(sending, number) + i * BATCH_SIZE, BATCH_SIZE);
    }
}

static void copies_take(struct sending *sending)
{
    char control[256];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    while (sending->copies_due > 0 && recvmsg(sending->socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        struct sock_extended_err error;
        memcpy(&error, CMSG_DATA(head), sizeof error);
        sending->copies_due -= error.ee_data - error.ee_info + 1;
        message.msg_controllen = sizeof control;
    }
}

static struct iovec *pieces_advance(struct iovec *piece, size_t size)
{
    for (; size > 0 && size >= piece->iov_len; piece++) {
        size -= piece->iov_len;
    }
    if (size > 0) {
        piece->iov_base = (uint8_t *)piece->iov_base + size;
        piece->iov_len -= size;
    }
    return piece;
}

static void request_send(struct sending *sending, uint32_t number)
{
    static uint8_t head[HEAD_SIZE];
    struct iovec pieces[2 * BATCHES];
    struct iovec *next = pieces;
    for (size_t i = 0; i < BATCHES; i++) {
        pieces[2 * i] = (struct iovec){head, HEAD_SIZE};
        pieces[2 * i + 1] = (struct iovec){request_begin(sending, number) + i * BATCH_SIZE, BATCH_SIZE};
    }
    while (next < pieces + 2 * BATCHES) {
        struct msghdr message = {.msg_iov = next, .msg_iovlen = (size_t)(pieces + 2 * BATCHES - next)};
        ssize_t size = sendmsg(sending->socket, &message, sending->is_zerocopy ? MSG_ZEROCOPY : 0);
        if (size < 0 && errno != ENOBUFS) {
            fail("sendmsg");
        }
        sending->copies_due += sending->is_zerocopy && size > 0;
        copies_take(sending);
        next = pieces_advance(next, size < 0 ? 0 : (size_t)size);
    }
}

static void request_end(const struct sending *sending, uint32_t number)
{
    char answer;
    if (recv(sending->socket, &answer, 1, MSG_WAITALL) != 1) {
        fail("recv");
    }
    for (size_t i = 0; sending->zeroes && i < BATCHES; i++) {
        memset(request_begin(sending, number) + i * BATCH_SIZE, 0, BATCH_SIZE);
    }
}

static void requests_run(struct sending *sending, uint32_t first, uint32_t end)
{
    for (uint32_t number = first; number < end + IN_FLIGHT_MAX; number++) {
        if (number < end) {
            if (sending->sums) {
                request_sum(sending, number);
            }
            request_send(sending, number);
        }
        if (number >= first + IN_FLIGHT_MAX) {
            request_end(sending, number - IN_FLIGHT_MAX);
        }
    }
}

/* ---- the measurement ---- */

static void measure(struct sending *sending)
{
    uint32_t half = sending->request_count / 2;
    requests_run(sending, 0, half);
    uint64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t wall_ns = clock_ns(CLOCK_MONOTONIC);
    requests_run(sending, half, sending->request_count);
    double wall_s = (double)(clock_ns(CLOCK_MONOTONIC) - wall_ns) / NS_PER_S;
    double cpu_s = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns) / NS_PER_S;
    double size = (double)(sending->request_count - half) * BATCHES * BATCH_SIZE;
    printf("{\"bytes_per_s\": %.0f, \"cpu_s_per_byte\": %.6g, \"sum\": %u}\n", size / wall_s, cpu_s / size,
           sending->sum);
}

static bool mode_take(struct sending *sending, const char *mode)
{
    sending->sums = strncmp(mode, "sum", 3) == 0;
    sending->zeroes = strcmp(mode, "sum-zero") == 0;
    sending->is_zerocopy = strcmp(mode, "zerocopy") == 0;
    return sending->sums || sending->is_zerocopy || strcmp(mode, "send") == 0;
}

int main(int count, char **words)
{
    struct sending sending = {0};
    pid_t child;
    int one = 1;
    if (count != 3 || !mode_take(&sending, words[1])) {
        fprintf(stderr, "socket_floor send|sum|sum-zero|zerocopy MEBIBYTES\n");
        return 2;
    }
    size_t size = (size_t)strtoul(words[2], NULL, 10) << 20;
    sending.request_count = (uint32_t)(size / (BATCHES * BATCH_SIZE));
    sending.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (sending.memory == MAP_FAILED) {
        fail("mmap");
    }
    memset(sending.memory, 'v', size);
    sending.socket = connected(&child);
    if (sending.is_zerocopy && setsockopt(sending.socket, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0) {
        fail("SO_ZEROCOPY");
    }
    measure(&sending);
    close(sending.socket);
    waitpid(child, NULL, 0);
    return 0;
}
