/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/pieces.h"

#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

enum { IOVECS_AT_ONCE = 1024 /* IOV_MAX */ };

/* Returns the number of the pieces from the next one on that one call writes. */
static uint32_t memory_count(const struct pieces *pieces)
{
    uint32_t left = pieces->count - pieces->next;
    uint32_t count = left < IOVECS_AT_ONCE ? left : IOVECS_AT_ONCE;
    for (uint32_t i = 0; pieces->has_ranges && i < count; i++) {
        if (pieces->files[pieces->next + i].descriptor >= 0) {
            return i;
        }
    }
    return count;
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
