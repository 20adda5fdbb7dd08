/* SPDX-License-Identifier: Apache-2.0
 *
 * The broker of a tracee that pumps: the other end of its socket, which outlives it.
 *
 *   tracee ── Produce requests, version 3, a batch each ──> socket: the harness reads them after the tracee's death
 *          <── answers without an error ───────────────────
 *
 * A request has arrived when its last byte is in the socket.
 */
#ifndef CRASH_BROKER_H
#define CRASH_BROKER_H

#include "arrived.h"

#include <stdbool.h>

#define BROKER_TOPIC "crash"
#define BROKER_CLIENT "c"
#define BROKER_TRANSACTIONAL_ID "x"

struct broker {
    int socket;
    int client; /* the socket of the tracee */
    bool is_transactional; /* its requests have BROKER_TRANSACTIONAL_ID */
};

void broker_open(struct broker *broker, bool is_transactional);
void broker_close(struct broker *broker);

/* Send the answer to the request with this correlation id. */
void broker_answer(const struct broker *broker, uint32_t correlation);

/* Reads the batches that have arrived so far, and leaves them in the socket. */
void broker_read(const struct broker *broker, struct arrived *arrived);

#endif
