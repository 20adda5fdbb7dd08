/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/producer_batch_append.h"

#include "core/delivery_fixture.h"

#include "arena/attach.h"
#include "arena/batch_seal.h"
#include "arena/lock.h"

enum { BATCH_SIZE = 512, ROOM = BATCH_SIZE - RECORDS_START };

/* ---- helpers ---- */

/* An arena in which this process has locked partition 0. */
struct work {
    struct arena *arena;
    struct partition_hold hold;
    int file;
};

static void work_begin_of(struct work *work, uint32_t batch_size)
{
    *work = (struct work){.file = arena_file_new()};
    work->arena = arena_created(work->file, geometry_of(8, batch_size));
    partition_lock(work->arena, 0, &work->hold);
}

static void work_begin(struct work *work)
{
    work_begin_of(work, BATCH_SIZE);
}

static void work_end(struct work *work)
{
    partition_unlock(work->arena, &work->hold);
    arena_end(work->arena, work->file);
}

static uint32_t slot_owned(struct arena *arena)
{
    uint32_t slot_index = 0;
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_OK);
    return slot_index;
}

static uint32_t batch_opened(struct work *work)
{
    bool is_spare_kept;
    uint32_t slot_index = slot_owned(work->arena);
    EXPECT_STATUS(producer_batch_open(work->arena, &work->hold, slot_index, 1000, &is_spare_kept), STATUS_OK);
    return slot_index;
}

static enum status append_run(struct work *work, const struct measured_record *records, uint32_t count,
                              uint32_t *appended, struct batch_place *first)
{
    return producer_batch_append(work->arena, &work->hold, records, count, appended, first);
}

static enum status append_one(struct work *work, const void *value, uint32_t value_size, int64_t timestamp_ms)
{
    struct measured_record record = measured(record_of(value, value_size, timestamp_ms));
    struct batch_place place;
    uint32_t appended;
    return append_run(work, &record, 1, &appended, &place);
}

static const struct batch_meta *meta_of(const struct arena *arena, uint32_t slot_index)
{
    return &arena->slots[slot_index].meta[slot_word_count(slot_word_at(arena, slot_index)) & 1];
}

/* Check that the running checksum is that of the committed bytes. */
static void expect_running_crc(const struct arena *arena, uint32_t slot_index)
{
    uint32_t size = slot_word_size(slot_word_at(arena, slot_index)) - RECORDS_START;
    uint32_t crc = crc32c_extend(0, arena_slot_data(arena, slot_index) + RECORDS_START, size);
    EXPECT_EQ_U64(meta_of(arena, slot_index)->records_crc, crc);
}

/* ---- open and append ---- */

TEST_WITH(work, work_begin, without_an_open_batch_nothing_is_appended)
{
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_EXHAUSTED);
}

TEST_WITH(work, work_begin, an_opened_batch_is_empty_announced_and_numbered)
{
    uint32_t slot_index = batch_opened(work);
    struct slot_header *slot = &work->arena->slots[slot_index];
    EXPECT_EQ_U64(slot_word_at(work->arena, slot_index),
                  slot_word(SLOT_OPEN, 0, slot_payload_filled(0, RECORDS_START)));
    EXPECT_EQ_U64(load_relaxed_u64(&slot->seq), 0);
    EXPECT_EQ_U64(load_relaxed_u32(&slot->partition_index), 0);
    EXPECT_EQ_U64(load_relaxed_u64(&work->hold.partition->next_seq), 1);
    EXPECT_EQ_U64(open_word_slot(load_relaxed_u64(&work->hold.partition->open)), slot_index);
    EXPECT_EQ_U64(load_relaxed_u64(&work->arena->ready_hints[0]), UINT64_C(1) << slot_index);
    EXPECT_EQ_U64(load_relaxed_u64(&work->arena->ready_groups[0]), 1);
    EXPECT_EQ_U64(counter_value(work->arena, COUNTER_BATCHES_OPENED), 1);
}

