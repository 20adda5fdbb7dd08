/* SPDX-License-Identifier: Apache-2.0
 *
 * The pieces of a request or response, in the order in which they go to a socket.
 *
 *   pieces   | own | memory | own | memory | range of a file | own |
 *                      ^ next; the bytes of it that were written are cut off
 *
 * Own bytes are those of the request itself. They are encoded after the batches are known. Until then, each of their
 * places is a gap.
 *
 * One sendmsg writes the pieces up to a range, or as many as one call accepts. A range goes from the page cache to the
 * socket by sendfile. sendfile has no flag that keeps it from blocking, so the socket of a range must be non-blocking.
 * If a file is shorter than its range, the call fails with ENODATA, because its connection cannot continue.
 */
#ifndef BROKER_PIECES_H
#define BROKER_PIECES_H

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The file of a piece. */
struct piece_file {
    int descriptor; /* negative if the piece is memory */
    off_t position;
};

struct pieces {
    struct iovec *iovecs;     /* the caller's, as the next one; of a range, only the size counts */
    struct piece_file *files; /* one for each iovec */
    uint32_t count;
    uint32_t next;
    bool has_more; /* other bytes follow these */
};

/* A negative descriptor. */
enum { PIECE_IN_MEMORY = -1, PIECE_IS_GAP = -2 };

static inline void pieces_add(struct pieces *pieces, const void *bytes, size_t size, int descriptor, off_t position)
{
    pieces->iovecs[pieces->count] = (struct iovec){.iov_base = (void *)bytes, .iov_len = size};
    pieces->files[pieces->count++] = (struct piece_file){.descriptor = descriptor, .position = position};
}

/* Each of these adds a piece. An empty one is left out. */
static inline void pieces_add_gap(struct pieces *pieces)
{
    pieces_add(pieces, NULL, 0, PIECE_IS_GAP, 0);
}

static inline void pieces_add_memory(struct pieces *pieces, const void *bytes, size_t size)
{
    if (size > 0) {
        pieces_add(pieces, bytes, size, PIECE_IN_MEMORY, 0);
    }
}

static inline void pieces_add_range(struct pieces *pieces, int descriptor, off_t position, size_t size)
{
    CHECK(descriptor >= 0);
    if (size > 0) {
        pieces_add(pieces, NULL, size, descriptor, position);
    }
}

/* Fills the gaps. The own bytes of gap n end at cuts[n] (format/produce.h), and those of the last gap at `own_size`. */
void pieces_fill_gaps(struct pieces *pieces, uint8_t *own, const size_t *cuts, size_t own_size);

/* Counts so many more bytes as written. */
void pieces_advance(struct pieces *pieces, size_t size);

/* Writes what one call accepts of the next pieces, of which at least one is left. Returns the number of bytes, or -1
 * with errno set. */
ssize_t pieces_send_some(const struct pieces *pieces, int socket);

#endif
