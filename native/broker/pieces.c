/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/pieces.h"

#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

enum { IOVECS_AT_ONCE = 1024 /* IOV_MAX */ };

/* ---- the list ---- */

void pieces_fill_gaps(struct pieces *pieces, uint8_t *own, const size_t *cuts, size_t own_size)
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

/* ---- the way to the socket ---- */

void pieces_advance(struct pieces *pieces, size_t size)
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

/* Returns the number of the pieces from the next one on that one call writes. */
static uint32_t memory_count(const struct pieces *pieces)
{
    uint32_t end = pieces->next;
    while (end < pieces->count && end - pieces->next < IOVECS_AT_ONCE && pieces->files[end].descriptor < 0) {
        end++;
    }
    return end - pieces->next;
}

static ssize_t memory_send(const struct pieces *pieces, int socket)
{
    uint32_t count = memory_count(pieces);
    struct msghdr message = {.msg_iov = &pieces->iovecs[pieces->next], .msg_iovlen = count};
    int more = pieces->has_more || pieces->next + count < pieces->count ? MSG_MORE : 0;
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL | more);
}

static ssize_t range_send(const struct pieces *pieces, int socket)
{
    const struct piece_file *file = &pieces->files[pieces->next];
    off_t position = file->position;
    ssize_t sent = sendfile(socket, file->descriptor, &position, pieces->iovecs[pieces->next].iov_len);
    if (sent == 0) {
        errno = ENODATA;
        return -1;
    }
    return sent;
}

ssize_t pieces_send_some(const struct pieces *pieces, int socket)
{
    CHECK(pieces->next < pieces->count);
    return pieces->files[pieces->next].descriptor >= 0 ? range_send(pieces, socket) : memory_send(pieces, socket);
}