TEST_WITH(work, work_begin, records_stand_one_after_the_other)
{
    uint32_t slot_index = batch_opened(work);
    struct measured_record record = measured(record_of("value", 5, 1000));
    for (uint32_t i = 0; i < 5; i++) {
        struct batch_place place = {0};
        uint32_t appended = 0;
        EXPECT_STATUS(append_run(work, &record, 1, &appended, &place), STATUS_OK);
        EXPECT_EQ_U64(appended, 1);
        EXPECT_EQ_U64(place.slot_index, slot_index);
        EXPECT_EQ_U64(place.record_index, i);
        EXPECT_EQ_U64(place.seq, 0);
        EXPECT_EQ_U64((uint64_t)place.timestamp_ms, 1000);
        EXPECT_EQ_U64(slot_word_count(slot_word_at(work->arena, slot_index)), i + 1);
        EXPECT_EQ_U64(slot_word_size(slot_word_at(work->arena, slot_index)), place.end);
        expect_running_crc(work->arena, slot_index);
    }
    uint8_t expected[64];
    uint8_t *end = record_write(expected, &record.record, &record.size, 4, 0);
    uint32_t size = slot_word_size(slot_word_at(work->arena, slot_index));
    EXPECT(memcmp(arena_slot_data(work->arena, slot_index) + size - (end - expected), expected,
                  (size_t)(end - expected)) == 0);
}

TEST_WITH(work, work_begin, the_hazard_names_the_slot_while_it_is_written_and_nothing_after)
{
    uint32_t slot_index = batch_opened(work);
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_OK);
    EXPECT_EQ_U64(load_relaxed_u32(&work->arena->me->writing), slot_index + 1);
    partition_unlock(work->arena, &work->hold);
    EXPECT_EQ_U64(load_relaxed_u32(&work->arena->me->writing), 0);
    partition_lock(work->arena, 0, &work->hold);
    EXPECT_EQ_U64(load_relaxed_u32(&work->arena->me->writing), slot_index + 1);
    EXPECT_EQ_U64(work->hold.hazard, slot_index + 1);
}

/* ---- free bytes ---- */

