/* SPDX-License-Identifier: Apache-2.0
 *
 * Time comes in as an argument. Code that needs the time of now holds a `struct clock`; tests turn its hands
 * themselves. All times in the arena are CLOCK_BOOTTIME nanoseconds (one clock for every process of the host, also in
 * containers, and it goes on while the machine sleeps); record timestamps are wall-clock milliseconds as in Kafka.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

struct clock {
    bool is_manual;     /* false: the kernel's clock */
    uint64_t manual_ns; /* the time of a manual clock */
};

uint64_t clock_now_ns(const struct clock *clock);

#endif
