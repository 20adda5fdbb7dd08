/* SPDX-License-Identifier: Apache-2.0
 *
 * The time that this process spent in the run queue: it was ready to run, but the processor ran another process.
 */
#ifndef CRASH_RUN_QUEUE_H
#define CRASH_RUN_QUEUE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* Returns the time in the run queue since the process started, which is the second number of /proc/self/schedstat.
 * Returns 0 if the kernel does not count it. */
static inline uint64_t queued_ns(void)
{
    char text[96];
    int file = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) {
        close(file);
    }
    if (size <= 0) {
        return 0;
    }
    text[size] = '\0';
    char *after_first;
    (void)strtoull(text, &after_first, 10);
    return strtoull(after_first, NULL, 10);
}

#endif
