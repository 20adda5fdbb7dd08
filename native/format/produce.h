/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka's Produce request, versions 3 to 13, around record batches that stay where they are, and its answer.
 *
 *   size  key version correlation client  transactional  acks  timeout  topics
 *   int32 int16 int16  int32      string  string or null int16 int32    count
 *     topic   name (string), from version 13 on id (16 bytes) · count
 *       partition   int32 · size of its records · RECORDS ·
 *
 *   own     [ frame, header, first topic, first partition ] [ next partition ] ... [ tail ]
 *   cuts                                                    ^ 0                ^ 1
 *
 * Everything but RECORDS is written in one piece, `own`; the records of batch i belong before the byte `cuts[i]`. From
 * version 9 on ("flexible") counts and sizes are unsigned varints plus one, and each structure ends in tagged fields,
 * of which there are none: a zero byte. The client's name keeps its int16. (ProduceRequest.json, RequestHeader.json)
 *
 *   answer  correlation · topics: name or id · partitions: index error base append start * message * · throttle time
 *           int32                                          int32 int16 int64 int64 int64
 *
 * Only an answer without any trouble is read here: no error, nothing said about records or leaders (*), no number below
 * -1 ("not told"), and each batch answered exactly once. That is nearly every answer; another reader reads any other
 * one. (ProduceResponse.json: `start` since version 5, records and message since 8.)
 *
 * The answer comes from outside. It is read with its end in view, and its counts are held against the request's before
 * anything is looked up. Topics and partitions are expected in the request's order, each behind the one before. Apache
 * Kafka keeps them in hash maps and answers in the order of those: the first that is not where it is expected has all
 * of its kind (partitions of one topic, or topics) entered into a table by their hashes, where it and the rest are
 * found. So no order costs more than the table, half as much again as reading the answer.
 */
#ifndef FORMAT_PRODUCE_H
#define FORMAT_PRODUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PRODUCE_VERSION_MIN = 3, PRODUCE_VERSION_MAX = 13, PRODUCE_FLEXIBLE = 9, PRODUCE_TOPIC_IDS = 13 };
enum { TOPIC_ID_SIZE = 16, PRODUCE_NAME_SIZE_MAX = 32767, PRODUCE_CORRELATION = 8 /* its place in `own` */ };

struct produce_topic {
    const char *name;
    uint16_t name_size;
    uint8_t id[TOPIC_ID_SIZE]; /* used from version 13 on */
    uint32_t batch_count;
};

struct produce_batch {
    int32_t partition;
    uint32_t size; /* bytes of its records */
};

struct produce_request {
    const char *client;
    const char *transactional_id; /* NULL: the batches belong to no transaction */
    uint16_t client_size;
    uint16_t transactional_id_size;
    int16_t version;
    int16_t acks; /* -1 all replicas in sync, 1 the leader, 0 nobody */
    int32_t timeout_ms;
    uint32_t topic_count;
    uint32_t batch_count;               /* of all topics */
    const struct produce_topic *topics; /* names at most PRODUCE_NAME_SIZE_MAX bytes */
    const struct produce_batch *batches; /* those of the first topic first */
};

/* Room that `own` needs at most. */
size_t produce_own_size_max(const struct produce_request *request);

/* Writes `own`, with 0 for the correlation id, and batch_count cuts; answers how many bytes. All records and `own`
 * together are less than 2^31 bytes. */
size_t produce_encode(const struct produce_request *request, uint8_t *own, size_t *cuts);

struct produce_result {
    int64_t base_offset;        /* -1: the broker does not tell */
    int64_t log_append_time_ms; /* -1: the records' own timestamps hold */
    bool is_answered;
};

struct produce_answer {
    struct produce_result *results; /* a place for each batch, in the request's order */
    uint32_t *tables;               /* room of produce_tables_size, in numbers, whatever is in it */
    int32_t throttle_ms;
};

/* How many numbers the tables have room for that an answer in another order needs. */
size_t produce_tables_size(const struct produce_request *request);

/* Reads an answer from its correlation id on, behind the frame's size. False, whatever is in `answer` then, when not
 * all is well. */
bool produce_answer_read(const struct produce_request *request, uint32_t correlation, const uint8_t *bytes, size_t size,
                         struct produce_answer *answer);

#endif
