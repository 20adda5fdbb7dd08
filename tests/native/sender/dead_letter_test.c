/* SPDX-License-Identifier: Apache-2.0
 *
 * Failed batches whose bytes stay in the arena until they are stored elsewhere.
 */
#include "sender/complete.h"

#include "core/delivery_fixture.h"

#include "format/record_batch.h"
#include "sender/sender_half.h"

enum { BATCH_SIZE = 512, LETTERS_MAX = 8, TIMEOUT_NS = 500, LATER_NS = 5000 };

/* ---- helpers ---- */

struct burial {
    struct arena *arena;
    struct arena *producing;
    struct accumulator *producer;
    struct accumulator *sender;
    int file;
};

static struct accumulator *gravedigger(struct arena *arena)
{
    struct accumulator *sender = accumulator_opened(arena);
    struct error error;
    sender->wants_dead_letters = true;
    EXPECT_STATUS(accumulator_become_sender(sender, &error), STATUS_OK);
    sender_publish_delivery_timeout(sender->sender, TIMEOUT_NS, true);
    return sender;
}

static void burial_begin(struct burial *burial)
{
    *burial = (struct burial){.file = arena_file_new()};
    burial->arena = arena_created(burial->file, geometry_of(LETTERS_MAX, BATCH_SIZE));
    burial->producing = arena_attached(burial->file);
    burial->producing->clock = (struct clock){.is_manual = true, .manual_ns = 1000};
    burial->producer = accumulator_opened(burial->producing);
    burial->sender = gravedigger(burial->arena);
}

static void burial_end(struct burial *burial)
{
    accumulator_close(burial->sender);
    accumulator_close(burial->producer);
    arena_detach(burial->producing);
    expect_all_free(burial->arena);
    arena_end(burial->arena, burial->file);
}

static void appended(struct burial *burial, uint32_t record_count)
{
    for (uint32_t i = 0; i < record_count; i++) {
        EXPECT_STATUS(append_number(burial->producer, 0, i), STATUS_OK);
    }
}

static struct drained_batch drained(struct burial *burial)
{
    struct drained_batch batches[8] = {0};
    EXPECT_EQ_U64(drain_round(burial->sender, 5, batches), 1);
    return batches[0];
}

static uint32_t expired(struct burial *burial)
{
    uint64_t next_ns;
    return sender_expire(burial->sender->sender, LATER_NS, TIMEOUT_NS, &next_ns, NULL);
}

static struct drained_batch letter_taken(struct burial *burial, struct batch_outcome *outcome)
{
    struct drained_batch letters[LETTERS_MAX] = {0};
    struct batch_outcome outcomes[LETTERS_MAX];
    EXPECT_EQ_U64(sender_dead_letters(burial->sender->sender, letters, outcomes, LETTERS_MAX), 1);
    *outcome = outcomes[0];
    return letters[0];
}

static void expect_no_letter(struct burial *burial)
{
    struct drained_batch letters[LETTERS_MAX];
    struct batch_outcome outcomes[LETTERS_MAX];
    EXPECT_EQ_U64(sender_dead_letters(burial->sender->sender, letters, outcomes, LETTERS_MAX), 0);
}

static void freed(struct burial *burial, const struct drained_batch *letter)
{
    EXPECT_STATUS(accumulator_complete(burial->sender, letter->slot_index, letter->seq, &success, NULL), STATUS_OK);
    EXPECT_STATUS(accumulator_complete(burial->sender, letter->slot_index, letter->seq, &success, NULL), STATUS_STALE);
}

static struct completion result_of(const struct burial *burial, const struct drained_batch *batch)
{
    const struct record_token token = {
        .seq = batch->seq, .partition_index = batch->partition_index, .slot_index = batch->slot_index};
    struct completion completion = {.result = RESULT_NONE};
    EXPECT_STATUS(completion_find(burial->producing, &token, &completion), STATUS_OK);
    return completion;
}

/* The sender resigns, and another process takes the role. */
static void succeeded(struct burial *burial)
{
    accumulator_resign_sender(burial->sender);
    accumulator_close(burial->sender);
    burial->sender = gravedigger(burial->arena);
}

/* ---- the bytes of failed batches ---- */

TEST_WITH(burial, burial_begin, what_expires_in_the_queue_has_its_result_and_keeps_its_bytes)
{
    struct batch_outcome outcome;
    appended(burial, 3);
    EXPECT_EQ_U64(expired(burial), 1);
    EXPECT_EQ_U64(expired(burial), 0);
    struct drained_batch letter = letter_taken(burial, &outcome);
    EXPECT(outcome.result == RESULT_EXPIRED && letter.record_count == 3 && letter.attempt_count == 0);
    EXPECT_EQ_U64(result_of(burial, &letter).result, RESULT_EXPIRED);
    EXPECT_EQ_U64(slots_in_state(burial->arena, SLOT_READY), 1);
    EXPECT_STATUS(record_batch_validate(arena_slot_data(burial->arena, letter.slot_index), letter.size, NULL),
                  STATUS_OK);
    expect_no_letter(burial);
    freed(burial, &letter);
}

