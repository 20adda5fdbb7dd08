/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/receipt.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

void receipt_close(struct receipt *receipt)
{
    CHECK(receipt->run_count <= receipt->run_capacity);
    free(receipt->runs);
    free(receipt->positions);
    free(receipt->timestamps_ms);
    *receipt = (struct receipt){0};
}

/* ---- memory ---- */

static enum status runs_resize(struct receipt *receipt, uint32_t capacity)
{
    CHECK(capacity > receipt->run_capacity);
    struct receipt_run *runs = realloc(receipt->runs, capacity * sizeof *runs);
    receipt->runs = runs != NULL ? runs : receipt->runs;
    return runs != NULL ? STATUS_OK : STATUS_OS;
}

static enum status positions_resize(struct receipt *receipt, uint32_t capacity)
{
    CHECK(capacity >= receipt->row_count);
    uint32_t *positions = realloc(receipt->positions, capacity * sizeof *positions);
    receipt->positions = positions != NULL ? positions : receipt->positions;
    return positions != NULL ? STATUS_OK : STATUS_OS;
}

static enum status timestamps_resize(struct receipt *receipt, uint32_t capacity)
{
    CHECK(capacity >= receipt->row_count);
    int64_t *timestamps_ms = realloc(receipt->timestamps_ms, capacity * sizeof *timestamps_ms);
    receipt->timestamps_ms = timestamps_ms != NULL ? timestamps_ms : receipt->timestamps_ms;
    return timestamps_ms != NULL ? STATUS_OK : STATUS_OS;
}

static uint32_t capacity_for(uint32_t capacity, uint32_t needed)
{
    CHECK(needed >= 1);
    uint32_t doubled = capacity > UINT32_MAX / 2 ? UINT32_MAX : capacity * 2;
    return doubled > needed ? doubled : needed;
}

static enum status runs_reserve(struct receipt *receipt, uint32_t more)
{
    CHECK(receipt->run_count <= receipt->run_capacity);
    if (receipt->run_capacity - receipt->run_count >= more) {
        return STATUS_OK;
    }
    uint32_t capacity = capacity_for(receipt->run_capacity, receipt->run_count + more);
    RETURN_IF_FAILED(runs_resize(receipt, capacity));
    receipt->run_capacity = capacity;
    return STATUS_OK;
}

/* Stores the positions of the present rows. Later rows have explicit positions, too. */
static enum status positions_begin(struct receipt *receipt)
{
    CHECK(receipt->positions == NULL);
    RETURN_IF_FAILED(positions_resize(receipt, receipt->row_capacity));
    for (uint32_t row = 0; row < receipt->row_count; row++) {
        receipt->positions[row] = row;
    }
    return STATUS_OK;
}

static enum status timestamps_begin(struct receipt *receipt)
{
    CHECK(receipt->timestamps_ms == NULL);
    RETURN_IF_FAILED(timestamps_resize(receipt, receipt->row_capacity));
    for (uint32_t row = 0; row < receipt->row_count; row++) {
        receipt->timestamps_ms[row] = receipt->timestamp_ms;
    }
    return STATUS_OK;
}

static enum status rows_grow(struct receipt *receipt, uint32_t count)
{
    CHECK(count >= 1);
    uint32_t capacity = capacity_for(receipt->row_capacity, receipt->row_count + count);
    if (receipt->positions != NULL) {
        RETURN_IF_FAILED(positions_resize(receipt, capacity));
    }
    if (receipt->timestamps_ms != NULL) {
        RETURN_IF_FAILED(timestamps_resize(receipt, capacity));
    }
    receipt->row_capacity = capacity;
    return STATUS_OK;
}

static enum status rows_reserve(struct receipt *receipt, const struct receipt_rows *rows)
{
    if (rows->count > UINT32_MAX - receipt->row_count) {
        return STATUS_OS;
    }
    if (receipt->row_capacity - receipt->row_count < rows->count) {
        RETURN_IF_FAILED(rows_grow(receipt, rows->count));
    }
    if (rows->places != NULL && receipt->positions == NULL) {
        RETURN_IF_FAILED(positions_begin(receipt));
    }
    return rows->timestamps_ms != NULL && receipt->timestamps_ms == NULL ? timestamps_begin(receipt) : STATUS_OK;
}

/* ---- adding ---- */

enum status receipt_add_rows(struct receipt *receipt, const struct receipt_rows *rows)
{
    CHECK(rows->count <= CHUNK_COUNT_MAX);
    RETURN_IF_FAILED(rows_reserve(receipt, rows));
    RETURN_IF_FAILED(runs_reserve(receipt, rows->count));
    for (uint32_t i = 0; receipt->positions != NULL && i < rows->count; i++) {
        uint32_t place = rows->places == NULL ? i : rows->places[i];
        receipt->positions[receipt->row_count + i] = receipt->row_count + place;
    }
    for (uint32_t i = 0; receipt->timestamps_ms != NULL && i < rows->count; i++) {
        receipt->timestamps_ms[receipt->row_count + i] =
            rows->timestamps_ms == NULL ? receipt->timestamp_ms : rows->timestamps_ms[i];
    }
    receipt->row_count += rows->count;
    return STATUS_OK;
}

