/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends the pieces of a response to a non-blocking socket, one portion per call.
 *
 *   bytes, small range  ──> memory ──> one sendmsg    a small range is read: one packet, and one wake-up of the client
 *   large range         ──> sendfile                  its bytes go from the page cache without a copy
 *
 * Rules: no call waits for the client. A call sends only one portion, so that a client that reads fast does not delay
 * other clients. The socket delays bytes that are followed by others (MSG_MORE), so the last bytes of a response are
 * sent without this flag. A file that ended too early ends the connection: no other bytes are sent in their place. If
 * an error follows a part that was sent, the call returns the sent bytes, and the next call reports the error.
 */
#ifndef BROKER_PORTION_H
#define BROKER_PORTION_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { PORTION_SIZE = 2 << 20 /* over loopback, the kernel copies this much in a millisecond */ };

struct response_piece {
    const void *bytes; /* NULL for a range of a file */
    size_t size;
    int file;
    off_t position;
};

/* Sends pieces after the first `gone` bytes, which were sent before. Returns the bytes that the socket accepted. If it
 * accepted none, returns -1 with errno set: EAGAIN if it is full, and ENODATA if a file ended too early. */
ssize_t portion_send(int socket, const struct response_piece *pieces, size_t count, size_t gone);

#endif
