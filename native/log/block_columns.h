/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the plain batches of a block of a log into columns. Headers, CRCs and records are read in one pass.
 *
 * An earlier pass over the headers of batches bounds the number of rows, and a column of bytes is never larger than the
 * records. So the second pass reads each record once, and unused bytes are released. If record headers are requested,
 * the first pass reads all records to count them, because no batch header bounds their number.
 *
 * A batch that is not plain, or whose records contradict its header, ends the walk. The columns have no record of it,
 * and the caller handles it.
 */
#ifndef LOG_BLOCK_COLUMNS_H
#define LOG_BLOCK_COLUMNS_H

#include "format/record_columns.h"
#include "log/plain_batch.h"

/* A walk ends after the batch that reaches this number of rows, which is the default size of Spark's record batches. */
enum { BLOCK_ROW_COUNT_MAX = 10000 };

struct block_walk {
    struct plain_block block;
    struct log_range range;
    bool has_headers;
};

/* Measures the batches up to the returned position. */
int64_t block_columns_measure(const struct block_walk *walk, struct record_columns_room *room);

/* Appends the batches up to `end`, and moves the block past them. */
void block_columns_append(struct block_walk *walk, int64_t end, struct record_columns *columns);

#endif
