/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of failed batches stay in the arena until they are stored elsewhere.
 */
#include "sender/complete.h"

#include "core/delivery_fixture.h"

#include "format/record_batch.h"
#include "sender/sender_half.h"

enum { BATCH_SIZE = 512, BATCH_COUNT_MAX = 8, TIMEOUT_NS = 500, LATER_NS = 5000 };

/* ---- helpers ---- */

struct fixture {
    struct arena *arena;
    struct arena *producing;
    struct accumulator *producer;
    struct accumulator *sender;
    int file;
};

static struct accumulator *sender_begun(struct arena *arena)
{
    struct accumulator *sender = accumulator_opened(arena);
    struct error error;
    sender->wants_dead_letters = true;
    EXPECT_STATUS(accumulator_become_sender(sender, &error), STATUS_OK);
    sender_publish_delivery_timeout(sender->sender, TIMEOUT_NS, true);
    return sender;
}

static void fixture_begin(struct fixture *fixture)
{
    *fixture = (struct fixture){.file = arena_file_new()};
    fixture->arena = arena_created(fixture->file, geometry_of(BATCH_COUNT_MAX, BATCH_SIZE));
    fixture->producing = arena_attached(fixture->file);
    fixture->producing->clock = (struct clock){.is_manual = true, .manual_ns = 1000};
    fixture->producer = accumulator_opened(fixture->producing);
    fixture->sender = sender_begun(fixture->arena);
}

static void fixture_end(struct fixture *fixture)
{
    accumulator_close(fixture->sender);
    accumulator_close(fixture->producer);
    arena_detach(fixture->producing);
    expect_all_free(fixture->arena);
    arena_end(fixture->arena, fixture->file);
}

static void appended(struct fixture *fixture, uint32_t record_count)
{
    for (uint32_t i = 0; i < record_count; i++) {
        EXPECT_STATUS(append_number(fixture->producer, 0, i), STATUS_OK);
    }
}

static struct drained_batch drained(struct fixture *fixture)
{
    struct drained_batch batches[8] = {0};
    EXPECT_EQ_U64(drain_round(fixture->sender, 5, batches), 1);
    return batches[0];
}

static uint32_t expired(struct fixture *fixture)
{
    uint64_t next_ns;
    return sender_expire(fixture->sender->sender, LATER_NS, TIMEOUT_NS, &next_ns, NULL);
}

static struct drained_batch dead_letter_taken(struct fixture *fixture, struct batch_outcome *outcome)
{
    struct drained_batch batches[BATCH_COUNT_MAX] = {0};
    struct batch_outcome outcomes[BATCH_COUNT_MAX];
    EXPECT_EQ_U64(sender_dead_letters(fixture->sender->sender, batches, outcomes, BATCH_COUNT_MAX), 1);
    *outcome = outcomes[0];
    return batches[0];
}

static void expect_no_dead_letter(struct fixture *fixture)
{
    struct drained_batch batches[BATCH_COUNT_MAX];
    struct batch_outcome outcomes[BATCH_COUNT_MAX];
    EXPECT_EQ_U64(sender_dead_letters(fixture->sender->sender, batches, outcomes, BATCH_COUNT_MAX), 0);
}

static void freed(struct fixture *fixture, const struct drained_batch *batch)
{
    EXPECT_STATUS(accumulator_complete(fixture->sender, batch->slot_index, batch->seq, &success, NULL), STATUS_OK);
    EXPECT_STATUS(accumulator_complete(fixture->sender, batch->slot_index, batch->seq, &success, NULL), STATUS_STALE);
}

static struct completion result_of(const struct fixture *fixture, const struct drained_batch *batch)
{
    const struct record_token token = {
        .seq = batch->seq, .partition_index = batch->partition_index, .slot_index = batch->slot_index};
    struct completion completion = {.result = RESULT_NONE};
    EXPECT_STATUS(completion_find(fixture->producing, &token, &completion), STATUS_OK);
    return completion;
}

/* The sender resigns, and another process takes the role. */
static void succeeded(struct fixture *fixture)
{
    accumulator_resign_sender(fixture->sender);
    accumulator_close(fixture->sender);
    fixture->sender = sender_begun(fixture->arena);
}

/* ---- the bytes of failed batches ---- */

TEST_WITH(fixture, fixture_begin, a_batch_that_expires_in_the_queue_has_its_result_and_keeps_its_bytes)
{
    struct batch_outcome outcome;
    appended(fixture, 3);
    EXPECT_EQ_U64(expired(fixture), 1);
    EXPECT_EQ_U64(expired(fixture), 0);
    struct drained_batch dead_letter = dead_letter_taken(fixture, &outcome);
    EXPECT(outcome.result == RESULT_EXPIRED && dead_letter.record_count == 3 && dead_letter.attempt_count == 0);
    EXPECT_EQ_U64(result_of(fixture, &dead_letter).result, RESULT_EXPIRED);
    EXPECT_EQ_U64(slots_in_state(fixture->arena, SLOT_READY), 1);
    const uint8_t *bytes = arena_slot_data(fixture->arena, dead_letter.slot_index);
    EXPECT_STATUS(record_batch_validate(bytes, dead_letter.size, NULL), STATUS_OK);
    expect_no_dead_letter(fixture);
    freed(fixture, &dead_letter);
}

