/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka's Produce request, versions 3 to 13, with record batches that are not copied, and its response.
 *
 *   size  key version correlation client  transactional  acks  timeout  topics
 *   int32 int16 int16  int32      string  string or null int16 int32    count
 *     topic   name (string), from version 13 on id (16 bytes) · count
 *       partition   int32 · size of its records · RECORDS ·
 *
 *   own     [ frame, header, first topic, first partition ] [ next partition ] ... [ tail ]
 *   cuts                                                    ^ 0                ^ 1
 *
 * `own` has all bytes except RECORDS, without gaps. The records of batch i are sent before the byte `cuts[i]` of `own`.
 * From version 9 on ("flexible") counts and sizes are unsigned varints plus one, and each structure ends with tagged
 * fields. There are none, so a zero byte is written. The length of the client's name stays an int16.
 * (ProduceRequest.json, RequestHeader.json)
 *
 *   response  correlation · topics: name or id · partitions: index error base append start message * · throttle time
 *             int32                                          int32 int16 int64 int64 int64
 *
 * Only a response without errors is read here: it has no error code, no data about records or leaders (*), and no
 * number below -1 ("unknown"), and each batch occurs once. Other code reads the few other responses.
 * (ProduceResponse.json: `start` since version 5, records and message since 8.)
 *
 * The response is untrusted. Every read checks the end, and counts are compared with those of the request before any
 * search. Topics and partitions are expected in the request's order. Apache Kafka may respond in another order. At the
 * first element that is out of order, all topics, or all partitions of its topic, are added to a hash table, in which
 * this element and the later ones are looked up. This takes at most half of the time that reading the response takes.
 */
#ifndef FORMAT_PRODUCE_H
#define FORMAT_PRODUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PRODUCE_VERSION_MIN = 3, PRODUCE_VERSION_MAX = 13, PRODUCE_FLEXIBLE = 9, PRODUCE_TOPIC_IDS = 13 };
enum { TOPIC_ID_SIZE = 16, PRODUCE_NAME_SIZE_MAX = 32767, PRODUCE_CORRELATION = 8 /* its position in `own` */ };

struct produce_topic {
    const char *name;
    uint16_t name_size;
    uint8_t id[TOPIC_ID_SIZE]; /* used from version 13 on */
    uint32_t batch_count;
};

struct produce_batch {
    int32_t partition;
    uint32_t size; /* the size of its records in bytes */
};

struct produce_request {
    const char *client;
    const char *transactional_id; /* NULL without a transaction */
    uint16_t client_size;
    uint16_t transactional_id_size;
    int16_t version;
    int16_t acks; /* -1 all replicas in sync, 1 the leader, 0 none */
    int32_t timeout_ms;
    uint32_t topic_count;
    uint32_t batch_count;               /* the number of batches of all topics */
    const struct produce_topic *topics; /* names at most PRODUCE_NAME_SIZE_MAX bytes */
    const struct produce_batch *batches; /* in the order of the topics */
};

/* Returns an upper bound of the size of `own`. */
size_t produce_own_size_max(const struct produce_request *request);

/* Writes `own`, with 0 for the correlation id, and batch_count cuts. Returns its size. All records and `own` together
 * are less than 2^31 bytes. */
size_t produce_encode(const struct produce_request *request, uint8_t *own, size_t *cuts);

struct produce_result {
    int64_t base_offset;        /* -1 if the broker does not report it */
    int64_t log_append_time_ms; /* -1 if the records' own timestamps are valid */
    bool is_answered;
};

struct produce_answer {
    struct produce_result *results; /* one result for each batch, in the request's order */
    uint32_t *tables;               /* produce_tables_size numbers, uninitialized */
    int32_t throttle_ms;
};

/* Returns the number of numbers that the tables need for a response in another order. */
size_t produce_tables_size(const struct produce_request *request);

/* Reads a response after the frame's size, from its correlation id on. Returns false if the response is not one without
 * errors, as above; then `answer` is undefined. */
bool produce_answer_read(const struct produce_request *request, uint32_t correlation, const uint8_t *bytes, size_t size,
                         struct produce_answer *answer);

#endif
