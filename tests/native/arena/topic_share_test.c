/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/topic_share.h"

#include "core/planting.h"

#include "arena/parked_waiters.h"
#include "arena/process.h"
#include "arena/registry.h"
#include "arena/waiter_sleep.h"
#include "sender/stuck_partitions.h"
#include "sender/topic_limits.h"

enum { SLOTS = 16, BATCH_SIZE = 512, OVERSIZED = 8, STUCK = 0, LIVE = 1, FACTOR = 2 };

/* An arena with partition STUCK of one topic and partition LIVE of another. Each record fills a batch. */
struct host {
    int file;
    struct arena *arena;
    struct arena *sending;
    struct registry *registry;
    struct accumulator *producer;
    struct accumulator *sender;
    uint8_t value[BATCH_SIZE];
    uint32_t value_size;
};

static void host_topics(struct host *host)
{
    struct error error = {0};
    EXPECT_STATUS(registry_open(host->arena, &host->registry, &error), STATUS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t topic_index;
        uint32_t partition_index;
        EXPECT_STATUS(registry_topic(host->registry, i == STUCK ? "stuck" : "live", i == STUCK ? 5 : 4, &topic_index),
                      STATUS_OK);
        EXPECT_STATUS(registry_partition(host->registry, topic_index, 0, &partition_index), STATUS_OK);
        EXPECT_EQ_U64(partition_index, i);
    }
}

static void host_begin_with(struct host *host, uint32_t factor)
{
    struct geometry geometry = geometry_of(SLOTS, BATCH_SIZE);
    geometry.topic_share_factor = factor * TOPIC_SHARE_ONE;
    *host = (struct host){.file = arena_file_new()};
    host->arena = arena_created(host->file, geometry);
    host->sending = arena_attached(host->file);
    host_topics(host);
    host->producer = accumulator_opened(host->arena);
    host->sender = sender_opened(host->sending);
    host->value_size = value_size_for(BATCH_SIZE - RECORDS_START);
}

/* Begins with limits of topics turned off. */
static void host_begin(struct host *host)
{
    host_begin_with(host, 0);
}

static void sharing_host_begin(struct host *host)
{
    host_begin_with(host, FACTOR);
}

static enum status append_batch(struct host *host, uint32_t partition_index)
{
    return append_value(host->producer, partition_index, host->value, host->value_size);
}

/* Open batches until one is refused. */
static uint32_t append_batches(struct host *host, uint32_t partition_index)
{
    uint32_t count = 0;
    while (count < SLOTS && append_batch(host, partition_index) == STATUS_OK) {
        count++;
    }
    return count;
}

static void deliver_some(struct host *host, uint32_t batch_count)
{
    struct ledger ledger = {0};
    while (ledger.batch_count < batch_count && deliver_round(host->sender, &ledger) > 0) {
    }
}

static void host_end(struct host *host)
{
    deliver_some(host, 2 * SLOTS);
    sender_maintain(host->sender->sender, &host->sender->wakes);
    expect_all_free(host->arena);
    registry_close(host->registry);
    accumulator_close(host->producer);
    accumulator_close(host->sender);
    arena_detach(host->sending);
    arena_end(host->arena, host->file);
}

static void mark_stuck(struct host *host, bool is_stuck)
{
    sender_set_available(host->sender->sender, STUCK, !is_stuck);
}

static uint64_t held(const struct host *host, uint32_t partition_index)
{
    return topic_held(topic_of_partition(host->arena, partition_index));
}

/* ---- stuck partitions ---- */

TEST_WITH(host, host_begin, a_stuck_partition_opens_batches_while_more_than_half_is_free)
{
    mark_stuck(host, true);
    EXPECT_EQ_U64(append_batches(host, STUCK), SLOTS / 2);
    EXPECT_EQ_U64(held(host, STUCK), SLOTS / 2);
    EXPECT_EQ_U64(append_batches(host, LIVE), SLOTS / 2);
    mark_stuck(host, false);
}

