/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record_summed.h"

#include "format/crc32c.h"
#include "format/crc32c_steps.h"

struct summed {
    uint8_t *next;
    uint32_t crc; /* the register */
};

HARDWARE static inline void summed_byte(struct summed *target, uint8_t byte)
{
    *target->next++ = byte;
    target->crc = step_byte(target->crc, byte);
}

HARDWARE static inline void summed_varint_groups(struct summed *target, uint64_t bits)
{
    while (UNLIKELY(bits >= 0x80)) {
        summed_byte(target, (uint8_t)(bits | 0x80));
        bits >>= 7;
    }
    summed_byte(target, (uint8_t)bits);
}

HARDWARE static inline void summed_varint(struct summed *target, int32_t value)
{
    summed_varint_groups(target, zigzag32(value));
}

HARDWARE static inline void summed_nullable(struct summed *target, const void *bytes, int32_t size)
{
    summed_varint(target, size);
    if (size > 0) {
        target->crc = step_bytes(target->crc, target->next, bytes, (size_t)size);
        target->next += size;
    }
}

/* Out of line, so that a record without headers saves no registers for them; by value, so that it keeps `summed` in
 * registers. Answers the register. */
HARDWARE static __attribute__((noinline)) uint32_t summed_headers(struct summed target, const struct record *record)
{
    for (int32_t i = 0; i < record->header_count; i++) {
        const struct record_header *header = &record->headers[i];
        summed_nullable(&target, header->key, header->key_size);
        summed_nullable(&target, header->value, header->value_size);
    }
    return target.crc;
}

HARDWARE static uint32_t write_summed_hardware(uint8_t *target, const struct record *record, uint32_t body_size,
                                               int32_t offset_delta, int64_t timestamp_delta, uint32_t crc)
{
    struct summed summed = {.next = target, .crc = ~crc};
    summed_varint(&summed, (int32_t)body_size);
    summed_byte(&summed, 0);
    summed_varint_groups(&summed, zigzag64(timestamp_delta));
    summed_varint(&summed, offset_delta);
    summed_nullable(&summed, record->key, record->key_size);
    summed_nullable(&summed, record->value, record->value_size);
    summed_varint(&summed, record->header_count);
    return ~(record->header_count > 0 ? summed_headers(summed, record) : summed.crc);
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