TEST_WITH(work, work_begin, a_record_that_fits_exactly_is_taken)
{
    uint32_t slot_index = batch_opened(work);
    static const uint8_t value[BATCH_SIZE] = {1};
    EXPECT_STATUS(append_one(work, value, value_size_for(ROOM), 1000), STATUS_OK);
    EXPECT_EQ_U64(slot_word_size(slot_word_at(work->arena, slot_index)), BATCH_SIZE);
    EXPECT_STATUS(append_one(work, "", 0, 1000), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(slot_state_at(work->arena, slot_index), SLOT_READY);
    EXPECT_EQ_U64(counter_value(work->arena, COUNTER_BATCHES_SEALED_FULL), 1);
}

TEST_WITH(work, work_begin, one_byte_too_much_seals_the_batch_and_writes_nothing)
{
    uint32_t slot_index = batch_opened(work);
    static const uint8_t value[BATCH_SIZE] = {1};
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_OK);
    uint32_t size = slot_word_size(slot_word_at(work->arena, slot_index));
    EXPECT_STATUS(append_one(work, value, value_size_for(BATCH_SIZE - size) + 1, 1000), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(slot_word_at(work->arena, slot_index), slot_word(SLOT_READY, 0, slot_payload_filled(1, size)));
    EXPECT_EQ_U64(load_relaxed_u32(&work->arena->slots[slot_index].written_end), size);
}

TEST(a_batch_takes_as_many_records_as_its_word_can_count)
{
    enum { SIZE = 4 << 20 };
    uint32_t count = BATCH_RECORD_COUNT_MAX + 1;
    struct work work;
    work_begin_of(&work, SIZE);
    uint32_t slot_index = batch_opened(&work);
    struct measured_record *records = malloc(count * sizeof *records);
    struct batch_place place;
    uint32_t appended = 0;
    for (uint32_t i = 0; i < count; i++) {
        records[i] = measured(record_of(NULL, 0, 1000));
    }
    EXPECT_STATUS(append_run(&work, records, count, &appended, &place), STATUS_OK);
    EXPECT_EQ_U64(appended, BATCH_RECORD_COUNT_MAX);
    EXPECT(slot_word_size(slot_word_at(work.arena, slot_index)) < SIZE / 2);
    EXPECT_STATUS(append_run(&work, records, 1, &appended, &place), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(slot_word_count(slot_word_at(work.arena, slot_index)), BATCH_RECORD_COUNT_MAX);
    EXPECT_EQ_U64(slot_state_at(work.arena, slot_index), SLOT_READY);
    free(records);
    work_end(&work);
}

/* ---- runs ---- */

TEST(a_run_commits_an_odd_number_at_once_so_that_the_committed_meta_stays)
{
    for (uint32_t count = 1; count <= 9; count++) {
        struct work work;
        work_begin(&work);
        uint32_t slot_index = batch_opened(&work);
        struct measured_record records[9];
        uint32_t done = 0;
        for (uint32_t i = 0; i < count; i++) {
            records[i] = measured(record_of("0123456789", i + 1, 1000 + i));
        }
        while (done < count) {
            struct batch_meta before = *meta_of(work.arena, slot_index);
            uint32_t count_before = slot_word_count(slot_word_at(work.arena, slot_index));
            struct batch_place place = {0};
            uint32_t appended = 0;
            EXPECT_STATUS(append_run(&work, records + done, count - done, &appended, &place), STATUS_OK);
            EXPECT_EQ_U64(appended, ((count - done) & 1) != 0 ? count - done : count - done - 1);
            EXPECT_EQ_U64(place.record_index, done);
            EXPECT(memcmp(&before, &work.arena->slots[slot_index].meta[count_before & 1], sizeof before) == 0);
            expect_running_crc(work.arena, slot_index);
            done += appended;
        }
        EXPECT_EQ_U64((uint64_t)meta_of(work.arena, slot_index)->max_timestamp_ms, 1000 + count - 1);
        work_end(&work);
    }
}

TEST_WITH(work, work_begin, a_run_that_does_not_fit_wholly_is_taken_as_far_as_it_fits)
{
    uint32_t slot_index = batch_opened(work);
    static const uint8_t value[80] = {1};
    struct measured_record records[6];
    struct batch_place place;
    uint32_t appended = 0;
    for (uint32_t i = 0; i < 6; i++) {
        records[i] = measured(record_of(value, sizeof value, 1000));
    }
    EXPECT_STATUS(append_run(work, records, 6, &appended, &place), STATUS_OK); /* five fit */
    EXPECT_EQ_U64(appended, 5);
    expect_running_crc(work->arena, slot_index);
    EXPECT_STATUS(append_run(work, records + 5, 1, &appended, &place), STATUS_EXHAUSTED);
}

/* The second record of the run was encoded, but not committed. Its bytes must be scrubbed with the batch. */
TEST(the_uncommitted_last_record_of_an_even_run_is_scrubbed_with_the_batch)
{
    struct work work;
    work_begin(&work);
    uint32_t slot_index = batch_opened(&work);
    static const uint8_t large[300] = {[0 ... 299] = 0xee};
    struct measured_record run[2] = {measured(record_of("a", 1, 1000)), measured(record_of(large, sizeof large, 1000))};
    struct batch_place place;
    uint32_t appended = 0;
    EXPECT_STATUS(append_run(&work, run, 2, &appended, &place), STATUS_OK);
    EXPECT_EQ_U64(appended, 1);
    EXPECT_STATUS(append_one(&work, "b", 1, 1000), STATUS_OK);
    EXPECT(batch_seal(work.arena, slot_index, slot_word_at(work.arena, slot_index)));
    partition_unlock(work.arena, &work.hold);
    struct accumulator *sender = sender_opened(work.arena);
    struct drained_batch batch;
    EXPECT_EQ_U64(drain_round(sender, 1, &batch), 1);
    EXPECT_STATUS(accumulator_complete(sender, batch.slot_index, batch.seq, &success, NULL), STATUS_OK);
    accumulator_close(sender);
    expect_all_free(work.arena);
    arena_end(work.arena, work.file);
}

/* ---- timestamps ---- */

TEST_WITH(work, work_begin, the_first_record_gives_the_base_and_the_largest_the_maximum)
{
    static const int64_t timestamps[] = {5000, 1, 0, INT64_C(1) << 40, -1, 7};
    uint32_t slot_index = batch_opened(work); /* the record's length field is 1000 */
    const struct slot_header *slot = &work->arena->slots[slot_index];
    int64_t largest = INT64_MIN;
    for (uint32_t i = 0; i < COUNT_OF(timestamps); i++) {
        EXPECT_STATUS(append_one(work, "value", 5, timestamps[i]), STATUS_OK);
        largest = timestamps[i] > largest ? timestamps[i] : largest;
        EXPECT_EQ_U64((uint64_t)meta_of(work->arena, slot_index)->max_timestamp_ms, (uint64_t)largest);
    }
    EXPECT_EQ_U64((uint64_t)slot->base_timestamp_ms, 5000);
    const uint8_t *bytes = arena_slot_data(work->arena, slot_index);
    const uint8_t *cursor = bytes + RECORDS_START;
    for (uint32_t i = 0; i < COUNT_OF(timestamps); i++) {
        struct record_view view = {0};
        EXPECT_STATUS(record_read(&cursor, bytes + BATCH_SIZE, &view), STATUS_OK);
        EXPECT_EQ_U64((uint64_t)(view.timestamp_delta + 5000), (uint64_t)timestamps[i]);
        EXPECT_EQ_U64((uint64_t)view.offset_delta, i);
    }
}

/* ---- seal ---- */

TEST_WITH(work, work_begin, sealing_keeps_count_and_size_and_an_empty_batch_is_done)
{
    uint32_t empty = batch_opened(work);
    uint64_t word = slot_word_at(work->arena, empty);
    EXPECT(batch_seal(work->arena, empty, word));
    EXPECT_EQ_U64(slot_word_at(work->arena, empty), slot_word_with_state(word, SLOT_DONE));
    EXPECT(!batch_seal(work->arena, empty, word));
    uint32_t filled = batch_opened(work);
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_OK);
    word = slot_word_at(work->arena, filled);
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_OK);
    EXPECT(!batch_seal(work->arena, filled, word)); /* an earlier word of the slot */
    word = slot_word_at(work->arena, filled);
    EXPECT(batch_seal(work->arena, filled, word));
    EXPECT_EQ_U64(slot_word_at(work->arena, filled), slot_word_with_state(word, SLOT_READY));
    buffer_pool_free(work->arena, empty, NULL);
}

