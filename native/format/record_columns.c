/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record_columns.h"

#include <string.h>

enum { US_PER_MS = 1000, TYPE_CREATE_TIME = 0, TYPE_LOG_APPEND_TIME = 1 };

/* ---- reading ---- */

/* Advances to the next wanted record. Returns PENDING if there is none. */
static enum status walk_next(struct record_walk *walk, const struct log_range *range)
{
    do {
        RETURN_IF_FAILED(record_walk_next(walk));
    } while (walk->offset < range->first || walk->offset >= range->end);
    return STATUS_OK;
}

static enum status walk_end(enum status status)
{
    return status == STATUS_PENDING ? STATUS_OK : status;
}

static int64_t timestamp_us(const struct record_walk *walk)
{
    int64_t time_us;
    bool is_above = __builtin_mul_overflow(record_walk_timestamp_ms(walk), (int64_t)US_PER_MS, &time_us);
    return is_above ? NO_TIMESTAMP * US_PER_MS : time_us;
}

/* ---- buffers ---- */

static size_t bits_size(int64_t count)
{
    return (size_t)(count + 7) / 8;
}

static void bytes_sizes(const struct bytes_room *room, size_t sizes[3])
{
    sizes[0] = bits_size(room->cell_count);
    sizes[1] = ((size_t)room->cell_count + 1) * sizeof(int32_t);
    sizes[2] = (size_t)room->data_size;
}

uint32_t record_columns_sizes(const struct record_columns_room *room, bool has_headers,
                              size_t sizes[COLUMN_BUFFERS_MAX])
{
    size_t row_count = (size_t)room->row_count;
    sizes[0] = row_count * sizeof(int64_t);
    sizes[1] = row_count * sizeof(int64_t);
    sizes[2] = row_count * sizeof(int32_t);
    bytes_sizes(&room->key, &sizes[COLUMN_BUFFERS_KEY]);
    bytes_sizes(&room->value, &sizes[COLUMN_BUFFERS_VALUE]);
    sizes[COLUMN_BUFFERS_HEADERS] = bits_size(room->row_count);
    sizes[COLUMN_BUFFERS_HEADERS + 1] = (row_count + 1) * sizeof(int32_t);
    bytes_sizes(&room->header_key, &sizes[COLUMN_BUFFERS_HEADER_KEY]);
    bytes_sizes(&room->header_value, &sizes[COLUMN_BUFFERS_HEADER_VALUE]);
    return has_headers ? COLUMN_BUFFERS_MAX : COLUMN_BUFFERS_HEADERS;
}

static uint8_t *bits_begin(void *buffer, int64_t count)
{
    return memset(buffer, 0, bits_size(count));
}

static int32_t *ends_begin(int32_t *ends)
{
    ends[0] = 0;
    return ends;
}

static struct bytes_column bytes_begin(const struct bytes_room *room, void *const buffers[3])
{
    return (struct bytes_column){.room = *room,
                                 .validity = bits_begin(buffers[0], room->cell_count),
                                 .offsets = ends_begin(buffers[1]),
                                 .data = buffers[2]};
}

void record_columns_begin(struct record_columns *columns, const struct record_columns_room *room, bool has_headers,
                          void *const buffers[COLUMN_BUFFERS_MAX])
{
    *columns = (struct record_columns){.row_capacity = room->row_count,
                                       .offsets = buffers[0],
                                       .timestamps_us = buffers[1],
                                       .timestamp_types = buffers[2],
                                       .key = bytes_begin(&room->key, &buffers[COLUMN_BUFFERS_KEY]),
                                       .value = bytes_begin(&room->value, &buffers[COLUMN_BUFFERS_VALUE]),
                                       .has_headers = has_headers};
    if (has_headers) {
        columns->header_validity = bits_begin(buffers[COLUMN_BUFFERS_HEADERS], room->row_count);
        columns->header_offsets = ends_begin(buffers[COLUMN_BUFFERS_HEADERS + 1]);
        columns->header_key = bytes_begin(&room->header_key, &buffers[COLUMN_BUFFERS_HEADER_KEY]);
        columns->header_value = bytes_begin(&room->header_value, &buffers[COLUMN_BUFFERS_HEADER_VALUE]);
    }
}

struct record_columns_room record_columns_used(const struct record_columns *columns)
{
    return (struct record_columns_room){.row_count = columns->row_count,
                                        .key = columns->key.used,
                                        .value = columns->value.used,
                                        .header_key = columns->header_key.used,
                                        .header_value = columns->header_value.used};
}