TEST_WITH(burial, burial_begin, a_dead_letter_delays_no_batch)
{
    struct batch_outcome outcome;
    appended(burial, 1);
    EXPECT_EQ_U64(expired(burial), 1);
    burial->producing->clock.manual_ns = LATER_NS;
    appended(burial, 1);
    struct drained_batch batch = drained(burial);
    EXPECT_EQ_U64(batch.record_count, 1);
    EXPECT_STATUS(accumulator_complete(burial->sender, batch.slot_index, batch.seq, &success, NULL), STATUS_OK);
    struct drained_batch letter = letter_taken(burial, &outcome);
    EXPECT(letter.slot_index != batch.slot_index || letter.seq != batch.seq);
    freed(burial, &letter);
}

TEST_WITH(burial, burial_begin, what_expires_in_flight_is_a_dead_letter_when_it_is_given_back_and_none_when_it_arrived)
{
    struct batch_outcome outcome;
    appended(burial, 1);
    struct drained_batch batch = drained(burial);
    EXPECT_EQ_U64(expired(burial), 1);
    expect_no_letter(burial);
    EXPECT_STATUS(accumulator_requeue(burial->sender, batch.slot_index, batch.seq, 0), STATUS_OK);
    struct drained_batch letter = letter_taken(burial, &outcome);
    EXPECT_EQ_U64(letter.attempt_count, 1);
    freed(burial, &letter);
    burial->producing->clock.manual_ns = 1000;
    appended(burial, 1);
    batch = drained(burial);
    EXPECT_EQ_U64(expired(burial), 1);
    EXPECT_STATUS(accumulator_complete(burial->sender, batch.slot_index, batch.seq, &success, NULL), STATUS_OK);
    expect_no_letter(burial);
}

TEST_WITH(burial, burial_begin, a_dead_letter_that_is_requeued_is_a_dead_letter_again)
{
    struct batch_outcome outcome;
    appended(burial, 1);
    EXPECT_EQ_U64(expired(burial), 1);
    struct drained_batch letter = letter_taken(burial, &outcome);
    EXPECT_STATUS(accumulator_requeue(burial->sender, letter.slot_index, letter.seq, 0), STATUS_OK);
    letter = letter_taken(burial, &outcome);
    freed(burial, &letter);
}

TEST_WITH(burial, burial_begin, what_was_aborted_is_no_dead_letter)
{
    appended(burial, 1);
    EXPECT_EQ_U64(sender_abort(burial->sender->sender, true, NULL), 1);
    expect_no_letter(burial);
}

TEST(an_impossible_dead_letter_stays_as_it_is)
{
    struct burial burial;
    burial_begin(&burial);
    appended(&burial, 1);
    EXPECT_EQ_U64(expired(&burial), 1);
    uint32_t slot_index = burial.sender->sender->dead.slots[0];
    atomic_u64 *cell = &burial.arena->slots[slot_index].word;
    uint64_t word = load_relaxed_u64(cell);
    store_release_u64(cell, slot_word_with_state(0, SLOT_READY));
    expect_no_letter(&burial);
    EXPECT_EQ_U64(slots_in_state(burial.arena, SLOT_BAD), 1);
    store_release_u64(cell, slot_word_with_state(word, SLOT_BAD)); /* a state that verify accepts */
    accumulator_close(burial.sender);
    accumulator_close(burial.producer);
    arena_detach(burial.producing);
    arena_end(burial.arena, burial.file);
}

/* ---- the next sender ---- */

TEST_WITH(burial, burial_begin, the_next_sender_inherits_dead_letters_with_what_was_decided)
{
    struct batch_outcome outcome = {.result = RESULT_FAILED, .error_code = -2};
    appended(burial, 2);
    struct drained_batch batch = drained(burial);
    EXPECT_STATUS(sender_decide(burial->sender->sender, batch.slot_index, batch.seq + 1, &outcome), STATUS_STALE);
    EXPECT_STATUS(sender_decide(burial->sender->sender, batch.slot_index, batch.seq, &outcome), STATUS_OK);
    succeeded(burial);
    struct drained_batch batches[8];
    EXPECT_EQ_U64(drain_round(burial->sender, 5, batches), 0);
    struct drained_batch letter = letter_taken(burial, &outcome);
    EXPECT(outcome.result == RESULT_FAILED && outcome.error_code == -2 && letter.record_count == 2);
    EXPECT(result_of(burial, &letter).error_code == -2);
    freed(burial, &letter);
}

TEST_WITH(burial, burial_begin, a_decision_outlives_the_timeout)
{
    const struct batch_outcome outcome = {.result = RESULT_FAILED, .error_code = 87};
    appended(burial, 1);
    struct drained_batch batch = drained(burial);
    EXPECT_STATUS(sender_decide(burial->sender->sender, batch.slot_index, batch.seq, &outcome), STATUS_OK);
    EXPECT_EQ_U64(expired(burial), 1);
    EXPECT(result_of(burial, &batch).result == RESULT_FAILED && result_of(burial, &batch).error_code == 87);
    EXPECT_STATUS(accumulator_complete(burial->sender, batch.slot_index, batch.seq, &outcome, NULL), STATUS_OK);
}

TEST_WITH(burial, burial_begin, a_sender_that_wants_no_dead_letters_frees_them)
{
    struct error error;
    appended(burial, 1);
    EXPECT_EQ_U64(expired(burial), 1);
    accumulator_resign_sender(burial->sender);
    burial->sender->wants_dead_letters = false;
    EXPECT_STATUS(accumulator_become_sender(burial->sender, &error), STATUS_OK);
    expect_no_letter(burial);
}

RUN_ALL()
