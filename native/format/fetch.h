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
 * A length is an i32, that of a text an i16. From version 12 on, a length is an unsigned varint of one more, and 0
 * stands for null. Only then do structures end with tags (KIP-482), none of which concerns a log on one host.
 *
 * The request is untrusted. Each step checks the end of the request, all arrays together have at most
 * FETCH_ELEMENTS_MAX elements, and the last byte has to be used. The reader's error names the fault.
 *
 * Everything of the response but RECORDS is written contiguously; the records of a partition belong before the byte at
 * its `cut`. No records have length 0, never null. Partitions of one topic that follow each other share one name, as in
 * Kafka's own responses.
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
    const uint8_t *body; /* the request, in the bytes of the frame */
    size_t body_size;
    int16_t version;
    int32_t correlation_id;
};

/* Returns true if the bytes are one frame, of a fetch whose header has no tags. */
bool fetch_frame_read(const uint8_t *bytes, size_t size, struct fetch_frame *frame);

struct fetch_reader {
    const uint8_t *cursor;
    const uint8_t *end;
    size_t size;
    int64_t version;
    int64_t elements_left;   /* that all other arrays may have together */
    int64_t topics_left;     /* of the array that is read */
    int64_t partitions_left; /* of the topic that is read */
    bool is_in_topic;        /* the tags of a topic follow */
    bool is_in_forgotten;    /* the array that is read is that of the forgotten topics */
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
    const char *topic; /* of a FETCH_TOPIC: its name or id, in the bytes of the request */
    size_t topic_size;
    int64_t offset; /* of a FETCH_PARTITION, as the next ones */
    int32_t size_max;
    int32_t leader_epoch; /* -1 if unknown */
    int32_t partition;    /* also of a FETCH_FORGOTTEN */
};

/* Reads the limits of a request, which come first. Returns false with the reader's error set if there are none. */
bool fetch_begin(struct fetch_reader *reader, const uint8_t *bytes, size_t size, int64_t version,
                 struct fetch_limits *limits);

/* Reads the next part: each topic before its partitions, and forgotten topics last. At FETCH_INVALID the reader's error
 * is set. */
enum fetch_part_kind fetch_next(struct fetch_reader *reader, struct fetch_part *part);

/* ---- the response ---- */

struct fetch_aborted {
    int64_t producer_id;
    int64_t first_offset;
};

struct fetch_found {
    const char *topic; /* its name, or its id */
    size_t topic_size; /* of a name at most INT16_MAX */
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

/* Returns an upper bound of the bytes around the records. */
size_t fetch_response_size_max(const struct fetch_response *response);

/* Writes the bytes around the records, and the cuts. Returns the size of these bytes. The size of the frame, records
 * included, is stored in `frame_size`; above INT32_MAX there is no such frame. */
size_t fetch_response_write(const struct fetch_response *response, uint8_t *target, int64_t *frame_size);

#endif
