/* SPDX-License-Identifier: Apache-2.0
 *
 * The broker of a tracee that runs the pump. It is the other end of the tracee's socket, and outlives the tracee.
 *
 *   tracee ── Produce requests, version 3, one batch each ──> socket: the harness reads them after the tracee's death
 *          <── responses without an error ───────────────────
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
    bool is_transactional; /* the requests contain BROKER_TRANSACTIONAL_ID */
};

void broker_open(struct broker *broker, bool is_transactional);
void broker_close(struct broker *broker);

/* Sends the response to the request with this correlation id. */
void broker_respond(const struct broker *broker, uint32_t correlation);

/* Reads the batches that have arrived so far. They stay in the socket. */
void broker_read(const struct broker *broker, struct arrived *arrived);

#endif