static void seal_open_batch(void *argument)
{
    struct arena *arena = argument;
    uint32_t slot_index = open_word_slot(load_acquire_u64(&arena->partitions[0].open));
    EXPECT(batch_seal(arena, slot_index, slot_word_at(arena, slot_index)));
}

TEST_WITH(work, work_begin, a_seal_that_wins_against_an_append_leaves_the_batch_as_it_was)
{
    uint32_t slot_index = batch_opened(work);
    EXPECT_STATUS(append_one(work, "first", 5, 1000), STATUS_OK);
    uint64_t word = slot_word_at(work->arena, slot_index);
    interrupt_at("record_claimed", 0, seal_open_batch, work->arena);
    EXPECT_STATUS(append_one(work, "second", 6, 9000), STATUS_TRY_AGAIN);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(slot_word_at(work->arena, slot_index), slot_word_with_state(word, SLOT_READY));
    EXPECT_EQ_U64((uint64_t)meta_of(work->arena, slot_index)->max_timestamp_ms, 1000);
    expect_running_crc(work->arena, slot_index);
    EXPECT_STATUS(append_one(work, "second", 6, 9000), STATUS_EXHAUSTED);
}

/* ---- words that are input ---- */

TEST_WITH(work, work_begin, an_open_batch_that_does_not_exist_is_corrupt)
{
    store_relaxed_u64(&work->hold.partition->open, open_word(1, 8));
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_CORRUPT);
    store_relaxed_u64(&work->hold.partition->open, 0);
}

