/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record.h"

#include <stdbool.h>
#include <string.h>

/* ---- measuring: in 64 bits, where the largest possible record does not overflow ---- */

static uint64_t nullable_size(int32_t size)
{
    return size < 0 ? 1 : varint_size(size) + (uint64_t)size;
}

static enum status measure_headers(const struct record *record, uint64_t *size)
{
    *size = varint_size(record->header_count);
    for (int32_t i = 0; i < record->header_count; i++) {
        const struct record_header *header = &record->headers[i];
        if (header->key_size < 0 || header->value_size < -1) {
            return STATUS_INVALID;
        }
        *size += nullable_size(header->key_size) + nullable_size(header->value_size);
    }
    return STATUS_OK;
}

static bool record_is_valid(const struct record *record)
{
    return record->key_size >= -1 && record->value_size >= -1 && record->header_count >= 0 &&
           record->timestamp_ms >= NO_TIMESTAMP;
}

enum status record_measure_any(const struct record *record, struct record_size *size)
{
    uint64_t headers = 1;
    if (!record_is_valid(record)) {
        return STATUS_INVALID;
    }
    if (record->header_count > 0) {
        RETURN_IF_FAILED(measure_headers(record, &headers));
    }
    uint64_t fixed = 1 + nullable_size(record->key_size) + nullable_size(record->value_size) + headers;
    if (fixed > RECORD_SIZE_MAX - VARINT_SIZE_MAX - RECORD_DELTAS_SIZE_MAX) {
        return STATUS_RECORD_TOO_LARGE;
    }
    size->fixed = (uint32_t)fixed;
    return STATUS_OK;
}

/* ---- writing ---- */

uint8_t *record_write_headers(uint8_t *target, const struct record *record)
{
    for (int32_t i = 0; i < record->header_count; i++) {
        const struct record_header *header = &record->headers[i];
        target = record_write_nullable(target, header->key, header->key_size);
        target = record_write_nullable(target, header->value, header->value_size);
    }
    return target;
}

static void scatter_varint(struct scatter *target, int32_t value)
{
    uint8_t bytes[VARINT_SIZE_MAX];
    scatter_write(target, bytes, (size_t)(varint_write(bytes, value) - bytes));
}

static void scatter_nullable(struct scatter *target, const void *bytes, int32_t size)
{
    scatter_varint(target, size);
    if (size > 0) {
        scatter_write(target, bytes, (size_t)size);
    }
}

void record_write_scattered(struct scatter *target, const struct record *record, const struct record_size *size,
                            int32_t offset_delta, int64_t timestamp_delta)
{
    uint8_t prefix[RECORD_PREFIX_SIZE_MAX];
    uint32_t body_size = record_body_size(size, offset_delta, timestamp_delta);
    uint8_t *prefix_end = record_write_prefix(prefix, body_size, offset_delta, timestamp_delta);
    scatter_write(target, prefix, (size_t)(prefix_end - prefix));
    scatter_nullable(target, record->key, record->key_size);
    scatter_nullable(target, record->value, record->value_size);
    scatter_varint(target, record->header_count);
    for (int32_t i = 0; i < record->header_count; i++) {
        const struct record_header *header = &record->headers[i];
        scatter_nullable(target, header->key, header->key_size);
        scatter_nullable(target, header->value, header->value_size);
    }
}

/* ---- reading ---- */

static enum status read_nullable(const uint8_t **cursor, const uint8_t *end, const uint8_t **bytes, int32_t *size)
{
    RETURN_IF_FAILED(varint_read(cursor, end, size));
    if (*size < -1 || *size > end - *cursor) {
        return STATUS_CORRUPT;
    }
    *bytes = *size < 0 ? NULL : *cursor;
    *cursor += *size < 0 ? 0 : *size;
    return STATUS_OK;
}

enum status record_header_read(const uint8_t **cursor, const uint8_t *end, struct record_header_view *view)
{
    RETURN_IF_FAILED(read_nullable(cursor, end, &view->key, &view->key_size));
    RETURN_IF_FAILED(read_nullable(cursor, end, &view->value, &view->value_size));
    return view->key_size < 0 ? STATUS_CORRUPT : STATUS_OK;
}

