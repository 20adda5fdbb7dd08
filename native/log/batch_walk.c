/* SPDX-License-Identifier: Apache-2.0 */
#include "log/batch_walk.h"

#include "format/record_batch.h"

#include <unistd.h>

enum { READ_SIZE = 4096 };

/* A part of the file in memory: `size` bytes from `start` on. */
struct window {
    uint8_t bytes[READ_SIZE];
    int64_t start;
    int64_t size;
};

static bool window_has(const struct window *window, int64_t position)
{
    return position >= window->start && position - window->start + RECORD_BATCH_HEADER_SIZE <= window->size;
}

/* Returns false with errno set. */
static bool window_move(struct window *window, int descriptor, int64_t position)
{
    window->start = position;
    window->size = pread(descriptor, window->bytes, READ_SIZE, position);
    return window->size >= 0;
}

static bool is_header(const struct record_batch_header *header)
{
    return header->magic == RECORD_BATCH_MAGIC_VALUE && header->base_offset >= 0 && header->last_offset_delta >= 0 &&
           header->record_count >= 0 &&
           header->batch_length >= RECORD_BATCH_HEADER_SIZE - RECORD_BATCH_UNCOUNTED_SIZE;
}

static bool has_offset(const struct record_batch_header *header, int64_t offset)
{
    return header->last_offset_delta >= offset - header->base_offset;
}

int64_t batch_find(struct batch_walk *walk)
{
    struct window window;
    struct record_batch_header header;
    window.size = 0;
    window.start = 0;
    while (walk->end - walk->position >= RECORD_BATCH_HEADER_SIZE) {
        if (!window_has(&window, walk->position) && !window_move(&window, walk->descriptor, walk->position)) {
            return -1;
        }
        const uint8_t *bytes = window.bytes + (walk->position - window.start);
        size_t left = (size_t)(window.start + window.size - walk->position);
        if (record_batch_header_read(bytes, left, &header) != STATUS_OK || !is_header(&header)) {
            return 0;
        }
        int64_t size = (int64_t)header.batch_length + RECORD_BATCH_UNCOUNTED_SIZE;
        if (has_offset(&header, walk->offset)) {
            return size;
        }
        walk->position += size;
    }
    return 0;
}