TEST_WITH(work, work_begin, an_open_batch_of_another_partition_is_not_touched)
{
    uint32_t slot_index = batch_opened(work);
    uint64_t word = slot_word_at(work->arena, slot_index);
    struct partition_hold other;
    partition_lock(work->arena, 1, &other);
    store_relaxed_u64(&other.partition->open, load_relaxed_u64(&work->hold.partition->open));
    struct measured_record record = measured(record_of("value", 5, 1000));
    struct batch_place place;
    uint32_t appended;
    EXPECT_STATUS(producer_batch_append(work->arena, &other, &record, 1, &appended, &place), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(slot_word_at(work->arena, slot_index), word);
    partition_unlock(work->arena, &other);
}

static void expect_word_is_corrupt(uint32_t size)
{
    struct work work;
    work_begin(&work);
    uint32_t slot_index = batch_opened(&work);
    uint64_t word = slot_word_at(work.arena, slot_index);
    store_release_u64(&work.arena->slots[slot_index].word, slot_word(SLOT_OPEN, 0, slot_payload_filled(1, size)));
    EXPECT_STATUS(append_one(&work, "value", 5, 1000), STATUS_CORRUPT);
    store_release_u64(&work.arena->slots[slot_index].word, word);
    work_end(&work);
}

TEST(an_impossible_size_is_corrupt)
{
    expect_word_is_corrupt(0);
    expect_word_is_corrupt(RECORDS_START - 1);
    expect_word_is_corrupt(BATCH_SIZE + 1);
    expect_word_is_corrupt(BATCH_SIZE_MAX);
}

/* ---- take-over ---- */

TEST_WITH(work, work_begin, repair_seals_the_batch_that_is_named_and_no_other)
{
    uint32_t filled = batch_opened(work);
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_OK);
    struct partition_hold other;
    partition_lock(work->arena, 1, &other);
    bool is_spare_kept;
    uint32_t foreign = slot_owned(work->arena);
    EXPECT_STATUS(producer_batch_open(work->arena, &other, foreign, 1000, &is_spare_kept), STATUS_OK);
    partition_repair(work->arena, &work->hold);
    EXPECT_EQ_U64(slot_state_at(work->arena, filled), SLOT_READY);
    EXPECT_EQ_U64(slot_state_at(work->arena, foreign), SLOT_OPEN);
    EXPECT_EQ_U64(open_word_slot(load_relaxed_u64(&work->hold.partition->open)), NO_SLOT);
    EXPECT_EQ_U64(open_word_slot(load_relaxed_u64(&other.partition->open)), foreign);
    EXPECT_EQ_U64(counter_value(work->arena, COUNTER_BATCHES_SEALED_REPAIR), 1);
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_EXHAUSTED);
    partition_unlock(work->arena, &other);
}

TEST_WITH(work, work_begin, repair_leaves_a_slot_alone_that_was_reused_by_another_partition)
{
    uint32_t slot_index = batch_opened(work);
    uint64_t stale = load_relaxed_u64(&work->hold.partition->open);
    partition_repair(work->arena, &work->hold); /* the batch was empty, so it is DONE */
    EXPECT_EQ_U64(slot_state_at(work->arena, slot_index), SLOT_DONE);
    buffer_pool_free(work->arena, slot_index, NULL);
    struct partition_hold other;
    partition_lock(work->arena, 1, &other);
    bool is_spare_kept;
    EXPECT_EQ_U64(slot_owned(work->arena), slot_index);
    EXPECT_STATUS(producer_batch_open(work->arena, &other, slot_index, 1000, &is_spare_kept), STATUS_OK);
    store_relaxed_u64(&work->hold.partition->open, stale);
    partition_repair(work->arena, &work->hold);
    EXPECT_EQ_U64(slot_state_at(work->arena, slot_index), SLOT_OPEN);
    EXPECT_EQ_U64(open_word_slot(load_relaxed_u64(&work->hold.partition->open)), NO_SLOT);
    partition_unlock(work->arena, &other);
}

