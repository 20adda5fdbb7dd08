/* SPDX-License-Identifier: Apache-2.0 */
#include "format/scatter.h"

#include "format/crc32c.h"

#include "testing.h"

static const uint8_t text[] = "0123456789abcdefghijklmnopqrstuvwxyz";

enum { TEXT_SIZE = sizeof text - 1 };

/* Three pieces in separate memory, so that a write past the end of one is detected. */
struct parts {
    uint8_t bytes[3][TEXT_SIZE + 2];
    struct piece pieces[3];
};

static void split(struct parts *parts, size_t first_size, size_t second_size)
{
    size_t sizes[3] = {first_size, second_size, TEXT_SIZE - first_size - second_size};
    memset(parts->bytes, 0xee, sizeof parts->bytes);
    for (size_t i = 0; i < 3; i++) {
        parts->pieces[i] = (struct piece){.start = parts->bytes[i] + 1, .size = sizes[i]};
    }
}

static void expect_only_pieces_written(const struct parts *parts)
{
    for (size_t i = 0; i < 3; i++) {
        EXPECT_EQ_U64(parts->bytes[i][0], 0xee);
        EXPECT_EQ_U64(parts->bytes[i][parts->pieces[i].size + 1], 0xee);
    }
}

static void write_in_steps(struct scatter *target, size_t step)
{
    for (size_t position = 0; position < TEXT_SIZE; position += step) {
        size_t rest = TEXT_SIZE - position;
        scatter_write(target, text + position, step < rest ? step : rest);
    }
}

static void expect_text(const struct parts *parts)
{
    uint8_t joined[TEXT_SIZE];
    EXPECT_EQ_U64(pieces_size(parts->pieces, 3), TEXT_SIZE);
    pieces_copy(joined, parts->pieces, 3);
    EXPECT(memcmp(joined, text, TEXT_SIZE) == 0);
    EXPECT_EQ_U64(pieces_crc32c(0, parts->pieces, 3), crc32c_extend(0, text, TEXT_SIZE));
}

TEST(bytes_written_in_any_steps_into_any_three_pieces_are_the_same)
{
    for (size_t first = 0; first <= TEXT_SIZE; first++) {
        for (size_t second = 0; first + second <= TEXT_SIZE; second++) {
            for (size_t step = 1; step <= TEXT_SIZE; step += 5) {
                struct parts parts;
                split(&parts, first, second);
                struct scatter target = {.pieces = parts.pieces, .piece_count = 3};
                write_in_steps(&target, step);
                expect_text(&parts);
                expect_only_pieces_written(&parts);
            }
        }
    }
}

TEST(writing_nothing_moves_nothing)
{
    struct parts parts;
    split(&parts, 4, 4);
    struct scatter target = {.pieces = parts.pieces, .piece_count = 3};
    scatter_write(&target, text, 0);
    EXPECT(target.piece_index == 0 && target.position == 0);
    EXPECT_EQ_U64(parts.bytes[0][1], 0xee);
}

TEST(no_pieces_have_no_size_and_no_crc_of_their_own)
{
    EXPECT_EQ_U64(pieces_size(NULL, 0), 0);
    EXPECT_EQ_U64(pieces_crc32c(0x1234, NULL, 0), 0x1234);
}

RUN_ALL()
