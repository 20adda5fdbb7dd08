/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/portion.h"

#include "broker/pieces.h"

#include <errno.h>
#include <unistd.h>

enum {
    GATHERED_MAX = 64,
    COPIED_MAX = 16 << 10, /* larger ranges are faster by sendfile */
};

struct sending {
    struct pieces gathered;
    struct iovec iovecs[GATHERED_MAX];
    struct piece_range ranges[GATHERED_MAX];
    size_t left; /* bytes of the portion that are not gathered */
    size_t gone; /* bytes at the front of the next pieces that were sent before this call */
    size_t copied;
    uint8_t copies[COPIED_MAX];
};

/* Reads a small range. Returns false with errno set. */
static bool range_copy(struct sending *sending, int file, off_t position, size_t size)
{
    uint8_t *copy = sending->copies + sending->copied;
    ssize_t read_size;
    do {
        read_size = pread(file, copy, size, position);
    } while (read_size < 0 && errno == EINTR);
    if (read_size >= 0 && read_size < (ssize_t)size) {
        errno = ENODATA;
    }
    if (read_size < (ssize_t)size) {
        return false;
    }
    sending->copied += size;
    pieces_add_memory(&sending->gathered, copy, size);
    return true;
}

/* Adds the remaining bytes of a piece. Sets `is_full` if they do not fit. Returns false with errno set. */
static bool piece_gather(struct sending *sending, const struct response_piece *piece, bool *is_full)
{
    size_t gone = sending->gone < piece->size ? sending->gone : piece->size;
    size_t size = piece->size - gone;
    bool is_range = piece->bytes == NULL;
    bool is_copied = is_range && size <= COPIED_MAX;
    *is_full = sending->gathered.count + sending->gathered.range_count == GATHERED_MAX ||
               (is_copied && size > COPIED_MAX - sending->copied);
    if (*is_full) {
        return true;
    }
    sending->gone -= gone;
    bool is_cut = is_range && !is_copied && size > sending->left;
    size = is_cut ? sending->left : size;
    sending->left -= size < sending->left ? size : sending->left;
    if (!is_range) {
        pieces_add_memory(&sending->gathered, (const char *)piece->bytes + gone, size);
    } else if (!is_copied) {
        pieces_add_range(&sending->gathered, piece->file, piece->position + (off_t)gone, size);
    }
    return !is_copied || size == 0 || range_copy(sending, piece->file, piece->position + (off_t)gone, size);
}

/* Gathers pieces from the next one on, as many as fit. Returns false with errno set. */
static bool pieces_gather(struct sending *sending, const struct response_piece *pieces, size_t count, size_t *next)
{
    bool is_full = false;
    sending->gathered = (struct pieces){.iovecs = sending->iovecs, .ranges = sending->ranges};
    sending->copied = 0;
    while (*next < count && sending->left > 0) {
        if (!piece_gather(sending, &pieces[*next], &is_full)) {
            return false;
        }
        if (is_full) {
            break;
        }
        ++*next;
    }
    sending->gathered.has_more = is_full;
    return true;
}

/* Sends the gathered pieces. Returns false with errno set if the socket accepts no more. */
static bool gathered_send(struct pieces *gathered, int socket, ssize_t *sent)
{
    bool is_well = pieces_write(gathered, socket);
    *sent += (ssize_t)gathered->sent_size;
    if (is_well && pieces_are_left(gathered)) {
        errno = EAGAIN;
        return false;
    }
    return is_well;
}

ssize_t portion_send(int socket, const struct response_piece *pieces, size_t count, size_t gone)
{
    struct sending sending;
    sending.left = PORTION_SIZE;
    sending.gone = gone;
    ssize_t sent = 0;
    size_t next = 0;
    bool is_going = true;
    while (is_going && next < count && sending.left > 0) {
        is_going = pieces_gather(&sending, pieces, count, &next) && gathered_send(&sending.gathered, socket, &sent);
    }
    return is_going || sent > 0 ? sent : -1;
}
