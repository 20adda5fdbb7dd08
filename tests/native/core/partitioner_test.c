/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a record's partition: Kafka's test vectors for keys, the weights of KIP-794, and the sticky partition
 * that all processes of a host share.
 */
/* runs under: tsan */
#include "producer/partitioner.h"

#include <pthread.h>

#include "arena/arena_fixture.h"
#include "arena/attach.h"
#include "core/accumulator.h"

enum { PARTITION_COUNT = 5, BATCH_SIZE = 512, RECORD_VALUE_SIZE = 50 };

/* A topic of five partitions, each with its entry: partition p has index p. */
struct host {
    int file;
    struct arena *arena;
    struct registry *registry;
    uint32_t topic_index;
    struct partitioner partitioner;
};

static struct partitioner partitioner_of(struct arena *arena, struct registry *registry)
{
    return (struct partitioner){.arena = arena, .registry = registry, .random_state = 42, .is_adaptive = true};
}

static struct registry *registry_opened(struct arena *arena)
{
    struct registry *registry = NULL;
    EXPECT_STATUS(registry_open(arena, &registry, NULL), STATUS_OK);
    return registry;
}

static void host_begin(struct host *host)
{
    *host = (struct host){.file = arena_file_new()};
    uint32_t index;
    host->arena = arena_created(host->file, geometry_of(64, BATCH_SIZE));
    host->registry = registry_opened(host->arena);
    EXPECT_STATUS(registry_topic(host->registry, "flights", 7, &host->topic_index), STATUS_OK);
    for (uint32_t partition = 0; partition < PARTITION_COUNT; partition++) {
        EXPECT_STATUS(registry_partition(host->registry, host->topic_index, (int32_t)partition, &index), STATUS_OK);
        EXPECT_EQ_U64(index, partition);
    }
    store_release_u32(&host->arena->topics[host->topic_index].partition_count, PARTITION_COUNT);
    host->partitioner = partitioner_of(host->arena, host->registry);
}

static void host_end(struct host *host)
{
    registry_close(host->registry);
    arena_end(host->arena, host->file);
}

static void queues_set(struct host *host, const uint32_t lengths[PARTITION_COUNT], uint32_t longest)
{
    for (uint32_t i = 0; i < PARTITION_COUNT; i++) {
        store_relaxed_u32(&host->arena->partitions[i].queued_batch_count, lengths[i]);
    }
    store_relaxed_u32(&host->arena->topics[host->topic_index].queued_batch_count_max, longest);
}

static uint64_t sticky_at(const struct host *host)
{
    return load_acquire_u64(&host->arena->topics[host->topic_index].sticky);
}

/* ---- keys ---- */

/* org.apache.kafka.common.utils.UtilsTest.testMurmur2, as partitions of 3 and of 12. */
TEST(a_key_has_the_partition_that_kafka_gives_it)
{
    static const struct {
        const char *key;
        int32_t hash;
    } vectors[] = {
        {"21", -973932308},
        {"foobar", -790332482},
        {"a-little-bit-long-string", -985981536},
        {"a-little-bit-longer-string", -1486304829},
        {"abc", 479470107},
        {"key", -1079937367},
        {"", 275646681},
    };
    for (size_t i = 0; i < COUNT_OF(vectors); i++) {
        uint32_t positive = (uint32_t)vectors[i].hash & INT32_MAX;
        uint32_t size = (uint32_t)strlen(vectors[i].key);
        EXPECT_EQ_U64(partition_of_key(vectors[i].key, size, 3), positive % 3);
        EXPECT_EQ_U64(partition_of_key(vectors[i].key, size, 12), positive % 12);
    }
    EXPECT_EQ_U64(partition_of_key("key", 3, 3), 1);
    EXPECT_EQ_U64(partition_of_key("key", 3, 1), 0);
}

TEST_WITH(host, host_begin, a_partition_count_that_kafka_could_not_have_is_unknown)
{
    EXPECT_EQ_U64(topic_partition_count(host->arena, host->topic_index), PARTITION_COUNT);
    store_release_u32(&host->arena->topics[host->topic_index].partition_count, UINT32_MAX);
    EXPECT_EQ_U64(topic_partition_count(host->arena, host->topic_index), 0);
}

/* ---- weights ---- */

