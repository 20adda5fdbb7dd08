/* SPDX-License-Identifier: Apache-2.0
 *
 * Assertions about private state and arguments, at two levels of cost. Bytes that another process may have written are
 * input. They are never asserted, and invalid ones are reported by a status.
 *
 *   CHECK(condition)            compiled if CHECK_LEVEL >= 1 (tests, debug builds); prints the place and aborts
 *   CHECK_EXPENSIVE(condition)  the same if CHECK_LEVEL >= 2, for checks of a whole object
 *
 * A release build (CHECK_LEVEL 0) evaluates neither, because the code runs inside another program's process.
 */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

#ifndef CHECK_LEVEL
#define CHECK_LEVEL 0
#endif

#define STATIC_CHECK(condition) _Static_assert(condition, #condition)

#if CHECK_LEVEL >= 1
#include <stdio.h>
#include <stdlib.h>
#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: %s: check failed: %s\n", __FILE__, __LINE__, __func__, #condition); \
            abort();                                                                                  \
        }                                                                                             \
    } while (0)
#else
#define CHECK(condition) ((void)sizeof(condition))
#endif

#if CHECK_LEVEL >= 2
#define CHECK_EXPENSIVE(condition) CHECK(condition)
#else
#define CHECK_EXPENSIVE(condition) ((void)sizeof(condition))
#endif

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define COLD __attribute__((cold, noinline))
#define ALWAYS_INLINE inline __attribute__((always_inline)) /* on the path of every record; measured */

#endif
