/* SPDX-License-Identifier: Apache-2.0 */
#include "format/murmur2.h"

#include <string.h>

static const uint32_t seed = 0x9747b28c, factor = 0x5bd1e995;

static uint32_t mix_word(uint32_t hash, const uint8_t *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    word *= factor;
    word ^= word >> 24;
    word *= factor;
    return hash * factor ^ word;
}

static uint32_t mix_tail(uint32_t hash, const uint8_t *bytes, size_t size)
{
    if (size == 0) {
        return hash;
    }
    uint32_t word = 0;
    memcpy(&word, bytes, size);
    return (hash ^ word) * factor;
}

uint32_t murmur2(const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    const uint8_t *tail = next + size / 4 * 4;
    uint32_t hash = seed ^ (uint32_t)size;
    for (; next < tail; next += 4) {
        hash = mix_word(hash, next);
    }
    hash = mix_tail(hash, tail, size % 4);
    hash ^= hash >> 13;
    hash *= factor;
    return hash ^ hash >> 15;
}
