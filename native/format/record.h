/* SPDX-License-Identifier: Apache-2.0
 *
 * One record of a record batch (magic 2), as written by org.apache.kafka.common.record.DefaultRecord:
 *
 *   length            varint    size of the body: the bytes after this field
 *   attributes        int8      0
 *   timestamp delta   varlong   timestamp - the batch's base timestamp, may be negative
 *   offset delta      varint    0 for the first record of the batch, then 1, 2, ...
 *   key size          varint    -1 if the key is null, and nothing follows
 *   key
 *   value size        varint    -1 if the value is null (a tombstone)
 *   value
 *   header count      varint
 *   per header: key size (varint, never -1), key, value size (varint, -1 if null), value
 *
 * A writer computes the size once, outside any lock (record_measure). The two deltas are known only under the lock, so
 * their sizes are added there. A test checks that the computed and the written sizes are equal.
 */
#ifndef FORMAT_RECORD_H
#define FORMAT_RECORD_H

#include "base/status.h"
#include "format/scatter.h"
#include "format/varint.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    RECORD_DELTAS_SIZE_MAX = VARLONG_SIZE_MAX + VARINT_SIZE_MAX,
    RECORD_PREFIX_SIZE_MAX = VARINT_SIZE_MAX + 1 + RECORD_DELTAS_SIZE_MAX, /* 21: DefaultRecord.MAX_RECORD_OVERHEAD */
    RECORD_SIZE_MAX = INT32_MAX - 61, /* with the batch header, the size still fits in Kafka's int32 */
};

#define NO_TIMESTAMP INT64_C(-1)

enum { RECORD_SIZE_MIN = 7 }; /* bytes of an empty record: each of its parts takes one */

/* A size of -1 means null, and the pointer is ignored; 0 means empty. */
struct record_header {
    const void *key; /* never null */
    const void *value;
    int32_t key_size;
    int32_t value_size;
};

struct record {
    const void *key;
    const void *value;
    int32_t key_size;
    int32_t value_size;
    const struct record_header *headers;
    int32_t header_count;
    int64_t timestamp_ms; /* or NO_TIMESTAMP */
};

struct record_size {
    uint32_t fixed; /* bytes of the body without the two deltas */
};

/*
 * Returns INVALID if a size, the count or the timestamp is negative (-1 is valid where null is allowed, and so is
 * NO_TIMESTAMP). Returns RECORD_TOO_LARGE if the upper bound exceeds RECORD_SIZE_MAX.
 */
MUST_USE enum status record_measure_any(const struct record *record, struct record_size *size);

/* Returns the encoded size of a key or value below 1 GiB. The argument is its size plus one, and 0 for null. */
static inline uint32_t record_part_size(uint32_t size_plus_one)
{
    return size_plus_one == 0 ? 1 : varint_size((int32_t)size_plus_one - 1) + size_plus_one - 1;
}

/* The same as record_measure_any, but fast for a small record without headers. */
MUST_USE static inline enum status record_measure(const struct record *record, struct record_size *size)
{
    uint32_t key = (uint32_t)record->key_size + 1;
    uint32_t value = (uint32_t)record->value_size + 1;
    bool is_plain = (key | value) < UINT32_C(1) << 29 && record->header_count == 0;
    if (UNLIKELY(!is_plain || record->timestamp_ms < NO_TIMESTAMP)) {
        return record_measure_any(record, size);
    }
    size->fixed = 2 + record_part_size(key) + record_part_size(value); /* attributes, header count */
    return STATUS_OK;
}

/* Returns the value of the length field. */
static inline uint32_t record_body_size(const struct record_size *size, int32_t offset_delta, int64_t timestamp_delta)
{
    return size->fixed + varlong_size(timestamp_delta) + varint_size(offset_delta);
}

/* Returns the bytes of the record, including its length field. */
static inline uint32_t record_encoded_size(const struct record_size *size, int32_t offset_delta,
                                           int64_t timestamp_delta)
{
    uint32_t body_size = record_body_size(size, offset_delta, timestamp_delta);
    return varint_size((int32_t)body_size) + body_size;
}

