/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates columns in memory of exactly their size, so that the address sanitizer detects any access outside of it.
 */
#ifndef COLUMNS_H
#define COLUMNS_H

#include <stdlib.h>

#include "format/record_columns.h"

struct columns_memory {
    void *buffers[COLUMN_BUFFERS_MAX];
};

static inline struct record_columns columns_new(const struct record_columns_room *room, bool has_headers,
                                                struct columns_memory *memory)
{
    size_t sizes[COLUMN_BUFFERS_MAX];
    struct record_columns columns;
    uint32_t count = record_columns_sizes(room, has_headers, sizes);
    *memory = (struct columns_memory){0};
    for (uint32_t i = 0; i < count; i++) {
        memory->buffers[i] = malloc(sizes[i] + (sizes[i] == 0));
    }
    record_columns_begin(&columns, room, has_headers, memory->buffers);
    return columns;
}

static inline void columns_free(struct columns_memory *memory)
{
    for (int i = 0; i < COLUMN_BUFFERS_MAX; i++) {
        free(memory->buffers[i]);
    }
}

#endif