TEST_WITH(host, host_begin, a_stuck_partition_is_not_drawn_for_records_without_a_key)
{
    EXPECT_STATUS(append_batch(host, STUCK), STATUS_OK);
    sender_set_refused(host->sender->sender, STUCK, 19);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->partitions[STUCK].queued_batch_count), PARTITION_UNAVAILABLE);
    sender_publish_queues(host->sender->sender);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->partitions[STUCK].queued_batch_count), PARTITION_UNAVAILABLE);
    deliver_some(host, 1);
    sender_maintain(host->sender->sender, NULL);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->partitions[STUCK].queued_batch_count), 0);
}

TEST_WITH(host, host_begin, a_stuck_partition_has_no_limit_without_a_sender)
{
    mark_stuck(host, true);
    accumulator_drop_sender(host->sender);
    EXPECT_EQ_U64(append_batches(host, STUCK), SLOTS);
    struct error error = {0};
    EXPECT_STATUS(accumulator_become_sender(host->sender, &error), STATUS_OK);
    EXPECT(!partition_is_marked(host->arena, STUCK)); /* the new sender has not marked it yet */
}

TEST_WITH(host, host_begin, a_chain_of_a_stuck_partition_is_checked_with_all_of_its_slots)
{
    mark_stuck(host, true);
    EXPECT(topic_share_admits(host->arena, STUCK, OVERSIZED / 2));
    EXPECT(!topic_share_admits(host->arena, STUCK, OVERSIZED / 2 + 1));
    EXPECT(topic_share_admits(host->arena, LIVE, OVERSIZED));
    for (uint32_t i = 0; i < SLOTS / 2 - 2; i++) {
        EXPECT_STATUS(append_batch(host, LIVE), STATUS_OK);
    }
    EXPECT(topic_share_admits(host->arena, STUCK, 2));
    EXPECT(!topic_share_admits(host->arena, STUCK, 3)); /* as many slots must be free */
    mark_stuck(host, false);
}

static void append_large(struct host *host, uint32_t partition_index)
{
    struct append_result result;
    uint8_t large[BATCH_SIZE + BATCH_SIZE / 2] = {0};
    append_waiting(host->producer, partition_index, record_of(large, sizeof large, 1000), &result);
}

TEST_WITH(host, host_begin, large_records_of_stuck_partitions_leave_half_of_their_part_to_others)
{
    mark_stuck(host, true);
    append_large(host, STUCK);
    append_large(host, STUCK);
    EXPECT_EQ_U64(load_relaxed_u64(&host->arena->globals->oversized_bytes), OVERSIZED / 2 * BATCH_SIZE);
    EXPECT(!topic_share_admits(host->arena, STUCK, 2));
    EXPECT(topic_share_admits(host->arena, LIVE, 2));
    append_large(host, LIVE);
    append_large(host, LIVE);
    EXPECT_EQ_U64(load_relaxed_u64(&host->arena->globals->oversized_bytes), OVERSIZED * BATCH_SIZE);
    mark_stuck(host, false);
}

TEST_WITH(host, sharing_host_begin, a_topic_holds_its_share_of_the_part_of_large_records_and_its_first_one_always)
{
    append_large(host, STUCK);
    append_large(host, STUCK);
    EXPECT(!topic_share_admits(host->arena, STUCK, 2)); /* 6 > 2 * (4 - 2) */
    EXPECT(topic_share_admits(host->arena, LIVE, 2));   /* the first batch of the topic */
    append_large(host, LIVE);
    EXPECT(!topic_share_admits(host->arena, LIVE, 2));
    deliver_some(host, 2);
    EXPECT(topic_share_admits(host->arena, LIVE, 2));
    append_large(host, STUCK);
    append_large(host, LIVE);
}

TEST_WITH(host, sharing_host_begin, the_first_large_record_of_a_topic_joins_the_queue_whatever_others_hold)
{
    append_large(host, STUCK);
    append_large(host, STUCK);
    EXPECT(topic_share_admits_oversized(host->arena, LIVE, 4, 0));
    EXPECT(!topic_share_admits_oversized(host->arena, STUCK, 2, 0));
    EXPECT(topic_share_admits_oversized(host->arena, NO_PARTITION, 4, 0));
}

static void name_time(struct host *host, uint64_t now_ns)
{
    host->arena->clock = (struct clock){.is_manual = true, .manual_ns = now_ns};
    host->sending->clock = host->arena->clock;
}