enum { DRAW_COUNT = 40000 };

static void draw_many(struct host *host, uint32_t counts[PARTITION_COUNT])
{
    memset(counts, 0, PARTITION_COUNT * sizeof *counts);
    for (int i = 0; i < DRAW_COUNT; i++) {
        uint32_t partition = partitioner_draw(&host->partitioner, host->topic_index, PARTITION_COUNT);
        EXPECT(partition < PARTITION_COUNT);
        counts[partition]++;
    }
}

/* Check the shares to within 2 % of the total. Random draws deviate much less, and any two weights differ much more. */
static void expect_shares(const uint32_t counts[PARTITION_COUNT], const uint32_t weights[PARTITION_COUNT])
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < PARTITION_COUNT; i++) {
        sum += weights[i];
    }
    for (uint32_t i = 0; i < PARTITION_COUNT; i++) {
        uint32_t expected = DRAW_COUNT * weights[i] / sum;
        EXPECT_OR_SAY(counts[i] + DRAW_COUNT / 50 > expected && counts[i] < expected + DRAW_COUNT / 50,
                      "partition %u was drawn %u times, expected about %u", i, counts[i], expected);
    }
}

/* BuiltInPartitionerTest.adaptivePartitionsTest: queues 5 0 3 0 1 give the weights 1 6 3 6 5. */
TEST_WITH(host, host_begin, a_longer_queue_is_drawn_less_often)
{
    uint32_t counts[PARTITION_COUNT];
    queues_set(host, (const uint32_t[]){5, 0, 3, 0, 1}, 5);
    draw_many(host, counts);
    expect_shares(counts, (const uint32_t[]){1, 6, 3, 6, 5});
    host->partitioner.is_adaptive = false;
    draw_many(host, counts);
    expect_shares(counts, (const uint32_t[]){1, 1, 1, 1, 1});
}

TEST_WITH(host, host_begin, equal_queues_are_drawn_equally_often)
{
    uint32_t counts[PARTITION_COUNT];
    draw_many(host, counts);
    expect_shares(counts, (const uint32_t[]){1, 1, 1, 1, 1});
    queues_set(host, (const uint32_t[]){7, 7, 7, 7, 7}, 7);
    draw_many(host, counts);
    expect_shares(counts, (const uint32_t[]){1, 1, 1, 1, 1});
}

/* BuiltInPartitionerTest.unavailablePartitionsTest */
TEST_WITH(host, host_begin, an_unavailable_partition_is_drawn_only_if_none_is_available)
{
    const uint32_t none = PARTITION_UNAVAILABLE;
    uint32_t counts[PARTITION_COUNT];
    queues_set(host, (const uint32_t[]){none, 0, none, 0, 0}, 0);
    draw_many(host, counts);
    expect_shares(counts, (const uint32_t[]){0, 1, 0, 1, 1});
    EXPECT_EQ_U64(counts[0] + counts[2], 0);
    host->partitioner.is_adaptive = false;
    draw_many(host, counts);
    EXPECT_EQ_U64(counts[0] + counts[2], 0);
    queues_set(host, (const uint32_t[]){none, none, none, none, none}, 0);
    draw_many(host, counts);
    expect_shares(counts, (const uint32_t[]){1, 1, 1, 1, 1});
}

TEST_WITH(host, host_begin, one_that_is_nearly_never_drawn_is_found)
{
    const uint32_t none = PARTITION_UNAVAILABLE;
    queues_set(host, (const uint32_t[]){none, none, none, none, none}, 0);
    /* Of 100000 partitions, each one without an entry is available. Here only the last one has no entry. */
    EXPECT_EQ_U64(partitioner_draw(&host->partitioner, host->topic_index, 1) < 1, 1);
    for (int i = 0; i < 100; i++) {
        EXPECT_EQ_U64(partitioner_draw(&host->partitioner, host->topic_index, PARTITION_COUNT + 1), PARTITION_COUNT);
    }
}

/* ---- the sticky partition ---- */

