/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile answers to Produce: bytes that a broker, or another program on its port, may send. Besides the reader's own
 * bounds, these rules are checked:
 *
 *   an accepted answer has a result for every batch of its request, and is complete · a request fits into its buffer,
 *   and its cuts are in order
 *
 *   input   choices (CHOICES_SIZE bytes: the request), then the answer
 *
 * The mutator usually begins with a valid answer to the request, and changes few bytes of it.
 */
#include "fuzzing.h"
#include "randomness.h"

#include <stdbool.h>
#include <string.h>

#include "base/bytes.h"
#include "format/answers.h"
#include "format/produce.h"

enum { CHOICES_SIZE = 8, TOPICS_MAX = 4, BATCHES_MAX = 8, CORRELATION = 0x01020304 };

struct choices {
    uint8_t version;
    uint8_t batch_counts[TOPICS_MAX]; /* if 0, the request ends before it */
    uint8_t name_size;
    uint8_t partition_step; /* if 0, all batches are of the same partition */
    uint8_t client_size;
};

struct drawn_request {
    struct produce_topic topics[TOPICS_MAX];
    struct produce_batch batches[TOPICS_MAX * BATCHES_MAX];
    struct produce_request request;
};

static const char names[] = "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz";

static void batches_make(const struct choices *choices, struct drawn_request *drawn)
{
    drawn->request.batch_count = 0;
    for (uint32_t i = 0; i < drawn->request.topic_count; i++) {
        for (uint32_t j = 0; j < drawn->topics[i].batch_count; j++) {
            drawn->batches[drawn->request.batch_count++] =
                (struct produce_batch){.partition = (int32_t)(j * choices->partition_step), .size = 1u << (i * j)};
        }
    }
}

static void request_make(const struct choices *choices, struct drawn_request *drawn)
{
    struct produce_request *request = &drawn->request;
    *drawn = (struct drawn_request){0};
    *request = (struct produce_request){.client = names, .client_size = choices->client_size % 64, .acks = -1,
                                        .topics = drawn->topics, .batches = drawn->batches};
    request->version =
        (int16_t)(PRODUCE_VERSION_MIN + choices->version % (PRODUCE_VERSION_MAX - PRODUCE_VERSION_MIN + 1));
    for (uint32_t i = 0; i < TOPICS_MAX && choices->batch_counts[i] != 0; i++) {
        drawn->topics[request->topic_count++] =
            (struct produce_topic){.name = names + i, .name_size = choices->name_size % 40, .id = {(uint8_t)(i + 1)},
                                   .batch_count = 1 + choices->batch_counts[i] % BATCHES_MAX};
    }
    batches_make(choices, drawn);
}

static void request_check(const struct produce_request *request)
{
    size_t room = produce_own_size_max(request);
    uint8_t *own = malloc(room);
    size_t cuts[TOPICS_MAX * BATCHES_MAX + 1];
    size_t size = produce_encode(request, own, cuts);
    cuts[request->batch_count] = size;
    for (uint32_t i = 0; i < request->batch_count; i++) {
        if (cuts[i] > cuts[i + 1]) {
            fuzz_fail("the records of a request are not in order");
        }
    }
    if (size > room) {
        fuzz_fail("a request is larger than its buffer");
    }
    free(own);
}

static void answer_check(const struct produce_request *request, const uint8_t *data, size_t size)
{
    struct produce_result results[TOPICS_MAX * BATCHES_MAX];
    struct produce_answer answer = {.results = results, .tables = malloc(produce_tables_size(request) * 4)};
    uint8_t *bytes = malloc(size + (size == 0));
    memcpy(bytes, data, size);
    bool is_well = produce_answer_read(request, CORRELATION, bytes, size, &answer);
    for (uint32_t i = 0; i < request->batch_count && is_well; i++) {
        if (!results[i].is_answered) {
            fuzz_fail("an answer was read that does not answer every batch");
        }
    }
    if (is_well && produce_answer_read(request, CORRELATION + 1, bytes, size, &answer)) {
        fuzz_fail("an answer was read that answers another request");
    }
    if (is_well && produce_answer_read(request, CORRELATION, bytes, size - 1, &answer)) {
        fuzz_fail("an answer was read that is not whole");
    }
    free(answer.tables);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct choices choices;
    struct drawn_request drawn;
    _Static_assert(sizeof choices == CHOICES_SIZE, "choices are read as they lie");
    if (size < CHOICES_SIZE) {
        return 0;
    }
    memcpy(&choices, data, sizeof choices);
    request_make(&choices, &drawn);
    request_check(&drawn.request);
    answer_check(&drawn.request, data + CHOICES_SIZE, size - CHOICES_SIZE);
    return 0;
}

/* ---- mutation ---- */

/* Use the topic order of a broker that stores topics in a hash map. */
static void topics_turn_round(const struct choices *choices, struct drawn_request *drawn)
{
    for (uint32_t i = 0, j = drawn->request.topic_count; i + 1 < j; i++) {
        struct produce_topic topic = drawn->topics[i];
        drawn->topics[i] = drawn->topics[--j];
        drawn->topics[j] = topic;
    }
    batches_make(choices, drawn);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed)
{
    enum { ANSWER_SIZE_MAX = 2048 };
    struct randomness randomness = {.state = seed | UINT64_C(1) << 40};
    struct choices choices;
    struct drawn_request drawn;
    uint8_t answer[ANSWER_SIZE_MAX];
    if (random_below(&randomness, 3) == 0 || size < CHOICES_SIZE) {
        return LLVMFuzzerMutate(data, size, size_max);
    }
    for (size_t i = 0; i < CHOICES_SIZE; i++) {
        data[i] = random_below(&randomness, 4) == 0 ? (uint8_t)random_below(&randomness, 256) : data[i];
    }
    memcpy(&choices, data, sizeof choices);
    request_make(&choices, &drawn);
    if (random_below(&randomness, 2) == 0) {
        topics_turn_round(&choices, &drawn);
    }
    size_t answer_size = answer_write(&drawn.request, CORRELATION, answer);
    size = answer_size < size_max - CHOICES_SIZE ? answer_size : size_max - CHOICES_SIZE;
    memcpy(data + CHOICES_SIZE, answer, size);
    for (uint64_t i = random_below(&randomness, 4); i > 0 && size > 0; i--) {
        data[CHOICES_SIZE + random_below(&randomness, size)] = (uint8_t)random_below(&randomness, 256);
    }
    return CHOICES_SIZE + size;
}
