/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka's record batch, magic 2: a header of 61 bytes, then the records. Every integer is big-endian.
 *
 *   position  size  field                    written by
 *          0     8  base offset              0 until the log (or broker) assigns the batch its place
 *          8     4  batch length             drain: the size of the batch - 12: the bytes after this field
 *         12     4  partition leader epoch   -1; the broker's
 *         16     1  magic                    2
 *         17     4  crc                      drain: CRC-32C of everything from `attributes` to the end of the batch
 *    . . . . . . . . . . . . . . . . . . . . the crc covers what is below . . . . . . . . . . . . . . . . . . . . .
 *         21     2  attributes               0: not compressed, create time; bit 4 transactional, bit 5 control
 *         23     4  last offset delta        record count - 1
 *         27     8  base timestamp           timestamp of the first record; the others are deltas to it
 *         35     8  max timestamp            the largest timestamp
 *         43     8  producer id              drain: -1 without idempotence
 *         51     2  producer epoch           drain: -1 without idempotence
 *         53     4  base sequence            drain: -1 without idempotence
 *         57     4  record count
 *         61        records
 *
 * The fields before `attributes` may be changed in a finished batch, because the crc does not cover them.
 */
#ifndef FORMAT_RECORD_BATCH_H
#define FORMAT_RECORD_BATCH_H

#include "base/check.h"
#include "base/status.h"
#include "format/scatter.h"

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    RECORD_BATCH_BASE_OFFSET = 0,
    RECORD_BATCH_LENGTH = RECORD_BATCH_BASE_OFFSET + 8,
    RECORD_BATCH_LEADER_EPOCH = RECORD_BATCH_LENGTH + 4,
    RECORD_BATCH_MAGIC = RECORD_BATCH_LEADER_EPOCH + 4,
    RECORD_BATCH_CRC = RECORD_BATCH_MAGIC + 1,
    RECORD_BATCH_ATTRIBUTES = RECORD_BATCH_CRC + 4,
    RECORD_BATCH_LAST_OFFSET_DELTA = RECORD_BATCH_ATTRIBUTES + 2,
    RECORD_BATCH_BASE_TIMESTAMP = RECORD_BATCH_LAST_OFFSET_DELTA + 4,
    RECORD_BATCH_MAX_TIMESTAMP = RECORD_BATCH_BASE_TIMESTAMP + 8,
    RECORD_BATCH_PRODUCER_ID = RECORD_BATCH_MAX_TIMESTAMP + 8,
    RECORD_BATCH_PRODUCER_EPOCH = RECORD_BATCH_PRODUCER_ID + 8,
    RECORD_BATCH_BASE_SEQUENCE = RECORD_BATCH_PRODUCER_EPOCH + 2,
    RECORD_BATCH_RECORD_COUNT = RECORD_BATCH_BASE_SEQUENCE + 4,
    RECORD_BATCH_HEADER_SIZE = RECORD_BATCH_RECORD_COUNT + 4,

    RECORD_BATCH_UNCOUNTED_SIZE = RECORD_BATCH_LEADER_EPOCH, /* bytes that the batch length does not include */
    RECORD_BATCH_MAGIC_VALUE = 2,
};

STATIC_CHECK(RECORD_BATCH_HEADER_SIZE == 61);
STATIC_CHECK(RECORD_BATCH_ATTRIBUTES == 21);
STATIC_CHECK(RECORD_BATCH_UNCOUNTED_SIZE == 12);

enum record_batch_attributes {
    RECORD_BATCH_COMPRESSION_MASK = 7,
    RECORD_BATCH_LOG_APPEND_TIME = 1 << 3,
    RECORD_BATCH_TRANSACTIONAL = 1 << 4,
    RECORD_BATCH_CONTROL = 1 << 5,
};

struct record_batch_header {
    int64_t base_offset;
    int32_t batch_length;
    int32_t partition_leader_epoch;
    int8_t magic;
    uint32_t crc;
    int16_t attributes;
    int32_t last_offset_delta;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
    int32_t record_count;
};

void record_batch_header_write(uint8_t target[RECORD_BATCH_HEADER_SIZE], const struct record_batch_header *header);

/* Returns CORRUPT if there are fewer than 61 bytes. Does not check the fields: record_batch_validate does. */
MUST_USE enum status record_batch_header_read(const uint8_t *bytes, size_t size, struct record_batch_header *header);

/* Returns the batch's crc from its written header and the CRC and size of its records. */
uint32_t record_batch_crc(const uint8_t header[RECORD_BATCH_HEADER_SIZE], uint32_t records_crc, uint64_t records_size);

void record_batch_set_crc(uint8_t header[RECORD_BATCH_HEADER_SIZE], uint32_t crc);

struct record_batch_producer {
    int64_t id;
    int16_t epoch;
    int32_t base_sequence;
};

/* Gives a finished batch another producer, without changing the records. Base offset, leader epoch and timestamp type
 * become those of a batch that a producer sends. A crc is linear, so the new one is computed from the old one and the
 * two headers, without reading the records. The crc of a damaged batch stays wrong. Requires a batch length of at least
 * the smallest possible one. */
void record_batch_change_producer(uint8_t header[RECORD_BATCH_HEADER_SIZE],
                                  const struct record_batch_producer *producer);

/* Consecutive records of a batch. */
struct record_range {
    int32_t first;
    int32_t count;
};

/*
 * Makes a batch from consecutive records of a batch that a broker rejects as too large. The new batch is numbered from
 * 0, and has the sequences and timestamps that its records had. `target` has the size of the whole batch, which is
 * enough for any part. Returns INVALID if there are no such records, and CORRUPT if the batch is not valid.
 */
MUST_USE enum status record_batch_part(const uint8_t *bytes, size_t size, struct record_range range, uint8_t *target,
                                       size_t *target_size);

/*
 * Checks that a broker would accept these bytes as one uncompressed batch of a producer. It is stricter than a broker,
 * which ignores wrong offset deltas and corrects a wrong max timestamp. Returns CORRUPT with a sentence in `error` (may
 * be NULL) if not. Safe for any bytes.
 */
MUST_USE enum status record_batch_validate(const uint8_t *bytes, size_t size, struct error *error);

/* The same for a batch in pieces. If there are several, allocates a copy, and returns OS if that fails. */
MUST_USE enum status record_batch_validate_pieces(const struct piece *pieces, size_t piece_count,
                                                  struct error *error);

struct records_summary {
    int64_t timestamp_min;
    int64_t timestamp_max;
    bool has_null_key;
};

/*
 * Checks that [start, end) is exactly `count` records, numbered from 0, and finds their smallest and largest
 * timestamps, and whether each has a key; `count` is at least 1. Returns CORRUPT with a sentence in `error` (may be
 * NULL) if not, or if a timestamp does not fit in 64 bits. Safe for any bytes. A timestamp may be negative; the caller
 * checks that.
 */
MUST_USE enum status records_summarize(const uint8_t *start, const uint8_t *end, int32_t count, int64_t base_timestamp,
                                       struct records_summary *summary, struct error *error);

/* Returns true if [start, end) is `count` records, numbered from 0, with the largest timestamp `max_timestamp`. */
bool records_are_timed(const uint8_t *start, const uint8_t *end, uint32_t count, int64_t base_timestamp,
                       int64_t max_timestamp);

#endif