TEST_WITH(host, host_begin, all_processes_have_the_same_sticky_partition)
{
    struct arena *other = arena_attached(host->file);
    struct registry *registry = registry_opened(other);
    struct partitioner theirs = partitioner_of(other, registry);
    struct sticky mine = {.topic_index = host->topic_index};
    struct sticky other_sticky = {.topic_index = host->topic_index};
    theirs.random_state = 43;
    uint32_t partition = partitioner_sticky(&host->partitioner, &mine, PARTITION_COUNT);
    EXPECT_EQ_U64(partitioner_sticky(&theirs, &other_sticky, PARTITION_COUNT), partition);
    EXPECT_EQ_U64(partitioner_sticky(&host->partitioner, &mine, PARTITION_COUNT), partition);
    EXPECT_EQ_U64(sticky_at(host), sticky_word(1, partition));
    registry_close(registry);
    arena_detach(other);
}

TEST_WITH(host, host_begin, it_stays_until_a_batch_is_full)
{
    struct sticky sticky = {.topic_index = host->topic_index};
    partitioner_sticky(&host->partitioner, &sticky, PARTITION_COUNT);
    uint64_t before = sticky_at(host);
    EXPECT(sticky_stays(host->arena, &sticky, false));
    EXPECT_EQ_U64(sticky_at(host), before);
    EXPECT(!sticky_stays(host->arena, &sticky, true));
    EXPECT_EQ_U64(sticky_word_partition(sticky_at(host)), NO_STICKY);
    EXPECT(!sticky_stays(host->arena, &sticky, false)); /* its partition is no longer the sticky one */
    partitioner_sticky(&host->partitioner, &sticky, PARTITION_COUNT);
    EXPECT_EQ_U64(sticky_word_move_count(sticky_at(host)), sticky_word_move_count(before) + 2);
    EXPECT(sticky_stays(host->arena, &sticky, false));
}

/* BuiltInPartitionerTest.testStickyPartitioning: batches cut short add up to one. */
TEST_WITH(host, host_begin, short_batches_count_until_they_make_a_full_one)
{
    struct sticky sticky = {.topic_index = host->topic_index};
    partitioner_sticky(&host->partitioner, &sticky, PARTITION_COUNT);
    sticky.size = BATCH_SIZE - 1;
    EXPECT(sticky_stays(host->arena, &sticky, false));
    sticky.size = BATCH_SIZE;
    EXPECT(!sticky_stays(host->arena, &sticky, false));
    partitioner_sticky(&host->partitioner, &sticky, PARTITION_COUNT);
    EXPECT_EQ_U64(sticky.size, 0);
    uint64_t before = sticky_at(host);
    sticky.size = 2 * BATCH_SIZE - 1;
    partitioner_sticky(&host->partitioner, &sticky, PARTITION_COUNT);
    EXPECT_EQ_U64(sticky_at(host), before);
    sticky.size = 2 * BATCH_SIZE;
    partitioner_sticky(&host->partitioner, &sticky, PARTITION_COUNT);
    EXPECT_EQ_U64(sticky_word_move_count(sticky_at(host)), sticky_word_move_count(before) + 1);
}

TEST_WITH(host, host_begin, one_that_dies_between_moving_on_and_choosing_is_replaced)
{
    struct sticky dead = {.topic_index = host->topic_index};
    struct sticky living = {.topic_index = host->topic_index};
    partitioner_sticky(&host->partitioner, &dead, PARTITION_COUNT);
    EXPECT(!sticky_stays(host->arena, &dead, true)); /* so it never chooses a partition */
    EXPECT(partitioner_sticky(&host->partitioner, &living, PARTITION_COUNT) < PARTITION_COUNT);
    EXPECT_EQ_U64(sticky_at(host), living.word);
}

TEST_WITH(host, host_begin, a_partition_that_no_longer_exists_is_not_sent)
{
    struct sticky sticky = {.topic_index = host->topic_index};
    store_release_u64(&host->arena->topics[host->topic_index].sticky, sticky_word(7, 4));
    EXPECT_EQ_U64(partitioner_sticky(&host->partitioner, &sticky, PARTITION_COUNT), 4);
    EXPECT(partitioner_sticky(&host->partitioner, &sticky, 2) < 2);
    EXPECT_EQ_U64(partitioner_sticky(&host->partitioner, &sticky, 1), 0);
    store_release_u64(&host->arena->topics[host->topic_index].sticky, UINT64_MAX); /* a random value */
    EXPECT(partitioner_sticky(&host->partitioner, &sticky, PARTITION_COUNT) < PARTITION_COUNT);
}