static uint64_t stuck_since_ms(const struct host *host)
{
    EXPECT(partition_is_marked(host->arena, STUCK));
    return stuck_word_since_ms(load_relaxed_u64(&host->arena->partitions[STUCK].stuck));
}

static void replace_sender(struct host *host)
{
    struct error error = {0};
    accumulator_drop_sender(host->sender);
    EXPECT_STATUS(accumulator_become_sender(host->sender, &error), STATUS_OK);
    sender_maintain(host->sender->sender, NULL);
    EXPECT(!partition_is_marked(host->arena, STUCK));
}

TEST_WITH(host, host_begin, a_partition_is_stuck_since_the_time_of_the_first_sender_that_marked_it)
{
    name_time(host, 100 * NS_PER_S);
    EXPECT_STATUS(append_batch(host, STUCK), STATUS_OK);
    mark_stuck(host, true);
    name_time(host, 200 * NS_PER_S);
    replace_sender(host);
    replace_sender(host);
    mark_stuck(host, true);
    EXPECT_EQ_U64(stuck_since_ms(host), 100 * 1000);
    sender_set_refused(host->sender->sender, STUCK, 19);
    mark_stuck(host, false);
    EXPECT_EQ_U64(stuck_since_ms(host), 100 * 1000); /* the reason has changed */
    replace_sender(host);
    deliver_some(host, 1);
    sender_maintain(host->sender->sender, NULL);
    mark_stuck(host, true);
    EXPECT_EQ_U64(stuck_since_ms(host), 200 * 1000); /* a batch was delivered to it in between */
    mark_stuck(host, false);
}

TEST_WITH(host, host_begin, a_partition_whose_broker_is_silent_while_another_answers_is_stuck)
{
    struct ledger ledger = {0};
    struct drained_batch batches[4];
    name_time(host, 100 * NS_PER_S);
    EXPECT_STATUS(append_batch(host, STUCK), STATUS_OK);
    EXPECT_EQ_U64(drain_round(host->sender, 1, batches), 1);
    name_time(host, 102 * NS_PER_S);
    sender_maintain(host->sender->sender, NULL);
    EXPECT_EQ_U64(load_relaxed_u64(&host->arena->partitions[STUCK].stuck), 0); /* no other broker responds */
    EXPECT_STATUS(append_batch(host, LIVE), STATUS_OK);
    EXPECT_EQ_U64(deliver_round(host->sender, &ledger), 1);
    sender_maintain(host->sender->sender, NULL);
    uint64_t word = load_relaxed_u64(&host->arena->partitions[STUCK].stuck);
    EXPECT_EQ_U64(stuck_word_reason(word), STUCK_SILENT);
    EXPECT_EQ_U64(stuck_word_since_ms(word), 102000);
    EXPECT_EQ_U64(load_relaxed_u64(&host->arena->partitions[LIVE].stuck), 0);
    EXPECT_STATUS(accumulator_complete(host->sender, batches[0].slot_index, batches[0].seq, &success, NULL), STATUS_OK);
    sender_maintain(host->sender->sender, NULL);
    EXPECT_EQ_U64(load_relaxed_u64(&host->arena->partitions[STUCK].stuck), 0);
}

TEST_WITH(host, host_begin, a_partition_whose_broker_refuses_is_stuck_until_it_takes_a_batch_or_has_none)
{
    EXPECT_STATUS(append_batch(host, STUCK), STATUS_OK);
    sender_set_refused(host->sender->sender, STUCK, 19);
    uint64_t word = load_relaxed_u64(&host->arena->partitions[STUCK].stuck);
    EXPECT_EQ_U64(stuck_word_reason(word), STUCK_REFUSED);
    EXPECT_EQ_U64((uint64_t)stuck_word_error_code(word), 19);
    deliver_some(host, 1);
    sender_maintain(host->sender->sender, NULL);
    EXPECT_EQ_U64(load_relaxed_u64(&host->arena->partitions[STUCK].stuck), 0);
}

/* ---- shares ---- */

