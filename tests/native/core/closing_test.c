/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/closing.h"

#include "core/delivery_fixture.h"

enum { BATCH_SIZE = 512, CHAIN_VALUE_SIZE = 2 * BATCH_SIZE };

/* ---- helpers ---- */

/* A producer, and a sender that has its own handle and its own producer. */
struct company {
    struct arena *arena;
    struct arena *survivor;
    struct accumulator *producer;
    struct accumulator *sender;
    struct ledger ledger;
    int file;
};

static struct company company_met_at(int file)
{
    struct company company = {.file = file};
    company.arena = arena_created(file, geometry_of(8, BATCH_SIZE));
    company.survivor = arena_attached(file);
    company.producer = accumulator_opened(company.arena);
    company.sender = sender_opened(company.survivor);
    return company;
}

static struct company company_met(void)
{
    return company_met_at(arena_file_new());
}

static void company_left(struct company *company)
{
    deliver_everything(company->sender, &company->ledger);
    accumulator_close(company->producer);
    accumulator_close(company->sender);
    arena_detach(company->survivor);
    expect_all_free(company->arena);
    arena_end(company->arena, company->file);
}

static void expect_refused(struct accumulator *producer, uint32_t partition_index)
{
    struct buffer_wait wait;
    EXPECT_STATUS(append_number(producer, partition_index, 1000), STATUS_EXHAUSTED);
    EXPECT_STATUS(buffer_pool_enqueue(producer->arena, NO_PARTITION, 1, &wait, NULL), STATUS_REMOVED);
}

static void close_arena(void *arena)
{
    closing_begin(arena);
}

static void close_and_leave(void *context)
{
    struct company *company = context;
    closing_begin(company->survivor);
    deliver_everything(company->sender, &company->ledger);
    closing_end(company->survivor);
    deliver_everything(company->sender, &company->ledger);
}

/* ---- closing ---- */

TEST(a_closing_arena_refuses_records_and_delivers_those_it_has)
{
    struct company company = company_met();
    EXPECT_STATUS(append_number(company.producer, 0, 0), STATUS_OK);
    EXPECT_STATUS(append_number(company.producer, 1, 1), STATUS_OK);
    closing_begin(company.survivor);
    EXPECT_EQ_U64(slots_in_state(company.arena, SLOT_OPEN), 0);
    EXPECT_EQ_U64(slots_in_state(company.arena, SLOT_READY), 2);
    expect_refused(company.producer, 0);
    expect_refused(company.producer, 2);
    deliver_everything(company.sender, &company.ledger);
    expect_delivered_once(&company.ledger, 0, 2);
    closing_end(company.survivor);
    closing_begin(company.arena); /* the state is never lowered */
    EXPECT_EQ_U64(arena_closing(company.arena), CLOSING_DONE);
    expect_refused(company.producer, 0);
    company_left(&company);
}

TEST(a_batch_that_is_opened_while_the_arena_closes_is_taken_back)
{
    struct company company = company_met();
    interrupt_at("slot_opened", 0, close_arena, company.survivor);
    EXPECT_STATUS(append_number(company.producer, 0, 0), STATUS_EXHAUSTED);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(slots_in_state(company.arena, SLOT_OPEN), 0);
    company_left(&company);
    EXPECT_EQ_U64(company.ledger.count, 0);
}

static void append_beside(void *producer)
{
    (void)append_number(producer, 2, 2);
}

TEST(no_batch_is_opened_after_the_arena_closes)
{
    struct company company = company_met();
    struct accumulator *other = accumulator_opened(company.survivor);
    uint32_t first;
    EXPECT_STATUS(buffer_pool_try_allocate(company.arena, &first), STATUS_OK);
    EXPECT_STATUS(append_number(company.producer, 0, 0), STATUS_OK);
    buffer_pool_return(company.arena, &first, 1, NULL); /* a free slot that the closer has already read */
    EXPECT_EQ_U64(first, 0);
    interrupt_at("slot_closed", 0, append_beside, other);
    closing_begin(company.arena);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(slots_in_state(company.arena, SLOT_OPEN), 0);
    accumulator_close(other);
    company_left(&company);
    expect_delivered_once(&company.ledger, 0, 1);
}

