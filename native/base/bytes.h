/* SPDX-License-Identifier: Apache-2.0
 *
 * Big-endian integers at unaligned addresses, as in Kafka's formats, and rounding of sizes.
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DEFINE_BIG_ENDIAN(bits)                                                      \
    static inline void store_be##bits(uint8_t *target, uint##bits##_t value)         \
    {                                                                                \
        uint##bits##_t swapped = __builtin_bswap##bits(value);                       \
        memcpy(target, &swapped, sizeof swapped);                                    \
    }                                                                                \
    static inline uint##bits##_t load_be##bits(const uint8_t *source)                \
    {                                                                                \
        uint##bits##_t swapped;                                                      \
        memcpy(&swapped, source, sizeof swapped);                                    \
        return __builtin_bswap##bits(swapped);                                       \
    }

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the arena's layout is defined for little-endian machines (x86-64, arm64)"
#endif

DEFINE_BIG_ENDIAN(16)
DEFINE_BIG_ENDIAN(32)
DEFINE_BIG_ENDIAN(64)

/* Requires that `unit` is a power of two and that value + unit is below 2^64. */
static inline uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

static inline uint64_t divide_rounded_up(uint64_t value, uint64_t divisor)
{
    return value / divisor + (value % divisor != 0);
}

#endif
