/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads some rows of an Arrow batch in place, column by column.
 *
 * If a column is wrong in a row, the next columns are read only up to that row. So the error is that of the first wrong
 * row.
 */
#ifndef FORMAT_ARROW_ROWS_H
#define FORMAT_ARROW_ROWS_H

#include "format/arrow.h"

enum { ARROW_ROWS_MAX = 255 };

/* A missing column is null in each row. */
struct arrow_rows {
    struct arrow_slice values[ARROW_ROWS_MAX];
    struct arrow_slice keys[ARROW_ROWS_MAX];
    struct arrow_slice topics[ARROW_ROWS_MAX];
    int32_t partitions[ARROW_ROWS_MAX];     /* -1 if null */
    int64_t timestamps_ms[ARROW_ROWS_MAX];  /* NO_TIMESTAMP if null */
    struct arrow_header_run runs[ARROW_ROWS_MAX];
    struct record_header *headers; /* of all rows */
    int64_t header_capacity;
};

/* Call before the first read, and after the last one. */
static inline void arrow_rows_begin(struct arrow_rows *rows)
{
    rows->headers = NULL;
    rows->header_capacity = 0;
}

void arrow_rows_free(struct arrow_rows *rows);

/* Reads rows [start, start + *count), which are within the batch and at most ARROW_ROWS_MAX. After an error, *count
 * receives the number of rows before the wrong one, or 0 if there is no memory for headers. */
enum status arrow_rows_read(const struct arrow_batch *batch, int64_t start, uint32_t *count, struct arrow_rows *rows,
                            struct error *error) MUST_USE;

#endif
