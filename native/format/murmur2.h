/* SPDX-License-Identifier: Apache-2.0
 *
 * The hash by which Kafka chooses the partition of a record with a key: to_positive(murmur2(key)) % partition_count.
 * (org.apache.kafka.common.utils.Utils)
 */
#ifndef FORMAT_MURMUR2_H
#define FORMAT_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

uint32_t murmur2(const void *bytes, size_t size);

/* Clears the sign bit, like Utils.toPositive. This is not the absolute value. */
static inline int32_t to_positive(uint32_t hash)
{
    return (int32_t)(hash & INT32_MAX);
}

#endif