TEST_WITH(host, sharing_host_begin, a_topic_holds_its_share_of_what_is_free_and_its_first_batch_always)
{
    EXPECT_EQ_U64(append_batches(host, STUCK), 11); /* 11 <= 2 * (16 - 10), 12 > 2 * (16 - 11) */
    EXPECT_EQ_U64(append_batches(host, LIVE), 3); /* 3 + 3 <= 2 * (16 - 13), 4 + 4 > 2 * (16 - 14) */
    deliver_some(host, 14);
    EXPECT_EQ_U64(append_batches(host, LIVE), 11);
}

TEST_WITH(host, sharing_host_begin, slots_of_a_stuck_partition_do_not_count_for_its_topic)
{
    EXPECT_EQ_U64(append_batches(host, STUCK), 11);
    mark_stuck(host, true);
    sender_maintain(host->sender->sender, NULL);
    EXPECT_EQ_U64(held(host, STUCK), 0);
    EXPECT_EQ_U64(topic_slot_count(host->arena, host->arena->partitions[STUCK].topic_index), 11);
    EXPECT_EQ_U64(append_batches(host, LIVE), 4); /* 4 <= 2 * (16 - 14), 5 > 2 * (16 - 15) */
    mark_stuck(host, false);
    sender_maintain(host->sender->sender, NULL);
    EXPECT_EQ_U64(held(host, STUCK), 11);
}

TEST_WITH(host, sharing_host_begin, freed_slots_of_a_stuck_partition_are_not_subtracted_from_its_topic)
{
    const struct topic_entry *topic = topic_of_partition(host->arena, STUCK);
    EXPECT_EQ_U64(append_batches(host, STUCK), 11);
    sender_set_refused(host->sender->sender, STUCK, 19);
    sender_maintain(host->sender->sender, NULL);
    EXPECT_EQ_U64(load_relaxed_u64(&topic->opened), load_relaxed_u64(&topic->released));
    deliver_some(host, 11);
    EXPECT_EQ_U64(load_relaxed_u64(&topic->opened), load_relaxed_u64(&topic->released));
}

TEST_WITH(host, sharing_host_begin, the_sums_of_a_topic_are_true_after_each_step)
{
    struct append_result result;
    uint8_t large[3 * BATCH_SIZE] = {0};
    EXPECT_STATUS(append_batch(host, STUCK), STATUS_OK);
    append_waiting(host->producer, STUCK, record_of(large, sizeof large, 1000), &result);
    EXPECT_EQ_U64(held(host, STUCK), 5);
    EXPECT_EQ_U64(held(host, LIVE), 0);
    deliver_some(host, 1);
    EXPECT_EQ_U64(held(host, STUCK), 4);
    topic_limits_recount(host->sender->sender);
    EXPECT_EQ_U64(held(host, STUCK), 4);
    deliver_some(host, 1);
    EXPECT_EQ_U64(held(host, STUCK), 0);
}

static void run_append(struct arena *arena, void *host)
{
    struct host child = *(struct host *)host;
    child.producer = accumulator_opened(arena);
    EXPECT_STATUS(append_batch(&child, LIVE), STATUS_OK);
}

TEST_WITH(host, sharing_host_begin, an_opener_that_dies_before_it_counted_is_counted_with_its_repair)
{
    EXPECT(child_was_killed(child_started(host->file, run_append, host, "slot_opened", SIGKILL)));
    EXPECT_EQ_U64(held(host, LIVE), 0);
    sender_maintain(host->sender->sender, NULL); /* this call repairs */
    EXPECT_EQ_U64(held(host, LIVE), 1);
    name_time(host, arena_now_ns(host->arena) + NS_PER_S); /* the wait for its first record is over */
}

static void open_one(void *host)
{
    EXPECT_STATUS(append_batch(host, LIVE), STATUS_OK);
}

TEST_WITH(host, sharing_host_begin, a_recount_is_repeated_while_topics_open_batches)
{
    EXPECT_STATUS(append_batch(host, STUCK), STATUS_OK);
    interrupt_at("holdings_counted", 0, open_one, host);
    topic_limits_recount(host->sender->sender);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(held(host, LIVE), 1);
    EXPECT_EQ_U64(held(host, STUCK), 1);
}

static void die_as_sender(struct arena *arena, void *host)
{
    struct host child = *(struct host *)host;
    child.sender = sender_opened(arena);
    deliver_some(&child, 1);
}

