/* SPDX-License-Identifier: Apache-2.0 */
#include "format/produce.h"

#include <stdlib.h>

#include "answers.h"
#include "base/bytes.h"
#include "randomness.h"
#include "testing.h"

enum { CORRELATION = 77, ANSWER_SIZE_MAX = 512 };

static const struct produce_topic topics[] = {
    {.name = "flights", .name_size = 7, .id = {1}, .batch_count = 2},
    {.name = "hops", .name_size = 4, .id = {2}, .batch_count = 1},
};
static const struct produce_batch batches[] = {
    {.partition = 0, .size = 61}, {.partition = 300, .size = 20000}, {.partition = 0, .size = 200}};

static struct produce_request request_of(int16_t version)
{
    return (struct produce_request){.client = "me",
                                    .client_size = 2,
                                    .version = version,
                                    .acks = -1,
                                    .timeout_ms = 30000,
                                    .topic_count = 2,
                                    .batch_count = 3,
                                    .topics = topics,
                                    .batches = batches};
}

/* The bytes that kafka-python encodes for a request with one batch of two bytes. tests/unit compares all versions. */
TEST(a_request_is_the_library_s)
{
    static const char plain[] =
        "\0\0\0\x2f\0\0\0\3\0\0\0\0\0\2me\xff\xff\xff\xff\0\0\x75\x30\0\0\0\1"
        "\0\7flights\0\0\0\1\0\0\0\5\0\0\0\2";
    static const char flexible[] =
        "\0\0\0\x28\0\0\0\x0c\0\0\0\0\0\2me\0\0\xff\xff\0\0\x75\x30\2\x08"
        "flights\2\0\0\0\5\3"
        "\0\0\0";
    const struct produce_topic topic = {.name = "flights", .name_size = 7, .batch_count = 1};
    const struct produce_batch batch = {.partition = 5, .size = 2};
    struct produce_request request = request_of(3);
    uint8_t own[128];
    size_t cut;
    request.topic_count = 1;
    request.batch_count = 1;
    request.topics = &topic;
    request.batches = &batch;
    EXPECT_EQ_U64(produce_encode(&request, own, &cut), sizeof plain - 1);
    EXPECT(memcmp(own, plain, sizeof plain - 1) == 0 && cut == sizeof plain - 1);
    request.version = 12;
    EXPECT_EQ_U64(produce_encode(&request, own, &cut), sizeof flexible - 1);
    EXPECT(memcmp(own, flexible, sizeof flexible - 1) == 0 && cut == sizeof flexible - 4);
}

TEST(a_request_fits_into_its_room_and_counts_all_of_it)
{
    for (int16_t version = PRODUCE_VERSION_MIN; version <= PRODUCE_VERSION_MAX; version++) {
        const struct produce_request request = request_of(version);
        size_t room = produce_own_size_max(&request);
        uint8_t *own = malloc(room);
        size_t cuts[3];
        size_t size = produce_encode(&request, own, cuts);
        EXPECT(size <= room);
        EXPECT_EQ_U64(load_be32(own), size + 61 + 20000 + 200 - 4);
        EXPECT(cuts[0] < cuts[1] && cuts[1] < cuts[2] && cuts[2] <= size);
        free(own);
    }
}

/* Read from memory of the exact size, and into tables of the exact size, so that a sanitizer detects any access past
 * them. */
static bool read_copy(const struct produce_request *request, const uint8_t *bytes, size_t size,
                      struct produce_result *results, int32_t *throttle_ms)
{
    size_t tables_size = produce_tables_size(request) * sizeof(uint32_t);
    uint8_t *copy = malloc(size + (size == 0));
    struct produce_answer answer = {.results = results, .tables = malloc(tables_size)};
    memcpy(copy, bytes, size);
    memset(answer.tables, 0xff, tables_size);
    bool is_well = produce_answer_read(request, CORRELATION, copy, size, &answer);
    *throttle_ms = answer.throttle_ms;
    free(answer.tables);
    free(copy);
    return is_well;
}

