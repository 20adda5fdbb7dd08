/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of a fuzz target. libFuzzer and AFL++ call the first one; fuzz_main.c needs neither of the two.
 */
#ifndef FUZZING_H
#define FUZZING_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Run one input, and return 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Changes an input so that the code still reads it as far as before. Returns the new size. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed);

/* The fuzzer's own mutator, which does not know the format of the bytes. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t size_max);

enum { FUZZ_SIZE_MAX = 1024 }; /* of an input */

/* Reports a broken rule, and ends the process as a sanitizer does. */
__attribute__((noreturn)) static inline void fuzz_fail(const char *what)
{
    fprintf(stderr, "fuzz target: %s\n", what);
    abort();
}

#endif
