/* SPDX-License-Identifier: Apache-2.0
 *
 * Each part of each word is tested at its minimum and maximum, while all other bits are ones.
 */
#include "arena/slot_word.h"

#include "testing.h"

enum {
    SLOT_GENERATION_LAST = (1 << SLOT_GENERATION_BITS) - 1,
    OWNER_GENERATION_LAST = (1 << OWNER_GENERATION_BITS) - 1,
};

static const uint32_t generations[] = {0, 1, SLOT_GENERATION_LAST - 1, SLOT_GENERATION_LAST};

#define EACH(index, array) (size_t index = 0; index < sizeof(array) / sizeof(array)[0]; index++)

static void expect_filled(enum slot_state state, uint32_t generation, uint32_t count, uint32_t size)
{
    uint64_t word = slot_word(state, generation, slot_payload_filled(count, size));
    EXPECT_EQ_U64(slot_word_state(word), state);
    EXPECT_EQ_U64(slot_word_generation(word), generation);
    EXPECT_EQ_U64(slot_word_count(word), count);
    EXPECT_EQ_U64(slot_word_size(word), size);
}

TEST(a_filled_word_gives_back_what_was_put_in)
{
    for (uint32_t state = SLOT_FREE; state <= SLOT_BAD; state++) {
        for EACH(i, generations) {
            expect_filled((enum slot_state)state, generations[i], 0, 0);
            expect_filled((enum slot_state)state, generations[i], 0, BATCH_SIZE_MAX);
            expect_filled((enum slot_state)state, generations[i], BATCH_RECORD_COUNT_MAX, 0);
            expect_filled((enum slot_state)state, generations[i], BATCH_RECORD_COUNT_MAX, BATCH_SIZE_MAX);
        }
    }
}

TEST(the_largest_of_everything_is_all_ones)
{
    uint64_t filled = slot_payload_filled(BATCH_RECORD_COUNT_MAX, BATCH_SIZE_MAX);
    EXPECT_EQ_U64(slot_word(SLOT_BAD, SLOT_GENERATION_LAST, filled), UINT64_MAX);
    EXPECT_EQ_U64(slot_word(SLOT_FREE, 0, 0), 0);
}

TEST(a_generation_that_does_not_fit_is_cut)
{
    uint64_t word = slot_word(SLOT_FREE, SLOT_GENERATION_LAST + 1u, 0);
    EXPECT_EQ_U64(word, 0);
    EXPECT_EQ_U64(slot_word(SLOT_OPEN, UINT32_MAX, 0), slot_word(SLOT_OPEN, SLOT_GENERATION_LAST, 0));
}

TEST(another_state_changes_nothing_else)
{
    uint64_t open = slot_word(SLOT_OPEN, SLOT_GENERATION_LAST, slot_payload_filled(BATCH_RECORD_COUNT_MAX, 61));
    uint64_t ready = slot_word_with_state(open, SLOT_READY);
    EXPECT_EQ_U64(slot_word_state(ready), SLOT_READY);
    EXPECT_EQ_U64(slot_word_with_state(ready, SLOT_OPEN), open);
    EXPECT_EQ_U64(slot_word_count(ready), BATCH_RECORD_COUNT_MAX);
    EXPECT_EQ_U64(slot_word_size(ready), 61);
}

TEST(freeing_raises_the_generation_clears_the_rest_and_wraps)
{
    uint64_t done = slot_word(SLOT_DONE, 5, slot_payload_filled(BATCH_RECORD_COUNT_MAX, BATCH_SIZE_MAX));
    EXPECT_EQ_U64(slot_word_freed(done), slot_word(SLOT_FREE, 6, 0));
    EXPECT_EQ_U64(slot_word_freed(slot_word(SLOT_DONE, SLOT_GENERATION_LAST, 1)), 0);
}

TEST(an_owned_word_names_its_owner_and_whether_it_is_of_a_chain)
{
    uint32_t owners[] = {owner_of(0, 0), owner_of(PROCESS_COUNT_MAX - 1, OWNER_GENERATION_LAST)};
    for EACH(i, owners) {
        for (int is_chain = 0; is_chain <= 1; is_chain++) {
            uint64_t word = slot_word(SLOT_OWNED, SLOT_GENERATION_LAST, slot_payload_owned(owners[i], is_chain != 0));
            EXPECT_EQ_U64(slot_word_state(word), SLOT_OWNED);
            EXPECT_EQ_U64(slot_word_owner(word), owners[i]);
            EXPECT_EQ_U64(slot_word_is_chain(word), (uint64_t)is_chain);
            EXPECT_EQ_U64(slot_word_generation(word), SLOT_GENERATION_LAST);
        }
    }
}

TEST(an_owner_is_an_entry_and_a_generation_and_never_0)
{
    EXPECT(owner_of(0, 0) != 0);
    EXPECT_EQ_U64(owner_of(PROCESS_COUNT_MAX - 1, OWNER_GENERATION_LAST), LOW_BITS(31));
    EXPECT_EQ_U64(owner_index(owner_of(0, OWNER_GENERATION_LAST)), 0);
    EXPECT_EQ_U64(owner_index(owner_of(PROCESS_COUNT_MAX - 1, 0)), PROCESS_COUNT_MAX - 1);
    EXPECT_EQ_U64(owner_generation(owner_of(PROCESS_COUNT_MAX - 1, 0)), 0);
    EXPECT_EQ_U64(owner_generation(owner_of(0, OWNER_GENERATION_LAST)), OWNER_GENERATION_LAST);
    EXPECT_EQ_U64(owner_generation(owner_of(3, OWNER_GENERATION_LAST + 1u)), 0);
}

