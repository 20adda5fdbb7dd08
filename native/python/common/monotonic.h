/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock of time.monotonic_ns().
 */
#ifndef PYTHON_COMMON_MONOTONIC_H
#define PYTHON_COMMON_MONOTONIC_H

#include <stdint.h>
#include <time.h>

static inline int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

#endif
