/* SPDX-License-Identifier: Apache-2.0 */
#include "core/accumulator.h"

#include "core/delivery_fixture.h"

#include "arena/attach.h"
#include "arena/counters.h"
#include "arena/lock.h"
#include "producer/producer_batch_append.h"

enum { BATCH_SIZE = 512, ROOM = BATCH_SIZE - RECORDS_START };

/* ---- helpers ---- */

/* A producer, and the participants that may interrupt it: a survivor with its own producer, and a sender. */
struct company {
    struct arena *arena;
    struct arena *survivor;
    struct accumulator *producer;
    struct accumulator *other;
    struct accumulator *sender;
    struct ledger ledger;
    int file;
};

static void company_begin(struct company *company)
{
    *company = (struct company){.file = arena_file_new()};
    company->arena = arena_created(company->file, geometry_of(8, BATCH_SIZE));
    company->survivor = arena_attached(company->file);
    company->producer = accumulator_opened(company->arena);
    company->other = accumulator_opened(company->survivor);
    company->sender = sender_opened(company->survivor);
}

/* Begin a new company, for a test that needs several of them in turn. */
static struct company *company_met(void)
{
    static struct company company;
    company_begin(&company);
    return &company;
}

static void company_end(struct company *company)
{
    accumulator_close(company->producer);
    accumulator_close(company->sender);
    accumulator_close(company->other);
    arena_detach(company->survivor);
    expect_all_free(company->arena);
    arena_end(company->arena, company->file);
}

/* Deliver all records, and check that they are the numbers in [first, end), each once. */
static void expect_only(struct company *company, uint64_t first, uint64_t end)
{
    deliver_everything(company->sender, &company->ledger);
    expect_delivered_once(&company->ledger, first, end);
    EXPECT_EQ_U64(company->ledger.count, end - first);
}

static void expect_ascending(const struct ledger *ledger, uint64_t first, uint64_t end)
{
    uint64_t before = 0;
    for (uint32_t i = 0; i < ledger->count; i++) {
        uint64_t number = ledger->numbers[i];
        if (number >= first && number < end) {
            EXPECT_OR_SAY(number >= before, "%" PRIu64 " came after %" PRIu64, number, before);
            before = number;
        }
    }
}

static void take_all_slots(struct arena *arena, uint32_t *slots)
{
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        EXPECT_STATUS(buffer_pool_try_allocate(arena, &slots[i]), STATUS_OK);
    }
}

/* ---- append ---- */

TEST_WITH(company, company_begin, the_first_append_opens_a_batch_and_the_next_go_into_it)
{
    struct append_result result;
    uint64_t number = 0;
    EXPECT_STATUS(append_record(company->producer, 0, record_of(&number, 8, 1000), &result), STATUS_OK);
    EXPECT_EQ_U64(result.appended, 1);
    EXPECT_EQ_U64(result.first.record_index, 0);
    number = 1;
    EXPECT_STATUS(append_record(company->producer, 0, record_of(&number, 8, 1000), &result), STATUS_OK);
    EXPECT_EQ_U64(result.first.record_index, 1);
    EXPECT_EQ_U64(slots_in_state(company->arena, SLOT_OPEN), 1);
    EXPECT_EQ_U64(load_relaxed_u64(&company->arena->me->record_count), 2);
    expect_only(company, 0, 2);
}

TEST_WITH(company, company_begin, a_full_batch_is_sealed_and_the_next_is_opened_in_order)
{
    for (uint64_t number = 0; number < 100; number++) {
        EXPECT_STATUS(append_number(company->producer, 0, number), STATUS_OK);
    }
    EXPECT(slots_in_state(company->arena, SLOT_READY) >= 2);
    EXPECT_EQ_U64(slots_in_state(company->arena, SLOT_OPEN), 1);
    expect_only(company, 0, 100);
    expect_ascending(&company->ledger, 0, 100);
}

/* The batch that an appender remembers for a partition is a hint. Its slot may be free by now, or have a batch of
 * another partition. */
