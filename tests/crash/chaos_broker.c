/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos_broker.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>

#include "base/bytes.h"
#include "chaos.h"
#include "format/record_batch.h"

enum {
    TOPIC_SIZE = sizeof BROKER_TOPIC - 1,
    CLIENT_SIZE = sizeof BROKER_CLIENT - 1,
    CORRELATION_AT = 8,
    /* size, key, version, correlation id, client; transactional id, acks, timeout; topics, name */
    PARTITIONS_AT = (4 + 2 + 2 + 4 + 2 + CLIENT_SIZE) + (2 + 2 + 4) + (4 + 2 + TOPIC_SIZE),
    REQUEST_SIZE_MAX = PARTITIONS_AT + 4 + PARTITION_COUNT * (8 + CHAIN_SIZE_MAX),
    CONNECTION_COUNT = 16,
    RECEIVED_SIZE_MAX = 4 * REQUEST_SIZE_MAX,
    RECENT_COUNT = 64, /* batches of a partition whose checksums the broker remembers */
    SOCKET_BUFFER_SIZE = 8192, /* so small that requests are written in parts */
    LATE_MS = 30, /* longer than a pump waits for its last responses */
    WATCH_MS = 5,
    FAULT_ONE_IN = 64, /* one in this many requests gets a fault */
};

enum broker_fault {
    FAULT_CLOSE_BEFORE,    /* stores no batch of the request, and closes the connection */
    FAULT_CLOSE_AFTER,     /* stores the batches, and closes the connection without a response */
    FAULT_PARTIAL,         /* sends a part of the response, and closes the connection */
    FAULT_OTHER_REQUEST,   /* the response has the correlation id of another request */
    FAULT_OTHER_PARTITION, /* the response has a partition that is not in the request */
    FAULT_HUGE,            /* the response claims to have 2 GiB */
    FAULT_ERROR,           /* stores the batches, and responds with REQUEST_TIMED_OUT */
    FAULT_TWICE,
    FAULT_LATE,
    FAULT_THROTTLE,
    FAULT_COUNT
};

/* The response to a request. */
struct response {
    uint8_t bytes[4 + 4 + 4 + 2 + TOPIC_SIZE + 4 + PARTITION_COUNT * (4 + 2 + 8 + 8) + 4];
    size_t size;
};

enum { RESPONSE_PARTITION_AT = 4 + 4 + 4 + 2 + TOPIC_SIZE + 4, RESPONSE_ERROR_AT = RESPONSE_PARTITION_AT + 4,
       REQUEST_TIMED_OUT = 7, THROTTLE_MS = 3 };

/* The end of a partition, and its most recent batches. */
static struct partition_log {
    int32_t next_sequence;
    uint64_t next_offset;
    struct recent_batch {
        int32_t base_sequence;
        uint32_t record_count;
        uint32_t crc;
        uint64_t offset;
    } recent[RECENT_COUNT];
    uint32_t recent_count; /* including overwritten ones */
} logs[PARTITION_COUNT];

static struct connection {
    int socket; /* 0 if there is none */
    uint8_t received[RECEIVED_SIZE_MAX];
    size_t size;
} connections[CONNECTION_COUNT];

static unsigned chance;

/* ---- addresses ---- */

void broker_listen(struct broker_address *broker)
{
    broker->name = (struct sockaddr_un){.sun_family = AF_UNIX};
    broker->name_size = sizeof broker->name;
    broker->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* If no name is given, the kernel chooses an abstract one. */
    if (bind(broker->listener, (const struct sockaddr *)&broker->name, sizeof broker->name.sun_family) != 0 ||
        listen(broker->listener, SOMAXCONN) != 0 ||
        getsockname(broker->listener, (struct sockaddr *)&broker->name, &broker->name_size) != 0) {
        FAIL("listen: %s", strerror(errno));
    }
}

int broker_connect(const struct broker_address *broker)
{
    int buffer_size = SOCKET_BUFFER_SIZE;
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, (const struct sockaddr *)&broker->name, broker->name_size) != 0 ||
        setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &buffer_size, sizeof buffer_size) != 0) {
        FAIL("connect: %s", strerror(errno));
    }
    return connection;
}

/* ---- batches ---- */

