/* SPDX-License-Identifier: Apache-2.0
 *
 * Sample records, and two batches of known bytes (made by an independent encoder and confirmed by kafka-python, which
 * differs only in the partition leader epoch).
 */
#ifndef SAMPLES_H
#define SAMPLES_H

#include "format/record.h"

#include "randomness.h"

/* The bytes of {key "key", value "value"} as first record of a batch. */
#define KEY_VALUE_RECORD "\x1c\x00\x00\x00\x06key\x0avalue\x00"

/* The bytes of {key null, value "v2", headers h = "x", n = null} as second record, 5 ms after the first. */
#define HEADERS_RECORD "\x1e\x00\x0a\x02\x01\x04v2\x04\x02h\x02x\x02n\x01"

static const struct record_header sample_headers[] = {
    {.key = "h", .key_size = 1, .value = "x", .value_size = 1},
    {.key = "n", .key_size = 1, .value_size = -1},
};

static const struct record key_value_record = {
    .key = "key", .key_size = 3, .value = "value", .value_size = 5, .timestamp_ms = 0};

static const struct record headers_record = {
    .key_size = -1, .value = "v2", .value_size = 2, .headers = sample_headers, .header_count = 2, .timestamp_ms = 5};

enum { RANDOM_HEADER_COUNT_MAX = 5, RANDOM_PART_SIZE_MAX = 300 };

struct random_record {
    struct record record;
    struct record_header headers[RANDOM_HEADER_COUNT_MAX];
    uint8_t bytes[RANDOM_PART_SIZE_MAX];
};

/* Return a size of at least -1, which means null. One in four is null or empty. */
static inline int32_t random_size(struct randomness *randomness)
{
    return random_below(randomness, 4) == 0 ? (int32_t)random_below(randomness, 2) - 1
                                            : (int32_t)random_below(randomness, RANDOM_PART_SIZE_MAX + 1);
}

/* The record points into `random`, which must not move while the record is used. */
static inline void random_record_fill(struct random_record *random, struct randomness *randomness)
{
    random_fill(randomness, random->bytes, sizeof random->bytes);
    random->record = (struct record){
        .key = random->bytes,
        .value = random->bytes,
        .key_size = random_size(randomness),
        .value_size = random_size(randomness),
        .headers = random->headers,
        .header_count = (int32_t)random_below(randomness, RANDOM_HEADER_COUNT_MAX + 1),
    };
    for (int32_t i = 0; i < random->record.header_count; i++) {
        random->headers[i] = (struct record_header){
            .key = random->bytes,
            .value = random->bytes,
            .key_size = (int32_t)random_below(randomness, 100),
            .value_size = random_size(randomness),
        };
    }
}

#endif
