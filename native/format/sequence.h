/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequence numbers of idempotent producers: 0 to 2^31 - 1, then 0 again, so they are compared modulo 2^31 and never
 * with `<`. (DefaultRecordBatch.incrementSequence and decrementSequence)
 */
#ifndef FORMAT_SEQUENCE_H
#define FORMAT_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Requires that `sequence` and `count` are not negative. */
static inline int32_t sequence_increment(int32_t sequence, int32_t count)
{
    return (int32_t)(((uint32_t)sequence + (uint32_t)count) & INT32_MAX);
}

static inline int32_t sequence_decrement(int32_t sequence, int32_t count)
{
    return (int32_t)(((uint32_t)sequence - (uint32_t)count) & INT32_MAX);
}

/* Returns true if `other` is less than 2^30 steps after `sequence`, and differs from it. */
static inline bool sequence_is_before(int32_t sequence, int32_t other)
{
    int32_t distance = sequence_decrement(other, sequence);
    return distance > 0 && distance < INT32_C(1) << 30;
}

#endif
