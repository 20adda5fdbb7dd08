/* SPDX-License-Identifier: Apache-2.0 */
#include "format/scatter.h"

#include "base/check.h"
#include "format/crc32c.h"

#include <string.h>

static size_t write_into_piece(struct scatter *target, const uint8_t *bytes, size_t size)
{
    const struct piece *piece = &target->pieces[target->piece_index];
    size_t room = piece->size - target->position;
    size_t taken = size < room ? size : room;
    memcpy(piece->start + target->position, bytes, taken);
    target->position += taken;
    if (target->position == piece->size) {
        target->piece_index++;
        target->position = 0;
    }
    return taken;
}

void scatter_write(struct scatter *target, const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    while (size > 0 && target->piece_index < target->piece_count) {
        size_t taken = write_into_piece(target, next, size);
        next += taken;
        size -= taken;
    }
    CHECK(size == 0);
}

size_t pieces_size(const struct piece *pieces, size_t piece_count)
{
    size_t size = 0;
    for (size_t i = 0; i < piece_count; i++) {
        size += pieces[i].size;
    }
    return size;
}

void pieces_copy(uint8_t *target, const struct piece *pieces, size_t piece_count)
{
    for (size_t i = 0; i < piece_count; i++) {
        memcpy(target, pieces[i].start, pieces[i].size);
        target += pieces[i].size;
    }
}

uint32_t pieces_crc32c(uint32_t crc, const struct piece *pieces, size_t piece_count)
{
    for (size_t i = 0; i < piece_count; i++) {
        crc = crc32c_extend(crc, pieces[i].start, pieces[i].size);
    }
    return crc;
}
