/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits the records of one call into chunks.
 *
 *   chunk          at most CHUNK_COUNT_MAX records, parsed and measured
 *     -> partition of each record: its own, that of its key, or the topic's sticky one
 *     -> groups    adjacent records of a partition (grouping.h)
 */
#ifndef PRODUCER_RECORD_CHUNK_H
#define PRODUCER_RECORD_CHUNK_H

#include "format/record.h"
#include "producer/grouping.h"
#include "producer/partition_indices.h"
#include "producer/partitioner.h"
#include "producer/producer_batch.h"

/* The private data of a producer about a topic. */
struct topic_note {
    struct sticky sticky;
    struct partition_indices indices;
};

/* The records of a chunk. The code that fills it sets `count`, and every field of each row. */
struct chunk {
    uint32_t count;
    struct measured_record records[CHUNK_COUNT_MAX];
    struct topic_note *topics[CHUNK_COUNT_MAX];
    int32_t partitions[CHUNK_COUNT_MAX]; /* -1 if the partition is not given */
    bool has_timestamps; /* the caller gave timestamps: the receipt stores each of them */
};

struct assignment {
    uint32_t partition_indices[CHUNK_COUNT_MAX];
    bool is_sticky[CHUNK_COUNT_MAX];
    uint32_t count; /* the number of records that have a partition; initially 0 */
};

struct chunk_rules {
    struct partitioner *partitioner;
    bool ignores_keys;
};

/* Assigns partitions to the records from assignment->count on. Returns TRY_AGAIN if the topic of a record has no
 * partition *partition yet: call again when it has. Other failures are those of partition_indices_find. */
enum status chunk_assign(const struct chunk_rules *rules, const struct chunk *chunk, struct assignment *assignment,
                         uint32_t *partition) MUST_USE;

/* The records ordered by group, and their rows in the chunk. */
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
    bool is_sticky; /* no record has a key or a given partition, so all may move to another partition */
};

/* A group of an assigned chunk. The only group of a chunk needs no arrangement. */
struct chunk_group chunk_group(const struct chunk *chunk, const struct assignment *assignment,
                               const struct record_group *group, const struct arrangement *arrangement);

#endif
