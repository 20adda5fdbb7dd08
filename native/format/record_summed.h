/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a record and computes its CRC in one pass. The result equals that of record_write followed by crc32c_extend,
 * which a test checks. crc32c_steps.h explains why this is faster.
 */
#ifndef FORMAT_RECORD_SUMMED_H
#define FORMAT_RECORD_SUMMED_H

#include "format/record.h"

/* The body of record_write_summed. The caller has computed the value of the length field. */
uint32_t record_write_summed_body(uint8_t *target, const struct record *record, uint32_t body_size,
                                  int32_t offset_delta, int64_t timestamp_delta, uint32_t crc);

/* Writes the bytes of record_write. Returns the CRC of the previous bytes, which is `crc`, and these bytes. */
static inline uint32_t record_write_summed(uint8_t *target, const struct record *record,
                                           const struct record_size *size, int32_t offset_delta,
                                           int64_t timestamp_delta, uint32_t crc)
{
    uint32_t body_size = record_body_size(size, offset_delta, timestamp_delta);
    return record_write_summed_body(target, record, body_size, offset_delta, timestamp_delta, crc);
}

#endif
