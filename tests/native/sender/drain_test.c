/* SPDX-License-Identifier: Apache-2.0 */
#include "core/accumulator.h"

#include "arena/attach.h"
#include "arena/batch_seal.h"
#include "arena/producer_id.h"
#include "core/delivery_fixture.h"

enum { BATCH_SIZE = 512 };

/* A producer and a sender with separate handles, and a manual clock. */
struct sending {
    struct arena *arena;
    struct arena *producing;
    struct accumulator *producer;
    struct accumulator *sender;
    int file;
};

static void sending_begin(struct sending *sending)
{
    *sending = (struct sending){.file = arena_file_new()};
    sending->arena = arena_created(sending->file, geometry_of(16, BATCH_SIZE));
    sending->producing = arena_attached(sending->file);
    sending->producing->clock = (struct clock){.is_manual = true, .manual_ns = 1000};
    sending->arena->clock = sending->producing->clock;
    sending->producer = accumulator_opened(sending->producing);
    sending->sender = sender_opened(sending->arena);
}

static void sending_end(struct sending *sending)
{
    struct ledger ledger = {0};
    deliver_everything(sending->sender, &ledger);
    accumulator_close(sending->sender);
    accumulator_close(sending->producer);
    arena_detach(sending->producing);
    expect_all_free(sending->arena);
    arena_end(sending->arena, sending->file);
}

static uint32_t ready_at(struct sending *sending, uint64_t now_ns, uint64_t linger_ns, uint32_t *partitions,
                         uint64_t *next_check_ns)
{
    const struct ready_options options = {.now_ns = now_ns, .linger_ns = linger_ns};
    return sender_ready(sending->sender->sender, &options, partitions, 8, next_check_ns);
}

static uint32_t drain(struct sending *sending, const uint32_t *partitions, uint32_t count,
                      struct drained_batch *batches)
{
    const struct drain_options options = {.now_ns = 1000, .size_max = UINT32_MAX, .in_flight_max = 5};
    uint32_t seen;
    uint32_t drained = sender_drain(sending->sender->sender, &options, partitions, count, batches, &seen);
    EXPECT_EQ_U64(seen, count);
    return drained;
}

/* Scan the ready hints, then drain partition 0 if it has a ready batch. */
static bool drain_first_partition(struct sending *sending, struct drained_batch *batch)
{
    static const uint32_t partition = 0;
    uint32_t partitions[8];
    uint64_t next_check_ns;
    (void)ready_at(sending, 1000, 0, partitions, &next_check_ns);
    return drain(sending, &partition, 1, batch) == 1;
}

static void fill_batch(struct sending *sending, uint32_t partition_index)
{
    static const uint8_t value[BATCH_SIZE];
    EXPECT_STATUS(append_value(sending->producer, partition_index, value, value_size_for(BATCH_SIZE - RECORDS_START)),
                  STATUS_OK);
}

static void complete(struct sending *sending, const struct drained_batch *batch)
{
    EXPECT_STATUS(accumulator_complete(sending->sender, batch->slot_index, batch->seq, &success, NULL), STATUS_OK);
}

static struct record_batch_header header_of(const struct sending *sending, const struct drained_batch *batch)
{
    struct record_batch_header header = {0};
    EXPECT_STATUS(record_batch_header_read(arena_slot_data(sending->arena, batch->slot_index), batch->size, &header),
                  STATUS_OK);
    return header;
}

/* ---- ready ---- */

TEST_WITH(sending, sending_begin, an_idle_arena_has_nothing_to_wait_for)
{
    uint32_t partitions[8];
    uint64_t next_check_ns = 0;
    EXPECT_EQ_U64(ready_at(sending, 1000, 5, partitions, &next_check_ns), 0);
    EXPECT_EQ_U64(next_check_ns, UINT64_MAX);
}

TEST_WITH(sending, sending_begin, a_batch_is_ready_when_it_has_lingered)
{
    uint32_t partitions[8];
    uint64_t next_check_ns = 0;
    EXPECT_STATUS(append_number(sending->producer, 3, 0), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 1000, 500, partitions, &next_check_ns), 0);
    EXPECT_EQ_U64(next_check_ns, 500);
    EXPECT_EQ_U64(ready_at(sending, 1499, 500, partitions, &next_check_ns), 0);
    EXPECT_EQ_U64(next_check_ns, 1);
    EXPECT_EQ_U64(ready_at(sending, 1500, 500, partitions, &next_check_ns), 1);
    EXPECT_EQ_U64(partitions[0], 3);
    EXPECT_EQ_U64(next_check_ns, UINT64_MAX); /* a ready batch need not wait */
    EXPECT_EQ_U64(ready_at(sending, 0, 500, partitions, &next_check_ns), 0); /* this time is before the append */
    EXPECT_EQ_U64(ready_at(sending, 1000, UINT64_MAX, partitions, &next_check_ns), 0); /* must not overflow */
}

/* The sender reads its clock before it scans. */
TEST_WITH(sending, sending_begin, a_batch_that_was_opened_after_the_clock_was_read_lingers_no_longer)
{
    uint32_t partitions[8];
    uint64_t next_check_ns = 0;
    EXPECT_STATUS(append_number(sending->producer, 3, 0), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 900, 500, partitions, &next_check_ns), 0);
    EXPECT_EQ_U64(next_check_ns, 500);
    EXPECT_EQ_U64(ready_at(sending, 900, 0, partitions, &next_check_ns), 1);
    EXPECT_EQ_U64(ready_at(sending, 1500, 500, partitions, &next_check_ns), 1);
}

TEST_WITH(sending, sending_begin, an_opener_determines_how_long_a_batch_lingers)
{
    uint32_t partitions[8];
    uint64_t next_check_ns = 0;
    sending->producer->appender->linger = 100 + 1;
    EXPECT_STATUS(append_number(sending->producer, 3, 0), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 1000, 500, partitions, &next_check_ns), 0);
    EXPECT_EQ_U64(next_check_ns, 100);
    EXPECT_EQ_U64(ready_at(sending, 1100, UINT64_MAX, partitions, &next_check_ns), 1);
    sending->producer->appender->linger = 0 + 1;
    EXPECT_STATUS(append_number(sending->producer, 4, 1), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 1000, 500, partitions, &next_check_ns), 1);
    EXPECT_EQ_U64(partitions[0], 4);
    sending->producer->appender->linger = 0; /* the producer sets no linger */
    EXPECT_STATUS(append_number(sending->producer, 5, 2), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 1000, 500, partitions, &next_check_ns), 1);
    EXPECT_EQ_U64(ready_at(sending, 1500, 500, partitions, &next_check_ns), 3);
}

