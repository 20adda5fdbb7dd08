/* SPDX-License-Identifier: Apache-2.0
 *
 * Assertions, in two prices, for what is only ours: private state and arguments. Bytes that another process may have
 * written are input and are answered with a status, never asserted (shared memory is input).
 *
 *   CHECK(condition)            always compiled where CHECK_LEVEL >= 1 (tests, debug builds); aborts with the place
 *   CHECK_EXPENSIVE(condition)  the same at CHECK_LEVEL >= 2: whole-object checkers
 *
 * In a release build (CHECK_LEVEL 0) both are unevaluated: we live inside somebody else's process.
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
#define ALWAYS_INLINE inline __attribute__((always_inline)) /* in the path of every record; measured */

#endif