static const struct recent_batch *recent_find(const struct partition_log *log, const struct record_batch_header *header)
{
    for (uint32_t i = 0; i < RECENT_COUNT && i < log->recent_count; i++) {
        if (log->recent[i].base_sequence == header->base_sequence) {
            return &log->recent[i];
        }
    }
    FAIL("a batch with sequence %d arrived again, but only the last %d batches are remembered", header->base_sequence,
         RECENT_COUNT);
}

static uint64_t batch_again(const struct partition_log *log, const struct record_batch_header *header)
{
    const struct recent_batch *recent = recent_find(log, header);
    if (recent->crc != header->crc || recent->record_count != (uint32_t)header->record_count) {
        FAIL("a batch with sequence %d arrived again with different bytes", header->base_sequence);
    }
    ledger->again_count++;
    return recent->offset;
}

/* Appends a batch, and returns its offset. */
static uint64_t batch_take(uint32_t partition, const uint8_t *bytes, uint32_t size)
{
    struct partition_log *log = &logs[partition];
    struct record_batch_header header;
    if (record_batch_header_read(bytes, size, &header) != STATUS_OK) {
        FAIL("a batch has no header");
    }
    if (header.base_sequence < log->next_sequence) {
        return batch_again(log, &header);
    }
    if (header.base_sequence > log->next_sequence) {
        FAIL("partition %u: a batch with sequence %d arrived, but %d is expected", partition, header.base_sequence,
             log->next_sequence);
    }
    ledger_deliver(bytes, size);
    log->recent[log->recent_count++ % RECENT_COUNT] = (struct recent_batch){.base_sequence = header.base_sequence,
                                                              .record_count = (uint32_t)header.record_count,
                                                              .crc = header.crc,
                                                              .offset = log->next_offset};
    log->next_sequence += header.record_count;
    log->next_offset += (uint32_t)header.record_count;
    return log->next_offset - (uint32_t)header.record_count;
}

/* ---- requests ---- */

static uint8_t *put_32(uint8_t *target, uint32_t value)
{
    store_be32(target, value);
    return target + 4;
}

static uint8_t *response_begin(struct response *response, uint32_t correlation, uint32_t partition_count)
{
    uint8_t *target = put_32(response->bytes + 4, correlation);
    target = put_32(target, 1);
    store_be16(target, TOPIC_SIZE);
    memcpy(target + 2, BROKER_TOPIC, TOPIC_SIZE);
    return put_32(target + 2 + TOPIC_SIZE, partition_count);
}

static uint8_t *response_add(uint8_t *target, uint32_t partition, uint64_t offset)
{
    target = put_32(target, partition);
    store_be16(target, 0);
    store_be64(target + 2, offset);
    store_be64(target + 10, UINT64_MAX);
    return target + 18;
}

