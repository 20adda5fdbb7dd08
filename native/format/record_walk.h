/* SPDX-License-Identifier: Apache-2.0
 *
 * A walk over the records of a batch that was read from a log. The bytes are untrusted. A broker may have written them,
 * so offsets may have gaps (compaction), and all records may have the log append time.
 */
#ifndef FORMAT_RECORD_WALK_H
#define FORMAT_RECORD_WALK_H

#include "base/status.h"
#include "format/record.h"

/* The decompressed records of a batch, and the fields of its header that apply to them. */
struct log_records {
    const uint8_t *start;
    const uint8_t *end;
    int64_t base_offset;
    int64_t base_timestamp_ms;
    int64_t log_append_time_ms; /* NO_TIMESTAMP if each record has its own */
    int64_t record_count;
};

struct record_walk {
    const struct log_records *records;
    const uint8_t *cursor;   /* the beginning of the next record */
    int64_t count;           /* the number of records that were read */
    int64_t offset;          /* the offset of that record; `view` has its fields */
    struct record_view view;
};

static inline struct record_walk record_walk_begin(const struct log_records *records)
{
    return (struct record_walk){
        .records = records, .cursor = records->start, .offset = records->base_offset - 1};
}

/* Reads the next record. Returns PENDING if all were read. Returns CORRUPT if it cannot be read, its offset is not
 * larger than that of the previous record, or bytes follow the last record. */
MUST_USE static inline enum status record_walk_next(struct record_walk *walk)
{
    const struct log_records *records = walk->records;
    int64_t offset;
    if (walk->count >= records->record_count) {
        return walk->cursor == records->end ? STATUS_PENDING : STATUS_CORRUPT;
    }
    RETURN_IF_FAILED(record_read(&walk->cursor, records->end, &walk->view));
    if (__builtin_add_overflow(records->base_offset, walk->view.offset_delta, &offset) || offset <= walk->offset) {
        return STATUS_CORRUPT;
    }
    walk->offset = offset;
    walk->count++;
    return STATUS_OK;
}

/* Returns the time of the last record in milliseconds since 1970, or NO_TIMESTAMP if the sum overflows. */
static inline int64_t record_walk_timestamp_ms(const struct record_walk *walk)
{
    int64_t timestamp_ms = walk->records->log_append_time_ms;
    if (timestamp_ms == NO_TIMESTAMP &&
        __builtin_add_overflow(walk->records->base_timestamp_ms, walk->view.timestamp_delta, &timestamp_ms)) {
        return NO_TIMESTAMP;
    }
    return timestamp_ms;
}

#endif
