/* SPDX-License-Identifier: Apache-2.0
 *
 * The broker of chaos.c: a process that receives Produce requests of version 3. Their senders may be killed.
 *
 *   sender ── request ──> broker: the next batch of its partition    is marked as delivered in the ledger
 *                                 a batch that it has already        must have the same bytes, and is not stored again
 *                                 a batch after a gap                ends the run with an error
 *          <── response, or sometimes a fault (enum broker_fault)
 *
 * Like a real broker, this one may still read the connection of a dead sender after the next sender has connected. The
 * order of these reads does not matter, because the broker identifies a batch by its base sequence.
 */
#ifndef CRASH_CHAOS_BROKER_H
#define CRASH_CHAOS_BROKER_H

#include <sys/socket.h>
#include <sys/un.h>

#define BROKER_TOPIC "chaos"
#define BROKER_CLIENT "c"

struct broker_address {
    int listener;
    struct sockaddr_un name;
    socklen_t name_size;
    unsigned seed; /* of the random choice of faults */
};

/* Creates the address. It exists as long as a process has the listener open. */
void broker_listen(struct broker_address *broker);

/* Returns a new connection for a sender. */
int broker_connect(const struct broker_address *broker);

/* Handles requests until `is_finished` in the ledger is 3. */
void broker_run(const struct broker_address *broker);

#endif