TEST_WITH(host, sharing_host_begin, a_sender_that_dies_before_it_freed_a_slot_leaves_true_sums)
{
    accumulator_drop_sender(host->sender);
    EXPECT_STATUS(append_batch(host, LIVE), STATUS_OK);
    EXPECT(child_was_killed(child_started(host->file, die_as_sender, host, "slot_released", SIGKILL)));
    struct error error = {0};
    EXPECT_EQ_U64(held(host, LIVE), 0);
    EXPECT_STATUS(accumulator_become_sender(host->sender, &error), STATUS_OK);
    EXPECT_EQ_U64(held(host, LIVE), 1); /* the slot is DONE, and is freed again */
    sender_maintain(host->sender->sender, NULL);
    EXPECT_EQ_U64(held(host, LIVE), 0);
    EXPECT_STATUS(append_batch(host, LIVE), STATUS_OK);
    EXPECT_EQ_U64(held(host, LIVE), 1);
}

/* ---- parked waiters ---- */

static struct buffer_wait parked_begun(struct host *host, uint32_t partition_index)
{
    struct buffer_wait wait = {0};
    EXPECT_STATUS(buffer_pool_enqueue(host->arena, partition_index, 1, &wait, NULL), STATUS_OK);
    EXPECT(buffer_pool_is_parked(host->arena, &wait));
    EXPECT_STATUS(buffer_pool_poll(host->arena, &wait), STATUS_EXHAUSTED);
    return wait;
}

static void take_and_give_back(struct host *host, const struct buffer_wait *wait)
{
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_take(host->arena, wait, &slot_index), STATUS_OK);
    buffer_pool_return(host->arena, &slot_index, 1, NULL);
}

TEST_WITH(host, host_begin, a_parked_waiter_delays_no_other)
{
    mark_stuck(host, true);
    EXPECT_EQ_U64(append_batches(host, STUCK), SLOTS / 2);
    struct buffer_wait wait = parked_begun(host, STUCK);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->globals->waiting_count), 0);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->globals->parked_count), 1);
    EXPECT_STATUS(append_batch(host, LIVE), STATUS_OK);
    buffer_pool_wait_on(host->arena, &wait, NULL);
    EXPECT(buffer_pool_is_parked(host->arena, &wait));
    mark_stuck(host, false);
    EXPECT(buffer_pool_is_parked(host->arena, &wait)); /* only its owner ends that */
    buffer_pool_wait_on(host->arena, &wait, NULL);
    EXPECT_STATUS(buffer_pool_poll(host->arena, &wait), STATUS_OK);
    take_and_give_back(host, &wait);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->globals->parked_count), 0);
}

TEST_WITH(host, sharing_host_begin, the_sender_posts_as_many_parked_waiters_as_now_fit)
{
    struct wake_set wakes = {0};
    EXPECT_EQ_U64(append_batches(host, LIVE), 11);
    struct buffer_wait first = parked_begun(host, LIVE);
    struct buffer_wait second = parked_begun(host, LIVE);
    struct buffer_wait third = parked_begun(host, LIVE);
    uint32_t slot_index;
    uint32_t posted_end = 0;
    parked_waiters_post(host->sending, &posted_end, &wakes);
    EXPECT_EQ_U64(wakes.count, 0);
    deliver_some(host, 2); /* 9 are held, 7 are free: 10 <= 2 * 7, then 11 <= 2 * 6, then 12 > 2 * 5 */
    parked_waiters_post(host->sending, &posted_end, &wakes);
    EXPECT_EQ_U64(wakes.bits[0], UINT64_C(1) << first.waiter_index | UINT64_C(1) << second.waiter_index);
    wakes = (struct wake_set){0};
    parked_waiters_post(host->sending, &posted_end, &wakes); /* waiters after the last one come first */
    EXPECT_EQ_U64(wakes.bits[0], UINT64_C(1) << third.waiter_index | UINT64_C(1) << first.waiter_index);
    buffer_pool_wait_on(host->arena, &first, NULL);
    take_and_give_back(host, &first);
    EXPECT_STATUS(buffer_pool_leave(host->arena, &second, &slot_index, NULL), STATUS_EXHAUSTED);
    EXPECT_STATUS(buffer_pool_leave(host->arena, &third, &slot_index, NULL), STATUS_EXHAUSTED);
}

