/* SPDX-License-Identifier: Apache-2.0 */
#include "format/fetch.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "testing.h"

enum { SIZE_MAX_OF_TEST = 1024 };

/* ---- requests ---- */

/* Version 4: replica, 500 ms, 1 byte, 2 bytes at most, isolation 1 | "t": partitions 7 (offset 8, 9 bytes) and 1. */
static const char old_request[] =
    "\xff\xff\xff\xff\0\0\1\xf4\0\0\0\1\0\0\0\2\1"
    "\0\0\0\1\0\1t\0\0\0\2"
    "\0\0\0\7\0\0\0\0\0\0\0\10\0\0\0\11"
    "\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\3";

/* Version 12: the same, session 5, epoch 6 | "t": partition 7, leader epoch 3 | forgotten "u": 4 | rack | tag. */
static const char flexible_request[] =
    "\xff\xff\xff\xff\0\0\1\xf4\0\0\0\1\0\0\0\2\1\0\0\0\5\0\0\0\6"
    "\2\2t\2\0\0\0\7\0\0\0\3\0\0\0\0\0\0\0\10\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\11\0\0"
    "\2\2u\2\0\0\0\4\0"
    "\2r\1\0\1x";

static void expect_limits(const struct fetch_limits *limits, int32_t session_id, int32_t session_epoch)
{
    EXPECT_EQ_U64((uint64_t)limits->max_wait_ms, 500);
    EXPECT_EQ_U64((uint64_t)limits->min_bytes, 1);
    EXPECT_EQ_U64((uint64_t)limits->max_bytes, 2);
    EXPECT_EQ_U64((uint64_t)limits->isolation_level, 1);
    EXPECT(limits->session_id == session_id);
    EXPECT(limits->session_epoch == session_epoch);
}

static void expect_topic(const struct fetch_part *part, const char *name)
{
    EXPECT(part->topic_size == strlen(name) && memcmp(part->topic, name, part->topic_size) == 0);
}

TEST(a_request_is_read_part_by_part)
{
    struct fetch_reader reader;
    struct fetch_limits limits;
    struct fetch_part part;
    EXPECT(fetch_begin(&reader, (const uint8_t *)old_request, sizeof old_request - 1, 4, &limits));
    expect_limits(&limits, NO_SESSION, FINAL_EPOCH);
    EXPECT(fetch_next(&reader, &part) == FETCH_TOPIC);
    expect_topic(&part, "t");
    EXPECT(fetch_next(&reader, &part) == FETCH_PARTITION);
    EXPECT(part.partition == 7 && part.offset == 8 && part.size_max == 9 && part.leader_epoch == -1);
    EXPECT(fetch_next(&reader, &part) == FETCH_PARTITION);
    EXPECT(part.partition == 1 && part.offset == 2 && part.size_max == 3);
    EXPECT(fetch_next(&reader, &part) == FETCH_END);
}

TEST(a_flexible_request_has_a_session_and_forgotten_partitions)
{
    struct fetch_reader reader;
    struct fetch_limits limits;
    struct fetch_part part;
    EXPECT(fetch_begin(&reader, (const uint8_t *)flexible_request, sizeof flexible_request - 1, 12, &limits));
    expect_limits(&limits, 5, 6);
    EXPECT(fetch_next(&reader, &part) == FETCH_TOPIC);
    EXPECT(fetch_next(&reader, &part) == FETCH_PARTITION);
    EXPECT(part.partition == 7 && part.offset == 8 && part.size_max == 9 && part.leader_epoch == 3);
    EXPECT(fetch_next(&reader, &part) == FETCH_TOPIC);
    expect_topic(&part, "u");
    EXPECT(fetch_next(&reader, &part) == FETCH_FORGOTTEN);
    EXPECT(part.partition == 4);
    EXPECT(fetch_next(&reader, &part) == FETCH_END);
}

/* Reads a whole request from separate memory, so that a sanitizer detects a read past its end. */
static enum fetch_part_kind read_all(const char *request, size_t size, int64_t version, struct fetch_reader *reader)
{
    struct fetch_limits limits;
    struct fetch_part part;
    uint8_t *copy = malloc(size + (size == 0));
    memcpy(copy, request, size);
    enum fetch_part_kind kind = fetch_begin(reader, copy, size, version, &limits) ? FETCH_TOPIC : FETCH_INVALID;
    while (kind != FETCH_END && kind != FETCH_INVALID) {
        kind = fetch_next(reader, &part);
    }
    free(copy);
    return kind;
}

TEST(a_request_cut_anywhere_is_invalid)
{
    struct fetch_reader reader;
    for (size_t size = 0; size < sizeof old_request - 1; size++) {
        EXPECT(read_all(old_request, size, 4, &reader) == FETCH_INVALID);
    }
    for (size_t size = 0; size < sizeof flexible_request - 1; size++) {
        EXPECT(read_all(flexible_request, size, 12, &reader) == FETCH_INVALID);
    }
    EXPECT(read_all(old_request, sizeof old_request, 4, &reader) == FETCH_INVALID);
    EXPECT(strstr(reader.error.message, "are used") != NULL);
}

