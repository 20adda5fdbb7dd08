/* SPDX-License-Identifier: Apache-2.0
 *
 * A sender publishes its outage, and others read it. complete_test.c tests the age of batches.
 */
#include "arena/delivery_clock.h"

#include "arena/arena_fixture.h"

#include "arena/attach.h"
#include "arena/process.h"

static struct arena *with_role(int file)
{
    struct arena *arena = arena_created(file, geometry_of(8, 512));
    EXPECT_STATUS(process_take_sender_role(arena, "kafka:broker:9092", NULL), STATUS_OK);
    delivery_clock_announce(arena, 120 * NS_PER_S, false);
    return arena;
}

static void expect_outage(const struct arena *arena, uint64_t since_ns, const char *text)
{
    char found[OUTAGE_SIZE] = "";
    EXPECT_EQ_U64(delivery_clock_outage(arena, found), since_ns);
    if (since_ns != 0) {
        EXPECT_OR_SAY(strcmp(found, text) == 0, "the outage is \"%s\"", found);
    }
}

TEST(everybody_reads_the_outage_that_the_sender_publishes)
{
    int file = arena_file_new();
    struct arena *arena = with_role(file);
    struct arena *other = arena_attached(file);
    expect_outage(other, 0, "");
    delivery_clock_publish_outage(arena, 5 * NS_PER_S, "no broker answers");
    expect_outage(other, 5 * NS_PER_S, "no broker answers");
    expect_outage(arena, 5 * NS_PER_S, "no broker answers");
    delivery_clock_publish_outage(arena, 0, "");
    expect_outage(other, 0, "");
    arena_detach(other);
    process_leave_sender_role(arena);
    arena_end(arena, file);
}

TEST(a_sentence_that_is_too_long_is_cut)
{
    char longer[2 * OUTAGE_SIZE];
    char cut[OUTAGE_SIZE];
    int file = arena_file_new();
    struct arena *arena = with_role(file);
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    memcpy(cut, longer, sizeof cut);
    cut[sizeof cut - 1] = 0;
    delivery_clock_publish_outage(arena, 1, longer);
    expect_outage(arena, 1, cut);
    process_leave_sender_role(arena);
    arena_end(arena, file);
}

TEST(without_a_living_sender_there_is_no_outage_to_be_reported)
{
    int file = arena_file_new();
    struct arena *arena = with_role(file);
    struct arena *other = arena_attached(file);
    delivery_clock_publish_outage(arena, 1, "no broker answers");
    process_leave_sender_role(arena);
    expect_outage(other, 0, "");
    EXPECT_STATUS(process_take_sender_role(other, "log:/tmp", NULL), STATUS_OK);
    delivery_clock_announce(other, NS_PER_S, true);
    expect_outage(arena, 0, "");
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->delivery_timeout_ns), NS_PER_S);
    process_leave_sender_role(other);
    arena_detach(other);
    arena_end(arena, file);
}

TEST(a_text_that_a_sender_left_half_written_is_not_reported_and_is_repaired)
{
    int file = arena_file_new();
    struct arena *arena = with_role(file);
    delivery_clock_publish_outage(arena, 1, "no broker answers");
    add_u32(&arena->globals->outage_number, 1); /* as a death in the middle of the update leaves it */
    expect_outage(arena, 0, "");
    delivery_clock_publish_outage(arena, 2, "the disk is full");
    expect_outage(arena, 2, "the disk is full");
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->outage_number) % 2, 0);
    process_leave_sender_role(arena);
    arena_end(arena, file);
}

TEST(hostile_bytes_of_an_outage_end_with_it)
{
    char found[OUTAGE_SIZE];
    int file = arena_file_new();
    struct arena *arena = with_role(file);
    memset(arena->globals->outage, 0xff, sizeof arena->globals->outage);
    store_relaxed_u64(&arena->globals->outage_since_ns, UINT64_MAX);
    EXPECT_EQ_U64(delivery_clock_outage(arena, found), UINT64_MAX);
    EXPECT_EQ_U64(strlen(found), OUTAGE_SIZE - 1);
    process_leave_sender_role(arena);
    arena_end(arena, file);
}

RUN_ALL()