TEST_WITH(host, sharing_host_begin, a_topic_with_a_parked_waiter_lingers_no_longer)
{
    struct ready_options ready = {.now_ns = arena_now_ns(host->arena), .linger_ns = 1000 * NS_PER_S};
    uint32_t partitions[4];
    uint64_t next_check_ns;
    EXPECT_STATUS(append_number(host->producer, STUCK, 1), STATUS_OK);
    EXPECT_STATUS(append_number(host->producer, LIVE, 1), STATUS_OK);
    EXPECT_EQ_U64(sender_ready(host->sender->sender, &ready, partitions, COUNT_OF(partitions), &next_check_ns), 0);
    uint32_t taken[SLOTS - 3];
    for (uint32_t i = 0; i < COUNT_OF(taken); i++) {
        EXPECT_STATUS(buffer_pool_try_allocate(host->arena, &taken[i]), STATUS_OK);
    }
    struct buffer_wait wait = parked_begun(host, LIVE);
    EXPECT_EQ_U64(sender_ready(host->sender->sender, &ready, partitions, COUNT_OF(partitions), &next_check_ns), 1);
    EXPECT_EQ_U64(partitions[0], LIVE);
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_leave(host->arena, &wait, &slot_index, NULL), STATUS_EXHAUSTED);
    buffer_pool_return(host->arena, taken, COUNT_OF(taken), NULL);
}

/* ---- revoked grants ---- */

struct crowd {
    struct host host;
    struct buffer_wait stopped;
    struct buffer_wait waiting;
    uint32_t slots[SLOTS];
};

/* Begins with a waiter that does not take its granted slot, and with another waiter. */
static struct crowd crowd_begun(uint32_t need)
{
    struct crowd crowd;
    struct host *host = &crowd.host;
    host_begin(host);
    name_time(host, 100 * NS_PER_S);
    for (uint32_t i = 0; i < SLOTS; i++) {
        EXPECT_STATUS(buffer_pool_try_allocate(host->arena, &crowd.slots[i]), STATUS_OK);
    }
    EXPECT_STATUS(buffer_pool_enqueue(host->arena, LIVE, need, &crowd.stopped, NULL), STATUS_OK);
    EXPECT_STATUS(buffer_pool_enqueue(host->sending, LIVE, 1, &crowd.waiting, NULL), STATUS_OK);
    buffer_pool_return(host->arena, &crowd.slots[0], 1, NULL);
    EXPECT_EQ_U64(slots_in_state(host->arena, SLOT_GRANT), 1);
    return crowd;
}

static void crowd_ended(struct crowd *crowd)
{
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_take(crowd->host.sending, &crowd->waiting, &slot_index), STATUS_OK);
    buffer_pool_return(crowd->host.sending, &slot_index, 1, NULL);
    buffer_pool_return(crowd->host.arena, crowd->slots + 1, SLOTS - 1, NULL);
    buffer_pool_wait_on(crowd->host.arena, &crowd->stopped, NULL);
    uint32_t slots[SLOTS];
    EXPECT_STATUS(buffer_pool_take(crowd->host.arena, &crowd->stopped, slots), STATUS_OK);
    buffer_pool_return(crowd->host.arena, slots, crowd->stopped.need, NULL);
    host_end(&crowd->host);
}

TEST(a_grant_that_is_not_taken_goes_to_another_waiter_after_two_slices)
{
    struct crowd crowd = crowd_begun(1);
    struct host *host = &crowd.host;
    name_time(host, 100 * NS_PER_S + 2 * WAITER_SLICE_NS);
    buffer_pool_wait_on(host->sending, &crowd.waiting, NULL);
    EXPECT_STATUS(buffer_pool_poll(host->arena, &crowd.stopped), STATUS_OK);
    name_time(host, 100 * NS_PER_S + 2 * WAITER_SLICE_NS + 1);
    buffer_pool_wait_on(host->sending, &crowd.waiting, NULL);
    EXPECT_STATUS(buffer_pool_poll(host->sending, &crowd.waiting), STATUS_OK);
    EXPECT(buffer_pool_is_parked(host->arena, &crowd.stopped));
    EXPECT_EQ_U64(counter_value(host->arena, COUNTER_GRANTS_REVOKED), 1);
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_take(host->arena, &crowd.stopped, &slot_index), STATUS_EXHAUSTED);
    crowd_ended(&crowd);
}

