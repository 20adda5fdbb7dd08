/* SPDX-License-Identifier: Apache-2.0
 *
 * Caches the partition indices of one topic by partition number, so that a record needs an array access instead of a
 * search in the registry's table.
 *
 * Private memory, one thread at a time. Its entries stay valid, also after fork, because the arena never changes an
 * index. An empty cache is all zeros.
 */
#ifndef PRODUCER_PARTITION_INDICES_H
#define PRODUCER_PARTITION_INDICES_H

#include "arena/registry.h"
#include "base/check.h"

struct partition_indices {
    uint32_t count;
    uint32_t *cells; /* by partition: partition index + 1, or 0 before the first request */
};

void partition_indices_close(struct partition_indices *indices);

enum status partition_indices_find_slow(struct partition_indices *indices, struct registry *registry,
                                        uint32_t topic_index, uint32_t partition, uint32_t *partition_index) MUST_USE;

/* Finds the index of a partition of the topic, and creates it if it is new. Returns a status of registry_partition, or
 * STATUS_OS. */
static inline MUST_USE enum status partition_indices_find(struct partition_indices *indices, struct registry *registry,
                                                          uint32_t topic_index, uint32_t partition,
                                                          uint32_t *partition_index)
{
    CHECK(indices->count == 0 || indices->cells != NULL);
    if (LIKELY(partition < indices->count && indices->cells[partition] != 0)) {
        *partition_index = indices->cells[partition] - 1;
        return STATUS_OK;
    }
    return partition_indices_find_slow(indices, registry, topic_index, partition, partition_index);
}

#endif
