/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches are completed, also by the sender that takes over from a dead one.
 */
#include "core/accumulator.h"

#include "core/delivery_fixture.h"

#include "arena/attach.h"
#include "arena/process.h"

enum { BATCH_SIZE = 512, NEVER = 0 };

/* ---- helpers ---- */

struct ending {
    struct arena *arena;
    struct arena *producing;
    struct accumulator *producer;
    struct accumulator *sender;
    int file;
};

static void ending_begin(struct ending *ending)
{
    *ending = (struct ending){.file = arena_file_new()};
    ending->arena = arena_created(ending->file, geometry_of(8, BATCH_SIZE));
    ending->producing = arena_attached(ending->file);
    ending->producing->clock = (struct clock){.is_manual = true, .manual_ns = 1000};
    ending->producer = accumulator_opened(ending->producing);
    ending->sender = sender_opened(ending->arena);
    sender_publish_delivery_timeout(ending->sender->sender, 0, true); /* count all time without an outage */
}

static void ending_end(struct ending *ending)
{
    struct ledger ledger = {0};
    deliver_everything(ending->sender, &ledger);
    accumulator_close(ending->sender);
    accumulator_close(ending->producer);
    arena_detach(ending->producing);
    expect_all_free(ending->arena);
    arena_end(ending->arena, ending->file);
}

static struct drained_batch drained_one(struct ending *ending)
{
    struct drained_batch batches[8] = {0};
    EXPECT_EQ_U64(drain_round(ending->sender, 5, batches), 1);
    return batches[0];
}

static struct drained_batch appended_and_drained(struct ending *ending, uint32_t record_count)
{
    for (uint32_t i = 0; i < record_count; i++) {
        EXPECT_STATUS(append_number(ending->producer, 0, i), STATUS_OK);
    }
    return drained_one(ending);
}

static enum status complete(struct ending *ending, const struct drained_batch *batch)
{
    return accumulator_complete(ending->sender, batch->slot_index, batch->seq, &success, NULL);
}

static struct record_token token_of(const struct drained_batch *batch, uint32_t record_index)
{
    return (struct record_token){.seq = batch->seq,
                                 .partition_index = batch->partition_index,
                                 .slot_index = batch->slot_index,
                                 .record_index = record_index};
}

static void expect_result(const struct ending *ending, const struct drained_batch *batch, uint32_t record_index,
                          enum batch_result result)
{
    const struct record_token token = token_of(batch, record_index);
    struct completion completion = {.result = RESULT_NONE};
    EXPECT_STATUS(completion_find(ending->producing, &token, &completion), STATUS_OK);
    EXPECT_EQ_U64(completion.result, result);
}

static uint64_t result_count(const struct ending *ending)
{
    return load_acquire_u64(&ending->arena->globals->completion_tail);
}

/* ---- complete ---- */

TEST_WITH(ending, ending_begin, a_completed_batch_has_its_result_and_its_slot_is_free)
{
    struct drained_batch batch = appended_and_drained(ending, 3);
    const struct record_token token = token_of(&batch, 2);
    struct completion completion;
    EXPECT_STATUS(completion_find(ending->producing, &token, &completion), STATUS_PENDING);
    const struct batch_outcome outcome = {
        .result = RESULT_SUCCEEDED, .base_offset = 77, .log_append_time_ms = 88, .error_code = 0};
    EXPECT_STATUS(accumulator_complete(ending->sender, batch.slot_index, batch.seq, &outcome, NULL), STATUS_OK);
    EXPECT_STATUS(completion_find(ending->producing, &token, &completion), STATUS_OK);
    EXPECT(completion.base_offset == 77 && completion.log_append_time_ms == 88);
    EXPECT_EQ_U64(completion.first_record, 0);
    EXPECT_EQ_U64(completion.record_count, 3);
    EXPECT_EQ_U64(slots_in_state(ending->arena, SLOT_FREE), 8);
    EXPECT_EQ_U64(counter_value(ending->arena, COUNTER_BATCHES_COMPLETED), 1);
    EXPECT_EQ_U64(counter_value(ending->arena, COUNTER_RECORDS_COMPLETED), 3);
    EXPECT_EQ_U64(counter_value(ending->arena, COUNTER_BATCHES_FAILED), 0);
}

TEST_WITH(ending, ending_begin, a_batch_that_is_not_in_flight_cannot_be_completed)
{
    struct drained_batch batch = appended_and_drained(ending, 1);
    EXPECT_STATUS(accumulator_complete(ending->sender, batch.slot_index, batch.seq + 1, &success, NULL), STATUS_STALE);
    EXPECT_STATUS(accumulator_complete(ending->sender, 8, batch.seq, &success, NULL), STATUS_STALE);
    EXPECT_STATUS(accumulator_complete(ending->sender, UINT32_MAX, batch.seq, &success, NULL), STATUS_STALE);
    EXPECT_STATUS(accumulator_complete(ending->producer, batch.slot_index, batch.seq, &success, NULL), STATUS_STALE);
    EXPECT_STATUS(complete(ending, &batch), STATUS_OK);
    EXPECT_STATUS(complete(ending, &batch), STATUS_STALE);
    EXPECT_STATUS(accumulator_requeue(ending->sender, batch.slot_index, batch.seq, NEVER), STATUS_STALE);
    EXPECT_STATUS(sender_quarantine(ending->sender->sender, batch.slot_index, batch.seq), STATUS_STALE);
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, 1, &success, NULL),
                  STATUS_STALE);
    EXPECT_EQ_U64(result_count(ending), 1);
}