/* A passed opener stores its slot in `open` between the load of `open` and the CAS. */
static uint32_t late_slot;

static void name_late_slot(void *argument)
{
    struct work *work = argument;
    uint64_t opened = slot_word(SLOT_OPEN, slot_word_generation(slot_word_at(work->arena, late_slot)),
                                slot_payload_filled(0, RECORDS_START));
    store_relaxed_u32(&work->arena->slots[late_slot].partition_index, 0);
    store_relaxed_u64(&work->arena->slots[late_slot].word, opened);
    store_relaxed_u64(&work->hold.partition->open, open_word(1, late_slot));
}

TEST_WITH(work, work_begin, repair_also_seals_a_batch_that_was_named_meanwhile)
{
    uint32_t filled = batch_opened(work);
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_OK);
    late_slot = slot_owned(work->arena);
    interrupt_at("partition_open_sealed", 0, name_late_slot, work);
    partition_repair(work->arena, &work->hold);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(slot_state_at(work->arena, filled), SLOT_READY);
    EXPECT_EQ_U64(slot_state_at(work->arena, late_slot), SLOT_DONE);
    EXPECT_EQ_U64(open_word_slot(load_relaxed_u64(&work->hold.partition->open)), NO_SLOT);
    buffer_pool_free(work->arena, late_slot, NULL);
}

/* Take partition 0 from its holder, as a passer does. */
static void pass_the_holder(void *argument)
{
    struct arena *survivor = argument;
    struct partition_hold hold;
    partition_lock(survivor, 0, &hold);
    partition_unlock(survivor, &hold);
}

TEST(a_passed_opener_gets_its_slot_back)
{
    static const char *const points[] = {"seq_taken", "slot_opened"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        struct work work;
        work_begin(&work);
        struct arena *survivor = arena_attached(work.file);
        bool is_spare_kept = false;
        uint32_t slot_index = slot_owned(work.arena);
        interrupt_at(points[i], 0, pass_the_holder, survivor);
        EXPECT_STATUS(producer_batch_open(work.arena, &work.hold, slot_index, 1000, &is_spare_kept), STATUS_TRY_AGAIN);
        EXPECT(interruption_is_over());
        EXPECT(is_spare_kept);
        EXPECT_EQ_U64(slot_state_at(work.arena, slot_index), SLOT_OWNED);
        EXPECT_EQ_U64(open_word_slot(load_relaxed_u64(&work.hold.partition->open)), NO_SLOT);
        partition_unlock(work.arena, &work.hold);
        EXPECT_EQ_U64(load_relaxed_u64(&work.arena->me->passed_count), 1);
        buffer_pool_return(work.arena, &slot_index, 1, NULL);
        arena_detach(survivor);
        expect_all_free(work.arena);
        arena_end(work.arena, work.file);
    }
}

/* `open` never named the slot, so the repair leaves it open. The next sender finds it empty, and frees it. */
static uint32_t opened_slot;

static void pass_the_opener_and_free_its_slot(void *argument)
{
    struct arena *survivor = argument;
    pass_the_holder(survivor);
    EXPECT_EQ_U64(slot_state_at(survivor, opened_slot), SLOT_OPEN);
    EXPECT(batch_seal(survivor, opened_slot, slot_word_at(survivor, opened_slot)));
    buffer_pool_free(survivor, opened_slot, NULL);
}