TEST_WITH(sending, sending_begin, a_full_batch_is_ready_before_it_has_lingered)
{
    uint32_t partitions[8];
    uint64_t next_check_ns;
    fill_batch(sending, 0);
    EXPECT_EQ_U64(ready_at(sending, 1000, UINT64_MAX, partitions, &next_check_ns), 0); /* it is full, without a hint */
    EXPECT_STATUS(append_number(sending->producer, 0, 0), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 1000, UINT64_MAX, partitions, &next_check_ns), 1);
}

TEST_WITH(sending, sending_begin, lingering_ends_for_everybody_when_the_pool_is_exhausted_or_all_is_wanted)
{
    uint32_t partitions[8];
    uint64_t next_check_ns;
    EXPECT_STATUS(append_number(sending->producer, 0, 0), STATUS_OK);
    EXPECT_STATUS(append_number(sending->producer, 1, 1), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 1000, UINT64_MAX, partitions, &next_check_ns), 0);
    store_relaxed_u32(&sending->arena->globals->waiting_count, 1);
    EXPECT_EQ_U64(ready_at(sending, 1000, UINT64_MAX, partitions, &next_check_ns), 2);
    store_relaxed_u32(&sending->arena->globals->waiting_count, 0);
    const struct ready_options everything = {
        .now_ns = 1000, .linger_ns = UINT64_MAX, .is_everything_ready = true};
    EXPECT_EQ_U64(sender_ready(sending->sender->sender, &everything, partitions, 8, &next_check_ns), 2);
    EXPECT_EQ_U64(sender_ready(sending->sender->sender, &everything, partitions, 1, &next_check_ns), 1);
}

TEST_WITH(sending, sending_begin, ready_partitions_come_in_the_order_in_which_they_were_found)
{
    static const uint32_t order[] = {1, 3, 5, 0};
    uint32_t partitions[8];
    uint64_t next_check_ns;
    for (size_t i = 0; i < 3; i++) {
        EXPECT_STATUS(append_number(sending->producer, order[i], 0), STATUS_OK);
    }
    EXPECT_EQ_U64(ready_at(sending, 1000, 0, partitions, &next_check_ns), 3);
    EXPECT_STATUS(append_number(sending->producer, order[3], 0), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 1000, 0, partitions, &next_check_ns), 4);
    EXPECT(memcmp(partitions, order, sizeof order) == 0);
}

TEST_WITH(sending, sending_begin, a_muted_partition_is_neither_ready_nor_drained)
{
    uint32_t partitions[8];
    uint64_t next_check_ns;
    struct drained_batch batch;
    EXPECT_STATUS(append_number(sending->producer, 0, 0), STATUS_OK);
    sender_mute(sending->sender->sender, 0, true);
    sender_mute(sending->sender->sender, UINT32_MAX, true); /* no such partition: nothing happens */
    EXPECT_EQ_U64(ready_at(sending, 5000, 0, partitions, &next_check_ns), 0);
    EXPECT_EQ_U64(next_check_ns, UINT64_MAX);
    EXPECT(!drain_first_partition(sending, &batch));
    sender_mute(sending->sender->sender, 0, false);
    EXPECT(drain_first_partition(sending, &batch));
    complete(sending, &batch);
}

TEST_WITH(sending, sending_begin, a_requeued_batch_waits_for_its_time)
{
    static const uint32_t partition = 0;
    uint32_t partitions[8];
    uint64_t next_check_ns;
    struct drained_batch batch;
    EXPECT_STATUS(append_number(sending->producer, 0, 0), STATUS_OK);
    EXPECT(drain_first_partition(sending, &batch));
    EXPECT_STATUS(accumulator_requeue(sending->sender, batch.slot_index, batch.seq, 3000), STATUS_OK);
    EXPECT_EQ_U64(ready_at(sending, 1000, 0, partitions, &next_check_ns), 0);
    EXPECT_EQ_U64(next_check_ns, 2000);
    EXPECT_EQ_U64(drain(sending, &partition, 1, &batch), 0);
    EXPECT_EQ_U64(ready_at(sending, 3000, 0, partitions, &next_check_ns), 1);
    EXPECT_STATUS(accumulator_requeue(sending->sender, batch.slot_index, batch.seq, 0), STATUS_STALE);
    sending->arena->clock.manual_ns = 3000;
}

/* ---- a batch that awaits its first record ---- */

enum { CREATED_NS = 1000 };

/* The calls of a sender while another process is at a point of its append, and the expected results. */
struct look {
    struct sending *sending;
    uint64_t now_ns;
    uint64_t next_check_ns;
    uint32_t ready_count;
    uint32_t drained_count;
    struct drained_batch batch;
    enum slot_state state_after; /* of the first slot */
};

static void sender_comes_by(void *argument)
{
    struct look *look = argument;
    static const uint32_t partition = 0;
    uint32_t partitions[8], seen;
    const struct ready_options ready = {.now_ns = look->now_ns, .is_everything_ready = true};
    const struct drain_options drain = {.now_ns = look->now_ns, .size_max = UINT32_MAX, .in_flight_max = 5};
    look->ready_count = sender_ready(look->sending->sender->sender, &ready, partitions, 8, &look->next_check_ns);
    look->drained_count =
        sender_drain(look->sending->sender->sender, &drain, &partition, 1, &look->batch, &seen);
    look->state_after = slot_state_at(look->sending->arena, 0);
}

