/* SPDX-License-Identifier: Apache-2.0
 *
 * The pieces of a request or response, in the order in which they go to a socket.
 *
 *   pieces   | own | memory | own | memory | range of a file | own |
 *                      ^ next; the bytes of it that were written are cut off
 *
 * Own bytes are those of the request itself. They are encoded after the batches are known. Until then, each of their
 * places is a gap, whose iovec has no value.
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
    bool has_ranges;
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
    pieces->files[pieces->count++].descriptor = PIECE_IS_GAP;
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
        pieces->has_ranges = true;
    }
}

/* Fills the gaps. The own bytes of gap n end at cuts[n] (format/produce.h), and those of the last gap at `own_size`. */
static inline void pieces_fill_gaps(struct pieces *pieces, uint8_t *own, const size_t *cuts, size_t own_size)
{
    size_t begin = 0;
    CHECK(pieces->count > 0 && pieces->files[pieces->count - 1].descriptor == PIECE_IS_GAP);
    for (uint32_t i = 0; i < pieces->count - 1; i++) {
        if (pieces->files[i].descriptor == PIECE_IS_GAP) {
            pieces->iovecs[i] = (struct iovec){.iov_base = own + begin, .iov_len = *cuts - begin};
            begin = *cuts++;
        }
    }
    pieces->iovecs[pieces->count - 1] = (struct iovec){.iov_base = own + begin, .iov_len = own_size - begin};
    pieces->count -= begin == own_size; /* a version without tagged fields has no bytes after the last batch */
}

/* Counts so many more bytes as written. */
static inline void pieces_advance(struct pieces *pieces, size_t size)
{
    while (pieces->next < pieces->count && size >= pieces->iovecs[pieces->next].iov_len) {
        size -= pieces->iovecs[pieces->next++].iov_len;
    }
    if (size > 0) {
        CHECK(pieces->next < pieces->count);
        struct iovec *iovec = &pieces->iovecs[pieces->next];
        struct piece_file *file = &pieces->files[pieces->next];
        iovec->iov_len -= size;
        if (file->descriptor >= 0) {
            file->position += (off_t)size;
        } else {
            iovec->iov_base = (char *)iovec->iov_base + size;
        }
    }
}

/* Writes what one call accepts of the next pieces, of which at least one is left. Returns the number of bytes, or -1
 * with errno set. */
ssize_t pieces_send_some(const struct pieces *pieces, int socket);

#endif
