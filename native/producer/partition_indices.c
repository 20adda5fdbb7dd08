/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/partition_indices.h"

#include <stdlib.h>
#include <string.h>

void partition_indices_close(struct partition_indices *indices)
{
    free(indices->cells);
    *indices = (struct partition_indices){0};
}

/* Partitions with higher numbers are looked up in the registry each time, so the array stays small. */
enum { COUNT_FIRST = 16, COUNT_MAX = 65536 };

static enum status indices_grow(struct partition_indices *indices, uint32_t partition)
{
    CHECK(partition >= indices->count);
    CHECK(partition < COUNT_MAX);
    uint32_t count = indices->count == 0 ? COUNT_FIRST : indices->count;
    while (count <= partition) {
        count *= 2;
    }
    uint32_t *cells = realloc(indices->cells, count * sizeof *cells);
    if (cells == NULL) {
        return STATUS_OS;
    }
    memset(cells + indices->count, 0, (count - indices->count) * sizeof *cells);
    indices->cells = cells;
    indices->count = count;
    return STATUS_OK;
}

enum status partition_indices_find_slow(struct partition_indices *indices, struct registry *registry,
                                        uint32_t topic_index, uint32_t partition, uint32_t *partition_index)
{
    if (partition > INT32_MAX) {
        return STATUS_INVALID;
    }
    RETURN_IF_FAILED(registry_partition(registry, topic_index, (int32_t)partition, partition_index));
    if (partition >= COUNT_MAX) {
        return STATUS_OK;
    }
    if (partition >= indices->count) {
        RETURN_IF_FAILED(indices_grow(indices, partition));
    }
    indices->cells[partition] = *partition_index + 1;
    return STATUS_OK;
}
