/* SPDX-License-Identifier: Apache-2.0 */
#include "log/segment_end.h"

#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/record_batch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testing.h"

enum { BATCH_SIZE = 100, RECORDS = 3, START_MS = 1000 };

/* The files of a partition, in memory, and batches in which each byte depends on its position. */
struct files {
    struct segment_end segment;
    struct index_position position;
    struct index_file_end offset_index;
    struct index_file_end time_index;
    struct log_end log;
    uint8_t bytes[LOG_RUN_MAX + 1][BATCH_SIZE];
    struct log_batch batches[LOG_RUN_MAX + 1];
};

static void files_begin(struct files *files)
{
    *files = (struct files){
        .segment = {.descriptor = memfd_create("log", 0), .next_offset = 70},
        .position = {.base_offset = 70, .interval = 250, .max_timestamp_ms = -1, .indexed_timestamp_ms = -1},
        .offset_index = {.descriptor = memfd_create("index", 0)},
        .time_index = {.descriptor = memfd_create("timeindex", 0)},
        .log = {.segment_bytes = 1 << 20, .segment_ms = 1000, .leader_epoch = 7},
    };
    files->log.segment = &files->segment;
    files->log.position = &files->position;
    files->log.offset_index = &files->offset_index;
    files->log.time_index = &files->time_index;
    for (int i = 0; i <= LOG_RUN_MAX; i++) {
        memset(files->bytes[i], i, BATCH_SIZE);
        files->batches[i] = (struct log_batch){.bytes = files->bytes[i],
                                               .size = BATCH_SIZE,
                                               .record_count = RECORDS,
                                               .max_timestamp_ms = START_MS + i,
                                               .producer_id = -1};
    }
}

static void files_end(struct files *files)
{
    close(files->segment.descriptor);
    close(files->offset_index.descriptor);
    close(files->time_index.descriptor);
}

static uint64_t file_size(int descriptor)
{
    return (uint64_t)lseek(descriptor, 0, SEEK_END);
}

static void expect_batch_at(const struct files *files, int number)
{
    uint8_t found[BATCH_SIZE];
    EXPECT_EQ_U64((uint64_t)pread(files->segment.descriptor, found, BATCH_SIZE, number * BATCH_SIZE), BATCH_SIZE);
    EXPECT_EQ_U64(load_be64(found), (uint64_t)(70 + number * RECORDS));
    EXPECT_EQ_U64(load_be32(found + 8), BATCH_SIZE - 12);
    EXPECT_EQ_U64(load_be32(found + 12), 7);
    EXPECT(memcmp(found + 16, files->bytes[number] + 16, BATCH_SIZE - 16) == 0);
}

TEST(batches_of_one_producer_are_in_sequence_up_to_a_gap)
{
    struct log_batch batches[3];
    for (int i = 0; i < 3; i++) {
        batches[i] = (struct log_batch){.record_count = 2, .producer_id = 5, .base_sequence = INT32_MAX - 1};
    }
    batches[1].base_sequence = 0; /* the sequence after the largest one */
    batches[2].base_sequence = 2;
    EXPECT_EQ_U64(log_batches_in_sequence(batches, 3, INT32_MAX - 1), 3);
    EXPECT_EQ_U64(log_batches_in_sequence(batches, 3, 7), 0);
    batches[1].producer_epoch = 1;
    EXPECT_EQ_U64(log_batches_in_sequence(batches, 3, INT32_MAX - 1), 1);
    batches[1].producer_epoch = 0;
    batches[2].base_sequence = 3;
    EXPECT_EQ_U64(log_batches_in_sequence(batches, 3, INT32_MAX - 1), 2);
}

TEST(batches_without_a_producer_need_no_sequence)
{
    struct log_batch batches[3] = {{.producer_id = -1}, {.producer_id = -1}, {.producer_id = 5}};
    EXPECT_EQ_U64(log_batches_in_sequence(batches, 3, -1), 2);
}

TEST_WITH(files, files_begin, batches_get_offsets_and_stand_after_one_another)
{
    struct log_append append = segment_append(&files->log, files->batches, 2);
    EXPECT_EQ_U64(append.batch_count, 2);
    append = segment_append(&files->log, files->batches + 2, 3);
    EXPECT_EQ_U64(append.batch_count, 3);
    EXPECT_EQ_U64((uint64_t)append.error, 0);
    EXPECT_EQ_U64((uint64_t)append.index_error, 0);
    for (int i = 0; i < 5; i++) {
        expect_batch_at(files, i);
    }
    EXPECT_EQ_U64((uint64_t)files->segment.size, 5 * BATCH_SIZE);
    EXPECT_EQ_U64((uint64_t)files->segment.next_offset, 70 + 5 * RECORDS);
    EXPECT_EQ_U64((uint64_t)files->segment.first_timestamp_ms, START_MS);
    EXPECT(!files->segment.is_torn);
}