static struct look looked_at(const char *point, struct sending *sending, uint64_t now_ns)
{
    struct look look = {.sending = sending, .now_ns = now_ns};
    interrupt_at(point, 0, sender_comes_by, &look);
    EXPECT_STATUS(append_number(sending->producer, 0, 7), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(look.drained_count, 0);
    return look;
}

static const char *const first_record_points[] = {"slot_opened", "record_claimed"};

static void expect_left_alone(uint64_t created_ns, uint64_t now_ns)
{
    for (uint32_t i = 0; i < COUNT_OF(first_record_points); i++) {
        struct sending sending;
        sending_begin(&sending);
        sending.producing->clock.manual_ns = created_ns;
        struct look look = looked_at(first_record_points[i], &sending, now_ns);
        EXPECT_EQ_U64(look.ready_count, 0);
        EXPECT_EQ_U64(look.next_check_ns, 1);
        EXPECT_EQ_U64(look.state_after, SLOT_OPEN);
        EXPECT_EQ_U64(counter_value(sending.arena, COUNTER_BATCHES_OPENED), 1);
        sending_end(&sending);
    }
}

TEST(a_batch_without_a_record_is_not_drained_for_a_while)
{
    const uint64_t patience_ns = NS_PER_MS + 4 * BATCH_SIZE;
    expect_left_alone(CREATED_NS, CREATED_NS);
    expect_left_alone(CREATED_NS, CREATED_NS + patience_ns - 1);
    expect_left_alone(CREATED_NS + patience_ns - 1, CREATED_NS); /* opened after the sender had read its clock */
}

static void expect_ended(uint64_t created_ns, uint64_t now_ns)
{
    for (uint32_t i = 0; i < COUNT_OF(first_record_points); i++) {
        struct sending sending;
        sending_begin(&sending);
        sending.producing->clock.manual_ns = created_ns;
        struct look look = looked_at(first_record_points[i], &sending, now_ns);
        EXPECT_EQ_U64(look.ready_count, 1);
        EXPECT_EQ_U64(look.state_after, SLOT_DONE);
        EXPECT_EQ_U64(counter_value(sending.arena, COUNTER_BATCHES_OPENED), 2);
        sending.arena->clock.manual_ns = created_ns;
        sending_end(&sending);
    }
}

TEST(a_batch_whose_opener_takes_too_long_is_ended)
{
    const uint64_t patience_ns = NS_PER_MS + 4 * BATCH_SIZE;
    expect_ended(CREATED_NS, CREATED_NS + patience_ns);
    expect_ended(CREATED_NS + patience_ns, CREATED_NS); /* no clock has ever shown this time */
}

static void survivor_and_sender_come_by(void *argument)
{
    struct look *look = argument;
    struct arena *survivor = arena_attached(look->sending->file);
    struct accumulator *other = accumulator_opened(survivor);
    survivor->clock = look->sending->arena->clock;
    EXPECT_STATUS(append_number(other, 0, 8), STATUS_OK);
    sender_comes_by(look);
    accumulator_close(other);
    arena_detach(survivor);
}

/* No process will append to this batch. The batch after it does not wait for another drain. */
TEST_WITH(sending, sending_begin, a_batch_whose_opener_was_passed_is_ended_at_once_and_the_next_one_goes)
{
    struct look look = {.sending = sending, .now_ns = CREATED_NS};
    interrupt_at("slot_opened", 0, survivor_and_sender_come_by, &look);
    EXPECT_STATUS(append_number(sending->producer, 0, 7), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(look.ready_count, 1);
    EXPECT_EQ_U64(look.drained_count, 1);
    EXPECT_EQ_U64(look.batch.seq, 1);
    EXPECT_EQ_U64(look.state_after, SLOT_DONE);
    complete(sending, &look.batch);
}

static void lingering_sender_comes_by(void *argument)
{
    struct look *look = argument;
    uint32_t partitions[8];
    const struct ready_options ready = {.now_ns = look->now_ns, .linger_ns = 10 * CREATED_NS, .takes_along = true};
    look->ready_count = sender_ready(look->sending->sender->sender, &ready, partitions, 8, &look->next_check_ns);
}

/* The batch lingers as long as others. It is drained with them only after its first record is committed. */
TEST_WITH(sending, sending_begin, a_batch_that_awaits_its_first_record_lingers)
{
    struct look look = {.sending = sending, .now_ns = 7 * CREATED_NS};
    sending->producer->appender->linger = 0 + 1;
    EXPECT_STATUS(append_number(sending->producer, 1, 6), STATUS_OK);
    sending->producer->appender->linger = 0;
    interrupt_at("record_claimed", 0, lingering_sender_comes_by, &look);
    EXPECT_STATUS(append_number(sending->producer, 0, 7), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(look.ready_count, 1);
    EXPECT_EQ_U64(look.next_check_ns, 4 * CREATED_NS);
    lingering_sender_comes_by(&look);
    EXPECT_EQ_U64(look.ready_count, 2);
}

enum { BROAD_BATCH_SIZE = 256 * 1024, BROAD_RECORD_COUNT = 200, BROAD_SECONDS_MAX = 10 };

static const struct clock stopped_clock = {.is_manual = true, .manual_ns = CREATED_NS};

static void append_beside_a_sender(struct arena *arena, void *unused)
{
    static uint8_t value[BROAD_BATCH_SIZE / 2];
    (void)unused;
    alarm(BROAD_SECONDS_MAX); /* if the core lost a ready hint, the producer and the sender would wait forever */
    struct accumulator *producer = accumulator_opened(arena);
    arena->clock = stopped_clock;
    for (uint64_t number = 0; number < BROAD_RECORD_COUNT; number++) {
        struct append_result result;
        memcpy(value, &number, sizeof number);
        append_waiting(producer, 0, record_of(value, sizeof value, 1000), &result);
    }
    accumulator_close(producer);
}

/* A new process is slow, because its first access to each page faults. Meanwhile, a sender scans continuously. The
 * clock does not advance. */
TEST(a_sender_that_never_waits_ends_no_batch_before_its_first_record)
{
    struct ledger *ledger = calloc(1, sizeof *ledger);
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(16, BROAD_BATCH_SIZE));
    struct accumulator *sender = sender_opened(arena);
    arena->clock = stopped_clock;
    pid_t child = child_started(file, append_beside_a_sender, NULL, NULL, 0);
    while (ledger->count < BROAD_RECORD_COUNT && !child_has_ended(child)) {
        (void)deliver_round(sender, ledger);
        sender_maintain(sender->sender, NULL);
    }
    EXPECT(child_is_content(child));
    deliver_everything(sender, ledger);
    expect_delivered_once(ledger, 0, BROAD_RECORD_COUNT);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_BATCHES_OPENED), ledger->batch_count);
    accumulator_close(sender);
    expect_all_free(arena);
    arena_end(arena, file);
    free(ledger);
}

