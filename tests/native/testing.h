/* SPDX-License-Identifier: Apache-2.0
 *
 * The C test framework. A test file is a program: TEST(name) { EXPECT(...); } ... and RUN_ALL() as its last line. If an
 * expectation fails, the test prints its place and values and continues. The program exits with 1 if one failed, with 2
 * if no test ran. `NAME_test part` runs the tests whose name contains `part`. Expectations may be used in any thread,
 * and in a forked child that ends with _exit(testing_exit_code()).
 */
#ifndef TESTING_H
#define TESTING_H

#include "base/atomic.h"
#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};

static struct test *testing_first;
__attribute__((unused)) static struct test **testing_tail = &testing_first;
static atomic_u32 testing_failure_count;

/* Constructors run in the order of the file, so the tests do, too. */
#define TESTING_REGISTER(test_name, run_test)                                \
    __attribute__((constructor)) static void register_##test_name(void)      \
    {                                                                        \
        static struct test test = {.name = #test_name, .run = run_test};     \
        *testing_tail = &test;                                               \
        testing_tail = &test.next;                                           \
    }

#define TEST(test_name)                            \
    static void test_##test_name(void);            \
    TESTING_REGISTER(test_name, test_##test_name)  \
    static void test_##test_name(void)

/* A test with a `struct fixture *fixture`: `begin(fixture)` runs before it, and `fixture_end(fixture)` after it. */
#define TEST_WITH(fixture, begin, test_name)                   \
    static void test_##test_name(struct fixture *fixture);     \
    static void run_##test_name(void)                          \
    {                                                          \
        struct fixture fixture;                                \
        begin(&fixture);                                       \
        test_##test_name(&fixture);                            \
        fixture##_end(&fixture);                               \
    }                                                          \
    TESTING_REGISTER(test_name, run_##test_name)               \
    static void test_##test_name(struct fixture *fixture)

#define EXPECT_OR_SAY(condition, format, ...)                                                              \
    (void)((condition) || (add_u32(&testing_failure_count, 1),                                             \
                           fprintf(stderr, "%s:%d: %s: " format "\n", __FILE__, __LINE__, __func__, __VA_ARGS__)))

#define EXPECT(condition) EXPECT_OR_SAY(condition, "expected %s", #condition)

#define EXPECT_EQ_U64(actual, expected)                                                            \
    do {                                                                                           \
        uint64_t testing_actual = (actual), testing_expected = (expected);                         \
        EXPECT_OR_SAY(testing_actual == testing_expected, "%s is %" PRIu64 ", expected %" PRIu64,  \
                      #actual, testing_actual, testing_expected);                                  \
    } while (0)

#define EXPECT_STATUS(expression, expected)                                       \
    do {                                                                          \
        enum status testing_status = (expression);                                \
        EXPECT_OR_SAY(testing_status == (expected), "%s is %s, expected %s",      \
                      #expression, status_name(testing_status), status_name(expected)); \
    } while (0)

static inline int testing_exit_code(void)
{
    return load_acquire_u32(&testing_failure_count) == 0 ? 0 : 1;
}

static inline int testing_run(const char *part)
{
    unsigned run_count = 0;
    for (const struct test *test = testing_first; test != NULL; test = test->next) {
        if (part == NULL || strstr(test->name, part) != NULL) {
            test->run();
            run_count++;
        }
    }
    printf("%u run, %u expectations failed\n", run_count, load_acquire_u32(&testing_failure_count));
    return run_count == 0 ? 2 : testing_exit_code();
}

#define RUN_ALL() \
    int main(int argc, char **argv) { return testing_run(argc > 1 ? argv[1] : NULL); }

#endif
