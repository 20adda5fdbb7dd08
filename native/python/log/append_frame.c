/* SPDX-License-Identifier: Apache-2.0
 *
 * One frame at the end of a file that several processes write in turn: a commit into the offsets of a group.
 *
 *   lock the byte ──> is the file as the caller left it? ──> write the frame ──> free the byte
 *
 *   frame      size u32 | crc u32 of the body | body          big-endian
 *
 * Rules: this call waits for nobody and repairs nothing. Where the byte is taken, the file has changed, or the write
 * fails, the caller goes the long way (shmaccum/log/groups/offsets_file.py), which waits, reads, cuts, and tells the
 * error.
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

struct appending {
    int64_t lock; /* a descriptor of the lock file */
    int64_t byte;
    int64_t file; /* opened with O_APPEND */
    int64_t size; /* of the file, as the caller left it */
    PyObject *body;
};

/* False where another open file description has the byte. */
static bool byte_set(const struct appending *appending, short type)
{
    struct flock request = {.l_type = type, .l_whence = SEEK_SET, .l_start = appending->byte, .l_len = 1};
    return fcntl((int)appending->lock, F_OFD_SETLK, &request) == 0;
}

/* Every other writer makes the file longer, or replaces it. */
static bool file_is_unchanged(const struct appending *appending)
{
    struct stat status;
    return fstat((int)appending->file, &status) == 0 && status.st_size == appending->size && status.st_nlink > 0;
}

/* The size of the file behind the frame; 0: nothing was written. */
static int64_t frame_write(const struct appending *appending, const char *body, size_t body_size)
{
    uint8_t head[HEAD_SIZE];
    store_be32(head, (uint32_t)body_size);
    store_be32(head + sizeof(uint32_t), crc32c_extend(0, body, body_size));
    const struct iovec parts[] = {{head, HEAD_SIZE}, {(void *)body, body_size}};
    ssize_t written = writev((int)appending->file, parts, 2);
    if (written == (ssize_t)(HEAD_SIZE + body_size)) {
        return appending->size + written;
    }
    if (written > 0) {
        (void)!ftruncate((int)appending->file, appending->size); /* where this fails, the long way cuts the frame */
    }
    return 0;
}

/* As frame_write, with the byte, which is free before and behind. */
static int64_t frame_append(const struct appending *appending, const char *body, size_t body_size)
{
    if (!byte_set(appending, F_WRLCK)) {
        return 0;
    }
    int64_t size = file_is_unchanged(appending) ? frame_write(appending, body, body_size) : 0;
    byte_set(appending, F_UNLCK);
    return size;
}

static const struct argument_table table = {
    {"append_frame", {"lock", "byte", "file", "size", "body"}, 5, 5},
    {INTEGER_ARGUMENT(struct appending, lock, 0, INT32_MAX), INTEGER_ARGUMENT(struct appending, byte, 0, INT64_MAX - 1),
     INTEGER_ARGUMENT(struct appending, file, 0, INT32_MAX),
     INTEGER_ARGUMENT(struct appending, size, 0, INT64_MAX / 2), OBJECT_ARGUMENT(struct appending, body)},
};

PyObject *log_append_frame(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct appending appending;
    if (!arguments_parse(PyModule_GetState(module), &table, args, count, names, &appending)) {
        return NULL;
    }
    if (!PyBytes_Check(appending.body) || PyBytes_GET_SIZE(appending.body) > INT32_MAX) {
        return PyErr_Format(PyExc_TypeError, "append_frame() argument 'body' must be bytes, not %.100s",
                            Py_TYPE(appending.body)->tp_name);
    }
    const char *body = PyBytes_AS_STRING(appending.body);
    size_t body_size = (size_t)PyBytes_GET_SIZE(appending.body);
    int64_t size;
    Py_BEGIN_ALLOW_THREADS
    size = frame_append(&appending, body, body_size);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(size);
}
