/* SPDX-License-Identifier: Apache-2.0
 *
 * The pieces of a request or response, in the order in which they are sent.
 *
 *   pieces   | own | memory | own | memory | range of a file | own |
 *   iovecs      0      1       2      3                         4
 *   ranges                                         0                  its `place` is 4
 *
 * If a piece was written in part, it is shortened to its remaining bytes.
 *
 * Own bytes are those of the request itself. They are encoded after all batches are known. Until then, an iovec without
 * an address, a gap, reserves their place.
 *
 * One sendmsg writes the iovecs up to a range, or as many as one call accepts. A range goes from the page cache to the
 * socket by sendfile. sendfile has no flag against blocking, so the socket of a range must be non-blocking. If a call
 * writes less than it was given, the socket is full, and no other call follows. If a file is shorter than its range,
 * the call fails with ENODATA when it reaches the end of the file, and the connection has to be closed.
 */
#ifndef BROKER_PIECES_H
#define BROKER_PIECES_H

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct piece_range {
    uint32_t place; /* the number of iovecs before it */
    int file;
    off_t position;
    size_t size;
};

struct pieces {
    struct iovec *iovecs; /* owned by the caller, as are the ranges */
    uint32_t count;
    uint32_t next;
    struct piece_range *ranges;
    uint32_t range_count;
    uint32_t range_next;
    uint64_t sent_size; /* bytes that were written */
    bool has_more; /* other bytes follow these */
};

/* Each of these functions adds a piece, unless it is empty. */
static inline void pieces_add_gap(struct pieces *pieces)
{
    pieces->iovecs[pieces->count++].iov_base = NULL;
}

static inline void pieces_add_memory(struct pieces *pieces, const void *bytes, size_t size)
{
    if (size > 0) {
        CHECK(bytes != NULL);
        pieces->iovecs[pieces->count++] = (struct iovec){.iov_base = (void *)bytes, .iov_len = size};
    }
}

static inline void pieces_add_range(struct pieces *pieces, int file, off_t position, size_t size)
{
    CHECK(file >= 0);
    if (size > 0) {
        pieces->ranges[pieces->range_count++] =
            (struct piece_range){.place = pieces->count, .file = file, .position = position, .size = size};
    }
}

/* Fills the gaps. The bytes of gap n end at cuts[n] (format/produce.h). Those after the last cut follow all other
 * pieces. */
static inline void pieces_fill_gaps(struct pieces *pieces, uint8_t *own, const size_t *cuts, size_t own_size)
{
    size_t begin = 0;
    for (uint32_t i = 0; i < pieces->count; i++) {
        if (pieces->iovecs[i].iov_base == NULL) {
            pieces->iovecs[i] = (struct iovec){.iov_base = own + begin, .iov_len = *cuts - begin};
            begin = *cuts++;
        }
    }
    pieces_add_memory(pieces, own + begin, own_size - begin);
}

static inline bool pieces_are_left(const struct pieces *pieces)
{
    return pieces->next < pieces->count || pieces->range_next < pieces->range_count;
}

/* Counts this many more bytes of the next iovecs as written. */
static inline void pieces_advance(struct pieces *pieces, size_t size)
{
    uint32_t next = pieces->next;
    pieces->sent_size += size;
    while (next < pieces->count && size >= pieces->iovecs[next].iov_len) {
        size -= pieces->iovecs[next++].iov_len;
    }
    pieces->next = next;
    if (size > 0) {
        CHECK(next < pieces->count);
        struct iovec *iovec = &pieces->iovecs[next];
        iovec->iov_base = (char *)iovec->iov_base + size;
        iovec->iov_len -= size;
    }
}

/* Writes as much as the socket accepts. Returns false, with errno set, if the socket or a file fails. */
bool pieces_write(struct pieces *pieces, int socket);

#endif