TEST(an_answer_is_read_in_the_request_s_order)
{
    for (int16_t version = PRODUCE_VERSION_MIN; version <= PRODUCE_VERSION_MAX; version++) {
        const struct produce_request request = request_of(version);
        struct produce_result results[3];
        uint8_t answer[ANSWER_SIZE_MAX];
        int32_t throttle_ms = 0;
        size_t size = answer_write(&request, CORRELATION, answer);
        EXPECT(read_copy(&request, answer, size, results, &throttle_ms));
        EXPECT(throttle_ms == 7);
        for (int i = 0; i < 3; i++) {
            EXPECT(results[i].is_answered && results[i].base_offset == 1000 + batches[i].partition &&
                   results[i].log_append_time_ms == -1);
        }
    }
}

TEST(an_answer_that_is_cut_or_longer_is_not_read)
{
    for (int16_t version = PRODUCE_VERSION_MIN; version <= PRODUCE_VERSION_MAX; version++) {
        const struct produce_request request = request_of(version);
        struct produce_result results[3];
        uint8_t answer[ANSWER_SIZE_MAX] = {0};
        int32_t throttle_ms;
        size_t size = answer_write(&request, CORRELATION, answer);
        for (size_t cut = 0; cut < size; cut++) {
            EXPECT(!read_copy(&request, answer, cut, results, &throttle_ms));
        }
        EXPECT(!read_copy(&request, answer, size + 1, results, &throttle_ms));
    }
}

/* Only offsets, times and the throttle time may have several values. If any other byte differs, the reader rejects the
 * answer. Here, each changed time is below -1, and the reader returns that there is no time. */
TEST(an_answer_with_a_changed_byte_has_no_other_meaning)
{
    for (int16_t version = PRODUCE_VERSION_MIN; version <= PRODUCE_VERSION_MAX; version++) {
        const struct produce_request request = request_of(version);
        uint8_t answer[ANSWER_SIZE_MAX];
        size_t size = answer_write(&request, CORRELATION, answer);
        size_t free_count = 0;
        for (size_t place = 0; place < size; place++) {
            struct produce_result results[3];
            int32_t throttle_ms;
            answer[place] ^= 0x41;
            free_count += read_copy(&request, answer, size, results, &throttle_ms);
            answer[place] ^= 0x41;
        }
        EXPECT_EQ_U64(free_count, 3 * (version >= 5 ? 16 : 8) + 4);
    }
}

TEST(an_answer_that_names_a_partition_twice_is_not_read)
{
    const struct produce_batch twice[] = {batches[0], batches[0], batches[2]};
    struct produce_request request = request_of(PRODUCE_VERSION_MAX);
    struct produce_result results[3];
    uint8_t answer[ANSWER_SIZE_MAX];
    int32_t throttle_ms;
    request.batches = twice;
    size_t size = answer_write(&request, CORRELATION, answer);
    request.batches = batches;
    EXPECT(!read_copy(&request, answer, size, results, &throttle_ms));
}

/* A topic without batches may occur twice, but not in place of a topic with batches. */
TEST(an_answer_without_one_of_the_topics_is_rejected)
{
    const struct produce_topic with_empty[] = {topics[0], {.name = "none", .name_size = 4, .id = {3}}};
    const struct produce_topic only_empty[] = {with_empty[1], with_empty[1]};
    for (int16_t version = PRODUCE_VERSION_MIN; version <= PRODUCE_VERSION_MAX; version++) {
        struct produce_request request = request_of(version);
        struct produce_result results[2];
        uint8_t answer[ANSWER_SIZE_MAX];
        int32_t throttle_ms;
        request.batch_count = 2;
        request.topics = with_empty;
        size_t size = answer_write(&request, CORRELATION, answer);
        EXPECT(read_copy(&request, answer, size, results, &throttle_ms));
        request.topics = only_empty;
        size = answer_write(&request, CORRELATION, answer);
        request.topics = with_empty;
        EXPECT(!read_copy(&request, answer, size, results, &throttle_ms));
    }
}