TEST(a_passed_opener_does_not_take_back_a_slot_that_was_sealed_meanwhile)
{
    struct work work;
    work_begin(&work);
    struct arena *survivor = arena_attached(work.file);
    bool is_spare_kept = true;
    opened_slot = slot_owned(work.arena);
    interrupt_at("slot_opened", 0, pass_the_opener_and_free_its_slot, survivor);
    EXPECT_STATUS(producer_batch_open(work.arena, &work.hold, opened_slot, 1000, &is_spare_kept), STATUS_TRY_AGAIN);
    EXPECT(interruption_is_over());
    EXPECT(!is_spare_kept);
    EXPECT_EQ_U64(slot_state_at(work.arena, opened_slot), SLOT_FREE);
    partition_unlock(work.arena, &work.hold);
    arena_detach(survivor);
    expect_all_free(work.arena);
    arena_end(work.arena, work.file);
}

TEST(a_holder_that_was_passed_before_its_check_writes_nothing)
{
    struct work work;
    work_begin(&work);
    struct arena *survivor = arena_attached(work.file);
    struct accumulator *producer = accumulator_opened(survivor);
    EXPECT_STATUS(append_number(producer, 0, 7), STATUS_OK); /* waits for its patience, then passes the holder */
    uint32_t slot_index = open_word_slot(load_relaxed_u64(&work.hold.partition->open));
    uint64_t word = slot_word_at(work.arena, slot_index);
    EXPECT_STATUS(append_one(&work, "value", 5, 1000), STATUS_TRY_AGAIN);
    EXPECT_EQ_U64(slot_word_at(work.arena, slot_index), word);
    partition_unlock(work.arena, &work.hold);
    expect_exactly(survivor, 7, 8);
    accumulator_close(producer);
    arena_detach(survivor);
    arena_end(work.arena, work.file);
}

/* ---- oversized records ---- */

static void chain_appended(struct work *work, uint32_t count, const struct measured_record *record, uint32_t *slots,
                           struct batch_place *place)
{
    slots_waited_for(work->arena, count, slots);
    EXPECT_STATUS(producer_batch_fill_chain(work->arena, 0, slots, count, record), STATUS_OK);
    EXPECT_STATUS(producer_batch_commit_chain(work->arena, &work->hold, slots, record, place), STATUS_OK);
}

TEST_WITH(work, work_begin, slots_needed_counts_the_header_once)
{
    EXPECT_EQ_U64(slots_needed(work->arena, 1), 1);
    EXPECT_EQ_U64(slots_needed(work->arena, ROOM), 1);
    EXPECT_EQ_U64(slots_needed(work->arena, ROOM + 1), 2);
    EXPECT_EQ_U64(slots_needed(work->arena, ROOM + BATCH_SIZE), 2);
    EXPECT_EQ_U64(slots_needed(work->arena, ROOM + BATCH_SIZE + 1), 3);
}

static void expect_chain(uint32_t record_size, uint32_t count)
{
    struct work work;
    work_begin(&work);
    static uint8_t value[4 * BATCH_SIZE];
    uint8_t expected[4 * BATCH_SIZE];
    uint32_t slots[4];
    struct batch_place place;
    for (uint32_t i = 0; i < sizeof value; i++) {
        value[i] = (uint8_t)(i * 7);
    }
    struct measured_record record = measured(record_of(value, value_size_for(record_size), 1000));
    EXPECT_EQ_U64(slots_needed(work.arena, record_size), count);
    chain_appended(&work, count, &record, slots, &place);
    EXPECT_EQ_U64(slot_word_at(work.arena, slots[0]),
                  slot_word(SLOT_READY, 0, slot_payload_filled(1, RECORDS_START + record_size)));
    for (uint32_t i = 1; i < count; i++) {
        EXPECT_EQ_U64(slot_word_at(work.arena, slots[i]), slot_word(SLOT_CONT, 0, slot_payload_cont(slots[0], 0)));
    }
    uint8_t *bytes = batch_bytes(work.arena, slots[0], RECORDS_START + record_size);
    EXPECT_EQ_U64((uint64_t)(record_write(expected, &record.record, &record.size, 0, 0) - expected), record_size);
    EXPECT(memcmp(bytes + RECORDS_START, expected, record_size) == 0);
    EXPECT_EQ_U64(work.arena->slots[slots[0]].meta[1].records_crc, crc32c_extend(0, expected, record_size));
    free(bytes);
    EXPECT_EQ_U64(place.slot_index, slots[0]);
    work_end(&work);
}