/* ---- drain ---- */

TEST_WITH(sending, sending_begin, at_most_one_batch_of_each_partition_in_the_order_given)
{
    static const uint32_t order[] = {2, 7, 0, 99, 1};
    uint32_t partitions[8];
    uint64_t next_check_ns;
    struct drained_batch batches[5];
    for (uint32_t partition = 0; partition < 3; partition++) {
        fill_batch(sending, partition);
        fill_batch(sending, partition);
    }
    (void)ready_at(sending, 1000, 0, partitions, &next_check_ns);
    EXPECT_EQ_U64(drain(sending, order, 5, batches), 3);
    EXPECT_EQ_U64(batches[0].partition_index, 2);
    EXPECT_EQ_U64(batches[1].partition_index, 0);
    EXPECT_EQ_U64(batches[2].partition_index, 1);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ_U64(batches[i].seq, 0);
        EXPECT_EQ_U64(batches[i].attempt_count, 1);
        complete(sending, &batches[i]);
    }
}

TEST_WITH(sending, sending_begin, the_size_limit_ends_the_drain_and_returns_its_progress)
{
    static const uint32_t order[] = {0, 1, 2};
    uint32_t partitions[8];
    uint64_t next_check_ns;
    struct drained_batch batches[3];
    uint32_t seen;
    for (uint32_t partition = 0; partition < 3; partition++) {
        fill_batch(sending, partition);
    }
    (void)ready_at(sending, 1000, 0, partitions, &next_check_ns);
    struct drain_options options = {.now_ns = 1000, .size_max = 1, .in_flight_max = 1};
    EXPECT_EQ_U64(sender_drain(sending->sender->sender, &options, order, 3, batches, &seen), 1); /* of any size */
    EXPECT_EQ_U64(seen, 1);
    options.size_max = 2 * BATCH_SIZE - 1;
    /* it is the turn of the next partition */
    EXPECT_EQ_U64(sender_drain(sending->sender->sender, &options, order, 3, batches + 1, &seen), 1);
    EXPECT_EQ_U64(batches[1].partition_index, 1);
    EXPECT_EQ_U64(seen, 2);
    options.size_max = 2 * BATCH_SIZE;
    EXPECT_EQ_U64(sender_drain(sending->sender->sender, &options, order, 3, batches + 2, &seen), 1);
    EXPECT_EQ_U64(batches[2].partition_index, 2);
    EXPECT_EQ_U64(seen, 3);
    for (int i = 0; i < 3; i++) {
        complete(sending, &batches[i]);
    }
}

TEST_WITH(sending, sending_begin, only_so_many_batches_of_a_partition_are_in_flight)
{
    struct drained_batch batches[8];
    for (int i = 0; i < 6; i++) {
        fill_batch(sending, 0);
    }
    for (uint32_t i = 0; i < 5; i++) {
        EXPECT(drain_first_partition(sending, &batches[i]));
        EXPECT_EQ_U64(batches[i].seq, i);
    }
    EXPECT(!drain_first_partition(sending, &batches[5]));
    complete(sending, &batches[2]);
    EXPECT(drain_first_partition(sending, &batches[2]));
    EXPECT_EQ_U64(batches[2].seq, 5);
    for (int i = 0; i < 5; i++) {
        complete(sending, &batches[i]);
    }
}

TEST_WITH(sending, sending_begin, a_requeued_batch_comes_before_younger_ones)
{
    struct drained_batch batches[3];
    for (int i = 0; i < 3; i++) {
        fill_batch(sending, 0);
    }
    EXPECT(drain_first_partition(sending, &batches[0]));
    EXPECT(drain_first_partition(sending, &batches[1]));
    EXPECT_STATUS(accumulator_requeue(sending->sender, batches[1].slot_index, batches[1].seq, 0), STATUS_OK);
    EXPECT_STATUS(accumulator_requeue(sending->sender, batches[0].slot_index, batches[0].seq, 0), STATUS_OK);
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT(drain_first_partition(sending, &batches[i]));
        EXPECT_EQ_U64(batches[i].seq, i);
        EXPECT_EQ_U64(batches[i].attempt_count, i < 2 ? 2 : 1);
        EXPECT(i == 2 || !drain_first_partition(sending, &batches[i + 1])); /* no batch follows a retry */
        complete(sending, &batches[i]);
    }
}

TEST_WITH(sending, sending_begin, the_oldest_batch_is_sent_again_while_younger_ones_are_in_flight)
{
    struct drained_batch batches[4];
    for (int i = 0; i < 4; i++) {
        fill_batch(sending, 0);
    }
    for (int i = 0; i < 3; i++) {
        EXPECT(drain_first_partition(sending, &batches[i]));
    }
    EXPECT_STATUS(accumulator_requeue(sending->sender, batches[1].slot_index, batches[1].seq, 0), STATUS_OK);
    EXPECT(!drain_first_partition(sending, &batches[3])); /* the second batch is not the oldest one */
    EXPECT_STATUS(accumulator_requeue(sending->sender, batches[0].slot_index, batches[0].seq, 0), STATUS_OK);
    EXPECT(drain_first_partition(sending, &batches[0]));
    EXPECT_EQ_U64(batches[0].seq, 0);
    complete(sending, &batches[2]);
    EXPECT(!drain_first_partition(sending, &batches[3])); /* the retry is still in flight */
    complete(sending, &batches[0]);
    EXPECT(drain_first_partition(sending, &batches[1]));
    EXPECT_EQ_U64(batches[1].seq, 1);
    complete(sending, &batches[1]);
}

