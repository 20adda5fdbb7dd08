/* SPDX-License-Identifier: Apache-2.0
 *
 * Flush waits for the records that this process appended, and for no other records.
 */
#include "core/accumulator.h"

#include "arena/attach.h"
#include "core/delivery_fixture.h"

struct flushing {
    struct arena *arena;
    struct arena *neighbour;
    struct accumulator *producer;
    struct accumulator *other;
    struct accumulator *sender;
    struct ledger ledger;
    int file;
};

static void flushing_begin(struct flushing *flushing)
{
    *flushing = (struct flushing){.file = arena_file_new()};
    flushing->arena = arena_created(flushing->file, geometry_of(8, 512));
    flushing->neighbour = arena_attached(flushing->file);
    flushing->producer = accumulator_opened(flushing->arena);
    flushing->other = accumulator_opened(flushing->neighbour);
    flushing->sender = sender_opened(flushing->neighbour);
}

static void flushing_end(struct flushing *flushing)
{
    deliver_everything(flushing->sender, &flushing->ledger);
    accumulator_close(flushing->producer);
    accumulator_close(flushing->sender);
    accumulator_close(flushing->other);
    arena_detach(flushing->neighbour);
    expect_all_free(flushing->arena);
    arena_end(flushing->arena, flushing->file);
}

TEST_WITH(flushing, flushing_begin, with_nothing_appended_there_is_nothing_to_wait_for)
{
    struct flush_ticket ticket;
    EXPECT_STATUS(append_number(flushing->other, 0, 0), STATUS_OK);
    EXPECT_STATUS(accumulator_flush_begin(flushing->producer, &ticket), STATUS_OK);
    EXPECT_EQ_U64(ticket.count, 0);
    EXPECT_EQ_U64(slots_in_state(flushing->arena, SLOT_OPEN), 1);
    accumulator_flush_end(&ticket);
}

TEST_WITH(flushing, flushing_begin, flush_seals_what_this_process_appended_to_and_waits_until_it_is_complete)
{
    struct flush_ticket ticket;
    for (uint32_t partition = 0; partition < 3; partition++) {
        EXPECT_STATUS(append_number(flushing->producer, partition, partition), STATUS_OK);
    }
    EXPECT_STATUS(append_number(flushing->other, 5, 5), STATUS_OK);
    EXPECT_STATUS(accumulator_flush_begin(flushing->producer, &ticket), STATUS_OK);
    EXPECT_EQ_U64(ticket.count, 3);
    EXPECT_EQ_U64(slots_in_state(flushing->arena, SLOT_READY), 3);
    EXPECT_EQ_U64(slots_in_state(flushing->arena, SLOT_OPEN), 1);
    EXPECT_EQ_U64(counter_value(flushing->arena, COUNTER_BATCHES_SEALED_FLUSH), 3);
    EXPECT_EQ_U64(accumulator_flush_remaining(flushing->producer, &ticket), 3);
    deliver_everything(flushing->sender, &flushing->ledger);
    EXPECT_EQ_U64(accumulator_flush_remaining(flushing->producer, &ticket), 0);
    accumulator_flush_end(&ticket);
    EXPECT(ticket.items == NULL);
}

TEST_WITH(flushing, flushing_begin, a_batch_in_flight_is_waited_for_and_one_appended_later_is_not)
{
    struct flush_ticket ticket;
    struct drained_batch batches[8];
    EXPECT_STATUS(append_number(flushing->producer, 0, 0), STATUS_OK);
    EXPECT_EQ_U64(drain_round(flushing->sender, 5, batches), 1);
    EXPECT_STATUS(accumulator_flush_begin(flushing->producer, &ticket), STATUS_OK);
    EXPECT_STATUS(append_number(flushing->producer, 0, 1), STATUS_OK);
    EXPECT_EQ_U64(accumulator_flush_remaining(flushing->producer, &ticket), 1);
    EXPECT_STATUS(accumulator_complete(flushing->sender, batches[0].slot_index, batches[0].seq, &success, NULL),
                  STATUS_OK);
    EXPECT_EQ_U64(accumulator_flush_remaining(flushing->producer, &ticket), 0);
    EXPECT_EQ_U64(slots_in_state(flushing->arena, SLOT_OPEN), 1);
    accumulator_flush_end(&ticket);
}

TEST_WITH(flushing, flushing_begin, the_records_of_this_process_without_a_result_are_counted_and_nothing_is_sealed)
{
    const struct appender *appender = flushing->producer->appender;
    struct drained_batch batches[8];
    EXPECT_EQ_U64(appender_incomplete_count(appender), 0);
    for (uint32_t number = 0; number < 3; number++) {
        EXPECT_STATUS(append_number(flushing->producer, 0, number), STATUS_OK);
    }
    EXPECT_STATUS(append_number(flushing->other, 0, 3), STATUS_OK); /* into the same batch */
    EXPECT_STATUS(append_number(flushing->producer, 1, 4), STATUS_OK);
    EXPECT_EQ_U64(appender_incomplete_count(appender), 4);
    EXPECT_EQ_U64(slots_in_state(flushing->arena, SLOT_OPEN), 2);
    EXPECT_EQ_U64(drain_round(flushing->sender, 5, batches), 2);
    EXPECT_EQ_U64(appender_incomplete_count(appender), 4);
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT_STATUS(accumulator_complete(flushing->sender, batches[i].slot_index, batches[i].seq, &success, NULL),
                      STATUS_OK);
    }
    EXPECT_EQ_U64(appender_incomplete_count(appender), 0);
    EXPECT_STATUS(append_number(flushing->producer, 0, 5), STATUS_OK);
    EXPECT_EQ_U64(appender_incomplete_count(appender), 1);
}

