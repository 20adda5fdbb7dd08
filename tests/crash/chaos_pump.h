/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender of chaos.c that pumps, and the part of a sink around the pump (sender/pump.h).
 *
 *   connect ──> pump, until its time is over or something is not ordinary
 *                 │
 *                 ├──> requests without an answer: their answers are awaited, while the link is healthy
 *                 │      └──> otherwise their batches are requeued, and the connection is closed
 *                 └──> batches that are not ordinary: each is sent alone
 *
 * So every unhealthy link ends in the same way: its batches are sent again.
 */
#ifndef CRASH_CHAOS_PUMP_H
#define CRASH_CHAOS_PUMP_H

#include "chaos_broker.h"
#include "core/accumulator.h"

/* Sends batches of a sender until the ledger lets it end, and nothing is left. */
void chaos_pump(struct accumulator *accumulator, const struct broker_address *broker);

#endif