/* ---- appending to the sticky partition ---- */

static const uint8_t value[RECORD_VALUE_SIZE];

struct user {
    struct arena *arena;
    struct accumulator *accumulator;
    struct registry *registry;
    struct partitioner partitioner;
    struct sticky sticky;
};

static struct user user_new(const struct host *host, struct arena *arena)
{
    struct user user = {.arena = arena, .registry = registry_opened(arena), .sticky.topic_index = host->topic_index};
    EXPECT_STATUS(accumulator_open(arena, &user.accumulator, NULL), STATUS_OK);
    user.partitioner = partitioner_of(arena, user.registry);
    return user;
}

static void user_end(struct user *user)
{
    accumulator_close(user->accumulator);
    registry_close(user->registry);
}

static struct measured_record record_measured(const struct accumulator *accumulator)
{
    struct measured_record measured = {
        .record = {.timestamp_ms = 1000, .key_size = -1, .value = value, .value_size = sizeof value}};
    EXPECT_STATUS(accumulator_measure(accumulator, &measured.record, &measured.size), STATUS_OK);
    return measured;
}

/* Appends a record to the sticky partition. If that changes meanwhile, tries again. */
static void user_append(struct user *user)
{
    struct measured_record measured = record_measured(user->accumulator);
    struct append_result result;
    struct append_order order = {.count = 1, .records = &measured, .sticky = &user->sticky};
    enum status status;
    do {
        order.partition_index = partitioner_sticky(&user->partitioner, &user->sticky, PARTITION_COUNT);
        status = accumulator_append_order(user->accumulator, &order, &result);
    } while (status == STATUS_TRY_AGAIN);
    EXPECT_STATUS(status, STATUS_OK);
}

/* Counts the records of all batches, and returns the number of batches that are not full. */
static uint32_t short_batch_count(const struct arena *arena, uint32_t full, uint32_t *record_count)
{
    uint32_t short_count = 0;
    *record_count = 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = slot_word_at(arena, i);
        if (slot_word_state(word) == SLOT_OPEN || slot_word_state(word) == SLOT_READY) {
            *record_count += slot_word_count(word);
            short_count += slot_word_count(word) < full;
        }
    }
    return short_count;
}

static void deliver_everything(struct accumulator *accumulator)
{
    struct wake_set wakes = {0};
    EXPECT_STATUS(accumulator_become_sender(accumulator, NULL), STATUS_OK);
    sender_abort(accumulator->sender, true, &wakes);
    sender_maintain(accumulator->sender, &wakes); /* frees the empty batch of an opener that was passed */
    accumulator_resign_sender(accumulator);
}

TEST_WITH(host, host_begin, two_processes_fill_the_same_batches_and_leave_none_begun)
{
    enum { RECORDS_OF_A_BATCH = 7, ROUNDS = 35 };
    struct arena *other = arena_attached(host->file);
    struct user users[] = {user_new(host, host->arena), user_new(host, other)};
    uint32_t record_count;
    for (int i = 0; i < ROUNDS; i++) {
        user_append(&users[0]);
        user_append(&users[1]);
    }
    EXPECT(short_batch_count(host->arena, RECORDS_OF_A_BATCH, &record_count) <= 1);
    EXPECT_EQ_U64(record_count, 2 * ROUNDS);
    EXPECT_EQ_U64(2 * ROUNDS % RECORDS_OF_A_BATCH, 0);
    deliver_everything(users[0].accumulator);
    user_end(&users[0]);
    user_end(&users[1]);
    arena_detach(other);
}

