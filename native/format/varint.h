/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka's variable-length integers: zigzag, so that small negative numbers take few bytes, then groups of 7 bits,
 * lowest group first, bit 7 set in every byte but the last. An int32 ("varint") takes 1 to 5 bytes, an int64
 * ("varlong") 1 to 10. (org.apache.kafka.common.utils.ByteUtils)
 *
 * Writers require a large enough buffer. Readers check their input: if a number has more bytes or bits than its type,
 * or does not end before `end`, they return STATUS_CORRUPT and do not move the cursor. A number with extra zero groups
 * (80 00 for 0) is accepted, as in Kafka.
 */
#ifndef FORMAT_VARINT_H
#define FORMAT_VARINT_H

#include "base/check.h"
#include "base/status.h"

#include <stdint.h>

enum { VARINT_SIZE_MAX = 5, VARLONG_SIZE_MAX = 10 };

static inline uint32_t zigzag32(int32_t value)
{
    return (uint32_t)value << 1 ^ (uint32_t)(value >> 31);
}

static inline uint64_t zigzag64(int64_t value)
{
    return (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
}

static inline int32_t unzigzag32(uint32_t bits)
{
    return (int32_t)(bits >> 1 ^ (UINT32_C(0) - (bits & 1)));
}

static inline int64_t unzigzag64(uint64_t bits)
{
    return (int64_t)(bits >> 1 ^ (UINT64_C(0) - (bits & 1)));
}

/* Returns the number of groups of a number whose highest set bit is `top`: top / 7 + 1, with 9/64 for 1/7 (exact up to
 * 63). */
static inline unsigned varint_groups(unsigned top)
{
    return (top * 9 + 73) / 64;
}

static inline unsigned varint_size(int32_t value)
{
    return varint_groups(31u ^ (unsigned)__builtin_clz(zigzag32(value) | 1));
}

static inline unsigned varlong_size(int64_t value)
{
    return varint_groups(63u ^ (unsigned)__builtin_clzll(zigzag64(value) | 1));
}

static inline uint8_t *varint_write_groups(uint8_t *target, uint64_t bits)
{
    while (UNLIKELY(bits >= 0x80)) {
        *target++ = (uint8_t)(bits | 0x80);
        bits >>= 7;
    }
    *target++ = (uint8_t)bits;
    return target;
}

/* Both return the end of the written bytes. */
static inline uint8_t *varint_write(uint8_t *target, int32_t value)
{
    return varint_write_groups(target, zigzag32(value));
}

static inline uint8_t *varlong_write(uint8_t *target, int64_t value)
{
    return varint_write_groups(target, zigzag64(value));
}

/* Reads a number of at most `width` bits. */
MUST_USE static inline enum status varint_read_groups(const uint8_t **cursor, const uint8_t *end, unsigned width,
                                                      uint64_t *bits)
{
    const uint8_t *next = *cursor;
    uint64_t sum = 0;
    for (unsigned shift = 0; shift < width && next < end; shift += 7) {
        uint64_t group = *next & 0x7f;
        if (shift + 7 > width && group >> (width - shift) != 0) {
            return STATUS_CORRUPT;
        }
        sum |= group << shift;
        if (*next++ < 0x80) {
            *cursor = next;
            *bits = sum;
            return STATUS_OK;
        }
    }
    return STATUS_CORRUPT;
}

/* The same, but fast for numbers of one or two groups. */
MUST_USE static inline enum status varint_read_bits(const uint8_t **cursor, const uint8_t *end, unsigned width,
                                                    uint64_t *bits)
{
    if (LIKELY(*cursor < end && **cursor < 0x80)) {
        *bits = *(*cursor)++;
        return STATUS_OK;
    }
    if (LIKELY(end - *cursor >= 2 && (*cursor)[1] < 0x80)) {
        *bits = ((*cursor)[0] & 0x7f) | (uint64_t)(*cursor)[1] << 7;
        *cursor += 2;
        return STATUS_OK;
    }
    return varint_read_groups(cursor, end, width, bits);
}

MUST_USE static inline enum status varint_read(const uint8_t **cursor, const uint8_t *end, int32_t *value)
{
    uint64_t bits;
    RETURN_IF_FAILED(varint_read_bits(cursor, end, 32, &bits));
    *value = unzigzag32((uint32_t)bits);
    return STATUS_OK;
}

MUST_USE static inline enum status varlong_read(const uint8_t **cursor, const uint8_t *end, int64_t *value)
{
    uint64_t bits;
    RETURN_IF_FAILED(varint_read_bits(cursor, end, 64, &bits));
    *value = unzigzag64(bits);
    return STATUS_OK;
}

#endif
