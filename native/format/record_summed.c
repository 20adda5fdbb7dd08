/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record_summed.h"

#include "format/crc32c.h"
#include "format/crc32c_steps.h"

/* Three streams of a constant size need no loop and no division. For LONG_SIZE_MIN bytes or more, longer streams are
 * faster (measured). */
enum { STREAM_SIZE = 32, STREAMS_SIZE = 3 * STREAM_SIZE, LONG_SIZE_MIN = STREAMS_SIZE + STREAMS_SIZE / 2 };

/* The position of the next byte, and the CRC register. Passed by value, so that both stay in machine registers. */
struct summed {
    uint8_t *next;
    uint32_t crc;
};

HARDWARE static ALWAYS_INLINE struct summed summed_byte(struct summed target, uint8_t byte)
{
    *target.next = byte;
    return (struct summed){.next = target.next + 1, .crc = step_byte(target.crc, byte)};
}

HARDWARE static ALWAYS_INLINE struct summed summed_groups(struct summed target, uint64_t bits)
{
    while (UNLIKELY(bits >= 0x80)) {
        target = summed_byte(target, (uint8_t)(bits | 0x80));
        bits >>= 7;
    }
    return summed_byte(target, (uint8_t)bits);
}

/* ---- bytes ---- */

/* The CRC register has 64 bits with an upper half of zeros, so that no instruction has to clear it. */
HARDWARE static ALWAYS_INLINE uint64_t step_wide(uint64_t crc, uint64_t word)
{
#if defined(__x86_64__)
    return _mm_crc32_u64(crc, word);
#else
    return step_word((uint32_t)crc, word);
#endif
}

HARDWARE static ALWAYS_INLINE struct summed summed_streams(struct summed target, const uint8_t *bytes)
{
    uint64_t crc = target.crc, crc_second = 0, crc_third = 0;
#pragma GCC unroll 4
    for (size_t at = 0; at < STREAM_SIZE; at += 8) {
        crc = step_wide(crc, take_word(target.next, bytes, at));
        crc_second = step_wide(crc_second, take_word(target.next, bytes, STREAM_SIZE + at));
        crc_third = step_wide(crc_third, take_word(target.next, bytes, 2 * STREAM_SIZE + at));
    }
    uint64_t joined = carryless_product((uint32_t)crc, crc32c_byte_factor[2 * STREAM_SIZE]) ^
                      carryless_product((uint32_t)crc_second, crc32c_byte_factor[STREAM_SIZE]);
    target.crc = step_word(0, joined) ^ (uint32_t)crc_third;
    target.next += STREAMS_SIZE;
    return target;
}

HARDWARE static __attribute__((noinline)) struct summed summed_long(struct summed target, const uint8_t *bytes,
                                                                    size_t size)
{
    target.crc = step_bytes(target.crc, target.next, bytes, size);
    target.next += size;
    return target;
}

HARDWARE static ALWAYS_INLINE struct summed summed_bytes(struct summed target, const uint8_t *bytes, size_t size)
{
    if (UNLIKELY(size >= LONG_SIZE_MIN)) {
        return summed_long(target, bytes, size);
    }
    if (size >= STREAMS_SIZE) {
        target = summed_streams(target, bytes);
        size -= STREAMS_SIZE;
        bytes += STREAMS_SIZE;
    }
    target.crc = step_one_stream(target.crc, target.next, bytes, size);
    target.next += size;
    return target;
}

/* ---- fields ---- */

/* The next two functions are not inlined, so that a record without such a part does not save registers for it. */
HARDWARE static __attribute__((noinline)) struct summed summed_nullable(struct summed target, const void *bytes,
                                                                        int32_t size)
{
    target = summed_groups(target, zigzag32(size));
    return size > 0 ? summed_bytes(target, bytes, (size_t)size) : target;
}

HARDWARE static __attribute__((noinline)) uint32_t summed_headers(struct summed target, const struct record *record)
{
    for (int32_t i = 0; i < record->header_count; i++) {
        const struct record_header *header = &record->headers[i];
        target = summed_nullable(target, header->key, header->key_size);
        target = summed_nullable(target, header->value, header->value_size);
    }
    return target.crc;
}

HARDWARE static uint32_t write_summed_hardware(uint8_t *target, const struct record *record, uint32_t body_size,
                                               int32_t offset_delta, int64_t timestamp_delta, uint32_t crc)
{
    struct summed summed = {.next = target, .crc = ~crc};
    summed = summed_groups(summed, zigzag32((int32_t)body_size));
    summed = summed_byte(summed, 0);
    summed = summed_groups(summed, zigzag64(timestamp_delta));
    summed = summed_groups(summed, zigzag32(offset_delta));
    if (record->key_size < 0) {
        summed = summed_byte(summed, (uint8_t)zigzag32(-1));
    } else {
        summed = summed_nullable(summed, record->key, record->key_size);
    }
    summed = summed_groups(summed, zigzag32(record->value_size));
    if (LIKELY(record->value_size > 0)) {
        summed = summed_bytes(summed, record->value, (size_t)record->value_size);
    }
    summed = summed_groups(summed, zigzag32(record->header_count));
    return ~(UNLIKELY(record->header_count > 0) ? summed_headers(summed, record) : summed.crc);
}

uint32_t record_write_summed_body(uint8_t *target, const struct record *record, uint32_t body_size,
                                  int32_t offset_delta, int64_t timestamp_delta, uint32_t crc)
{
    if (LIKELY(crc32c_has_hardware())) {
        return write_summed_hardware(target, record, body_size, offset_delta, timestamp_delta, crc);
    }
    const struct record_size size = {
        .fixed = body_size - varlong_size(timestamp_delta) - varint_size(offset_delta)};
    uint8_t *end = record_write(target, record, &size, offset_delta, timestamp_delta);
    return crc32c_extend_table(crc, target, (size_t)(end - target));
}