TEST_WITH(ending, ending_begin, a_completion_gives_the_slot_to_a_waiter)
{
    uint32_t slots[7];
    struct buffer_wait wait;
    struct wake_set wakes = {0};
    struct drained_batch batch = appended_and_drained(ending, 1);
    for (int i = 0; i < 7; i++) {
        EXPECT_STATUS(buffer_pool_try_allocate(ending->producing, &slots[i]), STATUS_OK);
    }
    EXPECT_STATUS(buffer_pool_enqueue(ending->producing, NO_PARTITION, 1, &wait, NULL), STATUS_OK);
    EXPECT_STATUS(accumulator_complete(ending->sender, batch.slot_index, batch.seq, &success, &wakes), STATUS_OK);
    EXPECT_EQ_U64(wakes.bits[0], UINT64_C(1) << wait.waiter_index);
    EXPECT_STATUS(buffer_pool_take(ending->producing, &wait, slots), STATUS_OK);
    EXPECT_EQ_U64(slots[0], batch.slot_index);
    for (uint32_t i = 0; i < 8; i++) {
        buffer_pool_return(ending->producing, &i, 1, NULL);
    }
}

TEST_WITH(ending, ending_begin, an_oversized_batch_is_freed_with_its_chain)
{
    static const uint8_t value[3 * BATCH_SIZE];
    struct append_result result;
    append_waiting(ending->producer, 0, record_of(value, sizeof value, 1000), &result);
    EXPECT_EQ_U64(load_relaxed_u64(&ending->arena->globals->oversized_bytes), (uint64_t)4 * BATCH_SIZE);
    struct drained_batch batch = drained_one(ending);
    EXPECT_STATUS(complete(ending, &batch), STATUS_OK);
    EXPECT_EQ_U64(load_relaxed_u64(&ending->arena->globals->oversized_bytes), 0);
    expect_all_free(ending->arena);
}

static void run_wait(struct arena *arena, void *unused)
{
    (void)unused;
    uint32_t slot_index;
    struct buffer_wait wait = {0};
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &wait, NULL), STATUS_OK);
    EXPECT_STATUS(buffer_pool_take(arena, &wait, &slot_index), STATUS_OK);
    buffer_pool_return(arena, &slot_index, 1, NULL);
}

static void run_allocate_and_die(struct arena *arena, void *unused)
{
    (void)unused;
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_OK);
    raise(SIGKILL);
}

TEST_WITH(ending, ending_begin, a_stopped_holder_of_the_pool_lock_delays_no_result)
{
    static const uint8_t value[BATCH_SIZE];
    struct append_result result;
    append_waiting(ending->producer, 0, record_of(value, sizeof value, 1000), &result);
    struct drained_batch chain = drained_one(ending);
    struct drained_batch batch = appended_and_drained(ending, 1);
    pid_t child = child_started(ending->file, run_wait, NULL, "waiter_parked", SIGSTOP);
    EXPECT(child_is_stopped(child));
    EXPECT(child_was_killed(child_started(ending->file, run_allocate_and_die, NULL, NULL, 0)));
    EXPECT_EQ_U64(slots_in_state(ending->arena, SLOT_FREE), 4);

    EXPECT_STATUS(complete(ending, &chain), STATUS_OK);
    EXPECT_STATUS(complete(ending, &batch), STATUS_OK);
    sender_maintain(ending->sender->sender, NULL);
    expect_result(ending, &chain, 0, RESULT_SUCCEEDED);
    expect_result(ending, &batch, 0, RESULT_SUCCEEDED);
    EXPECT_EQ_U64(slots_in_state(ending->arena, SLOT_FREE), 5); /* not the chain, nor the slot of the dead process */
    EXPECT_EQ_U64(slot_state_at(ending->arena, chain.slot_index), SLOT_DONE);

    EXPECT(child_finishes(child));
    sender_maintain(ending->sender->sender, NULL);
    expect_all_free(ending->arena);
}

/* ---- parts ---- */