/* ---- oversized records ---- */

static enum status append_chain(struct company *company, const char *point)
{
    static uint8_t value[CHAIN_VALUE_SIZE];
    struct measured_record record = measured(record_of(value, sizeof value, 1000));
    uint32_t slots[3];
    slots_waited_for(company->arena, 3, slots);
    struct reservation reservation = {.slots = slots, .count = 3};
    struct append_result result;
    interrupt_at(point, 0, close_and_leave, company);
    enum status status = accumulator_append(company->producer, 0, &record, 1, &reservation, &result);
    EXPECT(interruption_is_over());
    buffer_pool_return(company->arena, reservation.slots, reservation.count, NULL);
    return status;
}

TEST(an_oversized_record_in_a_closing_arena_frees_its_buffers)
{
    struct company company = company_met();
    EXPECT_STATUS(append_chain(&company, "chain_piece_linked"), STATUS_EXHAUSTED);
    company_left(&company);
    EXPECT_EQ_U64(company.ledger.count, 0);
}

TEST(an_oversized_record_is_refused_after_the_sender_has_left)
{
    struct company company = company_met();
    EXPECT_STATUS(append_chain(&company, "chain_seq_taken"), STATUS_EXHAUSTED);
    company_left(&company);
}

/* ---- the name ---- */

static int named_file_new(char *path)
{
    int file = mkstemp(path);
    EXPECT(file >= 0);
    return file;
}

TEST(an_arena_that_lost_its_name_is_closed_by_a_producer_within_a_second)
{
    char path[] = "/tmp/closing-test-XXXXXX";
    struct company company = company_met_at(named_file_new(path));
    struct arena *arena = company.arena;
    arena->clock = (struct clock){.is_manual = true, .manual_ns = 10 * NS_PER_S};
    EXPECT_STATUS(append_number(company.producer, 0, 0), STATUS_OK);
    unlink(path);
    arena->clock.manual_ns += NS_PER_S - 1;
    EXPECT_STATUS(append_number(company.producer, 1, 1), STATUS_OK);
    EXPECT(arena_takes_records(arena));
    arena->clock.manual_ns += 1;
    EXPECT_STATUS(append_number(company.producer, 2, 2), STATUS_OK);
    EXPECT_EQ_U64(arena_closing(arena), CLOSING_BEGUN);
    expect_refused(company.producer, 2);
    company_left(&company);
    expect_delivered_once(&company.ledger, 0, 3);
}

TEST(an_arena_that_never_had_a_name_is_not_closed)
{
    struct company company = company_met();
    closing_check(company.arena);
    EXPECT(!arena_lost_its_name(company.arena));
    EXPECT(arena_takes_records(company.arena));
    company_left(&company);
}

TEST(an_arena_that_is_found_again_takes_records)
{
    struct company company = company_met();
    int file = file_opened_again(company.file);
    EXPECT_STATUS(append_number(company.producer, 0, 0), STATUS_OK);
    close_and_leave(&company);
    company_left(&company);
    struct arena *arena = arena_attached(file); /* the only process: attaching runs the cold recovery */
    EXPECT(arena_takes_records(arena));
    arena_end(arena, file);
}

TEST(an_impossible_word_is_reported_by_verify)
{
    struct company company = company_met();
    struct finding finding;
    const struct verify_options options = {.depth = VERIFY_QUICK};
    store_relaxed_u32(&company.arena->globals->closing, 7);
    EXPECT_EQ_U64(verify(company.arena, &options, &finding, 1), 1);
    EXPECT(strstr(finding.text, "closing word") != NULL);
    store_relaxed_u32(&company.arena->globals->closing, CLOSING_NOT);
    company_left(&company);
}

RUN_ALL()
