/* SPDX-License-Identifier: Apache-2.0 */
#include "log_files.h"

#include "base/bytes.h"
#include "format/record_batch.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    FILE_SIZE_MAX = ARRIVED_MAX * ARRIVED_SIZE_MAX,
    SEGMENT_SIZE_MAX = 1 << 20,
    LEADER_EPOCH = 5,
};

void log_files_open(struct log_files *files)
{
    files->log = memfd_create("log", MFD_CLOEXEC);
    files->offset_index = memfd_create("index", MFD_CLOEXEC);
    files->time_index = memfd_create("timeindex", MFD_CLOEXEC);
    files->rows = memfd_create("spill", MFD_CLOEXEC);
    REQUIRE(files->log >= 0 && files->offset_index >= 0 && files->time_index >= 0 && files->rows >= 0);
}

void log_files_close(struct log_files *files)
{
    close(files->log);
    close(files->offset_index);
    close(files->time_index);
    close(files->rows);
}

struct log_end log_files_end(const struct log_files *files, struct log_numbers *numbers)
{
    *numbers = (struct log_numbers){
        .segment = {.descriptor = files->log},
        .position = {.entry_position = -1, .max_timestamp_ms = -1, .indexed_timestamp_ms = -1},
        .offset_index = {.descriptor = files->offset_index},
        .time_index = {.descriptor = files->time_index},
    };
    return (struct log_end){.segment = &numbers->segment,
                            .position = &numbers->position,
                            .offset_index = &numbers->offset_index,
                            .time_index = &numbers->time_index,
                            .segment_bytes = SEGMENT_SIZE_MAX,
                            .segment_ms = INT64_MAX,
                            .leader_epoch = LEADER_EPOCH};
}

static uint32_t file_read(int file, uint8_t bytes[FILE_SIZE_MAX])
{
    ssize_t size = pread(file, bytes, FILE_SIZE_MAX, 0);
    REQUIRE(size >= 0 && size < FILE_SIZE_MAX);
    return (uint32_t)size;
}

/* The positions and last offsets of the batches. */
struct places {
    uint32_t positions[ARRIVED_MAX];
    uint32_t last_offsets[ARRIVED_MAX];
    uint32_t count;
};

/* Undoes the changes of the log: the log sets the base offset and the leader epoch of a batch. */
static void batch_restore(uint8_t *batch)
{
    store_be64(batch + RECORD_BATCH_BASE_OFFSET, 0);
    store_be32(batch + RECORD_BATCH_LEADER_EPOCH, UINT32_MAX);
}

static bool batches_read(int file, struct arrived *arrived, struct places *places)
{
    static uint8_t bytes[FILE_SIZE_MAX];
    uint32_t left = file_read(file, bytes);
    int64_t next_offset = 0;
    struct record_batch_header header;
    for (uint8_t *batch = bytes; record_batch_header_read(batch, left, &header) == STATUS_OK;) {
        uint32_t size = (uint32_t)header.batch_length + RECORD_BATCH_UNCOUNTED_SIZE;
        if (size > left) {
            break;
        }
        if (header.base_offset != next_offset || header.partition_leader_epoch != LEADER_EPOCH) {
            return false;
        }
        next_offset += header.record_count;
        places->positions[places->count] = (uint32_t)(batch - bytes);
        places->last_offsets[places->count++] = (uint32_t)(next_offset - 1);
        batch_restore(batch);
        arrived_add(arrived, batch, size);
        batch += size;
        left -= size;
    }
    return true;
}

/* Entries of both indexes have an offset. Entries of the offset index also have a position. */
static bool entries_are_right(int file, uint32_t entry_size, uint32_t offset_at, const struct places *places)
{
    static uint8_t bytes[FILE_SIZE_MAX];
    uint32_t size = file_read(file, bytes);
    bool has_positions = offset_at == 0;
    for (uint32_t at = 0; at + entry_size <= size; at += entry_size) {
        uint32_t found = 0;
        while (found < places->count && places->last_offsets[found] != load_be32(bytes + at + offset_at)) {
            found++;
        }
        if (found == places->count || (has_positions && places->positions[found] != load_be32(bytes + at + 4))) {
            return false;
        }
    }
    return true;
}

bool log_files_read(const struct log_files *files, struct arrived *arrived, char problem[PROBLEM_SIZE])
{
    struct places places = {.count = 0};
    arrived->count = 0;
    if (!batches_read(files->log, arrived, &places)) {
        snprintf(problem, PROBLEM_SIZE, "batch %u of the log has a wrong offset or leader epoch", places.count);
        return false;
    }
    if (!entries_are_right(files->offset_index, OFFSET_ENTRY_SIZE, 0, &places) ||
        !entries_are_right(files->time_index, TIME_ENTRY_SIZE, 8, &places)) {
        snprintf(problem, PROBLEM_SIZE, "an index entry matches no batch of the log");
        return false;
    }
    return true;
}

static bool row_is_right(const struct spill_row *row, const struct arrived_batch *batch, int64_t base_offset)
{
    struct record_batch_header header;
    REQUIRE(record_batch_header_read(batch->bytes, batch->size, &header) == STATUS_OK);
    return row->base_offset == base_offset && row->record_count == (uint32_t)header.record_count;
}

bool log_files_read_rows(const struct log_files *files, const struct arrived *arrived,
                         struct spill_row rows[ARRIVED_MAX], uint32_t *count, char problem[PROBLEM_SIZE])
{
    int64_t base_offset = 0;
    ssize_t size = pread(files->rows, rows, ARRIVED_MAX * SPILL_ROW_SIZE, SPILL_ROWS_BEGIN);
    REQUIRE(size >= 0 && size < ARRIVED_MAX * SPILL_ROW_SIZE);
    *count = (uint32_t)size / SPILL_ROW_SIZE;
    for (uint32_t i = 0; i < *count; i++) {
        if (i == arrived->count || !row_is_right(&rows[i], &arrived->batches[i], base_offset)) {
            snprintf(problem, PROBLEM_SIZE, "row %u of the spill file does not match its batch in the log", i);
            return false;
        }
        base_offset += rows[i].record_count;
    }
    return true;
}
