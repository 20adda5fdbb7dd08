/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C with the machine's instructions, as steps on the register (crc32c.c defines register and stream), for code
 * that computes the CRC of bytes while it processes them. Requires crc32c_has_hardware(), and that the caller is
 * HARDWARE.
 *
 *   register = ~crc;  register = step_...(register, ...);  crc = ~register
 *
 * Every step on bytes may also copy them (`target` not NULL). Each byte is read once, so the CRC is that of the copied
 * bytes even if the source changes meanwhile. A CRC after the copy is slower: a load of 8 bytes that were stored in
 * parts waits for the cache.
 */
#ifndef FORMAT_CRC32C_STEPS_H
#define FORMAT_CRC32C_STEPS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"

enum {
    STREAM_WORDS_MAX = 32, /* words of 8 bytes per stream */
    PASS_SIZE = 3 * 8 * STREAM_WORDS_MAX,
    THREE_STREAMS_SIZE_MIN = 72, /* for fewer bytes, one stream is faster (measured) */
    BYTE_FACTOR_COUNT = PASS_SIZE + 1,
};

/* crc32c_byte_factor[n]: the factor for n bytes, up to the most that follow a stream or a pass. */
extern uint32_t crc32c_byte_factor[BYTE_FACTOR_COUNT];

/* ---- the steps of each kind of machine ---- */

#if defined(__x86_64__)

#include <immintrin.h>

/* In newer clang, the crc32 instruction is a feature of its own, separate from SSE 4.2. */
#if defined(__clang__) && __clang_major__ >= 14
#define HARDWARE_FEATURES "sse4.2,crc32,pclmul"
#else
#define HARDWARE_FEATURES "sse4.2,pclmul"
#endif
#define HARDWARE __attribute__((target(HARDWARE_FEATURES)))

HARDWARE static inline uint32_t step_byte(uint32_t crc, uint8_t byte)
{
    return _mm_crc32_u8(crc, byte);
}

HARDWARE static inline uint32_t step_half_word(uint32_t crc, uint32_t half_word)
{
    return _mm_crc32_u32(crc, half_word);
}

HARDWARE static inline uint32_t step_word(uint32_t crc, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(crc, word);
}

HARDWARE static inline uint64_t carryless_product(uint32_t a, uint32_t b)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

#elif defined(__aarch64__)

#include <arm_acle.h>
#include <arm_neon.h>

#define HARDWARE __attribute__((target("+crc+crypto")))

HARDWARE static inline uint32_t step_byte(uint32_t crc, uint8_t byte)
{
    return __crc32cb(crc, byte);
}

HARDWARE static inline uint32_t step_half_word(uint32_t crc, uint32_t half_word)
{
    return __crc32cw(crc, half_word);
}

HARDWARE static inline uint32_t step_word(uint32_t crc, uint64_t word)
{
    return __crc32cd(crc, word);
}

HARDWARE static inline uint64_t carryless_product(uint32_t a, uint32_t b)
{
    return vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64(a, b)), 0);
}

#else
#error "crc32c is implemented for x86-64 and arm64"
#endif

/* ---- reading once, and optionally copying ---- */

static inline uint64_t take_word(uint8_t *target, const uint8_t *bytes, size_t at)
{
    uint64_t word;
    memcpy(&word, bytes + at, sizeof word);
    if (target != NULL) {
        memcpy(target + at, &word, sizeof word);
    }
    return word;
}

static inline uint32_t take_half_word(uint8_t *target, const uint8_t *bytes, size_t at)
{
    uint32_t half_word;
    memcpy(&half_word, bytes + at, sizeof half_word);
    if (target != NULL) {
        memcpy(target + at, &half_word, sizeof half_word);
    }
    return half_word;
}

static inline uint8_t take_byte(uint8_t *target, const uint8_t *bytes, size_t at)
{
    uint8_t byte = bytes[at];
    if (target != NULL) {
        target[at] = byte;
    }
    return byte;
}

/* ---- streams ---- */

HARDWARE static ALWAYS_INLINE uint32_t step_one_stream(uint32_t crc, uint8_t *target, const uint8_t *bytes, size_t size)
{
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        crc = step_word(crc, take_word(target, bytes, at));
    }
    if ((size & 4) != 0) {
        crc = step_half_word(crc, take_half_word(target, bytes, at));
        at += 4;
    }
    for (; at < size; at++) {
        crc = step_byte(crc, take_byte(target, bytes, at));
    }
    return crc;
}

/* Streams one and two have stream_words words each, stream three has those and rest_size bytes more. */
HARDWARE static ALWAYS_INLINE uint32_t step_three_streams(uint32_t crc, uint8_t *target, const uint8_t *bytes,
                                                 size_t stream_words, size_t rest_size)
{
    size_t stream_size = 8 * stream_words;
    uint32_t crc_second = 0, crc_third = 0;
    for (size_t at = 0; at < stream_size; at += 8) {
        crc = step_word(crc, take_word(target, bytes, at));
        crc_second = step_word(crc_second, take_word(target, bytes, stream_size + at));
        crc_third = step_word(crc_third, take_word(target, bytes, 2 * stream_size + at));
    }
    uint64_t joined = carryless_product(crc, crc32c_byte_factor[2 * stream_size + rest_size]) ^
                      carryless_product(crc_second, crc32c_byte_factor[stream_size + rest_size]);
    uint8_t *rest_target = target == NULL ? NULL : target + 3 * stream_size;
    return step_word(0, joined) ^ step_one_stream(crc_third, rest_target, bytes + 3 * stream_size, rest_size);
}

/* Streams of a pass are short, so a long input is read nearly in the order of its addresses, and the processor
 * prefetches it. With streams of a kilobyte, bytes that are not in the cache took three times as long
 * (docs/decisions/0008). Each stream starts with an empty register, so none waits for the previous pass. */
HARDWARE static ALWAYS_INLINE uint32_t step_pass(uint32_t crc, uint8_t *target, const uint8_t *bytes)
{
    return step_word(0, carryless_product(crc, crc32c_byte_factor[PASS_SIZE])) ^
           step_three_streams(0, target, bytes, STREAM_WORDS_MAX, 0);
}

HARDWARE static ALWAYS_INLINE uint32_t step_bytes(uint32_t crc, uint8_t *target, const uint8_t *bytes, size_t size)
{
    for (; size >= PASS_SIZE; size -= PASS_SIZE, bytes += PASS_SIZE) {
        crc = step_pass(crc, target, bytes);
        target = target == NULL ? NULL : target + PASS_SIZE;
    }
    if (size >= THREE_STREAMS_SIZE_MIN) {
        return step_three_streams(crc, target, bytes, size / 24, size % 24);
    }
    return step_one_stream(crc, target, bytes, size);
}

#endif