/* ---- counting ---- */

static void room_add(struct bytes_room *room, int32_t size)
{
    room->cell_count++;
    room->data_size += size > 0 ? size : 0;
}

static enum status headers_measure(const struct record_view *view, struct record_columns_room *room)
{
    const uint8_t *cursor = view->headers;
    for (int32_t i = 0; i < view->header_count; i++) {
        struct record_header_view header;
        RETURN_IF_FAILED(record_header_read(&cursor, view->headers_end, &header));
        room_add(&room->header_key, header.key_size);
        room_add(&room->header_value, header.value_size);
    }
    return STATUS_OK;
}

static bool is_above_int32(const struct bytes_room *room)
{
    return room->data_size > INT32_MAX || room->cell_count >= INT32_MAX;
}

enum status record_columns_measure(const struct log_records *records, const struct log_range *range,
                                   struct record_columns_room *room)
{
    struct record_walk walk = record_walk_begin(records);
    enum status status;
    while ((status = walk_next(&walk, range)) == STATUS_OK) {
        room->row_count++;
        room_add(&room->key, walk.view.key_size);
        room_add(&room->value, walk.view.value_size);
        RETURN_IF_FAILED(headers_measure(&walk.view, room));
    }
    bool is_too_large = is_above_int32(&room->key) || is_above_int32(&room->value) ||
                        is_above_int32(&room->header_key) || is_above_int32(&room->header_value);
    return is_too_large ? STATUS_RECORD_TOO_LARGE : walk_end(status);
}

/* ---- writing ---- */

static void bit_set(uint8_t *bits, int64_t index)
{
    bits[index / 8] = (uint8_t)(bits[index / 8] | 1 << index % 8);
}

static enum status bytes_append(struct bytes_column *column, const uint8_t *start, int32_t size)
{
    int64_t cell = column->used.cell_count;
    if (cell == column->room.cell_count || size > column->room.data_size - column->used.data_size) {
        return STATUS_CORRUPT;
    }
    if (size < 0) {
        column->null_count++;
    } else {
        bit_set(column->validity, cell);
        memcpy(column->data + column->used.data_size, start, (size_t)size);
    }
    room_add(&column->used, size);
    column->offsets[cell + 1] = (int32_t)column->used.data_size;
    return STATUS_OK;
}

static enum status headers_append(const struct record_view *view, int64_t row, struct record_columns *columns)
{
    const uint8_t *cursor = view->headers;
    for (int32_t i = 0; i < view->header_count; i++) {
        struct record_header_view header;
        RETURN_IF_FAILED(record_header_read(&cursor, view->headers_end, &header));
        RETURN_IF_FAILED(bytes_append(&columns->header_key, header.key, header.key_size));
        RETURN_IF_FAILED(bytes_append(&columns->header_value, header.value, header.value_size));
    }
    if (view->header_count > 0) {
        bit_set(columns->header_validity, row);
    } else {
        columns->header_null_count++;
    }
    columns->header_offsets[row + 1] = (int32_t)columns->header_key.used.cell_count;
    return STATUS_OK;
}

static enum status row_append(const struct record_walk *walk, struct record_columns *columns)
{
    int64_t row = columns->row_count;
    if (row == columns->row_capacity) {
        return STATUS_CORRUPT;
    }
    bool is_log_time = walk->records->log_append_time_ms != NO_TIMESTAMP;
    columns->offsets[row] = walk->offset;
    columns->timestamps_us[row] = timestamp_us(walk);
    columns->timestamp_types[row] = is_log_time ? TYPE_LOG_APPEND_TIME : TYPE_CREATE_TIME;
    columns->row_count++;
    RETURN_IF_FAILED(bytes_append(&columns->key, walk->view.key, walk->view.key_size));
    RETURN_IF_FAILED(bytes_append(&columns->value, walk->view.value, walk->view.value_size));
    return columns->has_headers ? headers_append(&walk->view, row, columns) : STATUS_OK;
}

enum status record_columns_append(const struct log_records *records, const struct log_range *range,
                                  struct record_columns *columns)
{
    struct record_walk walk = record_walk_begin(records);
    enum status status;
    while ((status = walk_next(&walk, range)) == STATUS_OK) {
        RETURN_IF_FAILED(row_append(&walk, columns));
    }
    return walk_end(status);
}
