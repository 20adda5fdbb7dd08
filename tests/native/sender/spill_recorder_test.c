/* SPDX-License-Identifier: Apache-2.0 */
#include "core/accumulator.h"

#include "arena/completion.h"
#include "core/delivery_fixture.h"
#include "format/crc32c.h"
#include "sender/spill_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS_BEGIN = 4096, RECORDS = 3, PARTITION = 1, ARENA = 99, SINK_OFFSET = 500 };

struct row {
    int64_t base_offset;
    uint64_t seq;
    uint32_t slot_index;
    uint32_t record_count;
    uint64_t arena;
};

/* A sender, and a stream in which batches 0 and 1 are acknowledged and batch 2 is not. */
struct keeping {
    struct arena *arena;
    struct accumulator *sender;
    int file;
    struct partition_stream stream;
    struct spill_stream spill;
    struct spill_recorder recorder;
};

static struct ship_batch batch_of(int number)
{
    return (struct ship_batch){.end = {.offset = (number + 1) * RECORDS, .position = (number + 1) * 100},
                               .record_count = RECORDS,
                               .size = 100,
                               .is_acked = number < 2,
                               .result = {.base_offset = SINK_OFFSET + number * RECORDS, .log_append_time_ms = -1}};
}

static void row_write(int file, int place, const struct row *row)
{
    EXPECT(pwrite(file, row, sizeof *row, ROWS_BEGIN + place * (off_t)sizeof *row) == (ssize_t)sizeof *row);
}

static void keeping_begin(struct keeping *keeping)
{
    int file = arena_file_new();
    *keeping = (struct keeping){.arena = arena_created(file, geometry_of(8, 512)), .file = file};
    keeping->sender = sender_opened(keeping->arena);
    keeping->spill = (struct spill_stream){
        .file = memfd_create("spill", 0), .partition_index = PARTITION, .number = 6, .position = {[16] = 0xab}};
    keeping->recorder = (struct spill_recorder){.recorder.record = spill_record,
                                            .half = keeping->sender->sender,
                                            .streams = &keeping->spill,
                                            .arena = ARENA};
    for (int i = 0; i < 3; i++) {
        keeping->stream.window[i] = batch_of(i);
        const struct row row = {i * RECORDS, 40 + (uint64_t)i, (uint32_t)i, RECORDS, ARENA};
        row_write(keeping->spill.file, i, &row);
    }
    keeping->stream.end = 3;
}

static void keeping_end(struct keeping *keeping)
{
    close(keeping->spill.file);
    accumulator_close(keeping->sender);
    arena_end(keeping->arena, keeping->file);
}

static bool keep(struct keeping *keeping)
{
    return keeping->recorder.recorder.record(&keeping->recorder.recorder, &keeping->stream, 1);
}

/* Return the sink's offset of a batch, or -1 if it has no result. */
static int64_t result_of(const struct keeping *keeping, int number)
{
    struct completion found;
    const struct record_token token = {
        .seq = 40 + (uint64_t)number, .partition_index = PARTITION, .slot_index = (uint32_t)number};
    return completion_find(keeping->arena, &token, &found) == STATUS_OK ? found.base_offset : -1;
}

TEST_WITH(keeping, keeping_begin, acked_batches_get_their_results_and_the_position_moves)
{
    uint8_t position[SPILL_POSITION_SIZE + 4];
    uint64_t words[2];
    uint32_t crc;
    EXPECT(keep(keeping));
    EXPECT_EQ_U64((uint64_t)result_of(keeping, 0), SINK_OFFSET);
    EXPECT_EQ_U64((uint64_t)result_of(keeping, 1), SINK_OFFSET + RECORDS);
    EXPECT(result_of(keeping, 2) == -1);
    EXPECT_EQ_U64((uint64_t)keeping->stream.recorded.offset, 2 * RECORDS);
    EXPECT_EQ_U64(keeping->spill.number, 7);
    EXPECT(pread(keeping->spill.file, position, sizeof position, 64) == (ssize_t)sizeof position);
    memcpy(words, position, sizeof words);
    memcpy(&crc, position + SPILL_POSITION_SIZE, sizeof crc);
    EXPECT_EQ_U64(words[0], 7);
    EXPECT_EQ_U64(words[1], 2 * RECORDS);
    EXPECT_EQ_U64(position[16], 0xab);
    EXPECT_EQ_U64(crc, crc32c_extend(0, position, SPILL_POSITION_SIZE));
}

TEST_WITH(keeping, keeping_begin, nothing_acked_is_nothing_to_write)
{
    keeping->stream.window[0].is_acked = false;
    EXPECT(keep(keeping));
    EXPECT_EQ_U64(keeping->spill.number, 6);
    EXPECT(result_of(keeping, 1) == -1);
}

TEST_WITH(keeping, keeping_begin, invalid_rows_give_no_result_and_delay_nothing)
{
    const struct row strange[] = {{0, 40, UINT32_MAX, RECORDS, ARENA}, {RECORDS, 41, 1, RECORDS, ARENA + 1}};
    row_write(keeping->spill.file, 0, &strange[0]);
    row_write(keeping->spill.file, 1, &strange[1]);
    EXPECT(keep(keeping));
    EXPECT(result_of(keeping, 0) == -1 && result_of(keeping, 1) == -1);
    EXPECT_EQ_U64((uint64_t)keeping->stream.recorded.offset, 2 * RECORDS);
}

TEST_WITH(keeping, keeping_begin, a_file_of_endless_rows_delays_nothing)
{
    for (int i = 0; i < 3; i++) {
        keeping->stream.window[i].end.offset += 1000;
    }
    EXPECT(ftruncate(keeping->spill.file, (off_t)1 << 40) == 0);
    EXPECT(keep(keeping));
    EXPECT_EQ_U64((uint64_t)keeping->stream.recorded.offset, 1000 + 2 * RECORDS);
}

TEST_WITH(keeping, keeping_begin, a_stream_does_not_advance_if_its_position_cannot_be_written)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", keeping->spill.file);
    int writable = keeping->spill.file;
    keeping->spill.file = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT(!keep(keeping));
    EXPECT(keeping->recorder.recorder.is_over);
    EXPECT_EQ_U64((uint64_t)keeping->stream.recorded.offset, 0);
    EXPECT_EQ_U64(keeping->spill.number, 6);
    close(keeping->spill.file);
    keeping->spill.file = writable;
    EXPECT(keep(keeping));
    EXPECT_EQ_U64((uint64_t)keeping->stream.recorded.offset, 2 * RECORDS);
}

RUN_ALL()
