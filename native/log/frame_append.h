/* SPDX-License-Identifier: Apache-2.0
 *
 * Appends a frame to a file that several processes write in turn: a commit to the offsets file of a group.
 *
 *   lock the byte ──> is the file unchanged? ──> write the frame ──> unlock the byte
 *
 *   frame      size u32 | crc u32 of the body | body          big-endian
 *
 * Rules: this call never waits and repairs nothing. If the byte is locked, the file has changed, or the write fails,
 * the caller takes the slow path (shmaccum/log/groups/offsets_file.py), which waits, reads, cuts, and raises the error.
 *
 * Deaths: if a process dies, the kernel unlocks its byte. The next writer cuts a frame that was not written whole.
 */
#ifndef LOG_FRAME_APPEND_H
#define LOG_FRAME_APPEND_H

#include <stddef.h>
#include <stdint.h>

struct frame_append {
    int lock;     /* the descriptor of the lock file */
    int64_t byte; /* of the lock file */
    int file;     /* opened with O_APPEND */
    int64_t size; /* the size of the file that the caller expects */
    const void *body;
    size_t body_size;
};

/* Returns the size of the file after the frame, or 0 if nothing was written. */
int64_t frame_append(const struct frame_append *append);

#endif