TEST(arrays_have_no_more_elements_than_bytes)
{
    enum { COUNT = 20 }; /* the position of the lowest byte of the number of topics */
    struct fetch_reader reader;
    char request[sizeof old_request];
    memcpy(request, old_request, sizeof request);
    request[COUNT] = 0x7f;
    EXPECT(read_all(request, sizeof request - 1, 4, &reader) == FETCH_INVALID);
    EXPECT(strstr(reader.error.message, "an array of 127 elements") != NULL);
}

TEST(a_frame_of_a_fetch_is_recognized)
{
    static const char frame[] = "\0\0\0\x0c\0\1\0\4\0\0\0\x4d\0\1mB";
    static const struct {
        size_t place;
        char wrong;
    } faults[] = {{3, 13}, {5, 2}, {7, 3}, {7, 18}, {13, 2}};
    struct fetch_frame read;
    char wrong[sizeof frame];
    EXPECT(fetch_frame_read((const uint8_t *)frame, sizeof frame - 1, &read));
    EXPECT(read.version == 4 && read.correlation_id == 77 && read.body_size == 1 && *read.body == 'B');
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        memcpy(wrong, frame, sizeof wrong);
        wrong[faults[i].place] = faults[i].wrong;
        EXPECT(!fetch_frame_read((const uint8_t *)wrong, sizeof frame - 1, &read));
    }
}

/* ---- responses ---- */

static const struct fetch_aborted aborted[] = {{.producer_id = 5, .first_offset = 6}};

static struct fetch_found found_of(const char *topic, int32_t partition)
{
    return (struct fetch_found){.topic = topic,
                                .topic_size = strlen(topic),
                                .partition = partition,
                                .end_offset = 9,
                                .stable_offset = 8,
                                .records_size = 100};
}

TEST(a_response_is_written_around_its_records)
{
    static const char expected[] =
        "\0\0\0\xaf\0\0\0\x4d\0\0\0\0"
        "\0\0\0\1\0\1t\0\0\0\1"
        "\0\0\0\7\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x08"
        "\0\0\0\1\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\6\0\0\0\x64";
    struct fetch_found found = found_of("t", 7);
    struct fetch_response response = {.found = &found, .count = 1, .version = 4, .correlation_id = 77};
    uint8_t bytes[SIZE_MAX_OF_TEST];
    int64_t frame_size;
    found.aborted = aborted;
    found.aborted_count = 1;
    size_t size = fetch_response_write(&response, bytes, &frame_size);
    EXPECT_EQ_U64(size, sizeof expected - 1);
    EXPECT_EQ_U64((uint64_t)frame_size, size - 4 + 100);
    EXPECT_EQ_U64(load_be32(bytes), (uint64_t)frame_size);
    EXPECT(memcmp(bytes + 4, expected + 4, sizeof expected - 5) == 0);
    EXPECT_EQ_U64(found.cut, size);
}

TEST(neighbours_share_their_topic)
{
    struct fetch_found found[] = {found_of("t", 0), found_of("t", 1), found_of("u", 0), found_of("t", 2)};
    struct fetch_response response = {.found = found, .count = 4, .version = 4};
    uint8_t bytes[SIZE_MAX_OF_TEST];
    int64_t frame_size;
    size_t size = fetch_response_write(&response, bytes, &frame_size);
    EXPECT_EQ_U64(load_be32(bytes + 12), 3);
    EXPECT_EQ_U64(load_be32(bytes + 19), 2);
    EXPECT(found[0].cut < found[1].cut && found[1].cut < found[2].cut && found[2].cut < found[3].cut);
    EXPECT_EQ_U64(found[3].cut, size);
}

TEST(no_response_exceeds_the_bytes_that_were_announced)
{
    for (int16_t version = FETCH_VERSION_MIN; version <= FETCH_VERSION_MAX; version++) {
        struct fetch_found found[] = {found_of("an id of 16 byte", 0), found_of("another of 16 by", 1)};
        struct fetch_response response = {.found = found, .count = 2, .version = version};
        int64_t frame_size;
        for (int i = 0; i < 2; i++) {
            found[i].is_topic_id = version >= FETCH_TOPIC_IDS;
            found[i].aborted = aborted;
            found[i].aborted_count = 1;
            found[i].records_size = INT64_MAX;
        }
        size_t size_max = fetch_response_size_max(&response);
        uint8_t *bytes = malloc(size_max);
        EXPECT(fetch_response_write(&response, bytes, &frame_size) <= size_max);
        EXPECT(frame_size == INT64_MAX);
        free(bytes);
    }
}

RUN_ALL()
