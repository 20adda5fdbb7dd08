/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers for tests that try many cases. The seed is printed, and TESTING_SEED=N repeats a run:
 *
 *   struct randomness randomness = randomness_seeded(__func__);
 *   size_t size = random_below(&randomness, 300);
 */
#ifndef RANDOMNESS_H
#define RANDOMNESS_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct randomness {
    uint64_t state;
};

static inline struct randomness randomness_seeded(const char *test)
{
    const char *wanted = getenv("TESTING_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = wanted != NULL ? strtoull(wanted, NULL, 0) : (uint64_t)now.tv_sec ^ (uint64_t)now.tv_nsec << 20;
    fprintf(stderr, "%s: TESTING_SEED=%" PRIu64 "\n", test, seed);
    return (struct randomness){.state = seed};
}

/* splitmix64 */
static inline uint64_t random_bits(struct randomness *randomness)
{
    uint64_t bits = randomness->state += UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
    return bits ^ bits >> 31;
}

static inline uint64_t random_below(struct randomness *randomness, uint64_t limit)
{
    return random_bits(randomness) % limit;
}

/* Return a number of random magnitude: small numbers are as frequent as large ones. */
static inline uint64_t random_magnitude(struct randomness *randomness)
{
    uint64_t bits = random_bits(randomness);
    return bits >> random_below(randomness, 64);
}

static inline void random_fill(struct randomness *randomness, void *bytes, size_t size)
{
    uint8_t *next = bytes;
    for (size_t i = 0; i < size; i++) {
        next[i] = (uint8_t)random_bits(randomness);
    }
}

#endif
