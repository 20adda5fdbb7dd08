/* SPDX-License-Identifier: Apache-2.0 */
#include "broker.h"

#include "base/bytes.h"
#include "ledger.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TOPIC_SIZE = sizeof BROKER_TOPIC - 1,
    CLIENT_SIZE = sizeof BROKER_CLIENT - 1,
    /* size, key, version, correlation id, client; transactional id, acks, timeout; topics, name, partitions, index */
    BATCH_SIZE_AT = (4 + 2 + 2 + 4 + 2 + CLIENT_SIZE) + (2 + 2 + 4) + (4 + 2 + TOPIC_SIZE + 4 + 4),
    BATCH_AT = BATCH_SIZE_AT + 4,
    TRANSACTIONAL_ID_SIZE = sizeof BROKER_TRANSACTIONAL_ID - 1, /* if present, it shifts the fields after it */
    RESPONSE_SIZE = 4 + 4 + 4 + 2 + TOPIC_SIZE + 4 + 4 + 2 + 8 + 8 + 4,
    REQUESTS_SIZE_MAX = ARRIVED_MAX * (ARRIVED_SIZE_MAX + BATCH_AT),
};

void broker_open(struct broker *broker, bool is_transactional)
{
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
    *broker = (struct broker){.socket = sockets[0], .client = sockets[1], .is_transactional = is_transactional};
}

void broker_close(struct broker *broker)
{
    close(broker->socket);
    close(broker->client);
}

static uint8_t *put_32(uint8_t *target, uint32_t value)
{
    store_be32(target, value);
    return target + 4;
}

void broker_respond(const struct broker *broker, uint32_t correlation)
{
    uint8_t response[RESPONSE_SIZE];
    uint8_t *target = put_32(response, RESPONSE_SIZE - 4);
    target = put_32(target, correlation);
    target = put_32(target, 1);
    store_be16(target, TOPIC_SIZE);
    memcpy(target + 2, BROKER_TOPIC, TOPIC_SIZE);
    target = put_32(target + 2 + TOPIC_SIZE, 1);
    target = put_32(target, 0);
    store_be16(target, 0);
    store_be64(target + 2, 7);
    store_be64(target + 10, UINT64_MAX);
    (void)put_32(target + 18, 0);
    REQUIRE(write(broker->socket, response, sizeof response) == (ssize_t)sizeof response);
}

void broker_read(const struct broker *broker, struct arrived *arrived)
{
    static uint8_t requests[REQUESTS_SIZE_MAX];
    ssize_t received = recv(broker->socket, requests, sizeof requests, MSG_PEEK | MSG_DONTWAIT);
    REQUIRE(received >= 0 || errno == EAGAIN);
    size_t left = received < 0 ? 0 : (size_t)received;
    size_t id_size = broker->is_transactional ? TRANSACTIONAL_ID_SIZE : 0;
    REQUIRE(left < sizeof requests);
    arrived->count = 0;
    for (const uint8_t *request = requests; left >= BATCH_AT; ) {
        size_t size = 4 + (size_t)load_be32(request);
        if (size > left) {
            return;
        }
        uint32_t batch_size = load_be32(request + BATCH_SIZE_AT + id_size);
        REQUIRE(BATCH_AT + id_size + batch_size == size);
        arrived_add(arrived, request + BATCH_AT + id_size, batch_size);
        request += size;
        left -= size;
    }
}