static void crc_set(struct files *files, int number)
{
    uint8_t *bytes = files->bytes[number];
    struct log_batch *batch = &files->batches[number];
    bytes[RECORD_BATCH_MAGIC] = RECORD_BATCH_MAGIC_VALUE;
    batch->crc = crc32c_extend(0, bytes + RECORD_BATCH_ATTRIBUTES, BATCH_SIZE - RECORD_BATCH_ATTRIBUTES);
    record_batch_set_crc(bytes, batch->crc);
}

/* Changes a byte of the second of four batches between its checksum and the write, as another process could. */
static void expect_cut_at_changed(int position, bool verifies)
{
    struct files files;
    files_begin(&files);
    files.log.verifies_written = verifies;
    for (int i = 0; i < 4; i++) {
        crc_set(&files, i);
    }
    files.bytes[1][position] ^= 1;
    struct log_append append = segment_append(&files.log, files.batches, 4);
    EXPECT_EQ_U64(append.batch_count, verifies ? 1 : 4);
    EXPECT(append.is_changed == verifies);
    EXPECT_EQ_U64((uint64_t)append.error, 0);
    EXPECT_EQ_U64(file_size(files.segment.descriptor), (verifies ? 1 : 4) * BATCH_SIZE);
    EXPECT_EQ_U64((uint64_t)files.segment.size, (verifies ? 1 : 4) * BATCH_SIZE);
    EXPECT(!files.segment.is_torn);
    files.bytes[1][position] ^= 1;
    if (verifies) {
        EXPECT_EQ_U64(segment_append(&files.log, files.batches + 1, 3).batch_count, 3);
        for (int i = 0; i < 4; i++) {
            expect_batch_at(&files, i);
        }
    }
    files_end(&files);
}

TEST(a_batch_that_is_changed_while_it_is_written_is_cut_off_with_those_after_it)
{
    static const int positions[] = {RECORD_BATCH_MAGIC, RECORD_BATCH_CRC, RECORD_BATCH_CRC + 3, RECORD_BATCH_ATTRIBUTES,
                                    RECORD_BATCH_MAX_TIMESTAMP, RECORD_BATCH_HEADER_SIZE, BATCH_SIZE - 1};
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        expect_cut_at_changed(positions[i], true);
        expect_cut_at_changed(positions[i], false);
    }
}

TEST_WITH(files, files_begin, an_entry_is_written_for_a_batch_when_the_interval_went_by)
{
    uint8_t entry[TIME_ENTRY_SIZE];
    (void)segment_append(&files->log, files->batches, 5); /* the batch at 300 is past the index interval of 250 */
    EXPECT_EQ_U64(file_size(files->offset_index.descriptor), OFFSET_ENTRY_SIZE);
    EXPECT_EQ_U64(file_size(files->time_index.descriptor), TIME_ENTRY_SIZE);
    EXPECT_EQ_U64((uint64_t)files->offset_index.size, OFFSET_ENTRY_SIZE);
    EXPECT_EQ_U64((uint64_t)pread(files->offset_index.descriptor, entry, OFFSET_ENTRY_SIZE, 0), OFFSET_ENTRY_SIZE);
    EXPECT_EQ_U64(load_be32(entry), 4 * RECORDS - 1);
    EXPECT_EQ_U64(load_be32(entry + 4), 3 * BATCH_SIZE);
    EXPECT_EQ_U64((uint64_t)pread(files->time_index.descriptor, entry, TIME_ENTRY_SIZE, 0), TIME_ENTRY_SIZE);
    EXPECT_EQ_U64(load_be64(entry), START_MS + 3);
    EXPECT_EQ_U64(load_be32(entry + 8), 4 * RECORDS - 1);
}

TEST_WITH(files, files_begin, batches_fit_up_to_the_limits_of_a_segment)
{
    EXPECT_EQ_U64(segment_fit(&files->log, files->batches, 10), 10);
    EXPECT_EQ_U64(segment_fit(&files->log, files->batches, LOG_RUN_MAX + 1), LOG_RUN_MAX);
    files->log.segment_bytes = 3 * BATCH_SIZE;
    EXPECT_EQ_U64(segment_fit(&files->log, files->batches, 10), 3);
    files->log.segment_bytes = BATCH_SIZE - 1;
    EXPECT_EQ_U64(segment_fit(&files->log, files->batches, 10), 0);
    files->log.segment_bytes = INT64_MAX;
    files->log.segment_ms = 4;
    EXPECT_EQ_U64(segment_fit(&files->log, files->batches, 10), 5);
    files->batches[0].max_timestamp_ms = INT64_MAX;
    EXPECT_EQ_U64(segment_fit(&files->log, files->batches, 10), 10);
    files->segment.next_offset = files->position.base_offset + INT32_MAX + INT64_C(1) - 2 * RECORDS;
    EXPECT_EQ_U64(segment_fit(&files->log, files->batches, 10), 2);
    files->segment.next_offset = files->position.base_offset;
    files->offset_index.size = INDEX_FILE_SIZE_MAX - OFFSET_ENTRY_SIZE;
    EXPECT_EQ_U64(segment_fit(&files->log, files->batches, 10), 0);
}