TEST_WITH(sending, sending_begin, a_partition_that_occurs_twice_gives_its_next_sealed_batch)
{
    static const uint32_t order[] = {0, 0, 0, 0};
    uint32_t partitions[8];
    uint64_t next_check_ns;
    struct drained_batch batches[4];
    fill_batch(sending, 0);
    fill_batch(sending, 0);
    EXPECT_STATUS(append_number(sending->producer, 0, 0), STATUS_OK); /* this append begins a third batch */
    (void)ready_at(sending, 1000, 0, partitions, &next_check_ns);
    EXPECT_EQ_U64(drain(sending, order, 4, batches), 2);
    EXPECT_EQ_U64(batches[1].seq, 1);
    EXPECT_EQ_U64(drain(sending, order, 4, batches + 2), 1); /* drained for the first time */
    EXPECT_EQ_U64(batches[2].seq, 2);
    for (int i = 0; i < 3; i++) {
        complete(sending, &batches[i]);
    }
}

TEST_WITH(sending, sending_begin, a_drain_that_continues_cuts_no_batch_short)
{
    static const uint32_t partition = 0;
    struct drain_options options = {.now_ns = 1000, .size_max = UINT32_MAX, .in_flight_max = 1};
    uint32_t partitions[8];
    uint64_t next_check_ns;
    struct drained_batch batch;
    uint32_t seen;
    fill_batch(sending, 0);
    fill_batch(sending, 0);
    EXPECT_STATUS(append_number(sending->producer, 0, 0), STATUS_OK); /* this append begins a third batch */
    (void)ready_at(sending, 1000, 0, partitions, &next_check_ns);
    for (uint64_t seq = 0; seq < 2; seq++) {
        EXPECT_EQ_U64(sender_drain(sending->sender->sender, &options, &partition, 1, &batch, &seen), 1);
        EXPECT_EQ_U64(batch.seq, seq);
        complete(sending, &batch);
        options.continues_last = true;
    }
    EXPECT_EQ_U64(sender_drain(sending->sender->sender, &options, &partition, 1, &batch, &seen), 0);
    options.continues_last = false;
    EXPECT_EQ_U64(sender_drain(sending->sender->sender, &options, &partition, 1, &batch, &seen), 1);
    complete(sending, &batch);
}

TEST_WITH(sending, sending_begin, a_partition_with_enough_in_flight_is_not_ready)
{
    const struct ready_options limited = {.now_ns = 1000, .in_flight_max = 1};
    uint32_t partitions[8];
    uint64_t next_check_ns;
    struct drained_batch batch;
    fill_batch(sending, 0);
    fill_batch(sending, 0);
    EXPECT_EQ_U64(sender_ready(sending->sender->sender, &limited, partitions, 8, &next_check_ns), 1);
    EXPECT(drain_first_partition(sending, &batch));
    EXPECT_EQ_U64(sender_ready(sending->sender->sender, &limited, partitions, 8, &next_check_ns), 0);
    EXPECT_EQ_U64(next_check_ns, UINT64_MAX); /* an ack, not time, makes it ready */
    complete(sending, &batch);
}

/* ---- the header ---- */

/* The header of a batch with one record {value "v", timestamp 1000}, sent by producer 0x0102030405060708, epoch 9. Byte
 * for byte, but for the checksum, which is computed over the bytes that follow it. */
static const uint8_t golden_header[RECORDS_START] = {
    0, 0, 0, 0, 0, 0, 0, 0,                         /* base offset */
    0, 0, 0, 57,                                    /* batch length: 69 - 12 */
    0xff, 0xff, 0xff, 0xff,                         /* leader epoch */
    2,                                              /* magic */
    0, 0, 0, 0,                                     /* crc */
    0, 0,                                           /* attributes */
    0, 0, 0, 0,                                     /* last offset delta */
    0, 0, 0, 0, 0, 0, 0x03, 0xe8,                   /* base timestamp */
    0, 0, 0, 0, 0, 0, 0x03, 0xe8,                   /* max timestamp */
    1, 2, 3, 4, 5, 6, 7, 8,                         /* producer id */
    0, 9,                                           /* producer epoch */
    0, 0, 0, 0,                                     /* base sequence */
    0, 0, 0, 1,                                     /* record count */
};

TEST_WITH(sending, sending_begin, the_header_is_kafka_s_to_the_byte)
{
    struct drained_batch batch;
    struct error error = {0};
    uint8_t header[RECORDS_START];
    accumulator_set_producer_id(sending->sender, INT64_C(0x0102030405060708), 9);
    EXPECT_STATUS(append_value(sending->producer, 0, "v", 1), STATUS_OK);
    EXPECT(drain_first_partition(sending, &batch));
    const uint8_t *bytes = arena_slot_data(sending->arena, batch.slot_index);
    EXPECT_EQ_U64(batch.size, 69);
    EXPECT_STATUS(record_batch_validate(bytes, batch.size, &error), STATUS_OK);
    memcpy(header, bytes, sizeof header);
    memset(header + RECORD_BATCH_CRC, 0, 4);
    EXPECT(memcmp(header, golden_header, sizeof header) == 0);
    EXPECT_EQ_U64(batch.crc, crc32c_extend(0, bytes + RECORD_BATCH_ATTRIBUTES, batch.size - RECORD_BATCH_ATTRIBUTES));
    EXPECT_EQ_U64(header_of(sending, &batch).crc, batch.crc);
    complete(sending, &batch);
}

TEST_WITH(sending, sending_begin, without_a_producer_id_there_are_no_sequences)
{
    struct drained_batch batch;
    EXPECT_STATUS(append_number(sending->producer, 0, 0), STATUS_OK);
    EXPECT(drain_first_partition(sending, &batch));
    struct record_batch_header header = header_of(sending, &batch);
    EXPECT(header.producer_id == -1 && header.producer_epoch == -1 && header.base_sequence == -1);
    EXPECT(batch.producer_id == -1 && batch.producer_epoch == -1 && batch.base_sequence == -1);
    complete(sending, &batch);
}

TEST_WITH(sending, sending_begin, timestamps_of_the_header_are_the_first_and_the_largest)
{
    static const int64_t timestamps[] = {5000, 9000, 100};
    struct drained_batch batch;
    struct append_result result;
    for (uint32_t i = 0; i < COUNT_OF(timestamps); i++) {
        EXPECT_STATUS(append_record(sending->producer, 0, record_of("v", 1, timestamps[i]), &result), STATUS_OK);
    }
    EXPECT(drain_first_partition(sending, &batch));
    struct record_batch_header header = header_of(sending, &batch);
    EXPECT(header.base_timestamp == 5000 && header.max_timestamp == 9000);
    EXPECT(batch.base_timestamp_ms == 5000 && batch.max_timestamp_ms == 9000);
    EXPECT_EQ_U64(batch.created_ns, 1000);
    complete(sending, &batch);
}

