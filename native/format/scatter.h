/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes several pieces of memory as if they were contiguous. A record that is too large for a slot fills a
 * chain of slots, and each slot is a piece.
 *
 *   pieces   [ 0 ........ ] [ 1 .... ] [ 2 .......... ]
 *                              ^ piece_index 1, position 3: the next byte goes here
 */
#ifndef FORMAT_SCATTER_H
#define FORMAT_SCATTER_H

#include <stddef.h>
#include <stdint.h>

struct piece {
    uint8_t *start;
    size_t size;
};

struct scatter {
    const struct piece *pieces;
    size_t piece_count;
    size_t piece_index;
    size_t position; /* the position in pieces[piece_index] */
};

/* Writes after the bytes written so far. Bytes that do not fit in the pieces are not written. */
void scatter_write(struct scatter *target, const void *bytes, size_t size);

size_t pieces_size(const struct piece *pieces, size_t piece_count);
void pieces_copy(uint8_t *target, const struct piece *pieces, size_t piece_count);

/* crc32c_extend over all pieces, in order. */
uint32_t pieces_crc32c(uint32_t crc, const struct piece *pieces, size_t piece_count);

#endif
