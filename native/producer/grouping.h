/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups records of many partitions so that those of one partition are adjacent, and its producer lock is taken once
 * for all of them. The order within a partition does not change.
 *
 *   given     a b a c b a        groups   a x3, b x2, c x1  (in the order of first appearance)
 *   places    0 3 1 5 4 2        grouped  a a a b b c
 */
#ifndef PRODUCER_GROUPING_H
#define PRODUCER_GROUPING_H

#include <stdint.h>

/* Records per call: enough for several in each of twelve partitions, and few enough for the first-level cache. */
enum { CHUNK_COUNT_MAX = 255 };

struct record_group {
    uint32_t partition_index;
    uint32_t start; /* the place of its first record */
    uint32_t count;
};

struct grouping {
    uint32_t group_count;
    struct record_group groups[CHUNK_COUNT_MAX];
    uint8_t places[CHUNK_COUNT_MAX]; /* the place of each given record */
};

/* Requires 1 <= count <= CHUNK_COUNT_MAX. */
void group_by_partition(const uint32_t *partition_indices, uint32_t count, struct grouping *grouping);

#endif