TEST_WITH(company, company_begin, an_append_to_an_earlier_partition_finds_its_present_batch)
{
    const struct appender_note *note = &company->producer->appender->notes[0];
    EXPECT_STATUS(append_number(company->producer, 0, 0), STATUS_OK);
    uint32_t slot_before = note->slot_index;
    EXPECT_EQ_U64(note->end, slot_word_size(slot_word_at(company->arena, slot_before)));
    EXPECT_STATUS(append_number(company->producer, 1, 1), STATUS_OK);
    deliver_everything(company->sender, &company->ledger);
    EXPECT_STATUS(append_number(company->other, 2, 2), STATUS_OK);
    EXPECT_EQ_U64(load_relaxed_u32(&company->arena->slots[slot_before].partition_index), 2);
    EXPECT_STATUS(append_number(company->producer, 0, 3), STATUS_OK);
    EXPECT(note->slot_index != slot_before);
    EXPECT_EQ_U64(note->end, slot_word_size(slot_word_at(company->arena, note->slot_index)));
    expect_only(company, 0, 4);
}

TEST_WITH(company, company_begin, two_processes_share_the_batch_of_a_partition)
{
    for (uint64_t number = 0; number < 10; number++) {
        struct accumulator *producer = (number & 1) != 0 ? company->other : company->producer;
        EXPECT_STATUS(append_number(producer, 3, number), STATUS_OK);
    }
    EXPECT_EQ_U64(slots_in_state(company->arena, SLOT_OPEN), 1);
    expect_only(company, 0, 10);
    EXPECT_EQ_U64(company->ledger.batch_count, 1);
    expect_ascending(&company->ledger, 0, 10);
}

TEST_WITH(company, company_begin, each_partition_has_a_batch_of_its_own)
{
    for (uint32_t partition = 0; partition < 8; partition++) {
        EXPECT_STATUS(append_number(company->producer, partition, partition), STATUS_OK);
    }
    EXPECT_EQ_U64(slots_in_state(company->arena, SLOT_OPEN), 8);
    EXPECT_STATUS(append_number(company->producer, 8, 0), STATUS_INVALID);
    EXPECT_STATUS(append_number(company->producer, UINT32_MAX, 0), STATUS_INVALID);
    expect_only(company, 0, 8);
    EXPECT_EQ_U64(company->ledger.batch_count, 8);
}

TEST_WITH(company, company_begin, a_run_is_appended_batch_by_batch_until_nothing_is_left)
{
    uint64_t numbers[60];
    struct measured_record records[60];
    for (uint64_t i = 0; i < 60; i++) {
        numbers[i] = i;
        records[i] = measured(record_of(&numbers[i], 8, 1000));
    }
    uint32_t done = 0;
    while (done < 60) {
        struct append_result result = {0};
        enum status status =
            accumulator_append(company->producer, 0, records + done, 60 - done, NULL, &result);
        EXPECT_STATUS(status, STATUS_OK);
        EXPECT(result.appended >= 1 && result.appended <= 60 - done);
        if (status != STATUS_OK) {
            break;
        }
        done += result.appended;
    }
    EXPECT_STATUS(accumulator_append(company->producer, 0, records, 0, NULL, &(struct append_result){0}),
                  STATUS_INVALID);
    expect_only(company, 0, 60);
    expect_ascending(&company->ledger, 0, 60);
}

/* ---- exhaustion ---- */

