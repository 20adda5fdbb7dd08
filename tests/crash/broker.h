/* SPDX-License-Identifier: Apache-2.0
 *
 * The broker of a victim that pumps: the other end of its socket, which outlives it.
 *
 *   victim ── Produce requests, version 3, a batch each ──> socket: nobody takes them out, so the harness reads them
 *          <── answers in which all is well ───────────────         after the victim's death
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
    int client; /* the victim's end */
    bool is_transactional; /* its requests have BROKER_TRANSACTIONAL_ID */
};

void broker_open(struct broker *broker, bool is_transactional);
void broker_close(struct broker *broker);

/* Answers the request with this correlation id. */
void broker_answer(const struct broker *broker, uint32_t correlation);

/* Reads the batches that have arrived so far. The socket keeps them. */
void broker_read(const struct broker *broker, struct arrived *arrived);

#endif
