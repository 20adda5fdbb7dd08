/* SPDX-License-Identifier: Apache-2.0 */
#include "format/arrow_rows.h"

#include <stdlib.h>

/* Replaces the error of a later row by that of an earlier row. */
static void first_error(enum status *first, enum status status)
{
    *first = status == STATUS_OK ? *first : status;
}

static enum status text_read(bool is_there, const struct arrow_text *column, int64_t start, uint32_t *count,
                             struct arrow_slice *slices, struct error *error)
{
    if (is_there) {
        return arrow_text_read(column, start, count, slices, error);
    }
    for (uint32_t i = 0; i < *count; i++) {
        slices[i] = (struct arrow_slice){.size = -1};
    }
    return STATUS_OK;
}

static enum status partitions_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                   struct arrow_rows *rows, struct error *error)
{
    if (batch->has_partition) {
        return arrow_partitions_read(batch, start, count, rows->partitions, error);
    }
    for (uint32_t i = 0; i < *count; i++) {
        rows->partitions[i] = -1;
    }
    return STATUS_OK;
}

static enum status timestamps_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                   struct arrow_rows *rows, struct error *error)
{
    if (batch->has_timestamp) {
        return arrow_timestamps_read(batch, start, count, rows->timestamps_ms, error);
    }
    for (uint32_t i = 0; i < *count; i++) {
        rows->timestamps_ms[i] = NO_TIMESTAMP;
    }
    return STATUS_OK;
}

static bool headers_reserve(struct arrow_rows *rows, int64_t count)
{
    if (count <= rows->header_capacity) {
        return true;
    }
    struct record_header *headers = NULL;
    if (count < PTRDIFF_MAX / (int64_t)sizeof *headers) {
        headers = realloc(rows->headers, (size_t)count * sizeof *headers);
    }
    if (headers != NULL) {
        rows->headers = headers;
        rows->header_capacity = count;
    }
    return headers != NULL;
}

static enum status headers_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                struct arrow_rows *rows, struct error *error)
{
    enum status first = STATUS_OK;
    int64_t header_count;
    if (!batch->has_headers) {
        for (uint32_t i = 0; i < *count; i++) {
            rows->runs[i] = (struct arrow_header_run){0};
        }
        return STATUS_OK;
    }
    first_error(&first, arrow_headers_count(batch, start, count, &header_count, error));
    if (!headers_reserve(rows, header_count)) {
        *count = 0;
        return error_set(error, STATUS_OS, "no memory for the headers of rows");
    }
    first_error(&first, arrow_headers_read(batch, start, count, rows->headers, rows->runs, error));
    return first;
}

enum status arrow_rows_read(const struct arrow_batch *batch, int64_t start, uint32_t *count, struct arrow_rows *rows,
                            struct error *error)
{
    enum status first = STATUS_OK;
    CHECK(*count <= ARROW_ROWS_MAX);
    first_error(&first, text_read(true, &batch->value, start, count, rows->values, error));
    first_error(&first, text_read(batch->has_key, &batch->key, start, count, rows->keys, error));
    first_error(&first, partitions_read(batch, start, count, rows, error));
    first_error(&first, timestamps_read(batch, start, count, rows, error));
    first_error(&first, headers_read(batch, start, count, rows, error));
    first_error(&first, text_read(batch->has_topic, &batch->topic, start, count, rows->topics, error));
    return first;
}

void arrow_rows_free(struct arrow_rows *rows)
{
    free(rows->headers);
    arrow_rows_begin(rows);
}
