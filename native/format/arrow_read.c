/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads rows, in runs of cells of one column, so that the kind of the column is determined once per run.
 */
#include "format/arrow.h"

#include <string.h>

#include "base/check.h"

static inline bool is_null(const struct arrow_cells *cells, int64_t row)
{
    int64_t cell = cells->first + row;
    return cells->validity != NULL && (cells->validity[cell >> 3] >> (cell & 7) & 1) == 0;
}

static COLD enum status row_is_wrong(const char *name, int64_t row, const char *what, struct error *error)
{
    return error_set(error, STATUS_INVALID, "column '%s' contradicts itself in row %lld: %s", name, (long long)row,
                     what);
}

/* ---- integers ---- */

#define NUMBER_AT(type, numbers, cell)                                         \
    do {                                                                       \
        type number;                                                           \
        memcpy(&number, (numbers) + (cell) * (int64_t)sizeof number, sizeof number); \
        return (int64_t)number;                                                \
    } while (0)

/* An unsigned 64-bit number above INT64_MAX becomes negative, which is outside every allowed range. */
static inline int64_t integer_at(const struct arrow_integers *column, int64_t row)
{
    int64_t cell = column->cells.first + row;
    switch (column->width * 2 + column->is_signed) {
    case 2: NUMBER_AT(uint8_t, column->numbers, cell);
    case 3: NUMBER_AT(int8_t, column->numbers, cell);
    case 4: NUMBER_AT(uint16_t, column->numbers, cell);
    case 5: NUMBER_AT(int16_t, column->numbers, cell);
    case 8: NUMBER_AT(uint32_t, column->numbers, cell);
    case 9: NUMBER_AT(int32_t, column->numbers, cell);
    case 16: NUMBER_AT(uint64_t, column->numbers, cell);
    default: NUMBER_AT(int64_t, column->numbers, cell);
    }
}

static COLD enum status out_of_range(const struct arrow_integers *column, int64_t row, int64_t max,
                                     struct error *error)
{
    return error_set(error, STATUS_INVALID, "column '%s' is %lld in row %lld: it must lie between 0 and %lld",
                     column->name, (long long)integer_at(column, row), (long long)row, (long long)max);
}

enum status arrow_partitions_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                  int32_t *partitions, struct error *error)
{
    const struct arrow_integers *column = &batch->partition;
    for (uint32_t i = 0; i < *count; i++) {
        int64_t row = start + i;
        int64_t partition = is_null(&column->cells, row) ? -1 : integer_at(column, row);
        if (UNLIKELY(partition > INT32_MAX || (partition < 0 && !is_null(&column->cells, row)))) {
            *count = i;
            return out_of_range(column, row, INT32_MAX, error);
        }
        partitions[i] = (int32_t)partition;
    }
    return STATUS_OK;
}

/* Each unit has a limit, so that no timestamp exceeds this one. */
static const int64_t timestamp_ms_max = INT64_MAX / 1000;

static const struct {
    int64_t factor;
    int64_t divisor;
    int64_t max;
} units[] = {
    [ARROW_SECONDS] = {1000, 1, INT64_MAX / 1000 / 1000},
    [ARROW_MILLISECONDS] = {1, 1, INT64_MAX / 1000},
    [ARROW_MICROSECONDS] = {1, 1000, INT64_MAX},
    [ARROW_NANOSECONDS] = {1, 1000000, INT64_MAX},
};

enum status arrow_timestamps_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                  int64_t *timestamps_ms, struct error *error)
{
    const struct arrow_integers *column = &batch->timestamp;
    for (uint32_t i = 0; i < *count; i++) {
        int64_t row = start + i;
        if (is_null(&column->cells, row)) {
            timestamps_ms[i] = NO_TIMESTAMP;
            continue;
        }
        int64_t number = integer_at(column, row);
        if (UNLIKELY(number < 0 || number > units[batch->timestamp_unit].max)) {
            *count = i;
            return out_of_range(column, row, units[batch->timestamp_unit].max, error);
        }
        timestamps_ms[i] = number * units[batch->timestamp_unit].factor / units[batch->timestamp_unit].divisor;
        CHECK(timestamps_ms[i] <= timestamp_ms_max);
    }
    return STATUS_OK;
}

/* ---- bytes ---- */

static COLD enum status offsets_are_wrong(const struct arrow_bytes *column, int64_t row, int64_t from, int64_t to,
                                          struct error *error)
{
    if (from >= 0 && to >= from && to <= column->data_size) {
        return error_set(error, STATUS_RECORD_TOO_LARGE, "column '%s' has %lld bytes in row %lld: a record takes at "
                         "most %d", column->name, (long long)(to - from), (long long)row, INT32_MAX);
    }
    return row_is_wrong(column->name, row, "its offsets decrease, or exceed the last one", error);
}

