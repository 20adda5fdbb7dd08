/* SPDX-License-Identifier: Apache-2.0
 *
 * A CRC register is a polynomial over GF(2) modulo P, written with the bits reversed: bit 31 is x^0, bit 0 is x^31.
 * Adding n bytes to the input multiplies the register by x^8n and adds the register of these bytes alone. Hence:
 *
 *   two parts     crc(A B) = crc(A) * x^(8 |B|) + crc(B); also with the inversions of a CRC at its beginning and end
 *   streams       the crc32 instruction has a latency of 3 cycles but starts every cycle. So input is read as three
 *                 interleaved streams, which are joined by the rule above. The third stream reads the remainder of the
 *                 division by three while the other two are being joined.
 *   multiplying   a carry-less product of two registers is a reversed 63-bit polynomial. The crc32 instruction on its 8
 *                 bytes, with an empty register, reduces it and multiplies it by x^33. So a factor x^8n is stored as
 *                 x^(8n - 33), and `advance` is one product and one crc32.
 */
#include "format/crc32c.h"

#include "format/crc32c_steps.h"

#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

enum {
    LINE_SIZE = 64, /* bytes of a cache line */
    AHEAD_SIZE = 1024,
};

static const uint32_t polynomial = 0x82f63b78;

/* table[k][b]: the checksum of byte b followed by k zero bytes. */
static uint32_t table[8][256];

/* nibble_factor[i][n]: the factor for n * 16^i bytes. */
static uint32_t nibble_factor[16][16];

uint32_t crc32c_byte_factor[BYTE_FACTOR_COUNT];

bool crc32c_wide_present;
bool crc32c_hardware_present;

static inline uint64_t load_word(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* ---- with tables: eight bytes at a time (slicing by 8) ---- */

static uint32_t table_extend_word(uint32_t crc, uint64_t word)
{
    word ^= crc;
    return table[7][word & 255] ^ table[6][word >> 8 & 255] ^ table[5][word >> 16 & 255] ^ table[4][word >> 24 & 255] ^
           table[3][word >> 32 & 255] ^ table[2][word >> 40 & 255] ^ table[1][word >> 48 & 255] ^ table[0][word >> 56];
}

uint32_t crc32c_extend_table(uint32_t crc, const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    crc = ~crc;
    for (; size >= 8; size -= 8, next += 8) {
        crc = table_extend_word(crc, load_word(next));
    }
    for (; size > 0; size--) {
        crc = crc >> 8 ^ table[0][(crc ^ *next++) & 255];
    }
    return ~crc;
}

static uint64_t table_product(uint32_t a, uint32_t b)
{
    uint64_t product = 0;
    for (unsigned bit = 0; bit < 32; bit++) {
        product ^= (b >> bit & 1) * ((uint64_t)a << bit);
    }
    return product;
}

static uint32_t table_advance(uint32_t crc, uint32_t factor)
{
    return table_extend_word(0, table_product(crc, factor));
}

/* ---- with instructions (crc32c_steps.h) ---- */

#if defined(__x86_64__)

static bool hardware_detect(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#elif defined(__aarch64__)

static bool hardware_detect(void)
{
    const unsigned long needed = HWCAP_CRC32 | HWCAP_PMULL;
    return (getauxval(AT_HWCAP) & needed) == needed;
}

#endif

HARDWARE static uint32_t hardware_advance(uint32_t crc, uint32_t factor)
{
    return step_word(0, carryless_product(crc, factor));
}

static inline void lines_fetch(const uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at < size; at += LINE_SIZE) {
        __builtin_prefetch(bytes + at);
    }
}

/* The processor's prefetcher needs some lines to start, and during crc32 instructions the processor requests few lines
 * at once. So lines are prefetched here (docs/decisions/0008). */
HARDWARE uint32_t crc32c_extend_hardware(uint32_t crc, const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    crc = ~crc;
    if (size >= AHEAD_SIZE + PASS_SIZE) {
        lines_fetch(next, AHEAD_SIZE);
        for (; size >= AHEAD_SIZE + PASS_SIZE; size -= PASS_SIZE, next += PASS_SIZE) {
            lines_fetch(next + AHEAD_SIZE, PASS_SIZE);
            crc = step_pass(crc, NULL, next);
        }
    }
    return ~step_bytes(crc, NULL, next, size);
}

/* ---- joining ---- */

static inline uint32_t advance(uint32_t crc, uint32_t factor)
{
    return crc32c_has_hardware() ? hardware_advance(crc, factor) : table_advance(crc, factor);
}

uint32_t crc32c_combine(uint32_t crc_first, uint32_t crc_second, uint64_t second_size)
{
    for (unsigned i = 0; second_size != 0; i++, second_size >>= 4) {
        if ((second_size & 15) != 0) {
            crc_first = advance(crc_first, nibble_factor[i][second_size & 15]);
        }
    }
    return crc_first ^ crc_second;
}

/* ---- tables ---- */

static uint32_t times_x(uint32_t value)
{
    return value >> 1 ^ ((value & 1) != 0 ? polynomial : 0);
}

static uint32_t divided_by_x(uint32_t value)
{
    return value >> 31 != 0 ? (value ^ polynomial) << 1 | 1 : value << 1;
}

static void fill_table(void)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = times_x(crc);
        }
        table[0][byte] = crc;
    }
    for (unsigned zeros = 1; zeros < 8; zeros++) {
        for (unsigned byte = 0; byte < 256; byte++) {
            uint32_t crc = table[zeros - 1][byte];
            table[zeros][byte] = crc >> 8 ^ table[0][crc & 255];
        }
    }
}

static void fill_byte_factors(void)
{
    uint32_t factor = UINT32_C(1) << 31;
    for (unsigned i = 0; i < 33; i++) {
        factor = divided_by_x(factor);
    }
    for (size_t size = 0; size < BYTE_FACTOR_COUNT; size++) {
        crc32c_byte_factor[size] = factor;
        factor = factor >> 8 ^ table[0][factor & 255];
    }
}

static void fill_nibble_factors(void)
{
    uint32_t factor = crc32c_byte_factor[1];
    for (unsigned i = 0; i < 16; i++) {
        nibble_factor[i][1] = factor;
        for (unsigned n = 2; n < 16; n++) {
            nibble_factor[i][n] = table_advance(nibble_factor[i][n - 1], factor);
        }
        factor = table_advance(nibble_factor[i][15], factor);
    }
}

__attribute__((constructor)) static void crc32c_prepare(void)
{
    fill_table();
    fill_byte_factors();
    fill_nibble_factors();
    crc32c_hardware_present = hardware_detect();
    crc32c_wide_present = crc32c_hardware_present && crc32c_wide_detect();
}
