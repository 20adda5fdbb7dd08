/* SPDX-License-Identifier: Apache-2.0 */
#include "log/batch_walk.h"

#include "format/record_batch.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "testing.h"

enum { BATCH_COUNT = 100, RECORDS = 3, RECORDS_SIZE = 50, BATCH_SIZE = RECORD_BATCH_HEADER_SIZE + RECORDS_SIZE };

/* Makes a segment of equal batches that is longer than one read. Batch `wrong` has another magic; if it is -1, no batch
 * has. */
static int segment_open(int wrong)
{
    int file = memfd_create("segment", 0);
    for (int i = 0; i < BATCH_COUNT; i++) {
        uint8_t batch[BATCH_SIZE] = {0};
        const struct record_batch_header header = {.base_offset = i * RECORDS,
                                                   .batch_length = BATCH_SIZE - RECORD_BATCH_UNCOUNTED_SIZE,
                                                   .magic = RECORD_BATCH_MAGIC_VALUE,
                                                   .last_offset_delta = RECORDS - 1,
                                                   .record_count = RECORDS};
        record_batch_header_write(batch, &header);
        batch[RECORD_BATCH_MAGIC] = (uint8_t)(batch[RECORD_BATCH_MAGIC] + (i == wrong));
        EXPECT_EQ_U64((uint64_t)write(file, batch, BATCH_SIZE), BATCH_SIZE);
    }
    return file;
}

static struct batch_walk walk_to(int file, int64_t offset)
{
    return (struct batch_walk){.descriptor = file, .end = BATCH_COUNT * BATCH_SIZE, .offset = offset};
}

TEST(the_batch_that_has_an_offset_is_found)
{
    int file = segment_open(-1);
    for (int64_t offset = 0; offset < BATCH_COUNT * RECORDS; offset++) {
        struct batch_walk walk = walk_to(file, offset);
        EXPECT_EQ_U64((uint64_t)batch_find(&walk), BATCH_SIZE);
        EXPECT_EQ_U64((uint64_t)walk.position, (uint64_t)(offset / RECORDS * BATCH_SIZE));
    }
    close(file);
}

TEST(no_batch_is_found_past_the_end_or_past_damage)
{
    int file = segment_open(7);
    struct batch_walk past_damage = walk_to(file, 8 * RECORDS);
    struct batch_walk past_end = walk_to(file, 2 * RECORDS);
    past_end.end = 2 * BATCH_SIZE;
    EXPECT(batch_find(&past_damage) == 0 && past_damage.position == 7 * BATCH_SIZE);
    EXPECT(batch_find(&past_end) == 0);
    close(file);
}

TEST(a_file_that_cannot_be_read_is_an_error)
{
    struct batch_walk walk = walk_to(-1, 0);
    EXPECT(batch_find(&walk) == -1 && errno == EBADF);
}

RUN_ALL()
