/* SPDX-License-Identifier: Apache-2.0 */
#include "base/wall_clock.h"

#include <time.h>

#include "base/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The rate of the slowest processor with an invariant time stamp counter. */
enum { NS_PER_CYCLE_MAX = 2 };

static bool cycles_are_steady(void)
{
#if defined(__x86_64__)
    enum { POWER_MANAGEMENT = 0x80000007, STEADY = 1 << 8 };
    unsigned int eax;
    unsigned int ebx;
    unsigned int ecx;
    unsigned int edx;
    return __get_cpuid(POWER_MANAGEMENT, &eax, &ebx, &ecx, &edx) != 0 && (edx & STEADY) != 0;
#else
    return false;
#endif
}

void wall_clock_begin(struct wall_clock *clock)
{
    *clock = (struct wall_clock){.is_steady = cycles_are_steady()};
}

int64_t wall_clock_read(struct wall_clock *clock, uint64_t cycles)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t left_ns = NS_PER_MS - (uint64_t)now.tv_nsec % NS_PER_MS;
    clock->read_cycles = cycles;
    clock->lasting_cycles = clock->is_steady ? left_ns / NS_PER_CYCLE_MAX : 0;
    clock->read_ms = (int64_t)now.tv_sec * 1000 + (int64_t)((uint64_t)now.tv_nsec / NS_PER_MS);
    return clock->read_ms;
}
