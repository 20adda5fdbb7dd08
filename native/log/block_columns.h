/* SPDX-License-Identifier: Apache-2.0
 *
 * The plain batches of a block that was read from a log -> columns. Headers, CRCs and records are read in one pass.
 *
 * Before it, a pass over the headers of batches bounds the number of rows. A column of bytes is never larger than the
 * records, so the second pass reads each record once, and unused bytes are released. If headers of records are
 * requested, the first pass counts all records, because only the bytes bound the number of their headers.
 *
 * A batch that is not plain, or whose records contradict its header, ends the walk. The columns have no record of it:
 * the caller decides what it is.
 */
#ifndef LOG_BLOCK_COLUMNS_H
#define LOG_BLOCK_COLUMNS_H

#include "format/record_columns.h"
#include "log/plain_batch.h"

/* A walk ends with the batch that reaches it. Spark's own record batches have so many rows. */
enum { BLOCK_ROW_COUNT_MAX = 10000 };

struct block_walk {
    struct plain_block block;
    struct log_range range;
    bool has_headers;
};

/* Measures all batches up to the position that it returns. */
int64_t block_columns_measure(const struct block_walk *walk, struct record_columns_room *room);

/* Appends the batches up to `end`, and moves the block past them. */
void block_columns_append(struct block_walk *walk, int64_t end, struct record_columns *columns);

#endif
