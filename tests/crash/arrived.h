/* SPDX-License-Identifier: Apache-2.0
 *
 * The batches that the sink of a tracee has received, in order of arrival. They outlive the tracee.
 *
 * Like a broker or a log, the sink stores each batch once. If the survivor sends a batch again, the sink recognizes it
 * by its base sequence. The bytes must be the same.
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

/* Adds a whole batch. */
void arrived_add(struct arrived *arrived, const uint8_t *bytes, uint32_t size);

/* Returns the batch with this base sequence, or NULL if none has arrived. */
const struct arrived_batch *arrived_find(const struct arrived *arrived, int32_t base_sequence);

#endif