TEST(a_chain_that_gathers_keeps_its_grants_for_a_second_and_for_longer_while_its_process_runs)
{
    struct crowd crowd = crowd_begun(2);
    struct host *host = &crowd.host;
    name_time(host, 101 * NS_PER_S);
    buffer_pool_wait_on(host->arena, &crowd.stopped, NULL); /* the process still runs */
    name_time(host, 102 * NS_PER_S);
    buffer_pool_wait_on(host->sending, &crowd.waiting, NULL);
    EXPECT_EQ_U64(counter_value(host->arena, COUNTER_GRANTS_REVOKED), 0);
    name_time(host, 102 * NS_PER_S + 1);
    buffer_pool_wait_on(host->sending, &crowd.waiting, NULL);
    EXPECT_EQ_U64(counter_value(host->arena, COUNTER_GRANTS_REVOKED), 1);
    EXPECT_EQ_U64(load_relaxed_u64(&host->arena->globals->oversized_bytes), 0);
    crowd_ended(&crowd);
}

TEST(a_grant_is_not_revoked_while_no_other_process_waits)
{
    struct crowd crowd = crowd_begun(1);
    struct host *host = &crowd.host;
    uint32_t slot_index;
    name_time(host, 200 * NS_PER_S);
    EXPECT_STATUS(buffer_pool_leave(host->sending, &crowd.waiting, &slot_index, NULL), STATUS_EXHAUSTED);
    buffer_pool_help(host->sending, NULL);
    EXPECT_STATUS(buffer_pool_poll(host->arena, &crowd.stopped), STATUS_OK);
    EXPECT_STATUS(buffer_pool_take(host->arena, &crowd.stopped, &slot_index), STATUS_OK);
    buffer_pool_return(host->arena, &slot_index, 1, NULL);
    buffer_pool_return(host->arena, crowd.slots + 1, SLOTS - 1, NULL);
    host_end(host);
}

static void run_help(struct arena *arena, void *now_ns)
{
    arena->clock = (struct clock){.is_manual = true, .manual_ns = *(uint64_t *)now_ns};
    buffer_pool_help(arena, NULL);
}

TEST(a_helper_that_dies_while_it_revokes_leaves_nothing)
{
    static const char *const points[] = {"grant_revoked", "slot_scrubbed", "slot_freed", "slot_granted"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        struct crowd crowd = crowd_begun(1);
        struct host *host = &crowd.host;
        uint64_t now_ns = 101 * NS_PER_S;
        EXPECT(child_was_killed(child_started(host->file, run_help, &now_ns, points[i], SIGKILL)));
        name_time(host, now_ns);
        EXPECT(buffer_pool_is_parked(host->arena, &crowd.stopped));
        buffer_pool_wait_on(host->sending, &crowd.waiting, NULL);
        EXPECT_STATUS(buffer_pool_poll(host->sending, &crowd.waiting), STATUS_OK);
        crowd_ended(&crowd);
    }
}

static void revoke_grant(void *crowd)
{
    struct crowd *of = crowd;
    name_time(&of->host, 101 * NS_PER_S);
    buffer_pool_wait_on(of->host.sending, &of->waiting, NULL);
}

TEST(a_process_stopped_between_the_check_and_the_take_continues_to_wait)
{
    struct crowd crowd = crowd_begun(1);
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_poll(crowd.host.arena, &crowd.stopped), STATUS_OK);
    revoke_grant(&crowd);
    EXPECT_STATUS(buffer_pool_take(crowd.host.arena, &crowd.stopped, &slot_index), STATUS_EXHAUSTED);
    EXPECT_STATUS(buffer_pool_leave(crowd.host.arena, &crowd.stopped, &slot_index, NULL), STATUS_EXHAUSTED);
    EXPECT_STATUS(buffer_pool_enqueue(crowd.host.arena, LIVE, 1, &crowd.stopped, NULL), STATUS_OK);
    crowd_ended(&crowd);
}

RUN_ALL()