/* ---- sequences ---- */

static int32_t sequence_of_next(struct sending *sending, uint32_t record_count)
{
    struct drained_batch batch = {.base_sequence = -2};
    for (uint32_t i = 0; i < record_count; i++) {
        EXPECT_STATUS(append_number(sending->producer, 0, i), STATUS_OK);
    }
    EXPECT(drain_first_partition(sending, &batch));
    EXPECT_EQ_U64(batch.record_count, record_count);
    complete(sending, &batch);
    return batch.base_sequence;
}

TEST_WITH(sending, sending_begin, sequences_count_records_and_wrap_after_the_largest)
{
    accumulator_set_producer_id(sending->sender, 7, 0);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 3), 0);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 2), 3);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 1), 5);
    store_relaxed_u32(&sending->arena->partitions[0].next_base_sequence, INT32_MAX - 1);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 4), INT32_MAX - 1);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 1), 2); /* MAX - 1, MAX, 0, 1 */
    store_relaxed_u32(&sending->arena->partitions[0].next_base_sequence, INT32_MAX);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 1), INT32_MAX);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 1), 0);
}

TEST_WITH(sending, sending_begin, sequences_of_a_new_epoch_begin_at_0_and_an_old_batch_keeps_its_sequence)
{
    struct drained_batch batch;
    struct drained_batch again;
    accumulator_set_producer_id(sending->sender, 7, 0);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 3), 0);
    EXPECT_STATUS(append_number(sending->producer, 0, 0), STATUS_OK);
    EXPECT(drain_first_partition(sending, &batch));
    EXPECT_STATUS(accumulator_requeue(sending->sender, batch.slot_index, batch.seq, 0), STATUS_OK);
    accumulator_set_producer_id(sending->sender, 7, 1);
    EXPECT(drain_first_partition(sending, &again));
    EXPECT(again.producer_epoch == 0 && again.base_sequence == 3);
    complete(sending, &again);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 1), 0);
    accumulator_set_producer_id(sending->sender, 7, INT16_MAX);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 1), 0);
}

TEST_WITH(sending, sending_begin, a_batch_sent_again_has_the_same_bytes)
{
    struct drained_batch batch;
    struct drained_batch again;
    accumulator_set_producer_id(sending->sender, 7, 0);
    for (uint64_t number = 0; number < 5; number++) {
        EXPECT_STATUS(append_number(sending->producer, 0, number), STATUS_OK);
    }
    EXPECT(drain_first_partition(sending, &batch));
    uint8_t *before = batch_bytes(sending->arena, batch.slot_index, batch.size);
    EXPECT_STATUS(accumulator_requeue(sending->sender, batch.slot_index, batch.seq, 0), STATUS_OK);
    EXPECT_STATUS(append_number(sending->producer, 0, 5), STATUS_OK);
    EXPECT(drain_first_partition(sending, &again));
    EXPECT_EQ_U64(again.size, batch.size);
    EXPECT_EQ_U64(again.crc, batch.crc);
    EXPECT_EQ_U64(again.attempt_count, 2);
    EXPECT(memcmp(before, arena_slot_data(sending->arena, again.slot_index), again.size) == 0);
    free(before);
    complete(sending, &again);
}

/* ---- words that are input ---- */

static void expect_quarantined(uint32_t count, uint32_t size)
{
    struct sending sending;
    sending_begin(&sending);
    struct drained_batch batch;
    EXPECT_STATUS(append_number(sending.producer, 0, 0), STATUS_OK);
    uint32_t slot_index = open_word_slot(load_relaxed_u64(&sending.arena->partitions[0].open));
    uint32_t partitions[8];
    uint64_t next_check_ns;
    (void)ready_at(&sending, 1000, UINT64_MAX, partitions, &next_check_ns);
    store_release_u64(&sending.arena->slots[slot_index].word,
                      slot_word(SLOT_READY, 0, slot_payload_filled(count, size)));
    EXPECT(!drain_first_partition(&sending, &batch));
    EXPECT_EQ_U64(slot_state_at(sending.arena, slot_index), SLOT_BAD);
    EXPECT_EQ_U64(counter_value(sending.arena, COUNTER_BATCHES_QUARANTINED), 1);
    EXPECT_EQ_U64(queued_count(sending.sender), 0);
    accumulator_close(sending.sender);
    accumulator_close(sending.producer);
    arena_detach(sending.producing);
    arena_end(sending.arena, sending.file);
}

TEST(a_word_that_cannot_be_true_is_quarantined_and_not_sent)
{
    expect_quarantined(0, 76);
    expect_quarantined(1, RECORDS_START);
    expect_quarantined(1, BATCH_SIZE + 1);
    expect_quarantined(1, BATCH_SIZE_MAX);
}

/* ---- order ---- */

/* The holder of a chain was passed, and commits the chain late with an old number. The chain must not overtake a batch
 * that already has a sequence. */
static void survivor_sends_once(void *argument)
{
    struct sending *sending = argument;
    struct drained_batch batch;
    struct arena *survivor = arena_attached(sending->file);
    struct accumulator *other = accumulator_opened(survivor);
    EXPECT_STATUS(append_number(other, 0, 1), STATUS_OK);
    EXPECT(drain_first_partition(sending, &batch));
    EXPECT_EQ_U64((uint64_t)batch.base_sequence, 0);
    EXPECT_STATUS(accumulator_requeue(sending->sender, batch.slot_index, batch.seq, 0), STATUS_OK);
    accumulator_close(other);
    arena_detach(survivor);
}

TEST_WITH(sending, sending_begin, a_late_batch_does_not_overtake_one_that_has_a_sequence)
{
    static uint8_t value[2 * BATCH_SIZE];
    struct append_result result;
    struct drained_batch batches[2];
    accumulator_set_producer_id(sending->sender, 7, 0);
    interrupt_at("chain_seq_taken", 0, survivor_sends_once, sending);
    append_waiting(sending->producer, 0, record_of(value, sizeof value, 1000), &result);
    EXPECT(interruption_is_over());
    EXPECT(drain_first_partition(sending, &batches[0]));
    EXPECT_EQ_U64((uint64_t)batches[0].base_sequence, 0);
    complete(sending, &batches[0]);
    EXPECT(drain_first_partition(sending, &batches[1]));
    EXPECT_EQ_U64((uint64_t)batches[1].base_sequence, 1);
    complete(sending, &batches[1]);
}

