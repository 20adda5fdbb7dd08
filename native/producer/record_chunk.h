/* SPDX-License-Identifier: Apache-2.0
 *
 * Many records in one call, some at a time.
 *
 *   chunk          at most CHUNK_COUNT_MAX records, parsed and measured
 *     -> partition of each record: its own, that of its key, or the topic's sticky one
 *     -> groups    the records of a partition in a row (grouping.h)
 */
#ifndef PRODUCER_RECORD_CHUNK_H
#define PRODUCER_RECORD_CHUNK_H

#include "format/record.h"
#include "producer/grouping.h"
#include "producer/partition_indices.h"
#include "producer/partitioner.h"
#include "producer/producer_batch.h"

/* The data of a producer about a topic. */
struct topic_note {
    struct sticky sticky;
    struct partition_indices indices;
};

/* Records on their way. The filler sets `count` and, of each row, all of these. */
struct chunk {
    uint32_t count;
    struct measured_record records[CHUNK_COUNT_MAX];
    struct topic_note *topics[CHUNK_COUNT_MAX];
    int32_t partitions[CHUNK_COUNT_MAX]; /* -1 if it is to be chosen */
    bool has_timestamps; /* given by the caller: the receipt has to remember them one by one */
};

struct assignment {
    uint32_t partition_indices[CHUNK_COUNT_MAX];
    bool is_sticky[CHUNK_COUNT_MAX];
    uint32_t count; /* of the records that have a partition; 0 in the beginning */
};

struct chunk_rules {
    struct partitioner *partitioner;
    bool ignores_keys;
};

/* Assigns the records from assignment->count on, until one has none: *partition is its partition. TRY_AGAIN: its topic
 * has fewer partitions; call again when it has more. Any other status is that of partition_indices_find. */
enum status chunk_assign(const struct chunk_rules *rules, const struct chunk *chunk, struct assignment *assignment,
                         uint32_t *partition) MUST_USE;

/* The records of several groups, those of a group in a row, and their rows in the chunk. */
struct arrangement {
    struct measured_record records[CHUNK_COUNT_MAX];
    uint8_t rows[CHUNK_COUNT_MAX];
};

void chunk_arrange(const struct chunk *chunk, const struct grouping *grouping, struct arrangement *arrangement);

struct chunk_group {
    uint32_t partition_index;
    uint32_t count;
    const struct measured_record *records;
    struct topic_note *topic;
    bool is_sticky; /* no record has a key or a partition of its own, so all may move to another partition */
};

/* A group of an assigned chunk. The only group of a chunk needs no arrangement. */
struct chunk_group chunk_group(const struct chunk *chunk, const struct assignment *assignment,
                               const struct record_group *group, const struct arrangement *arrangement);

#endif
