/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka's Fetch request and response, versions 4 to 17, for a server. A consumer sends the request repeatedly.
 *
 *   request    limits | topics | forgotten topics, from 7 on | rack: text, from 11 on | tags
 *   limits     (replica i32, below 15) | longest wait i32 | fewest bytes i32 | most bytes i32 | isolation level i8 |
 *              (session id i32 | session epoch i32, from 7 on)
 *   topic      name: text, or id: 16 bytes from 13 on | partitions | tags
 *   partition  number i32 | (leader epoch i32, from 9 on) | offset i64 | (last fetched epoch i32, from 12 on) |
 *              (log start offset i64, from 5 on) | most bytes i32 | tags
 *   forgotten  name or id | numbers i32 | tags
 *
 *   response   size i32 | correlation id i32 | (tags) | throttle time i32 | (error i16 | session id i32, from 7 on) |
 *              topics | (tags)
 *   topic      name: text, or id: 16 bytes from 13 on | partitions | (tags)
 *   partition  number i32 | error i16 | high watermark i64 | last stable offset i64 |
 *              (log start offset i64, from 5 on) | aborted transactions | (nearer replica i32, from 11 on) |
 *              length of the records | RECORDS | (tags)
 *   aborted    producer id i64 | first offset i64 | (tags)
 *
 * The length of an array is an i32, and that of a text an i16. From version 12 on, a length is the unsigned varint of
 * length + 1, 0 means null, and structures end with tags (KIP-482). No tag concerns a log on one host.
 *
 * The request is untrusted. Each step checks the end of the request, all arrays together have at most
 * FETCH_ELEMENTS_MAX elements, and no byte may follow the last field. The reader's error names the fault.
 *
 * The response without RECORDS is written contiguously. The records of a partition are sent before the byte at its
 * `cut`. A partition without records has the length 0, not null. Adjacent partitions of one topic share one name, as in
 * Kafka's responses.
 */
#ifndef FORMAT_FETCH_H
#define FORMAT_FETCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FETCH_KEY = 1, FETCH_VERSION_MIN = 4, FETCH_VERSION_MAX = 17, FETCH_FLEXIBLE = 12, FETCH_TOPIC_IDS = 13 };
enum { FETCH_ELEMENTS_MAX = 50000, FETCH_TOPIC_ID_SIZE = 16 };
enum { NO_SESSION = 0, FINAL_EPOCH = -1 };

/* ---- the request ---- */

struct fetch_frame {
    const uint8_t *body; /* the request, a part of the frame */
    size_t body_size;
    int16_t version;
    int32_t correlation_id;
};

/* Returns true if the bytes are one frame with a fetch whose header has no tags. */
bool fetch_frame_read(const uint8_t *bytes, size_t size, struct fetch_frame *frame);

struct fetch_reader {
    const uint8_t *cursor;
    const uint8_t *end;
    size_t size;
    int64_t version;
    int64_t elements_left;   /* elements that all later arrays may have together */
    int64_t topics_left;     /* topics left in the current array */
    int64_t partitions_left; /* partitions left in the current topic */
    bool is_in_topic;        /* the tags of a topic follow */
    bool is_in_forgotten;    /* the current array is that of the forgotten topics */
    struct error error;
};

struct fetch_limits {
    int32_t max_wait_ms;
    int32_t min_bytes;
    int32_t max_bytes;
    int32_t isolation_level;
    int32_t session_id;
    int32_t session_epoch;
};

enum fetch_part_kind { FETCH_INVALID, FETCH_END, FETCH_TOPIC, FETCH_PARTITION, FETCH_FORGOTTEN };

struct fetch_part {
    const char *topic; /* for FETCH_TOPIC: its name or id, in the request */
    size_t topic_size;
    int64_t offset; /* for FETCH_PARTITION, as the following fields */
    int32_t size_max;
    int32_t leader_epoch; /* -1 if unknown */
    int32_t partition;    /* also for FETCH_FORGOTTEN */
};

/* Reads the limits, the first part of a request. Returns false with the reader's error set if they are invalid. */
bool fetch_begin(struct fetch_reader *reader, const uint8_t *bytes, size_t size, int64_t version,
                 struct fetch_limits *limits);

/* Reads the next part: each topic before its partitions, and forgotten topics last. If the result is FETCH_INVALID, the
 * reader's error is set. */
enum fetch_part_kind fetch_next(struct fetch_reader *reader, struct fetch_part *part);

/* ---- the response ---- */

struct fetch_aborted {
    int64_t producer_id;
    int64_t first_offset;
};

struct fetch_found {
    const char *topic; /* its name, or its id */
    size_t topic_size; /* at most INT16_MAX for a name */
    const struct fetch_aborted *aborted;
    size_t aborted_count;
    int64_t end_offset;
    int64_t start_offset;
    int64_t stable_offset;
    int64_t records_size; /* 0 without records */
    size_t cut;           /* fetch_response_write sets it */
    int32_t partition;
    int16_t error;
    bool is_topic_id;
};

struct fetch_response {
    struct fetch_found *found;
    size_t count;
    int64_t version;
    int32_t correlation_id;
    int32_t session_id;
    int16_t error;
};

/* Returns an upper bound of the bytes without RECORDS. */
size_t fetch_response_size_max(const struct fetch_response *response);

/* Writes the bytes without RECORDS, and the cuts. Returns the size of these bytes. `frame_size` receives the size of
 * the frame with RECORDS. If it exceeds INT32_MAX, the frame is invalid. */
size_t fetch_response_write(const struct fetch_response *response, uint8_t *target, int64_t *frame_size);

#endif
