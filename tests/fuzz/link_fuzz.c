/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile answers to the requests of a link: the bytes of a socket come in pieces, as a broker or another program may
 * send them. `produce` tests the reader of one answer. This tests the rest: frames, their order, and the bytes that
 * remain for the owner of the connection. These rules are checked after every piece:
 *
 *   answers are accepted in the order of the requests, and only for written requests · an answered request has a result
 *   for each of its batches · no answer is accepted after one that is not ordinary · the bytes that remain are the last
 *   ones received, and fit into their buffer
 *
 *   input   choices (CHOICES_SIZE bytes), then the bytes of the broker
 */
#include "fuzzing.h"
#include "in_memory.h"
#include "randomness.h"

#include <stdbool.h>
#include <string.h>

#include "base/bytes.h"
#include "broker/link.h"
#include "format/answers.h"

enum { CHOICES_SIZE = 7, REQUESTS_MAX = 5, BATCHES_MAX = 6, TOPICS_MAX = 2, BATCH_SIZE = 64, FRAME_HEAD_SIZE = 4 };

struct choices {
    uint8_t version;
    uint8_t request_count;
    uint8_t batch_count;
    uint8_t topic_count;
    uint8_t piece_size;  /* bytes that one recv gives; 0 means all */
    uint8_t is_sending;  /* if odd, the last byte of the newest request is not written; if 2, the link accepts errors */
    uint8_t is_closed;   /* if odd, the broker closes its end after its last byte */
};

struct drawn {
    struct produce_topic topics[TOPICS_MAX];
    struct broker_link link;
};

static uint32_t request_count(const struct choices *choices)
{
    return 1 + choices->request_count % REQUESTS_MAX;
}

static void request_begin(const struct choices *choices, struct drawn *drawn)
{
    static const uint8_t batch[BATCH_SIZE];
    uint32_t count = 1 + choices->batch_count % BATCHES_MAX;
    uint32_t topic_count = 1 + choices->topic_count % TOPICS_MAX;
    struct broker_request *request = broker_link_next_request(&drawn->link);
    for (uint32_t topic = 0; topic < topic_count; topic++) {
        for (uint32_t i = topic; i < count; i += topic_count) {
            broker_request_add(request, &drawn->topics[topic], (int32_t)i, BATCH_SIZE);
            pieces_add_memory(&request->pieces, batch, BATCH_SIZE);
        }
    }
    broker_link_begin(&drawn->link, true, 1);
}

/* Makes a link whose requests are written. The end of the newest one may be missing. */
static void link_make(const struct choices *choices, struct drawn *drawn)
{
    *drawn = (struct drawn){.topics = {{.name = "a", .name_size = 1, .id = {1}},
                                       {.name = "bcd", .name_size = 3, .id = {2}}}};
    struct broker_link *link = &drawn->link;
    link->form = (struct produce_request){.client = "c", .client_size = 1, .acks = -1};
    link->form.version =
        (int16_t)(PRODUCE_VERSION_MIN + choices->version % (PRODUCE_VERSION_MAX - PRODUCE_VERSION_MIN + 1));
    link->requests_max = REQUESTS_MAX;
    link->takes_errors = (choices->is_sending & 2) != 0;
    const struct broker_link_limits limits = {
        .batch_count = BATCHES_MAX, .names_size = FUZZ_SIZE_MAX};
    if (!broker_link_make(link, &limits)) {
        fuzz_fail("no memory");
    }
    for (uint32_t i = 0; i < request_count(choices); i++) {
        request_begin(choices, drawn);
        link->is_sending = false;
    }
    link->is_sending = choices->is_sending % 2 != 0;
}

static void results_check(const struct broker_link *link)
{
    for (uint32_t number = link->first; number != link->answered; number++) {
        const struct broker_request *request = &link->requests[number % BROKER_REQUESTS_MAX];
        if (request->is_refused && !link->takes_errors) {
            fuzz_fail("a link that takes no errors has taken one");
        }
        for (uint32_t i = 0; i < request->produce.batch_count && !request->is_refused; i++) {
            if (!request->results[i].is_answered) {
                fuzz_fail("a request counts as answered, and a batch of it has no result");
            }
        }
    }
}

