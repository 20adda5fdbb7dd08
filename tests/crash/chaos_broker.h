/* SPDX-License-Identifier: Apache-2.0
 *
 * The broker of chaos.c: a process that takes Produce requests of version 3 from senders that die.
 *
 *   sender ── request ──> broker: a batch that continues its partition is delivered in the ledger
 *                                 a batch that it has already is the same, byte for byte, and is only answered
 *                                 a gap ends the run
 *          <── answer, or sometimes one of enum hostility
 *
 * Like a real broker, this one may still read the connection of a dead sender after the next one has connected. It
 * identifies a batch by its base sequence, so their order does not matter.
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
    unsigned seed; /* of the random choice of hostile answers */
};

/* Makes the address, which exists as long as a process has the listener. */
void broker_listen(struct broker_address *broker);

/* A new connection of a sender. */
int broker_connect(const struct broker_address *broker);

/* Handles requests until the ledger lets the broker exit. */
void broker_run(const struct broker_address *broker);

#endif
