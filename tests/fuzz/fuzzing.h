/* SPDX-License-Identifier: Apache-2.0
 *
 * A fuzz target has these names, of which libFuzzer and AFL++ know the first. fuzz_main.c does without either.
 */
#ifndef FUZZING_H
#define FUZZING_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Run one input, and return 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Changes an input to another one that gets as deep; answers its size. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed);

/* The fuzzer's own: changes bytes without knowing what they are. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t size_max);

enum { FUZZ_SIZE_MAX = 1024 }; /* of an input */

/* A rule is broken: ends the process as a sanitizer would. */
__attribute__((noreturn)) static inline void fuzz_fail(const char *what)
{
    fprintf(stderr, "fuzz target: %s\n", what);
    abort();
}

#endif
