/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions receive the time as an argument. Code that needs the current time has a `struct clock`, which tests set
 * manually. Times in the arena are CLOCK_BOOTTIME nanoseconds: one clock for all processes of the host and its
 * containers, which advances during suspend. Record timestamps are wall-clock milliseconds, as in Kafka.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

struct clock {
    bool is_manual;     /* if false, read the kernel's clock */
    uint64_t manual_ns; /* the time of a manual clock */
};

uint64_t clock_now_ns(const struct clock *clock);

#endif
