/* SPDX-License-Identifier: Apache-2.0
 *
 * The wall clock in whole milliseconds, for the timestamp of every record.
 *
 * Reading the kernel's clock waits until all earlier instructions are done: 22 ns of the 118 ns of a send. Each read
 * therefore also stores the processor's cycle count (its time stamp counter) and the number of cycles that remain of
 * the millisecond. Until these cycles have passed, later records read the cycle count alone and get the same
 * millisecond:
 *
 *   |<--------------------------- a millisecond --------------------------->|
 *   ........ read ............... read ........ read .... read .. read read
 *            |<- cycles suffice ->|
 *
 * The frequency of the cycles is not known. So the validity is counted in cycles of the slowest processor, and the
 * kernel is read about forty times per millisecond.
 *
 * WHY IT IS CORRECT
 *   Steady cycles    have one rate, the same on all cores, also while the processor sleeps. If CPUID does not report
 *                    this, or does not exist, each record reads the kernel's clock.
 *   Cycles first     they are read before the kernel's clock, so the time between the two shortens the validity.
 *   Cycles in order  the processor reads them after an earlier read of the kernel's clock, never before it.
 *   Fewer cycles     (another host, or a sleep that reset them) give a large unsigned distance, so the kernel is read.
 *   A clock that is set is noticed within a millisecond.
 *
 * Private memory, one thread at a time. If all fields are zero, each call reads the kernel's clock.
 */
#ifndef BASE_WALL_CLOCK_H
#define BASE_WALL_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"

struct wall_clock {
    bool is_steady;          /* the cycle count may be used */
    uint64_t read_cycles;    /* at the last read of the kernel's clock */
    uint64_t lasting_cycles; /* read_ms is valid for this many cycles */
    int64_t read_ms;
};

void wall_clock_begin(struct wall_clock *clock);

/* Reads the kernel's clock. `cycles` were read before. */
int64_t wall_clock_read(struct wall_clock *clock, uint64_t cycles);

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
    if (LIKELY(cycles - clock->read_cycles < clock->lasting_cycles)) {
        return clock->read_ms;
    }
    return wall_clock_read(clock, cycles);
}

#endif