TEST_WITH(host, host_begin, a_granted_slot_is_kept_if_its_append_goes_to_another_partition)
{
    struct user user = user_new(host, host->arena);
    struct measured_record measured = record_measured(user.accumulator);
    struct append_result result;
    uint32_t slot_index = NO_SLOT;
    EXPECT_STATUS(buffer_pool_try_allocate(host->arena, &slot_index), STATUS_OK);
    struct reservation reservation = {.slots = &slot_index, .count = 1};
    struct append_order order = {
        .count = 1, .records = &measured, .reservation = &reservation, .sticky = &user.sticky};
    order.partition_index = partitioner_sticky(&user.partitioner, &user.sticky, PARTITION_COUNT);
    user.sticky.size = BATCH_SIZE;
    EXPECT_STATUS(accumulator_append_order(user.accumulator, &order, &result), STATUS_TRY_AGAIN);
    EXPECT_EQ_U64(reservation.count, 1);
    EXPECT_EQ_U64(slot_state_at(host->arena, slot_index), SLOT_OWNED);
    order.partition_index = partitioner_sticky(&user.partitioner, &user.sticky, PARTITION_COUNT);
    EXPECT_STATUS(accumulator_append_order(user.accumulator, &order, &result), STATUS_OK);
    EXPECT_EQ_U64(reservation.count, 0);
    EXPECT_EQ_U64(result.first.slot_index, slot_index);
    deliver_everything(user.accumulator);
    user_end(&user);
}

TEST_WITH(host, host_begin, the_sender_publishes_how_long_the_queues_are)
{
    struct user user = user_new(host, host->arena);
    struct measured_record measured = record_measured(user.accumulator);
    struct append_result result;
    EXPECT_STATUS(accumulator_become_sender(user.accumulator, NULL), STATUS_OK);
    for (int i = 0; i < 10; i++) { /* two batches in partition 1, one in 3 */
        EXPECT_STATUS(accumulator_append(user.accumulator, 1, &measured, 1, NULL, &result), STATUS_OK);
    }
    EXPECT_STATUS(accumulator_append(user.accumulator, 3, &measured, 1, NULL, &result), STATUS_OK);
    sender_set_available(user.accumulator->sender, 4, false);
    sender_publish_queues(user.accumulator->sender);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->partitions[1].queued_batch_count), 2);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->partitions[3].queued_batch_count), 1);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->partitions[4].queued_batch_count), PARTITION_UNAVAILABLE);
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->topics[host->topic_index].queued_batch_count_max), 2);
    struct wake_set wakes = {0};
    sender_abort(user.accumulator->sender, true, &wakes);
    sender_set_available(user.accumulator->sender, 4, true);
    sender_publish_queues(user.accumulator->sender);
    for (uint32_t i = 0; i < PARTITION_COUNT; i++) {
        EXPECT_EQ_U64(load_relaxed_u32(&host->arena->partitions[i].queued_batch_count), 0);
    }
    EXPECT_EQ_U64(load_relaxed_u32(&host->arena->topics[host->topic_index].queued_batch_count_max), 0);
    user_end(&user);
}

/* ---- threads that pose as processes ---- */

enum { THREAD_COUNT = 3, APPENDS = 60 };

struct thread_work {
    const struct host *host;
    struct arena *arena;
    pthread_t thread;
};

static void *append_sticky(void *argument)
{
    const struct thread_work *work = argument;
    struct user user = user_new(work->host, work->arena);
    user.partitioner.random_state = (uint64_t)(uintptr_t)work;
    for (int i = 0; i < APPENDS; i++) {
        user_append(&user);
    }
    user_end(&user);
    return NULL;
}

/* A batch has 7 records, so 180 records need 26 of the 64 slots. No thread waits, and a batch that was begun and left
 * would be noticed. Each partition may have a begun batch at the end, and each opener that was passed leaves one. */
TEST_WITH(host, host_begin, threads_append_by_it_without_leaving_begun_batches)
{
    struct thread_work works[THREAD_COUNT];
    uint32_t record_count;
    for (int i = 0; i < THREAD_COUNT; i++) {
        works[i] = (struct thread_work){.host = host, .arena = arena_attached_for_thread(host->file, host->arena)};
        EXPECT(pthread_create(&works[i].thread, NULL, append_sticky, &works[i]) == 0);
    }
    for (int i = 0; i < THREAD_COUNT; i++) {
        pthread_join(works[i].thread, NULL);
    }
    uint64_t short_max = 1 + PARTITION_COUNT + counter_value(host->arena, COUNTER_LOCKS_PASSED);
    EXPECT(short_batch_count(host->arena, 7, &record_count) <= short_max);
    EXPECT_EQ_U64(record_count, THREAD_COUNT * APPENDS);
    struct user user = user_new(host, host->arena);
    deliver_everything(user.accumulator);
    user_end(&user);
    for (int i = 0; i < THREAD_COUNT; i++) {
        arena_detach(works[i].arena);
    }
}

RUN_ALL()