TEST_WITH(sending, sending_begin, an_epoch_begins_when_nothing_of_the_last_one_is_in_flight)
{
    struct drained_batch batches[2];
    accumulator_set_producer_id(sending->sender, 7, 0);
    fill_batch(sending, 0);
    fill_batch(sending, 0);
    EXPECT(drain_first_partition(sending, &batches[0]));
    accumulator_set_producer_id(sending->sender, 7, 1);
    EXPECT(!drain_first_partition(sending, &batches[1]));
    complete(sending, &batches[0]);
    EXPECT(drain_first_partition(sending, &batches[1]));
    EXPECT(batches[1].producer_epoch == 1 && batches[1].base_sequence == 0);
    complete(sending, &batches[1]);
}

TEST_WITH(sending, sending_begin, sequences_of_another_producer_id_begin_at_0_in_the_same_epoch)
{
    accumulator_set_producer_id(sending->sender, 7, 0);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 3), 0);
    accumulator_set_producer_id(sending->sender, 8, 0);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 3), 0);
    accumulator_set_producer_id(sending->sender, -1, -1);
    EXPECT_EQ_U64((uint64_t)(int64_t)sequence_of_next(sending, 3), UINT64_MAX);
    accumulator_set_producer_id(sending->sender, 8, 0);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 3), 3);
}

/* Send batches with the sequences 3, 4 and 5. The earlier ones are acknowledged. */
static void send_three(struct sending *sending, struct drained_batch batches[3])
{
    accumulator_set_producer_id(sending->sender, 7, 0);
    EXPECT_EQ_U64((uint64_t)sequence_of_next(sending, 3), 0);
    for (int i = 0; i < 3; i++) {
        fill_batch(sending, 0);
        EXPECT(drain_first_partition(sending, &batches[i]));
        EXPECT_EQ_U64((uint64_t)batches[i].base_sequence, (uint64_t)i + 3);
    }
}

TEST_WITH(sending, sending_begin, resequenced_batches_start_over_in_their_order)
{
    struct drained_batch batches[3];
    send_three(sending, batches);
    for (int i = 0; i < 2; i++) {
        EXPECT_STATUS(accumulator_requeue(sending->sender, batches[i].slot_index, batches[i].seq, 0), STATUS_OK);
    }
    accumulator_set_producer_id(sending->sender, 7, 1);
    sender_resequence(sending->sender->sender, 0);
    sender_resequence(sending->sender->sender, UINT32_MAX); /* no such partition: nothing happens */
    EXPECT_EQ_U64((uint64_t)header_of(sending, &batches[2]).base_sequence, 5); /* the batch is still in flight */
    complete(sending, &batches[2]);
    for (int i = 0; i < 2; i++) {
        EXPECT(drain_first_partition(sending, &batches[i]));
        EXPECT(batches[i].producer_epoch == 1 && batches[i].base_sequence == i);
        complete(sending, &batches[i]);
    }
}

static void run_change_producer_id(struct arena *arena, void *argument)
{
    (void)argument;
    accumulator_set_producer_id(sender_opened(arena), 8, 3);
}

TEST(a_sender_that_dies_while_it_changes_the_producer_id_leaves_none)
{
    static const char *const points[] = {"producer_id_forgotten", "producer_id_prepared"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        struct sending sending;
        sending_begin(&sending);
        struct producer_identity identity;
        accumulator_set_producer_id(sending.sender, 7, 2);
        accumulator_close(sending.sender);
        pid_t child = child_started(sending.file, run_change_producer_id, NULL, points[i], SIGKILL);
        EXPECT_OR_SAY(child_was_killed(child), "%s was not reached", points[i]);
        sending.sender = sender_opened(sending.arena);
        producer_identity_read(sending.arena, &identity);
        EXPECT(identity.producer_id == -1 && identity.producer_epoch == -1);
        accumulator_set_producer_id(sending.sender, 9, 0);
        EXPECT_EQ_U64((uint64_t)sequence_of_next(&sending, 3), 0);
        sending_end(&sending);
    }
}

static void expect_sequence(const struct drained_batch *batch, int16_t epoch, int32_t base_sequence)
{
    EXPECT_EQ_U64((uint64_t)batch->producer_epoch, (uint64_t)epoch);
    EXPECT_EQ_U64((uint64_t)batch->base_sequence, (uint64_t)base_sequence);
}

/* The sink has rejected the first of three batches. The process removes their sequences, and is killed after `argument`
 * of them. */
static void run_resequence(struct arena *arena, void *argument)
{
    int signal = SIGKILL;
    arena->clock = (struct clock){.is_manual = true, .manual_ns = 1000};
    struct sending sending = {
        .arena = arena, .producer = accumulator_opened(arena), .sender = sender_opened(arena)};
    struct drained_batch batches[3];
    send_three(&sending, batches);
    for (int i = 0; i < 3; i++) {
        EXPECT_STATUS(accumulator_requeue(sending.sender, batches[i].slot_index, batches[i].seq, 0), STATUS_OK);
    }
    accumulator_set_producer_id(sending.sender, 7, 1);
    interrupt_at("sequence_taken_back", *(uint32_t *)argument - 1, raise_signal, &signal);
    sender_resequence(sending.sender->sender, 0);
}

/* The batches that still have a sequence are at the front of the queue, so the next sender's sink rejects them
 * again. */
static void expect_resequenced_by_the_next(uint32_t taken_back)
{
    struct sending sending;
    sending_begin(&sending);
    struct drained_batch batch;
    accumulator_close(sending.sender);
    EXPECT(child_was_killed(child_started(sending.file, run_resequence, &taken_back, NULL, 0)));
    sending.sender = sender_opened(sending.arena);
    EXPECT(drain_first_partition(&sending, &batch));
    expect_sequence(&batch, taken_back < 3 ? 0 : 1, taken_back < 3 ? 3 : 0);
    EXPECT_STATUS(accumulator_requeue(sending.sender, batch.slot_index, batch.seq, 0), STATUS_OK);
    sender_resequence(sending.sender->sender, 0);
    uint64_t first_seq = batch.seq;
    for (int32_t i = 0; i < 3; i++) {
        EXPECT(drain_first_partition(&sending, &batch));
        EXPECT_EQ_U64(batch.seq, first_seq + (uint64_t)i);
        expect_sequence(&batch, 1, i);
        complete(&sending, &batch);
    }
    sending_end(&sending);
}

