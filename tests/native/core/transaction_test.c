/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/transaction.h"

#include "core/delivery_fixture.h"

#include <sys/time.h>

enum { SLOT_COUNT = 8, BATCH_SIZE = 512, CHAIN_VALUE_SIZE = 2 * BATCH_SIZE, ROUNDS_MAX = 8, TURN_COUNT = 400 };
enum { CROWD_SECONDS_MAX = 10 }; /* seconds of CPU time */

static const struct batch_outcome refusal = {.result = RESULT_FAILED, .error_code = 2, .base_offset = -1};

/* ---- helpers ---- */

/* A producer, and a sender with its own handle. `sink` has the records that the sink has committed, and `open` those of
 * its open transaction. */
struct company {
    struct arena *arena;
    struct arena *survivor;
    struct accumulator *producer;
    struct accumulator *sender;
    struct ledger open;
    struct ledger sink;
    uint64_t number;
    uint32_t rounds_max; /* the maximum number of the sender's rounds for one transaction */
    int file;
};

static struct geometry transactional_geometry(void)
{
    struct geometry geometry = geometry_of(SLOT_COUNT, BATCH_SIZE);
    geometry.is_transactional = 1;
    return geometry;
}

static void company_begin(struct company *company)
{
    *company = (struct company){.file = arena_file_new(), .rounds_max = ROUNDS_MAX};
    company->arena = arena_created(company->file, transactional_geometry());
    partitions_register(company->arena);
    company->survivor = arena_attached(company->file);
    company->producer = accumulator_opened(company->arena);
    company->sender = sender_opened(company->survivor);
}

static enum transaction_state state_of(const struct company *company)
{
    return (enum transaction_state)transaction_word_state(transaction_read(company->arena));
}

static uint64_t standing_of(const struct company *company)
{
    return load_relaxed_u64(&company->arena->globals->transaction_recovery_state);
}

static enum transaction_why why_of(const struct company *company)
{
    return (enum transaction_why)transaction_word_why(transaction_read(company->arena));
}

/* The sink performs `task`. */
static void sink_end(struct company *company, enum transaction_task task)
{
    if (task == TRANSACTION_TASK_COMMIT) {
        for (uint32_t i = 0; i < company->open.count; i++) {
            company->sink.numbers[company->sink.count++] = company->open.numbers[i];
        }
    }
    company->open = (struct ledger){0};
}

static enum transaction_task task_next(struct company *company, uint64_t *number)
{
    return sender_next_transaction_task(company->sender->sender, 60 * NS_PER_S, number, NULL);
}

/* Run rounds of the sender until the transaction is over. */
static void sender_end_it(struct company *company)
{
    for (uint32_t round = 0; round < company->rounds_max && state_of(company) != TRANSACTION_NONE; round++) {
        uint64_t number;
        enum transaction_task task = task_next(company, &number);
        if (task != TRANSACTION_TASK_NOTHING) {
            sink_end(company, task);
            EXPECT_STATUS(sender_end_transaction(company->sender->sender, number, TRANSACTION_WHY_NOT), STATUS_OK);
        } else {
            (void)deliver_round(company->sender, &company->open);
        }
        sender_maintain(company->sender->sender, NULL);
    }
    EXPECT_EQ_U64(state_of(company), TRANSACTION_NONE);
}

static void begin(struct company *company)
{
    EXPECT_STATUS(transaction_begin(company->arena, &company->number), STATUS_OK);
}

/* An earlier call of commit may have found no batch. Then the transaction is over. */
static void commit(struct company *company)
{
    enum status status = transaction_commit(company->arena, company->number);
    EXPECT_EQ_U64(transaction_word_number(transaction_read(company->arena)), company->number);
    EXPECT(status == STATUS_OK || (status == STATUS_TRANSACTION_ENDED && state_of(company) == TRANSACTION_NONE));
    sender_end_it(company);
    sender_maintain(company->sender->sender, NULL); /* even if no round was needed */
    transaction_leave(company->arena);
}

static void company_end(struct company *company)
{
    accumulator_close(company->producer);
    accumulator_close(company->sender);
    arena_detach(company->survivor);
    expect_all_free(company->arena);
    arena_end(company->arena, company->file);
}

static enum status append(struct company *company, uint64_t number)
{
    return append_number(company->producer, (uint32_t)(number % 4), number);
}

static enum status append_chain(struct company *company, uint64_t number)
{
    static uint8_t value[CHAIN_VALUE_SIZE];
    uint32_t slots[3];
    memcpy(value, &number, sizeof number);
    struct measured_record record = measured(record_of(value, sizeof value, 1000));
    slots_waited_for(company->arena, COUNT_OF(slots), slots);
    struct reservation reservation = {.slots = slots, .count = COUNT_OF(slots)};
    struct append_result result;
    enum status status = accumulator_append(company->producer, 0, &record, 1, &reservation, &result);
    buffer_pool_return(company->arena, reservation.slots, reservation.count, NULL);
    return status;
}

static void commit_in_between(void *company)
{
    struct company *met = company;
    EXPECT_STATUS(transaction_commit(met->survivor, met->number), STATUS_OK);
}

static void commit_and_begin_in_between(void *context)
{
    struct company *company = context;
    uint64_t number;
    commit(company);
    EXPECT_STATUS(transaction_begin(company->arena, &number), STATUS_OK);
}

static void end_next(struct company *company)
{
    company->number++;
    commit(company);
}

/* ---- the plain case ---- */