TEST_WITH(company, company_begin, without_a_free_slot_the_caller_gets_the_number_to_wait_for)
{
    uint32_t slots[8];
    uint64_t number = 0;
    struct append_result result;
    take_all_slots(company->survivor, slots);
    EXPECT_STATUS(append_record(company->producer, 0, record_of(&number, 8, 1000), &result), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(result.need, 1);
    EXPECT_EQ_U64(result.appended, 0);
    buffer_pool_return(company->survivor, slots, 8, NULL);
    append_waiting(company->producer, 0, record_of(&number, 8, 1000), &result);
    expect_only(company, 0, 1);
}

TEST_WITH(company, company_begin, a_reserved_slot_that_was_not_needed_is_given_back)
{
    uint32_t slot_index;
    struct wake_set none = {0};
    EXPECT_STATUS(append_number(company->producer, 0, 0), STATUS_OK);
    slots_waited_for(company->arena, 1, &slot_index);
    EXPECT_EQ_U64(slots_in_state(company->arena, SLOT_OWNED), 1);
    uint64_t number = 1;
    struct measured_record record = measured(record_of(&number, 8, 1000));
    struct reservation reservation = {.slots = &slot_index, .count = 1};
    struct append_result result;
    EXPECT_STATUS(accumulator_append(company->producer, 0, &record, 1, &reservation, &result), STATUS_OK);
    EXPECT_EQ_U64(reservation.count, 0);
    EXPECT_EQ_U64(slots_in_state(company->arena, SLOT_OWNED), 0);
    EXPECT(memcmp(&company->producer->appender->wakes, &none, sizeof none) == 0);
    expect_only(company, 0, 2);
}

TEST_WITH(company, company_begin, returning_a_spare_wakes_its_waiter)
{
    uint32_t slots[8];
    uint32_t spare;
    struct buffer_wait wait;
    EXPECT_STATUS(append_number(company->producer, 0, 0), STATUS_OK);
    slots_waited_for(company->arena, 1, &spare);
    for (int i = 0; i < 6; i++) {
        EXPECT_STATUS(buffer_pool_try_allocate(company->survivor, &slots[i]), STATUS_OK);
    }
    EXPECT_STATUS(buffer_pool_enqueue(company->survivor, NO_PARTITION, 1, &wait, NULL), STATUS_OK);
    uint64_t number = 1;
    struct measured_record record = measured(record_of(&number, 8, 1000));
    struct append_result result;
    EXPECT_STATUS(accumulator_append(company->producer, 0, &record, 1,
                                     &(struct reservation){.slots = &spare, .count = 1}, &result), STATUS_OK);
    EXPECT_EQ_U64(company->producer->appender->wakes.count, 1);
    EXPECT_EQ_U64(company->producer->appender->wakes.bits[0], UINT64_C(1) << wait.waiter_index);
    EXPECT_STATUS(buffer_pool_take(company->survivor, &wait, &slots[6]), STATUS_OK);
    buffer_pool_return(company->survivor, slots, 7, NULL);
    expect_only(company, 0, 2);
}

/* ---- sizes ---- */

TEST_WITH(company, company_begin, records_are_measured_against_the_arena)
{
    /* record_size_max: 5 * 512; a record has at most 4 slots */
    static const uint8_t value[6 * BATCH_SIZE];
    struct record_size size;
    struct record largest = record_of(value, value_size_for(ROOM + 3 * BATCH_SIZE), 1000);
    EXPECT_STATUS(accumulator_measure(company->producer, &largest, &size), STATUS_OK);
    largest.value_size++;
    EXPECT_STATUS(accumulator_measure(company->producer, &largest, &size), STATUS_RECORD_TOO_LARGE);
    struct record bad = record_of(value, 1, -2);
    EXPECT_STATUS(accumulator_measure(company->producer, &bad, &size), STATUS_INVALID);
    bad = (struct record){.key_size = -2};
    EXPECT_STATUS(accumulator_measure(company->producer, &bad, &size), STATUS_INVALID);
}

TEST_WITH(company, company_begin, every_record_size_around_a_slot_s_edge_arrives)
{
    static uint8_t value[2 * BATCH_SIZE];
    uint64_t number = 0;
    for (uint32_t size = ROOM - 12; size <= ROOM + 12; size++) {
        struct append_result result;
        memcpy(value, &number, sizeof number);
        append_waiting(company->producer, 0, record_of(value, size, 1000), &result);
        expect_only(company, 0, ++number);
    }
    for (uint32_t size = ROOM + BATCH_SIZE - 12; size <= ROOM + BATCH_SIZE + 12; size++) {
        struct append_result result;
        memcpy(value, &number, sizeof number);
        append_waiting(company->producer, 0, record_of(value, size, 1000), &result);
        expect_only(company, 0, ++number);
    }
}

TEST_WITH(company, company_begin, small_and_oversized_records_keep_their_order)
{
    static uint8_t value[3 * BATCH_SIZE];
    for (uint64_t number = 0; number < 9; number++) {
        struct append_result result;
        memcpy(value, &number, sizeof number);
        append_waiting(company->producer, 0, record_of(value, number % 3 == 1 ? 2 * BATCH_SIZE : 8, 1000), &result);
        if (number % 3 == 2) {
            expect_only(company, 0, number + 1);
        }
    }
    expect_ascending(&company->ledger, 0, 9);
}

TEST_WITH(company, company_begin, an_oversized_record_asks_for_its_slots_and_takes_them_out_of_the_reservation)
{
    static uint8_t value[BATCH_SIZE + 100];
    struct measured_record record = measured(record_of(value, sizeof value, 1000));
    struct append_result result;
    uint32_t slots[3];
    EXPECT_STATUS(accumulator_append(company->producer, 0, &record, 1, NULL, &result), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(result.need, 2);
    slots_waited_for(company->arena, 3, slots);
    struct reservation reservation = {.slots = slots, .count = 1};
    EXPECT_STATUS(accumulator_append(company->producer, 0, &record, 1, &reservation, &result), STATUS_EXHAUSTED);
    reservation.count = 3;
    EXPECT_STATUS(accumulator_append(company->producer, 0, &record, 1, &reservation, &result), STATUS_OK);
    EXPECT_EQ_U64(reservation.count, 1);
    EXPECT(reservation.slots == slots + 2);
    buffer_pool_return(company->arena, reservation.slots, 1, NULL);
    expect_only(company, 0, 1);
}

/* ---- statuses ---- */

TEST_WITH(company, company_begin, an_append_to_a_poisoned_arena_returns_poisoned_and_appends_nothing)
{
    arena_poison(company->survivor, STATUS_CORRUPT, "a test");
    arena_poison(company->survivor, STATUS_OS, "a second reason does not count");
    EXPECT_STATUS(append_number(company->producer, 0, 0), STATUS_POISONED);
    EXPECT_EQ_U64(load_relaxed_u32(&company->arena->globals->poisoned_status), STATUS_CORRUPT);
    EXPECT_EQ_U64(slots_in_state(company->arena, SLOT_FREE), 8);
    store_relaxed_u32(&company->arena->globals->poisoned_status, 0);
}

TEST_WITH(company, company_begin, an_impossible_open_word_poisons_the_arena)
{
    store_relaxed_u64(&company->arena->partitions[2].open, open_word(0, 8));
    EXPECT_STATUS(append_number(company->producer, 2, 0), STATUS_CORRUPT);
    EXPECT(arena_is_poisoned(company->survivor));
    EXPECT_STATUS(append_number(company->producer, 0, 0), STATUS_POISONED);
    store_relaxed_u32(&company->arena->globals->poisoned_status, 0);
    store_relaxed_u64(&company->arena->partitions[2].open, 0);
}

/* The child of a fork may use what it inherited after arena_ensure_attached, as a separate process. */
TEST_WITH(company, company_begin, after_fork_the_child_appends_as_another_process)
{
    EXPECT_STATUS(append_number(company->producer, 0, 0), STATUS_OK);
    uint32_t owner = company->arena->owner;
    pid_t child = child_forked();
    if (child == 0) {
        struct error error = {0};
        EXPECT_STATUS(append_number(company->producer, 0, 1), STATUS_DETACHED);
        EXPECT_STATUS(arena_ensure_attached(company->arena, &error), STATUS_OK);
        EXPECT(company->arena->owner != owner);
        EXPECT_STATUS(append_number(company->producer, 0, 1), STATUS_OK);
        _exit(testing_exit_code());
    }
    EXPECT(child_is_content(child));
    EXPECT_EQ_U64(company->arena->owner, owner);
    EXPECT_STATUS(append_number(company->producer, 0, 2), STATUS_OK);
    expect_only(company, 0, 3);
    EXPECT_EQ_U64(company->ledger.batch_count, 1);
}

TEST_WITH(company, company_begin, a_sleeping_sender_is_wanted_only_when_a_batch_was_opened_or_filled)
{
    struct append_result result;
    uint64_t number = 0;
    store_relaxed_u32(&company->arena->globals->sender_sleep, 1);
    EXPECT_STATUS(append_record(company->producer, 0, record_of(&number, 8, 1000), &result), STATUS_OK);
    EXPECT(result.is_sender_wanted);
    number = 1;
    EXPECT_STATUS(append_record(company->producer, 0, record_of(&number, 8, 1000), &result), STATUS_OK);
    EXPECT(!result.is_sender_wanted);
    store_relaxed_u32(&company->arena->globals->sender_sleep, 0);
    expect_only(company, 0, 2);
}

TEST_WITH(company, company_begin, a_sender_in_a_short_wait_is_wanted_when_something_is_due_earlier)
{
    atomic_u32 *sleep = &company->arena->globals->sender_sleep;
    const uint32_t naps[] = {SENDER_SHORT_WAIT, SENDER_SHORT_WAIT + 2000, SENDER_SHORT_WAIT + 2001};
    company->producer->appender->linger = 2 * NS_PER_MS + 1;
    for (uint64_t i = 0; i < 3; i++) {
        struct append_result result;
        store_relaxed_u32(sleep, naps[i]);
        EXPECT_STATUS(append_record(company->producer, (uint32_t)i, record_of(&i, 8, 1000), &result), STATUS_OK);
        EXPECT(result.is_sender_wanted == (i == 2));
    }
    store_relaxed_u32(sleep, SENDER_AWAKE);
    expect_only(company, 0, 3);
}

/* ---- a holder that was stopped, and passed, at each of its points ---- */

static const char *const append_points[] = {"seq_taken", "slot_opened", "record_claimed"};

static void survivor_appends(void *argument)
{
    struct company *company = argument;
    for (uint64_t number = 100; number < 103; number++) {
        EXPECT_STATUS(append_number(company->other, 0, number), STATUS_OK);
    }
}

enum { MOVED_ON_END = 113 };

/* The survivor appends, every record is delivered, and its slots are reused for another partition. */
static void survivors_move_on(void *argument)
{
    struct company *company = argument;
    survivor_appends(company);
    deliver_everything(company->sender, &company->ledger);
    for (uint32_t partition = 1; partition < 8; partition++) {
        EXPECT_STATUS(append_number(company->other, partition, 102 + partition), STATUS_OK);
    }
    deliver_everything(company->sender, &company->ledger);
    for (uint32_t partition = 1; partition < 4; partition++) {
        EXPECT_STATUS(append_number(company->other, partition, 109 + partition), STATUS_OK);
    }
}

static void expect_passed_unharmed(const char *point, uint32_t passes, void (*meanwhile)(void *), uint64_t other_end)
{
    struct company *company = company_met();
    interrupt_at(point, passes, meanwhile, company);
    for (uint64_t number = 0; number < 10; number++) {
        EXPECT_STATUS(append_number(company->producer, 0, number), STATUS_OK);
    }
    EXPECT_OR_SAY(interruption_is_over(), "%s was not passed %u times", point, passes + 1);
    EXPECT_EQ_U64(counter_value(company->arena, COUNTER_LOCKS_PASSED), 1);
    EXPECT_EQ_U64(load_relaxed_u64(&company->arena->me->passed_count), 1);
    deliver_everything(company->sender, &company->ledger);
    expect_delivered_once(&company->ledger, 0, 10);
    expect_delivered_once(&company->ledger, 100, other_end);
    EXPECT_EQ_U64(company->ledger.count, 10 + other_end - 100);
    expect_ascending(&company->ledger, 0, 10);
    expect_ascending(&company->ledger, 100, 103);
    company_end(company);
}

TEST(a_holder_passed_at_any_point_neither_loses_nor_doubles_records)
{
    for (uint32_t i = 0; i < COUNT_OF(append_points); i++) {
        expect_passed_unharmed(append_points[i], 0, survivor_appends, 103);
        expect_passed_unharmed(append_points[i], 0, survivors_move_on, MOVED_ON_END);
    }
    expect_passed_unharmed("record_claimed", 5, survivor_appends, 103);
    expect_passed_unharmed("record_claimed", 5, survivors_move_on, MOVED_ON_END);
}

TEST_WITH(company, company_begin, a_slot_under_the_hazard_of_a_stopped_process_is_not_given_away)
{
    EXPECT_STATUS(append_number(company->producer, 0, 0), STATUS_OK);
    interrupt_at("record_claimed", 0, survivors_move_on, company);
    EXPECT_STATUS(append_number(company->producer, 0, 1), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT(counter_value(company->arena, COUNTER_FREES_DEFERRED) > 0);
    deliver_everything(company->sender, &company->ledger);
    expect_delivered_once(&company->ledger, 0, 2);
    expect_delivered_once(&company->ledger, 100, MOVED_ON_END);
}

/* The survivor is stopped while it repairs, and a third process passes it. */
static void third_appends(void *argument)
{
    struct company *company = argument;
    struct arena *third = arena_attached(company->file);
    struct accumulator *producer = accumulator_opened(third);
    EXPECT_STATUS(append_number(producer, 0, 200), STATUS_OK);
    accumulator_close(producer);
    arena_detach(third);
}

static const char *passer_point;

static void survivor_appends_and_is_passed(void *argument)
{
    struct company *company = argument;
    interrupt_at(passer_point, 0, third_appends, company);
    EXPECT_STATUS(append_number(company->other, 0, 100), STATUS_OK);
}

TEST(a_passer_that_is_passed_in_turn_does_no_harm)
{
    static const char *const points[] = {"partition_taken_over", "partition_open_sealed", "seq_taken",
                                         "slot_opened", "record_claimed"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        for (uint32_t j = 0; j < COUNT_OF(append_points); j++) {
            struct company *company = company_met();
            passer_point = points[i];
            interrupt_at(append_points[j], 0, survivor_appends_and_is_passed, company);
            EXPECT_STATUS(append_number(company->producer, 0, 0), STATUS_OK);
            EXPECT_STATUS(append_number(company->producer, 0, 1), STATUS_OK);
            EXPECT(interruption_is_over());
            deliver_everything(company->sender, &company->ledger);
            expect_delivered_once(&company->ledger, 0, 2);
            expect_delivered_once(&company->ledger, 100, 101);
            expect_delivered_once(&company->ledger, 200, 201);
            EXPECT_EQ_U64(company->ledger.count, 4);
            expect_ascending(&company->ledger, 0, 2);
            company_end(company);
        }
    }
}

static void append_chain(struct company *company)
{
    static uint8_t value[2 * BATCH_SIZE];
    struct append_result result;
    append_waiting(company->producer, 0, record_of(value, sizeof value, 1000), &result); /* number 0 */
}

TEST(an_oversized_record_of_a_passed_holder_arrives_once)
{
    static const char *const points[] = {"chain_piece_linked", "chain_seq_taken"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        struct company *company = company_met();
        interrupt_at(points[i], 0, survivor_appends, company);
        append_chain(company);
        EXPECT(interruption_is_over());
        deliver_everything(company->sender, &company->ledger);
        expect_delivered_once(&company->ledger, 0, 1);
        expect_delivered_once(&company->ledger, 100, 103);
        company_end(company);
    }
}

/* ---- the orphan of a passed opener ---- */

static void sender_checks(void *argument)
{
    struct company *company = argument;
    uint32_t partitions[8];
    uint64_t next_check_ns;
    const struct ready_options options = {.now_ns = 0, .linger_ns = UINT64_MAX};
    (void)sender_ready(company->sender->sender, &options, partitions, 8, &next_check_ns);
    EXPECT(queued_count(company->sender) > 0);
}

/* The survivor opens a new batch. The sender sees the opener's empty batch before the opener takes it back. */
static void survivor_appends_and_sender_will_check(void *argument)
{
    struct company *company = argument;
    EXPECT_STATUS(append_number(company->other, 0, 100), STATUS_OK);
    interrupt_at("slot_opened", 0, sender_checks, company);
}

TEST_WITH(company, company_begin, a_slot_that_the_sender_saw_open_and_was_taken_back_serves_another_partition)
{
    interrupt_at("seq_taken", 0, survivor_appends_and_sender_will_check, company);
    for (uint32_t partition = 0; partition < 7; partition++) {
        EXPECT_STATUS(append_number(company->producer, partition, partition), STATUS_OK);
    }
    EXPECT(interruption_is_over());
    deliver_everything(company->sender, &company->ledger);
    expect_delivered_once(&company->ledger, 0, 7);
    expect_delivered_once(&company->ledger, 100, 101);
    EXPECT_EQ_U64(counter_value(company->arena, COUNTER_BATCHES_QUARANTINED), 0);
}

static void survivor_passes_and_sender_will_check(void *argument)
{
    struct company *company = argument;
    struct partition_hold hold;
    partition_lock(company->survivor, 0, &hold);
    partition_unlock(company->survivor, &hold);
    interrupt_at("slot_opened", 0, sender_checks, company);
}

TEST_WITH(company, company_begin, a_slot_that_was_taken_back_and_opened_again_is_delivered_under_its_new_number)
{
    struct append_result result;
    struct completion completion;
    uint64_t number = 0;
    interrupt_at("seq_taken", 0, survivor_passes_and_sender_will_check, company);
    EXPECT_STATUS(append_record(company->producer, 0, record_of(&number, 8, 1000), &result), STATUS_OK);
    EXPECT(interruption_is_over());
    const struct record_token token = {.seq = result.first.seq, .slot_index = result.first.slot_index};
    EXPECT_STATUS(completion_find(company->arena, &token, &completion), STATUS_PENDING);
    expect_only(company, 0, 1);
    EXPECT_STATUS(completion_find(company->arena, &token, &completion), STATUS_OK);
}

/* ---- death at each point ---- */

struct death {
    const char *point;
    uint32_t passes_before;
    int signal;
};

static void run_append_until(struct arena *arena, void *argument)
{
    struct death *death = argument;
    struct accumulator *producer = accumulator_opened(arena);
    interrupt_at(death->point, death->passes_before, raise_signal, &death->signal);
    for (uint64_t number = 0; number < 40; number++) {
        EXPECT_STATUS(append_number(producer, 0, number), STATUS_OK);
    }
    accumulator_close(producer);
}

/* Check that all records whose append returned OK are there. The record that was being appended at the kill may be
 * there or not. */
static void expect_survived(struct death *death, uint64_t certain)
{
    struct company *company = company_met();
    EXPECT(child_was_killed(child_started(company->file, run_append_until, death, NULL, 0)));
    survivor_appends(company);
    deliver_everything(company->sender, &company->ledger);
    expect_delivered_once(&company->ledger, 0, certain);
    expect_delivered_once(&company->ledger, 100, 103);
    EXPECT_EQ_U64(company->ledger.count, certain + 3);
    buffer_pool_repair(company->survivor);
    company_end(company);
}

TEST(a_producer_killed_at_any_point_loses_only_what_it_had_not_committed)
{
    expect_survived(&(struct death){"seq_taken", 0, SIGKILL}, 0);
    expect_survived(&(struct death){"slot_opened", 0, SIGKILL}, 0);
    expect_survived(&(struct death){"record_claimed", 0, SIGKILL}, 0);
    expect_survived(&(struct death){"record_claimed", 7, SIGKILL}, 7);
    expect_survived(&(struct death){"record_claimed", 30, SIGKILL}, 30);
}

TEST_WITH(company, company_begin, a_process_stopped_in_its_append_delays_others_only_briefly_and_then_continues)
{
    struct death death = {"record_claimed", 7, SIGSTOP};
    pid_t child = child_started(company->file, run_append_until, &death, NULL, 0);
    EXPECT(child_is_stopped(child));
    survivors_move_on(company);
    EXPECT_EQ_U64(counter_value(company->arena, COUNTER_LOCKS_PASSED), 1);
    EXPECT_EQ_U64(counter_value(company->arena, COUNTER_LOCKS_STOLEN), 0);
    EXPECT(child_finishes(child));
    deliver_everything(company->sender, &company->ledger);
    expect_delivered_once(&company->ledger, 0, 40);
    expect_delivered_once(&company->ledger, 100, MOVED_ON_END);
    EXPECT_EQ_U64(company->ledger.count, 40 + MOVED_ON_END - 100);
    expect_ascending(&company->ledger, 0, 40);
}

static void run_append_chain_until(struct arena *arena, void *argument)
{
    static uint8_t value[2 * BATCH_SIZE];
    struct append_result result;
    (void)argument;
    append_waiting(accumulator_opened(arena), 0, record_of(value, sizeof value, 1000), &result);
}

TEST(an_oversized_record_of_a_dead_process_leaks_no_slot)
{
    static const char *const points[] = {"grant_taken", "chain_piece_linked", "chain_seq_taken"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        struct company *company = company_met();
        EXPECT(child_was_killed(child_started(company->file, run_append_chain_until, NULL, points[i], SIGKILL)));
        survivor_appends(company);
        deliver_everything(company->sender, &company->ledger);
        EXPECT_EQ_U64(company->ledger.count, 3);
        company_end(company); /* every slot is free, because the maintenance has repaired what the dead process left */
    }
}

RUN_ALL()
