/* SPDX-License-Identifier: Apache-2.0
 *
 * A library that is loaded before all others (LD_PRELOAD), and lets the k-th system call of a process fail:
 *
 *   faults_arm(k, error)    counts calls from now on, and lets number k fail with errno = error.
 *                           If error is FAULT_SHORT, a write writes only half.
 *   faults_disarm()         returns the number of counted calls.
 *   faults_hit()            returns the name of the call that failed, or NULL.
 *
 * It counts the calls named below in all threads and forked children, from the C core, its extension modules and the
 * interpreter. A call that fails is not made.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

enum { FAULT_SHORT = -1 };

/* The state, in memory that forked children share. */
static struct state {
    atomic_int wanted; /* 0 if not armed */
    atomic_int wanted_error;
    atomic_int counted;
    _Atomic(const char *) hit; /* a literal, at the same address in each child */
} *state;

static struct state *shared(void)
{
    if (state == NULL) { /* in the first call of this library by a test, which has one thread then */
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (state == MAP_FAILED) {
            abort();
        }
    }
    return state;
}

void faults_arm(int number, int error)
{
    struct state *armed = shared();
    armed->hit = NULL;
    armed->counted = 0;
    armed->wanted_error = error;
    armed->wanted = number;
}

int faults_disarm(void)
{
    shared()->wanted = 0;
    return shared()->counted;
}

const char *faults_hit(void)
{
    return shared()->hit;
}

/* Return true if the call can fail with this error. A read of a regular file never fails with EAGAIN, and the
 * interpreter does not expect it. ppoll has two possible errors. */
static bool is_possible(const char *name, int error, int is_write)
{
    if (strcmp(name, "ppoll") == 0) {
        return error == EINTR || error == ENOMEM;
    }
    return error == FAULT_SHORT ? is_write : error != EAGAIN || strcmp(name, "read") != 0;
}

/* Return the error that this call fails with, or 0 if the call is made. */
static int fault_of(const char *name, int is_write)
{
    if (state == NULL || state->wanted == 0 || atomic_fetch_add(&state->counted, 1) + 1 != state->wanted) {
        return 0;
    }
    int error = state->wanted_error;
    if (!is_possible(name, error, is_write)) {
        return 0;
    }
    state->hit = name;
    return error;
}