TEST_WITH(flushing, flushing_begin, of_a_batch_in_parts_the_records_without_a_result_are_counted)
{
    struct drained_batch batches[8];
    for (uint32_t number = 0; number < 4; number++) {
        EXPECT_STATUS(append_number(flushing->producer, 0, number), STATUS_OK);
    }
    EXPECT_STATUS(append_number(flushing->other, 0, 4), STATUS_OK);
    EXPECT_EQ_U64(drain_round(flushing->sender, 5, batches), 1);
    static const uint64_t counted[] = {4, 4, 3, 2}; /* one of the five records is the other process's */
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ_U64(appender_incomplete_count(flushing->producer->appender), counted[i]);
        EXPECT_STATUS(accumulator_complete_part(flushing->sender, batches[0].slot_index, batches[0].seq, 1, &success,
                                                NULL),
                      STATUS_OK);
    }
    EXPECT_EQ_U64(appender_incomplete_count(flushing->producer->appender), 1);
    EXPECT_STATUS(accumulator_complete_part(flushing->sender, batches[0].slot_index, batches[0].seq, 1, &success,
                                            NULL),
                  STATUS_OK);
    EXPECT_EQ_U64(appender_incomplete_count(flushing->producer->appender), 0);
}

TEST_WITH(flushing, flushing_begin, a_slot_that_was_recycled_is_not_waited_for)
{
    struct flush_ticket ticket;
    EXPECT_STATUS(append_number(flushing->producer, 0, 0), STATUS_OK);
    EXPECT_STATUS(accumulator_flush_begin(flushing->producer, &ticket), STATUS_OK);
    uint32_t slot_index = ticket.items[0].slot_index;
    deliver_everything(flushing->sender, &flushing->ledger);
    for (uint32_t partition = 0; partition < 8; partition++) {
        EXPECT_STATUS(append_number(flushing->other, partition, 1 + partition), STATUS_OK);
    }
    EXPECT_EQ_U64(slot_state_at(flushing->arena, slot_index), SLOT_OPEN);
    EXPECT_EQ_U64(accumulator_flush_remaining(flushing->producer, &ticket), 0);
    EXPECT_EQ_U64(slot_state_at(flushing->arena, slot_index), SLOT_OPEN);
    accumulator_flush_end(&ticket);
    EXPECT_STATUS(accumulator_flush_begin(flushing->producer, &ticket), STATUS_OK);
    EXPECT_EQ_U64(ticket.count, 0);
    EXPECT_EQ_U64(slots_in_state(flushing->arena, SLOT_OPEN), 8);
    accumulator_flush_end(&ticket);
}

TEST_WITH(flushing, flushing_begin, an_oversized_record_is_waited_for)
{
    static const uint8_t value[1000];
    struct flush_ticket ticket;
    struct append_result result;
    append_waiting(flushing->producer, 0, record_of(value, sizeof value, 1000), &result);
    EXPECT_STATUS(accumulator_flush_begin(flushing->producer, &ticket), STATUS_OK);
    EXPECT_EQ_U64(ticket.count, 1);
    deliver_everything(flushing->sender, &flushing->ledger);
    EXPECT_EQ_U64(accumulator_flush_remaining(flushing->producer, &ticket), 0);
    accumulator_flush_end(&ticket);
}

TEST_WITH(flushing, flushing_begin, the_child_of_a_fork_waits_for_nothing_its_parent_appended)
{
    EXPECT_STATUS(append_number(flushing->producer, 0, 0), STATUS_OK);
    pid_t child = child_forked();
    if (child == 0) {
        struct flush_ticket ticket;
        struct error error;
        EXPECT_STATUS(accumulator_flush_begin(flushing->producer, &ticket), STATUS_OK);
        EXPECT_EQ_U64(ticket.count, 0);
        accumulator_flush_end(&ticket);
        EXPECT_STATUS(arena_ensure_attached(flushing->arena, &error), STATUS_OK);
        EXPECT_STATUS(append_number(flushing->producer, 1, 1), STATUS_OK);
        EXPECT_STATUS(accumulator_flush_begin(flushing->producer, &ticket), STATUS_OK);
        EXPECT_EQ_U64(ticket.count, 1);
        accumulator_flush_end(&ticket);
        _exit(testing_exit_code());
    }
    EXPECT(child_is_content(child));
    EXPECT_EQ_U64(slots_in_state(flushing->arena, SLOT_OPEN), 1); /* the parent's batch was not sealed */
}

RUN_ALL()
