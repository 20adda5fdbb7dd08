/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C of a long input by carry-less products of whole vectors. The technique is Intel's ("Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ Instruction", 2009); crc32c.c defines register and factor.
 *
 * The input is folded into four vectors of 64 bytes, which have the same remainder as the input so far:
 *
 *   folded so far       | 64 bytes | 64 bytes | 64 bytes | 64 bytes |
 *                            | * x^(8 * 256), added to    |
 *                            v          v          v          v
 *   next pass           | 64 bytes | 64 bytes | 64 bytes | 64 bytes |
 *
 *   a block        16 bytes of a vector are F x^64 + L, where F is the first half and L the last. After n more bytes,
 *                  they are F x^(8n + 64) + L x^8n.
 *   a product      bit i of F stands for x^(63 - i), and bit j of a factor of 32 bits for x^(31 - j). Bit i + j of a
 *                  block stands for x^(127 - i - j), which is the product of both times x^33. So F is multiplied by
 *                  x^(8 (n + 8) - 33), the factor of n + 8 bytes, and L by x^(8n - 33), the factor of n bytes.
 *   the beginning  a register is added to the first 4 bytes of the input.
 *   the end        the CRC is that of the folded vectors, as 256 bytes, and the rest of the input.
 *
 * A cache line takes fewer instructions than with the crc32 instruction, so the processor requests more lines at once
 * (docs/decisions/0008).
 */
#include "format/crc32c.h"

#include "format/crc32c_steps.h"

#if defined(__x86_64__)

#define WIDE __attribute__((target("avx512f,vpclmulqdq," HARDWARE_FEATURES)))

enum { VECTOR_SIZE = 64, WIDE_PASS_SIZE = 4 * VECTOR_SIZE };

STATIC_CHECK((int)WIDE_PASS_SIZE <= (int)CRC32C_WIDE_SIZE_MIN);
STATIC_CHECK((int)WIDE_PASS_SIZE + 8 < (int)BYTE_FACTOR_COUNT);

struct folded {
    __m512i a, b, c, d;
};

WIDE static ALWAYS_INLINE struct folded pass_load(const uint8_t *bytes)
{
    return (struct folded){
        .a = _mm512_loadu_si512(bytes),
        .b = _mm512_loadu_si512(bytes + VECTOR_SIZE),
        .c = _mm512_loadu_si512(bytes + 2 * VECTOR_SIZE),
        .d = _mm512_loadu_si512(bytes + 3 * VECTOR_SIZE),
    };
}

WIDE static ALWAYS_INLINE __m512i vector_fold(__m512i folded, __m512i factors, __m512i next)
{
    enum { FIRST_HALVES = 0x00, LAST_HALVES = 0x11, SUM_OF_THREE = 0x96 };
    __m512i first = _mm512_clmulepi64_epi128(folded, factors, FIRST_HALVES);
    __m512i last = _mm512_clmulepi64_epi128(folded, factors, LAST_HALVES);
    return _mm512_ternarylogic_epi64(first, last, next, SUM_OF_THREE);
}

WIDE static ALWAYS_INLINE struct folded pass_fold(struct folded folded, __m512i factors, const uint8_t *bytes)
{
    struct folded next = pass_load(bytes);
    return (struct folded){
        .a = vector_fold(folded.a, factors, next.a),
        .b = vector_fold(folded.b, factors, next.b),
        .c = vector_fold(folded.c, factors, next.c),
        .d = vector_fold(folded.d, factors, next.d),
    };
}

/* Returns the register after the folded vectors. */
WIDE static ALWAYS_INLINE uint32_t folded_sum(struct folded folded)
{
    uint8_t bytes[WIDE_PASS_SIZE];
    memcpy(bytes, &folded, sizeof bytes);
    return step_bytes(0, NULL, bytes, sizeof bytes);
}

WIDE uint32_t crc32c_extend_wide(uint32_t crc, const void *bytes, size_t size)
{
    CHECK(size >= WIDE_PASS_SIZE);
    const uint8_t *next = bytes;
    const __m512i factors = _mm512_broadcast_i32x4(
        _mm_set_epi64x(crc32c_byte_factor[WIDE_PASS_SIZE], crc32c_byte_factor[WIDE_PASS_SIZE + 8]));
    struct folded folded = pass_load(next);
    folded.a = _mm512_xor_si512(folded.a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (size -= WIDE_PASS_SIZE, next += WIDE_PASS_SIZE; size >= WIDE_PASS_SIZE;
         size -= WIDE_PASS_SIZE, next += WIDE_PASS_SIZE) {
        folded = pass_fold(folded, factors, next);
    }
    return ~step_bytes(folded_sum(folded), NULL, next, size);
}

bool crc32c_wide_detect(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

#else

uint32_t crc32c_extend_wide(uint32_t crc, const void *bytes, size_t size)
{
    return crc32c_extend_hardware(crc, bytes, size);
}

bool crc32c_wide_detect(void)
{
    return false;
}

#endif