/* ---- any order ---- */

enum { LARGE_TOPICS = 40, LARGE_BATCHES = 3000 };

/* Topics with one batch and with many. The partition numbers have gaps, as at a broker that leads only some of them. */
struct large {
    struct produce_topic topics[LARGE_TOPICS];
    struct produce_batch batches[LARGE_BATCHES];
    char names[LARGE_TOPICS][12];
    struct produce_request request;
};

static void large_make(struct randomness *randomness, int16_t version, struct large *large)
{
    struct produce_request *request = &large->request;
    *large = (struct large){.request = request_of(version)};
    request->topics = large->topics;
    request->batches = large->batches;
    request->batch_count = 0;
    request->topic_count = 1 + (uint32_t)random_below(randomness, LARGE_TOPICS);
    for (uint32_t i = 0; i < request->topic_count; i++) {
        uint32_t count = 1 + (uint32_t)random_below(randomness, LARGE_BATCHES / LARGE_TOPICS);
        uint32_t step = 1 + (uint32_t)random_below(randomness, 1 << random_below(randomness, 20));
        snprintf(large->names[i], sizeof large->names[i], "t%u", i);
        large->topics[i] = (struct produce_topic){.name = large->names[i],
                                                  .name_size = (uint16_t)strlen(large->names[i]),
                                                  .id = {(uint8_t)i, 1},
                                                  .batch_count = count};
        for (uint32_t j = 0; j < count; j++) {
            large->batches[request->batch_count++].partition = (int32_t)(j * step);
        }
    }
}

/* The same topics and the same batches in another order. */
static void large_shuffle(struct randomness *randomness, const struct large *large, struct large *shuffled)
{
    uint32_t firsts[LARGE_TOPICS];
    uint32_t order[LARGE_TOPICS];
    uint32_t count = large->request.topic_count;
    struct produce_batch *next = shuffled->batches;
    *shuffled = *large;
    shuffled->request.topics = shuffled->topics;
    shuffled->request.batches = shuffled->batches;
    for (uint32_t i = 0, first = 0; i < count; first += large->topics[i++].batch_count) {
        uint32_t place = (uint32_t)random_below(randomness, i + 1);
        firsts[i] = first;
        order[i] = order[place];
        order[place] = i;
    }
    for (uint32_t i = 0; i < count; i++) {
        shuffled->topics[i] = large->topics[order[i]];
        for (uint32_t j = 0; j < shuffled->topics[i].batch_count; j++) {
            uint32_t place = (uint32_t)random_below(randomness, j + 1);
            next[j] = next[place];
            next[place] = large->batches[firsts[order[i]] + j];
        }
        next += shuffled->topics[i].batch_count;
    }
}

TEST(an_answer_in_any_order_is_read_in_the_request_s_order)
{
    enum { ROUNDS = 300, LARGE_ANSWER_SIZE_MAX = 64 * LARGE_BATCHES };
    static struct large large;
    static struct large shuffled;
    static struct produce_result results[LARGE_BATCHES];
    static uint8_t answer[LARGE_ANSWER_SIZE_MAX];
    struct randomness randomness = randomness_seeded(__func__);
    for (int round = 0; round < ROUNDS; round++) {
        int16_t version =
            (int16_t)(PRODUCE_VERSION_MIN + random_below(&randomness, PRODUCE_VERSION_MAX - PRODUCE_VERSION_MIN + 1));
        int32_t throttle_ms;
        large_make(&randomness, version, &large);
        large_shuffle(&randomness, &large, &shuffled);
        size_t size = answer_write(&shuffled.request, CORRELATION, answer);
        EXPECT(read_copy(&large.request, answer, size, results, &throttle_ms));
        for (uint32_t i = 0; i < large.request.batch_count; i++) {
            EXPECT(results[i].is_answered && results[i].base_offset == 1000 + large.batches[i].partition);
        }
    }
}

RUN_ALL()