static inline int64_t offset_32(const uint8_t *offsets, int64_t cell)
{
    NUMBER_AT(int32_t, offsets, cell);
}

static inline int64_t offset_64(const uint8_t *offsets, int64_t cell)
{
    NUMBER_AT(int64_t, offsets, cell);
}

/* Inlined twice: for offsets of 32 and of 64 bits. */
static inline __attribute__((always_inline)) enum status
read_between_offsets(const struct arrow_bytes *column, int64_t start, uint32_t *count, struct arrow_slice *slices,
                     int64_t (*offset_at)(const uint8_t *, int64_t), struct error *error)
{
    const uint8_t *data = column->data;
    int64_t cell = column->cells.first + start;
    int64_t end = column->data_size;
    int64_t from = offset_at(column->places, cell);
    for (uint32_t i = 0; i < *count; i++) {
        int64_t to = offset_at(column->places, cell + i + 1);
        if (UNLIKELY(from < 0 || to < from || to > end || to - from > INT32_MAX)) {
            *count = i;
            return offsets_are_wrong(column, start + i, from, to, error);
        }
        slices[i] = (struct arrow_slice){.start = data + from, .size = (int32_t)(to - from)};
        from = to;
    }
    return STATUS_OK;
}

static void slices_null(const struct arrow_cells *cells, int64_t start, uint32_t count, struct arrow_slice *slices)
{
    for (uint32_t i = 0; i < count; i++) {
        if (is_null(cells, start + i)) {
            slices[i] = (struct arrow_slice){.start = NULL, .size = -1};
        }
    }
}

/* A view in memory: up to 12 bytes in place, or 4 bytes and the position of the string. */
struct view {
    int32_t size;
    int32_t prefix;
    int32_t buffer_index;
    int32_t start;
};

enum { VIEW_SIZE = 16, VIEW_IN_PLACE_MAX = 12 };

static bool view_resolve(const struct arrow_bytes *column, const struct view *view, struct arrow_slice *slice)
{
    if (view->buffer_index < 0 || view->buffer_index >= column->view_buffer_count || view->start < 0) {
        return false;
    }
    int64_t buffer_size = offset_64(column->view_buffer_sizes, view->buffer_index);
    const uint8_t *buffer = column->view_buffers[view->buffer_index];
    if (buffer == NULL || (int64_t)view->start + view->size > buffer_size) {
        return false;
    }
    *slice = (struct arrow_slice){.start = buffer + view->start, .size = view->size};
    return true;
}

/* The view of a null is undefined, so it is not read. */
static enum status read_views(const struct arrow_bytes *column, int64_t start, uint32_t *count,
                              struct arrow_slice *slices, struct error *error)
{
    for (uint32_t i = 0; i < *count; i++) {
        struct view view;
        const uint8_t *place = column->places + (column->cells.first + start + i) * VIEW_SIZE;
        memcpy(&view, place, sizeof view);
        if (is_null(&column->cells, start + i)) {
            slices[i] = (struct arrow_slice){.start = NULL, .size = -1};
        } else if (view.size >= 0 && view.size <= VIEW_IN_PLACE_MAX) {
            slices[i] = (struct arrow_slice){.start = place + sizeof view.size, .size = view.size};
        } else if (view.size < 0 || !view_resolve(column, &view, &slices[i])) {
            *count = i;
            return row_is_wrong(column->name, start + i, "its view passes the buffer it names", error);
        }
    }
    return STATUS_OK;
}

static enum status read_nulls(uint32_t count, struct arrow_slice *slices)
{
    for (uint32_t i = 0; i < count; i++) {
        slices[i] = (struct arrow_slice){.start = NULL, .size = -1};
    }
    return STATUS_OK;
}

static enum status bytes_read(const struct arrow_bytes *column, int64_t start, uint32_t *count,
                              struct arrow_slice *slices, struct error *error)
{
    enum status status;
    switch (column->kind) {
    case ARROW_BYTES_OFFSETS_32:
        status = read_between_offsets(column, start, count, slices, offset_32, error);
        break;
    case ARROW_BYTES_OFFSETS_64:
        status = read_between_offsets(column, start, count, slices, offset_64, error);
        break;
    case ARROW_BYTES_VIEWS:
        return read_views(column, start, count, slices, error);
    default:
        return read_nulls(*count, slices);
    }
    if (UNLIKELY(column->cells.validity != NULL)) {
        slices_null(&column->cells, start, *count, slices);
    }
    return status;
}

