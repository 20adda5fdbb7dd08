/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/spill_recorder.h"

#include "arena/completion.h"
#include "format/crc32c.h"
#include "sender/sender_half.h"
#include "sender/spill_row.h"

#include <string.h>
#include <unistd.h>

enum { POSITION_ROOM = 64, POSITION_OFFSET = 8 };
enum { ROWS_PASSED_MAX = 4096 /* rows skipped for one batch, so that a corrupt file does not block the batch loop */ };

/* ---- results ---- */

/* Returns the offset of the batch's first record. */
static int64_t first_offset(const struct ship_batch *batch)
{
    return batch->end.offset - batch->record_count;
}

static bool row_read(const struct spill_stream *spill, struct spill_row *row)
{
    return pread(spill->file, row, SPILL_ROW_SIZE, spill_row_place(spill->row_index)) == SPILL_ROW_SIZE;
}

/* Finds the row of a batch, if there is one, and skips earlier rows. */
static bool row_find(struct spill_stream *spill, int64_t base_offset, struct spill_row *row)
{
    for (int passed = 0; passed < ROWS_PASSED_MAX && row_read(spill, row); passed++) {
        if (row->base_offset >= base_offset) {
            return row->base_offset == base_offset;
        }
        spill->row_index++;
    }
    return false;
}

static void result_record(const struct spill_recorder *recorder, struct spill_stream *spill,
                          const struct ship_batch *batch)
{
    struct spill_row row;
    if (!row_find(spill, first_offset(batch), &row) || row.arena != recorder->arena ||
        batch->record_count > BATCH_RECORD_COUNT_MAX) {
        return;
    }
    const struct completion completion = {.seq = row.seq,
                                          .slot_index = row.slot_index,
                                          .partition_index = spill->partition_index,
                                          .record_count = (uint32_t)batch->record_count,
                                          .result = RESULT_SUCCEEDED,
                                          .base_offset = batch->result.base_offset,
                                          .log_append_time_ms = batch->result.log_append_time_ms};
    (void)!sender_complete_spilled(recorder->half, &completion); /* a corrupt row names no slot */
}

/* ---- the position ---- */

static bool position_write(const struct spill_recorder *recorder, struct spill_stream *spill, int64_t offset)
{
    uint8_t bytes[SPILL_POSITION_SIZE + sizeof(uint32_t)];
    uint64_t number = spill->number + 1;
    memcpy(bytes, spill->position, SPILL_POSITION_SIZE);
    memcpy(bytes, &number, sizeof number);
    memcpy(bytes + POSITION_OFFSET, &offset, sizeof offset);
    uint32_t crc = crc32c_extend(0, bytes, SPILL_POSITION_SIZE);
    memcpy(bytes + SPILL_POSITION_SIZE, &crc, sizeof crc);
    ssize_t written = pwrite(spill->file, bytes, sizeof bytes, (off_t)(number % 2 * POSITION_ROOM));
    if (written != (ssize_t)sizeof bytes || (recorder->is_synced && fdatasync(spill->file) != 0)) {
        return false;
    }
    spill->number = number;
    return true;
}

/* ---- the recorder ---- */

static bool stream_is_recorded(const struct spill_recorder *recorder, struct spill_stream *spill,
                               struct partition_stream *stream)
{
    struct ship_place place;
    if (!stream_due(stream, &place)) {
        return true;
    }
    uint64_t number = stream->first;
    const struct ship_batch *batch;
    do {
        batch = &stream->window[number++ % SHIP_WINDOW_ROOM];
        result_record(recorder, spill, batch);
    } while (batch->end.offset < place.offset);
    if (!position_write(recorder, spill, place.offset)) {
        return false;
    }
    stream_record(stream);
    return true;
}

bool spill_record(struct ship_recorder *recorder, struct partition_stream *streams, uint32_t stream_count)
{
    struct spill_recorder *self = (struct spill_recorder *)recorder; /* its first field */
    sender_renew_heartbeat(self->half);
    for (uint32_t i = 0; i < stream_count; i++) {
        if (!stream_is_recorded(self, &self->streams[i], &streams[i])) {
            recorder->is_over = true;
            return false;
        }
    }
    return true;
}
