/* SPDX-License-Identifier: Apache-2.0
 *
 * A record written and summed in one pass. The bytes are those of record_write followed by crc32c_extend over them,
 * without the wait in between (crc32c_steps.h explains it). A test compares the two.
 */
#ifndef FORMAT_RECORD_SUMMED_H
#define FORMAT_RECORD_SUMMED_H

#include "format/record.h"

/* The body of record_write_summed. The caller has computed the value of the length field. */
uint32_t record_write_summed_body(uint8_t *target, const struct record *record, uint32_t body_size,
                                  int32_t offset_delta, int64_t timestamp_delta, uint32_t crc);

/* Writes the bytes of record_write. Returns the CRC of the bytes of `crc` followed by them. */
static inline uint32_t record_write_summed(uint8_t *target, const struct record *record,
                                           const struct record_size *size, int32_t offset_delta,
                                           int64_t timestamp_delta, uint32_t crc)
{
    uint32_t body_size = record_body_size(size, offset_delta, timestamp_delta);
    return record_write_summed_body(target, record, body_size, offset_delta, timestamp_delta, crc);
}

#endif
