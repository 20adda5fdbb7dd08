/* SPDX-License-Identifier: Apache-2.0 */
#include "log/frame_append.h"

#include "base/bytes.h"
#include "format/crc32c.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD_SIZE = 8 };

/* Returns false if another open file description has locked the byte. */
static bool byte_set(const struct frame_append *append, short type)
{
    struct flock request = {.l_type = type, .l_whence = SEEK_SET, .l_start = append->byte, .l_len = 1};
    return fcntl(append->lock, F_OFD_SETLK, &request) == 0;
}

/* Returns false if another writer has extended, truncated or replaced the file. */
static bool file_is_unchanged(const struct frame_append *append)
{
    struct stat status;
    return fstat(append->file, &status) == 0 && status.st_size == append->size && status.st_nlink > 0;
}

static int64_t frame_write(const struct frame_append *append)
{
    uint8_t head[HEAD_SIZE];
    store_be32(head, (uint32_t)append->body_size);
    store_be32(head + sizeof(uint32_t), crc32c_extend(0, append->body, append->body_size));
    const struct iovec parts[] = {{head, HEAD_SIZE}, {(void *)append->body, append->body_size}};
    ssize_t written = writev(append->file, parts, 2);
    if (written == (ssize_t)(HEAD_SIZE + append->body_size)) {
        return append->size + written;
    }
    if (written > 0) {
        (void)!ftruncate(append->file, append->size); /* if this fails, the slow path cuts the frame */
    }
    return 0;
}

int64_t frame_append(const struct frame_append *append)
{
    if (!byte_set(append, F_WRLCK)) {
        return 0;
    }
    int64_t size = file_is_unchanged(append) ? frame_write(append) : 0;
    byte_set(append, F_UNLCK);
    return size;
}