TEST(a_sender_that_dies_while_it_takes_sequences_back_is_followed_by_one_that_starts_again)
{
    for (uint32_t taken_back = 1; taken_back <= 3; taken_back++) {
        expect_resequenced_by_the_next(taken_back);
    }
}

TEST_WITH(sending, sending_begin, one_batch_goes_at_a_time_until_the_sink_has_taken_one_of_the_epoch)
{
    struct drained_batch batches[3];
    struct error error;
    accumulator_set_producer_id(sending->sender, 7, 0);
    for (int i = 0; i < 3; i++) {
        fill_batch(sending, 0);
    }
    EXPECT(drain_first_partition(sending, &batches[0]));
    EXPECT(!drain_first_partition(sending, &batches[1]));
    complete(sending, &batches[0]);
    EXPECT(drain_first_partition(sending, &batches[1]));
    EXPECT(drain_first_partition(sending, &batches[2]));
    complete(sending, &batches[1]);
    complete(sending, &batches[2]);
    accumulator_resign_sender(sending->sender); /* the next sender does not know of this */
    EXPECT_STATUS(accumulator_become_sender(sending->sender, &error), STATUS_OK);
    fill_batch(sending, 0);
    fill_batch(sending, 0);
    EXPECT(drain_first_partition(sending, &batches[0]));
    EXPECT(!drain_first_partition(sending, &batches[1]));
    complete(sending, &batches[0]);
}

TEST_WITH(sending, sending_begin, a_batch_in_its_backoff_need_not_wait_any_longer)
{
    struct drained_batch batch;
    fill_batch(sending, 0);
    EXPECT(drain_first_partition(sending, &batch));
    EXPECT_STATUS(accumulator_requeue(sending->sender, batch.slot_index, batch.seq, 1 << 20), STATUS_OK);
    sender_end_backoff(sending->sender->sender, 1);
    sender_end_backoff(sending->sender->sender, UINT32_MAX); /* no such partition: nothing happens */
    EXPECT(!drain_first_partition(sending, &batch));
    sender_end_backoff(sending->sender->sender, 0);
    EXPECT(drain_first_partition(sending, &batch));
    complete(sending, &batch);
}

/* ---- ready hints that are set during a scan ---- */

enum { GROUP_SLOT_COUNT = 64 * 64, WIDE_SLOT_COUNT = 2 * GROUP_SLOT_COUNT };

/* Append two batches of a partition. The ready hint of the first is in the group that was just read, that of the second
 * is in the next group. */
static void append_across_groups(void *argument)
{
    struct accumulator *producer = argument;
    uint32_t slots[GROUP_SLOT_COUNT];
    uint32_t count = 0;
    EXPECT_STATUS(append_number(producer, 0, 0), STATUS_OK);
    do {
        EXPECT_STATUS(buffer_pool_try_allocate(producer->arena, &slots[count]), STATUS_OK);
    } while (slots[count++] != GROUP_SLOT_COUNT - 1);
    uint32_t first = open_word_slot(load_acquire_u64(&producer->arena->partitions[0].open));
    EXPECT(batch_seal(producer->arena, first, slot_word_at(producer->arena, first)));
    EXPECT_STATUS(append_number(producer, 0, 1), STATUS_OK);
    EXPECT(open_word_slot(load_acquire_u64(&producer->arena->partitions[0].open)) >= GROUP_SLOT_COUNT);
    buffer_pool_return(producer->arena, slots, count, NULL);
}

/* The first scan finds a batch of another partition. The second scan has already read the group of the earlier batch,
 * so it finds only the later one. */
TEST(a_batch_waits_for_the_scan_that_finds_an_earlier_one)
{
    struct ledger *ledger = calloc(1, sizeof *ledger);
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(WIDE_SLOT_COUNT, BATCH_SIZE));
    struct arena *producing = arena_attached(file);
    struct accumulator *producer = accumulator_opened(producing);
    struct accumulator *sender = sender_opened(arena);
    EXPECT_STATUS(append_number(producer, 1, 100), STATUS_OK);
    interrupt_at("ready_group_next", 3, append_across_groups, producer);
    EXPECT_EQ_U64(deliver_round(sender, ledger), 1);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(ledger->numbers[0], 100);
    deliver_everything(sender, ledger);
    EXPECT_EQ_U64(ledger->count, 3);
    EXPECT_EQ_U64(ledger->numbers[1], 0);
    EXPECT_EQ_U64(ledger->numbers[2], 1);
    accumulator_close(producer);
    accumulator_close(sender);
    arena_detach(producing);
    expect_all_free(arena);
    arena_end(arena, file);
    free(ledger);
}

static void sender_reads_news(void *argument)
{
    sender_find_batches(argument);
}

/* The bit of the slot is set, and the bit of its word is not yet. If the two were set in the other order, the batch
 * could be lost. */
TEST(a_batch_with_half_of_its_ready_hint_is_found_by_the_next_scan)
{
    struct ledger *ledger = calloc(1, sizeof *ledger);
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(16, BATCH_SIZE));
    struct arena *producing = arena_attached(file);
    struct accumulator *producer = accumulator_opened(producing);
    struct accumulator *sender = sender_opened(arena);
    interrupt_at("ready_bit_set", 0, sender_reads_news, sender);
    EXPECT_STATUS(append_number(producer, 0, 7), STATUS_OK);
    EXPECT(interruption_is_over());
    deliver_everything(sender, ledger);
    EXPECT_EQ_U64(ledger->count, 1);
    EXPECT_EQ_U64(ledger->numbers[0], 7);
    accumulator_close(producer);
    accumulator_close(sender);
    arena_detach(producing);
    expect_all_free(arena);
    arena_end(arena, file);
    free(ledger);
}

RUN_ALL()