TEST_WITH(company, company_begin,
          records_of_a_committed_transaction_are_delivered_and_those_of_an_aborted_one_thrown_away)
{
    begin(company);
    EXPECT_EQ_U64(company->number, 1);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    EXPECT_STATUS(append(company, 1), STATUS_OK);
    EXPECT_STATUS(append_chain(company, 2), STATUS_OK);
    commit(company);
    expect_delivered_once(&company->sink, 0, 3);
    EXPECT_EQ_U64(why_of(company), TRANSACTION_WHY_NOT);
    begin(company);
    EXPECT_STATUS(append(company, 3), STATUS_OK);
    (void)deliver_round(company->sender, &company->open);
    EXPECT_STATUS(append(company, 4), STATUS_OK);
    EXPECT_STATUS(append_chain(company, 5), STATUS_OK);
    EXPECT_STATUS(transaction_abort(company->arena, 2, TRANSACTION_WHY_ASKED), STATUS_OK);
    sender_end_it(company);
    EXPECT_EQ_U64(why_of(company), TRANSACTION_WHY_ASKED);
    EXPECT_EQ_U64(company->sink.count, 3);
}

TEST_WITH(company, company_begin, no_record_is_taken_outside_a_transaction_even_while_no_buffer_is_free)
{
    EXPECT_STATUS(append(company, 0), STATUS_NO_TRANSACTION);
    uint32_t slots[SLOT_COUNT];
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        EXPECT_STATUS(buffer_pool_try_allocate(company->arena, &slots[i]), STATUS_OK);
    }
    EXPECT_STATUS(append(company, 0), STATUS_NO_TRANSACTION);
    struct append_result result;
    static const uint8_t value[CHAIN_VALUE_SIZE];
    EXPECT_STATUS(append_record(company->producer, 0, record_of(value, sizeof value, 1000), &result),
                  STATUS_NO_TRANSACTION);
    buffer_pool_return(company->arena, slots, SLOT_COUNT, NULL);
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    EXPECT_STATUS(transaction_commit(company->arena, 1), STATUS_OK);
    EXPECT_STATUS(append(company, 0), STATUS_NO_TRANSACTION);
    sender_end_it(company);
    EXPECT_STATUS(append(company, 0), STATUS_NO_TRANSACTION);
}

TEST_WITH(company, company_begin, batches_of_a_transaction_are_marked_in_their_header)
{
    struct drained_batch batch;
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    EXPECT_EQ_U64(drain_round(company->sender, 1, &batch), 1);
    struct record_batch_header header;
    const uint8_t *bytes = arena_slot_data(company->survivor, batch.slot_index);
    EXPECT_STATUS(record_batch_header_read(bytes, batch.size, &header), STATUS_OK);
    EXPECT(header.attributes == RECORD_BATCH_TRANSACTIONAL);
    EXPECT_STATUS(accumulator_complete(company->sender, batch.slot_index, batch.seq, &success, NULL), STATUS_OK);
    commit(company);
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), a_plain_arena_has_no_transactions)
{
    struct accumulator *sender = sender_opened(arena);
    uint64_t number;
    EXPECT_STATUS(transaction_begin(arena, &number), STATUS_INVALID);
    EXPECT_STATUS(transaction_commit(arena, 1), STATUS_TRANSACTION_ENDED);
    EXPECT_EQ_U64(sender_next_transaction_task(sender->sender, 0, &number, NULL), TRANSACTION_TASK_NOTHING);
    EXPECT_STATUS(append_number(sender, 0, 7), STATUS_OK);
    struct ledger ledger = {0};
    deliver_everything(sender, &ledger);
    EXPECT_EQ_U64(ledger.count, 1);
    accumulator_close(sender);
}

/* ---- an append during the end ---- */

TEST(a_batch_that_is_opened_while_its_transaction_ends_is_taken_back)
{
    const char *const points[] = {"seq_taken", "slot_opened"}; /* before the slot is OPEN, and after */
    for (uint32_t i = 0; i < 2 * COUNT_OF(points); i++) {
        struct company company;
        company_begin(&company);
        uint32_t other_count = i / COUNT_OF(points);
        begin(&company);
        for (uint32_t j = 0; j < other_count; j++) {
            EXPECT_STATUS(append(&company, 1), STATUS_OK);
        }
        interrupt_at(points[i % COUNT_OF(points)], 0, commit_in_between, &company);
        EXPECT_STATUS(append(&company, 0), STATUS_NO_TRANSACTION);
        EXPECT(interruption_is_over());
        EXPECT_EQ_U64(slots_in_state(company.arena, SLOT_OPEN), 0);
        commit(&company);
        EXPECT_EQ_U64(company.sink.count, other_count);
        company_end(&company);
    }
}

/* ---- a transaction without batches ---- */

static bool has_batches(const struct company *company)
{
    return (transaction_read(company->arena) & TRANSACTION_HAS_BATCHES) != 0;
}

TEST_WITH(company, company_begin, a_commit_that_finds_no_batch_is_over_without_a_sender)
{
    for (uint32_t i = 1; i <= 3; i++) {
        begin(company);
        EXPECT(!has_batches(company));
        EXPECT_STATUS(transaction_commit(company->arena, company->number), STATUS_OK);
        EXPECT_EQ_U64(transaction_read(company->arena), transaction_word(i, TRANSACTION_NONE, TRANSACTION_WHY_NOT));
        EXPECT_EQ_U64(counter_value(company->arena, COUNTER_TRANSACTIONS_COMMITTED), i);
        EXPECT_STATUS(transaction_commit(company->arena, company->number), STATUS_TRANSACTION_ENDED);
        transaction_leave(company->arena);
    }
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    EXPECT(has_batches(company));
    commit(company);
    begin(company);
    EXPECT_STATUS(append_chain(company, 1), STATUS_OK);
    EXPECT(has_batches(company));
    commit(company);
    expect_delivered_once(&company->sink, 0, 2);
}