static bool run_continues(const struct receipt_run *run, uint32_t partition_index, const struct batch_place *next)
{
    return next->seq == run->seq && partition_index == run->partition_index && next->slot_index == run->slot_index &&
           next->record_index == run->record_index + run->count;
}

void receipt_add_run(struct receipt *receipt, uint32_t partition_index, const struct batch_place *first,
                     uint32_t count)
{
    struct receipt_run *last = receipt->run_count == 0 ? NULL : &receipt->runs[receipt->run_count - 1];
    if (last != NULL && run_continues(last, partition_index, first)) {
        last->count += count;
    } else {
        CHECK(receipt->run_count < receipt->run_capacity);
        receipt->runs[receipt->run_count++] = (struct receipt_run){.seq = first->seq,
                                                                   .partition_index = partition_index,
                                                                   .slot_index = first->slot_index,
                                                                   .record_index = first->record_index,
                                                                   .count = count,
                                                                   .position = receipt->appended_count};
    }
    receipt->appended_count += count;
}

/* ---- finding ---- */

bool receipt_find(const struct receipt *receipt, uint32_t row, uint32_t *position)
{
    CHECK(row < receipt->row_count);
    *position = receipt->positions == NULL ? row : receipt->positions[row];
    return *position < receipt->appended_count;
}

uint32_t receipt_row_at(const struct receipt *receipt, uint32_t position)
{
    CHECK(position < receipt->row_count);
    uint32_t row = position;
    if (receipt->positions != NULL) {
        for (row = 0; row + 1 < receipt->row_count && receipt->positions[row] != position; row++) {
        }
    }
    return row;
}

