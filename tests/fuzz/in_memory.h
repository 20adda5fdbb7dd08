/* SPDX-License-Identifier: Apache-2.0
 *
 * The system calls of the core when it is fuzzed: one file in memory, byte locks, a simulated clock, and one socket
 * that provides bytes. A call costs nothing, so that an attach takes microseconds. The bytes past the mapping are
 * poisoned, so that AddressSanitizer detects an access to the first byte outside of it.
 *
 * The compiler includes this file before every other (-include), and it replaces the names of the calls.
 */
#ifndef IN_MEMORY_H
#define IN_MEMORY_H

#include <fcntl.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The file, the clock and the other processes. */
struct memory_system {
    uint8_t *file; /* begins at a page boundary */
    uint64_t file_size;
    uint64_t file_capacity; /* bytes that may be poisoned past the mapping */
    uint64_t now_ns;
    uint64_t living; /* bit i is set if entry i belongs to another living process */
    bool is_alone;   /* no other process holds the attach byte */
    uint32_t sleep_count; /* sleeps without a wake-up; after SLEEPS_MAX of them, all other processes are dead */
    int os_error;    /* the next fdatasync fails with it, unless it is 0 */
    const uint8_t *incoming; /* the bytes that the socket still has */
    size_t incoming_size;
    size_t incoming_piece;   /* the maximum number of bytes that one call returns */
    bool is_incoming_closed; /* the stream ends after these bytes; otherwise, the socket is empty */
};
extern struct memory_system memory_system;

int memory_open(const char *path, int flags, ...);
int memory_close(int descriptor);
ssize_t memory_read(int descriptor, void *target, size_t size);
ssize_t memory_pread(int descriptor, void *target, size_t size, off_t start);
ssize_t memory_recv(int descriptor, void *target, size_t size, int flags);
int memory_fstat(int descriptor, struct stat *found);
int memory_fcntl(int descriptor, int command, ...);
void *memory_mmap(void *place, size_t size, int protection, int flags, int descriptor, off_t start);
int memory_posix_fallocate(int descriptor, off_t start, off_t size);
int memory_munmap(void *place, size_t size);
int memory_fdatasync(int descriptor);
int memory_clock_gettime(clockid_t clock, struct timespec *now);
int memory_sem_clockwait(sem_t *waited, clockid_t clock, const struct timespec *end);
int memory_nanosleep(const struct timespec *time, struct timespec *rest);
int memory_prctl(int option, ...);
long memory_syscall(long number, ...);

#define open(...) memory_open(__VA_ARGS__)
#define close(descriptor) memory_close(descriptor)
#define read(descriptor, target, size) memory_read(descriptor, target, size)
#define pread(descriptor, target, size, start) memory_pread(descriptor, target, size, start)
#define recv(descriptor, target, size, flags) memory_recv(descriptor, target, size, flags)
#define fstat(descriptor, found) memory_fstat(descriptor, found)
#define fcntl(...) memory_fcntl(__VA_ARGS__)
#define mmap(...) memory_mmap(__VA_ARGS__)
#define posix_fallocate(descriptor, start, size) memory_posix_fallocate(descriptor, start, size)
#define munmap(place, size) memory_munmap(place, size)
#define madvise(place, size, advice) ((void)(place), (void)(size), 0)
#define fdatasync memory_fdatasync
#define clock_gettime(clock, now) memory_clock_gettime(clock, now)
#define sem_clockwait memory_sem_clockwait
#define nanosleep(time, rest) memory_nanosleep(time, rest)
#define syscall(...) memory_syscall(__VA_ARGS__)
#define fopen(path, mode) ((FILE *)NULL)
#define getpid() 1
#define prctl(...) memory_prctl(__VA_ARGS__)

#endif