TEST_WITH(ending, ending_begin, a_split_batch_is_complete_with_its_last_part)
{
    struct drained_batch batch = appended_and_drained(ending, 10);
    const struct batch_outcome failure = {.result = RESULT_FAILED, .error_code = 10, .base_offset = -1};
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, 0, &success, NULL),
                  STATUS_INVALID);
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, 11, &success, NULL),
                  STATUS_INVALID);
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, UINT32_MAX, &success, NULL),
                  STATUS_INVALID);
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, 4, &success, NULL), STATUS_OK);
    expect_result(ending, &batch, 3, RESULT_SUCCEEDED);
    const struct record_token token = token_of(&batch, 4);
    struct completion completion;
    EXPECT_STATUS(completion_find(ending->producing, &token, &completion), STATUS_PENDING);
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, 7, &success, NULL),
                  STATUS_INVALID);
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, 5, &failure, NULL), STATUS_OK);
    EXPECT_EQ_U64(queued_count(ending->sender), 1);
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, 1, &success, NULL), STATUS_OK);
    EXPECT_EQ_U64(queued_count(ending->sender), 0);
    expect_result(ending, &batch, 0, RESULT_SUCCEEDED);
    expect_result(ending, &batch, 4, RESULT_FAILED);
    expect_result(ending, &batch, 8, RESULT_FAILED);
    expect_result(ending, &batch, 9, RESULT_SUCCEEDED);
    EXPECT_EQ_U64(counter_value(ending->arena, COUNTER_RECORDS_COMPLETED), 10);
}

TEST_WITH(ending, ending_begin, the_rest_of_a_split_batch_can_be_completed_at_once)
{
    struct drained_batch batch = appended_and_drained(ending, 10);
    const struct batch_outcome failure = {.result = RESULT_FAILED, .base_offset = -1};
    EXPECT_STATUS(accumulator_complete_part(ending->sender, batch.slot_index, batch.seq, 4, &success, NULL), STATUS_OK);
    EXPECT_STATUS(accumulator_requeue(ending->sender, batch.slot_index, batch.seq, NEVER), STATUS_OK);
    struct drained_batch again = drained_one(ending);
    EXPECT_EQ_U64(again.acked_record_count, 4);
    EXPECT_STATUS(accumulator_complete(ending->sender, again.slot_index, again.seq, &failure, NULL), STATUS_OK);
    expect_result(ending, &batch, 3, RESULT_SUCCEEDED);
    expect_result(ending, &batch, 4, RESULT_FAILED);
    expect_result(ending, &batch, 9, RESULT_FAILED);
}

/* ---- expire and abort ---- */

TEST_WITH(ending, ending_begin, a_batch_in_the_queue_expires_at_its_time_and_is_freed)
{
    uint32_t partitions[8];
    uint64_t next_ns;
    struct append_result result;
    const struct ready_options lingering = {.now_ns = 1000, .linger_ns = UINT64_MAX};
    EXPECT_STATUS(append_record(ending->producer, 0, record_of("12345678", 8, 1000), &result), STATUS_OK);
    (void)sender_ready(ending->sender->sender, &lingering, partitions, 8, &next_ns);
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 1400, 500, &next_ns, NULL), 0);
    EXPECT_EQ_U64(next_ns, 100);
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 0, 500, &next_ns, NULL), 0); /* earlier than the append */
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 1500, 500, &next_ns, NULL), 1);
    EXPECT_EQ_U64(next_ns, UINT64_MAX);
    const struct drained_batch batch = {.slot_index = result.first.slot_index};
    expect_result(ending, &batch, 0, RESULT_EXPIRED);
    EXPECT_EQ_U64(slots_in_state(ending->arena, SLOT_FREE), 8);
    EXPECT_EQ_U64(counter_value(ending->arena, COUNTER_BATCHES_EXPIRED), 1);
    EXPECT_STATUS(append_number(ending->producer, 0, 1), STATUS_OK); /* `open` named this slot */
}

TEST_WITH(ending, ending_begin, the_next_expiry_is_known_before_a_batch_expires)
{
    struct sender_half *half = ending->sender->sender;
    uint64_t next_ns;
    EXPECT_EQ_U64(sender_next_expiry_ns(half, 5000, 500), UINT64_MAX);
    struct drained_batch batch = appended_and_drained(ending, 2); /* created at 1000 */
    EXPECT_EQ_U64(sender_next_expiry_ns(half, 1400, 500), 100);
    EXPECT_EQ_U64(half->oldest_created_ns, 1000);
    EXPECT_EQ_U64(sender_next_expiry_ns(half, 1500, 500), 0);
    EXPECT_EQ_U64(result_count(ending), 0);
    EXPECT_EQ_U64(sender_expire(half, 1500, 500, &next_ns, NULL), 1);
    EXPECT_EQ_U64(sender_next_expiry_ns(half, 1500, 500), UINT64_MAX); /* in flight, and has its result */
    EXPECT_STATUS(complete(ending, &batch), STATUS_OK);
}

TEST_WITH(ending, ending_begin, a_batch_in_flight_expires_and_keeps_its_memory_until_its_io_is_over)
{
    struct drained_batch batch = appended_and_drained(ending, 2);
    uint8_t *before = batch_bytes(ending->arena, batch.slot_index, batch.size);
    uint64_t next_ns;
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 5000, 500, &next_ns, NULL), 1);
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 9000, 500, &next_ns, NULL), 0); /* only once */
    EXPECT_EQ_U64(next_ns, UINT64_MAX);
    expect_result(ending, &batch, 1, RESULT_EXPIRED);
    EXPECT_EQ_U64(slot_state_at(ending->arena, batch.slot_index), SLOT_READY);
    EXPECT(memcmp(before, arena_slot_data(ending->arena, batch.slot_index), batch.size) == 0);
    free(before);
    EXPECT_STATUS(complete(ending, &batch), STATUS_OK); /* the ack has arrived */
    expect_result(ending, &batch, 1, RESULT_EXPIRED);
    EXPECT_EQ_U64(result_count(ending), 1);
    EXPECT_EQ_U64(slots_in_state(ending->arena, SLOT_FREE), 8);
}