/* Returns the last run that begins at or before the position. */
const struct receipt_run *receipt_run_at(const struct receipt *receipt, uint32_t position)
{
    CHECK(receipt->run_count >= 1);
    uint32_t low = 0;
    uint32_t high = receipt->run_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (receipt->runs[middle].position <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &receipt->runs[low];
}

int64_t receipt_timestamp(const struct receipt *receipt, uint32_t row)
{
    CHECK(row < receipt->row_count);
    return receipt->timestamps_ms == NULL ? receipt->timestamp_ms : receipt->timestamps_ms[row];
}

/* ---- resolving ---- */

/* Splits a run: the first `count` records stay, the others become the next run. */
static enum status run_divide(struct receipt *receipt, uint32_t index, uint32_t count)
{
    CHECK(index < receipt->run_count);
    CHECK(count >= 1 && count < receipt->runs[index].count);
    RETURN_IF_FAILED(runs_reserve(receipt, 1));
    struct receipt_run *run = &receipt->runs[index];
    memmove(run + 1, run, (receipt->run_count - index) * sizeof *run);
    receipt->run_count++;
    run->count = count;
    run[1].count -= count;
    run[1].position += count;
    run[1].record_index += count;
    return STATUS_OK;
}

static enum status run_settle(struct receipt *receipt, uint32_t index, const struct completion *completion)
{
    CHECK(index < receipt->run_count);
    struct receipt_run *run = &receipt->runs[index];
    uint32_t before = run->record_index - completion->first_record;
    uint32_t covered = completion->record_count - before;
    if (covered < run->count) {
        RETURN_IF_FAILED(run_divide(receipt, index, covered));
        run = &receipt->runs[index];
    }
    run->is_resolved = true;
    run->result = completion->result;
    run->error_code = completion->error_code;
    run->base_offset = completion->base_offset < 0 ? -1 : completion->base_offset + before;
    run->log_append_time_ms = completion->log_append_time_ms;
    return STATUS_OK;
}

static const struct completion overwritten = {
    .record_count = UINT32_MAX, .result = RESULT_NONE, .base_offset = -1, .log_append_time_ms = -1};

static enum status run_resolve(struct receipt *receipt, const struct arena *arena, uint32_t index)
{
    CHECK(index < receipt->run_count);
    CHECK(!receipt->runs[index].is_resolved);
    const struct receipt_run *run = &receipt->runs[index];
    const struct record_token token = {.seq = run->seq,
                                       .partition_index = run->partition_index,
                                       .slot_index = run->slot_index,
                                       .record_index = run->record_index};
    struct completion completion;
    enum status status = completion_find(arena, &token, &completion);
    if (status == STATUS_RESULT_EXPIRED) {
        return run_settle(receipt, index, &overwritten);
    }
    RETURN_IF_FAILED(status);
    return run_settle(receipt, index, &completion);
}

enum status receipt_resolve_all(struct receipt *receipt, const struct arena *arena)
{
    uint64_t tail = load_acquire_u64(&arena->globals->completion_tail); /* C7 */
    uint32_t first_pending = UINT32_MAX;
    for (uint32_t i = receipt->first_pending; i < receipt->run_count; i++) {
        enum status status = receipt->runs[i].is_resolved ? STATUS_OK : run_resolve(receipt, arena, i);
        if (status == STATUS_PENDING) {
            first_pending = first_pending == UINT32_MAX ? i : first_pending;
        } else if (status != STATUS_OK) {
            return status;
        }
    }
    receipt->checked_tail = tail;
    receipt->first_pending = first_pending == UINT32_MAX ? receipt->run_count : first_pending;
    return first_pending == UINT32_MAX ? STATUS_OK : STATUS_PENDING;
}

enum status receipt_resolve(struct receipt *receipt, const struct arena *arena)
{
    uint64_t tail = load_acquire_u64(&arena->globals->completion_tail); /* C7 */
    if (tail - receipt->checked_tail >= arena->geometry.completion_count / 4) {
        return receipt_resolve_all(receipt, arena);
    }
    for (; receipt->first_pending < receipt->run_count; receipt->first_pending++) {
        uint32_t index = receipt->first_pending;
        if (!receipt->runs[index].is_resolved) {
            RETURN_IF_FAILED(run_resolve(receipt, arena, index));
        }
    }
    return STATUS_OK;
}

/* ---- totals ---- */

static int compare_u32(uint32_t left, uint32_t right)
{
    return (left > right) - (left < right);
}

static int compare_totals(const void *left_total, const void *right_total)
{
    const struct receipt_total *left = left_total;
    const struct receipt_total *right = right_total;
    int order = compare_u32(left->partition_index, right->partition_index);
    order = order != 0 ? order : (int)left->is_resolved - (int)right->is_resolved;
    order = order != 0 ? order : compare_u32((uint32_t)left->result, (uint32_t)right->result);
    return order != 0 ? order : compare_u32((uint32_t)left->error_code, (uint32_t)right->error_code);
}

static struct receipt_total total_of(const struct receipt_run *run)
{
    bool has_offset = run->is_resolved && run->base_offset >= 0;
    return (struct receipt_total){.partition_index = run->partition_index,
                                  .is_resolved = run->is_resolved,
                                  .result = run->result,
                                  .error_code = run->error_code,
                                  .count = run->count,
                                  .first_offset = has_offset ? run->base_offset : -1,
                                  .last_offset = has_offset ? run->base_offset + run->count - 1 : -1};
}

static void total_join(struct receipt_total *total, const struct receipt_total *other)
{
    CHECK(total->partition_index == other->partition_index);
    CHECK(total->is_resolved == other->is_resolved);
    bool is_first = other->first_offset >= 0 &&
                    (total->first_offset < 0 || other->first_offset < total->first_offset);
    total->first_offset = is_first ? other->first_offset : total->first_offset;
    total->last_offset = other->last_offset > total->last_offset ? other->last_offset : total->last_offset;
    total->count += other->count;
}

uint32_t receipt_totals(const struct receipt *receipt, struct receipt_total *totals)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < receipt->run_count; i++) {
        totals[i] = total_of(&receipt->runs[i]);
    }
    qsort(totals, receipt->run_count, sizeof *totals, compare_totals);
    for (uint32_t i = 0; i < receipt->run_count; i++) {
        if (count > 0 && compare_totals(&totals[count - 1], &totals[i]) == 0) {
            total_join(&totals[count - 1], &totals[i]);
        } else {
            totals[count++] = totals[i];
        }
    }
    return count;
}

/* Only in the last chunk of a failed call, rows that were not appended may precede rows that were. */
uint32_t receipt_row_of(const struct receipt *receipt, uint32_t index)
{
    CHECK(index < receipt->appended_count);
    uint32_t row = receipt->row_count > CHUNK_COUNT_MAX ? receipt->row_count - CHUNK_COUNT_MAX : 0;
    uint32_t position;
    if (index < row || receipt->appended_count == receipt->row_count) {
        return index;
    }
    for (uint32_t seen = row;; row++) {
        if (receipt_find(receipt, row, &position) && seen++ == index) {
            return row;
        }
    }
}

/* Returns the run with the smallest row among the resolved runs that did not succeed, or NULL. */
static const struct receipt_run *first_failed_run(const struct receipt *receipt, uint32_t *first_row)
{
    const struct receipt_run *first = NULL;
    for (uint32_t i = 0; i < receipt->run_count; i++) {
        const struct receipt_run *run = &receipt->runs[i];
        if (run->is_resolved && run->result != RESULT_SUCCEEDED) {
            uint32_t row = receipt_row_at(receipt, run->position);
            if (first == NULL || row < *first_row) {
                first = run;
                *first_row = row;
            }
        }
    }
    return first;
}

bool receipt_first_failed(const struct receipt *receipt, uint32_t *index)
{
    uint32_t first_row = 0;
    uint32_t position;
    *index = 0;
    if (first_failed_run(receipt, &first_row) == NULL) {
        return false;
    }
    CHECK(first_row < receipt->row_count);
    for (uint32_t row = 0; row < first_row; row++) {
        *index += receipt_find(receipt, row, &position);
    }
    return true;
}
