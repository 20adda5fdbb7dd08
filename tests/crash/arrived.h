/* SPDX-License-Identifier: Apache-2.0
 *
 * The batches that reached the sink of a tracee, in their order. They outlive the tracee.
 *
 * Like a real broker or log, a sink stores a batch once. By its base sequence it recognizes a batch that the survivor
 * sends again, and the bytes must be the same.
 */
#ifndef CRASH_ARRIVED_H
#define CRASH_ARRIVED_H

#include <stdint.h>

enum { ARRIVED_MAX = 8, ARRIVED_SIZE_MAX = 2048 };

struct arrived {
    uint32_t count;
    struct arrived_batch {
        uint32_t size;
        int32_t base_sequence;
        uint8_t bytes[ARRIVED_SIZE_MAX];
    } batches[ARRIVED_MAX];
};

/* Adds a whole batch, as its producer made it. */
void arrived_add(struct arrived *arrived, const uint8_t *bytes, uint32_t size);

/* Returns NULL if no batch with this base sequence has arrived. */
const struct arrived_batch *arrived_find(const struct arrived *arrived, int32_t base_sequence);

#endif