/* Appends the batches of a request, and makes a response without an error. */
static void request_take(const uint8_t *request, struct response *response)
{
    const uint8_t *cursor = request + PARTITIONS_AT + 4;
    uint32_t count = load_be32(request + PARTITIONS_AT);
    uint8_t *target = response_begin(response, load_be32(request + CORRELATION_AT), count);
    if (count == 0 || count > PARTITION_COUNT) {
        FAIL("a request has %u partitions", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t partition = load_be32(cursor);
        uint32_t size = load_be32(cursor + 4);
        if (partition >= PARTITION_COUNT || size > CHAIN_SIZE_MAX) {
            FAIL("a request has %u bytes for partition %u", size, partition);
        }
        target = response_add(target, partition, batch_take(partition, cursor + 8, size));
        cursor += 8 + size;
    }
    target = put_32(target, 0);
    response->size = (size_t)(target - response->bytes);
    store_be32(response->bytes, (uint32_t)response->size - 4);
}

/* ---- responses ---- */

/* Returns false if the sender has closed the connection. */
static bool response_send(const struct connection *connection, const struct response *response, size_t size)
{
    return send(connection->socket, response->bytes, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static bool sends_fault(const struct connection *connection, struct response *response, enum broker_fault fault)
{
    switch (fault) {
    case FAULT_PARTIAL:
        (void)response_send(connection, response, 1 + (size_t)rand_r(&chance) % (response->size - 1));
        return false;
    case FAULT_OTHER_REQUEST:
        store_be32(response->bytes + 4, load_be32(response->bytes + 4) + 1 + (uint32_t)rand_r(&chance) % 9);
        break;
    case FAULT_OTHER_PARTITION:
        store_be32(response->bytes + RESPONSE_PARTITION_AT, PARTITION_COUNT + (uint32_t)rand_r(&chance));
        break;
    case FAULT_HUGE:
        store_be32(response->bytes, INT32_MAX);
        break;
    case FAULT_ERROR:
        store_be16(response->bytes + RESPONSE_ERROR_AT, REQUEST_TIMED_OUT);
        break;
    case FAULT_TWICE:
        (void)response_send(connection, response, response->size);
        break;
    case FAULT_LATE:
        usleep(LATE_MS * 1000);
        break;
    case FAULT_THROTTLE:
        store_be32(response->bytes + response->size - 4, THROTTLE_MS);
        break;
    default:
        return false;
    }
    return response_send(connection, response, response->size);
}

/* Returns false if the connection must be closed. */
static bool request_response(const struct connection *connection, const uint8_t *request)
{
    struct response response;
    bool is_faulty = rand_r(&chance) % FAULT_ONE_IN == 0;
    enum broker_fault fault = (enum broker_fault)(rand_r(&chance) % FAULT_COUNT);
    ledger->fault_count += is_faulty;
    if (is_faulty && fault == FAULT_CLOSE_BEFORE) {
        return false;
    }
    request_take(request, &response);
    return is_faulty ? sends_fault(connection, &response, fault)
                      : response_send(connection, &response, response.size);
}

/* ---- connections ---- */

static void connection_close(struct connection *connection)
{
    close(connection->socket);
    connection->socket = 0;
}

static void connections_accept(const struct broker_address *broker)
{
    int socket = accept4(broker->listener, NULL, NULL, SOCK_CLOEXEC);
    for (uint32_t i = 0; i < CONNECTION_COUNT && socket >= 0; i++) {
        if (connections[i].socket == 0) {
            connections[i].socket = socket;
            connections[i].size = 0;
            return;
        }
    }
    if (socket >= 0) {
        FAIL("more than %d senders are connected", CONNECTION_COUNT);
    }
}

/* Handles all complete requests in the buffer. Returns false if the connection must be closed. */
static bool requests_take(struct connection *connection)
{
    size_t begin = 0;
    bool is_open = true;
    while (is_open && connection->size - begin >= 4) {
        size_t size = 4 + (size_t)load_be32(connection->received + begin);
        if (size > REQUEST_SIZE_MAX) {
            FAIL("a request has %zu bytes", size);
        }
        if (size > connection->size - begin) {
            break;
        }
        is_open = request_response(connection, connection->received + begin);
        begin += size;
    }
    connection->size -= begin;
    memmove(connection->received, connection->received + begin, connection->size);
    return is_open;
}

static void connection_read(struct connection *connection)
{
    ssize_t size = recv(connection->socket, connection->received + connection->size,
                        RECEIVED_SIZE_MAX - connection->size, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (size <= 0) {
        connection_close(connection);
        return;
    }
    connection->size += (size_t)size;
    if (!requests_take(connection)) {
        connection_close(connection);
    }
}

void broker_run(const struct broker_address *broker)
{
    chance = broker->seed;
    while (ledger->is_finished != 3) {
        struct pollfd polled[CONNECTION_COUNT + 1];
        for (uint32_t i = 0; i < CONNECTION_COUNT; i++) { /* poll ignores a negative descriptor */
            polled[i] = (struct pollfd){.fd = connections[i].socket > 0 ? connections[i].socket : -1, .events = POLLIN};
        }
        polled[CONNECTION_COUNT] = (struct pollfd){.fd = broker->listener, .events = POLLIN};
        (void)poll(polled, CONNECTION_COUNT + 1, WATCH_MS);
        for (uint32_t i = 0; i < CONNECTION_COUNT; i++) {
            if (polled[i].fd > 0 && polled[i].revents != 0) {
                connection_read(&connections[i]);
            }
        }
        if (polled[CONNECTION_COUNT].revents != 0) {
            connections_accept(broker);
        }
    }
}
