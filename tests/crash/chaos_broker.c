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
    RECEIVED_ROOM = 4 * REQUEST_SIZE_MAX,
    KEPT_COUNT = 64, /* checksums of the last batches of a partition */
    SOCKET_ROOM = 8192,
    LATE_MS = 30, /* longer than a pump waits for its last answers */
    WATCH_MS = 5,
    HOSTILE_ONE_IN = 64,
};

enum hostility {
    CLOSES_BEFORE,     /* no batch of the request is stored */
    CLOSES_AFTER,      /* the batches are stored, and no answer is sent */
    ANSWERS_HALF,      /* and closes the connection */
    ANSWERS_ANOTHER,   /* with the correlation id of another request */
    ANSWERS_ELSEWHERE, /* for a partition that is not in the request */
    ANSWERS_ENDLESSLY, /* a frame of 2 GiB */
    ANSWERS_ERROR,     /* the batch is stored, and the answer is REQUEST_TIMED_OUT */
    ANSWERS_TWICE,
    ANSWERS_LATE,
    THROTTLES,
    HOSTILITY_COUNT
};

/* The answer to a request. */
struct answer {
    uint8_t bytes[4 + 4 + 4 + 2 + TOPIC_SIZE + 4 + PARTITION_COUNT * (4 + 2 + 8 + 8) + 4];
    size_t size;
};

enum { ANSWER_PARTITION_AT = 4 + 4 + 4 + 2 + TOPIC_SIZE + 4, ANSWER_ERROR_AT = ANSWER_PARTITION_AT + 4,
       REQUEST_TIMED_OUT = 7, THROTTLE_MS = 3 };

/* The end of a partition, and its last batches. */
static struct partition_log {
    int32_t next_sequence;
    uint64_t next_offset;
    struct kept {
        int32_t base_sequence;
        uint32_t record_count;
        uint32_t crc;
        uint64_t offset;
    } kept[KEPT_COUNT];
    uint32_t kept_count; /* also those that were overwritten */
} logs[PARTITION_COUNT];

static struct connection {
    int socket; /* 0 if there is none */
    uint8_t received[RECEIVED_ROOM];
    size_t size;
} connections[CONNECTION_COUNT];

static unsigned chance;

/* ---- addresses ---- */

void broker_listen(struct broker_address *broker)
{
    broker->name = (struct sockaddr_un){.sun_family = AF_UNIX};
    broker->name_size = sizeof broker->name;
    broker->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* Without a name the kernel chooses one that no file has. */
    if (bind(broker->listener, (const struct sockaddr *)&broker->name, sizeof broker->name.sun_family) != 0 ||
        listen(broker->listener, SOMAXCONN) != 0 ||
        getsockname(broker->listener, (struct sockaddr *)&broker->name, &broker->name_size) != 0) {
        FAIL("listen: %s", strerror(errno));
    }
}

int broker_connect(const struct broker_address *broker)
{
    int room = SOCKET_ROOM; /* so small that requests are written in parts */
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, (const struct sockaddr *)&broker->name, broker->name_size) != 0 ||
        setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &room, sizeof room) != 0) {
        FAIL("connect: %s", strerror(errno));
    }
    return connection;
}

/* ---- batches ---- */

static const struct kept *kept_find(const struct partition_log *log, const struct record_batch_header *header)
{
    for (uint32_t i = 0; i < KEPT_COUNT && i < log->kept_count; i++) {
        if (log->kept[i].base_sequence == header->base_sequence) {
            return &log->kept[i];
        }
    }
    FAIL("a batch with the sequence %d came again, and only the last %d are known", header->base_sequence, KEPT_COUNT);
}

