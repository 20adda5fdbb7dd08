/* SPDX-License-Identifier: Apache-2.0
 *
 * The receipt of a call that appended many records: the place and the result of each record, in few objects.
 *
 *   rows        0 1 2 3 4 5 ...      records in the given order
 *   positions   0 3 1 5 4 2 ...      the same records in the order they were appended (grouping.h); stored only if the
 *                                    two orders differ
 *   runs        [0..3) [3..5) ...    by position: consecutive records of one batch, and the token of the first
 *
 * A call that failed has appended the positions [0, appended_count): row r was appended if its position is there.
 *
 * A run is *resolved* when its result was found in the completion ring. The result is copied, so it stays valid when
 * the ring is overwritten. If a batch was split with a boundary inside a run, the run becomes two.
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
    uint32_t record_index; /* the number of the first record in its batch */
    uint32_t count;
    uint32_t position;     /* of the first record */
    bool is_resolved;
    enum batch_result result; /* set when resolved; RESULT_NONE if the result was overwritten */
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
    uint64_t checked_tail; /* completion_tail at the last check of all runs */
    int64_t timestamp_ms;    /* the timestamp of every row, if `timestamps_ms` is NULL */
    struct receipt_run *runs;
    uint32_t *positions;     /* by row; NULL if row r has position r */
    int64_t *timestamps_ms;  /* by row */
};

/* An empty receipt is all zeros. */
void receipt_close(struct receipt *receipt);

/* The rows that are added next. */
struct receipt_rows {
    uint32_t count;             /* at most CHUNK_COUNT_MAX */
    const uint8_t *places;      /* the place of each row in the order of appending; NULL if that is the given order */
    const int64_t *timestamps_ms; /* NULL if all are receipt->timestamp_ms */
};

/* Adds rows that are about to be appended, and allocates memory for all their runs, so that a committed record always
 * has a place in its receipt. Returns STATUS_OS if there is no memory, or for 2^32 rows. */
enum status receipt_add_rows(struct receipt *receipt, const struct receipt_rows *rows) MUST_USE;

/* Adds records that were just appended to one batch. */
void receipt_add_run(struct receipt *receipt, uint32_t partition_index, const struct batch_place *first,
                     uint32_t count);

/* Finds the position of a row. Returns false if it was not appended. */
bool receipt_find(const struct receipt *receipt, uint32_t row, uint32_t *position);

/* Returns the row at a position; reads all rows if the orders differ. */
uint32_t receipt_row_at(const struct receipt *receipt, uint32_t position);

/* Return the run that contains the position, and the timestamp of the record at it. Require a position below
 * appended_count. */
const struct receipt_run *receipt_run_at(const struct receipt *receipt, uint32_t position);
int64_t receipt_timestamp(const struct receipt *receipt, uint32_t row);

/* Returns the row of the appended record with this index, in the given order. */
uint32_t receipt_row_of(const struct receipt *receipt, uint32_t index);

/* Finds the index of the first record whose result is a failure or was overwritten. Returns false if there is none. */
bool receipt_first_failed(const struct receipt *receipt, uint32_t *index);

/* Looks for results, from the first pending run to the first incomplete one, so that a wait does not check every run
 * for every result. Checks all runs before the ring can have overwritten a result. Returns STATUS_PENDING if not all
 * are resolved, STATUS_CORRUPT or STATUS_OS. */
enum status receipt_resolve(struct receipt *receipt, const struct arena *arena) MUST_USE;

/* The same, but checks every run. */
enum status receipt_resolve_all(struct receipt *receipt, const struct arena *arena) MUST_USE;

/* Returns true if every run has its result. Then the receipt no longer needs the arena. */
static inline bool receipt_is_resolved(const struct receipt *receipt)
{
    return receipt->first_pending == receipt->run_count;
}

/* The records of one partition that have the same result. */
struct receipt_total {
    uint32_t partition_index;
    bool is_resolved;
    enum batch_result result;
    int32_t error_code;
    uint32_t count;
    int64_t first_offset; /* the smallest, or -1 */
    int64_t last_offset;  /* the largest; other records may be between them */
};

/* Fills `totals`, of size run_count, in the order of partition index and result. Returns their number. */
uint32_t receipt_totals(const struct receipt *receipt, struct receipt_total *totals);

#endif