/* ---- the delivery clock ---- */

#define TIMEOUT_NS (500 * NS_PER_MS)
#define HOUR_NS (3600 * NS_PER_S)

/* Begins with one waiting batch, and a sender that counts only the time in which a sender could deliver. */
static void waiting_begin(struct ending *ending)
{
    ending_begin(ending);
    sender_publish_delivery_timeout(ending->sender->sender, TIMEOUT_NS, false);
    EXPECT_STATUS(append_number(ending->producer, 0, 1), STATUS_OK);
}

static uint32_t slot_of_partition(const struct arena *arena, uint32_t partition_index)
{
    return open_word_slot(load_relaxed_u64(&arena->partitions[partition_index].open));
}

static uint32_t expired_at(struct ending *ending, uint64_t now_ns)
{
    uint64_t next_ns;
    return sender_expire(ending->sender->sender, now_ns, TIMEOUT_NS, &next_ns, NULL);
}

TEST_WITH(ending, waiting_begin, time_in_which_no_sender_could_deliver_does_not_age_a_batch)
{
    uint64_t next_ns;
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 8 * HOUR_NS, TIMEOUT_NS, &next_ns, NULL), 0);
    EXPECT_EQ_U64(next_ns, TIMEOUT_NS);
    EXPECT_EQ_U64(ending->sender->sender->oldest_created_ns, 1000);
    sender_run_delivery_clock(ending->sender->sender, TIMEOUT_NS - NS_PER_MS);
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 9 * HOUR_NS, TIMEOUT_NS, &next_ns, NULL), 0);
    EXPECT_EQ_U64(next_ns, NS_PER_MS);
    sender_run_delivery_clock(ending->sender->sender, NS_PER_MS);
    EXPECT_EQ_U64(expired_at(ending, 9 * HOUR_NS), 1);
    EXPECT_EQ_U64(ending->sender->sender->oldest_created_ns, UINT64_MAX);
}

TEST_WITH(ending, waiting_begin, always_counts_the_time_in_which_no_sender_could_deliver)
{
    sender_publish_delivery_timeout(ending->sender->sender, TIMEOUT_NS, true);
    EXPECT_EQ_U64(load_relaxed_u32(&ending->arena->globals->delivery_counts_always), 1);
    EXPECT_EQ_U64(load_relaxed_u64(&ending->arena->globals->delivery_timeout_ns), TIMEOUT_NS);
    EXPECT_EQ_U64(expired_at(ending, 1000 + TIMEOUT_NS), 1);
}

TEST_WITH(ending, waiting_begin, a_sender_that_checks_late_makes_no_batch_older_than_it_is)
{
    sender_run_delivery_clock(ending->sender->sender, HOUR_NS); /* the batch existed only for a moment of this hour */
    EXPECT_EQ_U64(expired_at(ending, 1000 + TIMEOUT_NS - 1), 0);
    EXPECT_EQ_U64(expired_at(ending, 1000 + TIMEOUT_NS), 1);
}

TEST_WITH(ending, waiting_begin, the_spans_of_batches_continue_under_the_next_sender)
{
    sender_run_delivery_clock(ending->sender->sender, TIMEOUT_NS / 2);
    accumulator_close(ending->sender);
    ending->sender = sender_opened(ending->arena);
    EXPECT_EQ_U64(expired_at(ending, 8 * HOUR_NS), 0);
    sender_run_delivery_clock(ending->sender->sender, TIMEOUT_NS / 2);
    EXPECT_EQ_U64(load_relaxed_u64(&ending->arena->globals->delivery_clock_ns), TIMEOUT_NS);
    EXPECT_EQ_U64(expired_at(ending, 8 * HOUR_NS), 1);
}

TEST_WITH(ending, ending_begin, the_delivery_clock_s_stamps_wrap)
{
    sender_publish_delivery_timeout(ending->sender->sender, TIMEOUT_NS, false);
    sender_run_delivery_clock(ending->sender->sender, (UINT64_C(1) << 32) * NS_PER_MS - TIMEOUT_NS / 2);
    EXPECT_STATUS(append_number(ending->producer, 0, 1), STATUS_OK);
    sender_run_delivery_clock(ending->sender->sender, TIMEOUT_NS - NS_PER_MS);
    EXPECT_EQ_U64(expired_at(ending, 8 * HOUR_NS), 0);
    sender_run_delivery_clock(ending->sender->sender, NS_PER_MS);
    EXPECT_EQ_U64(expired_at(ending, 8 * HOUR_NS), 1);
}