static uint64_t batch_again(const struct partition_log *log, const struct record_batch_header *header)
{
    const struct kept *kept = kept_find(log, header);
    if (kept->crc != header->crc || kept->record_count != (uint32_t)header->record_count) {
        FAIL("a batch with the sequence %d came again with other bytes", header->base_sequence);
    }
    ledger->again_count++;
    return kept->offset;
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
        FAIL("partition %u: a batch with the sequence %d came, and %d is next", partition, header.base_sequence,
             log->next_sequence);
    }
    ledger_deliver(bytes, size);
    log->kept[log->kept_count++ % KEPT_COUNT] = (struct kept){.base_sequence = header.base_sequence,
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

static uint8_t *answer_begin(struct answer *answer, uint32_t correlation, uint32_t partition_count)
{
    uint8_t *target = put_32(answer->bytes + 4, correlation);
    target = put_32(target, 1);
    store_be16(target, TOPIC_SIZE);
    memcpy(target + 2, BROKER_TOPIC, TOPIC_SIZE);
    return put_32(target + 2 + TOPIC_SIZE, partition_count);
}

static uint8_t *answer_add(uint8_t *target, uint32_t partition, uint64_t offset)
{
    target = put_32(target, partition);
    store_be16(target, 0);
    store_be64(target + 2, offset);
    store_be64(target + 10, UINT64_MAX);
    return target + 18;
}

/* Appends the batches of a request, and answers without an error. */
static void request_take(const uint8_t *request, struct answer *answer)
{
    const uint8_t *cursor = request + PARTITIONS_AT + 4;
    uint32_t count = load_be32(request + PARTITIONS_AT);
    uint8_t *target = answer_begin(answer, load_be32(request + CORRELATION_AT), count);
    if (count == 0 || count > PARTITION_COUNT) {
        FAIL("a request has %u partitions", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t partition = load_be32(cursor);
        uint32_t size = load_be32(cursor + 4);
        if (partition >= PARTITION_COUNT || size > CHAIN_SIZE_MAX) {
            FAIL("a request has %u bytes for partition %u", size, partition);
        }
        target = answer_add(target, partition, batch_take(partition, cursor + 8, size));
        cursor += 8 + size;
    }
    target = put_32(target, 0);
    answer->size = (size_t)(target - answer->bytes);
    store_be32(answer->bytes, (uint32_t)answer->size - 4);
}

/* ---- answers ---- */

/* Return false if the sender has closed the connection. */
static bool answer_send(const struct connection *connection, const struct answer *answer, size_t size)
{
    return send(connection->socket, answer->bytes, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static bool sends_hostile(const struct connection *connection, struct answer *answer, enum hostility hostility)
{
    switch (hostility) {
    case ANSWERS_HALF:
        (void)answer_send(connection, answer, 1 + (size_t)rand_r(&chance) % (answer->size - 1));
        return false;
    case ANSWERS_ANOTHER:
        store_be32(answer->bytes + 4, load_be32(answer->bytes + 4) + 1 + (uint32_t)rand_r(&chance) % 9);
        break;
    case ANSWERS_ELSEWHERE:
        store_be32(answer->bytes + ANSWER_PARTITION_AT, PARTITION_COUNT + (uint32_t)rand_r(&chance));
        break;
    case ANSWERS_ENDLESSLY:
        store_be32(answer->bytes, INT32_MAX);
        break;
    case ANSWERS_ERROR:
        store_be16(answer->bytes + ANSWER_ERROR_AT, REQUEST_TIMED_OUT);
        break;
    case ANSWERS_TWICE:
        (void)answer_send(connection, answer, answer->size);
        break;
    case ANSWERS_LATE:
        usleep(LATE_MS * 1000);
        break;
    case THROTTLES:
        store_be32(answer->bytes + answer->size - 4, THROTTLE_MS);
        break;
    default:
        return false;
    }
    return answer_send(connection, answer, answer->size);
}

/* Returns false if the connection is to be closed. */
static bool request_answer(const struct connection *connection, const uint8_t *request)
{
    struct answer answer;
    bool is_hostile = rand_r(&chance) % HOSTILE_ONE_IN == 0;
    enum hostility hostility = (enum hostility)(rand_r(&chance) % HOSTILITY_COUNT);
    ledger->hostile_count += is_hostile;
    if (is_hostile && hostility == CLOSES_BEFORE) {
        return false;
    }
    request_take(request, &answer);
    return is_hostile ? sends_hostile(connection, &answer, hostility)
                      : answer_send(connection, &answer, answer.size);
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

/* Handles the whole requests in the buffer. Returns false if the connection is to be closed. */
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
        is_open = request_answer(connection, connection->received + begin);
        begin += size;
    }
    connection->size -= begin;
    memmove(connection->received, connection->received + begin, connection->size);
    return is_open;
}

static void connection_read(struct connection *connection)
{
    ssize_t size = recv(connection->socket, connection->received + connection->size,
                        RECEIVED_ROOM - connection->size, MSG_DONTWAIT);
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
        for (uint32_t i = 0; i < CONNECTION_COUNT; i++) { /* the kernel ignores a negative number */
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