TEST_WITH(files, files_begin, a_file_that_is_closed_for_writing_keeps_what_it_has)
{
    (void)segment_append(&files->log, files->batches, 1);
    int writable = files->segment.descriptor;
    files->segment.descriptor = files->offset_index.descriptor + 1000; /* no file has this descriptor */
    struct log_append append = segment_append(&files->log, files->batches + 1, 2);
    EXPECT_EQ_U64(append.batch_count, 0);
    EXPECT_EQ_U64((uint64_t)append.error, EBADF);
    EXPECT(files->segment.is_torn);
    EXPECT_EQ_U64((uint64_t)files->segment.size, BATCH_SIZE);
    files->segment.descriptor = writable;
    EXPECT_EQ_U64((uint64_t)pwrite(writable, "torn", 4, BATCH_SIZE), 4);
    append = segment_append(&files->log, files->batches + 1, 2);
    EXPECT_EQ_U64(append.batch_count, 2);
    EXPECT_EQ_U64(file_size(writable), 3 * BATCH_SIZE);
    expect_batch_at(files, 2);
}

/* ---- a file that is unlinked ---- */

static char named_path[32];

/* Begins with a segment's file that has a name and one batch. */
static void name_file(struct files *files)
{
    struct stat found;
    files_begin(files);
    close(files->segment.descriptor);
    (void)snprintf(named_path, sizeof named_path, "/tmp/segment_end_XXXXXX");
    files->segment.descriptor = mkstemp(named_path);
    EXPECT_EQ_U64((uint64_t)fstat(files->segment.descriptor, &found), 0);
    files->segment.device = found.st_dev;
    files->segment.inode = found.st_ino;
    files->log.path = named_path;
    EXPECT_EQ_U64(segment_append(&files->log, files->batches, 1).batch_count, 1);
}

static void expect_lost(struct files *files)
{
    struct log_append append = segment_append(&files->log, files->batches + 1, 2);
    EXPECT_EQ_U64(append.batch_count, 0);
    EXPECT_EQ_U64((uint64_t)append.error, ESTALE);
    EXPECT(files->segment.is_lost);
    EXPECT_EQ_U64((uint64_t)files->segment.size, BATCH_SIZE);
    EXPECT_EQ_U64((uint64_t)files->segment.next_offset, 70 + RECORDS);
    EXPECT_EQ_U64(file_size(files->offset_index.descriptor), 0);
    files_end(files);
    (void)unlink(named_path);
}

TEST(batches_written_to_a_removed_file_do_not_count)
{
    struct files files;
    name_file(&files);
    EXPECT_EQ_U64((uint64_t)unlink(named_path), 0);
    expect_lost(&files);
}

TEST(batches_written_to_a_replaced_file_do_not_count)
{
    struct files files;
    name_file(&files);
    EXPECT_EQ_U64((uint64_t)unlink(named_path), 0);
    int other = open(named_path, O_RDWR | O_CREAT, 0600);
    EXPECT_EQ_U64((uint64_t)ftruncate(other, 100 * BATCH_SIZE), 0);
    close(other);
    expect_lost(&files);
}

TEST(nothing_is_written_after_a_cut)
{
    struct files files;
    name_file(&files);
    EXPECT_EQ_U64((uint64_t)truncate(named_path, 0), 0);
    EXPECT_EQ_U64(segment_append(&files.log, files.batches + 1, 2).batch_count, 0);
    EXPECT_EQ_U64(file_size(files.segment.descriptor), 0);
    expect_lost(&files);
}

TEST(a_torn_file_that_lost_bytes_is_not_made_longer_by_a_cut)
{
    struct files files;
    name_file(&files);
    EXPECT_EQ_U64((uint64_t)truncate(named_path, 0), 0);
    files.segment.is_torn = true;
    expect_lost(&files);
}

TEST_WITH(files, files_begin, an_index_that_takes_no_entry_costs_no_batch)
{
    int writable = files->offset_index.descriptor;
    files->offset_index.descriptor = writable + 1000;
    struct log_append append = segment_append(&files->log, files->batches, 5);
    EXPECT_EQ_U64(append.batch_count, 5);
    EXPECT_EQ_U64((uint64_t)append.index_error, EBADF);
    EXPECT_EQ_U64((uint64_t)files->offset_index.size, 0);
    files->offset_index.descriptor = writable;
}

RUN_ALL()