TEST(a_corrupt_delivery_clock_neither_expires_all_batches_nor_stops_expiry)
{
    static const uint64_t hostile[] = {1, UINT64_MAX, UINT64_C(1) << 63, 77 * HOUR_NS};
    for (size_t i = 0; i < COUNT_OF(hostile); i++) {
        struct ending ending;
        waiting_begin(&ending);
        store_relaxed_u64(&ending.arena->globals->delivery_clock_ns, hostile[i]);
        EXPECT_STATUS(append_number(ending.producer, 1, 2), STATUS_OK); /* the batch is stamped with that value */
        EXPECT_EQ_U64(expired_at(&ending, 1000 + TIMEOUT_NS - 1), 0);
        sender_run_delivery_clock(ending.sender->sender, TIMEOUT_NS);
        EXPECT_EQ_U64(load_relaxed_u64(&ending.arena->globals->delivery_clock_ns), TIMEOUT_NS);
        EXPECT_EQ_U64(expired_at(&ending, 1000 + TIMEOUT_NS - 1), 0);
        EXPECT(expired_at(&ending, 8 * HOUR_NS) >= 1);
        ending_end(&ending);
    }
}

TEST_WITH(ending, waiting_begin, if_the_stamp_or_the_time_is_corrupt_the_other_one_limits_the_age)
{
    struct slot_header *slot = &ending->arena->slots[slot_of_partition(ending->arena, 0)];
    slot->delivery_stamp_ms = 4711; /* ahead of the clock */
    EXPECT_EQ_U64(expired_at(ending, 1000 + TIMEOUT_NS - 1), 0);
    slot->delivery_stamp_ms = 0;
    slot->created_ns = UINT64_MAX; /* the boot clock has never shown such a time */
    EXPECT_EQ_U64(expired_at(ending, 8 * HOUR_NS), 0);
    sender_run_delivery_clock(ending->sender->sender, TIMEOUT_NS);
    EXPECT_EQ_U64(expired_at(ending, 8 * HOUR_NS), 1);
}

/* ---- batches that end in flight ---- */

TEST_WITH(ending, ending_begin, an_expired_batch_is_not_sent_again)
{
    struct drained_batch batch = appended_and_drained(ending, 2);
    struct drained_batch batches[8];
    uint64_t next_ns;
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 5000, 500, &next_ns, NULL), 1);
    EXPECT_STATUS(accumulator_requeue(ending->sender, batch.slot_index, batch.seq, NEVER), STATUS_OK);
    EXPECT_EQ_U64(drain_round(ending->sender, 5, batches), 0);
    EXPECT_EQ_U64(slots_in_state(ending->arena, SLOT_FREE), 8);
}

TEST_WITH(ending, ending_begin, only_the_old_batches_of_a_queue_expire)
{
    static const uint8_t value[400];
    struct drained_batch batches[8];
    uint64_t next_ns;
    for (uint64_t i = 0; i < 4; i++) {
        ending->producing->clock.manual_ns = 1000 + 100 * i;
        EXPECT_STATUS(append_value(ending->producer, 0, value, sizeof value), STATUS_OK);
    }
    EXPECT_EQ_U64(drain_round(ending->sender, 5, batches), 1);
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, 1249, 149, &next_ns, NULL), 2);
    EXPECT_EQ_U64(next_ns, 100);
    EXPECT_EQ_U64(sender_take_expired(ending->sender->sender, 0), 2);
    EXPECT_EQ_U64(sender_take_expired(ending->sender->sender, 0), 0); /* the sender has already received the request */
    EXPECT_EQ_U64(sender_take_expired(ending->sender->sender, 1), 0);
    EXPECT_EQ_U64(slots_in_state(ending->arena, SLOT_FREE), 5);
    EXPECT_STATUS(complete(ending, &batches[0]), STATUS_OK);
}

static void die_with_an_empty_batch(struct arena *arena, void *unused)
{
    (void)unused;
    (void)append_number(accumulator_opened(arena), 0, 0);
}

TEST_WITH(ending, ending_begin, an_empty_batch_is_nothing_that_could_expire)
{
    uint64_t next_ns;
    uint32_t partitions[8];
    const struct ready_options lingering = {.linger_ns = UINT64_MAX};
    EXPECT(child_was_killed(child_started(ending->file, die_with_an_empty_batch, NULL, "record_claimed", SIGKILL)));
    (void)sender_ready(ending->sender->sender, &lingering, partitions, 8, &next_ns);
    EXPECT_EQ_U64(queued_count(ending->sender), 1);
    EXPECT_EQ_U64(sender_expire(ending->sender->sender, UINT64_MAX, 1, &next_ns, NULL), 0);
    EXPECT_EQ_U64(result_count(ending), 0);
}

TEST(abort_ends_everything_and_spares_what_is_in_flight_on_request)
{
    for (int is_included = 0; is_included <= 1; is_included++) {
        struct ending ending;
        ending_begin(&ending);
        struct drained_batch batch = appended_and_drained(&ending, 1);
        EXPECT_STATUS(append_number(ending.producer, 0, 1), STATUS_OK);
        EXPECT_STATUS(append_number(ending.producer, 5, 2), STATUS_OK); /* the sender has not seen it yet */
        EXPECT_EQ_U64(sender_abort(ending.sender->sender, is_included != 0, NULL), 2u + (unsigned)is_included);
        EXPECT_EQ_U64(sender_abort(ending.sender->sender, is_included != 0, NULL), 0);
        EXPECT_EQ_U64(slots_in_state(ending.arena, SLOT_FREE), 7);
        EXPECT_EQ_U64(slot_state_at(ending.arena, batch.slot_index), SLOT_READY);
        EXPECT_STATUS(complete(&ending, &batch), STATUS_OK);
        expect_result(&ending, &batch, 0, is_included != 0 ? RESULT_ABORTED : RESULT_SUCCEEDED);
        ending_end(&ending);
    }
}

