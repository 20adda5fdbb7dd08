/* SPDX-License-Identifier: Apache-2.0
 *
 * The wall clock in whole milliseconds, for the timestamp of every record.
 *
 * The kernel's clock waits on each look until the instructions before it are done: 22 ns of the 118 ns of a send. So a
 * look also notes the cycles of the processor (its time stamp counter), and for how many of them its millisecond lasts.
 * The next records ask for the cycles alone, and get the same millisecond until it is over:
 *
 *   |<--------------------------- a millisecond --------------------------->|
 *   ........ look ............... look ........ look .... look .. look look
 *            |<- the cycles answer -->|
 *
 * Nothing says how fast the cycles go. An answer holds for as long as the millisecond would last with the slowest ones,
 * and then the kernel is asked again: some forty times a millisecond.
 *
 * WHY IT IS RIGHT
 *   Steady cycles    go at one rate, on all cores alike, also while the processor sleeps. Where CPUID does not say so,
 *                    and on a processor without CPUID, the kernel is asked for each record.
 *   Cycles first     they are read before the kernel's clock, so the time between the two shortens the answer.
 *   Cycles in order  the processor reads them behind an earlier look at the kernel's clock, never before it.
 *   Fewer cycles     (another host, a sleep that began them anew) are a large distance without a sign: the kernel is
 *                    asked.
 *   A clock that is set is noticed within a millisecond.
 *
 * Private memory, one thread at a time. All zeros is a clock that asks the kernel each time.
 */
#ifndef BASE_WALL_CLOCK_H
#define BASE_WALL_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"

struct wall_clock {
    bool is_steady;          /* the cycles may answer */
    uint64_t looked_cycles;  /* at the last look */
    uint64_t lasting_cycles; /* for which its answer holds */
    int64_t looked_ms;
};

void wall_clock_begin(struct wall_clock *clock);

/* Asks the kernel; `cycles` were read before. */
int64_t wall_clock_look(struct wall_clock *clock, uint64_t cycles);

static inline uint64_t processor_cycles(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* Milliseconds since 1970. */
static inline int64_t wall_clock_ms(struct wall_clock *clock)
{
    uint64_t cycles = processor_cycles();
    if (LIKELY(cycles - clock->looked_cycles < clock->lasting_cycles)) {
        return clock->looked_ms;
    }
    return wall_clock_look(clock, cycles);
}

#endif