static void append_in_between(void *context)
{
    struct company *company = context;
    EXPECT_STATUS(append(company, 0), STATUS_OK);
}

TEST_WITH(company, company_begin, an_abort_that_finds_no_batch_is_over_without_a_sender)
{
    for (uint32_t i = 1; i <= 3; i++) {
        begin(company);
        EXPECT_STATUS(transaction_abort(company->arena, company->number, TRANSACTION_WHY_ASKED), STATUS_OK);
        EXPECT_EQ_U64(transaction_read(company->arena), transaction_word(i, TRANSACTION_NONE, TRANSACTION_WHY_ASKED));
        EXPECT_EQ_U64(counter_value(company->arena, COUNTER_TRANSACTIONS_ABORTED), i);
        EXPECT_STATUS(append(company, 0), STATUS_NO_TRANSACTION);
        transaction_leave(company->arena);
    }
    begin(company);
    interrupt_at("empty_transaction_ends", 0, append_in_between, company);
    EXPECT_STATUS(transaction_abort(company->arena, company->number, TRANSACTION_WHY_ASKED), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(state_of(company), TRANSACTION_ABORTING);
    sender_end_it(company);
    EXPECT_EQ_U64(company->sink.count, 0);
}

TEST_WITH(company, company_begin, a_batch_that_was_delivered_before_the_commit_is_a_batch)
{
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    (void)deliver_round(company->sender, &company->open);
    sender_maintain(company->sender->sender, NULL);
    EXPECT_STATUS(transaction_commit(company->arena, company->number), STATUS_OK);
    EXPECT_EQ_U64(state_of(company), TRANSACTION_COMMITTING);
    commit(company);
    expect_delivered_once(&company->sink, 0, 1);
}

static void refuse_a_batch_in_between(void *context)
{
    struct company *company = context;
    transaction_fail(company->survivor, TRANSACTION_WHY_FENCED);
}

/* The commit has read the word, but has not changed it yet. */
TEST_WITH(company, company_begin, a_commit_without_batches_notices_a_batch_that_was_opened_meanwhile)
{
    begin(company);
    interrupt_at("empty_transaction_ends", 0, append_in_between, company);
    EXPECT_STATUS(transaction_commit(company->arena, company->number), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(state_of(company), TRANSACTION_COMMITTING);
    commit(company);
    expect_delivered_once(&company->sink, 0, 1);
    begin(company);
    interrupt_at("empty_transaction_ends", 0, refuse_a_batch_in_between, company);
    EXPECT_STATUS(transaction_commit(company->arena, company->number), STATUS_TRANSACTION_ENDED);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(state_of(company), TRANSACTION_ABORT_ONLY);
    EXPECT_STATUS(transaction_abort(company->arena, company->number, TRANSACTION_WHY_ASKED), STATUS_OK);
    sender_end_it(company);
}

static void commit_alone(void *context)
{
    const struct company *company = context;
    EXPECT_STATUS(transaction_commit(company->arena, company->number), STATUS_OK);
}

/* The sender has read that a transaction is open. Before the sender acts, the transaction ends. */
TEST_WITH(company, company_begin, a_sender_does_not_change_a_transaction_that_ended_after_it_was_read)
{
    uint64_t number;
    begin(company);
    interrupt_at("transaction_seen", 0, commit_alone, company);
    EXPECT_EQ_U64(task_next(company, &number), TRANSACTION_TASK_NOTHING);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(state_of(company), TRANSACTION_NONE);
    transaction_leave(company->arena);
}

TEST_WITH(company, company_begin, a_record_whose_batch_is_sealed_by_the_end_of_its_transaction_is_refused)
{
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    interrupt_at("record_claimed", 0, commit_in_between, company);
    EXPECT_STATUS(append(company, 4), STATUS_NO_TRANSACTION);
    EXPECT(interruption_is_over());
    commit(company);
    expect_delivered_once(&company->sink, 0, 1);
    EXPECT_EQ_U64(company->sink.count, 1);
}

TEST_WITH(company, company_begin, a_record_that_finds_the_next_transaction_is_in_that_one)
{
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    interrupt_at("record_claimed", 0, commit_and_begin_in_between, company);
    EXPECT_STATUS(append(company, 4), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(company->sink.count, 1);
    end_next(company);
    EXPECT_EQ_U64(ledger_count_of(&company->sink, 4), 1);
}

TEST(a_record_that_joined_a_transaction_never_gets_into_the_next_one)
{
    const char *const points[] = {"record_claimed", "slot_opened", "seq_taken"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        struct company company;
        company_begin(&company);
        begin(&company);
        company.producer->appender->joined = company.number;
        EXPECT_STATUS(append(&company, 0), STATUS_OK);
        interrupt_at(points[i], 0, commit_and_begin_in_between, &company);
        EXPECT_STATUS(append(&company, i == 0 ? 4 : 1), STATUS_TRANSACTION_ENDED);
        EXPECT(interruption_is_over());
        EXPECT_STATUS(append(&company, 0), STATUS_TRANSACTION_ENDED);
        EXPECT_STATUS(append_chain(&company, 0), STATUS_TRANSACTION_ENDED);
        end_next(&company);
        EXPECT_EQ_U64(company.sink.count, 1);
        company_end(&company);
    }
}

/* The next transaction already has an open batch when the late record is appended. */
TEST_WITH(company, company_begin, a_record_that_joined_a_transaction_does_not_go_into_an_open_batch_of_the_next_one)
{
    struct accumulator *late = accumulator_opened(company->survivor);
    begin(company);
    late->appender->joined = company->number;
    commit(company);
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    EXPECT_STATUS(append_number(late, 0, 4), STATUS_TRANSACTION_ENDED);
    late->appender->joined = company->number;
    EXPECT_STATUS(append_number(late, 0, 8), STATUS_OK);
    commit(company);
    EXPECT_EQ_U64(ledger_count_of(&company->sink, 4), 0);
    EXPECT_EQ_U64(ledger_count_of(&company->sink, 8), 1);
    accumulator_close(late);
}

TEST(an_oversized_record_frees_its_buffers_if_its_transaction_ends_meanwhile)
{
    const struct {
        const char *point;
        enum status status;
        uint32_t other_count; /* records in another batch of the transaction */
    } cases[] = {{"chain_piece_linked", STATUS_NO_TRANSACTION, 0},
                 {"chain_seq_taken", STATUS_NO_TRANSACTION, 0},
                 {"chain_opened", STATUS_NO_TRANSACTION, 0}, /* its head is not sealed */
                 {"chain_seq_taken", STATUS_NO_TRANSACTION, 1},
                 {"chain_opened", STATUS_EXHAUSTED, 1}}; /* its head was sealed, so the append must wait for buffers */
    for (uint32_t i = 0; i < COUNT_OF(cases); i++) {
        struct company company;
        company_begin(&company);
        begin(&company);
        for (uint32_t j = 0; j < cases[i].other_count; j++) {
            EXPECT_STATUS(append(&company, 1), STATUS_OK);
        }
        interrupt_at(cases[i].point, 0, commit_in_between, &company);
        EXPECT_STATUS(append_chain(&company, 0), cases[i].status);
        EXPECT(interruption_is_over());
        commit(&company);
        sender_maintain(company.sender->sender, NULL);
        EXPECT_EQ_U64(company.sink.count, cases[i].other_count);
        company_end(&company);
    }
}

/* ---- the processes that may begin and end a transaction ---- */

TEST_WITH(company, company_begin, one_process_coordinates_at_a_time)
{
    uint64_t number;
    begin(company);
    EXPECT_STATUS(transaction_begin(company->survivor, &number), STATUS_BUSY);
    transaction_leave(company->survivor); /* this process has no role to give up */
    EXPECT_STATUS(transaction_begin(company->survivor, &number), STATUS_BUSY);
    EXPECT_STATUS(transaction_begin(company->arena, &number), STATUS_BUSY);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    EXPECT_STATUS(transaction_commit(company->arena, 1), STATUS_OK);
    EXPECT_STATUS(transaction_commit(company->arena, 1), STATUS_OK); /* a second call does nothing */
    EXPECT_STATUS(transaction_commit(company->arena, 2), STATUS_TRANSACTION_ENDED);
    EXPECT_STATUS(transaction_abort(company->arena, 1, TRANSACTION_WHY_ASKED), STATUS_TRANSACTION_ENDED);
    sender_end_it(company);
    EXPECT_STATUS(transaction_begin(company->survivor, &number), STATUS_BUSY); /* the outcome is still unread */
    transaction_leave(company->arena);
    EXPECT_STATUS(transaction_begin(company->survivor, &number), STATUS_OK);
    EXPECT_EQ_U64(number, 2);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    EXPECT_STATUS(transaction_abort(company->survivor, 1, TRANSACTION_WHY_ASKED), STATUS_TRANSACTION_ENDED);
    EXPECT_STATUS(transaction_abort(company->survivor, 2, TRANSACTION_WHY_ASKED), STATUS_OK);
    /* the sink has ended another transaction */
    EXPECT_STATUS(transaction_end(company->survivor, 1, TRANSACTION_WHY_NOT), STATUS_TRANSACTION_ENDED);
    sender_end_it(company);
    EXPECT_EQ_U64(counter_value(company->arena, COUNTER_TRANSACTIONS_COMMITTED), 1);
    EXPECT_EQ_U64(counter_value(company->arena, COUNTER_TRANSACTIONS_ABORTED), 1);
}

static uint32_t wake_count(const struct company *company)
{
    return load_relaxed_u32(&company->arena->globals->completion_wait) >> 2;
}

/* A wait with a timeout of 0 raises the waiters' flag. */
TEST_WITH(company, company_begin, a_process_that_waits_for_the_transaction_is_woken_by_its_failure_and_its_end)
{
    const atomic_u64 *cell = &company->arena->globals->transaction;
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    completion_wait_slice(company->arena, cell, transaction_read(company->arena), 0);
    EXPECT_EQ_U64(wake_count(company), 0);
    transaction_fail(company->survivor, TRANSACTION_WHY_REFUSED);
    EXPECT_EQ_U64(wake_count(company), 1);
    EXPECT_STATUS(transaction_abort(company->arena, company->number, TRANSACTION_WHY_ASKED), STATUS_OK);
    for (uint32_t round = 0; round < company->rounds_max && state_of(company) != TRANSACTION_NONE; round++) {
        uint64_t number;
        bool is_over = task_next(company, &number) == TRANSACTION_TASK_ABORT;
        completion_wait_slice(company->arena, cell, transaction_read(company->arena), 0);
        uint32_t former_count = wake_count(company);
        EXPECT(!is_over || sender_end_transaction(company->sender->sender, number, TRANSACTION_WHY_NOT) == STATUS_OK);
        EXPECT_EQ_U64(wake_count(company), former_count + (is_over ? 1 : 0));
    }
    EXPECT_EQ_U64(state_of(company), TRANSACTION_NONE);
    sender_maintain(company->sender->sender, NULL);
}

TEST_WITH(company, company_begin, a_transaction_that_is_open_for_too_long_is_aborted)
{
    company->arena->clock = company->survivor->clock = (struct clock){.is_manual = true, .manual_ns = 10 * NS_PER_S};
    begin(company);
    uint64_t number;
    company->survivor->clock.manual_ns += 60 * NS_PER_S - 1;
    EXPECT_EQ_U64(task_next(company, &number), TRANSACTION_TASK_NOTHING);
    EXPECT_EQ_U64(state_of(company), TRANSACTION_OPEN);
    company->survivor->clock.manual_ns += 1;
    sender_end_it(company);
    EXPECT_EQ_U64(why_of(company), TRANSACTION_WHY_TIMEOUT);
    EXPECT_STATUS(transaction_commit(company->arena, 1), STATUS_TRANSACTION_ENDED);
}

/* ---- a batch that fails ---- */

TEST(a_transaction_of_which_a_batch_failed_can_only_be_aborted)
{
    for (int is_committing = 0; is_committing <= 1; is_committing++) {
        struct company company;
        company_begin(&company);
        struct drained_batch batch;
        begin(&company);
        EXPECT_STATUS(append(&company, 0), STATUS_OK);
        EXPECT_EQ_U64(drain_round(company.sender, 1, &batch), 1);
        if (is_committing) {
            EXPECT_STATUS(transaction_commit(company.arena, 1), STATUS_OK);
        }
        EXPECT_STATUS(accumulator_complete(company.sender, batch.slot_index, batch.seq, &refusal, NULL), STATUS_OK);
        EXPECT_EQ_U64(state_of(&company), TRANSACTION_ABORT_ONLY);
        EXPECT_STATUS(append(&company, 1), STATUS_NO_TRANSACTION);
        EXPECT_STATUS(transaction_commit(company.arena, 1), STATUS_TRANSACTION_ENDED);
        EXPECT_STATUS(transaction_abort(company.arena, 1, TRANSACTION_WHY_ASKED), STATUS_OK);
        sender_end_it(&company);
        EXPECT_EQ_U64(why_of(&company), TRANSACTION_WHY_FAILED_BATCH);
        EXPECT_EQ_U64(company.sink.count, 0);
        company_end(&company);
    }
}

TEST_WITH(company, company_begin, a_batch_in_flight_delays_the_end_of_its_aborted_transaction)
{
    struct drained_batch batch;
    uint64_t number;
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    EXPECT_EQ_U64(drain_round(company->sender, 1, &batch), 1);
    EXPECT_STATUS(transaction_abort(company->arena, 1, TRANSACTION_WHY_ASKED), STATUS_OK);
    EXPECT_EQ_U64(task_next(company, &number), TRANSACTION_TASK_NOTHING);
    EXPECT_EQ_U64(task_next(company, &number), TRANSACTION_TASK_NOTHING);
    EXPECT_STATUS(accumulator_complete(company->sender, batch.slot_index, batch.seq, &success, NULL), STATUS_OK);
    EXPECT_EQ_U64(task_next(company, &number), TRANSACTION_TASK_ABORT);
    sender_end_it(company);
    EXPECT_EQ_U64(company->sink.count, 0);
}

TEST_WITH(company, company_begin, a_sender_that_dies_with_a_refused_batch_leaves_a_transaction_that_is_not_decided)
{
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    struct drained_batch batch;
    EXPECT_EQ_U64(drain_round(company->sender, 1, &batch), 1);
    EXPECT_STATUS(transaction_commit(company->arena, 1), STATUS_OK);
    EXPECT_STATUS(sender_decide(company->sender->sender, batch.slot_index, batch.seq, &refusal), STATUS_OK);
    accumulator_drop_sender(company->sender);
    EXPECT_STATUS(accumulator_become_sender(company->sender, NULL), STATUS_OK);
    EXPECT_EQ_U64(state_of(company), TRANSACTION_ABORT_ONLY);
    EXPECT_STATUS(transaction_abort(company->arena, 1, TRANSACTION_WHY_ASKED), STATUS_OK);
    sender_end_it(company);
}

/* ---- a sink that fails ---- */

TEST(the_reason_of_a_sink_is_the_reason_of_the_abort)
{
    const enum transaction_why reasons[] = {TRANSACTION_WHY_FENCED, TRANSACTION_WHY_REFUSED};
    for (uint32_t i = 0; i < COUNT_OF(reasons); i++) {
        struct company company;
        company_begin(&company);
        begin(&company);
        EXPECT_STATUS(append(&company, 0), STATUS_OK);
        transaction_fail(company.survivor, reasons[i]);
        transaction_fail(company.survivor, TRANSACTION_WHY_FAILED_BATCH); /* only the first reason is stored */
        EXPECT_EQ_U64(state_of(&company), TRANSACTION_ABORT_ONLY);
        EXPECT_STATUS(transaction_abort(company.arena, 1, TRANSACTION_WHY_ASKED), STATUS_OK);
        sender_end_it(&company);
        EXPECT_EQ_U64(why_of(&company), reasons[i]);
        company_end(&company);
    }
}

TEST_WITH(company, company_begin, a_sink_that_does_not_commit_what_was_decided_gives_a_reason)
{
    uint64_t number;
    begin(company);
    EXPECT_STATUS(append(company, 0), STATUS_OK);
    (void)deliver_round(company->sender, &company->open);
    sender_maintain(company->sender->sender, NULL);
    EXPECT_STATUS(transaction_commit(company->arena, 1), STATUS_OK);
    EXPECT_EQ_U64(task_next(company, &number), TRANSACTION_TASK_COMMIT);
    transaction_fail(company->survivor, TRANSACTION_WHY_FENCED); /* too late, because the sink decides now */
    EXPECT_EQ_U64(state_of(company), TRANSACTION_DECIDED);
    EXPECT_STATUS(sender_end_transaction(company->sender->sender, 1, TRANSACTION_WHY_UNKNOWN), STATUS_OK);
    EXPECT_EQ_U64(state_of(company), TRANSACTION_NONE);
    EXPECT_EQ_U64(why_of(company), TRANSACTION_WHY_UNKNOWN);
}

TEST_WITH(company, company_begin, every_send_reports_a_fenced_arena_until_the_id_is_taken_back)
{
    begin(company);
    transaction_fail(company->survivor, TRANSACTION_WHY_FENCED);
    for (uint64_t joined = 0; joined <= 1; joined++) {
        company->producer->appender->joined = joined;
        EXPECT_STATUS(append(company, 0), STATUS_FENCED);
        EXPECT_STATUS(append_chain(company, 0), STATUS_FENCED);
    }
    transaction_store_recovery_state(company->survivor, TRANSACTION_RECOVERY_FENCED);
    EXPECT_STATUS(append(company, 0), STATUS_FENCED);
    EXPECT_STATUS(transaction_abort(company->arena, 1, TRANSACTION_WHY_ASKED), STATUS_OK);
    sender_end_it(company);
    EXPECT_STATUS(append(company, 0), STATUS_FENCED);
    EXPECT_STATUS(transaction_unfence(company->arena), STATUS_OK);
    EXPECT_STATUS(append(company, 0), STATUS_TRANSACTION_ENDED);
    company->producer->appender->joined = 0;
    EXPECT_STATUS(append(company, 0), STATUS_NO_TRANSACTION);
}

TEST_WITH(company, company_begin, a_fenced_arena_takes_its_id_back_between_two_transactions)
{
    begin(company);
    transaction_store_recovery_state(company->survivor, TRANSACTION_RECOVERY_FENCED | 5);
    EXPECT_STATUS(transaction_unfence(company->arena), STATUS_PENDING); /* a transaction is open */
    EXPECT_EQ_U64(standing_of(company), TRANSACTION_RECOVERY_FENCED | 5);
    commit(company);
    EXPECT_STATUS(transaction_unfence(company->arena), STATUS_OK);
    EXPECT_EQ_U64(standing_of(company), 0);
    transaction_store_recovery_state(company->survivor, 5);
    EXPECT_STATUS(transaction_unfence(company->arena), STATUS_OK); /* the arena is not fenced */
    EXPECT_EQ_U64(standing_of(company), 5);
    begin(company);
    transaction_fail(company->survivor, TRANSACTION_WHY_FENCED); /* the recovery state is stored later */
    EXPECT_STATUS(transaction_unfence(company->arena), STATUS_PENDING);
    EXPECT_STATUS(transaction_abort(company->arena, company->number, TRANSACTION_WHY_ASKED), STATUS_OK);
    EXPECT_STATUS(transaction_unfence(company->arena), STATUS_PENDING);
    sender_end_it(company);
    EXPECT_STATUS(transaction_unfence(company->arena), STATUS_OK);
}

/* ---- deaths ---- */

static void run_transaction(struct arena *arena, void *context)
{
    const bool *is_committing = context;
    struct accumulator *producer = accumulator_opened(arena);
    uint64_t number;
    if (transaction_begin(arena, &number) == STATUS_OK) {
        for (uint64_t i = 0; i < 4; i++) {
            (void)append_number(producer, (uint32_t)i, i);
        }
        EXPECT_STATUS(*is_committing ? transaction_commit(arena, number)
                                     : transaction_abort(arena, number, TRANSACTION_WHY_ASKED),
                      STATUS_OK);
    }
    raise(SIGKILL);
}

/* The sender alone ends it: a commit that was begun succeeds, anything else is aborted. */
TEST(a_transaction_of_a_dead_coordinator_is_committed_or_aborted_as_a_whole)
{
    const char *const points[] = {"coordinator_taken", "transaction_begins", "slot_opened", "record_claimed",
                                  "transaction_changed", "slot_closed", NULL};
    for (uint32_t i = 0; i < 2 * COUNT_OF(points); i++) {
        bool is_committing = i % 2 == 0;
        const char *point = points[i / 2];
        struct company company;
        company_begin(&company);
        EXPECT(child_was_killed(child_started(company.file, run_transaction, &is_committing, point, SIGKILL)));
        sender_end_it(&company);
        bool is_committed = is_committing && i / 2 >= 4;
        EXPECT_EQ_U64(company.sink.count, is_committed ? 4 : 0);
        begin(&company); /* the coordinator's role is free */
        EXPECT_STATUS(append(&company, 9), STATUS_OK);
        commit(&company);
        EXPECT_EQ_U64(ledger_count_of(&company.sink, 9), 1);
        company_end(&company);
    }
}

static uint32_t open_slot_count(const struct arena *arena)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        count += slot_word_state(load_acquire_u64(&arena->slots[i].word)) == SLOT_OPEN;
    }
    return count;
}

/* A batch with a long linger would delay the commit, and would accept records of the next transaction. */
TEST_WITH(company, company_begin, the_sender_seals_at_once_the_open_batches_of_a_dead_coordinator)
{
    bool is_committing = true;
    uint64_t number;
    EXPECT(child_was_killed(
        child_started(company->file, run_transaction, &is_committing, "transaction_changed", SIGKILL)));
    EXPECT_EQ_U64(open_slot_count(company->arena), 4);
    EXPECT_EQ_U64(task_next(company, &number), TRANSACTION_TASK_NOTHING);
    EXPECT_EQ_U64(open_slot_count(company->arena), 0);
    sender_end_it(company);
    EXPECT_EQ_U64(company->sink.count, 4);
}

TEST_WITH(company, company_begin, a_process_that_begins_aborts_what_a_dead_one_left)
{
    bool is_committing = true;
    EXPECT(child_was_killed(child_started(company->file, run_transaction, &is_committing, "record_claimed", SIGKILL)));
    EXPECT_STATUS(transaction_begin(company->arena, &company->number), STATUS_PENDING);
    EXPECT_EQ_U64(state_of(company), TRANSACTION_ABORTING);
    sender_end_it(company);
    begin(company);
    EXPECT_EQ_U64(company->number, 2);
    commit(company);
    EXPECT_EQ_U64(company->sink.count, 0);
}

static void die_as_sender(struct arena *arena, void *context)
{
    (void)context;
    struct accumulator *sender = sender_opened(arena);
    uint64_t number;
    struct ledger ledger = {0};
    for (int round = 0; round < ROUNDS_MAX; round++) {
        if (sender_next_transaction_task(sender->sender, 60 * NS_PER_S, &number, NULL) != TRANSACTION_TASK_NOTHING) {
            (void)!sender_end_transaction(sender->sender, number, TRANSACTION_WHY_NOT);
        }
        (void)deliver_round(sender, &ledger);
    }
    raise(SIGKILL);
}

/* Records that the dead sender had delivered are in the sink's open transaction. They are not counted here. */
TEST(a_sender_that_dies_anywhere_in_the_end_is_replaced_by_one_that_continues)
{
    const char *const points[] = {"transaction_sealed", "transaction_decided", "transaction_ends", "batch_done",
                                  "result_recorded", NULL};
    for (uint32_t i = 0; i < 2 * COUNT_OF(points); i++) {
        struct company company;
        company_begin(&company);
        bool is_committing = i % 2 == 0;
        accumulator_drop_sender(company.sender);
        begin(&company);
        EXPECT_STATUS(append(&company, 0), STATUS_OK);
        EXPECT_STATUS(append_chain(&company, 1), STATUS_OK);
        EXPECT_STATUS(is_committing ? transaction_commit(company.arena, 1)
                                    : transaction_abort(company.arena, 1, TRANSACTION_WHY_ASKED),
                      STATUS_OK);
        EXPECT(child_was_killed(child_started(company.file, die_as_sender, NULL, points[i / 2], SIGKILL)));
        EXPECT_STATUS(accumulator_become_sender(company.sender, NULL), STATUS_OK);
        sender_end_it(&company);
        EXPECT_EQ_U64(why_of(&company), is_committing ? TRANSACTION_WHY_NOT : TRANSACTION_WHY_ASKED);
        EXPECT_EQ_U64(slots_in_state(company.arena, SLOT_FREE), SLOT_COUNT);
        transaction_leave(company.arena);
        company_end(&company);
    }
}

/* ---- cold recovery ---- */

/* All processes detach, and one attaches again. */
static struct company company_met_again(struct company *company, bool is_other_host)
{
    struct company again = {.file = file_opened_again(company->file), .rounds_max = ROUNDS_MAX};
    if (is_other_host) {
        company->arena->globals->boot_id[0] ^= 1;
    }
    accumulator_close(company->producer);
    accumulator_close(company->sender);
    arena_detach(company->survivor);
    arena_detach(company->arena);
    close(company->file);
    again.arena = arena_attached(again.file);
    again.survivor = arena_attached(again.file);
    again.producer = accumulator_opened(again.arena);
    again.sender = sender_opened(again.survivor);
    return again;
}

TEST(when_all_have_died_a_commit_continues_and_an_open_transaction_is_aborted)
{
    for (int is_committing = 0; is_committing <= 1; is_committing++) {
        struct company company;
        company_begin(&company);
        begin(&company);
        EXPECT_STATUS(append(&company, 0), STATUS_OK);
        if (is_committing) {
            EXPECT_STATUS(transaction_commit(company.arena, 1), STATUS_OK);
        }
        struct company again = company_met_again(&company, false);
        EXPECT_EQ_U64(load_acquire_u32(&again.arena->globals->transaction_coordinator), 0);
        sender_end_it(&again);
        EXPECT_EQ_U64(again.sink.count, (uint64_t)is_committing);
        EXPECT_EQ_U64(why_of(&again), is_committing ? TRANSACTION_WHY_NOT : TRANSACTION_WHY_DEATH);
        company_end(&again);
    }
}

TEST(after_a_crash_of_the_host_only_a_decided_transaction_is_committed)
{
    const struct {
        enum transaction_state state;
        enum transaction_why why;
        uint64_t number;
    } cases[] = {{TRANSACTION_NONE, TRANSACTION_WHY_HOST_CRASH, 2},
                 {TRANSACTION_OPEN, TRANSACTION_WHY_HOST_CRASH, 1},
                 {TRANSACTION_COMMITTING, TRANSACTION_WHY_HOST_CRASH, 1},
                 {TRANSACTION_DECIDED, TRANSACTION_WHY_NOT, 1},
                 {TRANSACTION_ABORT_ONLY, TRANSACTION_WHY_HOST_CRASH, 1}};
    for (uint32_t i = 0; i < COUNT_OF(cases); i++) {
        struct company company;
        company_begin(&company);
        begin(&company);
        EXPECT_STATUS(append(&company, 0), STATUS_OK);
        store_relaxed_u64(&company.arena->globals->transaction,
                          transaction_word(1, cases[i].state, TRANSACTION_WHY_NOT));
        transaction_store_recovery_state(company.survivor, i == 0 ? 0 : TRANSACTION_RECOVERY_FENCED | i);
        struct company again = company_met_again(&company, true);
        sender_end_it(&again);
        EXPECT_EQ_U64(why_of(&again), cases[i].why);
        EXPECT_EQ_U64(transaction_word_number(transaction_read(again.arena)), cases[i].number);
        EXPECT_EQ_U64(standing_of(&again), i == 0 ? 0 : TRANSACTION_RECOVERY_LOST);
        EXPECT_EQ_U64(again.sink.count, 0);
        company_end(&again);
    }
}

/* ---- hostile bytes ---- */

TEST(a_word_that_was_changed_ends_in_an_abort)
{
    const uint64_t words[] = {UINT64_MAX, UINT64_C(0x00000000012a0000), UINT64_C(0x7fffffffff0900ff),
                              transaction_word(TRANSACTION_NUMBER_MAX, TRANSACTION_OPEN, TRANSACTION_WHY_NOT)};
    for (uint32_t i = 0; i < COUNT_OF(words); i++) {
        struct company company;
        company_begin(&company);
        store_relaxed_u64(&company.arena->globals->transaction, words[i]);
        (void)append(&company, 0);
        sender_end_it(&company);
        EXPECT_EQ_U64(why_of(&company), TRANSACTION_WHY_DEATH);
        begin(&company);
        EXPECT(company.number >= 1 && company.number <= TRANSACTION_NUMBER_MAX);
        EXPECT_STATUS(append(&company, 1), STATUS_OK);
        commit(&company);
        EXPECT_EQ_U64(company.sink.count, 1);
        company_end(&company);
    }
}

/* ---- a crowd ---- */

struct crowd {
    struct arena *arena;
    atomic_u32 is_over;
    atomic_u64 accepted[TURN_COUNT + 2]; /* the number of accepted records of each transaction */
};
static struct crowd crowd;

/* Join the open transaction, and append until it is over. */
static void *work(void *arena)
{
    struct accumulator *producer = accumulator_opened(arena);
    while (load_acquire_u32(&crowd.is_over) == 0) {
        uint64_t number = transaction_word_number(transaction_read(arena));
        producer->appender->joined = number;
        bool is_named = number != 0 && number <= TURN_COUNT;
        if (is_named && append_number(producer, (uint32_t)(number % 4), number) == STATUS_OK) {
            add_u64(&crowd.accepted[number], 1);
        }
        sched_yield();
    }
    accumulator_close(producer);
    return NULL;
}

/* Run one transaction after another and abort every third one, while other processes append. */
TEST(each_accepted_record_ends_in_the_transaction_it_joined)
{
    const struct itimerval limit = {.it_value = {.tv_sec = CROWD_SECONDS_MAX}};
    EXPECT(setitimer(ITIMER_PROF, &limit, NULL) == 0); /* if a batch stayed open, the sender would always have work */
    struct company company;
    company_begin(&company);
    company.rounds_max = UINT32_MAX; /* the scheduler may delay a process in the middle of an append for many rounds */
    pthread_t threads[2];
    struct arena *participants[COUNT_OF(threads)];
    crowd = (struct crowd){.arena = company.arena};
    for (uint32_t i = 0; i < COUNT_OF(threads); i++) {
        participants[i] = arena_attached(company.file);
        EXPECT(pthread_create(&threads[i], NULL, work, participants[i]) == 0);
    }
    uint64_t expected = 0;
    uint64_t accepted_at_commit = 0;
    for (uint64_t turn = 1; turn <= TURN_COUNT; turn++) {
        begin(&company);
        EXPECT_EQ_U64(company.number, turn);
        while (load_acquire_u64(&crowd.accepted[turn]) == 0 && state_of(&company) == TRANSACTION_OPEN) {
            (void)deliver_round(company.sender, &company.open);
            sched_yield();
        }
        company.sink.count = 0;
        if (turn % 3 == 0) {
            EXPECT_STATUS(transaction_abort(company.arena, turn, TRANSACTION_WHY_ASKED), STATUS_OK);
            sender_end_it(&company);
            transaction_leave(company.arena);
            EXPECT_EQ_U64(company.sink.count, 0);
            continue;
        }
        commit(&company);
        EXPECT_EQ_U64(ledger_count_of(&company.sink, turn), company.sink.count);
        expected += company.sink.count;
    }
    store_release_u32(&crowd.is_over, 1);
    for (uint32_t i = 0; i < COUNT_OF(threads); i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
        arena_detach(participants[i]);
    }
    for (uint64_t turn = 1; turn <= TURN_COUNT; turn++) {
        accepted_at_commit += turn % 3 == 0 ? 0 : load_relaxed_u64(&crowd.accepted[turn]);
    }
    EXPECT_EQ_U64(accepted_at_commit, expected);
    company_end(&company);
    EXPECT(setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL) == 0);
}

RUN_ALL()