/* ---- quarantine ---- */

TEST(a_quarantined_batch_keeps_its_slot_and_its_bytes)
{
    struct ending ending;
    ending_begin(&ending);
    struct drained_batch batch = appended_and_drained(&ending, 2);
    uint8_t *before = batch_bytes(ending.arena, batch.slot_index, batch.size);
    EXPECT_STATUS(sender_quarantine(ending.sender->sender, batch.slot_index, batch.seq), STATUS_OK);
    EXPECT_EQ_U64(slot_state_at(ending.arena, batch.slot_index), SLOT_BAD);
    EXPECT(memcmp(before, arena_slot_data(ending.arena, batch.slot_index), batch.size) == 0);
    free(before);
    expect_result(&ending, &batch, 1, RESULT_CORRUPT);
    EXPECT_STATUS(complete(&ending, &batch), STATUS_STALE);
    buffer_pool_repair(ending.arena);
    EXPECT_EQ_U64(slots_in_state(ending.arena, SLOT_BAD), 1);
    EXPECT_STATUS(append_number(ending.producer, 0, 7), STATUS_OK);
    struct ledger ledger = {0};
    deliver_everything(ending.sender, &ledger);
    expect_delivered_once(&ledger, 7, 8);
    accumulator_close(ending.sender);
    accumulator_close(ending.producer);
    arena_detach(ending.producing);
    arena_end(ending.arena, ending.file);
}

TEST(a_quarantined_chain_stays_counted_and_linked)
{
    struct ending ending;
    ending_begin(&ending);
    static const uint8_t value[BATCH_SIZE];
    struct append_result result;
    uint32_t slots[4];
    append_waiting(ending.producer, 0, record_of(value, sizeof value, 1000), &result);
    struct drained_batch batch = drained_one(&ending);
    EXPECT_STATUS(sender_quarantine(ending.sender->sender, batch.slot_index, batch.seq), STATUS_OK);
    buffer_pool_repair(ending.arena);
    EXPECT_EQ_U64(slot_chain_walk(ending.arena, batch.slot_index, slots, 4), 2);
    EXPECT_EQ_U64(load_relaxed_u64(&ending.arena->globals->oversized_bytes), (uint64_t)2 * BATCH_SIZE);
    accumulator_close(ending.sender);
    accumulator_close(ending.producer);
    arena_detach(ending.producing);
    arena_end(ending.arena, ending.file);
}

static void run_quarantine(struct arena *arena, void *argument)
{
    (void)argument;
    struct ending ending = {.arena = arena, .sender = sender_opened(arena)};
    struct drained_batch batch = drained_one(&ending);
    EXPECT_STATUS(sender_quarantine(ending.sender->sender, batch.slot_index, batch.seq), STATUS_OK);
}

/* The batch is still READY. The next sender finds the same contradiction, and the producer gets the same error. */
TEST(a_sender_that_dies_while_it_quarantines_leaves_it_to_the_next)
{
    static const char *const points[] = {"completion_cleared", "completion_numbered", "completion_linked"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        struct ending ending;
        ending_begin(&ending);
        EXPECT_STATUS(append_number(ending.producer, 0, 0), STATUS_OK);
        accumulator_close(ending.sender);
        pid_t child = child_started(ending.file, run_quarantine, NULL, points[i], SIGKILL);
        EXPECT_OR_SAY(child_was_killed(child), "%s was not reached", points[i]);
        ending.sender = sender_opened(ending.arena);
        struct drained_batch batch = drained_one(&ending);
        EXPECT_STATUS(sender_quarantine(ending.sender->sender, batch.slot_index, batch.seq), STATUS_OK);
        EXPECT_EQ_U64(slot_state_at(ending.arena, batch.slot_index), SLOT_BAD);
        expect_result(&ending, &batch, 0, RESULT_CORRUPT);
        accumulator_close(ending.sender);
        accumulator_close(ending.producer);
        arena_detach(ending.producing);
        arena_end(ending.arena, ending.file);
    }
}

/* ---- hazards ---- */

TEST_WITH(ending, ending_begin, a_slot_under_a_hazard_is_freed_when_the_hazard_is_cleared)
{
    struct drained_batch batch = appended_and_drained(ending, 1);
    struct sender_statistics statistics;
    store_seq_cst_u32(&ending->producing->me->writing, batch.slot_index + 1);
    EXPECT_STATUS(complete(ending, &batch), STATUS_OK);
    EXPECT_EQ_U64(slot_state_at(ending->arena, batch.slot_index), SLOT_DONE);
    for (int i = 0; i < 3; i++) {
        sender_maintain(ending->sender->sender, NULL);
        sender_statistics_read(ending->sender->sender, &statistics);
        EXPECT_EQ_U64(statistics.deferred_count, 1);
    }
    store_seq_cst_u32(&ending->producing->me->writing, 0);
    sender_maintain(ending->sender->sender, NULL);
    sender_statistics_read(ending->sender->sender, &statistics);
    EXPECT_EQ_U64(statistics.deferred_count, 0);
    EXPECT_EQ_U64(slots_in_state(ending->arena, SLOT_FREE), 8);
}