/* Returns an upper bound of record_encoded_size for any deltas (AbstractRecords.estimateSizeInBytesUpperBound). */
static inline uint32_t record_size_upper_bound(const struct record_size *size)
{
    return VARINT_SIZE_MAX + RECORD_DELTAS_SIZE_MAX + size->fixed;
}

/* Writes the fields before the key. */
static inline uint8_t *record_write_prefix(uint8_t *target, uint32_t body_size, int32_t offset_delta,
                                           int64_t timestamp_delta)
{
    target = varint_write(target, (int32_t)body_size);
    *target++ = 0;
    target = varlong_write(target, timestamp_delta);
    return varint_write(target, offset_delta);
}

static inline uint8_t *record_write_nullable(uint8_t *target, const void *bytes, int32_t size)
{
    target = varint_write(target, size);
    if (size <= 0) {
        return target;
    }
    memcpy(target, bytes, (size_t)size);
    return target + size;
}

uint8_t *record_write_headers(uint8_t *target, const struct record *record);

/* The body of record_write. The caller has computed the value of the length field. */
static inline uint8_t *record_write_body(uint8_t *target, const struct record *record, uint32_t body_size,
                                         int32_t offset_delta, int64_t timestamp_delta)
{
    target = record_write_prefix(target, body_size, offset_delta, timestamp_delta);
    target = record_write_nullable(target, record->key, record->key_size);
    target = record_write_nullable(target, record->value, record->value_size);
    target = varint_write(target, record->header_count);
    return UNLIKELY(record->header_count > 0) ? record_write_headers(target, record) : target;
}

/* Writes record_encoded_size bytes and returns the end. `size` is the result of record_measure for `record`. */
static inline uint8_t *record_write(uint8_t *target, const struct record *record, const struct record_size *size,
                                    int32_t offset_delta, int64_t timestamp_delta)
{
    uint32_t body_size = record_body_size(size, offset_delta, timestamp_delta);
    return record_write_body(target, record, body_size, offset_delta, timestamp_delta);
}

/* Writes the same bytes into several pieces. */
void record_write_scattered(struct scatter *target, const struct record *record, const struct record_size *size,
                            int32_t offset_delta, int64_t timestamp_delta);

/* A record in place. Pointers are into the bytes that were read; null keys and values have size -1. */
struct record_view {
    int64_t timestamp_delta;
    int32_t offset_delta;
    int8_t attributes;
    const uint8_t *key;
    const uint8_t *value;
    int32_t key_size;
    int32_t value_size;
    int32_t header_count;
    const uint8_t *headers; /* the first header, for record_header_read */
    const uint8_t *headers_end;
};

struct record_header_view {
    const uint8_t *key;
    const uint8_t *value;
    int32_t key_size;
    int32_t value_size;
};

/*
 * Reads the record at *cursor, including its headers, and advances the cursor past it. It never reads a byte at or past
 * `end`. Returns CORRUPT if the length is not that of the body, a part exceeds the end, a size is below -1, or a header
 * has no key.
 */
MUST_USE enum status record_read(const uint8_t **cursor, const uint8_t *end, struct record_view *view);

/* Writes a copy of the record at *cursor with another offset delta. Advances the cursor past the record, and `target`
 * past the written bytes. Returns CORRUPT as record_read does. If the new delta is not larger than the old one, the
 * copy is not larger than the record. */
MUST_USE enum status record_renumber(const uint8_t **cursor, const uint8_t *end, int32_t offset_delta,
                                     uint8_t **target);

/* Returns CORRUPT unless [start, end) is exactly `count` records, numbered from 0. Safe for any bytes. */
MUST_USE enum status records_walk(const uint8_t *start, const uint8_t *end, uint32_t count);

/* Returns the size of the largest record in [cursor, end). Stops at the first bytes that are not a record. */
uint32_t record_size_largest(const uint8_t *cursor, const uint8_t *end);

/* Reads one header; start with view.headers and view.headers_end, and read view.header_count of them. */
MUST_USE enum status record_header_read(const uint8_t **cursor, const uint8_t *end, struct record_header_view *view);

#endif