static void link_check(const struct broker_link *link, const uint8_t *bytes, uint32_t answered_before, bool was_strange)
{
    const uint8_t *end = bytes + link->received_total;
    results_check(link);
    if (link->answered > link->end - link->is_sending || link->answered < answered_before) {
        fuzz_fail("an answer was taken for a request that is not written, or twice");
    }
    if (was_strange && link->answered != answered_before) {
        fuzz_fail("a response was taken after one that is not ordinary");
    }
    if (link->received_size >= link->received_room || link->received_size > link->received_total ||
        memcmp(link->received, end - link->received_size, link->received_size) != 0) {
        fuzz_fail("the bytes that are left are not the last that came");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct drawn drawn;
    struct choices choices;
    _Static_assert(sizeof choices == CHOICES_SIZE, "choices are read as they lie");
    if (size < CHOICES_SIZE) {
        return 0;
    }
    memcpy(&choices, data, sizeof choices);
    link_make(&choices, &drawn);
    memory_system.incoming = data + CHOICES_SIZE;
    memory_system.incoming_size = size - CHOICES_SIZE;
    memory_system.incoming_piece = choices.piece_size == 0 ? FUZZ_SIZE_MAX : choices.piece_size;
    memory_system.is_incoming_closed = choices.is_closed % 2 != 0;
    bool is_over = false;
    for (uint64_t now_ns = 2; !is_over && memory_system.incoming_size > 0; now_ns++) {
        uint32_t answered_before = drawn.link.answered;
        broker_link_receive(&drawn.link, now_ns);
        link_check(&drawn.link, data + CHOICES_SIZE, answered_before, false);
        is_over = drawn.link.is_broken || drawn.link.is_strange;
    }
    uint32_t answered_before = drawn.link.answered;
    bool was_strange = drawn.link.is_strange;
    broker_link_receive(&drawn.link, UINT64_MAX); /* once more, after the end of the stream */
    link_check(&drawn.link, data + CHOICES_SIZE, answered_before, was_strange);
    broker_link_free(&drawn.link);
    return 0;
}

/* ---- mutation ---- */

/* Writes valid answers to all requests, in their order. */
static size_t answers_write(const struct choices *choices, uint8_t *target, size_t room)
{
    enum { ANSWER_SIZE_MAX = 512 };
    static struct drawn drawn;
    uint8_t answer[ANSWER_SIZE_MAX];
    size_t size = 0;
    link_make(choices, &drawn);
    for (uint32_t i = 0; i < drawn.link.end; i++) {
        const struct produce_request *request = &broker_link_request(&drawn.link, i)->produce;
        size_t answer_size = answer_write(request, i, answer);
        if (size + FRAME_HEAD_SIZE + answer_size > room) {
            break;
        }
        store_be32(target + size, (uint32_t)answer_size);
        memcpy(target + size + FRAME_HEAD_SIZE, answer, answer_size);
        size += FRAME_HEAD_SIZE + answer_size;
    }
    broker_link_free(&drawn.link);
    return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed)
{
    struct randomness randomness = {.state = seed | UINT64_C(1) << 40};
    struct choices choices;
    if (random_below(&randomness, 3) == 0 || size < CHOICES_SIZE) {
        return LLVMFuzzerMutate(data, size, size_max);
    }
    for (size_t i = 0; i < CHOICES_SIZE; i++) {
        data[i] = random_below(&randomness, 4) == 0 ? (uint8_t)random_below(&randomness, 256) : data[i];
    }
    memcpy(&choices, data, sizeof choices);
    size = answers_write(&choices, data + CHOICES_SIZE, size_max - CHOICES_SIZE);
    for (uint64_t i = random_below(&randomness, 4); i > 0 && size > 0; i--) {
        data[CHOICES_SIZE + random_below(&randomness, size)] = (uint8_t)random_below(&randomness, 256);
    }
    return CHOICES_SIZE + size;
}
