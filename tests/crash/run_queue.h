/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine's part in a delay: the time that this process was ready to run while the machine ran others.
 */
#ifndef CRASH_RUN_QUEUE_H
#define CRASH_RUN_QUEUE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* Since its start: the second number of /proc/self/schedstat, or 0 if the kernel does not count it. */
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
    char *behind_running;
    (void)strtoull(text, &behind_running, 10);
    return strtoull(behind_running, NULL, 10);
}

#endif