TEST(a_chain_of_exactly_n_slots_and_one_byte_more)
{
    expect_chain(ROOM + BATCH_SIZE, 2);
    expect_chain(ROOM + BATCH_SIZE + 1, 3);
    expect_chain(ROOM + 2 * BATCH_SIZE, 3);
    expect_chain(ROOM + 2 * BATCH_SIZE + 1, 4);
}

TEST_WITH(work, work_begin, a_chain_seals_the_open_batch_before_it_and_follows_it)
{
    static const uint8_t value[BATCH_SIZE + 100] = {1};
    uint32_t slots[2];
    struct batch_place place;
    uint32_t before = batch_opened(work);
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_OK);
    struct measured_record record = measured(record_of(value, sizeof value, 1000));
    chain_appended(work, 2, &record, slots, &place);
    EXPECT_EQ_U64(slot_state_at(work->arena, before), SLOT_READY);
    EXPECT_EQ_U64(place.seq, 1);
    EXPECT_STATUS(append_one(work, "value", 5, 1000), STATUS_EXHAUSTED);
    EXPECT_EQ_U64(counter_value(work->arena, COUNTER_BATCHES_OVERSIZED), 1);
}

TEST_WITH(work, work_begin, a_passed_holder_commits_no_chain_and_can_try_again)
{
    struct arena *survivor = arena_attached(work->file);
    static const uint8_t value[BATCH_SIZE + 100] = {1};
    uint32_t slots[2];
    struct batch_place place;
    struct measured_record record = measured(record_of(value, sizeof value, 1000));
    slots_waited_for(work->arena, 2, slots);
    EXPECT_STATUS(producer_batch_fill_chain(work->arena, 0, slots, 2, &record), STATUS_OK);
    pass_the_holder(survivor);
    EXPECT_STATUS(producer_batch_commit_chain(work->arena, &work->hold, slots, &record, &place), STATUS_TRY_AGAIN);
    EXPECT_EQ_U64(slot_state_at(work->arena, slots[0]), SLOT_OWNED);
    partition_unlock(work->arena, &work->hold);
    partition_lock(work->arena, 0, &work->hold);
    EXPECT_STATUS(producer_batch_commit_chain(work->arena, &work->hold, slots, &record, &place), STATUS_OK);
    EXPECT_EQ_U64(slot_state_at(work->arena, slots[0]), SLOT_READY);
    arena_detach(survivor);
}

TEST_WITH(work, work_begin, a_walk_stops_at_a_link_that_is_not_of_its_chain)
{
    static const uint8_t value[2 * BATCH_SIZE + 100] = {1};
    uint32_t slots[3];
    uint32_t found[8];
    struct batch_place place;
    struct measured_record record = measured(record_of(value, sizeof value, 1000));
    chain_appended(work, 3, &record, slots, &place);
    EXPECT_EQ_U64(slot_chain_walk(work->arena, slots[0], found, 8), 3);
    EXPECT(memcmp(found, slots, sizeof slots) == 0);
    EXPECT_EQ_U64(slot_chain_walk(work->arena, slots[0], found, 2), 2);
    uint32_t link = work->arena->slots[slots[1]].chain_next;
    work->arena->slots[slots[1]].chain_next = UINT32_MAX;
    EXPECT_EQ_U64(slot_chain_walk(work->arena, slots[0], found, 8), 2);
    work->arena->slots[slots[1]].chain_next = slots[0] + 1; /* the chain is a cycle */
    EXPECT_EQ_U64(slot_chain_walk(work->arena, slots[0], found, 8), 2);
    work->arena->slots[slots[1]].chain_next = link;
}

RUN_ALL()
