/* SPDX-License-Identifier: Apache-2.0
 */
#include "sender/log_run.h"

#include "base/point.h"
#include "sender/drained_batch.h"
#include "sender/spill_row.h"

#include <unistd.h>

uint32_t log_run_describe(const struct sender_half *half, const struct drained_batch *drained, uint32_t count,
                          struct log_batch *batches)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!drained_batch_is_whole(half, &drained[i])) {
            return i;
        }
        batches[i] = (struct log_batch){.bytes = arena_slot_data(half->arena, drained[i].slot_index),
                                        .size = drained[i].size,
                                        .record_count = drained[i].record_count,
                                        .max_timestamp_ms = drained[i].max_timestamp_ms,
                                        .producer_id = drained[i].producer_id,
                                        .base_sequence = drained[i].base_sequence,
                                        .producer_epoch = drained[i].producer_epoch,
                                        .crc = drained[i].crc};
    }
    return count;
}

void log_run_write(struct log_run *run, uint32_t known_largest)
{
    CHECK(run->fit_count <= run->count);
    run->largest_record = known_largest;
    for (uint32_t i = 0; i < run->fit_count; i++) {
        if (!drained_batch_is_sound(&run->drained[i], run->batches[i].bytes)) {
            run->fit_count = i;
            break;
        }
        run->largest_record =
            drained_batch_largest_record(&run->drained[i], run->batches[i].bytes, run->largest_record);
    }
    run->base_offset = run->log->segment->next_offset;
    run->append = (struct log_append){0};
    if (run->fit_count > 0) {
        run->append = segment_append(run->log, run->batches, run->fit_count);
    }
}

void log_run_complete(struct sender_half *half, struct log_run *run, struct batch_completion *completions,
                      struct wake_set *wakes)
{
    CHECK(run->append.batch_count <= run->fit_count);
    int64_t offset = run->base_offset;
    for (uint32_t i = 0; i < run->append.batch_count; i++) {
        completions[i] = (struct batch_completion){
            .seq = run->drained[i].seq,
            .slot_index = run->drained[i].slot_index,
            .outcome = {.result = RESULT_SUCCEEDED, .base_offset = offset, .log_append_time_ms = -1}};
        offset += run->drained[i].record_count;
    }
    POINT(log_run_written);
    (void)sender_complete_many(half, completions, run->append.batch_count, wakes);
    run->ended_count = run->append.batch_count;
}

/* ---- an overflow ---- */

uint32_t log_run_fit_spill(const struct log_run *run, const struct log_run_spill_file *spill)
{
    uint64_t end_seq = spill->end_seq;
    for (uint32_t i = 0; i < run->count; i++) {
        if (run->drained[i].seq < end_seq) {
            return i;
        }
        end_seq = run->drained[i].seq + 1;
    }
    return run->count;
}

/* Writes all rows or none. */
static bool rows_write(const struct log_run *run, const struct log_run_spill_file *spill)
{
    struct spill_row rows[LOG_RUN_MAX];
    int64_t offset = run->base_offset;
    size_t size = run->append.batch_count * sizeof rows[0];
    CHECK(run->append.batch_count <= LOG_RUN_MAX);
    for (uint32_t i = 0; i < run->append.batch_count; i++) {
        const struct drained_batch *batch = &run->drained[i];
        rows[i] = (struct spill_row){offset, batch->seq, batch->slot_index, batch->record_count, spill->arena};
        offset += batch->record_count;
    }
    if (pwrite(spill->file, rows, size, spill_row_place(spill->row_count)) == (ssize_t)size) {
        return true;
    }
    (void)!ftruncate(spill->file, spill_row_place(spill->row_count));
    return false;
}

void log_run_spill(struct sender_half *half, struct log_run *run, const struct log_run_spill_file *spill,
                   struct wake_set *wakes)
{
    POINT(log_run_written);
    if (run->append.batch_count == 0 || !rows_write(run, spill)) {
        return;
    }
    POINT(log_run_rows_written);
    for (uint32_t i = 0; i < run->append.batch_count; i++) {
        /* cannot fail, because the batch is in flight */
        (void)!sender_spill(half, run->drained[i].slot_index, run->drained[i].seq, wakes);
    }
    run->ended_count = run->append.batch_count;
}