TEST(a_grant_names_its_waiter_and_the_low_bits_of_its_ticket)
{
    uint64_t ticket = LOW_BITS(GRANT_TICKET_BITS);
    uint64_t word = slot_word(SLOT_GRANT, 0, slot_payload_grant(WAITER_COUNT_MAX - 1, ticket));
    EXPECT_EQ_U64(slot_word_waiter(word), WAITER_COUNT_MAX - 1);
    EXPECT_EQ_U64(word & LOW_BITS(GRANT_TICKET_BITS), ticket);
    EXPECT_EQ_U64(slot_word_generation(word), 0);
    EXPECT_EQ_U64(slot_payload_grant(1, ticket + 1), slot_payload_grant(1, 0));
    EXPECT_EQ_U64(slot_word_waiter(slot_word(SLOT_GRANT, SLOT_GENERATION_LAST, slot_payload_grant(0, ticket))), 0);
}

TEST(a_continuation_names_its_head_and_the_head_s_generation)
{
    uint64_t largest = slot_word(SLOT_CONT, 0, slot_payload_cont(SLOT_COUNT_MAX, SLOT_GENERATION_LAST));
    EXPECT_EQ_U64(slot_word_head_index(largest), SLOT_COUNT_MAX);
    EXPECT_EQ_U64(slot_word_head_generation(largest), SLOT_GENERATION_LAST);
    EXPECT_EQ_U64(slot_word_generation(largest), 0);
    uint64_t smallest = slot_word(SLOT_CONT, SLOT_GENERATION_LAST, slot_payload_cont(0, 0));
    EXPECT_EQ_U64(slot_word_head_index(smallest), 0);
    EXPECT_EQ_U64(slot_word_head_generation(smallest), 0);
}

TEST(a_lock_word_keeps_owner_and_waiters_in_the_half_that_is_the_futex)
{
    uint32_t owner = (uint32_t)LOW_BITS(31);
    uint64_t word = lock_word(UINT32_MAX, owner);
    EXPECT_EQ_U64(lock_word_acquisition(word), UINT32_MAX);
    EXPECT_EQ_U64(lock_word_owner(word), owner);
    EXPECT_EQ_U64(word & LOCK_WAITERS, 0);
    EXPECT_EQ_U64(lock_word_owner(word | LOCK_WAITERS), owner);
    EXPECT_EQ_U64(lock_word_acquisition(LOCK_WAITERS), 0);
    EXPECT_EQ_U64(lock_word(0, owner) >> 32, 0);
}

static void expect_waiter(enum waiter_state state, uint32_t need, uint64_t ticket)
{
    uint64_t word = waiter_word(state, need, ticket);
    EXPECT_EQ_U64(waiter_word_state(word), state);
    EXPECT_EQ_U64(waiter_word_need(word), need);
    EXPECT_EQ_U64(waiter_word_ticket(word), ticket);
}

TEST(a_waiter_word_gives_back_what_was_put_in)
{
    uint32_t need_max = (uint32_t)LOW_BITS(WAITER_NEED_BITS);
    uint64_t ticket_max = LOW_BITS(WAITER_TICKET_BITS);
    for (uint32_t state = WAITER_IDLE; state <= WAITER_PARKED; state++) {
        expect_waiter((enum waiter_state)state, 0, 0);
        expect_waiter((enum waiter_state)state, 0, ticket_max);
        expect_waiter((enum waiter_state)state, need_max, 0);
        expect_waiter((enum waiter_state)state, need_max, ticket_max);
    }
    EXPECT_EQ_U64(waiter_word(WAITER_WAIT, 1, ticket_max + 1), waiter_word(WAITER_WAIT, 1, 0));
}

TEST(a_stuck_word_gives_back_what_was_put_in)
{
    const int16_t codes[] = {0, -1, 5, INT16_MAX, INT16_MIN};
    const uint64_t since_max = LOW_BITS(STUCK_SINCE_BITS);
    for (uint32_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        uint64_t word = stuck_word(STUCK_SILENT, codes[i], since_max);
        EXPECT_EQ_U64(stuck_word_reason(word), STUCK_SILENT);
        EXPECT(stuck_word_error_code(word) == codes[i]);
        EXPECT_EQ_U64(stuck_word_since_ms(word), since_max);
    }
    EXPECT_EQ_U64(stuck_word(STUCK_NOT, 0, 0), 0);
}

TEST(a_waiter_word_holds_the_need_of_the_longest_chain)
{
    EXPECT(BATCH_SIZE_MAX / (61 + 1) <= LOW_BITS(WAITER_NEED_BITS));
}

TEST(an_open_word_names_a_slot_or_none)
{
    EXPECT_EQ_U64(open_word_slot(0), NO_SLOT);
    EXPECT_EQ_U64(open_word_slot(open_word(UINT32_MAX, NO_SLOT)), NO_SLOT);
    EXPECT_EQ_U64(open_word_slot(open_word(UINT32_MAX, 0)), 0);
    EXPECT_EQ_U64(open_word_slot(open_word(0, SLOT_COUNT_MAX)), SLOT_COUNT_MAX);
    EXPECT_EQ_U64(open_word(7, 0) >> 32, 7);
    EXPECT_EQ_U64(open_word(7, NO_SLOT) >> 32, 7);
}

RUN_ALL()