#define REAL(type, name, parameters)                        \
    static type(*real) parameters;                          \
    if (real == NULL) {                                     \
        *(void **)&real = dlsym(RTLD_NEXT, #name);          \
    }

#define FAIL_IF_WANTED(name, failed)                        \
    do {                                                    \
        int error = fault_of(#name, 0);                     \
        if (error != 0) {                                   \
            errno = error;                                  \
            return failed;                                  \
        }                                                   \
    } while (0)

#define CALL(type, failed, name, parameters, arguments)     \
    type name parameters                                    \
    {                                                       \
        REAL(type, name, parameters)                        \
        FAIL_IF_WANTED(name, failed);                       \
        return real arguments;                              \
    }

/* ---- opening; only a call that creates a file has a mode, but reading it is always harmless ---- */

#define OPEN(name)                                          \
    int name(const char *path, int flags, ...)              \
    {                                                       \
        REAL(int, name, (const char *, int, ...))           \
        FAIL_IF_WANTED(name, -1);                           \
        va_list arguments;                                  \
        va_start(arguments, flags);                         \
        mode_t mode = va_arg(arguments, mode_t);            \
        va_end(arguments);                                  \
        return real(path, flags, mode);                     \
    }

#define OPENAT(name)                                        \
    int name(int folder, const char *path, int flags, ...)  \
    {                                                       \
        REAL(int, name, (int, const char *, int, ...))      \
        FAIL_IF_WANTED(name, -1);                           \
        va_list arguments;                                  \
        va_start(arguments, flags);                         \
        mode_t mode = va_arg(arguments, mode_t);            \
        va_end(arguments);                                  \
        return real(folder, path, flags, mode);             \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CALL(int, -1, shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode))
CALL(int, -1, shm_unlink, (const char *name), (name))

/* ---- files ---- */

CALL(int, -1, ftruncate, (int file, off_t size), (file, size))
CALL(int, -1, ftruncate64, (int file, off64_t size), (file, size))
CALL(int, -1, fallocate, (int file, int mode, off_t start, off_t size), (file, mode, start, size))
CALL(int, -1, fallocate64, (int file, int mode, off64_t start, off64_t size), (file, mode, start, size))
CALL(int, errno, posix_fallocate, (int file, off_t start, off_t size), (file, start, size))
CALL(int, errno, posix_fallocate64, (int file, off64_t start, off64_t size), (file, start, size))
CALL(int, -1, fsync, (int file), (file))
CALL(int, -1, fdatasync, (int file), (file))
CALL(int, -1, fchmod, (int file, mode_t mode), (file, mode))
CALL(int, -1, chmod, (const char *path, mode_t mode), (path, mode))
CALL(int, -1, rename, (const char *from, const char *to), (from, to))
CALL(int, -1, unlink, (const char *path), (path))
CALL(int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
CALL(int, -1, mkfifo, (const char *path, mode_t mode), (path, mode))
CALL(int, -1, fstat, (int file, struct stat *found), (file, found))
CALL(int, -1, fstat64, (int file, struct stat64 *found), (file, found))
CALL(int, -1, stat, (const char *path, struct stat *found), (path, found))
CALL(int, -1, stat64, (const char *path, struct stat64 *found), (path, found))
CALL(int, -1, lstat, (const char *path, struct stat *found), (path, found))
CALL(int, -1, lstat64, (const char *path, struct stat64 *found), (path, found))
CALL(int, -1, fstatfs, (int file, struct statfs *found), (file, found))
CALL(int, -1, flock, (int file, int operation), (file, operation))

#define FCNTL(name)                                         \
    int name(int file, int command, ...)                    \
    {                                                       \
        REAL(int, name, (int, int, ...))                    \
        FAIL_IF_WANTED(name, -1);                           \
        va_list arguments;                                  \
        va_start(arguments, command);                       \
        void *argument = va_arg(arguments, void *);         \
        va_end(arguments);                                  \
        return real(file, command, argument);               \
    }

FCNTL(fcntl)
FCNTL(fcntl64)

/* ---- reading and writing ---- */

CALL(ssize_t, -1, read, (int file, void *target, size_t size), (file, target, size))
CALL(ssize_t, -1, pread, (int file, void *target, size_t size, off_t start), (file, target, size, start))
CALL(ssize_t, -1, pread64, (int file, void *target, size_t size, off64_t start), (file, target, size, start))

#define WRITE(name, parameters, whole, half)                \
    ssize_t name parameters                                 \
    {                                                       \
        REAL(ssize_t, name, parameters)                     \
        int error = fault_of(#name, 1);                     \
        if (error == FAULT_SHORT) {                         \
            return real half;                               \
        }                                                   \
        if (error != 0) {                                   \
            errno = error;                                  \
            return -1;                                      \
        }                                                   \
        return real whole;                                  \
    }

#define HALF(size) ((size) / 2 + (size) % 2)

/* Write the first half of several pieces, or half of a single piece. */
static struct iovec one_half;

static const struct iovec *pieces_half(const struct iovec *pieces, int *count)
{
    if (*count > 1) {
        *count /= 2;
        return pieces;
    }
    one_half = (struct iovec){.iov_base = pieces[0].iov_base, .iov_len = HALF(pieces[0].iov_len)};
    return &one_half;
}

WRITE(write, (int file, const void *source, size_t size), (file, source, size), (file, source, HALF(size)))
WRITE(pwrite, (int file, const void *source, size_t size, off_t start), (file, source, size, start),
      (file, source, HALF(size), start))
WRITE(pwrite64, (int file, const void *source, size_t size, off64_t start), (file, source, size, start),
      (file, source, HALF(size), start))

#define WRITE_PIECES(name, parameters, whole, half)         \
    ssize_t name parameters                                 \
    {                                                       \
        REAL(ssize_t, name, parameters)                     \
        int error = fault_of(#name, 1);                     \
        if (error == FAULT_SHORT && count > 0) {            \
            pieces = pieces_half(pieces, &count);           \
            return real half;                               \
        }                                                   \
        if (error > 0) {                                    \
            errno = error;                                  \
            return -1;                                      \
        }                                                   \
        return real whole;                                  \
    }

WRITE_PIECES(writev, (int file, const struct iovec *pieces, int count), (file, pieces, count), (file, pieces, count))
WRITE_PIECES(pwritev, (int file, const struct iovec *pieces, int count, off_t start), (file, pieces, count, start),
             (file, pieces, count, start))
WRITE_PIECES(pwritev64, (int file, const struct iovec *pieces, int count, off64_t start), (file, pieces, count, start),
             (file, pieces, count, start))
WRITE_PIECES(pwritev2, (int file, const struct iovec *pieces, int count, off_t start, int flags),
             (file, pieces, count, start, flags), (file, pieces, count, start, flags))
WRITE_PIECES(pwritev64v2, (int file, const struct iovec *pieces, int count, off64_t start, int flags),
             (file, pieces, count, start, flags), (file, pieces, count, start, flags))

/* ---- sockets ---- */

WRITE(send, (int file, const void *source, size_t size, int flags), (file, source, size, flags),
      (file, source, HALF(size), flags))
CALL(ssize_t, -1, recv, (int file, void *target, size_t size, int flags), (file, target, size, flags))
CALL(int, -1, ppoll, (struct pollfd *polled, nfds_t count, const struct timespec *time, const sigset_t *signals),
     (polled, count, time, signals))

ssize_t sendmsg(int file, const struct msghdr *message, int flags)
{
    REAL(ssize_t, sendmsg, (int, const struct msghdr *, int))
    int error = fault_of("sendmsg", 1);
    if (error == FAULT_SHORT && message->msg_iovlen > 0) {
        int count = (int)message->msg_iovlen;
        struct msghdr half = *message;
        half.msg_iov = (struct iovec *)pieces_half(message->msg_iov, &count);
        half.msg_iovlen = (size_t)count;
        return real(file, &half, flags);
    }
    if (error > 0) {
        errno = error;
        return -1;
    }
    return real(file, message, flags);
}

/* ---- memory ---- */

#define MAP_REFUSED ((void *)-1)
CALL(void *, MAP_REFUSED, mmap, (void *place, size_t size, int protection, int flags, int file, off_t start),
     (place, size, protection, flags, file, start))
CALL(void *, MAP_REFUSED, mmap64, (void *place, size_t size, int protection, int flags, int file, off64_t start),
     (place, size, protection, flags, file, start))
CALL(int, -1, madvise, (void *place, size_t size, int advice), (place, size, advice))

/* ---- waiting ---- */

/* Only named semaphores fail. The interpreter's own locks are unnamed semaphores, and must not fail. */
enum { NAMED_MAX = 256 };
static sem_t *named[NAMED_MAX];
static atomic_int named_count;

static int is_named(const sem_t *semaphore)
{
    int found = 0;
    for (int i = 0; i < named_count && i < NAMED_MAX; i++) {
        found |= named[i] == semaphore;
    }
    return found;
}

sem_t *sem_open(const char *name, int flags, ...)
{
    REAL(sem_t *, sem_open, (const char *, int, ...))
    FAIL_IF_WANTED(sem_open, SEM_FAILED);
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    unsigned int value = va_arg(arguments, unsigned int);
    va_end(arguments);
    sem_t *semaphore = real(name, flags, mode, value);
    if (semaphore != SEM_FAILED && !is_named(semaphore) && named_count < NAMED_MAX) {
        named[named_count++] = semaphore;
    }
    return semaphore;
}

#define SEMAPHORE(name, parameters, arguments)              \
    int name parameters                                     \
    {                                                       \
        REAL(int, name, parameters)                         \
        if (is_named(semaphore)) {                          \
            FAIL_IF_WANTED(name, -1);                       \
        }                                                   \
        return real arguments;                              \
    }

SEMAPHORE(sem_clockwait, (sem_t *semaphore, clockid_t clock, const struct timespec *end), (semaphore, clock, end))
SEMAPHORE(sem_timedwait, (sem_t *semaphore, const struct timespec *end), (semaphore, end))
SEMAPHORE(sem_wait, (sem_t *semaphore), (semaphore))
SEMAPHORE(sem_trywait, (sem_t *semaphore), (semaphore))
SEMAPHORE(sem_post, (sem_t *semaphore), (semaphore))
CALL(int, -1, sem_unlink, (const char *name), (name))
CALL(int, -1, eventfd, (unsigned int value, int flags), (value, flags))
CALL(int, -1, pipe2, (int ends[2], int flags), (ends, flags))
CALL(ssize_t, -1, getrandom, (void *target, size_t size, unsigned int flags), (target, size, flags))

/* futex and the other calls without a function in the C library. */
long syscall(long number, ...)
{
    REAL(long, syscall, (long, ...))
    FAIL_IF_WANTED(syscall, -1);
    va_list list;
    va_start(list, number);
    long arguments[6];
    for (int i = 0; i < 6; i++) {
        arguments[i] = va_arg(list, long);
    }
    va_end(list);
    return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}