TEST_WITH(fixture, fixture_begin, a_dead_letter_delays_no_batch)
{
    struct batch_outcome outcome;
    appended(fixture, 1);
    EXPECT_EQ_U64(expired(fixture), 1);
    fixture->producing->clock.manual_ns = LATER_NS;
    appended(fixture, 1);
    struct drained_batch batch = drained(fixture);
    EXPECT_EQ_U64(batch.record_count, 1);
    EXPECT_STATUS(accumulator_complete(fixture->sender, batch.slot_index, batch.seq, &success, NULL), STATUS_OK);
    struct drained_batch dead_letter = dead_letter_taken(fixture, &outcome);
    EXPECT(dead_letter.slot_index != batch.slot_index || dead_letter.seq != batch.seq);
    freed(fixture, &dead_letter);
}

TEST_WITH(fixture, fixture_begin,
          a_batch_that_expires_in_flight_is_a_dead_letter_if_it_is_requeued_but_not_if_it_is_delivered)
{
    struct batch_outcome outcome;
    appended(fixture, 1);
    struct drained_batch batch = drained(fixture);
    EXPECT_EQ_U64(expired(fixture), 1);
    expect_no_dead_letter(fixture);
    EXPECT_STATUS(accumulator_requeue(fixture->sender, batch.slot_index, batch.seq, 0), STATUS_OK);
    struct drained_batch dead_letter = dead_letter_taken(fixture, &outcome);
    EXPECT_EQ_U64(dead_letter.attempt_count, 1);
    freed(fixture, &dead_letter);
    fixture->producing->clock.manual_ns = 1000;
    appended(fixture, 1);
    batch = drained(fixture);
    EXPECT_EQ_U64(expired(fixture), 1);
    EXPECT_STATUS(accumulator_complete(fixture->sender, batch.slot_index, batch.seq, &success, NULL), STATUS_OK);
    expect_no_dead_letter(fixture);
}

TEST_WITH(fixture, fixture_begin, a_dead_letter_that_is_requeued_is_a_dead_letter_again)
{
    struct batch_outcome outcome;
    appended(fixture, 1);
    EXPECT_EQ_U64(expired(fixture), 1);
    struct drained_batch dead_letter = dead_letter_taken(fixture, &outcome);
    EXPECT_STATUS(accumulator_requeue(fixture->sender, dead_letter.slot_index, dead_letter.seq, 0), STATUS_OK);
    dead_letter = dead_letter_taken(fixture, &outcome);
    freed(fixture, &dead_letter);
}

TEST_WITH(fixture, fixture_begin, an_aborted_batch_is_no_dead_letter)
{
    appended(fixture, 1);
    EXPECT_EQ_U64(sender_abort(fixture->sender->sender, true, NULL), 1);
    expect_no_dead_letter(fixture);
}

TEST(an_impossible_dead_letter_is_not_changed)
{
    struct fixture fixture;
    fixture_begin(&fixture);
    appended(&fixture, 1);
    EXPECT_EQ_U64(expired(&fixture), 1);
    uint32_t slot_index = fixture.sender->sender->dead.slots[0];
    atomic_u64 *cell = &fixture.arena->slots[slot_index].word;
    uint64_t word = load_relaxed_u64(cell);
    store_release_u64(cell, slot_word_with_state(0, SLOT_READY));
    expect_no_dead_letter(&fixture);
    EXPECT_EQ_U64(slots_in_state(fixture.arena, SLOT_BAD), 1);
    store_release_u64(cell, slot_word_with_state(word, SLOT_BAD)); /* a state that verify accepts */
    accumulator_close(fixture.sender);
    accumulator_close(fixture.producer);
    arena_detach(fixture.producing);
    arena_end(fixture.arena, fixture.file);
}

/* ---- the next sender ---- */

TEST_WITH(fixture, fixture_begin, the_next_sender_inherits_dead_letters_with_what_was_decided)
{
    struct batch_outcome outcome = {.result = RESULT_FAILED, .error_code = -2};
    appended(fixture, 2);
    struct drained_batch batch = drained(fixture);
    EXPECT_STATUS(sender_decide(fixture->sender->sender, batch.slot_index, batch.seq + 1, &outcome), STATUS_STALE);
    EXPECT_STATUS(sender_decide(fixture->sender->sender, batch.slot_index, batch.seq, &outcome), STATUS_OK);
    succeeded(fixture);
    struct drained_batch batches[8];
    EXPECT_EQ_U64(drain_round(fixture->sender, 5, batches), 0);
    struct drained_batch dead_letter = dead_letter_taken(fixture, &outcome);
    EXPECT(outcome.result == RESULT_FAILED && outcome.error_code == -2 && dead_letter.record_count == 2);
    EXPECT(result_of(fixture, &dead_letter).error_code == -2);
    freed(fixture, &dead_letter);
}

TEST_WITH(fixture, fixture_begin, a_decision_outlives_the_timeout)
{
    const struct batch_outcome outcome = {.result = RESULT_FAILED, .error_code = 87};
    appended(fixture, 1);
    struct drained_batch batch = drained(fixture);
    EXPECT_STATUS(sender_decide(fixture->sender->sender, batch.slot_index, batch.seq, &outcome), STATUS_OK);
    EXPECT_EQ_U64(expired(fixture), 1);
    EXPECT(result_of(fixture, &batch).result == RESULT_FAILED && result_of(fixture, &batch).error_code == 87);
    EXPECT_STATUS(accumulator_complete(fixture->sender, batch.slot_index, batch.seq, &outcome, NULL), STATUS_OK);
}

TEST_WITH(fixture, fixture_begin, a_sender_that_wants_no_dead_letters_frees_them)
{
    struct error error;
    appended(fixture, 1);
    EXPECT_EQ_U64(expired(fixture), 1);
    accumulator_resign_sender(fixture->sender);
    fixture->sender->wants_dead_letters = false;
    EXPECT_STATUS(accumulator_become_sender(fixture->sender, &error), STATUS_OK);
    expect_no_dead_letter(fixture);
}

RUN_ALL()
