/* SPDX-License-Identifier: Apache-2.0 */
#include "base/wall_clock.h"

#include "testing.h"

#include <time.h>

#include "base/clock.h"

enum { PLANTED_MS = 42, LONG = 1 << 30 };

static int64_t kernel_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Compare the clock with the kernel's for 50 ms, thousands of times per millisecond. */
static void expect_the_kernels_time(struct wall_clock *clock)
{
    int64_t end_ms = kernel_ms() + 50;
    for (int64_t before = kernel_ms(); before < end_ms; before = kernel_ms()) {
        int64_t now = wall_clock_ms(clock);
        int64_t after = kernel_ms();
        EXPECT(before <= now);
        EXPECT(now <= after);
    }
}

TEST(it_shows_the_millisecond_of_the_kernel)
{
    struct wall_clock clock;
    wall_clock_begin(&clock);
    expect_the_kernels_time(&clock);
}

TEST(it_asks_the_kernel_each_time_where_the_cycles_are_not_steady)
{
    struct wall_clock clock = {.is_steady = false};
    expect_the_kernels_time(&clock);
    EXPECT_EQ_U64(clock.lasting_cycles, 0);
}

TEST(the_cycles_answer_while_the_millisecond_lasts)
{
    struct wall_clock clock = {.read_cycles = processor_cycles(), .lasting_cycles = LONG, .read_ms = PLANTED_MS};
    EXPECT(wall_clock_ms(&clock) == PLANTED_MS);
}

TEST(a_check_returns_how_long_it_is_valid)
{
    struct wall_clock clock = {.is_steady = true};
    EXPECT(wall_clock_read(&clock, processor_cycles()) >= PLANTED_MS);
    EXPECT(clock.lasting_cycles <= NS_PER_MS / 2);
}

TEST(a_cycle_counter_that_went_back_is_not_used)
{
    struct wall_clock clock = {
        .read_cycles = processor_cycles() + LONG, .lasting_cycles = LONG / 2, .read_ms = PLANTED_MS};
    int64_t before = kernel_ms();
    EXPECT(wall_clock_ms(&clock) >= before);
}

RUN_ALL()
