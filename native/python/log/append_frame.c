/* SPDX-License-Identifier: Apache-2.0
 *
 * One frame at the end of a file that several processes write in turn: a commit into the offsets of a group.
 *
 *   lock the byte ──> is the file as the caller left it? ──> write the frame ──> unlock the byte
 *
 *   frame      size u32 | crc u32 of the body | body          big-endian
 *
 *   lock       a descriptor of the lock file       file   opened with O_APPEND
 *   size       of the file, as the caller left it
 *
 * Rules: this call never waits and repairs nothing. If the byte is locked, the file has changed, or the write fails,
 * the caller takes the slow path (shmaccum/log/groups/offsets_file.py), which waits, reads, cuts, and raises the error.
 *
 * Deaths: the kernel frees the byte with its holder. A frame that was written in part is cut by the next writer.
 */
#include "base/bytes.h"
#include "format/crc32c.h"
#include "python/common/arguments.h"
#include "python/log/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD_SIZE = 8 };

/* Returns false if another open file description has locked the byte. */
static bool byte_set(const struct py_module_append_frame *given, short type)
{
    struct flock request = {.l_type = type, .l_whence = SEEK_SET, .l_start = given->byte, .l_len = 1};
    return fcntl((int)given->lock, F_OFD_SETLK, &request) == 0;
}

/* Any other writer extends or replaces the file. */
static bool file_is_unchanged(const struct py_module_append_frame *given)
{
    struct stat status;
    return fstat((int)given->file, &status) == 0 && status.st_size == given->size && status.st_nlink > 0;
}

/* Returns the size of the file after the frame, or 0 if nothing was written. */
static int64_t frame_write(const struct py_module_append_frame *given, const char *body, size_t body_size)
{
    uint8_t head[HEAD_SIZE];
    store_be32(head, (uint32_t)body_size);
    store_be32(head + sizeof(uint32_t), crc32c_extend(0, body, body_size));
    const struct iovec parts[] = {{head, HEAD_SIZE}, {(void *)body, body_size}};
    ssize_t written = writev((int)given->file, parts, 2);
    if (written == (ssize_t)(HEAD_SIZE + body_size)) {
        return given->size + written;
    }
    if (written > 0) {
        (void)!ftruncate((int)given->file, given->size); /* if this fails, the slow path cuts the frame */
    }
    return 0;
}

/* Runs frame_write under the lock of the byte. */
static int64_t frame_append(const struct py_module_append_frame *given, const char *body, size_t body_size)
{
    if (!byte_set(given, F_WRLCK)) {
        return 0;
    }
    int64_t size = file_is_unchanged(given) ? frame_write(given, body, body_size) : 0;
    byte_set(given, F_UNLCK);
    return size;
}

PyObject *py_module_append_frame(PyObject *module, const struct py_module_append_frame *given)
{
    int64_t size;
    (void)module;
    if (!PyBytes_Check(given->body) || PyBytes_GET_SIZE(given->body) > INT32_MAX) {
        return PyErr_Format(PyExc_TypeError, "append_frame() argument 'body' must be bytes, not %.100s",
                            Py_TYPE(given->body)->tp_name);
    }
    const char *body = PyBytes_AS_STRING(given->body);
    size_t body_size = (size_t)PyBytes_GET_SIZE(given->body);
    Py_BEGIN_ALLOW_THREADS
    size = frame_append(given, body, body_size);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(size);
}
