/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver of a fuzz target without libFuzzer: it repeats the stored inputs, and tries changes of them regardless of
 * coverage.
 *
 *   NAME_fuzz repeat CORPUS                every input of a corpus file; prints how many
 *   NAME_fuzz try CORPUS SECONDS SEED      inputs SEED, SEED + 1, ... ; prints how many
 *   NAME_fuzz try CORPUS 0 SEED            this one input
 *
 * A corpus file has, for each input, its size in four bytes (little-endian), then the input. An input that kills the
 * process or hangs is named by its number on standard error.
 */
#include "fuzzing.h"

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "randomness.h"

enum { HANG_SECONDS = 60, ROUNDS_MAX = 8 };

/* ---- the corpus ---- */

struct input {
    const uint8_t *bytes;
    uint32_t size;
};

static struct input *inputs;
static size_t input_count;

static uint8_t *file_read(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        exit(2);
    }
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size + 1);
    if (bytes == NULL || fread(bytes, 1, *size, file) != *size) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return bytes;
}

static void corpus_read(const char *path)
{
    size_t size;
    uint8_t *bytes = file_read(path, &size);
    inputs = calloc(size / sizeof(uint32_t) + 1, sizeof *inputs);
    for (size_t at = 0; at + sizeof(uint32_t) <= size;) {
        struct input *input = &inputs[input_count++];
        memcpy(&input->size, bytes + at, sizeof input->size);
        at += sizeof input->size;
        if (input->size > size - at || input->size > FUZZ_SIZE_MAX) {
            fprintf(stderr, "%s: input %zu has an impossible size\n", path, input_count - 1);
            exit(2);
        }
        input->bytes = bytes + at;
        at += input->size;
    }
}

/* ---- mutation without a fuzzer ---- */

static struct randomness mutation;

static size_t bytes_remove(uint8_t *data, size_t size)
{
    size_t start = (size_t)random_below(&mutation, size);
    size_t count = 1 + (size_t)random_below(&mutation, size - start);
    memmove(data + start, data + start + count, size - start - count);
    return size - count;
}

static size_t bytes_insert(uint8_t *data, size_t size, size_t size_max)
{
    size_t start = (size_t)random_below(&mutation, size + 1);
    size_t room = size_max - size < 16 ? size_max - size : 16;
    size_t count = 1 + (size_t)random_below(&mutation, room);
    memmove(data + start + count, data + start, size - start);
    random_fill(&mutation, data + start, count);
    return size + count;
}

static void bytes_change(uint8_t *data, size_t size)
{
    size_t start = (size_t)random_below(&mutation, size);
    uint64_t number = random_magnitude(&mutation);
    size_t width = (size_t)1 << random_below(&mutation, 4);
    if (random_below(&mutation, 2) == 0) {
        data[start] ^= (uint8_t)(1u << random_below(&mutation, 8));
    } else {
        memcpy(data + start, &number, width < size - start ? width : size - start);
    }
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t size_max)
{
    uint64_t what = random_below(&mutation, 8);
    if (size < size_max && (what == 0 || size == 0)) {
        return bytes_insert(data, size, size_max);
    }
    if (what == 1 && size > 1) {
        return bytes_remove(data, size);
    }
    if (size > 0) {
        bytes_change(data, size);
    }
    return size;
}

__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed)
{
    (void)seed;
    return LLVMFuzzerMutate(data, size, size_max);
}

/* ---- running ---- */

static uint64_t current_input;

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void current_say(void)
{
    fprintf(stderr, "input %" PRIu64 "\n", current_input);
}

static void death_say(int number)
{
    fprintf(stderr, "%s: ", strsignal(number));
    current_say();
    _exit(1);
}

/* Use memory of the exact size, so that an access past its end is detected. */
static void run(uint64_t number, const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size);
    memcpy(copy, bytes, size);
    current_input = number;
    alarm(HANG_SECONDS);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static uint64_t repeat(void)
{
    for (size_t i = 0; i < input_count; i++) {
        run(i, inputs[i].bytes, inputs[i].size);
    }
    return input_count;
}

/* Run one input of the corpus after a few changes. */
static void try_one(uint64_t number, uint8_t *data)
{
    size_t size = 0;
    mutation = (struct randomness){.state = number};
    if (input_count > 0) {
        const struct input *input = &inputs[random_below(&mutation, input_count)];
        memcpy(data, input->bytes, input->size);
        size = input->size;
    }
    for (uint64_t i = random_below(&mutation, ROUNDS_MAX) + 1; i > 0; i--) {
        size = LLVMFuzzerCustomMutator(data, size, FUZZ_SIZE_MAX, (unsigned int)random_bits(&mutation));
    }
    run(number, data, size);
}

static uint64_t try_many(long seconds, uint64_t seed)
{
    uint8_t *data = malloc(FUZZ_SIZE_MAX);
    time_t end = time(NULL) + seconds;
    uint64_t count = 0;
    do {
        try_one(seed + count++, data);
    } while (time(NULL) < end);
    free(data);
    return count;
}

int main(int argc, char **argv)
{
    bool is_try = argc == 5 && strcmp(argv[1], "try") == 0;
    if (!is_try && (argc != 3 || strcmp(argv[1], "repeat") != 0)) {
        fprintf(stderr, "usage: %s repeat CORPUS | %s try CORPUS SECONDS SEED\n", argv[0], argv[0]);
        return 2;
    }
    signal(SIGALRM, death_say);
    signal(SIGABRT, death_say);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(current_say);
    }
    corpus_read(argv[2]);
    uint64_t count = is_try ? try_many(atol(argv[3]), strtoull(argv[4], NULL, 0)) : repeat();
    printf("%" PRIu64 " inputs\n", count);
    return 0;
}
