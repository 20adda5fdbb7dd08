/* SPDX-License-Identifier: Apache-2.0
 *
 * A sender of chaos.c that runs the pump (sender/pump.h), and does what a sink does around it.
 *
 *   connect ──> pump, until its time is over or something is not ordinary
 *                 │
 *                 ├──> requests without a response: while the link is healthy, wait for the responses
 *                 │      └──> otherwise requeue the batches of the requests, and close the connection
 *                 └──> batches that are not ordinary: send each of them alone
 *
 * So the batches of every unhealthy link are sent again.
 */
#ifndef CRASH_CHAOS_PUMP_H
#define CRASH_CHAOS_PUMP_H

#include "chaos_broker.h"
#include "core/accumulator.h"

/* Sends batches until `is_finished` in the ledger is 2 and no batch is left. */
void chaos_pump(struct accumulator *accumulator, const struct broker_address *broker);

#endif
