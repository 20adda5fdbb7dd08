/* SPDX-License-Identifier: Apache-2.0 */
/* runs under: tsan */
#include "arena/counters.h"

#include "arena/arena_fixture.h"
#include "arena/attach.h"

TEST_IN_ARENA(geometry_of(8, 512), every_counter_has_its_own_label_and_begins_at_0)
{
    for (uint32_t i = 0; i < COUNTERS_USED; i++) {
        EXPECT(arena->counters[i].label[0] != 0);
        EXPECT(memchr(arena->counters[i].label, 0, COUNTER_LABEL_SIZE) != NULL);
        EXPECT(strcmp(arena->counters[i].label, counter_label(i)) == 0);
        EXPECT_EQ_U64(counter_value(arena, (enum counter)i), 0);
        for (uint32_t j = 0; j < i; j++) {
            EXPECT(strcmp(arena->counters[i].label, arena->counters[j].label) != 0);
        }
    }
    counter_add(arena, COUNTER_WAIT_NS, 5);
    counter_add(arena, COUNTER_WAIT_NS, UINT64_C(1) << 40);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_WAIT_NS), (UINT64_C(1) << 40) + 5);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_WAITS), 0);
}

static uint32_t errors_logged(const struct arena *arena)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ERROR_LOG_COUNT; i++) {
        count += load_acquire_u64(&arena->error_log[i].key) != 0;
    }
    return count;
}

TEST_IN_ARENA(geometry_of(8, 512), an_error_is_logged_once_and_counted)
{
    arena->clock = (struct clock){.is_manual = true, .manual_ns = 100};
    error_log_record(arena, STATUS_CORRUPT, "first");
    arena->clock.manual_ns = 200;
    error_log_record(arena, STATUS_CORRUPT, "first");
    error_log_record(arena, STATUS_OS, "first");
    error_log_record(arena, STATUS_CORRUPT, "second");
    const struct error_entry *entry = &arena->error_log[0];
    EXPECT_EQ_U64(errors_logged(arena), 3);
    EXPECT_EQ_U64(load_relaxed_u64(&entry->count), 2);
    EXPECT_EQ_U64(load_relaxed_u64(&entry->first_ns), 100);
    EXPECT_EQ_U64(load_relaxed_u64(&entry->last_ns), 200);
    EXPECT_EQ_U64(load_acquire_u32(&entry->is_readable), 1);
    EXPECT_EQ_U64(entry->code, STATUS_CORRUPT);
    EXPECT(strcmp(entry->text, "first") == 0);
}

TEST_IN_ARENA(geometry_of(8, 512), long_texts_are_truncated_and_equal_if_their_beginnings_are)
{
    char text[2 * ERROR_LOG_TEXT_SIZE] = {0};
    memset(text, 'a', sizeof text - 1);
    error_log_record(arena, STATUS_CORRUPT, text);
    text[ERROR_LOG_TEXT_SIZE] = 'b';
    error_log_record(arena, STATUS_CORRUPT, text);
    EXPECT_EQ_U64(errors_logged(arena), 1);
    EXPECT_EQ_U64(strlen(arena->error_log[0].text), ERROR_LOG_TEXT_SIZE - 1);
    error_log_record(arena, STATUS_CORRUPT, "");
    EXPECT_EQ_U64(errors_logged(arena), 2);
}

TEST_IN_ARENA(geometry_of(8, 512), a_full_error_log_drops_new_entries_and_counts_repeated_ones)
{
    for (int i = 0; i < 2 * ERROR_LOG_COUNT; i++) {
        char text[32];
        snprintf(text, sizeof text, "error %d", i);
        error_log_record(arena, STATUS_CORRUPT, text);
    }
    error_log_record(arena, STATUS_CORRUPT, "error 0");
    EXPECT_EQ_U64(errors_logged(arena), ERROR_LOG_COUNT);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->error_log[0].count), 2);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->error_log[ERROR_LOG_COUNT - 1].count), 1);
}

static void *log_much(void *argument)
{
    for (int i = 0; i < 300; i++) {
        char text[32];
        snprintf(text, sizeof text, "error %d", i % 10);
        error_log_record(argument, STATUS_CORRUPT, text);
        counter_add(argument, COUNTER_WAITS, 1);
    }
    return NULL;
}

TEST_IN_ARENA(geometry_of(8, 512), many_writers_lose_no_count)
{
    enum { WRITERS = 4 };
    run_in_threads(file, arena, WRITERS, log_much);
    EXPECT_EQ_U64(errors_logged(arena), 10);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_WAITS), WRITERS * 300);
    for (int i = 0; i < 10; i++) {
        EXPECT_EQ_U64(load_relaxed_u64(&arena->error_log[i].count), WRITERS * 30);
        EXPECT_EQ_U64(load_relaxed_u32(&arena->error_log[i].is_readable), 1);
    }
}

RUN_ALL()
