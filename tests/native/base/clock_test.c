/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include "testing.h"

#include <time.h>

static uint64_t boot_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

TEST(a_manual_clock_shows_what_it_was_set_to)
{
    struct clock clock = {.is_manual = true, .manual_ns = 42 * NS_PER_MS};
    EXPECT_EQ_U64(clock_now_ns(&clock), 42 * NS_PER_MS);
    EXPECT_EQ_U64(clock_now_ns(&clock), 42 * NS_PER_MS);
    clock.manual_ns += NS_PER_S;
    EXPECT_EQ_U64(clock_now_ns(&clock), 42 * NS_PER_MS + NS_PER_S);
}

TEST(the_kernels_clock_is_the_time_since_boot)
{
    struct clock clock = {.is_manual = false, .manual_ns = UINT64_MAX};
    uint64_t before = boot_time_ns();
    uint64_t now = clock_now_ns(&clock);
    uint64_t after = boot_time_ns();
    EXPECT(before <= now);
    EXPECT(now <= after);
}

RUN_ALL()