static enum status bytes_read_one(const struct arrow_bytes *column, int64_t row, struct arrow_slice *slice,
                                  struct error *error)
{
    uint32_t count = 1;
    return bytes_read(column, row, &count, slice, error);
}

/* A cell is null if its index is null or its value in the dictionary is null. */
static enum status dictionary_read(const struct arrow_text *column, int64_t start, uint32_t *count,
                                   struct arrow_slice *slices, struct error *error)
{
    for (uint32_t i = 0; i < *count; i++) {
        slices[i] = (struct arrow_slice){.start = NULL, .size = -1};
        if (is_null(&column->indices.cells, start + i)) {
            continue;
        }
        int64_t index = integer_at(&column->indices, start + i);
        if (UNLIKELY(index < 0 || index >= column->bytes.cells.length)) {
            *count = i;
            return row_is_wrong(column->bytes.name, start + i, "its index is outside the dictionary", error);
        }
        enum status status = bytes_read_one(&column->bytes, index, &slices[i], error);
        if (UNLIKELY(status != STATUS_OK)) {
            *count = i;
            return status;
        }
    }
    return STATUS_OK;
}

enum status arrow_text_read(const struct arrow_text *column, int64_t start, uint32_t *count,
                            struct arrow_slice *slices, struct error *error)
{
    return UNLIKELY(column->has_dictionary) ? dictionary_read(column, start, count, slices, error)
                                            : bytes_read(&column->bytes, start, count, slices, error);
}

/* ---- headers ---- */

/* Returns entries [*from, *to) of a row: none if the row is null. */
static enum status list_read(const struct arrow_headers *headers, int64_t row, int64_t *from, int64_t *to,
                             struct error *error)
{
    int64_t cell = headers->cells.first + row;
    *from = headers->is_large ? offset_64(headers->offsets, cell) : offset_32(headers->offsets, cell);
    *to = headers->is_large ? offset_64(headers->offsets, cell + 1) : offset_32(headers->offsets, cell + 1);
    if (UNLIKELY(*from < 0 || *to < *from || *to > headers->entries.length || *to - *from > INT32_MAX)) {
        return row_is_wrong("headers", row, "its offsets decrease, or exceed the last one", error);
    }
    *to = is_null(&headers->cells, row) ? *from : *to;
    return STATUS_OK;
}

enum status arrow_headers_count(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                int64_t *header_count, struct error *error)
{
    *header_count = 0;
    for (uint32_t i = 0; i < *count; i++) {
        int64_t from;
        int64_t to;
        enum status status = list_read(&batch->headers, start + i, &from, &to, error);
        if (UNLIKELY(status != STATUS_OK)) {
            *count = i;
            return status;
        }
        *header_count += to - from;
    }
    return STATUS_OK;
}

static enum status header_read(const struct arrow_headers *headers, int64_t entry, int64_t row,
                               struct record_header *header, struct error *error)
{
    struct arrow_slice key;
    struct arrow_slice value;
    if (UNLIKELY(is_null(&headers->entries, entry))) {
        return error_set(error, STATUS_INVALID, "row %lld has a header that is null: leave it out", (long long)row);
    }
    RETURN_IF_FAILED(bytes_read_one(&headers->key, entry, &key, error));
    RETURN_IF_FAILED(bytes_read_one(&headers->value, entry, &value, error));
    if (UNLIKELY(key.size < 0)) {
        return error_set(error, STATUS_INVALID, "row %lld has a header whose key is null: every header needs one",
                         (long long)row);
    }
    *header = (struct record_header){
        .key = key.start, .key_size = key.size, .value = value.start, .value_size = value.size};
    return STATUS_OK;
}

static enum status row_headers_read(const struct arrow_headers *headers, int64_t row, struct record_header *target,
                                    int32_t *header_count, struct error *error)
{
    int64_t from;
    int64_t to;
    RETURN_IF_FAILED(list_read(headers, row, &from, &to, error));
    for (int64_t entry = from; entry < to; entry++) {
        RETURN_IF_FAILED(header_read(headers, entry, row, &target[entry - from], error));
    }
    *header_count = (int32_t)(to - from);
    return STATUS_OK;
}

enum status arrow_headers_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                               struct record_header *headers, struct arrow_header_run *runs, struct error *error)
{
    for (uint32_t i = 0; i < *count; i++) {
        runs[i].headers = headers;
        enum status status = row_headers_read(&batch->headers, start + i, headers, &runs[i].count, error);
        if (UNLIKELY(status != STATUS_OK)) {
            *count = i;
            return status;
        }
        headers += runs[i].count;
    }
    return STATUS_OK;
}
