/* SPDX-License-Identifier: Apache-2.0 */
#include "in_memory.h"

#include <errno.h>
#include <string.h>

#include "arena/layout.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(place, size) ((void)(place), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(place, size) ((void)(place), (void)(size))
#endif

enum { ARENA_DESCRIPTOR = 1000, BOOT_DESCRIPTOR = 1002, SEMAPHORE_DESCRIPTOR = 1003, SLEEPS_MAX = 8 };

struct memory_system memory_system;
static sem_t semaphore; /* the semaphore of every waiter */

int memory_open(const char *path, int flags, ...)
{
    static int opened;
    (void)flags;
    if (strstr(path, "boot_id") != NULL) {
        return BOOT_DESCRIPTOR;
    }
    if (strstr(path, "/sem.") != NULL) {
        return SEMAPHORE_DESCRIPTOR;
    }
    opened = !opened; /* an arena has one descriptor for its mapping and another one for its locks */
    return ARENA_DESCRIPTOR + opened;
}

int memory_close(int descriptor)
{
    (void)descriptor;
    return 0;
}

ssize_t memory_read(int descriptor, void *target, size_t size)
{
    static const char boot_id[] = "01234567-89ab-cdef-0123-456789abcdef\n";
    if (descriptor != BOOT_DESCRIPTOR || size < sizeof boot_id) {
        errno = EBADF;
        return -1;
    }
    memcpy(target, boot_id, sizeof boot_id - 1);
    return sizeof boot_id - 1;
}

ssize_t memory_recv(int descriptor, void *target, size_t size, int flags)
{
    size_t left = memory_system.incoming_size;
    size_t used = size < memory_system.incoming_piece ? size : memory_system.incoming_piece;
    (void)descriptor;
    (void)flags;
    if (left == 0 && !memory_system.is_incoming_closed) {
        errno = EAGAIN;
        return -1;
    }
    used = used < left ? used : left;
    if (used > 0) {
        memcpy(target, memory_system.incoming, used);
    }
    memory_system.incoming += used;
    memory_system.incoming_size -= used;
    return (ssize_t)used;
}

ssize_t memory_pread(int descriptor, void *target, size_t size, off_t start)
{
    (void)descriptor;
    uint64_t rest = (uint64_t)start < memory_system.file_size ? memory_system.file_size - (uint64_t)start : 0;
    size_t used = size < rest ? size : (size_t)rest;
    memcpy(target, memory_system.file + start, used);
    return (ssize_t)used;
}

int memory_fstat(int descriptor, struct stat *found)
{
    (void)descriptor;
    *found = (struct stat){.st_mode = S_IFREG | 0600, .st_size = (off_t)memory_system.file_size};
    return 0;
}

static bool is_locked_by_others(int64_t byte, short wanted)
{
    if (byte == ATTACH_LOCK_BYTE) {
        return wanted == F_WRLCK && !memory_system.is_alone;
    }
    int64_t entry = byte - PROCESS_LOCK_START;
    return entry >= 0 && entry < 64 && (memory_system.living >> entry & 1) != 0;
}

int memory_fcntl(int descriptor, int command, ...)
{
    (void)descriptor;
    __builtin_va_list arguments;
    __builtin_va_start(arguments, command);
    struct flock *request = __builtin_va_arg(arguments, struct flock *);
    __builtin_va_end(arguments);
    bool is_locked = is_locked_by_others(request->l_start, request->l_type);
    if (command == F_OFD_GETLK) { /* the other descriptor sees the lock of this process on the attach byte */
        request->l_type = is_locked || request->l_start == ATTACH_LOCK_BYTE ? F_WRLCK : F_UNLCK;
        return 0;
    }
    errno = EAGAIN;
    return is_locked ? -1 : 0;
}

void *memory_mmap(void *place, size_t size, int protection, int flags, int descriptor, off_t start)
{
    (void)place, (void)protection, (void)flags, (void)start;
    if (descriptor == SEMAPHORE_DESCRIPTOR) {
        return &semaphore;
    }
    if (size > memory_system.file_capacity) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    ASAN_POISON_MEMORY_REGION(memory_system.file + size, memory_system.file_capacity - size);
    return memory_system.file;
}

int memory_posix_fallocate(int descriptor, off_t start, off_t size)
{
    (void)descriptor;
    memory_system.file_size = (uint64_t)(start + size);
    return memory_system.file_size <= memory_system.file_capacity ? 0 : ENOSPC;
}

int memory_munmap(void *place, size_t size)
{
    (void)size;
    if (place == &semaphore) {
        return 0;
    }
    ASAN_UNPOISON_MEMORY_REGION(memory_system.file, memory_system.file_capacity);
    return 0;
}

int memory_fdatasync(int descriptor)
{
    (void)descriptor;
    errno = memory_system.os_error;
    memory_system.os_error = 0;
    return errno == 0 ? 0 : -1;
}

/* Each read of the clock advances it. */
int memory_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    memory_system.now_ns += 1000;
    *now = (struct timespec){.tv_sec = (time_t)(memory_system.now_ns / 1000000000),
                             .tv_nsec = (long)(memory_system.now_ns % 1000000000)};
    return 0;
}

/* Lets time pass. After SLEEPS_MAX of these waits, all other processes are dead. */
static void sleep_pass(const struct timespec *time)
{
    memory_system.now_ns += (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
    memory_system.sleep_count++;
    if (memory_system.sleep_count >= SLEEPS_MAX) {
        memory_system.living = 0;
        memory_system.is_alone = true;
    }
}

/* Takes a post of the semaphore, or lets time pass until the timeout. */
int memory_sem_clockwait(sem_t *waited, clockid_t clock, const struct timespec *end)
{
    (void)clock;
    if (sem_trywait(waited) == 0) {
        return 0;
    }
    const uint64_t end_ns = (uint64_t)end->tv_sec * 1000000000 + (uint64_t)end->tv_nsec;
    const uint64_t left_ns = end_ns > memory_system.now_ns ? end_ns - memory_system.now_ns : 0;
    sleep_pass(&(struct timespec){.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = (long)(left_ns % 1000000000)});
    errno = ETIMEDOUT;
    return -1;
}

int memory_nanosleep(const struct timespec *time, struct timespec *rest)
{
    (void)rest;
    sleep_pass(time);
    return 0;
}

int memory_prctl(int option, ...)
{
    (void)option;
    return 0;
}

/* futex(word, operation, value, timeout): a wait has a timeout, a wake has none. */
long memory_syscall(long number, ...)
{
    (void)number;
    __builtin_va_list arguments;
    __builtin_va_start(arguments, number);
    (void)__builtin_va_arg(arguments, uint32_t *);
    (void)__builtin_va_arg(arguments, int);
    (void)__builtin_va_arg(arguments, int);
    const struct timespec *timeout = __builtin_va_arg(arguments, const struct timespec *);
    __builtin_va_end(arguments);
    if (timeout == NULL) {
        return 0;
    }
    sleep_pass(timeout);
    errno = ETIMEDOUT;
    return -1;
}