TEST_WITH(ending, ending_begin, the_hazard_of_a_dead_process_keeps_no_slot)
{
    struct drained_batch batch = appended_and_drained(ending, 1);
    EXPECT(child_was_killed(child_started(ending->file, die_with_an_empty_batch, NULL, "record_claimed", SIGKILL)));
    uint32_t dead = load_relaxed_u32(&ending->arena->globals->process_count_used) - 1;
    store_seq_cst_u32(&ending->arena->processes[dead].writing, batch.slot_index + 1);
    EXPECT(process_anyone_writes(ending->arena, batch.slot_index) == false);
    EXPECT_STATUS(complete(ending, &batch), STATUS_OK);
    EXPECT_EQ_U64(slot_state_at(ending->arena, batch.slot_index), SLOT_FREE);
}

/* ---- the role ---- */

TEST_WITH(ending, ending_begin, there_is_one_sender_and_the_next_may_follow)
{
    struct error error = {0};
    EXPECT_STATUS(accumulator_become_sender(ending->producer, &error), STATUS_BUSY);
    EXPECT(strstr(error.message, "sender") != NULL);
    EXPECT(ending->producer->sender == NULL);
    accumulator_resign_sender(ending->sender);
    EXPECT(!process_sender_is_alive(ending->producing));
    EXPECT_STATUS(accumulator_become_sender(ending->producer, &error), STATUS_OK);
    EXPECT(process_sender_is_alive(ending->arena));
    EXPECT_STATUS(accumulator_become_sender(ending->sender, &error), STATUS_BUSY);
    accumulator_resign_sender(ending->producer);
    EXPECT_STATUS(accumulator_become_sender(ending->sender, &error), STATUS_OK);
    EXPECT_EQ_U64(load_relaxed_u64(&ending->arena->globals->sender_epoch), 3);
}

/* ---- the death of a sender ---- */

struct death {
    const char *point;
    uint32_t passes_before;
    enum { BY_COMPLETING, BY_EXPIRING, BY_ABORTING, BY_SPLITTING } way;
};

static void end_batches(struct accumulator *sender, const struct death *death, struct drained_batch *batches,
                        uint32_t count)
{
    uint64_t next_ns;
    switch (death->way) {
    case BY_EXPIRING:
        sender_publish_delivery_timeout(sender->sender, 1, true);
        (void)sender_expire(sender->sender, UINT64_MAX, 1, &next_ns, NULL);
        break;
    case BY_ABORTING:
        (void)sender_abort(sender->sender, true, NULL);
        break;
    default:
        break;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (death->way == BY_SPLITTING && batches[i].record_count > 1) {
            EXPECT_STATUS(accumulator_complete_part(sender, batches[i].slot_index, batches[i].seq, 1, &success, NULL),
                          STATUS_OK);
        }
        EXPECT_STATUS(accumulator_complete(sender, batches[i].slot_index, batches[i].seq, &success, NULL), STATUS_OK);
    }
}

static void run_send_until(struct arena *arena, void *argument)
{
    int signal = SIGKILL;
    struct death *death = argument;
    struct drained_batch batches[8];
    interrupt_at(death->point, death->passes_before, raise_signal, &signal);
    struct accumulator *sender = sender_opened(arena);
    accumulator_set_producer_id(sender, 7, 0);
    for (int round = 0; round < 10; round++) {
        end_batches(sender, death, batches, drain_round(sender, 1, batches));
    }
    accumulator_close(sender);
}

enum { RECORDS = 70, CHAIN = 70 };

/* RECORDS small records in some batches of partition 0, and one chain after them. */
static void records_left(struct accumulator *producer)
{
    static uint8_t value[2 * BATCH_SIZE];
    const uint64_t chain = CHAIN;
    struct append_result result;
    for (uint64_t number = 0; number < RECORDS; number++) {
        EXPECT_STATUS(append_number(producer, 0, number), STATUS_OK);
    }
    memcpy(value, &chain, sizeof chain);
    append_waiting(producer, 0, record_of(value, sizeof value, 1000), &result);
}

struct sent {
    int32_t next_sequence;
    struct ledger ledger;
};

/* Deliver the rest. Check that the sequences are consecutive, and that the last one is the expected number. */
static void deliver_rest(struct accumulator *sender, struct sent *sent)
{
    struct drained_batch batch[8];
    while (drain_round(sender, 1, batch) == 1) {
        EXPECT(sent->next_sequence == -1 || batch[0].base_sequence == sent->next_sequence);
        sent->next_sequence = batch[0].base_sequence + (int32_t)batch[0].record_count;
        ledger_add(&sent->ledger, sender->arena, &batch[0]);
        EXPECT_STATUS(accumulator_complete(sender, batch[0].slot_index, batch[0].seq, &success, NULL), STATUS_OK);
    }
}

