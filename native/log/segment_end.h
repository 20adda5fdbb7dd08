/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a segment, where its only writer appends: the open files, and the numbers that an append advances.
 *
 *   .log        | batch | batch | batch |          size: bytes of whole batches
 *   .index      | entry | entry |                  offset_index->size
 *   .timeindex  | entry |                          time_index->size
 *
 * Rules: shmaccum/log/files/segment.py and index_file.py describe the files and why they are safe. A batch is written
 * to the file unchanged, except for its first 16 bytes: the log sets base offset, batch length and leader epoch, which
 * the crc does not cover.
 *
 * Identity: a batch counts as appended only while the path of the .log leads to the file that it was written to, and
 * all bytes are there. No reader would find batches in a file that was removed, moved, replaced or cut. So
 * segment_append checks the path after each write. A file that fails the check is `is_lost`: it is neither written nor
 * cut any more, and the batches of that write do not count.
 *
 * Procedure: segment_fit counts the batches that an ordinary append takes. segment_append writes them after the last
 * whole batch by one pwritev, advances `size` and `next_offset` past the batches that are whole in the file, and writes
 * their index entries. A write that failed leaves part of a batch: `is_torn` is set until the file was cut.
 *
 * A batch may be in memory that other processes can write. With `verifies_written`, its checksum is computed again
 * after the write. If a batch was changed in between, it and the later ones are cut off before any number advances.
 * Readers reject a batch whose crc is wrong.
 *
 * The numbers are fields of Python's Segment, Indexer and IndexFile (python/log/log_end_type.h). The writer in Python
 * advances the same numbers, so an append by either one continues that of the other.
 */
#ifndef LOG_SEGMENT_END_H
#define LOG_SEGMENT_END_H

#include "base/check.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    LOG_RUN_MAX = 256, /* batches of one append: two iovecs each stay below IOV_MAX */
    OFFSET_ENTRY_SIZE = 8,
    TIME_ENTRY_SIZE = 12,
    INDEX_FILE_SIZE_MAX = 10 << 20, /* Kafka's segment.index.bytes: a segment with a larger index is rolled */
    PRODUCER_ROWS_KEPT = 32,        /* batches of each producer that a partition stores */
};

/* The open .log file. */
struct segment_end {
    int64_t size;
    int64_t next_offset;        /* of the next batch */
    int64_t first_timestamp_ms; /* the largest timestamp of the first batch; undefined if the file is empty */
    uint64_t device;            /* st_dev and st_ino of the open file */
    uint64_t inode;
    int descriptor;             /* -1 if closed */
    bool is_lost;               /* its path no longer leads to it, or bytes are missing */
    bool is_torn;               /* bytes follow the last whole batch */
};

/* An open index. */
struct index_file_end {
    int64_t size; /* bytes of whole entries */
    int descriptor;
};

/* The numbers on which the next index entry depends (Kafka's LogSegment.append). */
struct index_position {
    int64_t base_offset;
    int64_t interval;             /* two entries are more than this many bytes apart */
    int64_t entry_position;       /* the position of the last entry's batch */
    int64_t max_timestamp_ms;     /* the largest timestamp of the segment */
    int64_t max_timestamp_offset; /* the last offset of the batch that has it */
    int64_t indexed_timestamp_ms; /* the timestamp of the last entry in the time index */
};

/* The parts of one partition for an append. */
struct log_end {
    struct segment_end *segment;
    struct index_position *position;
    struct index_file_end *offset_index;
    struct index_file_end *time_index;
    const char *path;      /* of the .log, owned by the caller. NULL if it has no name */
    int64_t segment_bytes; /* the largest size of a segment */
    int64_t segment_ms;    /* the largest age of a record relative to the segment's first batch */
    int32_t leader_epoch;
    bool verifies_written; /* a batch whose crc is wrong after the write is not appended */
};

/* A whole batch in memory, header first. */
struct log_batch {
    const uint8_t *bytes;
    uint32_t size;
    uint32_t record_count; /* also the number of its offsets */
    int64_t max_timestamp_ms;
    int64_t producer_id; /* -1 if not idempotent; then the next two are ignored */
    int32_t base_sequence;
    int16_t producer_epoch;
    uint32_t crc; /* before the write, from private memory */
};

/* Returns how many of the batches, from the first on, the open segment takes in one append. */
uint32_t segment_fit(const struct log_end *log, const struct log_batch *batches, uint32_t count);

/* Returns how many batches, from the first on, have the producer of the first one and consecutive sequences, starting
 * with `sequence`. If the first has no producer, counts batches without a producer. */
uint32_t log_batches_in_sequence(const struct log_batch *batches, uint32_t count, int32_t sequence);

struct log_append {
    uint32_t batch_count; /* batches that are whole in the file */
    int error;            /* errno if other batches are not in the file (ESTALE if it is lost), else 0 */
    bool is_changed;      /* the first batch that is not counted was changed while it was written */
    int index_error;      /* errno if an index entry was not written, else 0; without it, look-ups are slower */
};

/* Appends batches that fit. */
struct log_append segment_append(struct log_end *log, const struct log_batch *batches, uint32_t count);

#endif
