/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts records of a log to columns in the layout of Apache Arrow. All rows are in a few long buffers, so no Python
 * object is needed for each record.
 *
 *   offsets, timestamps, types   a number per row
 *   key, value                   cell c is data[offsets[c] .. offsets[c + 1]); bit c of validity is 0 if it is null
 *   headers                      row r has the headers [offsets[r], offsets[r + 1]), each with a key and a value;
 *                                a row without any is null, as in Spark's Kafka source
 *
 * Count, then write: measure all batches, allocate, append all batches. The bytes are untrusted in both passes: the
 * second one never exceeds the counted sizes, even if the bytes have changed.
 */
#ifndef FORMAT_RECORD_COLUMNS_H
#define FORMAT_RECORD_COLUMNS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "format/record_walk.h"

/* The wanted offsets: [first, end). */
struct log_range {
    int64_t first;
    int64_t end;
};

struct bytes_room {
    int64_t cell_count;
    int64_t data_size;
};

struct record_columns_room {
    int64_t row_count;
    struct bytes_room key;
    struct bytes_room value;
    struct bytes_room header_key;
    struct bytes_room header_value;
};

/* A column. `validity` is all zeros at the beginning. `offsets` has one more number than there are cells. The first is
 * 0. */
struct bytes_column {
    struct bytes_room room;
    struct bytes_room used;
    int64_t null_count;
    uint8_t *validity;
    int32_t *offsets;
    uint8_t *data;
};

struct record_columns {
    int64_t row_capacity;
    int64_t row_count;
    int64_t *offsets;
    int64_t *timestamps_us;
    int32_t *timestamp_types; /* 0 for create time, 1 for log append time */
    struct bytes_column key;
    struct bytes_column value;
    bool has_headers; /* if false, the following fields are not used */
    uint8_t *header_validity;
    int32_t *header_offsets;
    int64_t header_null_count;
    struct bytes_column header_key;
    struct bytes_column header_value;
};

/* The buffers of columns: offsets, timestamps and types; validity, offsets and data of key and of value. With headers,
 * also their validity and offsets, and validity, offsets and data of header keys and of header values. */
enum {
    COLUMN_BUFFERS_KEY = 3,
    COLUMN_BUFFERS_VALUE = 6,
    COLUMN_BUFFERS_HEADERS = 9,
    COLUMN_BUFFERS_HEADER_KEY = 11,
    COLUMN_BUFFERS_HEADER_VALUE = 14,
    COLUMN_BUFFERS_MAX = 17,
};

/* Returns the number of buffers, and stores their sizes in bytes. */
uint32_t record_columns_sizes(const struct record_columns_room *room, bool has_headers,
                              size_t sizes[COLUMN_BUFFERS_MAX]);

/* Makes empty columns in buffers of these sizes. */
void record_columns_begin(struct record_columns *columns, const struct record_columns_room *room, bool has_headers,
                          void *const buffers[COLUMN_BUFFERS_MAX]);

/* Returns the sizes that the columns use. */
struct record_columns_room record_columns_used(const struct record_columns *columns);

/* Adds the sizes of these records. Returns CORRUPT if they cannot be read, their number differs from the header's, or
 * their offsets do not increase. Returns RECORD_TOO_LARGE if a column would exceed 2 GiB. */
MUST_USE enum status record_columns_measure(const struct log_records *records, const struct log_range *range,
                                            struct record_columns_room *room);

/* Appends these records. Returns CORRUPT as above, or if they exceed the measured sizes. */
MUST_USE enum status record_columns_append(const struct log_records *records, const struct log_range *range,
                                           struct record_columns *columns);

#endif
