/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a segment, where its one writer appends: the open files, and the numbers that an append moves.
 *
 *   .log        | batch | batch | batch |          size: bytes of whole batches
 *   .index      | entry | entry |                  offset_index->size
 *   .timeindex  | entry |                          time_index->size
 *
 * Rules: shmaccum/log/files/segment.py and index_file.py say what the files hold and why that is safe. A batch goes
 * to the file as it lies in memory, but for its first 16 bytes: base offset, batch length and leader epoch are the
 * log's to give, and the crc does not cover them.
 *
 * Identity: a batch counts as appended only while the path of the .log leads to the file that it was written to, and
 * all bytes are there. A file that was removed, moved, replaced or cut by somebody else would take batches that no
 * reader ever sees. So segment_append looks at the path behind each write. A file that fails is `is_lost`: nothing is
 * written to it any more, not even a cut, and nothing that the write brought counts.
 *
 * Procedure: segment_fit counts the batches that an ordinary append takes. segment_append puts them behind the last
 * whole batch by one pwritev, moves `size` and `next_offset` over those that are whole in the file, and writes their
 * index entries. A write that failed leaves part of a batch behind: `is_torn` is set until the file was cut.
 *
 * A batch may lie in memory that other processes can write. With `verifies_written` its checksum is taken once more
 * behind the write. A batch that was changed in between is not appended: it is cut off with those behind it, before any
 * number moves, and no reader takes a batch whose crc does not fit.
 *
 * The numbers are fields of Python's Segment, Indexer and IndexFile (python/log/log_end_type.h). The writer in
 * Python moves the same numbers, so an append by either one continues that of the other.
 */
#ifndef LOG_SEGMENT_END_H
#define LOG_SEGMENT_END_H

#include "base/check.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    LOG_RUN_MAX = 256, /* batches of one append: two buffers each stay below IOV_MAX */
    OFFSET_ENTRY_SIZE = 8,
    TIME_ENTRY_SIZE = 12,
    INDEX_FILE_SIZE_MAX = 10 << 20, /* Kafka's segment.index.bytes: a segment with a larger index is rolled */
    PRODUCER_ROWS_KEPT = 32,        /* batches of a producer that a partition remembers */
};

/* The open .log file. */
struct segment_end {
    int64_t size;
    int64_t next_offset;        /* of the next batch */
    int64_t first_timestamp_ms; /* the largest timestamp of the first batch; without meaning while the file is empty */
    uint64_t device;            /* st_dev and st_ino of the open file */
    uint64_t inode;
    int descriptor;             /* -1: closed */
    bool is_lost;               /* its path does not lead to it any more, or bytes are missing */
    bool is_torn;               /* something stands behind the last whole batch */
};

/* An open index. */
struct index_file_end {
    int64_t size; /* bytes of whole entries */
    int descriptor;
};

/* The numbers on which the next index entry depends (Kafka's LogSegment.append). */
struct index_position {
    int64_t base_offset;
    int64_t interval;             /* more bytes than this lie between two entries */
    int64_t entry_position;       /* where the batch of the last entry begins */
    int64_t max_timestamp_ms;     /* the largest so far */
    int64_t max_timestamp_offset; /* the last offset of the batch that has it */
    int64_t indexed_timestamp_ms; /* that of the time index's last entry */
};

/* All that an append needs of one partition. */
struct log_end {
    struct segment_end *segment;
    struct index_position *position;
    struct index_file_end *offset_index;
    struct index_file_end *time_index;
    const char *path;      /* of the .log; the caller keeps it. NULL: it has no name, and nobody reads it */
    int64_t segment_bytes; /* a segment grows no larger */
    int64_t segment_ms;    /* no record is younger than the first batch of its segment by more */
    int32_t leader_epoch;
    bool verifies_written; /* a batch that does not have its crc behind the write is not appended */
};

/* A whole batch in memory, header first. */
struct log_batch {
    const uint8_t *bytes;
    uint32_t size;
    uint32_t record_count; /* also how many offsets it takes */
    int64_t max_timestamp_ms;
    int64_t producer_id; /* -1: not idempotent, and the two below mean nothing */
    int32_t base_sequence;
    int16_t producer_epoch;
    uint32_t crc; /* as it was before the write, from private memory */
};

/* How many of the batches, from the first on, the open segment takes. All of them would be one append. */
uint32_t segment_fit(const struct log_end *log, const struct log_batch *batches, uint32_t count);

struct log_append {
    uint32_t batch_count; /* batches that are whole in the file */
    int error;            /* errno: the other batches are not in the file; 0: there are none. ESTALE: it is lost */
    bool is_changed;      /* the first batch that is not counted was changed while it was written */
    int index_error;      /* errno: an index entry was not written, which costs look-ups time; 0: each one was */
};

/* Appends batches that fit. */
struct log_append segment_append(struct log_end *log, const struct log_batch *batches, uint32_t count);

#endif