static enum status read_headers(const uint8_t **cursor, const uint8_t *end, struct record_view *view)
{
    RETURN_IF_FAILED(varint_read(cursor, end, &view->header_count));
    view->headers = *cursor;
    view->headers_end = end;
    struct record_header_view header;
    for (int32_t i = 0; i < view->header_count; i++) {
        RETURN_IF_FAILED(record_header_read(cursor, end, &header));
    }
    return view->header_count < 0 ? STATUS_CORRUPT : STATUS_OK;
}

static enum status read_body(const uint8_t **cursor, const uint8_t *end, struct record_view *view)
{
    if (*cursor == end) {
        return STATUS_CORRUPT;
    }
    view->attributes = (int8_t)*(*cursor)++;
    RETURN_IF_FAILED(varlong_read(cursor, end, &view->timestamp_delta));
    RETURN_IF_FAILED(varint_read(cursor, end, &view->offset_delta));
    RETURN_IF_FAILED(read_nullable(cursor, end, &view->key, &view->key_size));
    RETURN_IF_FAILED(read_nullable(cursor, end, &view->value, &view->value_size));
    RETURN_IF_FAILED(read_headers(cursor, end, view));
    return *cursor == end ? STATUS_OK : STATUS_CORRUPT;
}

enum status record_read(const uint8_t **cursor, const uint8_t *end, struct record_view *view)
{
    int32_t body_size;
    const uint8_t *body = *cursor;
    RETURN_IF_FAILED(varint_read(&body, end, &body_size));
    if (body_size < 0 || body_size > end - body) {
        return STATUS_CORRUPT;
    }
    RETURN_IF_FAILED(read_body(&body, body + body_size, view));
    *cursor = body;
    return STATUS_OK;
}

/* Skips the fields up to the offset delta. */
static enum status skip_deltas(const uint8_t **cursor, const uint8_t *end)
{
    int64_t timestamp_delta;
    int32_t number;
    RETURN_IF_FAILED(varint_read(cursor, end, &number)); /* the length */
    (*cursor)++;                                         /* attributes */
    RETURN_IF_FAILED(varlong_read(cursor, end, &timestamp_delta));
    return varint_read(cursor, end, &number);
}

enum status record_renumber(const uint8_t **cursor, const uint8_t *end, int32_t offset_delta, uint8_t **target)
{
    struct record_view view;
    const uint8_t *rest = *cursor;
    RETURN_IF_FAILED(record_read(cursor, end, &view)); /* now [rest, *cursor) is the rest of the record */
    RETURN_IF_FAILED(skip_deltas(&rest, *cursor));
    const struct record_size size = {.fixed = (uint32_t)(1 + (*cursor - rest))};
    uint8_t *next = varint_write(*target, (int32_t)record_body_size(&size, offset_delta, view.timestamp_delta));
    *next++ = (uint8_t)view.attributes;
    next = varlong_write(next, view.timestamp_delta);
    next = varint_write(next, offset_delta);
    memcpy(next, rest, (size_t)(*cursor - rest));
    *target = next + (*cursor - rest);
    return STATUS_OK;
}

enum status records_walk(const uint8_t *start, const uint8_t *end, uint32_t count)
{
    const uint8_t *cursor = start;
    for (uint32_t i = 0; i < count; i++) {
        struct record_view record;
        RETURN_IF_FAILED(record_read(&cursor, end, &record));
        if ((uint32_t)record.offset_delta != i) {
            return STATUS_CORRUPT;
        }
    }
    return cursor == end ? STATUS_OK : STATUS_CORRUPT;
}

uint32_t record_size_largest(const uint8_t *cursor, const uint8_t *end)
{
    uint32_t largest = 0;
    while (cursor < end) {
        const uint8_t *begin = cursor;
        int32_t length;
        if (varint_read(&cursor, end, &length) != STATUS_OK || length < 0 || length > end - cursor) {
            break;
        }
        cursor += length;
        largest = (uint32_t)(cursor - begin) > largest ? (uint32_t)(cursor - begin) : largest;
    }
    return largest;
}
