/* SPDX-License-Identifier: Apache-2.0
 *
 * The broker of a victim that pumps: the other end of its socket, which outlives it.
 *
 *   victim ── Produce requests, version 3, a batch each ──> socket: nobody takes them out, so the harness reads them
 *          <── answers in which all is well ───────────────         after the victim's death
 *
 * A request has arrived when its last byte is in the socket. As a real broker does, this one keeps a batch once. It
 * knows a batch that the survivor sends again by the base sequence, and the bytes must be the same.
 */
#ifndef CRASH_BROKER_H
#define CRASH_BROKER_H

#include "ledger.h"

#define BROKER_TOPIC "crash"
#define BROKER_CLIENT "c"
#define BROKER_TRANSACTIONAL_ID "x"

enum { ARRIVED_MAX = 8, ARRIVED_SIZE_MAX = 2048 };

struct broker {
    int socket;
    int client; /* the victim's end */
    bool is_transactional; /* its requests have BROKER_TRANSACTIONAL_ID */
};

/* The batches that have arrived, in their order. */
struct arrived {
    uint32_t count;
    struct arrived_batch {
        uint32_t size;
        int32_t base_sequence;
        uint8_t bytes[ARRIVED_SIZE_MAX];
    } batches[ARRIVED_MAX];
};

void broker_open(struct broker *broker, bool is_transactional);
void broker_close(struct broker *broker);

/* Answers the request with this correlation id. */
void broker_answer(const struct broker *broker, uint32_t correlation);

/* Reads the batches that have arrived so far. The socket keeps them. */
void broker_read(const struct broker *broker, struct arrived *arrived);

/* NULL: no batch with this base sequence has arrived. */
const struct arrived_batch *arrived_find(const struct arrived *arrived, int32_t base_sequence);

#endif
