/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/pieces.h"

#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

enum { IOVECS_AT_ONCE = 1024 /* IOV_MAX */ };

/* Each of these functions makes one system call. Returns false, with errno set, if it did not write all bytes: EAGAIN
 * if the socket is full. */
static bool iovecs_write(struct pieces *pieces, uint32_t end, int socket)
{
    end = end - pieces->next > IOVECS_AT_ONCE ? pieces->next + IOVECS_AT_ONCE : end;
    struct msghdr message = {.msg_iov = &pieces->iovecs[pieces->next], .msg_iovlen = end - pieces->next};
    bool has_more = end < pieces->count || pieces->range_next < pieces->range_count || pieces->has_more;
    ssize_t size = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL | (has_more ? MSG_MORE : 0));
    if (size < 0) {
        return false;
    }
    pieces_advance(pieces, (size_t)size);
    if (pieces->next < end) {
        errno = EAGAIN;
        return false;
    }
    return true;
}

static bool range_write(struct pieces *pieces, int socket)
{
    struct piece_range *range = &pieces->ranges[pieces->range_next];
    off_t position = range->position;
    ssize_t size = sendfile(socket, range->file, &position, range->size);
    if (size == 0) {
        errno = ENODATA;
    }
    if (size <= 0) {
        return false;
    }
    pieces->sent_size += (uint64_t)size;
    range->position += (off_t)size;
    range->size -= (size_t)size;
    if (range->size > 0) {
        errno = EAGAIN;
        return false;
    }
    pieces->range_next++;
    return true;
}

bool pieces_write(struct pieces *pieces, int socket)
{
    while (pieces_are_left(pieces)) {
        bool has_range = pieces->range_next < pieces->range_count;
        uint32_t end = has_range ? pieces->ranges[pieces->range_next].place : pieces->count;
        bool is_whole = pieces->next < end ? iovecs_write(pieces, end, socket) : range_write(pieces, socket);
        if (!is_whole && errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
    }
    return true;
}
