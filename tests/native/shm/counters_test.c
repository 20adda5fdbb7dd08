/* SPDX-License-Identifier: Apache-2.0 */
/* runs under: tsan */
#include "shm/counters.h"

#include "participants.h"

#include <pthread.h>

TEST(every_counter_begins_at_zero_with_a_label_of_its_own)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    for (uint32_t i = 0; i < COUNTERS_USED; i++) {
        EXPECT(arena->counters[i].label[0] != 0);
        EXPECT(memchr(arena->counters[i].label, 0, COUNTER_LABEL_SIZE) != NULL);
        EXPECT_EQ_U64(counter_value(arena, (enum counter)i), 0);
        for (uint32_t other = 0; other < i; other++) {
            EXPECT(strcmp(arena->counters[i].label, arena->counters[other].label) != 0);
        }
    }
    for (uint32_t i = COUNTERS_USED; i < COUNTER_COUNT; i++) {
        EXPECT_EQ_U64((uint64_t)arena->counters[i].label[0], 0);
    }
    arena_end(arena, file);
}

TEST(a_counter_adds_up_for_everybody)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    struct arena *other = arena_attached(file);
    counter_add(arena, COUNTER_WAITS, 2);
    counter_add(other, COUNTER_WAITS, 3);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_WAITS), 5);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_WAIT_NS), 0);
    arena_detach(other);
    arena_end(arena, file);
}

/* ---- error log ---- */

TEST(the_same_error_is_one_entry_that_counts)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    arena->clock = (struct clock){.is_manual = true, .manual_ns = 100};
    error_log_record(arena, STATUS_CORRUPT, "one");
    arena->clock.manual_ns = 250;
    error_log_record(arena, STATUS_CORRUPT, "one");
    const struct error_entry *entry = &arena->error_log[0];
    EXPECT_EQ_U64(load_acquire_u32(&entry->is_readable), 1);
    EXPECT_EQ_U64(entry->code, STATUS_CORRUPT);
    EXPECT(strcmp(entry->text, "one") == 0);
    EXPECT_EQ_U64(load_acquire_u64(&entry->count), 2);
    EXPECT_EQ_U64(load_acquire_u64(&entry->first_ns), 100);
    EXPECT_EQ_U64(load_acquire_u64(&entry->last_ns), 250);
    EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[1].key), 0);
    arena_end(arena, file);
}

TEST(another_text_or_another_status_is_another_entry)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    error_log_record(arena, STATUS_CORRUPT, "one");
    error_log_record(arena, STATUS_INVALID, "one");
    error_log_record(arena, STATUS_CORRUPT, "two");
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[i].count), 1);
    }
    EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[3].count), 0);
    arena_end(arena, file);
}

TEST(a_full_log_goes_on_counting_what_it_knows_and_drops_the_rest)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    char text[32];
    for (int i = 0; i < ERROR_LOG_COUNT + 5; i++) {
        snprintf(text, sizeof text, "error %d", i);
        error_log_record(arena, STATUS_CORRUPT, text);
    }
    error_log_record(arena, STATUS_CORRUPT, "error 63");
    error_log_record(arena, STATUS_CORRUPT, "error 64");
    EXPECT(strcmp(arena->error_log[63].text, "error 63") == 0);
    EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[63].count), 2);
    EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[0].count), 1);
    EXPECT_EQ_U64(load_acquire_u64((const atomic_u64 *)(const void *)arena->slot_data), 0);
    arena_end(arena, file);
}

TEST(a_text_that_is_too_long_is_cut_and_ends_with_zero)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    char text[2 * ERROR_LOG_TEXT_SIZE];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    error_log_record(arena, STATUS_CORRUPT, text);
    EXPECT_EQ_U64(strnlen(arena->error_log[0].text, ERROR_LOG_TEXT_SIZE), ERROR_LOG_TEXT_SIZE - 1);
    EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[1].key), 0);
    arena_end(arena, file);
}

enum { WRITER_COUNT = 3, ROUND_COUNT = 400 };

static void *record_errors(void *argument)
{
    struct arena *arena = argument;
    for (int i = 0; i < ROUND_COUNT; i++) {
        error_log_record(arena, STATUS_CORRUPT, i % 2 == 0 ? "even" : "odd");
    }
    return NULL;
}

TEST(several_at_once_agree_on_one_entry_per_error)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    pthread_t threads[WRITER_COUNT];
    for (int i = 0; i < WRITER_COUNT; i++) {
        EXPECT_EQ_U64((uint64_t)pthread_create(&threads[i], NULL, record_errors, arena), 0);
    }
    for (int i = 0; i < WRITER_COUNT; i++) {
        pthread_join(threads[i], NULL);
    }
    EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[0].count), WRITER_COUNT * ROUND_COUNT / 2);
    EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[1].count), WRITER_COUNT * ROUND_COUNT / 2);
    EXPECT_EQ_U64(load_acquire_u64(&arena->error_log[2].key), 0);
    arena_end(arena, file);
}

RUN_ALL()
