/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch whose bytes contradict their checksum. Its slot becomes BAD: nothing is written there and nothing is sent,
 * until somebody has looked at it (recovery, `shmaccum recover --export`).
 */
#ifndef SENDER_QUARANTINE_H
#define SENDER_QUARANTINE_H

#include "producer/accumulator.h"

/* accumulator_quarantine of a batch that is in flight or a dead letter. */
void batch_quarantine(struct accumulator *accumulator, uint32_t slot_index);

#endif
