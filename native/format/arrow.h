/* SPDX-License-Identifier: Apache-2.0
 *
 * Record batches of Apache Arrow, read in place through the Arrow C data interface. Nothing is copied: the caller must
 * not release the ArrowArray of a batch while rows that were read from it are in use.
 *
 *   struct array     row r of the batch is cell (offset of the struct + r) of every column
 *     column         cell c is at (offset of the column + c): its *first* cell is the sum of both offsets
 *       validity     one bit per cell, lowest first; absent: no cell is null
 *       offsets      cell c is data[offsets[c] .. offsets[c + 1]), in 32 or 64 bits
 *       or views     16 bytes: size, then up to 12 bytes in place, or prefix, buffer index and offset
 *
 * CHECKS. The array is untrusted. The interface has no buffer sizes except those of views, so a buffer that is shorter
 * than the numbers require cannot be detected. All numbers are checked: lengths and offsets that are negative or
 * overflow, children shorter than their parents, missing buffers and children, the count of children, buffers and
 * nulls. While reading, every cell is checked: offsets that decrease or exceed the last one, views and lists past the
 * end, indices outside a dictionary. A batch that contradicts itself is INVALID, with a sentence that names the column
 * and the row.
 *
 * Columns are those of Spark's Kafka connector (KafkaWriter): value, key, topic, partition, timestamp, headers.
 */
#ifndef FORMAT_ARROW_H
#define FORMAT_ARROW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "format/record.h"

/* ---- the interface's ABI, as printed in its specification ---- */

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif

/* ---- columns ---- */

/* Cells [first, first + length) of an array; rows of a column are counted from `first`. */
struct arrow_cells {
    const uint8_t *validity; /* NULL if no cell is null */
    int64_t first;
    int64_t length;
};

/* An integer of 1, 2, 4 or 8 bytes per cell. */
struct arrow_integers {
    const char *name; /* the name of the column, for messages */
    struct arrow_cells cells;
    const uint8_t *numbers;
    uint32_t width;
    bool is_signed;
};

enum arrow_bytes_kind {
    ARROW_BYTES_NULL, /* every cell is null */
    ARROW_BYTES_OFFSETS_32,
    ARROW_BYTES_OFFSETS_64,
    ARROW_BYTES_VIEWS,
};

/* A string of bytes per cell, or a null. */
struct arrow_bytes {
    const char *name;
    enum arrow_bytes_kind kind;
    struct arrow_cells cells;
    const uint8_t *places; /* offsets or views */
    const uint8_t *data;   /* with offsets only */
    int64_t data_size;     /* with offsets only: the last offset */
    const void *const *view_buffers;
    const uint8_t *view_buffer_sizes; /* int64 each */
    int64_t view_buffer_count;
};

/* A string per cell, directly or as an index into a dictionary. */
struct arrow_text {
    struct arrow_bytes bytes; /* with a dictionary: its values */
    struct arrow_integers indices;
    bool has_dictionary;
};

enum arrow_unit { ARROW_SECONDS, ARROW_MILLISECONDS, ARROW_MICROSECONDS, ARROW_NANOSECONDS };

/* list<struct<key, value>>: row r has headers [offsets[r], offsets[r + 1]). */
struct arrow_headers {
    struct arrow_cells cells;
    const uint8_t *offsets;
    bool is_large;
    struct arrow_cells entries; /* the structs in the lists */
    struct arrow_bytes key;
    struct arrow_bytes value;
};

struct arrow_batch {
    int64_t row_count;
    bool has_key;
    bool has_topic;
    bool has_partition;
    bool has_timestamp;
    bool has_headers;
    struct arrow_text value;
    struct arrow_text key;
    struct arrow_text topic;
    struct arrow_integers partition;
    struct arrow_integers timestamp;
    enum arrow_unit timestamp_unit;
    struct arrow_headers headers;
};

/* Checks the types of a batch's columns, before there is data. */
enum status arrow_schema_check(const struct ArrowSchema *schema, struct error *error) MUST_USE;

/* Returns INVALID, with a sentence, for a column that is missing, unknown, given twice or of a wrong type, or for
 * impossible numbers. The batch has pointers only into `array` and to constant names. */
enum status arrow_batch_open(const struct ArrowSchema *schema, const struct ArrowArray *array,
                             struct arrow_batch *batch, struct error *error) MUST_USE;

/* ---- rows: [start, start + *count) must be within the batch; after an error, *count receives the number of rows
 * before the wrong one ---- */

/* A cell in place; size -1 is null. */
struct arrow_slice {
    const void *start;
    int32_t size;
};

enum status arrow_text_read(const struct arrow_text *column, int64_t start, uint32_t *count,
                            struct arrow_slice *slices, struct error *error) MUST_USE;

/* Reads partition numbers; null is -1. */
enum status arrow_partitions_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                  int32_t *partitions, struct error *error) MUST_USE;

/* Reads milliseconds since 1970, rounded down; null is NO_TIMESTAMP. */
enum status arrow_timestamps_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                  int64_t *timestamps_ms, struct error *error) MUST_USE;

/* Counts the headers of all rows, including null rows: the size of `headers` in arrow_headers_read. */
enum status arrow_headers_count(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                                int64_t *header_count, struct error *error) MUST_USE;

/* Fills `headers`, and stores for each row the begin and the number of its headers. */
struct arrow_header_run {
    const struct record_header *headers;
    int32_t count;
};
enum status arrow_headers_read(const struct arrow_batch *batch, int64_t start, uint32_t *count,
                               struct record_header *headers, struct arrow_header_run *runs,
                               struct error *error) MUST_USE;

#endif