/* The next sender delivers the batches that the dead one had not freed. They are all batches from some number up to the
 * end, in order. The earlier batches have a result. */
static void expect_taken_over(struct death death)
{
    struct sent sent = {.next_sequence = -1};
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(8, BATCH_SIZE));
    struct accumulator *producer = accumulator_opened(arena);
    struct append_result first;
    uint64_t number = 0;
    EXPECT_STATUS(append_record(producer, 5, record_of(&number, 8, 1000), &first), STATUS_OK);
    records_left(producer);
    pid_t child = child_started(file, run_send_until, &death, NULL, 0);
    EXPECT_OR_SAY(child_was_killed(child), "%s was not reached", death.point);
    struct accumulator *sender = sender_opened(arena);
    accumulator_set_producer_id(sender, 7, 0);
    sender_mute(sender->sender, 5, true);
    deliver_rest(sender, &sent);
    for (uint32_t i = 0; i < sent.ledger.count; i++) {
        EXPECT_EQ_U64(sent.ledger.numbers[i], CHAIN + 1 - sent.ledger.count + i);
    }
    sender_mute(sender->sender, 5, false);
    struct ledger rest = {0};
    deliver_everything(sender, &rest);
    const struct record_token token = {
        .seq = first.first.seq, .partition_index = 5, .slot_index = first.first.slot_index};
    struct completion completion;
    EXPECT_STATUS(completion_find(arena, &token, &completion), STATUS_OK);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->partitions[0].next_base_sequence),
                  sent.next_sequence == -1 ? load_relaxed_u32(&arena->partitions[0].next_base_sequence)
                                           : (uint64_t)sent.next_sequence);
    accumulator_close(sender);
    accumulator_close(producer);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(a_sender_killed_at_any_point_is_followed_by_the_next_without_a_gap)
{
    static const char *const points[] = {"sender_role_taken",   "sequence_stored",     "sequence_assigned",
                                         "completion_cleared",  "completion_numbered", "completion_linked",
                                         "result_recorded",     "batch_done",          "slot_scrubbed",
                                         "slot_freed"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        expect_taken_over((struct death){points[i], 0, BY_COMPLETING});
        if (strcmp(points[i], "sender_role_taken") != 0) {
            expect_taken_over((struct death){points[i], 1, BY_COMPLETING});
            expect_taken_over((struct death){points[i], 3, BY_COMPLETING});
        }
    }
    expect_taken_over((struct death){"slot_scrubbed", 5, BY_COMPLETING}); /* in the middle of the chain */
    expect_taken_over((struct death){"slot_freed", 5, BY_COMPLETING});
    expect_taken_over((struct death){"part_recorded", 0, BY_SPLITTING});
    expect_taken_over((struct death){"result_recorded", 2, BY_SPLITTING});
    expect_taken_over((struct death){"result_decided", 0, BY_EXPIRING});
    expect_taken_over((struct death){"result_decided", 1, BY_EXPIRING});
    expect_taken_over((struct death){"result_decided", 0, BY_ABORTING});
    expect_taken_over((struct death){"result_decided", 2, BY_ABORTING});
}

/* A dead sender leaves batches that were sent with sequences. One of them got an old number late. */
static void survivor_sends_once(void *argument)
{
    struct ending *ending = argument;
    struct arena *survivor = arena_attached(ending->file);
    struct accumulator *other = accumulator_opened(survivor);
    EXPECT_STATUS(append_number(other, 0, 1), STATUS_OK);
    struct drained_batch batch = drained_one(ending);
    EXPECT_EQ_U64((uint64_t)batch.base_sequence, 1);
    accumulator_close(other);
    arena_detach(survivor);
}

TEST_WITH(ending, ending_begin, the_next_sender_sends_again_in_the_order_of_the_sequences)
{
    static uint8_t value[2 * BATCH_SIZE];
    struct append_result result;
    struct error error;
    accumulator_set_producer_id(ending->sender, 7, 0);
    struct drained_batch known = appended_and_drained(ending, 1); /* from now on, several batches may be in flight */
    EXPECT_STATUS(complete(ending, &known), STATUS_OK);
    interrupt_at("chain_seq_taken", 0, survivor_sends_once, ending);
    append_waiting(ending->producer, 0, record_of(value, sizeof value, 1000), &result);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64((uint64_t)drained_one(ending).base_sequence, 2); /* the chain, with an older number */
    accumulator_resign_sender(ending->sender); /* as after a death: its state is lost */
    EXPECT_STATUS(accumulator_become_sender(ending->sender, &error), STATUS_OK);
    struct drained_batch first = drained_one(ending);
    EXPECT_EQ_U64((uint64_t)first.base_sequence, 1);
    EXPECT_STATUS(complete(ending, &first), STATUS_OK);
    EXPECT_EQ_U64((uint64_t)drained_one(ending).base_sequence, 2);
    accumulator_resign_sender(ending->sender);
    EXPECT_STATUS(accumulator_become_sender(ending->sender, &error), STATUS_OK);
}

RUN_ALL()
