/* SPDX-License-Identifier: Apache-2.0
 *
 * The receipt of one call that appended many records: the place and the result of each of them, without an object per
 * record.
 *
 *   rows        0 1 2 3 4 5 ...      records in the given order
 *   positions   0 3 1 5 4 2 ...      the same records in the order they were appended (grouping.h); stored only if the
 *                                    two orders differ
 *   runs        [0..3) [3..5) ...    by position: records of one batch in a row, identified by the token of the first
 *
 * A call that failed midway has appended positions [0, appended_count): row r was appended if its position is below.
 *
 * A run is *resolved* when its result was found in the completion ring. The result is copied, so later changes of the
 * ring do not matter. If a batch was split with a boundary inside a run, the run becomes two.
 *
 * Private memory of one process, one thread at a time.
 */
#ifndef PRODUCER_RECEIPT_H
#define PRODUCER_RECEIPT_H

#include <stdbool.h>

#include "arena/completion.h"
#include "producer/grouping.h"
#include "producer/producer_batch.h"

struct receipt_run {
    uint64_t seq;
    uint32_t partition_index;
    uint32_t slot_index;
    uint32_t record_index; /* of the first record, in its batch */
    uint32_t count;
    uint32_t position;     /* of the first record */
    bool is_resolved;
    enum batch_result result; /* once resolved; RESULT_NONE if it was overwritten before */
    int32_t error_code;
    int64_t base_offset;   /* of the first record, or -1 */
    int64_t log_append_time_ms;
};

struct receipt {
    uint32_t row_count;
    uint32_t appended_count;
    uint32_t row_capacity;
    uint32_t run_count;
    uint32_t run_capacity;
    uint32_t first_pending;  /* runs before it are resolved */
    uint64_t checked_tail; /* completion_tail when all runs were last checked */
    int64_t timestamp_ms;    /* of every row, while `timestamps_ms` is NULL */
    struct receipt_run *runs;
    uint32_t *positions;     /* by row; NULL if row r has position r */
    int64_t *timestamps_ms;  /* by row */
};

/* An empty receipt is all zeros. */
void receipt_close(struct receipt *receipt);

/* The facts of the next rows. */
struct receipt_rows {
    uint32_t count;             /* at most CHUNK_COUNT_MAX */
    const uint8_t *places;      /* of each row among them, in the order of appending; NULL if that is the given order */
    const int64_t *timestamps_ms; /* NULL if all are receipt->timestamp_ms */
};

/* Adds rows that are about to be appended, and reserves memory for all their runs: no record is committed without a
 * place in its receipt. Returns STATUS_OS if there is no memory, or for 2^32 rows. */
enum status receipt_add_rows(struct receipt *receipt, const struct receipt_rows *rows) MUST_USE;

/* Adds records that were just appended, all to one batch. */
void receipt_add_run(struct receipt *receipt, uint32_t partition_index, const struct batch_place *first,
                     uint32_t count);

/* Finds the position of a row. Returns false if it was not appended. */
bool receipt_find(const struct receipt *receipt, uint32_t row, uint32_t *position);

/* Returns the row at a position; reads all rows if the orders differ. */
uint32_t receipt_row_at(const struct receipt *receipt, uint32_t position);

/* Return the run with the position, which is below appended_count, and the timestamp of the record there. */
const struct receipt_run *receipt_run_at(const struct receipt *receipt, uint32_t position);
int64_t receipt_timestamp(const struct receipt *receipt, uint32_t row);

/* Returns the row of an appended record. Their indexes are in the given order. */
uint32_t receipt_row_of(const struct receipt *receipt, uint32_t index);

/* Finds the index of the first record that is known to have failed or to be lost. Returns false if there is none. */
bool receipt_first_failed(const struct receipt *receipt, uint32_t *index);

/* Searches for results. Checks runs from the first pending one on until one is incomplete, and all of them before the
 * ring can have overwritten any result. So a wait does not check every run for every result. STATUS_PENDING: not all
 * are resolved. STATUS_CORRUPT, STATUS_OS. */
enum status receipt_resolve(struct receipt *receipt, const struct arena *arena) MUST_USE;

/* The same, but checks every run. */
enum status receipt_resolve_all(struct receipt *receipt, const struct arena *arena) MUST_USE;

/* Returns true once every run has its result, so that nothing of the arena is needed any more. */
static inline bool receipt_is_resolved(const struct receipt *receipt)
{
    return receipt->first_pending == receipt->run_count;
}

/* Records of one partition with one result. */
struct receipt_total {
    uint32_t partition_index;
    bool is_resolved;
    enum batch_result result;
    int32_t error_code;
    uint32_t count;
    int64_t first_offset; /* smallest, or -1 */
    int64_t last_offset;  /* largest; there may be other records between them */
};

/* Fills `totals`, of size run_count, in the order of partition index and result. Returns their number. */
uint32_t receipt_totals(const struct receipt *receipt, struct receipt_total *totals);

#endif
